-- The schema of a Holdfast database on SQLite. Applied as migration 1 until the schema first changes after the first
-- release (see sql_files.py).
--
-- Payloads are BLOB. Instants are microseconds since 1970, UTC. A run is its number inside and its text id once. No
-- foreign keys: rows of one commit are written together, and the fence on run_state decides whether they may.
-- Indexes are partial where they can be, so that what costs nothing to a live run stays flat with many finished ones.
-- Their conditions are written without IN: for a list of three SQLite builds a table, again for every row that is
-- written and every index with such a condition (a third of the cost of a claim). Statements that need the index use
-- the same condition, literally.

CREATE TABLE store_meta (
    only           INTEGER PRIMARY KEY CHECK (only = 1),
    schema_version INTEGER NOT NULL,
    store_id       TEXT    NOT NULL,
    next_run_no    INTEGER NOT NULL,
    epoch          INTEGER NOT NULL DEFAULT 1,
    closed         TEXT    NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE store_migrations (
    number   INTEGER PRIMARY KEY,
    name     TEXT    NOT NULL,
    checksum TEXT    NOT NULL
) STRICT;

CREATE TABLE workflow_versions (
    workflow   TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    hash       TEXT    NOT NULL,
    definition BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    code       BLOB    NOT NULL DEFAULT x'',
    retired_at INTEGER,
    PRIMARY KEY (workflow, version),
    UNIQUE (workflow, hash)
) STRICT;

-- Read by every group that creates a run; nearly always empty.
CREATE INDEX workflow_versions_retired ON workflow_versions (workflow, version) WHERE retired_at IS NOT NULL;

-- The history of aliases, never changed. The last move of an alias says where it points; without `target`: nowhere.
CREATE TABLE alias_moves (
    workflow TEXT    NOT NULL,
    alias    TEXT    NOT NULL,
    no       INTEGER NOT NULL,
    target   BLOB,
    at       INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    PRIMARY KEY (workflow, alias, no)
) STRICT, WITHOUT ROWID;

CREATE TABLE run_state (
    run_no      INTEGER PRIMARY KEY,
    run_id      TEXT    NOT NULL UNIQUE,
    workflow    TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    branch      INTEGER NOT NULL,
    last_seq    INTEGER NOT NULL,
    head_hash   BLOB    NOT NULL,
    token       INTEGER NOT NULL,
    engine      TEXT,
    fold        BLOB,
    input_hash  TEXT    NOT NULL,
    parent_no   INTEGER,
    root_no     INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    recoveries  INTEGER NOT NULL,
    hold        TEXT,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    queue       TEXT    NOT NULL DEFAULT 'default',
    last_engine TEXT,
    format      INTEGER NOT NULL DEFAULT 1
) STRICT;

-- Freeing an engine's runs, listing and counting live ones: the only index that a step of an owned run touches.
CREATE INDEX run_state_live ON run_state (engine, status)
    WHERE engine IS NOT NULL
        OR (status = 'created' OR status = 'running' OR status = 'suspended' OR status = 'recovering');
-- Runs that can be advanced and have no owner: in the order in which they are claimed; and by root, with the condition
-- written differently, so that the planner does not take one of them for the other.
CREATE INDEX run_state_ready ON run_state (workflow, version, queue, priority DESC, run_no)
    WHERE engine IS NULL AND hold IS NULL AND (status = 'created' OR status = 'running' OR status = 'recovering');
CREATE INDEX run_state_ready_of_root ON run_state (root_no)
    WHERE engine IS NULL AND hold IS NULL
        AND status <> 'suspended' AND status <> 'completed' AND status <> 'failed' AND status <> 'cancelled';
CREATE INDEX run_state_finished ON run_state (status, run_no)
    WHERE status = 'completed' OR status = 'failed' OR status = 'cancelled';
CREATE INDEX run_state_workflow ON run_state (workflow, run_no);
CREATE INDEX run_state_descendants ON run_state (root_no, run_no) WHERE parent_no IS NOT NULL;

CREATE TABLE run_node_state (
    run_no      INTEGER NOT NULL,
    node        TEXT    NOT NULL,
    path        TEXT    NOT NULL,
    visit       INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    output_seq  INTEGER NOT NULL,
    memory_seq  INTEGER NOT NULL,
    not_before  INTEGER NOT NULL,
    captured    BLOB,
    scope       BLOB,
    is_open     INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    PRIMARY KEY (run_no, node, path, visit)
) STRICT;

-- Open rows among any number of closed ones. The first instance of each of the workflow's own nodes is not in it: there
-- are no more of them than the definition has nodes, so that the key finds them, and they are what most steps add.
CREATE INDEX run_node_state_open ON run_node_state (run_no) WHERE is_open = 1 AND (path <> '.' OR visit > 1);

-- A rowid table with an index beside it: appends go to one place, whichever runs they belong to.
CREATE TABLE run_events (
    run_no INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    branch INTEGER NOT NULL,
    type   TEXT    NOT NULL,
    node   TEXT,
    path   TEXT,
    visit  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    token  INTEGER NOT NULL,
    hash   BLOB    NOT NULL,
    data   BLOB    NOT NULL,
    UNIQUE (run_no, seq)
) STRICT;

CREATE TABLE run_branches (
    run_no     INTEGER NOT NULL,
    branch     INTEGER NOT NULL,
    parent     INTEGER,
    cutoff_seq INTEGER NOT NULL,
    key_epoch  INTEGER NOT NULL,
    reason     TEXT    NOT NULL,
    data       BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (run_no, branch)
) STRICT;

CREATE TABLE run_inbox_messages (
    no         INTEGER PRIMARY KEY,
    message_id TEXT    NOT NULL UNIQUE,
    run_no     INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    payload    BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    status     TEXT    NOT NULL,
    outcome    BLOB
) STRICT;

CREATE INDEX run_inbox_messages_new ON run_inbox_messages (run_no) WHERE status = 'new';
CREATE INDEX run_inbox_messages_held ON run_inbox_messages (run_no) WHERE status = 'held';
CREATE INDEX run_inbox_messages_of_run ON run_inbox_messages (run_no);

CREATE TABLE run_waits (
    run_no   INTEGER NOT NULL,
    wait_id  TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    node     TEXT,
    path     TEXT,
    visit    INTEGER NOT NULL,
    branch   INTEGER NOT NULL,
    status   TEXT    NOT NULL,
    since    INTEGER NOT NULL,
    until    INTEGER,
    data     BLOB    NOT NULL,
    basket   TEXT,
    assignee TEXT,
    outcome  TEXT,
    actor    TEXT,
    PRIMARY KEY (run_no, wait_id)
) STRICT;

CREATE INDEX run_waits_open ON run_waits (run_no) WHERE status = 'open';
CREATE INDEX run_waits_for_children ON run_waits (run_no) WHERE status = 'open' AND kind = 'child';
-- Waits for people, by id and by assignee. Waits for timers, signals and children are in none of these.
CREATE INDEX run_waits_of_people ON run_waits (wait_id)
    WHERE kind = 'input' OR kind = 'basket' OR kind = 'pause' OR kind = 'hold';
CREATE INDEX run_waits_asked ON run_waits (since, wait_id)
    WHERE status = 'open' AND (kind = 'input' OR kind = 'basket' OR kind = 'pause' OR kind = 'hold');
CREATE INDEX run_waits_basket ON run_waits (basket, since, wait_id, kind) WHERE basket IS NOT NULL AND status = 'open';
CREATE INDEX run_waits_assignee ON run_waits (assignee, since, wait_id) WHERE assignee IS NOT NULL AND status = 'open';

CREATE TABLE run_timers (
    run_no  INTEGER NOT NULL,
    timer   TEXT    NOT NULL,
    due_at  INTEGER NOT NULL,
    branch  INTEGER NOT NULL,
    status  TEXT    NOT NULL,
    boot    TEXT    NOT NULL DEFAULT '',
    elapsed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_no, timer)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_timers_due ON run_timers (due_at, run_no, timer, boot) WHERE status = 'set';
CREATE INDEX run_timers_lasting ON run_timers (boot, elapsed) WHERE status = 'set' AND boot <> '';
CREATE INDEX run_timers_of_run ON run_timers (run_no) WHERE status = 'set';

CREATE TABLE engines (
    engine      TEXT    PRIMARY KEY,
    host        TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    lock_file   TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    can_run     BLOB    NOT NULL,
    boot        TEXT    NOT NULL DEFAULT '',
    lock_inode  INTEGER NOT NULL DEFAULT 0,
    awake_until INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Slots of the pools that all engines share. They end with the engine.
CREATE TABLE engine_slots (
    pool   TEXT    NOT NULL,
    engine TEXT    NOT NULL,
    held   INTEGER NOT NULL,
    PRIMARY KEY (pool, engine)
) STRICT, WITHOUT ROWID;

CREATE VIEW run_leases (run_id, engine, token, expires_at) AS
    SELECT run_state.run_id, run_state.engine, run_state.token, engines.expires_at
    FROM run_state JOIN engines ON engines.engine = run_state.engine
    WHERE run_state.engine IS NOT NULL;
