-- The doctor's queries and repairs.

-- name: waits_of_run
-- Every wait of a run, open or closed.
SELECT run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee, outcome, actor
FROM run_waits WHERE run_no = ? ORDER BY rowid;

-- name: timers_of_run
-- Every timer of a run, set or not.
SELECT run_no, timer, due_at, branch, status, boot, elapsed FROM run_timers WHERE run_no = ? ORDER BY timer;

-- name: messages_of_run
-- All messages to a run. The index is named, or SQLite may scan all messages in order.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM run_inbox_messages INDEXED BY run_inbox_messages_of_run WHERE run_no = ? ORDER BY no;

-- name: run_page
-- The next runs by number: how many, and the last of them.
SELECT count(*), max(run_no) FROM (SELECT run_no FROM run_state WHERE run_no > ?1 ORDER BY run_no LIMIT ?2);

-- name: run_numbers
-- The runs of a range of numbers.
SELECT run_no FROM run_state WHERE run_no BETWEEN ?1 AND ?2 ORDER BY run_no;

-- name: integrity_check
-- What SQLite says about its own file: pages, rows, indexes.
PRAGMA integrity_check;

-- Questions about a range of runs, ?1 to ?2, as of ?3; each gives run_no, run_id, node, path, seq, found, wanted.

-- name: suspect_head
-- The run's row does not point at the last event of its journal, or at another one than is there.
SELECT r.run_no, r.run_id, NULL, NULL, (SELECT max(seq) FROM run_events WHERE run_no = r.run_no),
    r.last_seq, e.hash = r.head_hash
FROM run_state AS r LEFT JOIN run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN ?1 AND ?2
    AND (e.hash IS NOT r.head_hash OR EXISTS (SELECT 1 FROM run_events WHERE run_no = r.run_no AND seq > r.last_seq));

-- name: suspect_gap
-- Fewer events than the last seq says. A run that was forked off another one begins behind the cut.
SELECT r.run_no, r.run_id, NULL, NULL,
    (SELECT min(x.seq) + 1 FROM (SELECT g.first_seq - 1 AS seq UNION ALL
                                 SELECT seq FROM run_events WHERE run_no = r.run_no) AS x
     WHERE NOT EXISTS (SELECT 1 FROM run_events AS y WHERE y.run_no = r.run_no AND y.seq = x.seq + 1)),
    g.events, g.last_seq - g.first_seq + 1
FROM (SELECT c.run_no, c.events, c.last_seq,
          coalesce((SELECT b.cutoff_seq FROM run_branches AS b
                    WHERE b.run_no = c.run_no AND json_extract(b.data, '$.origin_no') IS NOT NULL), 0) + 1 AS first_seq
      FROM (SELECT run_no, count(*) AS events, max(seq) AS last_seq FROM run_events
            WHERE run_no BETWEEN ?1 AND ?2 GROUP BY run_no) AS c) AS g
JOIN run_state AS r ON r.run_no = g.run_no
WHERE g.events <> g.last_seq - g.first_seq + 1;

-- name: suspect_token
-- An event with a token that its run never gave out.
SELECT r.run_no, r.run_id, e.node, e.path, e.seq, e.token, r.token
FROM run_state AS r JOIN run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN ?1 AND ?2 AND e.token > r.token;

-- name: suspect_ending
-- Ended by its status and not by its time, or the reverse.
SELECT run_no, run_id, NULL, NULL, NULL, status, finished_at FROM run_state
WHERE run_no BETWEEN ?1 AND ?2 AND (status IN ('completed', 'failed', 'cancelled')) <> (finished_at IS NOT NULL);

-- name: suspect_terminal
-- Ended by its status and not by its journal (the terminal event is the last but for the request), or the reverse.
SELECT r.run_no, r.run_id, NULL, NULL, r.last_seq, r.status, e.type
FROM run_state AS r LEFT JOIN run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN ?1 AND ?2 AND (
    (r.status IN ('completed', 'failed', 'cancelled')
        AND NOT EXISTS (SELECT 1 FROM run_events AS t WHERE t.run_no = r.run_no AND t.seq > r.last_seq - 4
            AND t.type = 'Run' || upper(substr(r.status, 1, 1)) || substr(r.status, 2)))
    OR (r.status NOT IN ('completed', 'failed', 'cancelled') AND e.type IN ('RunCompleted', 'RunFailed', 'RunCancelled')));

-- name: suspect_status
-- An unknown status.
SELECT run_no, run_id, NULL, NULL, NULL, status, NULL FROM run_state
WHERE run_no BETWEEN ?1 AND ?2
    AND status NOT IN ('created', 'running', 'suspended', 'recovering', 'completed', 'failed', 'cancelled');

-- name: suspect_owned_end
-- A finished run that an engine owns, without a new message to it.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.engine, r.status
FROM run_state AS r
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.engine IS NOT NULL
    AND (r.status = 'completed' OR r.status = 'failed' OR r.status = 'cancelled')
    AND NOT EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.status = 'new');

-- name: suspect_wait_of_end
-- A finished run that waits.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, w.wait_id, r.status
FROM run_state AS r JOIN run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
WHERE r.run_no BETWEEN ?1 AND ?2 AND (r.status = 'completed' OR r.status = 'failed' OR r.status = 'cancelled');

-- name: suspect_timer_of_end
-- A finished run with a timer. The index is named, or SQLite scans those that have fired.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, t.timer, r.status
FROM run_state AS r JOIN run_timers AS t INDEXED BY run_timers_of_run ON t.run_no = r.run_no AND t.status = 'set'
WHERE r.run_no BETWEEN ?1 AND ?2 AND (r.status = 'completed' OR r.status = 'failed' OR r.status = 'cancelled');

-- name: suspect_message_of_end
-- A finished run with messages that it will never read.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, m.message_id, r.status
FROM run_state AS r JOIN run_inbox_messages AS m ON m.run_no = r.run_no AND m.status = 'new'
WHERE r.run_no BETWEEN ?1 AND ?2 AND (r.status = 'completed' OR r.status = 'failed' OR r.status = 'cancelled')
    AND m.kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover');

-- name: suspect_node_of_end
-- A finished run with work in progress.
SELECT r.run_no, r.run_id, n.node, n.path, NULL, n.status, r.status
FROM run_state AS r JOIN run_node_state AS n ON n.run_no = r.run_no AND n.is_open = 1
WHERE r.run_no BETWEEN ?1 AND ?2 AND (r.status = 'completed' OR r.status = 'failed' OR r.status = 'cancelled')
    AND n.status IN ('scheduled', 'running', 'suspended');

-- name: suspect_node_of_suspended
-- A suspended run with a body in progress (a map or loop may be).
SELECT r.run_no, r.run_id, n.node, n.path, NULL, n.status, r.status
FROM run_state AS r JOIN run_node_state AS n ON n.run_no = r.run_no AND n.is_open = 1
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.status = 'suspended' AND n.status = 'running' AND n.scope IS NULL;

-- name: suspect_stuck
-- Suspended, and nothing can wake it.
SELECT r.run_no, r.run_id, NULL, NULL, r.last_seq, NULL, NULL FROM run_state AS r
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.status = 'suspended' AND r.hold IS NULL
    AND NOT EXISTS (SELECT 1 FROM run_waits AS w WHERE w.run_no = r.run_no AND w.status = 'open')
    AND NOT EXISTS (SELECT 1 FROM run_timers AS t WHERE t.run_no = r.run_no AND t.status = 'set')
    AND NOT EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.status = 'new');

-- name: suspect_wait_without_timer
-- A wait with a deadline and without a timer.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, w.wait_id, w.until
FROM run_state AS r JOIN run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
WHERE r.run_no BETWEEN ?1 AND ?2 AND w.until IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM run_timers AS t
                    WHERE t.run_no = w.run_no AND t.timer = w.wait_id AND t.status = 'set');

-- name: suspect_wait_without_child
-- A wait for a run that does not exist.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, w.wait_id, json_extract(w.data, '$.child')
FROM run_state AS r JOIN run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
WHERE r.run_no BETWEEN ?1 AND ?2 AND w.kind = 'child'
    AND NOT EXISTS (SELECT 1 FROM run_state AS c WHERE c.run_id = json_extract(w.data, '$.child'));

-- name: suspect_wait_for_ended_child
-- A wait for a run that ended before ?3, and no message says so. Children send it in the commit that ends them.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, c.run_id, c.status
FROM run_state AS r JOIN run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
JOIN run_state AS c ON c.run_id = json_extract(w.data, '$.child')
WHERE r.run_no BETWEEN ?1 AND ?2 AND w.kind = 'child' AND c.status IN ('completed', 'failed', 'cancelled')
    AND (c.parent_no = r.run_no OR c.finished_at < ?3)
    AND NOT EXISTS (SELECT 1 FROM run_inbox_messages AS m
                    WHERE m.run_no = r.run_no AND m.kind = 'child_ended' AND m.status = 'new'
                        AND json_extract(m.payload, '$.child') = c.run_id);

-- name: suspect_child_of_ended
-- A child that outlives a parent which failed or was cancelled, and that was never asked to stop.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, p.run_id, p.status
FROM run_state AS r JOIN run_state AS p ON p.run_no = r.parent_no
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.status NOT IN ('completed', 'failed', 'cancelled')
    AND p.status IN ('failed', 'cancelled') AND json_extract(r.fold, '$.parent.run_id') = p.run_id
    AND NOT EXISTS (SELECT 1 FROM run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.kind = 'cancel');

-- name: suspect_left_alone
-- Work that began, has no owner, and to which nothing has happened since ?3. (A run that was only created may wait
-- for its turn for long.)
SELECT r.run_no, r.run_id, NULL, NULL, r.last_seq, e.at, r.status
FROM run_state AS r JOIN run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.status IN ('running', 'recovering')
    AND r.engine IS NULL AND r.hold IS NULL AND e.at < ?3;

-- name: suspect_overdue
-- A timer that was due before ?3, of a run without an owner.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, t.timer, t.due_at
FROM run_timers AS t INDEXED BY run_timers_of_run CROSS JOIN run_state AS r ON r.run_no = t.run_no
WHERE t.run_no BETWEEN ?1 AND ?2 AND t.status = 'set' AND t.due_at < ?3
    AND r.engine IS NULL AND r.hold IS NULL AND r.status = 'suspended';

-- name: suspect_lease
-- Runs with an owner, and whether there is such an engine.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.engine, e.engine
FROM run_state AS r LEFT JOIN engines AS e ON e.engine = r.engine
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.engine IS NOT NULL;

-- name: suspect_version
-- A version that is not in the store.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.workflow, r.version FROM run_state AS r
WHERE r.run_no BETWEEN ?1 AND ?2
    AND NOT EXISTS (SELECT 1 FROM workflow_versions AS v WHERE v.workflow = r.workflow AND v.version = r.version);

-- name: suspect_format
-- A format that this version does not read.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.format, ?3 FROM run_state AS r
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.format > ?3;

-- name: suspect_parent
-- A parent or a root that is not in the store.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.parent_no, r.root_no FROM run_state AS r
WHERE r.run_no BETWEEN ?1 AND ?2
    AND (NOT EXISTS (SELECT 1 FROM run_state AS p WHERE p.run_no = r.root_no)
        OR (r.parent_no IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run_state AS p WHERE p.run_no = r.parent_no)));

-- name: suspect_branch
-- On a branch that was never opened.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.branch, NULL FROM run_state AS r
WHERE r.run_no BETWEEN ?1 AND ?2 AND r.branch <> 1
    AND NOT EXISTS (SELECT 1 FROM run_branches AS b WHERE b.run_no = r.run_no AND b.branch = r.branch);

-- name: suspect_orphan_events
-- Events of no run.
SELECT e.run_no, NULL, NULL, NULL, min(e.seq), count(*), 'run_events' FROM run_events AS e
WHERE e.run_no BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.run_no = e.run_no)
GROUP BY e.run_no;

-- name: suspect_orphan_nodes
-- Instances of no run.
SELECT n.run_no, NULL, min(n.node), NULL, NULL, count(*), 'run_node_state' FROM run_node_state AS n
WHERE n.run_no BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.run_no = n.run_no)
GROUP BY n.run_no;

-- name: suspect_orphan_waits
-- Waits of no run.
SELECT w.run_no, NULL, min(w.node), NULL, NULL, count(*), 'run_waits' FROM run_waits AS w
WHERE w.run_no BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.run_no = w.run_no)
GROUP BY w.run_no;

-- name: suspect_orphan_timers
-- Timers of no run.
SELECT t.run_no, NULL, NULL, NULL, NULL, count(*), 'run_timers' FROM run_timers AS t
WHERE t.run_no BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.run_no = t.run_no)
GROUP BY t.run_no;

-- name: suspect_orphan_branches
-- Branches of no run.
SELECT b.run_no, NULL, NULL, NULL, NULL, count(*), 'run_branches' FROM run_branches AS b
WHERE b.run_no BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.run_no = b.run_no)
GROUP BY b.run_no;

-- name: suspect_orphan_messages
-- Messages to no run.
SELECT m.run_no, NULL, NULL, NULL, NULL, count(*), 'run_inbox_messages'
FROM run_inbox_messages AS m INDEXED BY run_inbox_messages_of_run
WHERE m.run_no BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM run_state AS r WHERE r.run_no = m.run_no)
GROUP BY m.run_no;

-- Repairs. Each names what it expects, so that a concurrent write of an engine is not overwritten.

-- name: rebuild_run
-- The columns of the fold, of a run without an owner that has not changed; the token grows, so that an engine that
-- still believes that it owns the run is refused. A hold for damaged rows ends.
UPDATE run_state SET
    token = token + 1, version = ?3, last_seq = ?4, head_hash = ?5, status = ?6, branch = ?7, recoveries = ?8,
    started_at = ?9, finished_at = ?10, fold = ?11, hold = iif(hold GLOB 'corrupt*', NULL, hold)
WHERE run_no = ?1 AND token = ?2 AND engine IS NULL;

-- name: drop_nodes_of_run
-- They are rewritten in the same transaction.
DELETE FROM run_node_state WHERE run_no = ?;

-- name: drop_waits_of_run
-- They are rewritten in the same transaction.
DELETE FROM run_waits WHERE run_no = ?;

-- name: drop_timers_of_run
-- They are rewritten in the same transaction.
DELETE FROM run_timers WHERE run_no = ?;

-- name: remove_orphan_nodes
-- Instances of no run.
DELETE FROM run_node_state WHERE run_no = ?1 AND NOT EXISTS (SELECT 1 FROM run_state WHERE run_no = ?1);

-- name: remove_orphan_waits
-- Waits of no run.
DELETE FROM run_waits WHERE run_no = ?1 AND NOT EXISTS (SELECT 1 FROM run_state WHERE run_no = ?1);

-- name: remove_orphan_timers
-- Timers of no run.
DELETE FROM run_timers WHERE run_no = ?1 AND NOT EXISTS (SELECT 1 FROM run_state WHERE run_no = ?1);

-- name: remove_orphan_branches
-- Branches of no run.
DELETE FROM run_branches WHERE run_no = ?1 AND NOT EXISTS (SELECT 1 FROM run_state WHERE run_no = ?1);

-- name: remove_orphan_messages
-- Messages to no run.
DELETE FROM run_inbox_messages WHERE run_no = ?1 AND NOT EXISTS (SELECT 1 FROM run_state WHERE run_no = ?1);
