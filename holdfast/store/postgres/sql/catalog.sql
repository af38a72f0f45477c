-- Definitions, and the numbers of runs. Every statement that writes returns the number of its transaction as the last
-- column.

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
INSERT INTO holdfast.workflow_versions (workflow, version, hash, definition, created_at)
SELECT $1, coalesce(max(version), 0) + 1, $2, $3, $4 FROM holdfast.workflow_versions WHERE workflow = $1
ON CONFLICT DO NOTHING
RETURNING version, pg_current_xact_id();

-- name: version
-- One definition.
SELECT workflow, version, hash, definition, created_at FROM holdfast.workflow_versions
WHERE workflow = $1 AND version = $2;

-- name: latest_version
-- The newest definition of a name.
SELECT workflow, version, hash, definition, created_at FROM holdfast.workflow_versions WHERE workflow = $1
ORDER BY version DESC LIMIT 1;
