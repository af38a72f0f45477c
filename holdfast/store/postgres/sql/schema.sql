-- The schema of a Holdfast database on PostgreSQL. Applied as migration 1 until the schema first changes after the
-- first
-- release (see sql_files.py).
--
-- The schema's name is that of the address; `holdfast` stands for it in all these files.
-- Payloads are bytea. Instants are microseconds since 1970, UTC. A run is its number inside and its text id once. No
-- foreign keys: rows of one commit are written together, and the fence on run_state decides whether they may.
-- Text is compared byte by byte (collation C), so that order and prefixes mean the same everywhere, as on SQLite.
-- Indexes are partial where they can be, so that what costs nothing to a live run stays flat with many finished ones.
-- Room is left on the pages of rows that every step changes, so that no index is touched by it.

-- A text in a payload. Escaped NULs are replaced: PostgreSQL would refuse a document that has one anywhere.
CREATE FUNCTION holdfast.json_text(document bytea, VARIADIC path text[]) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT replace(convert_from(document, 'UTF8'), '\u0000', '\u0001')::json #>> path $$;

CREATE TABLE holdfast.store_meta (
    single         integer PRIMARY KEY CHECK (single = 1),
    schema_version bigint  NOT NULL,
    store_id       text    NOT NULL,
    next_run_no    bigint  NOT NULL,
    epoch          bigint  NOT NULL DEFAULT 1,
    closed         text    NOT NULL DEFAULT ''
);

CREATE TABLE holdfast.store_migrations (
    number   bigint PRIMARY KEY,
    name     text   NOT NULL,
    checksum text   NOT NULL
);

CREATE TABLE holdfast.workflow_versions (
    workflow   text   COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    hash       text   COLLATE "C" NOT NULL,
    definition bytea  NOT NULL,
    created_at bigint NOT NULL,
    code       bytea  NOT NULL DEFAULT '',
    retired_at bigint,
    PRIMARY KEY (workflow, version),
    UNIQUE (workflow, hash)
);

-- The history of aliases, never changed. The last move of an alias says where it points; without `target`: nowhere.
CREATE TABLE holdfast.alias_moves (
    workflow text   COLLATE "C" NOT NULL,
    alias    text   COLLATE "C" NOT NULL,
    no       bigint NOT NULL,
    target   bytea,
    at       bigint NOT NULL,
    actor    text   NOT NULL,
    reason   text   NOT NULL,
    PRIMARY KEY (workflow, alias, no)
);

CREATE TABLE holdfast.run_state (
    run_no      bigint PRIMARY KEY,
    run_id      text   COLLATE "C" NOT NULL UNIQUE,
    workflow    text   COLLATE "C" NOT NULL,
    version     bigint NOT NULL,
    status      text   COLLATE "C" NOT NULL,
    branch      bigint NOT NULL,
    last_seq    bigint NOT NULL,
    head_hash   bytea  NOT NULL,
    token       bigint NOT NULL,
    engine      text   COLLATE "C",
    fold        bytea,
    input_hash  text   NOT NULL,
    parent_no   bigint,
    root_no     bigint NOT NULL,
    priority    bigint NOT NULL,
    recoveries  bigint NOT NULL,
    hold        text,
    created_at  bigint NOT NULL,
    started_at  bigint,
    finished_at bigint,
    queue       text   COLLATE "C" NOT NULL DEFAULT 'default',
    last_engine text   COLLATE "C",
    format      bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 60);

-- Listing what waits. Apart from the runs that are owned: PostgreSQL does not take `engine IS NULL` for a
-- fixed value when it looks for an order.
CREATE INDEX run_state_free ON holdfast.run_state (status, run_no)
    WHERE engine IS NULL AND status IN ('created', 'running', 'suspended', 'recovering');
-- Runs that can be advanced and have no owner: in the order in which they are claimed; and by root, with the condition
-- written differently, so that the planner does not take one of them for the other.
CREATE INDEX run_state_ready ON holdfast.run_state (workflow, version, queue, priority DESC, run_no)
    WHERE engine IS NULL AND hold IS NULL AND status IN ('created', 'running', 'recovering');
CREATE INDEX run_state_ready_of_root ON holdfast.run_state (root_no)
    WHERE engine IS NULL AND hold IS NULL AND status NOT IN ('suspended', 'completed', 'failed', 'cancelled');
-- Freeing an engine's runs.
CREATE INDEX run_state_owned ON holdfast.run_state (engine, status, run_no) WHERE engine IS NOT NULL;
CREATE INDEX run_state_finished ON holdfast.run_state (status, run_no)
    WHERE status IN ('completed', 'failed', 'cancelled');
CREATE INDEX run_state_workflow ON holdfast.run_state (workflow, run_no);
CREATE INDEX run_state_descendants ON holdfast.run_state (root_no, run_no) WHERE parent_no IS NOT NULL;

-- `no` is the order of first scheduling.
CREATE TABLE holdfast.run_node_state (
    run_no      bigint NOT NULL,
    node        text   COLLATE "C" NOT NULL,
    path        text   COLLATE "C" NOT NULL,
    visit       bigint NOT NULL,
    status      text   COLLATE "C" NOT NULL,
    attempt     bigint NOT NULL,
    failures    bigint NOT NULL,
    output_seq  bigint NOT NULL,
    memory_seq  bigint NOT NULL,
    not_before  bigint NOT NULL,
    captured    bytea,
    scope       bytea,
    is_open     bigint NOT NULL,
    started_at  bigint,
    finished_at bigint,
    no          bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (run_no, node, path, visit)
) WITH (fillfactor = 70);

CREATE INDEX run_node_state_open ON holdfast.run_node_state (run_no) WHERE is_open = 1;

CREATE TABLE holdfast.run_events (
    run_no bigint NOT NULL,
    seq    bigint NOT NULL,
    branch bigint NOT NULL,
    type   text   COLLATE "C" NOT NULL,
    node   text   COLLATE "C",
    path   text   COLLATE "C",
    visit  bigint NOT NULL,
    at     bigint NOT NULL,
    token  bigint NOT NULL,
    hash   bytea  NOT NULL,
    data   bytea  NOT NULL,
    PRIMARY KEY (run_no, seq)
);

CREATE TABLE holdfast.run_branches (
    run_no     bigint NOT NULL,
    branch     bigint NOT NULL,
    parent     bigint,
    cutoff_seq bigint NOT NULL,
    key_epoch  bigint NOT NULL,
    reason     text   NOT NULL,
    origin_no  bigint,
    created_at bigint NOT NULL,
    PRIMARY KEY (run_no, branch)
);

CREATE TABLE holdfast.run_inbox_messages (
    no         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id text   COLLATE "C" NOT NULL UNIQUE,
    run_no     bigint NOT NULL,
    kind       text   COLLATE "C" NOT NULL,
    payload    bytea  NOT NULL,
    created_at bigint NOT NULL,
    status     text   COLLATE "C" NOT NULL,
    outcome    bytea
) WITH (fillfactor = 80);

CREATE INDEX run_inbox_messages_new ON holdfast.run_inbox_messages (run_no) WHERE status = 'new';
CREATE INDEX run_inbox_messages_held ON holdfast.run_inbox_messages (run_no) WHERE status = 'held';
CREATE INDEX run_inbox_messages_of_run ON holdfast.run_inbox_messages (run_no);

-- `no` is the order in which they were opened.
CREATE TABLE holdfast.run_waits (
    run_no   bigint NOT NULL,
    wait_id  text   COLLATE "C" NOT NULL,
    kind     text   COLLATE "C" NOT NULL,
    node     text   COLLATE "C",
    path     text   COLLATE "C",
    visit    bigint NOT NULL,
    branch   bigint NOT NULL,
    status   text   COLLATE "C" NOT NULL,
    since    bigint NOT NULL,
    until    bigint,
    data     bytea  NOT NULL,
    basket   text   COLLATE "C",
    assignee text   COLLATE "C",
    outcome  text,
    actor    text,
    no       bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (run_no, wait_id)
);

CREATE INDEX run_waits_open ON holdfast.run_waits (run_no) WHERE status = 'open';
CREATE INDEX run_waits_for_children ON holdfast.run_waits (run_no) WHERE status = 'open' AND kind = 'child';
-- Waits for people, by id and by assignee. Waits for timers, signals and children are in none of these.
CREATE INDEX run_waits_of_people ON holdfast.run_waits (wait_id, no)
    WHERE kind IN ('input', 'basket', 'pause', 'hold');
CREATE INDEX run_waits_asked ON holdfast.run_waits (since, wait_id)
    WHERE status = 'open' AND kind IN ('input', 'basket', 'pause', 'hold');
CREATE INDEX run_waits_basket ON holdfast.run_waits (basket, since, wait_id, kind)
    WHERE basket IS NOT NULL AND status = 'open';
CREATE INDEX run_waits_assignee ON holdfast.run_waits (assignee, since, wait_id)
    WHERE assignee IS NOT NULL AND status = 'open';

CREATE TABLE holdfast.run_timers (
    run_no  bigint NOT NULL,
    timer   text   COLLATE "C" NOT NULL,
    due_at  bigint NOT NULL,
    branch  bigint NOT NULL,
    status  text   COLLATE "C" NOT NULL,
    boot    text   NOT NULL DEFAULT '',
    elapsed bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_no, timer)
);

CREATE INDEX run_timers_due ON holdfast.run_timers (due_at, run_no, timer) WHERE status = 'set';
CREATE INDEX run_timers_of_run ON holdfast.run_timers (run_no) WHERE status = 'set';

CREATE TABLE holdfast.engines (
    engine      text   COLLATE "C" PRIMARY KEY,
    host        text   NOT NULL,
    pid         bigint NOT NULL,
    lock_file   text   NOT NULL,
    started_at  bigint NOT NULL,
    expires_at  bigint NOT NULL,
    can_run     bytea  NOT NULL,
    boot        text   NOT NULL DEFAULT '',
    lock_inode  bigint NOT NULL DEFAULT 0,
    awake_until bigint NOT NULL DEFAULT 0
);

-- Slots of the pools that all engines share. They end with the engine.
CREATE TABLE holdfast.engine_slots (
    pool   text   COLLATE "C" NOT NULL,
    engine text   COLLATE "C" NOT NULL,
    held   bigint NOT NULL,
    PRIMARY KEY (pool, engine)
);

CREATE VIEW holdfast.run_leases (run_id, engine, token, expires_at) AS
    SELECT r.run_id, r.engine, r.token, e.expires_at
    FROM holdfast.run_state AS r JOIN holdfast.engines AS e ON e.engine = r.engine
    WHERE r.engine IS NOT NULL;
