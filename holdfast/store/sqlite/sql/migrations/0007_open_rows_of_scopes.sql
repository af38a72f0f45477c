-- Instances of the workflow's own nodes leave the index of open rows: the key finds them.

DROP INDEX run_node_state_open;

CREATE INDEX run_node_state_open ON run_node_state (run_no) WHERE is_open = 1 AND (path <> '.' OR visit > 1);
