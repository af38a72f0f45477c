-- Reading runs and what belongs to them. Lists of numbers and names arrive as one JSON array.

-- name: store_id
-- The id that the database was given when it was made; copies and backups keep it.
SELECT store_id FROM store_meta WHERE only = 1;

-- name: standing
-- Which of several copies of the store this is, and why engines do not work on it, if they do not.
SELECT epoch, closed FROM store_meta WHERE only = 1;

-- name: run_by_id
-- One run by its text id.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state WHERE run_id = ?;

-- name: run_by_no
-- One run by its number.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state WHERE run_no = ?;

-- name: workflows_of
-- Root, workflow, version, queue and status of these runs.
SELECT run_no, root_no, workflow, version, queue, status FROM run_state WHERE run_no IN (SELECT value FROM json_each(?))
ORDER BY run_no;

-- name: runs
-- The newest runs.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state WHERE run_no < ?1 ORDER BY run_no DESC LIMIT ?2;

-- name: runs_finished
-- The newest runs of one terminal status.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state
WHERE (status = 'completed' OR status = 'failed' OR status = 'cancelled') AND status = ?3 AND run_no < ?1
ORDER BY run_no DESC LIMIT ?2;

-- name: runs_unowned
-- The newest runs of one non-terminal status without an owner, of which there may be a million: the index
-- has them in this order. It is named, or SQLite scans finished runs backwards.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state INDEXED BY run_state_live
WHERE (status = 'created' OR status = 'running' OR status = 'suspended' OR status = 'recovering')
    AND engine IS NULL AND status = ?3 AND run_no < ?1
ORDER BY run_no DESC LIMIT ?2;

-- name: runs_owned
-- The newest runs of one non-terminal status with an owner.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state INDEXED BY run_state_live
WHERE engine IS NOT NULL AND status = ?3 AND run_no < ?1
ORDER BY run_no DESC LIMIT ?2;

-- name: runs_of_workflow
-- The newest runs of one workflow, of any or of some statuses.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state
WHERE workflow = ?3 AND run_no < ?1 AND (?4 IS NULL OR status IN (SELECT value FROM json_each(?4)))
ORDER BY run_no DESC LIMIT ?2;

-- name: runs_of_root
-- A run and its descendants, of any or of one workflow, of any or of some statuses.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM run_state
WHERE (run_no = ?3 OR (parent_no IS NOT NULL AND root_no = ?3)) AND run_no < ?1
    AND (?4 IS NULL OR status IN (SELECT value FROM json_each(?4))) AND (?5 IS NULL OR workflow = ?5)
ORDER BY run_no DESC LIMIT ?2;

-- name: resolve_run_id
-- Run ids from a prefix up to the end of its range.
SELECT run_id FROM run_state WHERE run_id >= ?1 AND run_id < ?2 ORDER BY run_id LIMIT 10;

-- name: counts
-- Runs per status; two parts, so that each is answered from an index alone.
SELECT status, count(*) FROM run_state
WHERE (status = 'completed' OR status = 'failed' OR status = 'cancelled') GROUP BY status
UNION ALL
SELECT status, count(*) FROM run_state
WHERE (status = 'created' OR status = 'running' OR status = 'suspended' OR status = 'recovering')
GROUP BY status;

-- name: open_nodes
-- The rows that these runs need in memory; rowid is the order of first scheduling. Those that the index of open
-- rows does not have are found by the key, from one node of a run to the next: what a map or a loop has closed
-- is between the two, and is not read.
WITH RECURSIVE met (run_no, node) AS (
    SELECT DISTINCT value, (SELECT min(n.node) FROM run_node_state AS n WHERE n.run_no = value) FROM json_each(?1)
    UNION ALL
    SELECT met.run_no, (
        SELECT min(n.node) FROM run_node_state AS n WHERE n.run_no = met.run_no AND n.node > met.node)
    FROM met WHERE met.node IS NOT NULL),
found (no) AS (
    SELECT n.rowid FROM met CROSS JOIN run_node_state AS n
        ON n.run_no = met.run_no AND n.node = met.node AND n.path = '.' AND n.visit = 1
    UNION ALL
    SELECT n.rowid FROM run_node_state AS n INDEXED BY run_node_state_open
    WHERE n.run_no IN (SELECT value FROM json_each(?1)) AND n.is_open = 1 AND (n.path <> '.' OR n.visit > 1))
SELECT n.run_no, n.node, n.path, n.visit, n.status, n.attempt, n.failures, n.output_seq, n.memory_seq, n.not_before,
    n.captured, n.scope, n.is_open, n.started_at, n.finished_at
FROM found CROSS JOIN run_node_state AS n ON n.rowid = found.no WHERE n.is_open = 1 ORDER BY n.run_no, n.rowid;

-- name: nodes
-- All rows of a run, closed scopes too.
SELECT run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before, captured, scope,
    is_open, started_at, finished_at
FROM run_node_state WHERE run_no = ? ORDER BY rowid;

-- name: nodes_under
-- The rows of some nodes, on one visit, with a path from a prefix up to the end of its range.
SELECT run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before, captured, scope,
    is_open, started_at, finished_at
FROM run_node_state
WHERE run_no = ?1 AND node IN (SELECT value FROM json_each(?2)) AND path >= ?3 AND path < ?4 AND visit = ?5
ORDER BY rowid;

-- name: open_waits
-- What these runs wait for.
SELECT run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee, outcome, actor
FROM run_waits WHERE run_no IN (SELECT value FROM json_each(?)) AND status = 'open' ORDER BY run_no, rowid;

-- name: set_timers
-- The timers of these runs that have not fired. The index is named, or SQLite scans those that have.
SELECT run_no, timer, due_at, branch, status, boot, elapsed
FROM run_timers INDEXED BY run_timers_of_run WHERE run_no IN (SELECT value FROM json_each(?)) AND status = 'set' ORDER BY due_at, run_no, timer;

-- name: due_timers
-- A page of the timers that are due and whose run could be claimed: by the wall clock (?1), or, of those that were set
-- by a duration in this boot (?10), by the time that has passed in it (?11). The drivers must be the timer indexes,
-- never
-- a scan of the runs.
SELECT run_no, timer, due_at, branch, status, boot, elapsed FROM (
SELECT run_no, timer, due_at, branch, status, boot, elapsed, due FROM (
    SELECT t.*, t.due_at AS due
    FROM run_timers AS t INDEXED BY run_timers_due CROSS JOIN run_state AS r ON r.run_no = t.run_no
    WHERE t.status = 'set' AND t.due_at <= ?1 AND (t.due_at, t.run_no, t.timer) > (?5, ?6, ?7)
        AND (t.boot = '' OR t.boot <> ?10) AND r.engine IS NULL AND r.hold IS NULL
        AND r.format <= ?9
        AND r.status IN ('created', 'running', 'suspended', 'recovering')
        AND r.workflow IN (SELECT value FROM json_each(?3))
        AND (?4 IS NULL OR r.root_no IN (SELECT value FROM json_each(?4)))
        AND (?8 IS NULL OR r.queue IN (SELECT value FROM json_each(?8)))
    ORDER BY t.due_at, t.run_no, t.timer LIMIT ?2)
UNION ALL SELECT run_no, timer, due_at, branch, status, boot, elapsed, due FROM (
    SELECT t.*, t.elapsed - ?11 + ?1 AS due
    FROM run_timers AS t INDEXED BY run_timers_lasting CROSS JOIN run_state AS r ON r.run_no = t.run_no
    WHERE t.status = 'set' AND t.boot <> '' AND t.boot = ?10 AND t.elapsed <= ?11
        AND (t.elapsed, t.run_no, t.timer) > (?5 - ?1 + ?11, ?6, ?7) AND r.engine IS NULL AND r.hold IS NULL
        AND r.format <= ?9
        AND r.status IN ('created', 'running', 'suspended', 'recovering')
        AND r.workflow IN (SELECT value FROM json_each(?3))
        AND (?4 IS NULL OR r.root_no IN (SELECT value FROM json_each(?4)))
        AND (?8 IS NULL OR r.queue IN (SELECT value FROM json_each(?8)))
    ORDER BY t.elapsed, t.run_no, t.timer LIMIT ?2)
ORDER BY due, run_no, timer LIMIT ?2);

-- name: next_timer
-- When the next timer of a run that could be claimed is due.
SELECT t.due_at
FROM run_timers AS t CROSS JOIN run_state AS r ON r.run_no = t.run_no
WHERE t.status = 'set' AND r.engine IS NULL AND r.hold IS NULL AND r.format <= ?1
    AND r.status IN ('created', 'running', 'suspended', 'recovering')
ORDER BY t.due_at LIMIT 1;

-- name: page_of_waits_for_children
-- The last run of those that the next waits for children belong to; from the index alone.
SELECT max(run_no), count(*) FROM (
    SELECT run_no FROM run_waits INDEXED BY run_waits_for_children
    WHERE status = 'open' AND kind = 'child' AND run_no > ?1 ORDER BY run_no LIMIT ?2);

-- name: waits_for_ended
-- Runs, from one number to another, without an owner that wait for a child that has ended: found even if the
-- message of the child was lost.
SELECT w.run_no, c.run_id
FROM run_waits AS w INDEXED BY run_waits_for_children
CROSS JOIN run_state AS p ON p.run_no = w.run_no
CROSS JOIN run_state AS c ON c.run_id = json_extract(w.data, '$.child')
WHERE w.status = 'open' AND w.kind = 'child' AND w.run_no > ?1 AND w.run_no <= ?2
    AND p.engine IS NULL AND c.status IN ('completed', 'failed', 'cancelled')
ORDER BY w.run_no, w.rowid;

-- name: events
-- A page of the journal.
SELECT run_no, seq, branch, type, node, path, visit, at, token, hash, data
FROM run_events WHERE run_no = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3;

-- name: events_of_types
-- A page of the journal, some types only.
SELECT run_no, seq, branch, type, node, path, visit, at, token, hash, data
FROM run_events WHERE run_no = ?1 AND seq > ?2 AND type IN (SELECT value FROM json_each(?4)) ORDER BY seq LIMIT ?3;

-- name: events_of_runs
-- The journals of several runs, each from some event on, without some types, and what each event is linked to; the list
-- has pairs [run_no, after].
SELECT e.run_no, e.seq, e.branch, e.type, e.node, e.path, e.visit, e.at, e.token, e.hash, e.data,
    (SELECT p.hash FROM run_events AS p WHERE p.run_no = e.run_no AND p.seq = e.seq - 1),
    (SELECT r.run_id FROM run_state AS r WHERE r.run_no = e.run_no)
FROM json_each(?1) AS page CROSS JOIN run_events AS e ON e.run_no = page.value ->> 0 AND e.seq > page.value ->> 1
WHERE e.type NOT IN (SELECT value FROM json_each(?2)) ORDER BY e.run_no, e.seq;

-- name: event_data_of
-- Some events of several runs, and what each is linked to; the list has pairs [run_no, seq].
SELECT e.run_no, e.seq, e.branch, e.type, e.node, e.path, e.visit, e.at, e.token, e.hash, e.data,
    (SELECT p.hash FROM run_events AS p WHERE p.run_no = e.run_no AND p.seq = e.seq - 1),
    (SELECT r.run_id FROM run_state AS r WHERE r.run_no = e.run_no)
FROM json_each(?1) AS place
CROSS JOIN run_events AS e ON e.run_no = place.value ->> 0 AND e.seq = place.value ->> 1;

-- name: event_data
-- Some events of a run, and what each is linked to.
SELECT e.run_no, e.seq, e.branch, e.type, e.node, e.path, e.visit, e.at, e.token, e.hash, e.data,
    (SELECT p.hash FROM run_events AS p WHERE p.run_no = e.run_no AND p.seq = e.seq - 1),
    (SELECT r.run_id FROM run_state AS r WHERE r.run_no = ?1)
FROM run_events AS e WHERE e.run_no = ?1 AND e.seq IN (SELECT value FROM json_each(?2));

-- name: branches
-- The branches of a run.
SELECT run_no, branch, parent, cutoff_seq, key_epoch, reason, json_extract(data, '$.origin_no'), created_at
FROM run_branches WHERE run_no = ? ORDER BY branch;

-- name: with_origin
-- Those of these runs whose journal begins in another one's.
SELECT DISTINCT run_no FROM run_branches
WHERE run_no IN (SELECT value FROM json_each(?)) AND json_extract(data, '$.origin_no') IS NOT NULL;

-- name: origin
-- The run whose journal is the beginning of this one's, and up to where.
SELECT json_extract(data, '$.origin_no'), cutoff_seq
FROM run_branches WHERE run_no = ? AND json_extract(data, '$.origin_no') IS NOT NULL;

-- name: differing_heads
-- Runs whose rows and journal do not end at the same event, or end with an event of another type than these.
SELECT r.run_no FROM run_state AS r WHERE r.run_no IN (SELECT value FROM json_each(?1)) AND (
    NOT EXISTS (SELECT 1 FROM run_events AS e WHERE e.run_no = r.run_no AND e.seq = r.last_seq
        AND e.hash = r.head_hash AND e.type IN (SELECT value FROM json_each(?2)))
    OR EXISTS (SELECT 1 FROM run_events AS e WHERE e.run_no = r.run_no AND e.seq > r.last_seq))
ORDER BY r.run_no;
