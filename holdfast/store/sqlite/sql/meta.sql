-- For sqlite_opening.py: the file and its schema.

-- name: tables
-- All tables in the file except SQLite's own.
SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: schema_version
-- The version of the schema.
SELECT schema_version FROM store_meta WHERE only = 1;

-- name: applied_migrations
-- The applied migrations and their checksums.
SELECT number, name, checksum FROM store_migrations ORDER BY number;

-- name: add_migration
-- Recorded in the transaction that applies it.
INSERT INTO store_migrations (number, name, checksum) VALUES (?, ?, ?);

-- name: set_schema_version
-- The first migration inserts the row; later ones update it.
INSERT INTO store_meta (only, schema_version, store_id, next_run_no) VALUES (1, ?1, ?2, 1)
ON CONFLICT (only) DO UPDATE SET schema_version = excluded.schema_version;

-- name: grow_log
-- A row as large as asked, in a transaction that is rolled back: it makes the write-ahead log long, and leaves nothing.
INSERT INTO workflow_versions (workflow, version, hash, definition, created_at) VALUES ('', 0, '', zeroblob(?), 0);
