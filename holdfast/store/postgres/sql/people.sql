-- Waits for people, over all runs. The waits come first, whatever the server knows of the tables: it does not optimise
-- into what ends with OFFSET 0, and would rather begin with the runs.

-- name: asked
-- Open waits, oldest first, after a position.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM holdfast.run_waits AS w
JOIN LATERAL (SELECT run_id, workflow, status FROM holdfast.run_state WHERE run_no = w.run_no OFFSET 0) AS r ON true
WHERE w.status = 'open' AND w.kind IN ('input', 'basket', 'pause', 'hold')
    AND w.kind = ANY($1) AND (w.since, w.wait_id) > ($2, $3)
    AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.since, w.wait_id LIMIT $4;

-- name: asked_in_basket
-- The same in one basket, of any assignee ($6 is null) or of one person.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM holdfast.run_waits AS w
JOIN LATERAL (SELECT run_id, workflow, status FROM holdfast.run_state WHERE run_no = w.run_no OFFSET 0) AS r ON true
WHERE w.status = 'open' AND w.basket = $5
    AND w.kind = ANY($1) AND (w.since, w.wait_id) > ($2, $3)
    AND ($6::text IS NULL OR w.assignee = $6) AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.since, w.wait_id LIMIT $4;

-- name: asked_of_assignee
-- The same of one assignee.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM holdfast.run_waits AS w
JOIN LATERAL (SELECT run_id, workflow, status FROM holdfast.run_state WHERE run_no = w.run_no OFFSET 0) AS r ON true
WHERE w.status = 'open' AND w.assignee = $5
    AND w.kind = ANY($1) AND (w.since, w.wait_id) > ($2, $3)
    AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.since, w.wait_id LIMIT $4;

-- name: waits_by_id
-- Waits from a prefix up to the end of its range, open or closed; the one that has just this id comes first.
SELECT r.run_id, r.workflow, w.run_no, w.wait_id, w.kind, w.node, w.path, w.visit, w.branch, w.status, w.since, w.until,
    w.data, w.basket, w.assignee, w.outcome, w.actor
FROM holdfast.run_waits AS w
JOIN LATERAL (SELECT run_id, workflow FROM holdfast.run_state WHERE run_no = w.run_no OFFSET 0) AS r ON true
WHERE w.kind IN ('input', 'basket', 'pause', 'hold') AND w.wait_id >= $1 AND w.wait_id < $2
ORDER BY w.wait_id, w.no LIMIT 10;

-- name: baskets
-- How many waits are in each basket, and since when.
SELECT basket, count(*) FILTER (WHERE kind = 'input'), count(*) FILTER (WHERE kind <> 'input'), min(since)
FROM holdfast.run_waits
WHERE status = 'open' AND basket IS NOT NULL
GROUP BY basket ORDER BY basket;
