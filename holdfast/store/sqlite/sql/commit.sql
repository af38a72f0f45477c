-- The one write path: the statements of a group, in the order in which they are executed.
-- A row between two row marks is repeated as often as there are rows.

-- name: move_runs
-- The fence: moves each run whose token, last seq and head hash are the ones its owner knows; the change count shows
-- the rest. The hash tells apart two runs with one number, which a database that fell back to an earlier state can
-- have.
-- A run that is given back unfinished keeps the name of who gives it.
WITH v (run_no, token, expected_seq, expected_hash, last_seq, head_hash, status, branch, engine, recoveries, started_at,
        finished_at, fold, format) AS (VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) /*row*/)
UPDATE run_state SET
    last_seq = v.last_seq, head_hash = v.head_hash, status = v.status, branch = v.branch, engine = v.engine,
    recoveries = v.recoveries, started_at = v.started_at, finished_at = v.finished_at,
    fold = coalesce(v.fold, run_state.fold), format = max(run_state.format, v.format), last_engine = iif(
        v.engine IS NULL AND v.finished_at IS NULL, coalesce(run_state.engine, run_state.last_engine),
        run_state.last_engine)
FROM v
WHERE run_state.run_no = v.run_no AND run_state.token = v.token AND run_state.last_seq = v.expected_seq
    AND run_state.head_hash = coalesce(v.expected_hash, run_state.head_hash);

-- name: move_run
-- The same for one run alone: without the list it takes half the time.
UPDATE run_state SET
    last_seq = ?5, head_hash = ?6, status = ?7, branch = ?8, engine = ?9, recoveries = ?10, started_at = ?11,
    finished_at = ?12, fold = coalesce(?13, fold), format = max(format, ?14),
    last_engine = iif(?9 IS NULL AND ?12 IS NULL, coalesce(engine, last_engine), last_engine)
WHERE run_no = ?1 AND token = ?2 AND last_seq = ?3 AND head_hash = coalesce(?4, head_hash);

-- name: step_runs
-- The fence of runs that only continue: no index of run_state is touched.
WITH v (run_no, token, expected_seq, expected_hash, last_seq, head_hash, recoveries)
    AS (VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?) /*row*/)
UPDATE run_state SET last_seq = v.last_seq, head_hash = v.head_hash, recoveries = v.recoveries
FROM v
WHERE run_state.run_no = v.run_no AND run_state.token = v.token AND run_state.last_seq = v.expected_seq
    AND run_state.head_hash = coalesce(v.expected_hash, run_state.head_hash);

-- name: step_run
-- The same for one run alone.
UPDATE run_state SET last_seq = ?5, head_hash = ?6, recoveries = ?7
WHERE run_no = ?1 AND token = ?2 AND last_seq = ?3 AND head_hash = coalesce(?4, head_hash);

-- name: create_runs
-- New runs, and new children of runs.
INSERT INTO run_state (run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold,
    input_hash, parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
    last_engine, format)
VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) /*row*/;

-- name: put_nodes
-- The current rows of instances. A row keeps its place in the order of first scheduling.
INSERT INTO run_node_state (run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before,
    captured, scope, is_open, started_at, finished_at)
VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) /*row*/
ON CONFLICT (run_no, node, path, visit) DO UPDATE SET
    status = excluded.status, attempt = excluded.attempt, failures = excluded.failures,
    output_seq = excluded.output_seq, memory_seq = excluded.memory_seq, not_before = excluded.not_before,
    captured = excluded.captured, scope = excluded.scope, is_open = excluded.is_open,
    started_at = excluded.started_at, finished_at = excluded.finished_at;

-- name: append_events
-- The journal; a seq that exists already fails the commit.
INSERT INTO run_events (run_no, seq, branch, type, node, path, visit, at, token, hash, data)
VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) /*row*/;

-- name: put_waits
-- Waits, opened, reassigned or closed; what a wait is about never changes, and closing it keeps its basket and
-- assignee.
INSERT INTO run_waits (run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee,
    outcome, actor)
VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) /*row*/
ON CONFLICT (run_no, wait_id) DO UPDATE SET
    status = excluded.status, outcome = excluded.outcome, actor = excluded.actor,
    basket = iif(excluded.status = 'open', excluded.basket, run_waits.basket),
    assignee = iif(excluded.status = 'open', excluded.assignee, run_waits.assignee);

-- name: put_timers
-- Timers, set, fired or cancelled.
INSERT INTO run_timers (run_no, timer, due_at, branch, status, boot, elapsed)
VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?) /*row*/
ON CONFLICT (run_no, timer) DO UPDATE SET
    due_at = iif(excluded.status = 'set', excluded.due_at, run_timers.due_at), branch = excluded.branch,
    status = excluded.status, boot = iif(excluded.status = 'set', excluded.boot, run_timers.boot),
    elapsed = iif(excluded.status = 'set', excluded.elapsed, run_timers.elapsed);

-- name: settle_messages
-- What became of messages, with the events they led to.
WITH v (message_id, status, outcome) AS (VALUES /*row*/ (?, ?, ?) /*row*/)
UPDATE run_inbox_messages SET status = v.status, outcome = v.outcome
FROM v
WHERE run_inbox_messages.message_id = v.message_id;

-- name: add_messages
-- Messages to other runs; an existing one is left as it is.
INSERT INTO run_inbox_messages (message_id, run_no, kind, payload, created_at, status, outcome)
VALUES /*row*/ (?, ?, ?, ?, ?, ?, ?) /*row*/
ON CONFLICT (message_id) DO NOTHING;

-- name: close_inbox
-- Runs have ended: they will never consume what is left, except for requests for another branch.
UPDATE run_inbox_messages SET
    status = 'dead', outcome = CAST('{"outcome":"refused","code":"finished","why":"the run has ended"}' AS BLOB)
WHERE run_no IN (VALUES /*row*/ (?) /*row*/) AND status = 'new'
    AND kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover');

-- name: drop_undeliverable
-- Messages of a group to runs that have ended meanwhile: as above.
UPDATE run_inbox_messages SET
    status = 'dead', outcome = CAST('{"outcome":"refused","code":"finished","why":"the run has ended"}' AS BLOB)
WHERE message_id = ? AND status = 'new' AND kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover')
    AND (SELECT status FROM run_state WHERE run_no = run_inbox_messages.run_no) IN ('completed', 'failed', 'cancelled');

-- name: is_run_id_taken
-- Why an insert into run_state was refused.
SELECT 1 FROM run_state WHERE run_id = ?;

-- name: is_run_no_taken
-- The same for its number.
SELECT 1 FROM run_state WHERE run_no = ?;

-- name: put_branch
-- The current branch of a run.
INSERT INTO run_branches (run_no, branch, parent, cutoff_seq, key_epoch, reason, data, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, CAST(json_object('origin_no', ?7) AS BLOB), ?8);

-- name: drop_nodes
-- Rows of instances that the new branch does not have; the journal still has them.
DELETE FROM run_node_state
WHERE run_no = ?1 AND (node, path, visit) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(?2));

-- name: pin_version
-- A branch may run under another version.
UPDATE run_state SET version = ?2 WHERE run_no = ?1;
