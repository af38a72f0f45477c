-- The one write path. A group is one statement, made of those of the parts below that it has rows for: the fence first,
-- then one part a table, then the answer. Each part is fed by arrays, one a column, and numbers its parameters from 1.

-- name: fence_steps
-- Runs that only advance: no index of run_state is touched. The lists are in the order of run numbers. The hash tells
-- apart two runs with one number, which a database that fell back to an earlier state can have.
fence AS (
    UPDATE holdfast.run_state AS r SET last_seq = v.last_seq, head_hash = v.head_hash, recoveries = v.recoveries
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[], $7::bigint[])
        AS v (run_no, token, expected_seq, expected_hash, last_seq, head_hash, recoveries)
    WHERE r.run_no = v.run_no AND r.token = v.token AND r.last_seq = v.expected_seq
        AND r.head_hash = coalesce(v.expected_hash, r.head_hash)
    RETURNING 1)

-- name: fence_moves
-- Runs of which anything may change; for one that only advances `status` is null, and the columns after it stay.
-- One that is released unfinished keeps the name of the engine that releases it.
fence AS (
    UPDATE holdfast.run_state AS r SET
        last_seq = v.last_seq, head_hash = v.head_hash, recoveries = v.recoveries,
        status = coalesce(v.status, r.status), branch = coalesce(v.branch, r.branch),
        engine = CASE WHEN v.status IS NULL THEN r.engine ELSE v.engine END,
        started_at = CASE WHEN v.status IS NULL THEN r.started_at ELSE v.started_at END,
        finished_at = CASE WHEN v.status IS NULL THEN r.finished_at ELSE v.finished_at END,
        fold = coalesce(v.fold, r.fold), version = coalesce(v.version, r.version),
        format = greatest(r.format, v.format),
        last_engine = CASE WHEN v.status IS NOT NULL AND v.engine IS NULL AND v.finished_at IS NULL
            THEN coalesce(r.engine, r.last_engine) ELSE r.last_engine END
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[], $7::bigint[],
            $8::text[], $9::bigint[], $10::text[], $11::bigint[], $12::bigint[], $13::bytea[], $14::bigint[],
            $15::bigint[])
        AS v (run_no, token, expected_seq, expected_hash, last_seq, head_hash, recoveries, status, branch, engine,
            started_at, finished_at, fold, version, format)
    WHERE r.run_no = v.run_no AND r.token = v.token AND r.last_seq = v.expected_seq
        AND r.head_hash = coalesce(v.expected_hash, r.head_hash)
    RETURNING 1)

-- name: create_runs
-- New runs, and new children of runs. Listeners are notified of those without an owner.
created AS (
    INSERT INTO holdfast.run_state (run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token,
        engine, fold, input_hash, parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at,
        queue, last_engine, format)
    SELECT v.run_no, v.run_id, v.workflow, v.version, v.status, v.branch, v.last_seq, v.head_hash, v.token, v.engine,
        v.fold, v.input_hash, v.parent_no, v.root_no, v.priority, v.recoveries, v.hold, v.created_at, v.started_at,
        v.finished_at, v.queue, v.last_engine, v.format
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bytea[],
            $9::bigint[], $10::text[], $11::bytea[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[],
            $16::bigint[], $17::text[], $18::bigint[], $19::bigint[], $20::bigint[], $21::text[], $22::text[],
            $23::bigint[])
        AS v (run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
            parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at, queue,
            last_engine, format)
    RETURNING CASE WHEN engine IS NULL THEN pg_notify('holdfast', '') END)

-- name: lock_versions
-- The versions under which runs or branches begin: locked, so that none of them is retired meanwhile (see lock_version).
-- It waits for a transaction that retires one, and then sees it.
begun AS MATERIALIZED (
    SELECT w.retired_at FROM unnest($1::text[], $2::bigint[]) AS v (workflow, version)
    JOIN holdfast.workflow_versions AS w ON w.workflow = v.workflow AND w.version = v.version
    FOR KEY SHARE OF w)

-- name: put_nodes
-- The current rows of instances. A row keeps its place in the order of first scheduling.
nodes AS (
    INSERT INTO holdfast.run_node_state AS n (run_no, node, path, visit, status, attempt, failures, output_seq,
        memory_seq, not_before, captured, scope, is_open, started_at, finished_at)
    SELECT v.run_no, v.node, v.path, v.visit, v.status, v.attempt, v.failures, v.output_seq, v.memory_seq, v.not_before,
        v.captured, v.scope, v.is_open, v.started_at, v.finished_at
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bytea[], $13::bigint[], $14::bigint[],
            $15::bigint[])
        AS v (run_no, node, path, visit, status, attempt, failures, output_seq, memory_seq, not_before, captured, scope,
            is_open, started_at, finished_at)
    ON CONFLICT (run_no, node, path, visit) DO UPDATE SET
        status = excluded.status, attempt = excluded.attempt, failures = excluded.failures,
        output_seq = excluded.output_seq, memory_seq = excluded.memory_seq, not_before = excluded.not_before,
        captured = excluded.captured, scope = excluded.scope, is_open = excluded.is_open,
        started_at = excluded.started_at, finished_at = excluded.finished_at)

-- name: append_events
-- The journal; a seq that exists already fails the commit.
events AS (
    INSERT INTO holdfast.run_events (run_no, seq, branch, type, node, path, visit, at, token, hash, data)
    SELECT v.run_no, v.seq, v.branch, v.type, v.node, v.path, v.visit, v.at, v.token, v.hash, v.data
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::bytea[], $11::bytea[])
        AS v (run_no, seq, branch, type, node, path, visit, at, token, hash, data))

-- name: put_waits
-- Waits, opened, reassigned or closed; what a wait is about never changes, and closing it keeps its basket and
-- assignee.
waits AS (
    INSERT INTO holdfast.run_waits AS w (run_no, wait_id, kind, node, path, visit, branch, status, since, until, data,
        basket, assignee, outcome, actor)
    SELECT v.run_no, v.wait_id, v.kind, v.node, v.path, v.visit, v.branch, v.status, v.since, v.until, v.data, v.basket,
        v.assignee, v.outcome, v.actor
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
            $9::bigint[], $10::bigint[], $11::bytea[], $12::text[], $13::text[], $14::text[], $15::text[])
        AS v (run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee, outcome,
            actor)
    ON CONFLICT (run_no, wait_id) DO UPDATE SET
        status = excluded.status, outcome = excluded.outcome, actor = excluded.actor,
        basket = CASE WHEN excluded.status = 'open' THEN excluded.basket ELSE w.basket END,
        assignee = CASE WHEN excluded.status = 'open' THEN excluded.assignee ELSE w.assignee END)

-- name: put_timers
-- Timers, set, fired or cancelled.
timers AS (
    INSERT INTO holdfast.run_timers AS t (run_no, timer, due_at, branch, status, boot, elapsed)
    SELECT v.run_no, v.timer, v.due_at, v.branch, v.status, v.boot, v.elapsed
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])
        AS v (run_no, timer, due_at, branch, status, boot, elapsed)
    ON CONFLICT (run_no, timer) DO UPDATE SET
        due_at = CASE WHEN excluded.status = 'set' THEN excluded.due_at ELSE t.due_at END, branch = excluded.branch,
        status = excluded.status, boot = CASE WHEN excluded.status = 'set' THEN excluded.boot ELSE t.boot END,
        elapsed = CASE WHEN excluded.status = 'set' THEN excluded.elapsed ELSE t.elapsed END)

-- name: settle_messages
-- What became of messages, with the events they led to.
outcomes AS (
    UPDATE holdfast.run_inbox_messages AS m SET status = v.status, outcome = v.outcome
    FROM unnest($1::text[], $2::text[], $3::bytea[]) AS v (message_id, status, outcome)
    WHERE m.message_id = v.message_id)

-- name: add_messages
-- Messages to other runs; an existing one is left as it is.
messages AS (
    INSERT INTO holdfast.run_inbox_messages (message_id, run_no, kind, payload, created_at, status, outcome)
    SELECT v.message_id, v.run_no, v.kind, v.payload, v.created_at, v.status, v.outcome
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[], $5::bigint[], $6::text[], $7::bytea[])
        AS v (message_id, run_no, kind, payload, created_at, status, outcome)
    ON CONFLICT (message_id) DO NOTHING)

-- name: put_branches
-- The current branches of runs.
branches AS (
    INSERT INTO holdfast.run_branches (run_no, branch, parent, cutoff_seq, key_epoch, reason, origin_no, created_at)
    SELECT v.run_no, v.branch, v.parent, v.cutoff_seq, v.key_epoch, v.reason, v.origin_no, v.created_at
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[],
            $8::bigint[])
        AS v (run_no, branch, parent, cutoff_seq, key_epoch, reason, origin_no, created_at))

-- name: drop_nodes
-- Rows of instances that the new branch does not have; the journal still has them.
gone AS (
    DELETE FROM holdfast.run_node_state AS n
    USING unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]) AS v (run_no, node, path, visit)
    WHERE n.run_no = v.run_no AND n.node = v.node AND n.path = v.path AND n.visit = v.visit)

-- name: when_all_passed
-- The end of a statement with a fence: it divides by zero, and so nothing of it happens, unless this many runs passed.
SELECT pg_current_xact_id(), 1 / (count(*) = $1)::int FROM fence

-- name: when_all_passed_and_active
-- The same where runs or branches begin: unless no version under which they do is retired, too.
SELECT pg_current_xact_id(), 1 / (count(*) = $1)::int, 1 / ((SELECT count(retired_at) FROM begun) = 0)::int FROM fence

-- name: when_active
-- The same without a fence.
SELECT pg_current_xact_id(), 1 / ((SELECT count(retired_at) FROM begun) = 0)::int

-- name: done
-- The end of a statement without a fence.
SELECT pg_current_xact_id()

-- The statements beside it.

-- name: lock_runs
-- Runs that a group moves or writes to, before anything else and in the order of their numbers: two groups that write
-- to each other's runs wait for each other and do not deadlock.
SELECT run_no FROM holdfast.run_state WHERE run_no = ANY($1) ORDER BY run_no FOR NO KEY UPDATE;

-- name: close_inbox
-- Runs have ended: they will never consume what is left, except for requests for another branch. A
-- statement of its own, after the fence: only then it sees what was sent before this transaction locked the run's row.
UPDATE holdfast.run_inbox_messages SET
    status = 'dead', outcome = convert_to('{"outcome":"refused","code":"finished","why":"the run has ended"}', 'UTF8')
WHERE run_no = ANY($1) AND status = 'new' AND kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover');

-- name: drop_undeliverable
-- Messages of a group to runs that have ended meanwhile: as above. By their ids, and so without naming the statuses
-- that indexes are for: of all new messages there may be many.
UPDATE holdfast.run_inbox_messages AS m SET
    status = 'dead', outcome = convert_to('{"outcome":"refused","code":"finished","why":"the run has ended"}', 'UTF8')
FROM holdfast.run_state AS r
WHERE m.message_id = ANY($1) AND m.status NOT IN ('held', 'consumed', 'dead')
    AND m.kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover')
    AND r.run_no = m.run_no AND r.status NOT IN ('created', 'running', 'suspended', 'recovering');

-- name: fences
-- Token, last seq and head hash of these runs.
SELECT run_no, token, last_seq, head_hash FROM holdfast.run_state WHERE run_no = ANY($1);

-- name: own_events
-- Which of these events are in the journal exactly as given.
SELECT e.run_no FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) AS v (run_no, seq, token, hash)
JOIN holdfast.run_events AS e ON e.run_no = v.run_no AND e.seq = v.seq AND e.token = v.token AND e.hash = v.hash;

-- name: own_runs
-- Which of these runs exist under these ids.
SELECT r.run_no FROM unnest($1::bigint[], $2::text[]) AS v (run_no, run_id)
JOIN holdfast.run_state AS r ON r.run_no = v.run_no AND r.run_id = v.run_id;

-- name: taken_run_ids
-- Why an insert into run_state was refused.
SELECT run_id FROM holdfast.run_state WHERE run_id = ANY($1);

-- name: taken_run_nos
-- The same for their numbers.
SELECT run_no FROM holdfast.run_state WHERE run_no = ANY($1);
