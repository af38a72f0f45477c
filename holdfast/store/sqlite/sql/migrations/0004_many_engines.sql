-- Many engines: queues, claiming in the order of each version of a workflow, places of pools that all engines share.

ALTER TABLE run_state ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';

CREATE INDEX run_state_ready ON run_state (workflow, version, queue, priority DESC, run_no)
    WHERE engine IS NULL AND hold IS NULL AND status IN ('created', 'running', 'recovering');
CREATE INDEX run_state_ready_of_root ON run_state (root_no)
    WHERE engine IS NULL AND hold IS NULL AND status NOT IN ('suspended', 'completed', 'failed', 'cancelled');

CREATE TABLE engine_slots (
    pool   TEXT    NOT NULL,
    engine TEXT    NOT NULL,
    held   INTEGER NOT NULL,
    PRIMARY KEY (pool, engine)
) STRICT, WITHOUT ROWID;
