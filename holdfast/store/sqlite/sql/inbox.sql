-- Messages to runs, written without the lease, in order of arrival.

-- name: are_runs_finished
-- Which of these runs exist, and whether each has finished.
SELECT run_no, status IN ('completed', 'failed', 'cancelled')
FROM run_state WHERE run_no IN (SELECT value FROM json_each(?));

-- name: known_messages
-- Which of these messages were sent before, and their contents.
SELECT message_id, run_no, kind, payload FROM run_inbox_messages WHERE message_id IN (SELECT value FROM json_each(?));

-- name: message
-- One message by its id.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM run_inbox_messages WHERE message_id = ?;

-- name: new_messages_of
-- New messages of these runs.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM run_inbox_messages WHERE run_no IN (SELECT value FROM json_each(?)) AND status = 'new' ORDER BY no;

-- name: held_messages
-- Messages that these runs have accepted and not consumed yet. The index is named, or SQLite scans all messages to
-- them.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM run_inbox_messages INDEXED BY run_inbox_messages_held
WHERE run_no IN (SELECT value FROM json_each(?)) AND status = 'held' ORDER BY no;

-- name: new_messages_unowned
-- New messages of runs without an owner, for polling. The index is named, or SQLite scans all messages to
-- avoid a sort.
SELECT m.message_id, m.run_no, m.kind, m.payload, m.created_at, m.status, m.outcome, m.no
FROM run_inbox_messages AS m INDEXED BY run_inbox_messages_new CROSS JOIN run_state AS r ON r.run_no = m.run_no
WHERE m.status = 'new' AND r.engine IS NULL ORDER BY m.no;
