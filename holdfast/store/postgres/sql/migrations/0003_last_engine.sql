-- Who drove a run before whoever owns it now; of the runs of earlier versions nobody knows.

ALTER TABLE holdfast.run_state ADD COLUMN last_engine text COLLATE "C";
