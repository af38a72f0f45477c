-- Definitions, and the numbers of runs.

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
INSERT INTO workflow_versions (workflow, version, hash, definition, created_at)
SELECT ?1, coalesce(max(version), 0) + 1, ?2, ?3, ?4 FROM workflow_versions WHERE workflow = ?1
RETURNING version;

-- name: version
-- One definition.
SELECT workflow, version, hash, definition, created_at FROM workflow_versions WHERE workflow = ?1 AND version = ?2;

-- name: latest_version
-- The newest definition of a name.
SELECT workflow, version, hash, definition, created_at FROM workflow_versions WHERE workflow = ?
ORDER BY version DESC LIMIT 1;
