-- For postgres_contents.py: copying reads and writes tables by what the catalog says they are.

-- name: columns_of_tables
-- Every column of our tables; the last value says whether the server numbers it.
SELECT c.relname, a.attname, a.attidentity <> '' FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY c.relname, a.attnum;

-- name: columns_of_keys
-- Every primary key.
SELECT c.relname, a.attname FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.attnum
WHERE n.nspname = $1 AND i.indisprimary ORDER BY c.relname, k.place;

-- name: store_itself
-- What a database says about itself.
SELECT store_id, next_run_no, schema_version, epoch, closed FROM holdfast.store_meta WHERE single = 1;

-- name: set_unfinished
-- Marks the database as unfinished: no process opens it.
UPDATE holdfast.store_meta SET schema_version = $1 WHERE single = 1;

-- name: set_complete
-- Marks the database as complete.
UPDATE holdfast.store_meta
SET schema_version = (SELECT max(number) FROM holdfast.store_migrations), next_run_no = $1, store_id = $2, epoch = $3,
    closed = $4
WHERE single = 1;

-- name: forget_engines
-- A restored database has no engines.
DELETE FROM holdfast.engines;

-- name: forget_slots
-- Nor slots of pools.
DELETE FROM holdfast.engine_slots;

-- name: free_all_runs
-- No run has an owner, and a former owner is refused.
UPDATE holdfast.run_state SET last_engine = coalesce(engine, last_engine), engine = NULL, token = token + $1;

-- name: set_standing
-- Which copy it is now, and why engines do not work on it.
UPDATE holdfast.store_meta SET epoch = $1, closed = $2 WHERE single = 1;
