-- 0001: everything the first release needs. Never changed after it was released: its checksum is in every database.

CREATE TABLE store_meta (
    only           INTEGER PRIMARY KEY CHECK (only = 1),
    schema_version INTEGER NOT NULL,
    store_id       TEXT    NOT NULL,
    next_run_no    INTEGER NOT NULL
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
    PRIMARY KEY (workflow, version),
    UNIQUE (workflow, hash)
) STRICT;

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
    finished_at INTEGER
) STRICT;

-- Claiming, freeing an engine's runs and counting live ones: the only index that a step of an owned run touches.
CREATE INDEX run_state_live ON run_state (engine, status)
    WHERE engine IS NOT NULL OR status IN ('created', 'running', 'suspended', 'recovering');
CREATE INDEX run_state_finished ON run_state (status, run_no) WHERE status IN ('completed', 'failed', 'cancelled');
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

CREATE INDEX run_node_state_open ON run_node_state (run_no) WHERE is_open = 1;

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

CREATE TABLE run_waits (
    run_no  INTEGER NOT NULL,
    wait_id TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    node    TEXT,
    path    TEXT,
    visit   INTEGER NOT NULL,
    branch  INTEGER NOT NULL,
    status  TEXT    NOT NULL,
    since   INTEGER NOT NULL,
    until   INTEGER,
    data    BLOB    NOT NULL,
    PRIMARY KEY (run_no, wait_id)
) STRICT;

CREATE INDEX run_waits_open ON run_waits (run_no) WHERE status = 'open';

CREATE TABLE run_timers (
    run_no INTEGER NOT NULL,
    timer  TEXT    NOT NULL,
    due_at INTEGER NOT NULL,
    branch INTEGER NOT NULL,
    status TEXT    NOT NULL,
    PRIMARY KEY (run_no, timer)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_timers_due ON run_timers (due_at) WHERE status = 'set';
CREATE INDEX run_timers_of_run ON run_timers (run_no) WHERE status = 'set';

CREATE TABLE engines (
    engine     TEXT    PRIMARY KEY,
    host       TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    lock_file  TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    can_run    BLOB    NOT NULL
) STRICT;

CREATE VIEW run_leases (run_id, engine, token, expires_at) AS
    SELECT run_state.run_id, run_state.engine, run_state.token, engines.expires_at
    FROM run_state JOIN engines ON engines.engine = run_state.engine
    WHERE run_state.engine IS NOT NULL;
