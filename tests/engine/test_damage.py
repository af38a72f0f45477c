"""Damaged journals: what is read is checked, a damaged run is put on hold, and its neighbours go on."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model import journal_format
from holdfast.model.errors import CorruptJournal, Refused, StoreDamaged
from holdfast.store.row_types import EventRow, RunRow
from tests.engine.kit import until, url

ACTED: Counter[str] = Counter()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(autouse=True)
def _acted() -> None:
    ACTED.clear()


@hf.node
async def undo_price(price: int) -> None:
    ACTED["undone"] += 1


@hf.node(compensate=undo_price)
async def dam_price() -> int:
    ACTED["priced"] += 1
    return 150


@hf.node
async def dam_charge(amount: int, ok: bool) -> str:
    ACTED["charged"] += 1
    return f"charged {amount}"


@hf.node
def dam_charge_in_thread(amount: int, ok: bool) -> str:
    ACTED["charged"] += 1
    return f"charged {amount}"


@hf.node
async def dam_each(number: int) -> int:
    return number + 150


@hf.node
async def dam_sum(numbers: list[int], ok: bool) -> int:
    ACTED["charged"] += 1
    return sum(numbers)


@hf.node
async def dam_set(ctx: hf.Context) -> None:
    ctx.vars["limit"] = 150


@hf.node
async def dam_read(ctx: hf.Context, ok: bool) -> int:
    limit: int = ctx.vars["limit"]
    ACTED["charged"] += 1
    return limit


@hf.node
def dam_read_in_thread(ctx: hf.SyncContext, ok: bool) -> int:
    limit: int = ctx.vars["limit"]
    ACTED["charged"] += 1
    return limit


@hf.workflow
def dam_graph() -> Any:
    price = dam_price()
    return dam_charge(price, hf.ask("go?", schema=bool))


@hf.workflow
def dam_thread() -> Any:
    price = dam_price()
    return dam_charge_in_thread(price, hf.ask("go?", schema=bool))


@hf.workflow
def dam_map() -> Any:
    return dam_sum(hf.map(dam_each, [0, 1]), hf.ask("go?", schema=bool))


@hf.workflow
def dam_result() -> Any:
    return {"price": dam_price(), "ok": hf.ask("go?", schema=bool)}


@hf.workflow(variables={"limit": int})
def dam_variable() -> Any:
    dam_set()
    return dam_read(hf.ask("go?", schema=bool))


@hf.workflow(variables={"limit": int})
def dam_variable_in_thread() -> Any:
    dam_set()
    return dam_read_in_thread(hf.ask("go?", schema=bool))


@hf.workflow
def dam_input(amount: int) -> Any:
    return dam_charge(amount, hf.ask("go?", schema=bool))


@hf.workflow
async def dam_code(ctx: hf.Context) -> Any:
    price = await ctx.step(dam_price)
    ok = await ctx.ask("go?", schema=bool)
    return await ctx.step(dam_charge, price, ok)


@contextlib.contextmanager
def writing(db: Path) -> Iterator[apsw.Cursor]:
    """The database as a foreign writer sees it, or the disk."""
    connection = apsw.Connection(str(db))
    try:
        yield connection.cursor()
    finally:
        connection.close(True)


async def waiting(db: Path, workflow: Any, **inputs: Any) -> None:
    """A run `r` that waits for an answer, of which nothing is in memory any more."""
    async with hf.open(url(db)) as engine:
        run = await engine.start(workflow, run_id="r", **inputs)
        await until(lambda: engine.store.asked(), "it asks")
        assert run.run_id == "r"


async def answered(engine: Engine, run_id: str = "r") -> Run[Any]:
    run = engine.get(run_id)
    (wait,) = await run.waits()
    await run.respond(wait.wait_id, True)
    return run


async def held(engine: Engine, run_id: str = "r") -> RunRow:
    """The run, once it is on hold."""

    def look() -> RunRow | None:
        row = engine.store.run(run_id)
        return row if row is not None and row.hold is not None and row.engine is None else None

    found: RunRow = await until(look, "it is put on hold")
    return found


FLIPS = [
    pytest.param(dam_graph, {}, "NodeCompleted", b'"output":150', b'"output":950', id="argument"),
    pytest.param(dam_graph, {}, "NodeCompleted", b'"output":150', b'boutput":150', id="json"),
    pytest.param(dam_thread, {}, "NodeCompleted", b'"output":150', b'"output":950', id="argument_of_a_thread"),
    pytest.param(dam_map, {}, "NodeCompleted", b'"output":150', b'"output":950', id="item_of_a_map"),
    pytest.param(dam_result, {}, "NodeCompleted", b'"output":150', b'"output":950', id="result"),
    pytest.param(dam_variable, {}, "NodeCompleted", b'"limit":150', b'"limit":950', id="variable"),
    pytest.param(dam_variable_in_thread, {}, "NodeCompleted", b'"limit":150', b'"limit":950', id="variable_in_thread"),
    pytest.param(dam_input, {"amount": 150}, "RunCreated", b'"amount":150', b'"amount":950', id="input"),
    pytest.param(dam_code, {}, "StepCompleted", b'"output":150', b'"output":950', id="remembered_step"),
    pytest.param(dam_code, {}, "StepCompleted", b'"output":150', b'boutput":150', id="remembered_json"),
]


@pytest.mark.parametrize(("workflow", "inputs", "kind", "was", "becomes"), FLIPS)
async def test_flipped_bit_holds_the_run_and_is_never_used(
    db: Path, workflow: Any, inputs: dict[str, Any], kind: str, was: bytes, becomes: bytes
) -> None:
    await waiting(db, workflow, **inputs)
    with writing(db) as cursor:
        find = "SELECT seq, data FROM run_events WHERE type = ? AND instr(data, ?) > 0 ORDER BY seq LIMIT 1"
        ((seq, data),) = list(cursor.execute(find, (kind, was)))
        cursor.execute("UPDATE run_events SET data = ? WHERE seq = ?", (data.replace(was, becomes), seq))
    async with hf.open(url(db)) as engine:
        neighbour = await engine.start(dam_graph, run_id="neighbour")
        run = await answered(engine)
        row = await held(engine)
        assert row.hold is not None
        assert row.hold.startswith(f"corrupt: event {seq} ({kind}) of run r is not the one that was written")
        kinds = {event.type for event in await run.events()}
        assert kinds.isdisjoint({"NodeFailed", "RunFailed", "RunCompleted", "StepFailed"})
        with pytest.raises(Refused, match=r"doctor r --deep.*db restore.*fork r --at"):
            await engine.resume("r")
        assert (await held(engine)).last_seq == row.last_seq, "nothing is appended to a damaged journal"
        await until(lambda: engine.store.asked(), "the neighbour asks")
        await answered(engine, "neighbour")
        assert await neighbour.result(timeout=20) == "charged 150"
    assert ACTED["charged"] == 1, "the neighbour's"
    assert ACTED["undone"] == 0, "a damaged journal is no reason to undo anything"


def exchange(db: Path, kind: str, was: str, becomes: str) -> None:
    """Change the data of all events of a type, and nothing else."""
    with writing(db) as cursor:
        changed = "CAST(replace(CAST(data AS TEXT), ?, ?) AS BLOB)"
        cursor.execute(f"UPDATE run_events SET data = {changed} WHERE type = ?", (was, becomes, kind))  # noqa: S608


async def test_run_is_resumed_once_its_journal_is_in_order_again(db: Path) -> None:
    await waiting(db, dam_graph)
    exchange(db, "NodeCompleted", "150", "950")
    async with hf.open(url(db)) as engine:
        run = await answered(engine)
        await held(engine)
        exchange(db, "NodeCompleted", "950", "150")
        await engine.resume("r")
        assert await run.result(timeout=20) == "charged 150"
    assert ACTED["priced"] == 1


def rewrite(db: Path, change: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Replace the types of events, and add fields to them, as another version of Holdfast would have written them: the
    chain is intact."""
    with writing(db) as cursor:
        columns = ", ".join(EventRow._fields)
        rows = [EventRow._make(row) for row in cursor.execute(f"SELECT {columns} FROM run_events ORDER BY seq")]  # noqa: S608
        previous = b""
        for row in rows:
            kind, fields = change.get(row.type, (row.type, {}))
            data = msgspec.json.encode({**msgspec.json.decode(row.data), **fields}) if fields else row.data
            previous = journal_format.link(previous, "r", row.seq, row.branch, kind, *row[4:9], data)
            cursor.execute(
                "UPDATE run_events SET type = ?, data = ?, hash = ? WHERE seq = ?", (kind, data, previous, row.seq)
            )
        cursor.execute("UPDATE run_state SET head_hash = ?", (previous,))


@pytest.mark.parametrize("workflow", [dam_graph, dam_code])
@pytest.mark.parametrize("newer", [("2", {}), ("", {"since_version_9": True})], ids=["type", "field"])
async def test_run_with_an_event_that_is_not_known_here_is_held_and_nothing_of_it_acts(
    db: Path, workflow: Any, newer: tuple[str, dict[str, Any]]
) -> None:
    await waiting(db, workflow)
    suffix, fields = newer
    rewrite(db, {kind: (kind + suffix, fields) for kind in ("StepCompleted", "NodeCompleted")})
    async with hf.open(url(db)) as engine:
        run = await answered(engine)
        row = await held(engine)
        assert row.hold is not None
        assert row.hold.startswith("newer_format: ")
        assert "upgrade" in row.hold
        with pytest.raises(Refused, match="upgrade"):
            await engine.resume("r")
        seen = {event.type for event in await run.events() if event.unknown}
        assert seen <= {"StepCompleted" + suffix, "NodeCompleted" + suffix}
        assert seen, "reading verbs mark what they do not know"
        assert (await run.show())["status"] == "suspended"
    assert ACTED == {"priced": 1}, "a completed step does not run again, and nothing is undone"


async def test_damaged_page_under_one_run_holds_it_when_it_is_claimed_and_others_are_loaded(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        runs = [await engine.start(dam_code, run_id=name) for name in ("one", "two", "three")]
        await until(lambda: len(engine.store.asked()) == 3 and not engine.actors, "all wait, and none is in memory")
        open_nodes, damaged = engine.store.open_nodes, engine.store.run("two")
        assert damaged is not None

        def broken(numbers: Any) -> Any:
            if damaged.run_no in numbers:
                raise StoreDamaged("a page is no page")
            return open_nodes(numbers)

        monkeypatch.setattr(engine.store, "open_nodes", broken)
        numbers = [row.run_no for row in engine.store.runs()]
        await engine.claims.claim(numbers)
        assert (await held(engine, "two")).hold == "corrupt: a page is no page"
        monkeypatch.undo()
        for run in (runs[0], runs[2]):
            await answered(engine, run.run_id)
            assert await run.result(timeout=20) == "charged 150"


async def test_result_that_was_changed_is_not_returned(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(dam_input, run_id="r", amount=150)
        await until(lambda: engine.store.asked(), "it asks")
        await answered(engine)
        assert await run.result(timeout=20) == "charged 150"
    exchange(db, "RunCompleted", "150", "950")
    async with hf.open(url(db)) as engine:
        with pytest.raises(CorruptJournal, match=r"event \d+ \(RunCompleted\) of run r is not the one"):
            await engine.get("r").result(timeout=20)
        shown = await engine.get("r").show()
        assert shown["error"]["code"] == "corrupt"


async def test_damaged_run_is_forked_before_the_damage_and_is_not_touched_itself(db: Path) -> None:
    await waiting(db, dam_code)
    exchange(db, "WaitOpened", "go?", "no?")
    async with hf.open(url(db)) as engine:
        await engine.claims.claim([row.run_no for row in engine.store.runs()])
        events = await engine.get("r").events()
        (before,) = [event.seq for event in events if event.type == "StepCompleted"]
        with pytest.raises(CorruptJournal, match="is not the one that was written"):
            await engine.get("r").fork(at=before)  # a branch of its own would be appended to the damaged journal
        fork = await engine.get("r").fork(at=before, as_run="again")
        await until(lambda: [asked for asked in engine.store.asked() if asked.run_id == "again"], "the fork asks")
        await answered(engine, "again")
        assert await fork.result(timeout=20) == "charged 150"
        assert await engine.get("r").events() == events
    assert ACTED["priced"] == 1, "what the fork shares does not run again"


async def test_damaged_end_of_a_child_does_not_keep_an_engine_from_its_other_runs(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(dam_result, run_id="r")
        await until(lambda: engine.store.asked(), "it asks")
        await answered(engine)
        assert await run.result(timeout=20) == {"price": 150, "ok": True}
        exchange(db, "RunCompleted", "150", "950")
        row = engine.store.run("r")
        assert row is not None
        monkeypatch.setattr(engine.store, "waits_for_ended", lambda page: ([(row.run_no, "r")], 0))
        neighbour = await engine.start(dam_input, run_id="neighbour", amount=1)
        await engine.claims.sweep()
        await until(lambda: engine.store.asked(), "the neighbour asks")
        await answered(engine, "neighbour")
        assert await neighbour.result(timeout=20) == "charged 1"
