-- Many engines: queues, claiming in the order of each version of a workflow, places of pools that all engines share.

ALTER TABLE holdfast.run_state ADD COLUMN queue text COLLATE "C" NOT NULL DEFAULT 'default';

CREATE INDEX run_state_ready ON holdfast.run_state (workflow, version, queue, priority DESC, run_no)
    WHERE engine IS NULL AND hold IS NULL AND status IN ('created', 'running', 'recovering');
CREATE INDEX run_state_ready_of_root ON holdfast.run_state (root_no)
    WHERE engine IS NULL AND hold IS NULL AND status NOT IN ('suspended', 'completed', 'failed', 'cancelled');

CREATE TABLE holdfast.engine_slots (
    pool   text   COLLATE "C" NOT NULL,
    engine text   COLLATE "C" NOT NULL,
    held   bigint NOT NULL,
    PRIMARY KEY (pool, engine)
);
