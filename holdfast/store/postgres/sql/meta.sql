-- For postgres_schema.py and postgres_connections.py: the server, the database and its schema.

-- name: server
-- What a server must be to be trusted with runs.
SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on', current_setting('fsync') = 'on',
    current_setting('synchronous_commit') <> 'off', current_setting('server_encoding');

-- name: self_test
-- Three arrays as the server has read them, as text, and how often this session has prepared a statement.
SELECT array_to_string($1::bigint[], ',', '-'), array_to_string($2::text[], ',', '-'),
    (SELECT string_agg(coalesce(encode(v.value, 'hex'), '-'), ',' ORDER BY v.place)
     FROM unnest($3::bytea[]) WITH ORDINALITY AS v (value, place)),
    (SELECT count(*) FROM pg_prepared_statements WHERE statement = $4);

-- name: tables
-- All tables in our schema.
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1;

-- name: schema_version
-- The version of the schema.
SELECT schema_version FROM holdfast.store_meta WHERE single = 1;

-- name: applied_migrations
-- The applied migrations and their checksums.
SELECT number, name, checksum FROM holdfast.store_migrations ORDER BY number;

-- name: one_at_a_time
-- Other processes that open the same store wait until this transaction has ended.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast ' || $1, 0));

-- name: has_schema
-- Whether our schema exists; a user who may not create one may use one.
SELECT 1 FROM pg_namespace WHERE nspname = $1;

-- name: create_schema
-- The schema of all tables.
CREATE SCHEMA holdfast;

-- name: add_migration
-- Recorded in the transaction that applies it.
INSERT INTO holdfast.store_migrations (number, name, checksum) VALUES ($1, $2, $3);

-- name: set_schema_version
-- The first migration inserts the row; later ones update it.
INSERT INTO holdfast.store_meta (single, schema_version, store_id, next_run_no) VALUES (1, $1, $2, 1)
ON CONFLICT (single) DO UPDATE SET schema_version = excluded.schema_version;

-- name: now
-- The clock that all engines share, in microseconds.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: snapshot
-- Which transactions have ended.
SELECT pg_current_snapshot()::text;
