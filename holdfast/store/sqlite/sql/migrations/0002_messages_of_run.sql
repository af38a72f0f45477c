-- What a run was ever sent, so that whoever checks a run need not read all messages there are.

CREATE INDEX run_inbox_messages_of_run ON run_inbox_messages (run_no);
