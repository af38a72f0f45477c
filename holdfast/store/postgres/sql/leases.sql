-- Engines, their leases and their slots of shared pools. The token of a run only grows. Every statement that writes
-- returns the
-- number of its transaction as the last column, and locks runs in the order of their numbers.

-- name: put_engine
-- Registers an engine.
INSERT INTO holdfast.engines (engine, host, pid, lock_file, started_at, expires_at, can_run, boot, lock_inode,
    awake_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (engine) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, lock_file = excluded.lock_file, started_at = excluded.started_at,
    expires_at = excluded.expires_at, can_run = excluded.can_run, boot = excluded.boot,
    lock_inode = excluded.lock_inode, awake_until = excluded.awake_until
RETURNING pg_current_xact_id();

-- name: renew_engine
-- One row, however many runs the engine holds.
UPDATE holdfast.engines SET expires_at = $2, awake_until = $3 WHERE engine = $1 RETURNING pg_current_xact_id();

-- name: set_offer
-- Replaces the list of what an engine can run.
UPDATE holdfast.engines SET can_run = $2 WHERE engine = $1 RETURNING pg_current_xact_id();

-- name: remove_engine
-- It stopped, or it is dead: its slots and its runs are freed, listeners are notified, and anything it still sends is
-- refused. If it has renewed its lease since that was read, nothing changes and the result is null.
WITH removed AS (
    DELETE FROM holdfast.engines WHERE engine = $1 AND ($2::bigint IS NULL OR expires_at = $2) RETURNING engine),
gone (engine) AS MATERIALIZED (
    SELECT engine FROM removed
    UNION
    SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM holdfast.engines WHERE engine = $1)),
emptied AS (DELETE FROM holdfast.engine_slots WHERE engine = $1 AND EXISTS (SELECT 1 FROM gone)),
held AS MATERIALIZED (
    SELECT run_no FROM holdfast.run_state WHERE engine = $1 AND EXISTS (SELECT 1 FROM gone)
    ORDER BY run_no FOR UPDATE),
freed AS (
    UPDATE holdfast.run_state AS r SET engine = NULL, last_engine = r.engine, token = r.token + 1
    FROM held WHERE r.run_no = held.run_no AND r.engine = $1 RETURNING pg_notify('holdfast', ''))
SELECT CASE WHEN EXISTS (SELECT 1 FROM gone) THEN (SELECT count(*) FROM freed) END, pg_current_xact_id();

-- name: engines
-- The registered engines.
SELECT engine, host, pid, lock_file, started_at, expires_at, can_run, boot, lock_inode, awake_until FROM holdfast.engines
ORDER BY started_at, engine;

-- name: unknown_owners
-- Engines that own runs and are not registered: they were removed, and claimed a run before they noticed.
SELECT DISTINCT r.engine FROM holdfast.run_state AS r
WHERE r.engine IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.engines AS e WHERE e.engine = r.engine)
ORDER BY r.engine;

-- name: loads
-- How many runs each engine holds; from the index alone.
SELECT engine, count(*) FROM holdfast.run_state WHERE engine IS NOT NULL GROUP BY engine;

-- name: lock_pool
-- Serialises changes to the slots of a pool: waits until earlier ones have committed. A statement of its own: the
-- next one sees what they did.
SELECT pg_advisory_xact_lock(hashtextextended($1, 1));

-- name: take_slots
-- Slots of a pool for a registered engine, as far as there are any. Only slots of registered engines
-- count, and the rest is removed: an engine may take slots at the moment in which it is removed.
WITH lost AS (
    DELETE FROM holdfast.engine_slots AS s
    WHERE s.pool = $2 AND NOT EXISTS (SELECT 1 FROM holdfast.engines AS e WHERE e.engine = s.engine)),
free (places) AS (
    SELECT $4::bigint - coalesce((
        SELECT sum(s.held) FROM holdfast.engine_slots AS s JOIN holdfast.engines AS e ON e.engine = s.engine
        WHERE s.pool = $2), 0)
    FROM holdfast.engines WHERE engine = $1),
taken (places) AS (SELECT least($3::bigint, places)::bigint FROM free WHERE least($3, places) > 0),
put AS (
    INSERT INTO holdfast.engine_slots AS s (engine, pool, held) SELECT $1, $2, places FROM taken
    ON CONFLICT (pool, engine) DO UPDATE SET held = s.held + excluded.held)
SELECT coalesce((SELECT places FROM taken), 0), pg_current_xact_id();

-- name: give_slots
-- Returns some of an engine's slots; an engine without slots of a pool has no row there.
WITH fewer AS (
    UPDATE holdfast.engine_slots SET held = held - $3 WHERE engine = $1 AND pool = $2 AND held > $3),
none AS (DELETE FROM holdfast.engine_slots WHERE engine = $1 AND pool = $2 AND held <= $3)
SELECT 0::bigint, pg_current_xact_id();

-- name: has_committed
-- Whether a transaction, which has ended, was committed. After a failover the new server may not have got so
-- far.
SELECT $1::text::xid8 < pg_snapshot_xmax(pg_current_snapshot()) AND pg_xact_status($1::text::xid8) = 'committed';

-- name: free_to_claim
-- Those of these runs that could be claimed now, with their tokens: a claim increments these, so
-- that a claim whose answer was lost can be told from another engine's.
SELECT r.run_no, r.token FROM holdfast.run_state AS r
WHERE r.run_no = ANY($1) AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $2
    AND (r.status IN ('created', 'running', 'suspended', 'recovering')
        OR EXISTS (SELECT 1 FROM holdfast.run_inbox_messages AS m
                   WHERE m.run_no = r.run_no AND m.status = 'new' OFFSET 0));

-- name: claim
-- Claim those of these runs, with these tokens, that have no owner and are not locked by another claim; the rows
-- that are returned were claimed.
WITH free AS MATERIALIZED (
    SELECT r.run_no FROM unnest($2::bigint[], $3::bigint[]) AS v (run_no, token)
    JOIN holdfast.run_state AS r ON r.run_no = v.run_no AND r.token = v.token
    WHERE r.engine IS NULL AND r.hold IS NULL
    ORDER BY r.run_no FOR UPDATE OF r SKIP LOCKED)
UPDATE holdfast.run_state AS r SET engine = $1, token = r.token + 1
FROM free
WHERE r.run_no = free.run_no AND r.engine IS NULL
RETURNING r.run_no, r.run_id, r.workflow, r.version, r.status, r.branch, r.last_seq, r.head_hash, r.token, r.engine,
    r.fold, r.input_hash, r.parent_no, r.root_no, r.priority, r.recoveries, r.hold, r.created_at, r.started_at,
    r.finished_at, r.queue, r.last_engine, r.format, pg_current_xact_id();

-- name: claimed
-- Those of these runs, which had these tokens, that this engine has claimed since.
SELECT r.run_no, r.run_id, r.workflow, r.version, r.status, r.branch, r.last_seq, r.head_hash, r.token, r.engine,
    r.fold, r.input_hash, r.parent_no, r.root_no, r.priority, r.recoveries, r.hold, r.created_at, r.started_at,
    r.finished_at, r.queue, r.last_engine, r.format
FROM unnest($2::bigint[], $3::bigint[]) AS v (run_no, token)
JOIN holdfast.run_state AS r ON r.run_no = v.run_no AND r.token = v.token + 1
WHERE r.engine = $1;

-- name: release
-- Releases leases of an engine without a commit; the lists are in the order of run numbers. Another engine can have a
-- run of the same number and token in a database that fell back to an earlier state. Listeners are notified unless the
-- run only
-- waits: most of those that are released do.
UPDATE holdfast.run_state AS r SET
    engine = NULL, last_engine = CASE WHEN $4::boolean THEN r.last_engine ELSE r.engine END
FROM unnest($1::bigint[], $2::bigint[]) AS v (run_no, token)
WHERE r.run_no = v.run_no AND r.token = v.token AND r.engine = $3
RETURNING CASE WHEN r.status IN ('created', 'running', 'recovering') THEN pg_notify('holdfast', '') END,
    pg_current_xact_id();

-- name: set_hold
-- Puts a run on hold, or ends its hold, while this engine, or none, has its lease with this token.
UPDATE holdfast.run_state SET hold = $4
WHERE run_no = $1 AND token = $2 AND engine IS NOT DISTINCT FROM $3 RETURNING pg_current_xact_id();

-- name: raise_token
-- Give a run that this engine, or none, has with this token a higher one, and release its lease. A statement that is
-- sent again because its answer was lost finds the higher token.
UPDATE holdfast.run_state SET token = $4, engine = NULL
WHERE run_no = $1 AND $2::bigint < $4::bigint
    AND (token = $2 AND engine IS NOT DISTINCT FROM $3 OR token = $4 AND engine IS NULL)
RETURNING pg_current_xact_id();

-- name: unowned_versions
-- The versions of workflows with a run that can be advanced and has no owner. From one version to the next in
-- the index, however many runs each has; and from the messages to runs that are not in it.
WITH RECURSIVE ready (workflow, version) AS (
    (SELECT workflow, version FROM holdfast.run_state
     WHERE engine IS NULL AND hold IS NULL AND format <= $1 AND status IN ('created', 'running', 'recovering')
     ORDER BY workflow, version LIMIT 1)
    UNION ALL
    SELECT next.workflow, next.version FROM ready CROSS JOIN LATERAL (
        SELECT r.workflow, r.version FROM holdfast.run_state AS r
        WHERE r.engine IS NULL AND r.hold IS NULL AND r.format <= $1 AND r.status IN ('created', 'running', 'recovering')
            AND (r.workflow, r.version) > (ready.workflow, ready.version)
        ORDER BY r.workflow, r.version LIMIT 1) AS next)
SELECT workflow, version FROM ready
UNION
SELECT r.workflow, r.version
FROM (SELECT DISTINCT run_no FROM holdfast.run_inbox_messages WHERE status = 'new') AS mail
JOIN holdfast.run_state AS r ON r.run_no = mail.run_no
WHERE r.engine IS NULL AND r.hold IS NULL AND r.format <= $1 AND r.status NOT IN ('created', 'running', 'recovering')
ORDER BY 1, 2;

-- name: claimable
-- The first runs of each of these versions that can be advanced and have no owner. Two parts: ready ones, of
-- each queue its first (from one queue to the next in the index); and from the messages to the others, so that a
-- hundred
-- thousand runs that only wait, or have ended, cost nothing.
WITH RECURSIVE wanted (workflow, version) AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::bigint[])),
place (workflow, version, queue) AS (
    SELECT w.workflow, w.version, (
        SELECT r.queue FROM holdfast.run_state AS r
        WHERE r.workflow = w.workflow AND r.version = w.version
            AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $5 AND r.status IN ('created', 'running', 'recovering')
        ORDER BY r.queue LIMIT 1)
    FROM wanted AS w
    UNION ALL
    SELECT p.workflow, p.version, (
        SELECT r.queue FROM holdfast.run_state AS r
        WHERE r.workflow = p.workflow AND r.version = p.version AND r.queue > p.queue
            AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $5 AND r.status IN ('created', 'running', 'recovering')
        ORDER BY r.queue LIMIT 1)
    FROM place AS p WHERE p.queue IS NOT NULL),
free (run_no, workflow, version, priority) AS (
    SELECT first.run_no, p.workflow, p.version, first.priority
    FROM place AS p CROSS JOIN LATERAL (
        SELECT r.run_no, r.priority FROM holdfast.run_state AS r
        WHERE r.workflow = p.workflow AND r.version = p.version AND r.queue = p.queue
            AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $5 AND r.status IN ('created', 'running', 'recovering')
        ORDER BY r.priority DESC, r.run_no LIMIT $4) AS first
    WHERE $3::text[] IS NULL OR p.queue = ANY($3)
    UNION ALL
    SELECT r.run_no, r.workflow, r.version, r.priority
    FROM (SELECT DISTINCT run_no FROM holdfast.run_inbox_messages WHERE status = 'new') AS mail
    JOIN holdfast.run_state AS r ON r.run_no = mail.run_no
    WHERE r.engine IS NULL AND r.hold IS NULL AND r.format <= $5 AND r.status NOT IN ('created', 'running', 'recovering')
        AND (r.workflow, r.version) IN (SELECT workflow, version FROM wanted)
        AND ($3 IS NULL OR r.queue = ANY($3))),
ranked AS (
    SELECT run_no, workflow, version, priority,
        row_number() OVER (PARTITION BY workflow, version ORDER BY priority DESC, run_no) AS rank
    FROM free)
SELECT run_no, workflow, version FROM ranked WHERE rank <= $4 ORDER BY priority DESC, run_no;

-- name: claimable_of_roots
-- The same among some runs and their descendants, whatever else there is.
WITH free (run_no, workflow, version, priority, queue) AS (
    SELECT r.run_no, r.workflow, r.version, r.priority, r.queue FROM holdfast.run_state AS r
    WHERE r.root_no = ANY($4) AND r.engine IS NULL AND r.hold IS NULL AND r.format <= $6
        AND r.status NOT IN ('suspended', 'completed', 'failed', 'cancelled')
    UNION ALL
    SELECT r.run_no, r.workflow, r.version, r.priority, r.queue
    FROM (SELECT DISTINCT run_no FROM holdfast.run_inbox_messages WHERE status = 'new') AS mail
    JOIN holdfast.run_state AS r ON r.run_no = mail.run_no
    WHERE r.engine IS NULL AND r.hold IS NULL AND r.format <= $6 AND r.status NOT IN ('created', 'running', 'recovering')
        AND r.root_no = ANY($4)),
ranked AS (
    SELECT run_no, workflow, version, priority,
        row_number() OVER (PARTITION BY workflow, version ORDER BY priority DESC, run_no) AS rank
    FROM free
    WHERE (workflow, version) IN (SELECT * FROM unnest($1::text[], $2::bigint[]))
        AND ($3::text[] IS NULL OR queue = ANY($3)))
SELECT run_no, workflow, version FROM ranked WHERE rank <= $5 ORDER BY priority DESC, run_no;

-- name: unfinished_count
-- How many runs are not finished; two parts, so that each is answered from an index alone.
SELECT (SELECT count(*) FROM holdfast.run_state
        WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering'))
    + (SELECT count(*) FROM holdfast.run_state
       WHERE engine IS NOT NULL AND status IN ('created', 'running', 'suspended', 'recovering'));
