-- Who drove a run before whoever owns it now; of the runs of earlier versions nobody knows.

ALTER TABLE run_state ADD COLUMN last_engine TEXT;
