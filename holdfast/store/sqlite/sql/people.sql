-- Waits for people, over all runs. Each index is named: SQLite would rather begin with the runs.

-- name: asked
-- Open waits, oldest first, after a position.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM run_waits AS w INDEXED BY run_waits_asked CROSS JOIN run_state AS r ON r.run_no = w.run_no
WHERE w.status = 'open' AND (w.kind = 'input' OR w.kind = 'basket' OR w.kind = 'pause' OR w.kind = 'hold')
    AND w.kind IN (SELECT value FROM json_each(?1)) AND (w.since, w.wait_id) > (?2, ?3)
    AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.since, w.wait_id LIMIT ?4;

-- name: asked_in_basket
-- The same in one basket, of any assignee (?6 is null) or of one person.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM run_waits AS w INDEXED BY run_waits_basket CROSS JOIN run_state AS r ON r.run_no = w.run_no
WHERE w.status = 'open' AND w.basket = ?5
    AND w.kind IN (SELECT value FROM json_each(?1)) AND (w.since, w.wait_id) > (?2, ?3)
    AND (?6 IS NULL OR w.assignee = ?6) AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.since, w.wait_id LIMIT ?4;

-- name: asked_of_assignee
-- The same of one assignee.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM run_waits AS w INDEXED BY run_waits_assignee CROSS JOIN run_state AS r ON r.run_no = w.run_no
WHERE w.status = 'open' AND w.assignee = ?5
    AND w.kind IN (SELECT value FROM json_each(?1)) AND (w.since, w.wait_id) > (?2, ?3)
    AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.since, w.wait_id LIMIT ?4;

-- name: waits_by_id
-- Waits from a prefix up to the end of its range, open or closed; the one that has just this id comes first.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM run_waits AS w INDEXED BY run_waits_of_people CROSS JOIN run_state AS r ON r.run_no = w.run_no
WHERE (w.kind = 'input' OR w.kind = 'basket' OR w.kind = 'pause' OR w.kind = 'hold')
    AND w.wait_id >= ?1 AND w.wait_id < ?2
ORDER BY w.wait_id, w.rowid LIMIT 10;

-- name: baskets
-- How many waits are in each basket, and since when.
SELECT basket, sum(kind = 'input'), sum(kind <> 'input'), min(since)
FROM run_waits INDEXED BY run_waits_basket
WHERE status = 'open' AND basket IS NOT NULL
GROUP BY basket ORDER BY basket;
