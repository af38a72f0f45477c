-- What people are asked: in which basket and whose it is, how and by whom it was ended, and indexes that only the waits
-- of people are in.

ALTER TABLE run_waits ADD COLUMN basket TEXT;
ALTER TABLE run_waits ADD COLUMN assignee TEXT;
ALTER TABLE run_waits ADD COLUMN outcome TEXT;
ALTER TABLE run_waits ADD COLUMN actor TEXT;

-- How the waits of earlier versions ended, from their journals (one that cannot be read is the doctor's); a wait that is
-- over and that no event closed was left behind by a branch.
UPDATE run_waits SET outcome = closed.outcome, actor = nullif(closed.actor, '')
FROM (
    SELECT run_no, json_extract(data, '$.wait_id') AS wait_id, json_extract(data, '$.outcome') AS outcome,
        json_extract(data, '$.actor') AS actor, max(seq)
    FROM run_events WHERE type = 'WaitClosed' AND json_valid(CAST(data AS TEXT)) GROUP BY 1, 2
) AS closed
WHERE run_waits.status = 'closed' AND run_waits.run_no = closed.run_no AND run_waits.wait_id = closed.wait_id;
UPDATE run_waits SET outcome = 'superseded' WHERE status = 'closed' AND outcome IS NULL;

CREATE INDEX run_waits_of_people ON run_waits (wait_id) WHERE kind IN ('input', 'basket', 'pause', 'hold');
CREATE INDEX run_waits_asked ON run_waits (since, wait_id)
    WHERE status = 'open' AND kind IN ('input', 'basket', 'pause', 'hold');
CREATE INDEX run_waits_basket ON run_waits (basket, since, wait_id, kind) WHERE basket IS NOT NULL AND status = 'open';
CREATE INDEX run_waits_assignee ON run_waits (assignee, since, wait_id) WHERE assignee IS NOT NULL AND status = 'open';

-- Waits for children, which are looked through now and then: a million other waits must not be in the way.
CREATE INDEX run_waits_for_children ON run_waits (run_no) WHERE status = 'open' AND kind = 'child';

-- Signals that came before anybody waited for them.
CREATE INDEX run_inbox_messages_held ON run_inbox_messages (run_no) WHERE status = 'held';
