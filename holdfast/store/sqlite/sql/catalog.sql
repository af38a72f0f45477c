-- Definitions with their versions and aliases, and the numbers of runs.

-- name: take_run_numbers
-- The end of a range of run numbers that are given out once.
UPDATE store_meta
SET next_run_no = max(next_run_no, coalesce((SELECT max(run_no) FROM run_state), 0) + 1) + ?
WHERE only = 1 RETURNING next_run_no;

-- name: version_of_hash
-- The existing number of this definition.
SELECT version FROM workflow_versions WHERE workflow = ?1 AND hash = ?2;

-- name: add_version
-- The next number of a name.
INSERT INTO workflow_versions (workflow, version, hash, definition, created_at, code)
SELECT ?1, coalesce(max(version), 0) + 1, ?2, ?3, ?4, ?5 FROM workflow_versions WHERE workflow = ?1
RETURNING version;

-- name: deploy_version
-- An existing definition is deployed: where its code is now, and it may be started (again).
UPDATE workflow_versions SET code = ?3, retired_at = NULL WHERE workflow = ?1 AND version = ?2;

-- name: version
-- One definition.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM workflow_versions
WHERE workflow = ?1 AND version = ?2;

-- name: latest_version
-- The newest definition of a name.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM workflow_versions WHERE workflow = ?
ORDER BY version DESC LIMIT 1;

-- name: latest_active
-- The highest number of a name that may be started.
SELECT max(version) FROM workflow_versions WHERE workflow = ?1 AND retired_at IS NULL;

-- name: versions
-- The definitions of a name.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM workflow_versions WHERE workflow = ?
ORDER BY version;

-- name: all_versions
-- All definitions.
SELECT workflow, version, hash, definition, created_at, code, retired_at FROM workflow_versions
ORDER BY workflow, version;

-- name: version_numbers
-- All versions, without their definitions.
SELECT workflow, version FROM workflow_versions ORDER BY workflow, version;

-- name: retired_versions
-- What may not be started.
SELECT workflow, version FROM workflow_versions WHERE retired_at IS NOT NULL;

-- name: retire_version
-- Nothing of it starts any more.
UPDATE workflow_versions SET retired_at = ?3 WHERE workflow = ?1 AND version = ?2 AND retired_at IS NULL;

-- name: unfinished_by_version
-- How many runs of a name have not ended, by version: by the index of live runs, however many have ended.
SELECT version, count(*) FROM run_state INDEXED BY run_state_live
WHERE workflow = ?1 AND (status = 'created' OR status = 'running' OR status = 'suspended' OR status = 'recovering')
GROUP BY version ORDER BY version;

-- name: alias
-- The last move of an alias.
SELECT workflow, alias, no, target, at, actor, reason FROM alias_moves WHERE workflow = ?1 AND alias = ?2
ORDER BY no DESC LIMIT 1;

-- name: aliases
-- The last move of each alias of a name, or of all names.
SELECT workflow, alias, no, target, at, actor, reason FROM alias_moves AS one
WHERE (?1 IS NULL OR workflow = ?1)
    AND no = (SELECT max(no) FROM alias_moves WHERE workflow = one.workflow AND alias = one.alias)
ORDER BY workflow, alias;

-- name: alias_moves
-- Where an alias has pointed, the first move first.
SELECT workflow, alias, no, target, at, actor, reason FROM alias_moves WHERE workflow = ?1 AND alias = ?2 ORDER BY no;

-- name: add_alias_move
-- The next move of an alias.
INSERT INTO alias_moves (workflow, alias, no, target, at, actor, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);
