"""Compensations of steps: durable code undoes what its steps did as graphs undo their nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine import rule_inputs
from holdfast.testing import harness
from tests.engine.kit import check_file, check_harness, node_of, url

log: list[Any] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    broken.clear()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.node(retry=hf.Retry(attempts=2, backoff=0))
async def us_unbook(ctx: hf.Context, booking: str | None, city: str, *, why: str = "-") -> None:
    log.append((f"undo {booking} in {city}", ctx.attempt, ctx.idempotency_key))
    if city in broken:
        raise ConnectionError(f"{city} does not answer")


@hf.node(compensate=us_unbook)
async def us_book(city: str, nights: int = 1) -> str:
    log.append(f"book {city}")
    return f"room in {city}"


@hf.node(compensate=us_unbook)
def us_book_in_thread(city: str) -> str:
    return f"thread in {city}"


@hf.node
async def us_strict_undo(booking: str) -> None:
    log.append(f"strictly undo {booking}")


def told() -> list[str]:
    return [entry[0] for entry in log if isinstance(entry, tuple)]


@hf.workflow(on_failure="compensate")
async def us_trip(ctx: hf.Context, cities: list[str]) -> None:
    await ctx.step(us_book, "Oslo")
    await ctx.map(us_book, cities, limit=1)
    await ctx.step(us_book_in_thread, city="Bern")
    await ctx.checkpoint("booked")
    await ctx.step(us_book, "Oslo")
    raise ValueError("no flight")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_completed_steps_are_undone_in_reverse_order_when_durable_code_fails(
    db: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    address = url(db) if kind == "sqlite" else request.getfixturevalue("postgres").url(schema="undoing_steps")
    async with hf.open(address) as engine:
        run = await engine.start(us_trip, cities=["Rome", "Kiel"])
        with pytest.raises(hf.RunFailed, match="no flight") as failed:
            await run.result()
        assert failed.value.others == ()
        nodes = [n for n in await run.nodes() if n["node"].startswith("us_book~undo")]
        assert {n["status"] for n in nodes} == {"completed"}
    cities = ["Oslo", "Bern", "Kiel", "Rome", "Oslo"]
    assert [text.rpartition(" ")[2] for text in told()] == cities
    assert len({entry[2] for entry in log if isinstance(entry, tuple)}) == 5, "each has a key of its own"
    if kind == "sqlite":
        check_file(db)


async def test_a_step_whose_compensation_takes_another_type_is_refused_before_it_acts(db: Path) -> None:
    acts: list[str] = []

    @hf.node
    async def us_number(number: int) -> None: ...

    @hf.node(compensate=us_number)
    async def us_acts() -> str:
        acts.append("acted")
        return "text"

    @hf.workflow(on_failure="compensate")
    async def us_mistyped(ctx: hf.Context) -> None:
        await ctx.step(us_acts)

    async with hf.open(url(db)) as engine:
        run = await engine.start(us_mistyped)
        with pytest.raises(hf.RunFailed, match="its parameter number takes integer, and gets string"):
            await run.result(timeout=30)
    assert acts == []


async def test_nothing_is_undone_where_the_workflow_does_not_say_so_or_the_code_got_over_it(db: Path) -> None:
    @hf.workflow
    async def us_only_fails(ctx: hf.Context) -> None:
        await ctx.step(us_book, "Oslo")
        raise ValueError("no")

    @hf.workflow(on_failure="compensate")
    async def us_gets_over_it(ctx: hf.Context) -> str:
        return await ctx.step(us_book, "Oslo")

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed):
            await (await engine.start(us_only_fails)).result()
        assert await (await engine.start(us_gets_over_it)).result() == "room in Oslo"
    assert told() == []
    check_file(db)


async def test_each_of_several_steps_under_one_key_is_undone(db: Path) -> None:
    @hf.workflow(on_failure="compensate")
    async def us_one_key(ctx: hf.Context) -> None:
        for _ in range(2):
            await ctx.keyed("book").step(us_book, "Oslo")
        raise ValueError("no flight")

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed):
            await (await engine.start(us_one_key)).result()
    assert len({entry[2] for entry in log if isinstance(entry, tuple)}) == len(told()) == 2
    check_file(db)


async def test_steps_of_unknown_outcome_are_undone_first_or_named(db: Path) -> None:
    under_way = asyncio.Event()

    @hf.node(compensate=us_unbook)
    async def us_unsure(city: str) -> str:
        under_way.set()
        await asyncio.Event().wait()
        return "never"

    @hf.node(compensate=us_strict_undo)
    async def us_strict(city: str) -> str:
        await asyncio.Event().wait()
        return "never"

    @hf.workflow(on_failure="compensate")
    async def us_cancelled(ctx: hf.Context) -> None:
        await ctx.step(us_book, "Oslo")
        await asyncio.gather(ctx.step(us_strict, "Bern"), ctx.step(us_unsure, "Rome"))

    async with hf.open(url(db), grace_seconds=0.05) as engine:
        run = await engine.start(us_cancelled)
        await under_way.wait()
        await run.cancel()
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        (other,) = cancelled.value.others
        assert other.node == "us_strict"
    assert told() == ["undo None in Rome", "undo room in Oslo in Oslo"]
    check_file(db)


async def test_a_failed_undo_of_a_step_is_retried_alone_with_its_key(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        broken.add("Kiel")
        run = await engine.start(us_trip, cities=["Rome", "Kiel"], run_id="r")
        with pytest.raises(hf.RunFailed) as failed:
            await run.result()
        (other,) = failed.value.others
        assert other.node == "us_book~undo"
        keys = {entry[2] for entry in log if isinstance(entry, tuple) and entry[0].endswith("Kiel")}
        with pytest.raises(hf.Refused, match="is the compensation of a step of us_trip"):
            await run.fork(f"{other.node}@{other.path}")
    log.clear()
    broken.clear()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await run.retry("us_book~undo")  # of the five the one that failed
        with pytest.raises(hf.RunFailed, match="no flight") as mended:
            await run.result()
        assert mended.value.others == ()
        assert node_of(await run.nodes(), other.node, other.path)["attempt"] == 3
        (entry,) = log
        assert {entry[2]} == keys
        log.clear()
        await run.fork("us_trip")
        with pytest.raises(hf.RunFailed):
            await run.result()
        assert [e for e in log if isinstance(e, str)] == ["book Oslo", "book Rome", "book Kiel", "book Oslo"]
        assert len(told()) == 5, "only what this branch did is undone"
    check_file(db)


async def test_bodies_of_graph_nodes_have_their_steps_undone_too(db: Path) -> None:
    @hf.node(compensate=us_unbook)
    async def us_both(ctx: hf.Context, city: str) -> str:
        return await ctx.step(us_book, f"{city} airport")

    @hf.node
    async def us_fails(rooms: list[str]) -> None:
        raise ValueError("no flight")

    @hf.workflow(on_failure="compensate")
    def us_graph(cities: list[str]) -> None:
        us_fails(hf.map(us_both, cities, limit=1))

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed):
            await (await engine.start(us_graph, cities=["Oslo", "Rome"])).result()
    assert [text.rpartition(" in ")[2] for text in told()] == ["Rome", "Rome airport", "Oslo", "Oslo airport"]
    check_file(db)


async def test_undoing_steps_goes_on_after_crashes_with_the_same_keys() -> None:
    @hf.node
    async def us_slow_undo(ctx: hf.Context, booking: str) -> None:
        log.append((booking, ctx.attempt, ctx.idempotency_key))
        await ctx.sleep(3600)

    @hf.node(compensate=us_slow_undo)
    async def us_slow(city: str) -> str:
        return city

    @hf.workflow(on_failure="compensate")
    async def us_crashing(ctx: hf.Context) -> None:
        for city in ("Oslo", "Rome"):
            await ctx.step(us_slow, city)
        raise ValueError("no flight")

    async with harness() as h:
        run = await h.start(us_crashing)
        for _ in range(2):
            await h.crash()
            await h.advance(hours=1)
            await h.crash()
        await h.advance(hours=2)
        with pytest.raises(hf.RunFailed):
            await run.result()
        check_harness(h)
    assert list(dict.fromkeys(entry[0] for entry in log)) == ["Rome", "Oslo"]
    assert len({entry[2] for entry in log}) == 2


def _undone_by(undo: Any, *, in_graph: bool) -> Any:
    """A workflow that fails, with one node that is undone: as a step, or as a node of a graph."""

    @hf.node(compensate=undo)
    async def us_done() -> str:
        return "done"

    @hf.node
    async def us_fail(_done: str) -> None:
        raise ValueError("no flight")

    @hf.workflow(on_failure="compensate")
    async def us_in_code(ctx: hf.Context) -> None:
        await ctx.step(us_fail, await ctx.step(us_done))

    @hf.workflow(on_failure="compensate")
    def us_in_graph() -> None:
        us_fail(us_done())

    return us_in_graph if in_graph else us_in_code


@pytest.mark.parametrize("in_graph", [False, True])
async def test_a_compensation_has_the_timeout_of_its_node(db: Path, in_graph: bool) -> None:
    @hf.node(timeout=0.05, retry=hf.Retry(attempts=2, backoff=0))
    async def us_hangs(ctx: hf.Context, _done: str) -> None:
        log.append(ctx.attempt)
        await asyncio.Event().wait()

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="no flight") as failed:
            await (await engine.start(_undone_by(us_hangs, in_graph=in_graph))).result(timeout=30)
    (other,) = failed.value.others
    assert "us_done~undo ran longer than its timeout of 0.05 s" in other.message
    assert log == [1, 2]
    check_file(db)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("on_crash", ["fail", "ask"])
async def test_a_compensation_that_was_cut_off_is_repeated_only_if_its_node_allows_it(
    in_graph: bool, on_crash: Any
) -> None:
    @hf.node(on_crash=on_crash)
    async def us_once(ctx: hf.Context, _done: str) -> None:
        log.append(ctx.attempt)
        await asyncio.Event().wait()

    async with harness() as h:
        run = await h.start(_undone_by(us_once, in_graph=in_graph))
        await h.advance(seconds=1)
        assert log == [1]
        await h.crash()
        if on_crash == "ask":
            await h.advance(seconds=1)
            (wait,) = await run.waits()
            await run.respond(wait.wait_id, {"done": True})
        with pytest.raises(hf.RunFailed, match="no flight") as failed:
            await run.result()
        check_harness(h)
    assert [other.code for other in failed.value.others] == (["outcome_unknown"] if on_crash == "fail" else [])
    assert log == [1]


async def test_very_many_steps_are_undone_in_portions(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_inputs, "UNDO_PORTION", 3)
    async with hf.open(url(db)) as engine:
        run = await engine.start(us_trip, cities=[f"c{n}" for n in range(8)])
        with pytest.raises(hf.RunFailed):
            await run.result()
    assert [text.rpartition(" ")[2] for text in told()] == [
        "Oslo", "Bern", *(f"c{n}" for n in reversed(range(8))), "Oslo",
    ]  # fmt: skip
    check_file(db)
