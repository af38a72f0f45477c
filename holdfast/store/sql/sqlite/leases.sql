-- Engines and their leases. The token only grows.

-- name: put_engine
-- An engine says that it is alive for the first time.
INSERT INTO engines (engine, host, pid, lock_file, started_at, expires_at, can_run) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (engine) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, lock_file = excluded.lock_file, started_at = excluded.started_at,
    expires_at = excluded.expires_at, can_run = excluded.can_run;

-- name: renew_engine
-- One row, however many runs the engine holds.
UPDATE engines SET expires_at = ?2 WHERE engine = ?1;

-- name: delete_engine
-- It stopped, or it is dead.
DELETE FROM engines WHERE engine = ?;

-- name: free_runs
-- The runs of an engine that is gone; whatever it still sends is refused.
UPDATE run_state SET engine = NULL, token = token + 1
WHERE (engine IS NOT NULL OR status IN ('created', 'running', 'suspended', 'recovering')) AND engine = ?;

-- name: engines
-- Who is or was alive.
SELECT engine, host, pid, lock_file, started_at, expires_at, can_run FROM engines ORDER BY started_at, engine;

-- name: unknown_owners
-- Engines that hold runs and are not on the list: they were taken off it, and took a run before they noticed.
SELECT DISTINCT engine FROM run_state
WHERE engine IS NOT NULL AND engine NOT IN (SELECT engine FROM engines) ORDER BY engine;

-- name: claim
-- Take the lease of those of these runs that nobody holds; the rows that come back were won.
UPDATE run_state NOT INDEXED SET engine = ?1, token = token + 1
WHERE run_no IN (SELECT value FROM json_each(?2)) AND engine IS NULL AND hold IS NULL
    AND (status IN ('created', 'running', 'suspended', 'recovering')
        OR EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = run_state.run_no AND m.status = 'new'))
RETURNING run_no, run_id, workflow, version, status, branch, last_seq, head_hash, token, engine, fold, input_hash,
    parent_no, root_no, priority, recoveries, hold, created_at, started_at, finished_at;

-- name: release
-- Give leases back without a commit.
WITH v (run_no, token) AS (VALUES /*row*/ (?, ?) /*row*/)
UPDATE run_state SET engine = NULL
FROM v
WHERE run_state.run_no = v.run_no AND run_state.token = v.token AND run_state.engine IS NOT NULL;

-- name: set_hold
-- Put a run aside, or take it back, by whoever holds its token.
UPDATE run_state SET hold = ?3 WHERE run_no = ?1 AND token = ?2;

-- name: claimable
-- Runs that want to be advanced and that nobody holds. Two parts: live ones by their status, and from the mail to the
-- others, so that a hundred thousand runs that only wait, or have ended, cost nothing.
SELECT run_no, workflow, version FROM (
    SELECT run_no, workflow, version, priority, root_no FROM run_state
    WHERE (engine IS NOT NULL OR status IN ('created', 'running', 'suspended', 'recovering'))
        AND engine IS NULL AND hold IS NULL AND status IN ('created', 'running', 'recovering')
    UNION ALL
    SELECT run_no, workflow, version, priority, root_no FROM run_state NOT INDEXED
    WHERE run_no IN (SELECT m.run_no FROM run_inbox_messages AS m WHERE m.status = 'new')
        AND engine IS NULL AND hold IS NULL AND status NOT IN ('created', 'running', 'recovering'))
WHERE ?1 IS NULL OR root_no = ?1
ORDER BY priority DESC, run_no LIMIT ?2;

-- name: unfinished_count
-- How many runs are not finished.
SELECT count(*) FROM run_state
WHERE (engine IS NOT NULL OR status IN ('created', 'running', 'suspended', 'recovering'))
    AND status IN ('created', 'running', 'suspended', 'recovering');
