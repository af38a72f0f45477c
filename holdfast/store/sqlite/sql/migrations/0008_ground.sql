-- Engines are recognised by the boot of their kernel and by the inode of their lock file, and their leases are counted in
-- monotonic time there. Engines of earlier versions have none of that: their lease alone tells whether they live.

ALTER TABLE engines ADD COLUMN boot TEXT NOT NULL DEFAULT '';
ALTER TABLE engines ADD COLUMN lock_inode INTEGER NOT NULL DEFAULT 0;
ALTER TABLE engines ADD COLUMN awake_until INTEGER NOT NULL DEFAULT 0;

-- Which of several copies of a store this is (raised when a backup is restored), and why engines do not work on it yet.

ALTER TABLE store_meta ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1;
ALTER TABLE store_meta ADD COLUMN closed TEXT NOT NULL DEFAULT '';

-- What a reader of a run must know: all that was written before has the first format.

ALTER TABLE run_state ADD COLUMN format INTEGER NOT NULL DEFAULT 1;

-- Timers that were set by a duration: in which boot of the machine, and when it is over by the time that passes in it.

ALTER TABLE run_timers ADD COLUMN boot TEXT NOT NULL DEFAULT '';
ALTER TABLE run_timers ADD COLUMN elapsed INTEGER NOT NULL DEFAULT 0;
DROP INDEX run_timers_due;
CREATE INDEX run_timers_due ON run_timers (due_at, run_no, timer, boot) WHERE status = 'set';
CREATE INDEX run_timers_lasting ON run_timers (boot, elapsed) WHERE status = 'set' AND boot <> '';
