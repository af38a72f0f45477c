-- The same indexes, whose conditions no longer make SQLite build a table for every row that is written.

DROP INDEX run_state_live;
DROP INDEX run_state_ready;
DROP INDEX run_state_ready_of_root;
DROP INDEX run_state_finished;
DROP INDEX run_waits_of_people;
DROP INDEX run_waits_asked;

CREATE INDEX run_state_live ON run_state (engine, status)
    WHERE engine IS NOT NULL
        OR (status = 'created' OR status = 'running' OR status = 'suspended' OR status = 'recovering');
CREATE INDEX run_state_ready ON run_state (workflow, version, queue, priority DESC, run_no)
    WHERE engine IS NULL AND hold IS NULL AND (status = 'created' OR status = 'running' OR status = 'recovering');
CREATE INDEX run_state_ready_of_root ON run_state (root_no)
    WHERE engine IS NULL AND hold IS NULL
        AND status <> 'suspended' AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled';
CREATE INDEX run_state_finished ON run_state (status, run_no)
    WHERE status = 'completed' OR status = 'failed' OR status = 'cancelled';
CREATE INDEX run_waits_of_people ON run_waits (wait_id)
    WHERE kind = 'input' OR kind = 'basket' OR kind = 'pause' OR kind = 'hold';
CREATE INDEX run_waits_asked ON run_waits (since, wait_id)
    WHERE status = 'open' AND (kind = 'input' OR kind = 'basket' OR kind = 'pause' OR kind = 'hold');
