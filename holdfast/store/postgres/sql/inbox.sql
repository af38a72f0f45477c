-- Messages to runs, written without the lease, in order of arrival. Every statement that writes returns the number of
-- its transaction
-- as the last column, and notifies listeners (pg_notify).

-- name: send
-- Store messages; return of each the status of its run, whether its id was known and its content the same,
-- whether it is stored now. The runs are locked first, in the order of their numbers: one that ends at this moment
-- either is seen as ended here, or waits and then finds these messages.
WITH target AS MATERIALIZED (
    SELECT run_no, status FROM holdfast.run_state WHERE run_no = ANY($6) ORDER BY run_no FOR SHARE),
v AS MATERIALIZED (
    SELECT u.message_id, u.run_no, u.kind, u.payload, u.created_at, u.place, target.status
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[], $5::bigint[])
        WITH ORDINALITY AS u (message_id, run_no, kind, payload, created_at, place)
    LEFT JOIN target ON target.run_no = u.run_no),
added AS (
    INSERT INTO holdfast.run_inbox_messages (message_id, run_no, kind, payload, created_at, status)
    SELECT v.message_id, v.run_no, v.kind, v.payload, v.created_at, 'new' FROM v
    WHERE v.status NOT IN ('completed', 'failed', 'cancelled')
        OR (v.status IS NOT NULL AND v.kind IN ('fork', 'jump', 'reopen', 'retry', 'recover'))
    ORDER BY v.place
    ON CONFLICT (message_id) DO NOTHING
    RETURNING message_id, pg_notify('holdfast', ''))
SELECT v.status, m.message_id IS NOT NULL, (m.run_no, m.kind, m.payload) = (v.run_no, v.kind, v.payload),
    v.message_id IN (SELECT message_id FROM added), pg_current_xact_id()
FROM v LEFT JOIN holdfast.run_inbox_messages AS m ON m.message_id = v.message_id
ORDER BY v.place;

-- name: known_messages
-- The contents of messages that a concurrent sender was first to store.
SELECT message_id, run_no, kind, payload FROM holdfast.run_inbox_messages WHERE message_id = ANY($1);

-- name: message
-- One message by its id.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM holdfast.run_inbox_messages WHERE message_id = $1;

-- name: new_messages_of
-- New messages of these runs.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM holdfast.run_inbox_messages WHERE run_no = ANY($1) AND status = 'new' ORDER BY no;

-- name: held_messages
-- Messages that these runs have accepted and not consumed yet.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM holdfast.run_inbox_messages WHERE run_no = ANY($1) AND status = 'held' ORDER BY no;

-- name: new_messages_unowned
-- New messages of runs without an owner, for polling. The messages come first: the server does not optimise into what
-- ends with
-- OFFSET 0.
SELECT m.message_id, m.run_no, m.kind, m.payload, m.created_at, m.status, m.outcome, m.no
FROM holdfast.run_inbox_messages AS m
WHERE m.status = 'new'
    AND EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = m.run_no AND r.engine IS NULL OFFSET 0)
ORDER BY m.no;
