-- What migrate.py asks of a database.

-- name: tables
-- Everything in the file that is not SQLite's own.
SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: schema_version
-- How far the schema is.
SELECT schema_version FROM store_meta WHERE only = 1;

-- name: applied_migrations
-- What was applied, and what it was.
SELECT number, name, checksum FROM store_migrations ORDER BY number;

-- name: add_migration
-- Recorded in the transaction that applies it.
INSERT INTO store_migrations (number, name, checksum) VALUES (?, ?, ?);

-- name: set_schema_version
-- The first migration makes the row; later ones move it.
INSERT INTO store_meta (only, schema_version, store_id, next_run_no) VALUES (1, ?1, ?2, 1)
ON CONFLICT (only) DO UPDATE SET schema_version = excluded.schema_version;

-- name: grow_log
-- A row as large as asked, in a transaction that is rolled back: it makes the write-ahead log long, and leaves nothing.
INSERT INTO workflow_versions (workflow, version, hash, definition, created_at) VALUES ('', 0, '', zeroblob(?), 0);
