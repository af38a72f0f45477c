-- Engines and their leases. The token only grows. Whatever writes gives the number of its transaction as the last
-- column, and locks runs in the order of their numbers.

-- name: put_engine
-- An engine says that it is alive for the first time.
INSERT INTO holdfast.engines (engine, host, pid, lock_file, started_at, expires_at, can_run)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (engine) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, lock_file = excluded.lock_file, started_at = excluded.started_at,
    expires_at = excluded.expires_at, can_run = excluded.can_run
RETURNING pg_current_xact_id();

-- name: renew_engine
-- One row, however many runs the engine holds.
UPDATE holdfast.engines SET expires_at = $2 WHERE engine = $1 RETURNING pg_current_xact_id();

-- name: remove_engine
-- It stopped, or it is dead: its runs are free, and whatever it still sends is refused.
WITH gone AS (DELETE FROM holdfast.engines WHERE engine = $1 RETURNING 1),
held AS MATERIALIZED (SELECT run_no FROM holdfast.run_state WHERE engine = $1 ORDER BY run_no FOR UPDATE),
freed AS (
    UPDATE holdfast.run_state AS r SET engine = NULL, token = r.token + 1
    FROM held WHERE r.run_no = held.run_no AND r.engine = $1 RETURNING 1)
SELECT (SELECT count(*) FROM freed), pg_current_xact_id();

-- name: engines
-- Who is or was alive.
SELECT engine, host, pid, lock_file, started_at, expires_at, can_run FROM holdfast.engines ORDER BY started_at, engine;

-- name: unknown_owners
-- Engines that hold runs and are not on the list: they were taken off it, and took a run before they noticed.
SELECT DISTINCT r.engine FROM holdfast.run_state AS r
WHERE r.engine IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.engines AS e WHERE e.engine = r.engine)
ORDER BY r.engine;

-- name: free_to_claim
-- Those of these runs that could be claimed now, with their tokens: whoever claims them makes these grow by one, so
-- that a claim whose answer was lost can be told from another one's.
SELECT r.run_no, r.token FROM holdfast.run_state AS r
WHERE r.run_no = ANY($1) AND r.engine IS NULL AND r.hold IS NULL
    AND (r.status IN ('created', 'running', 'suspended', 'recovering')
        OR EXISTS (SELECT 1 FROM holdfast.run_inbox_messages AS m
                   WHERE m.run_no = r.run_no AND m.status = 'new' OFFSET 0));

-- name: claim
-- Take the lease of those of these runs, with these tokens, that nobody holds and nobody is about to take; the rows
-- that come back were won.
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
    r.finished_at, pg_current_xact_id();

-- name: claimed
-- Those of these runs, which had these tokens, that this engine has claimed since.
SELECT r.run_no, r.run_id, r.workflow, r.version, r.status, r.branch, r.last_seq, r.head_hash, r.token, r.engine,
    r.fold, r.input_hash, r.parent_no, r.root_no, r.priority, r.recoveries, r.hold, r.created_at, r.started_at,
    r.finished_at
FROM unnest($2::bigint[], $3::bigint[]) AS v (run_no, token)
JOIN holdfast.run_state AS r ON r.run_no = v.run_no AND r.token = v.token + 1
WHERE r.engine = $1;

-- name: release
-- Give leases back without a commit; the lists are in the order of run numbers.
UPDATE holdfast.run_state AS r SET engine = NULL
FROM unnest($1::bigint[], $2::bigint[]) AS v (run_no, token)
WHERE r.run_no = v.run_no AND r.token = v.token AND r.engine IS NOT NULL
RETURNING pg_current_xact_id();

-- name: set_hold
-- Put a run aside, or take it back, by whoever holds its token.
UPDATE holdfast.run_state SET hold = $3 WHERE run_no = $1 AND token = $2 RETURNING pg_current_xact_id();

-- name: claimable
-- Runs that want to be advanced and that nobody holds. Two parts: live ones by their status, and from the mail to the
-- others, so that a hundred thousand runs that only wait, or have ended, cost nothing.
SELECT run_no, workflow, version FROM (
    SELECT run_no, workflow, version, priority, root_no FROM holdfast.run_state
    WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering')
        AND hold IS NULL AND status IN ('created', 'running', 'recovering')
    UNION ALL
    SELECT r.run_no, r.workflow, r.version, r.priority, r.root_no
    FROM (SELECT DISTINCT run_no FROM holdfast.run_inbox_messages WHERE status = 'new') AS mail
    JOIN holdfast.run_state AS r ON r.run_no = mail.run_no
    WHERE r.engine IS NULL AND r.hold IS NULL AND r.status NOT IN ('created', 'running', 'recovering')
) AS free
WHERE $1::bigint IS NULL OR root_no = $1
ORDER BY priority DESC, run_no LIMIT $2;

-- name: unfinished_count
-- How many runs are not finished; two parts, so that each is answered from an index alone.
SELECT (SELECT count(*) FROM holdfast.run_state
        WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering'))
    + (SELECT count(*) FROM holdfast.run_state
       WHERE engine IS NOT NULL AND status IN ('created', 'running', 'suspended', 'recovering'));
