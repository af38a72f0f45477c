-- Engines, their leases and their slots of shared pools. The token of a run only grows.

-- name: put_engine
-- Registers an engine.
INSERT INTO engines (engine, host, pid, lock_file, started_at, expires_at, can_run, boot, lock_inode,
    awake_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (engine) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, lock_file = excluded.lock_file, started_at = excluded.started_at,
    expires_at = excluded.expires_at, can_run = excluded.can_run, boot = excluded.boot,
    lock_inode = excluded.lock_inode, awake_until = excluded.awake_until;

-- name: renew_engine
-- One row, however many runs the engine holds.
UPDATE engines SET expires_at = ?2, awake_until = ?3 WHERE engine = ?1;

-- name: set_offer
-- Replaces the list of what an engine can run.
UPDATE engines SET can_run = ?2 WHERE engine = ?1;

-- name: delete_engine
-- It stopped, or it is dead; nothing changes if it has renewed its lease since that was read.
DELETE FROM engines WHERE engine = ?1 AND (?2 IS NULL OR expires_at = ?2);

-- name: is_engine
-- Whether an engine is registered.
SELECT 1 FROM engines WHERE engine = ?;

-- name: delete_slots
-- The slots of an engine that was removed.
DELETE FROM engine_slots WHERE engine = ?;

-- name: free_runs
-- The runs of an engine that was removed; anything it still sends is refused.
UPDATE run_state SET engine = NULL, last_engine = engine, token = token + 1 WHERE engine = ?;

-- name: engines
-- The registered engines.
SELECT engine, host, pid, lock_file, started_at, expires_at, can_run, boot, lock_inode, awake_until FROM engines
ORDER BY started_at, engine;

-- name: unknown_owners
-- Engines that own runs and are not registered: they were removed, and claimed a run before they noticed.
SELECT DISTINCT engine FROM run_state
WHERE engine IS NOT NULL AND engine NOT IN (SELECT engine FROM engines) ORDER BY engine;

-- name: loads
-- How many runs each engine holds; from the index alone.
SELECT engine, count(*) FROM run_state INDEXED BY run_state_live WHERE engine IS NOT NULL
GROUP BY engine;

-- name: free_slots
-- How many slots of a pool are free, for a registered engine.
SELECT ?3 - coalesce((SELECT sum(held) FROM engine_slots WHERE pool = ?2), 0) FROM engines WHERE engine = ?1;

-- name: take_slots
-- Slots of a pool, in addition to those that the engine has.
INSERT INTO engine_slots (engine, pool, held) VALUES (?, ?, ?)
ON CONFLICT (pool, engine) DO UPDATE SET held = held + excluded.held;

-- name: give_slots
-- Returns some of an engine's slots.
UPDATE engine_slots SET held = held - ?3 WHERE engine = ?1 AND pool = ?2;

-- name: drop_empty_slots
-- An engine without slots of a pool has no row there.
DELETE FROM engine_slots WHERE engine = ?1 AND pool = ?2 AND held <= 0;

-- name: winnable
-- Those of these runs that can be claimed, as their rows are afterwards; all of them in one row of JSON, their bytes
-- as text, and the whole as bytes, since a damaged row may be no text. The writer releases the GIL for every row that
-- it receives, and waits for it while the loop is busy: with
-- RETURNING a thousand runs took 27 ms.
SELECT CAST(json_group_array(json_array(run_no, run_id, workflow, version, status, branch, last_seq, hex(head_hash),
    token + 1, ?1, CAST(fold AS TEXT), input_hash, parent_no, root_no, priority, recoveries, hold, created_at,
    started_at, finished_at, queue, last_engine, format)) AS BLOB)
FROM run_state NOT INDEXED
WHERE run_no IN (SELECT value FROM json_each(?2)) AND engine IS NULL AND hold IS NULL AND format <= ?3
    AND (status IN ('created', 'running', 'suspended', 'recovering')
        OR EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = run_state.run_no AND m.status = 'new'));

-- name: claim
-- Claims runs that were found winnable in the same transaction.
UPDATE run_state NOT INDEXED SET engine = ?1, token = token + 1
WHERE run_no IN (SELECT value FROM json_each(?2)) AND engine IS NULL;

-- name: release
-- Releases leases of an engine without a commit. Another engine can have a run of the same number and token in a
-- database that fell back to an earlier state.
WITH v (run_no, token, engine, unused) AS (VALUES /*row*/ (?, ?, ?, ?) /*row*/)
UPDATE run_state SET engine = NULL, last_engine = iif(v.unused, last_engine, run_state.engine)
FROM v
WHERE run_state.run_no = v.run_no AND run_state.token = v.token AND run_state.engine = v.engine;

-- name: set_hold
-- Puts a run on hold, or ends its hold, while this engine, or none, has its lease with this token.
UPDATE run_state SET hold = ?4 WHERE run_no = ?1 AND token = ?2 AND engine IS ?3;

-- name: raise_token
-- Give a run that this engine, or none, has with this token a higher one, and release its lease.
UPDATE run_state SET token = ?4, engine = NULL WHERE run_no = ?1 AND token = ?2 AND engine IS ?3 AND token < ?4;

-- name: unowned_versions
-- The versions of workflows with a run that can be advanced and has no owner. From one version to the next in
-- the index, however many runs each has; and from the messages to runs that are not in it. Written so that SQLite
-- begins
-- with the next version: a pair that is `>` another one begins with what is equal to it, and one of columns with the
-- first of them.
WITH RECURSIVE first (run_no) AS (
    SELECT (SELECT run_no FROM run_state INDEXED BY run_state_ready
            WHERE hold IS NULL AND engine IS NULL AND format <= ?1
                AND (status = 'created' OR status = 'running' OR status = 'recovering')
            ORDER BY workflow, version LIMIT 1)
    UNION ALL
    SELECT (SELECT run_no FROM run_state INDEXED BY run_state_ready
            WHERE hold IS NULL AND engine IS NULL AND format <= ?1
                AND (status = 'created' OR status = 'running' OR status = 'recovering')
                AND (workflow, version) >= (+last.workflow, last.version + 1)
            ORDER BY workflow, version LIMIT 1)
    FROM first CROSS JOIN run_state AS last ON last.run_no = first.run_no)
SELECT r.workflow, r.version FROM first CROSS JOIN run_state AS r ON r.run_no = first.run_no
UNION
SELECT workflow, version FROM run_state NOT INDEXED
WHERE run_no IN (SELECT m.run_no FROM run_inbox_messages AS m WHERE m.status = 'new')
    AND hold IS NULL AND engine IS NULL AND format <= ?1 AND status NOT IN ('created', 'running', 'recovering')
ORDER BY 1, 2;

-- name: claimable
-- The first runs of each of these versions that can be advanced and have no owner. Two parts: ready ones, of
-- each queue its first (from one queue to the next in the index); and from the messages to the others, so that a
-- hundred
-- thousand runs that only wait, or have ended, cost nothing. The list has pairs [workflow, version].
WITH RECURSIVE place (workflow, version, queue) AS (
    SELECT v.value ->> 0, v.value ->> 1,
        (SELECT queue FROM run_state
         WHERE workflow = v.value ->> 0 AND version = v.value ->> 1
             AND hold IS NULL AND engine IS NULL AND format <= ?4 AND (status = 'created' OR status = 'running' OR status = 'recovering')
         ORDER BY queue LIMIT 1)
    FROM json_each(?1) AS v
    UNION ALL
    SELECT p.workflow, p.version,
        (SELECT queue FROM run_state
         WHERE workflow = p.workflow AND version = p.version AND queue > p.queue
             AND hold IS NULL AND engine IS NULL AND format <= ?4 AND (status = 'created' OR status = 'running' OR status = 'recovering')
         ORDER BY queue LIMIT 1)
    FROM place AS p WHERE p.queue IS NOT NULL),
free (run_no, workflow, version, priority) AS (
    SELECT r.run_no, r.workflow, r.version, r.priority FROM place AS p CROSS JOIN run_state AS r NOT INDEXED
    WHERE (?2 IS NULL OR p.queue IN (SELECT value FROM json_each(?2)))
        AND r.run_no IN (
            SELECT run_no FROM run_state
            WHERE workflow = p.workflow AND version = p.version AND queue = p.queue
                AND hold IS NULL AND engine IS NULL AND format <= ?4
                AND (status = 'created' OR status = 'running' OR status = 'recovering')
            ORDER BY priority DESC, run_no LIMIT ?3)
    UNION ALL
    SELECT run_no, workflow, version, priority FROM run_state NOT INDEXED
    WHERE run_no IN (SELECT m.run_no FROM run_inbox_messages AS m WHERE m.status = 'new')
        AND hold IS NULL AND engine IS NULL AND format <= ?4 AND status NOT IN ('created', 'running', 'recovering')
        AND (workflow, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))
        AND (?2 IS NULL OR queue IN (SELECT value FROM json_each(?2)))),
ranked AS (
    SELECT run_no, workflow, version, priority,
        row_number() OVER (PARTITION BY workflow, version ORDER BY priority DESC, run_no) AS rank
    FROM free)
SELECT run_no, workflow, version FROM ranked WHERE rank <= ?3 ORDER BY priority DESC, run_no;

-- name: claimable_of_roots
-- The same among some runs and their descendants, whatever else there is. The index is named, or SQLite begins with all
-- runs of the workflows.
WITH free (run_no, workflow, version, priority, queue) AS (
    SELECT run_no, workflow, version, priority, queue FROM run_state INDEXED BY run_state_ready_of_root
    WHERE root_no IN (SELECT value FROM json_each(?3)) AND hold IS NULL AND engine IS NULL AND format <= ?5
        AND status <> 'suspended' AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled'
    UNION ALL
    SELECT run_no, workflow, version, priority, queue FROM run_state NOT INDEXED
    WHERE run_no IN (SELECT m.run_no FROM run_inbox_messages AS m WHERE m.status = 'new')
        AND hold IS NULL AND engine IS NULL AND format <= ?5 AND status NOT IN ('created', 'running', 'recovering')
        AND root_no IN (SELECT value FROM json_each(?3))),
ranked AS (
    SELECT run_no, workflow, version, priority,
        row_number() OVER (PARTITION BY workflow, version ORDER BY priority DESC, run_no) AS rank
    FROM free
    WHERE (workflow, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))
        AND (?2 IS NULL OR queue IN (SELECT value FROM json_each(?2))))
SELECT run_no, workflow, version FROM ranked WHERE rank <= ?4 ORDER BY priority DESC, run_no;

-- name: unfinished_count
-- How many runs are not finished.
SELECT count(*) FROM run_state
WHERE (status = 'created' OR status = 'running' OR status = 'suspended' OR status = 'recovering');
