-- For sqlite_contents.py: copying reads and writes tables by what the catalog says they are.

-- name: columns_of_tables
-- Every column; `pk` is its place in the primary key.
SELECT s.name, c.name, c.pk FROM sqlite_schema AS s JOIN pragma_table_info(s.name) AS c
WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY s.name, c.cid;

-- name: unique_columns
-- What else tells rows of a table apart, in the order in which it was declared.
SELECT u.seq, c.name FROM pragma_index_list(?1) AS u JOIN pragma_index_info(u.name) AS c
WHERE u.origin = 'u' ORDER BY u.seq DESC, c.seqno;

-- name: store_itself
-- What a database says about itself.
SELECT store_id, next_run_no, schema_version, epoch, closed FROM store_meta WHERE only = 1;

-- name: set_unfinished
-- Marks the database as unfinished: no process opens it.
UPDATE store_meta SET schema_version = ?1 WHERE only = 1;

-- name: set_complete
-- Marks the database as complete.
UPDATE store_meta
SET schema_version = (SELECT max(number) FROM store_migrations), next_run_no = ?1, store_id = ?2, epoch = ?3, closed = ?4
WHERE only = 1 RETURNING schema_version;

-- name: forget_engines
-- A backup or a restored database has no engines.
DELETE FROM engines;

-- name: forget_slots
-- Nor slots of pools.
DELETE FROM engine_slots;

-- name: free_all_runs
-- No run has an owner, and a former owner is refused.
UPDATE run_state SET last_engine = coalesce(engine, last_engine), engine = NULL, token = token + ?1;

-- name: set_standing
-- Which copy it is now, and why engines do not work on it.
UPDATE store_meta SET epoch = ?1, closed = ?2 WHERE only = 1;
