-- The same columns as on SQLite; here the lease of an engine is counted by the server's clock.

ALTER TABLE holdfast.engines ADD COLUMN boot text NOT NULL DEFAULT '';
ALTER TABLE holdfast.engines ADD COLUMN lock_inode bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast.engines ADD COLUMN awake_until bigint NOT NULL DEFAULT 0;

ALTER TABLE holdfast.store_meta ADD COLUMN epoch bigint NOT NULL DEFAULT 1;
ALTER TABLE holdfast.store_meta ADD COLUMN closed text NOT NULL DEFAULT '';

-- What a reader of a run must know: all that was written before has the first format.

ALTER TABLE holdfast.run_state ADD COLUMN format bigint NOT NULL DEFAULT 1;

-- Timers that were set by a duration, on SQLite; here the server's clock judges all of them.

ALTER TABLE holdfast.run_timers ADD COLUMN boot text NOT NULL DEFAULT '';
ALTER TABLE holdfast.run_timers ADD COLUMN elapsed bigint NOT NULL DEFAULT 0;
