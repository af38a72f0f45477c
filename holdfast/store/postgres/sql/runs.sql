-- Reading runs and what belongs to them. Lists of numbers and names arrive as arrays.
--
-- The server plans each statement once, perhaps while the tables are empty, and then again with what it has learnt of
-- them; so that it takes the index that is meant at all times, the statements leave it no other one. A page of the
-- newest runs of a status is asked for as the end of a range of (status, run_no): otherwise the server would scan
-- all runs backwards, if it estimates that this status is frequent. Where one run is looked up by its number, its
-- status is compared with those it must not have: otherwise the server would read an index of those it may have, whole.

-- name: store_id
-- The id that the database was given when it was made; copies and backups keep it.
SELECT store_id FROM holdfast.store_meta WHERE single = 1;

-- name: standing
-- Which of several copies of the store this is, and why engines do not work on it, if they do not.
SELECT epoch, closed FROM holdfast.store_meta WHERE single = 1;

-- name: run_by_id
-- One run by its text id.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state WHERE run_id = $1;

-- name: run_by_no
-- One run by its number.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state WHERE run_no = $1;

-- name: workflows_of
-- Root, workflow, version, queue and status of these runs.
SELECT run_no, root_no, workflow, version, queue, status FROM holdfast.run_state WHERE run_no = ANY($1)
ORDER BY run_no;

-- name: runs
-- The newest runs.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state WHERE run_no < $1 ORDER BY run_no DESC LIMIT $2;

-- name: runs_finished
-- The newest runs of one terminal status.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state
WHERE status IN ('completed', 'failed', 'cancelled') AND status >= $3 AND (status, run_no) < ($3, $1)
ORDER BY status DESC, run_no DESC LIMIT $2;

-- name: runs_unowned
-- The newest runs of one non-terminal status without an owner, of which there may be a million: the index
-- has them in this order.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state
WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering')
    AND status >= $3 AND (status, run_no) < ($3, $1)
ORDER BY status DESC, run_no DESC LIMIT $2;

-- name: runs_owned
-- The newest runs of one non-terminal status with an owner: few. The server does not optimise into what
-- ends with OFFSET 0, and might rather scan all runs backwards to avoid a sort.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM (
    SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
        parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
    FROM holdfast.run_state WHERE engine IS NOT NULL AND status = $3 OFFSET 0) AS owned
WHERE run_no < $1
ORDER BY run_no DESC LIMIT $2;

-- name: runs_of_workflow
-- The newest runs of one workflow, of any or of some statuses; written so that the server does not estimate that
-- they are rare, and reads all runs of the workflow to sort them.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state
WHERE workflow >= $3 AND (workflow, run_no) < ($3, $1) AND coalesce(status = ANY($4::text[]), true)
ORDER BY workflow DESC, run_no DESC LIMIT $2;

-- name: runs_of_root
-- A run and its descendants, of any or of one workflow, of any or of some statuses.
SELECT run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format
FROM holdfast.run_state
WHERE (run_no = $3 OR (parent_no IS NOT NULL AND root_no = $3)) AND run_no < $1
    AND ($4::text[] IS NULL OR status = ANY($4)) AND ($5::text IS NULL OR workflow = $5)
ORDER BY run_no DESC LIMIT $2;

-- name: resolve_run_id
-- Run ids from a prefix up to the end of its range.
SELECT run_id FROM holdfast.run_state WHERE run_id >= $1 AND run_id < $2 ORDER BY run_id LIMIT 10;

-- name: counts
-- Runs per status; three parts, so that each is answered from an index alone.
SELECT status, count(*) FROM (
    SELECT status FROM holdfast.run_state WHERE status IN ('completed', 'failed', 'cancelled')
    UNION ALL
    SELECT status FROM holdfast.run_state
    WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering')
    UNION ALL
    SELECT status FROM holdfast.run_state
    WHERE engine IS NOT NULL AND status IN ('created', 'running', 'suspended', 'recovering')
) AS every GROUP BY status;

-- name: open_nodes
-- The rows that these runs need in memory, in the order of first scheduling.
SELECT run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before, captured, scope,
    is_open, started_at, finished_at
FROM holdfast.run_node_state WHERE run_no = ANY($1) AND is_open = 1 ORDER BY run_no, no;

-- name: nodes
-- All rows of a run, closed scopes too.
SELECT run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before, captured, scope,
    is_open, started_at, finished_at
FROM holdfast.run_node_state WHERE run_no = $1 ORDER BY no;

-- name: nodes_under
-- The rows of some nodes, on one visit, with a path from a prefix up to the end of its range.
SELECT run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before, captured, scope,
    is_open, started_at, finished_at
FROM holdfast.run_node_state
WHERE run_no = $1 AND node = ANY($2) AND path >= $3 AND path < $4 AND visit = $5
ORDER BY no;

-- name: open_waits
-- What these runs wait for.
SELECT run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee, outcome, actor
FROM holdfast.run_waits WHERE run_no = ANY($1) AND status = 'open' ORDER BY run_no, no;

-- name: set_timers
-- The timers of these runs that have not fired.
SELECT run_no, timer, due_at, branch, status, boot, elapsed
FROM holdfast.run_timers WHERE run_no = ANY($1) AND status = 'set' ORDER BY due_at, run_no, timer;

-- name: due_timers
-- A page of the timers that are due and whose run could be claimed. The timers come first, whatever the server knows of
-- the tables: it does not optimise into what ends with OFFSET 0, and might rather begin with a million runs.
SELECT t.run_no, t.timer, t.due_at, t.branch, t.status, t.boot, t.elapsed
FROM holdfast.run_timers AS t
WHERE t.status = 'set' AND t.due_at <= $1 AND (t.due_at, t.run_no, t.timer) > ($5, $6, $7) AND EXISTS (
    SELECT 1 FROM holdfast.run_state AS r
    WHERE r.run_no = t.run_no AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $9
        AND r.status NOT IN ('completed', 'failed', 'cancelled')
        AND r.workflow = ANY($3) AND ($4::bigint[] IS NULL OR r.root_no = ANY($4))
        AND ($8::text[] IS NULL OR r.queue = ANY($8)) OFFSET 0)
ORDER BY t.due_at, t.run_no, t.timer LIMIT $2;

-- name: next_timer
-- When the next timer of a run that could be claimed is due; as above.
SELECT t.due_at
FROM holdfast.run_timers AS t
WHERE t.status = 'set' AND EXISTS (
    SELECT 1 FROM holdfast.run_state AS r
    WHERE r.run_no = t.run_no AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $1
        AND r.status NOT IN ('completed', 'failed', 'cancelled') OFFSET 0)
ORDER BY t.due_at LIMIT 1;

-- name: page_of_waits_for_children
-- The last run of those that the next waits for children belong to; from the index alone.
SELECT max(run_no), count(*) FROM (
    SELECT run_no FROM holdfast.run_waits
    WHERE status = 'open' AND kind = 'child' AND run_no > $1 ORDER BY run_no LIMIT $2) AS page;

-- name: waits_for_ended
-- Runs, from one number to another, without an owner that wait for a child that has ended: found even if the
-- message of the child was lost.
SELECT w.run_no, c.run_id
FROM holdfast.run_waits AS w
JOIN holdfast.run_state AS p ON p.run_no = w.run_no
JOIN holdfast.run_state AS c ON c.run_id = holdfast.json_text(w.data, 'child')
WHERE w.status = 'open' AND w.kind = 'child' AND w.run_no > $1 AND w.run_no <= $2
    AND p.engine IS NULL AND c.status NOT IN ('created', 'running', 'suspended', 'recovering')
ORDER BY w.run_no, w.no;

-- name: events
-- A page of the journal.
SELECT run_no, seq, branch, type, node, path, visit, at, token, hash, data
FROM holdfast.run_events WHERE run_no = $1 AND seq > $2 ORDER BY seq LIMIT $3;

-- name: events_of_types
-- A page of the journal, some types only.
SELECT run_no, seq, branch, type, node, path, visit, at, token, hash, data
FROM holdfast.run_events WHERE run_no = $1 AND seq > $2 AND type = ANY($4) ORDER BY seq LIMIT $3;

-- name: events_of_runs
-- The journals of several runs, each from some event on, without some types, and what each event is linked to.
SELECT e.run_no, e.seq, e.branch, e.type, e.node, e.path, e.visit, e.at, e.token, e.hash, e.data,
    (SELECT p.hash FROM holdfast.run_events AS p WHERE p.run_no = e.run_no AND p.seq = e.seq - 1),
    (SELECT r.run_id FROM holdfast.run_state AS r WHERE r.run_no = e.run_no)
FROM unnest($1::bigint[], $2::bigint[]) AS page (run_no, after)
JOIN holdfast.run_events AS e ON e.run_no = page.run_no AND e.seq > page.after
WHERE e.type <> ALL($3) ORDER BY e.run_no, e.seq;

-- name: event_data_of
-- Some events of several runs, and what each is linked to.
SELECT e.run_no, e.seq, e.branch, e.type, e.node, e.path, e.visit, e.at, e.token, e.hash, e.data,
    (SELECT p.hash FROM holdfast.run_events AS p WHERE p.run_no = e.run_no AND p.seq = e.seq - 1),
    (SELECT r.run_id FROM holdfast.run_state AS r WHERE r.run_no = e.run_no)
FROM unnest($1::bigint[], $2::bigint[]) AS place (run_no, seq)
JOIN holdfast.run_events AS e ON e.run_no = place.run_no AND e.seq = place.seq;

-- name: event_data
-- Some events of a run, and what each is linked to.
SELECT e.run_no, e.seq, e.branch, e.type, e.node, e.path, e.visit, e.at, e.token, e.hash, e.data,
    (SELECT p.hash FROM holdfast.run_events AS p WHERE p.run_no = e.run_no AND p.seq = e.seq - 1),
    (SELECT r.run_id FROM holdfast.run_state AS r WHERE r.run_no = $1)
FROM holdfast.run_events AS e WHERE e.run_no = $1 AND e.seq = ANY($2);

-- name: branches
-- The branches of a run.
SELECT run_no, branch, parent, cutoff_seq, key_epoch, reason, origin_no, created_at
FROM holdfast.run_branches WHERE run_no = $1 ORDER BY branch;

-- name: with_origin
-- Those of these runs whose journal begins in another one's.
SELECT DISTINCT run_no FROM holdfast.run_branches WHERE run_no = ANY($1) AND origin_no IS NOT NULL;

-- name: origin
-- The run whose journal is the beginning of this one's, and up to where.
SELECT origin_no, cutoff_seq FROM holdfast.run_branches WHERE run_no = $1 AND origin_no IS NOT NULL;

-- name: differing_heads
-- Runs whose rows and journal do not end at the same event, or end with an event of another type than these. OFFSET 0
-- makes the server look up one run at a time, rather
-- than read the whole journal.
SELECT r.run_no FROM holdfast.run_state AS r WHERE r.run_no = ANY($1) AND (
    NOT EXISTS (SELECT 1 FROM holdfast.run_events AS e
                WHERE e.run_no = r.run_no AND e.seq = r.last_seq AND e.hash = r.head_hash AND e.type = ANY($2) OFFSET 0)
    OR EXISTS (SELECT 1 FROM holdfast.run_events AS e WHERE e.run_no = r.run_no AND e.seq > r.last_seq OFFSET 0))
ORDER BY r.run_no;
