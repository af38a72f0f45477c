-- The doctor's queries and repairs. OFFSET 0 makes the server look up one run at a time, rather than read a whole
-- table.

-- name: waits_of_run
-- Every wait of a run, open or closed.
SELECT run_no, wait_id, kind, node, path, visit, branch, status, since, until, data, basket, assignee, outcome, actor
FROM holdfast.run_waits WHERE run_no = $1 ORDER BY no;

-- name: timers_of_run
-- Every timer of a run, set or not.
SELECT run_no, timer, due_at, branch, status, boot, elapsed FROM holdfast.run_timers WHERE run_no = $1 ORDER BY timer;

-- name: messages_of_run
-- All messages to a run.
SELECT message_id, run_no, kind, payload, created_at, status, outcome, no
FROM holdfast.run_inbox_messages WHERE run_no = $1 ORDER BY no;

-- name: run_page
-- The next runs by number: how many, and the last of them.
SELECT count(*), max(run_no)
FROM (SELECT run_no FROM holdfast.run_state WHERE run_no > $1 ORDER BY run_no LIMIT $2) AS page;

-- name: run_numbers
-- The runs of a range of numbers.
SELECT run_no FROM holdfast.run_state WHERE run_no BETWEEN $1 AND $2 ORDER BY run_no;

-- name: durability
-- Whether a commit that returned is on the disk.
SELECT current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off';

-- name: read_everything
-- Every value of every table, so that the server checks pages, rows and values that are stored apart.
SELECT count(everything.row) FROM (
    SELECT t::text FROM holdfast.store_meta AS t
    UNION ALL SELECT t::text FROM holdfast.store_migrations AS t
    UNION ALL SELECT t::text FROM holdfast.workflow_versions AS t
    UNION ALL SELECT t::text FROM holdfast.run_state AS t
    UNION ALL SELECT t::text FROM holdfast.run_node_state AS t
    UNION ALL SELECT t::text FROM holdfast.run_events AS t
    UNION ALL SELECT t::text FROM holdfast.run_branches AS t
    UNION ALL SELECT t::text FROM holdfast.run_inbox_messages AS t
    UNION ALL SELECT t::text FROM holdfast.run_waits AS t
    UNION ALL SELECT t::text FROM holdfast.run_timers AS t
    UNION ALL SELECT t::text FROM holdfast.engines AS t
    UNION ALL SELECT t::text FROM holdfast.engine_slots AS t
) AS everything (row);

-- Questions about a range of runs, $1 to $2, as of $3; each gives run_no, run_id, node, path, seq, found, wanted.

-- name: suspect_head
-- The run's row does not point at the last event of its journal, or at another one than is there.
SELECT r.run_no, r.run_id, NULL, NULL, (SELECT max(seq) FROM holdfast.run_events WHERE run_no = r.run_no),
    r.last_seq, (e.hash = r.head_hash)::int
FROM holdfast.run_state AS r LEFT JOIN holdfast.run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN $1 AND $2
    AND (e.hash IS DISTINCT FROM r.head_hash
        OR EXISTS (SELECT 1 FROM holdfast.run_events WHERE run_no = r.run_no AND seq > r.last_seq OFFSET 0));

-- name: suspect_gap
-- Fewer events than the last seq says. A run that was forked off another one begins behind the cut.
SELECT r.run_no, r.run_id, NULL, NULL,
    (SELECT min(x.seq) + 1 FROM (SELECT g.first_seq - 1 AS seq UNION ALL
                                 SELECT seq FROM holdfast.run_events WHERE run_no = r.run_no) AS x
     WHERE NOT EXISTS (SELECT 1 FROM holdfast.run_events AS y WHERE y.run_no = r.run_no AND y.seq = x.seq + 1)),
    g.events, g.last_seq - g.first_seq + 1
FROM (SELECT c.run_no, c.events, c.last_seq,
          coalesce((SELECT b.cutoff_seq FROM holdfast.run_branches AS b
                    WHERE b.run_no = c.run_no AND b.origin_no IS NOT NULL), 0) + 1 AS first_seq
      FROM (SELECT run_no, count(*) AS events, max(seq) AS last_seq FROM holdfast.run_events
            WHERE run_no BETWEEN $1 AND $2 GROUP BY run_no) AS c) AS g
JOIN holdfast.run_state AS r ON r.run_no = g.run_no
WHERE g.events <> g.last_seq - g.first_seq + 1;

-- name: suspect_token
-- An event with a token that its run never gave out.
SELECT r.run_no, r.run_id, e.node, e.path, e.seq, e.token, r.token
FROM holdfast.run_state AS r JOIN holdfast.run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN $1 AND $2 AND e.token > r.token;

-- name: suspect_ending
-- Ended by its status and not by its time, or the reverse.
SELECT run_no, run_id, NULL, NULL, NULL, status, finished_at FROM holdfast.run_state
WHERE run_no BETWEEN $1 AND $2 AND (status IN ('completed', 'failed', 'cancelled')) <> (finished_at IS NOT NULL);

-- name: suspect_terminal
-- Ended by its status and not by its journal (the terminal event is the last but for the request), or the reverse.
SELECT r.run_no, r.run_id, NULL, NULL, r.last_seq, r.status, e.type
FROM holdfast.run_state AS r LEFT JOIN holdfast.run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN $1 AND $2 AND (
    (r.status IN ('completed', 'failed', 'cancelled')
        AND NOT EXISTS (SELECT 1 FROM holdfast.run_events AS t WHERE t.run_no = r.run_no AND t.seq > r.last_seq - 4
            AND t.type = 'Run' || upper(substr(r.status, 1, 1)) || substr(r.status, 2) OFFSET 0))
    OR (r.status NOT IN ('completed', 'failed', 'cancelled')
        AND e.type IN ('RunCompleted', 'RunFailed', 'RunCancelled')));

-- name: suspect_status
-- An unknown status.
SELECT run_no, run_id, NULL, NULL, NULL, status, NULL FROM holdfast.run_state
WHERE run_no BETWEEN $1 AND $2
    AND status NOT IN ('created', 'running', 'suspended', 'recovering', 'completed', 'failed', 'cancelled');

-- name: suspect_owned_end
-- A finished run that an engine owns, without a new message to it.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.engine, r.status
FROM holdfast.run_state AS r
WHERE r.run_no BETWEEN $1 AND $2 AND r.engine IS NOT NULL AND r.status IN ('completed', 'failed', 'cancelled')
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.status = 'new');

-- name: suspect_wait_of_end
-- A finished run that waits.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, w.wait_id, r.status
FROM holdfast.run_state AS r JOIN holdfast.run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
WHERE r.run_no BETWEEN $1 AND $2 AND r.status IN ('completed', 'failed', 'cancelled');

-- name: suspect_timer_of_end
-- A finished run with a timer.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, t.timer, r.status
FROM holdfast.run_state AS r JOIN holdfast.run_timers AS t ON t.run_no = r.run_no AND t.status = 'set'
WHERE r.run_no BETWEEN $1 AND $2 AND r.status IN ('completed', 'failed', 'cancelled');

-- name: suspect_message_of_end
-- A finished run with messages that it will never read.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, m.message_id, r.status
FROM holdfast.run_state AS r JOIN holdfast.run_inbox_messages AS m ON m.run_no = r.run_no AND m.status = 'new'
WHERE r.run_no BETWEEN $1 AND $2 AND r.status IN ('completed', 'failed', 'cancelled')
    AND m.kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover');

-- name: suspect_node_of_end
-- A finished run with work in progress.
SELECT r.run_no, r.run_id, n.node, n.path, NULL, n.status, r.status
FROM holdfast.run_state AS r JOIN holdfast.run_node_state AS n ON n.run_no = r.run_no AND n.is_open = 1
WHERE r.run_no BETWEEN $1 AND $2 AND r.status IN ('completed', 'failed', 'cancelled')
    AND n.status IN ('scheduled', 'running', 'suspended');

-- name: suspect_node_of_suspended
-- A suspended run with a body in progress (a map or loop may be).
SELECT r.run_no, r.run_id, n.node, n.path, NULL, n.status, r.status
FROM holdfast.run_state AS r JOIN holdfast.run_node_state AS n ON n.run_no = r.run_no AND n.is_open = 1
WHERE r.run_no BETWEEN $1 AND $2 AND r.status = 'suspended' AND n.status = 'running' AND n.scope IS NULL;

-- name: suspect_stuck
-- Suspended, and nothing can wake it.
SELECT r.run_no, r.run_id, NULL, NULL, r.last_seq, NULL, NULL FROM holdfast.run_state AS r
WHERE r.run_no BETWEEN $1 AND $2 AND r.status = 'suspended' AND r.hold IS NULL
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_waits AS w WHERE w.run_no = r.run_no AND w.status = 'open')
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_timers AS t WHERE t.run_no = r.run_no AND t.status = 'set')
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.status = 'new');

-- name: suspect_wait_without_timer
-- A wait with a deadline and without a timer.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, w.wait_id, w.until
FROM holdfast.run_state AS r JOIN holdfast.run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
WHERE r.run_no BETWEEN $1 AND $2 AND w.until IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_timers AS t
                    WHERE t.run_no = w.run_no AND t.timer = w.wait_id AND t.status = 'set');

-- name: suspect_wait_without_child
-- A wait for a run that does not exist.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, w.wait_id, holdfast.json_text(w.data, 'child')
FROM holdfast.run_state AS r JOIN holdfast.run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
WHERE r.run_no BETWEEN $1 AND $2 AND w.kind = 'child'
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS c WHERE c.run_id = holdfast.json_text(w.data, 'child'));

-- name: suspect_wait_for_ended_child
-- A wait for a run that ended before $3, and no message says so. Children send it in the commit that ends them.
SELECT r.run_no, r.run_id, w.node, w.path, NULL, c.run_id, c.status
FROM holdfast.run_state AS r JOIN holdfast.run_waits AS w ON w.run_no = r.run_no AND w.status = 'open'
JOIN holdfast.run_state AS c ON c.run_id = holdfast.json_text(w.data, 'child')
WHERE r.run_no BETWEEN $1 AND $2 AND w.kind = 'child' AND c.status IN ('completed', 'failed', 'cancelled')
    AND (c.parent_no = r.run_no OR c.finished_at < $3)
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_inbox_messages AS m
                    WHERE m.run_no = r.run_no AND m.kind = 'child_ended' AND m.status = 'new'
                        AND holdfast.json_text(m.payload, 'child') = c.run_id);

-- name: suspect_child_of_ended
-- A child that outlives a parent which failed or was cancelled, and that was never asked to stop.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, p.run_id, p.status
FROM holdfast.run_state AS r JOIN holdfast.run_state AS p ON p.run_no = r.parent_no
WHERE r.run_no BETWEEN $1 AND $2 AND r.status NOT IN ('completed', 'failed', 'cancelled')
    AND p.status IN ('failed', 'cancelled') AND holdfast.json_text(r.fold, 'parent', 'run_id') = p.run_id
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_inbox_messages AS m WHERE m.run_no = r.run_no AND m.kind = 'cancel');

-- name: suspect_left_alone
-- Work that began, has no owner, and to which nothing has happened since $3. (A run that was only created may wait
-- for its turn for long.)
SELECT r.run_no, r.run_id, NULL, NULL, r.last_seq, e.at, r.status
FROM holdfast.run_state AS r JOIN holdfast.run_events AS e ON e.run_no = r.run_no AND e.seq = r.last_seq
WHERE r.run_no BETWEEN $1 AND $2 AND r.status IN ('running', 'recovering')
    AND r.engine IS NULL AND r.hold IS NULL AND e.at < $3;

-- name: suspect_overdue
-- A timer that was due before $3, of a run without an owner.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, t.timer, t.due_at
FROM holdfast.run_state AS r JOIN holdfast.run_timers AS t ON t.run_no = r.run_no AND t.status = 'set'
WHERE r.run_no BETWEEN $1 AND $2 AND r.engine IS NULL AND r.hold IS NULL AND t.due_at < $3
    AND r.status = 'suspended';

-- name: suspect_lease
-- Runs with an owner, and whether there is such an engine.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.engine, e.engine
FROM holdfast.run_state AS r LEFT JOIN holdfast.engines AS e ON e.engine = r.engine
WHERE r.run_no BETWEEN $1 AND $2 AND r.engine IS NOT NULL;

-- name: suspect_version
-- A version that is not in the store.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.workflow, r.version FROM holdfast.run_state AS r
WHERE r.run_no BETWEEN $1 AND $2
    AND NOT EXISTS (SELECT 1 FROM holdfast.workflow_versions AS v
                    WHERE v.workflow = r.workflow AND v.version = r.version);

-- name: suspect_format
-- A format that this version does not read.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.format, $3::bigint FROM holdfast.run_state AS r
WHERE r.run_no BETWEEN $1 AND $2 AND r.format > $3;

-- name: suspect_parent
-- A parent or a root that is not in the store.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.parent_no, r.root_no FROM holdfast.run_state AS r
WHERE r.run_no BETWEEN $1 AND $2
    AND (NOT EXISTS (SELECT 1 FROM holdfast.run_state AS p WHERE p.run_no = r.root_no OFFSET 0)
        OR (r.parent_no IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS p WHERE p.run_no = r.parent_no OFFSET 0)));

-- name: suspect_branch
-- On a branch that was never opened.
SELECT r.run_no, r.run_id, NULL, NULL, NULL, r.branch, NULL FROM holdfast.run_state AS r
WHERE r.run_no BETWEEN $1 AND $2 AND r.branch <> 1
    AND NOT EXISTS (SELECT 1 FROM holdfast.run_branches AS b WHERE b.run_no = r.run_no AND b.branch = r.branch);

-- name: suspect_orphan_events
-- Events of no run.
SELECT e.run_no, NULL, NULL, NULL, min(e.seq), count(*), 'run_events' FROM holdfast.run_events AS e
WHERE e.run_no BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = e.run_no)
GROUP BY e.run_no;

-- name: suspect_orphan_nodes
-- Instances of no run.
SELECT n.run_no, NULL, min(n.node), NULL, NULL, count(*), 'run_node_state' FROM holdfast.run_node_state AS n
WHERE n.run_no BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = n.run_no)
GROUP BY n.run_no;

-- name: suspect_orphan_waits
-- Waits of no run.
SELECT w.run_no, NULL, min(w.node), NULL, NULL, count(*), 'run_waits' FROM holdfast.run_waits AS w
WHERE w.run_no BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = w.run_no)
GROUP BY w.run_no;

-- name: suspect_orphan_timers
-- Timers of no run.
SELECT t.run_no, NULL, NULL, NULL, NULL, count(*), 'run_timers' FROM holdfast.run_timers AS t
WHERE t.run_no BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = t.run_no)
GROUP BY t.run_no;

-- name: suspect_orphan_branches
-- Branches of no run.
SELECT b.run_no, NULL, NULL, NULL, NULL, count(*), 'run_branches' FROM holdfast.run_branches AS b
WHERE b.run_no BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = b.run_no)
GROUP BY b.run_no;

-- name: suspect_orphan_messages
-- Messages to no run.
SELECT m.run_no, NULL, NULL, NULL, NULL, count(*), 'run_inbox_messages'
FROM holdfast.run_inbox_messages AS m
WHERE m.run_no BETWEEN $1 AND $2 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state AS r WHERE r.run_no = m.run_no)
GROUP BY m.run_no;

-- Repairs. Each names what it expects, so that a concurrent write of an engine is not overwritten.

-- name: rebuild_run
-- The columns of the fold, of a run without an owner that has not changed; the token grows, so that an engine that
-- still believes that it owns the run is refused. A hold for damaged rows ends.
UPDATE holdfast.run_state SET
    token = token + 1, version = $3, last_seq = $4, head_hash = $5, status = $6, branch = $7, recoveries = $8,
    started_at = $9, finished_at = $10, fold = $11, hold = CASE WHEN hold LIKE 'corrupt%' THEN NULL ELSE hold END
WHERE run_no = $1 AND token = $2 AND engine IS NULL
RETURNING pg_current_xact_id();

-- name: is_rebuilt
-- Whether a repair whose answer was lost has happened.
SELECT 1 FROM holdfast.run_state
WHERE run_no = $1 AND token = $2 AND last_seq = $3 AND head_hash = $4 AND engine IS NULL;

-- name: drop_nodes_of_run
-- They are rewritten in the same transaction.
DELETE FROM holdfast.run_node_state WHERE run_no = $1;

-- name: drop_waits_of_run
-- They are rewritten in the same transaction.
DELETE FROM holdfast.run_waits WHERE run_no = $1;

-- name: drop_timers_of_run
-- They are rewritten in the same transaction.
DELETE FROM holdfast.run_timers WHERE run_no = $1;

-- name: remove_orphan_nodes
-- Instances of no run.
DELETE FROM holdfast.run_node_state
WHERE run_no = $1 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state WHERE run_no = $1)
RETURNING pg_current_xact_id();

-- name: remove_orphan_waits
-- Waits of no run.
DELETE FROM holdfast.run_waits WHERE run_no = $1 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state WHERE run_no = $1)
RETURNING pg_current_xact_id();

-- name: remove_orphan_timers
-- Timers of no run.
DELETE FROM holdfast.run_timers WHERE run_no = $1 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state WHERE run_no = $1)
RETURNING pg_current_xact_id();

-- name: remove_orphan_branches
-- Branches of no run.
DELETE FROM holdfast.run_branches WHERE run_no = $1 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state WHERE run_no = $1)
RETURNING pg_current_xact_id();

-- name: remove_orphan_messages
-- Messages to no run.
DELETE FROM holdfast.run_inbox_messages
WHERE run_no = $1 AND NOT EXISTS (SELECT 1 FROM holdfast.run_state WHERE run_no = $1)
RETURNING pg_current_xact_id();

-- name: close_inbox_of_ended
-- Messages that a finished run will never read.
UPDATE holdfast.run_inbox_messages AS m SET
    status = 'dead', outcome = convert_to('{"outcome":"refused","code":"finished","why":"the run has ended"}', 'UTF8')
FROM holdfast.run_state AS r
WHERE r.run_no = $1 AND r.status IN ('completed', 'failed', 'cancelled')
    AND m.run_no = r.run_no AND m.status = 'new' AND m.kind NOT IN ('fork', 'jump', 'reopen', 'retry', 'recover')
RETURNING pg_current_xact_id();
