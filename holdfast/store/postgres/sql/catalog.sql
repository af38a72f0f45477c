-- Definitions with their versions and aliases, and the numbers of runs. Every statement that writes returns the number
-- of its transaction as the last column.

-- name: take_run_numbers
-- The end of a range of run numbers that are given out once.
UPDATE holdfast.store_meta
SET next_run_no = greatest(next_run_no, coalesce((SELECT max(run_no) FROM holdfast.run_state), 0) + 1) + $1
WHERE single = 1 RETURNING next_run_no, pg_current_xact_id();

-- name: version_of_hash
-- The existing number of this definition.
SELECT version FROM holdfast.workflow_versions WHERE workflow = $1 AND hash = $2;

-- name: add_version
-- The next number of a name; nothing if a concurrent process was first, with this definition or another one.
INSERT INTO holdfast.workflow_versions (workflow, version, hash, definition, created_at, code)
SELECT $1, coalesce(max(version), 0) + 1, $2, $3, $4, $5 FROM holdfast.workflow_versions WHERE workflow = $1
ON CONFLICT DO NOTHING
RETURNING version, pg_current_xact_id();

-- name: deploy_version
-- An existing definition is deployed: where its code is now, and it may be started (again).
UPDATE holdfast.workflow_versions SET code = $3, retired_at = NULL WHERE workflow = $1 AND version = $2
RETURNING pg_current_xact_id();

-- name: version
-- One definition.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM holdfast.workflow_versions
WHERE workflow = $1 AND version = $2;

-- name: latest_version
-- The newest definition of a name.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM holdfast.workflow_versions
WHERE workflow = $1
ORDER BY version DESC LIMIT 1;

-- name: latest_active
-- The highest number of a name that may be started.
SELECT max(version) FROM holdfast.workflow_versions WHERE workflow = $1 AND retired_at IS NULL;

-- name: versions
-- The definitions of a name.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM holdfast.workflow_versions
WHERE workflow = $1
ORDER BY version;

-- name: all_versions
-- All definitions.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM holdfast.workflow_versions
ORDER BY workflow, version;

-- name: version_numbers
-- All versions, without their definitions.
SELECT workflow, version FROM holdfast.workflow_versions ORDER BY workflow, version;

-- name: retired_versions
-- Which of these may not be started.
SELECT w.workflow, w.version FROM unnest($1::text[], $2::bigint[]) AS v (workflow, version)
JOIN holdfast.workflow_versions AS w ON w.workflow = v.workflow AND w.version = v.version
WHERE w.retired_at IS NOT NULL;

-- name: lock_version
-- A version that is about to be retired. Transactions that start runs of it, or move an alias to it, hold a weaker lock
-- on its row: this waits for them, so that the next statement sees what they wrote, and they wait for this.
SELECT retired_at FROM holdfast.workflow_versions WHERE workflow = $1 AND version = $2 FOR UPDATE;

-- name: lock_targets
-- The versions that an alias is about to point to; they cannot be retired meanwhile.
SELECT w.version, w.retired_at FROM holdfast.workflow_versions AS w
WHERE w.workflow = $1 AND w.version = ANY($2::bigint[]) ORDER BY w.version FOR KEY SHARE;

-- name: retire_version
-- Nothing of it starts any more.
UPDATE holdfast.workflow_versions SET retired_at = $3 WHERE workflow = $1 AND version = $2
RETURNING pg_current_xact_id();

-- name: unfinished_by_version
-- How many runs of a name have not ended, by version: by the indexes of live runs, however many have ended.
SELECT version, count(*) FROM (
    SELECT version FROM holdfast.run_state
    WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering') AND workflow = $1
    UNION ALL
    SELECT version FROM holdfast.run_state
    WHERE engine IS NOT NULL AND status IN ('created', 'running', 'suspended', 'recovering') AND workflow = $1) AS live
GROUP BY version ORDER BY version;

-- name: alias
-- The last move of an alias.
SELECT workflow, alias, no, target, at, actor, reason FROM holdfast.alias_moves WHERE workflow = $1 AND alias = $2
ORDER BY no DESC LIMIT 1;

-- name: aliases
-- The last move of each alias of a name, or of all names.
SELECT DISTINCT ON (workflow, alias) workflow, alias, no, target, at, actor, reason FROM holdfast.alias_moves
WHERE $1::text IS NULL OR workflow = $1
ORDER BY workflow, alias, no DESC;

-- name: alias_moves
-- Where an alias has pointed, the first move first.
SELECT workflow, alias, no, target, at, actor, reason FROM holdfast.alias_moves WHERE workflow = $1 AND alias = $2
ORDER BY no;

-- name: add_alias_move
-- The next move of an alias; nothing if a concurrent process was first, or this statement was sent before.
INSERT INTO holdfast.alias_moves (workflow, alias, no, target, at, actor, reason) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING pg_current_xact_id();
