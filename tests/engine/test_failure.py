"""What happens around a failure: continue, compensate, maps that collect, and how a run is closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import attempts, check_file, node_of, types, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def log() -> list[str]:
    _log.clear()
    return _log


_log: list[str] = []


@hf.node
async def boom() -> str:
    _log.append("boom")
    raise ValueError("boom")


@hf.node
async def fine() -> str:
    _log.append("fine")
    return "fine"


@hf.node
async def needs(x: str) -> str:
    _log.append(f"needs {x}")
    return x


async def test_the_first_failure_stops_running_siblings_and_starts_nothing_new(db: Path, log: list[str]) -> None:
    began = asyncio.Event()

    @hf.node
    async def sibling() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("sibling stopped")

    @hf.node
    async def late_boom() -> None:
        await began.wait()
        raise ValueError("boom")

    @hf.workflow
    def fails():
        a, b = sibling(), late_boom()
        return needs(hf.text("{}{}", a, b))

    async with hf.open(url(db)) as engine:
        run = await engine.start(fails)
        with pytest.raises(hf.RunFailed, match="boom") as caught:
            await run.result()
        assert caught.value.error.node == "late_boom"
        assert node_of(await run.nodes(), "sibling")["status"] == "cancelled"
    assert log == ["sibling stopped"]
    check_file(db)


async def test_continue_finishes_the_rest_skips_dependents_and_fails_at_the_end(db: Path, log: list[str]) -> None:
    @hf.workflow(on_failure="continue")
    def goes_on():
        bad = boom()
        return [needs.named("dependent")(bad), needs.named("independent")(fine())]

    async with hf.open(url(db)) as engine:
        run = await engine.start(goes_on)
        with pytest.raises(hf.RunFailed, match="boom"):
            await run.result()
        nodes = await run.nodes()
        assert {n["node"]: n["status"] for n in nodes} == {
            "boom": "failed",
            "fine": "completed",
            "dependent": "skipped",
            "independent": "completed",
        }
    assert log == ["boom", "fine", "needs fine"]
    check_file(db)


def _undo_workflow(log: list[str], on_failure: str = "compensate") -> Any:
    @hf.node
    async def undo(output: str) -> None:
        log.append(f"undo {output}")

    @hf.node(compensate=undo)
    async def act(name: str, after: Any = None) -> str:
        log.append(f"do {name}")
        return name

    @hf.node
    async def fail(x: Any) -> None:
        raise ValueError("no")

    @hf.workflow(on_failure=on_failure, name=f"undo_{on_failure}")
    def trip():
        a = act.named("flight")("flight")
        b = act.named("hotel")("hotel", a)
        c = act.named("car")("car", b)
        return fail(c)

    return trip


async def test_compensations_run_one_at_a_time_in_reverse_order_with_the_output_they_undo(
    db: Path, log: list[str]
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(_undo_workflow(log))
        with pytest.raises(hf.RunFailed, match="no"):
            await run.result()
        assert [n["node"] for n in await run.nodes() if n["node"].endswith("~undo")] == [
            "car~undo",
            "hotel~undo",
            "flight~undo",
        ]
    assert log == ["do flight", "do hotel", "do car", "undo car", "undo hotel", "undo flight"]
    check_file(db)


async def test_compensations_run_on_cancel_too(db: Path, log: list[str]) -> None:
    began = asyncio.Event()

    @hf.node
    async def undo(output: str) -> None:
        log.append(f"undo {output}")

    @hf.node(compensate=undo)
    async def book() -> str:
        return "seat"

    @hf.node
    async def waits(x: str) -> None:
        began.set()
        await asyncio.Event().wait()

    @hf.workflow(on_failure="compensate")
    def cancelled_trip():
        return waits(book())

    async with hf.open(url(db)) as engine:
        run = await engine.start(cancelled_trip)
        await began.wait()
        await run.cancel("changed my mind")
        with pytest.raises(hf.RunCancelled, match="changed my mind"):
            await run.result()
    assert log == ["undo seat"]
    check_file(db)


async def test_a_cancelled_run_names_what_could_not_be_undone(db: Path) -> None:
    began = asyncio.Event()

    @hf.node
    async def undo_never(output: str) -> None:
        raise RuntimeError("cannot")

    @hf.node(compensate=undo_never)
    async def book() -> str:
        return "seat"

    @hf.node(compensate=undo_never)
    async def pay(seat: str) -> str:
        began.set()
        await asyncio.Event().wait()
        return seat

    @hf.workflow(on_failure="compensate")
    def half_undone_trip():
        return pay(book())

    async with hf.open(url(db)) as engine:
        run = await engine.start(half_undone_trip)
        await began.wait()
        await run.cancel("changed my mind")
        with pytest.raises(hf.RunCancelled) as cancelled:
            await run.result()
        assert [(other.node, other.code) for other in cancelled.value.others] == [
            ("book~undo", "error"),
            ("pay", "outcome_unknown"),
        ]
        assert [other["node"] for other in (await run.show())["others"]] == ["book~undo", "pay"]
    check_file(db)


async def test_a_compensation_has_its_own_retries_and_its_failure_does_not_stop_the_others(
    db: Path, log: list[str]
) -> None:
    @hf.node(retry=hf.Retry(attempts=3, backoff=0))
    async def undo_flaky(ctx: hf.Context, output: str) -> None:
        log.append(f"undo {output} {ctx.attempt}")
        if ctx.attempt < 2:
            raise OSError("again")

    @hf.node
    async def undo_never(output: str) -> None:
        log.append(f"undo {output}")
        raise RuntimeError("cannot")

    @hf.node(compensate=undo_flaky)
    async def one() -> str:
        return "one"

    @hf.node(compensate=undo_never)
    async def two(x: str) -> str:
        return "two"

    @hf.node
    async def fail(x: str) -> None:
        raise ValueError("no")

    @hf.workflow(on_failure="compensate")
    def stubborn():
        return fail(two(one()))

    async with hf.open(url(db)) as engine:
        run = await engine.start(stubborn)
        with pytest.raises(hf.RunFailed, match="no") as failed:
            await run.result()
        assert [other.node for other in failed.value.others] == ["two~undo"]
        others = (await run.show())["others"]
        assert len(others) == 1
        assert "cannot" in others[0]["message"]
        assert others[0]["node"] == "two~undo"
    assert log == ["undo two", "undo one 1", "undo one 2"]
    check_file(db)


async def test_an_attempt_of_unknown_outcome_is_undone_first_if_its_compensation_takes_none(
    db: Path, log: list[str]
) -> None:
    began = asyncio.Event()

    @hf.node
    async def undo(output: str | None) -> None:
        log.append(f"undo {output}")

    @hf.node(compensate=undo)
    async def sure() -> str:
        return "sure"

    @hf.node(compensate=undo)
    async def unsure(x: str) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    @hf.workflow(on_failure="compensate")
    def doubtful():
        return unsure(sure())

    async with hf.open(url(db)) as engine:
        run = await engine.start(doubtful)
        await began.wait()
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
    assert log == ["undo None", "undo sure"]
    check_file(db)


async def test_a_compensation_gets_the_inputs_that_its_parameters_are_named_like(db: Path, log: list[str]) -> None:
    @hf.node
    async def free(seat: str | None, flight: dict[str, Any], *, passenger: str, why: str = "no reason") -> None:
        log.append(f"free {seat} of {flight['no']} for {passenger}: {why}")

    @hf.node(compensate=free)
    async def take(passenger: str, flight: dict[str, Any], row: int = 7) -> str:
        if passenger == "eve":
            await asyncio.Event().wait()
        return f"seat {row}{passenger[0]}"

    @hf.node
    async def plan(n: int) -> dict[str, Any]:
        return {"no": f"HF{n}", "passengers": ["ada", "bob"]}

    @hf.node
    async def bill(seats: Any) -> None:
        raise ValueError("no money")

    @hf.workflow(on_failure="compensate")
    def flights(n: int) -> None:
        flight = plan(n)
        seats = hf.map(take, flight["passengers"], flight=flight, limit=1)
        take.named("unsure")("eve", flight, 1)
        bill(seats)

    async with hf.open(url(db), grace_seconds=0.01) as engine:
        with pytest.raises(hf.RunFailed, match="no money"):
            await (await engine.start(flights, n=1, run_id="r")).result()
        before, log[:] = list(log), []
        await engine.get("r").fork("start", edits={"input": {"n": 2}})
        with pytest.raises(hf.RunFailed):
            await engine.get("r").result()
    told = ["free None of HF1 for eve", "free seat 7b of HF1 for bob", "free seat 7a of HF1 for ada"]
    assert before == [f"{text}: no reason" for text in told]
    assert log == [text.replace("HF1", "HF2") for text in before], "each branch undoes what it did itself"
    check_file(db)


async def test_compensation_goes_on_after_the_engine_was_left_in_the_middle(db: Path, log: list[str]) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @hf.node
    async def undo(ctx: hf.Context, output: str) -> None:
        log.append(f"undo {output} {ctx.attempt}")
        if output == "two" and not release.is_set():
            began.set()
            await asyncio.Event().wait()

    @hf.node(compensate=undo)
    async def act(name: str, after: Any = None) -> str:
        return name

    @hf.node
    async def fail(x: Any) -> None:
        raise ValueError("no")

    @hf.workflow(on_failure="compensate")
    def interrupted():
        a = act.named("one")("one")
        b = act.named("two")("two", a)
        c = act.named("three")("three", b)
        return fail(c)

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(interrupted, run_id="r")
        await began.wait()
    release.set()
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="no"):
            await engine.get("r").result()
        assert node_of(await engine.get("r").nodes(), "two~undo")["attempt"] == 1
    assert log == ["undo three 1", "undo two 1", "undo two 1", "undo one 1"]
    check_file(db)


async def test_a_map_fails_with_its_first_failed_item_and_cancels_the_running_ones(db: Path, log: list[str]) -> None:
    running = asyncio.Event()

    @hf.node
    async def item(i: int) -> int:
        if i == 0:
            await running.wait()
            raise ValueError("item 0")
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append(f"stopped {i}")
        return i

    @hf.workflow
    def mapped():
        return hf.map(item, [0, 1, 2, 3, 4], limit=2)

    async with hf.open(url(db)) as engine:
        run = await engine.start(mapped)
        with pytest.raises(hf.RunFailed, match="item 0"):
            await run.result()
        assert len(attempts(await run.events(), "item", ".item.2.")) == 0
    assert log == ["stopped 1"]
    check_file(db)


async def test_a_map_that_collects_gives_failed_items_in_their_places(db: Path) -> None:
    @hf.node(retry=hf.Retry(attempts=2, backoff=0))
    async def item(i: int) -> int:
        if i % 2:
            raise ValueError(f"odd {i}")
        return i

    got: list[Any] = []

    @hf.node
    async def judge(items: list[int | hf.Failed]) -> int:
        got.extend(items)
        return sum(1 for x in items if isinstance(x, hf.Failed))

    @hf.workflow
    def collected():
        return judge(hf.map(item, [0, 1, 2, 3], errors="collect"))

    async with hf.open(url(db)) as engine:
        run = await engine.start(collected)
        assert await run.result() == 2
        assert attempts(await run.events(), "item", ".item.1.") == [1, 2]
    assert [x if isinstance(x, int) else x.message for x in got] == [0, "ValueError: odd 1", 2, "ValueError: odd 3"]
    check_file(db)


async def test_a_map_over_nothing_is_an_empty_list_and_over_no_list_fails(db: Path) -> None:
    @hf.node(inline=True)
    def same(x: Any) -> Any:
        return x

    @hf.workflow
    def over(items: Any):
        return hf.map(same, items)

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(over, items=[])).result() == []
        with pytest.raises(hf.RunFailed, match="needs a list"):
            await (await engine.start(over, items=7)).result()
    check_file(db)


async def test_on_crash_is_not_asked_after_an_orderly_stop_of_a_node_that_may_rerun(db: Path) -> None:
    """`fail` means: whatever interrupted the attempt, it is not repeated by itself."""
    began = asyncio.Event()

    @hf.node(on_crash="fail")
    async def once() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    @hf.workflow
    def careful():
        return once()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(careful, run_id="r")
        await began.wait()
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed) as caught:
            await engine.get("r").result()
        assert caught.value.error.code == "outcome_unknown"
    check_file(db)


async def test_on_crash_ask_asks_a_person_and_tries_again_when_it_was_not_done(db: Path) -> None:
    began, release = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    @hf.node(on_crash="ask")
    async def once(ctx: hf.Context) -> str:
        seen.append(ctx.attempt)
        began.set()
        await release.wait()
        return "done"

    @hf.workflow
    def asks():
        return once()

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(asks, run_id="r")
        await began.wait()
    release.set()
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        await until_async(lambda: _suspended(run))
        (wait,) = await run.waits()
        assert wait.kind == "input"
        assert len(seen) == 1
        await run.respond(wait.wait_id, {"done": False}, actor="ada")
        assert await run.result() == "done"
        (closed,) = [e for e in await run.events() if e.type == "WaitClosed"]
        assert closed.data["actor"] == "ada"
    assert len(seen) == 2
    check_file(db)


async def _suspended(run: hf.Run) -> bool:
    return await run.status() == "suspended"


async def test_phases_start_with_their_first_node_and_complete_with_their_last(db: Path) -> None:
    @hf.workflow
    def phased():
        with hf.phase("one"):
            a = fine.named("a")()
            b = fine.named("b")()
        with hf.phase("two", after="one"):
            c = needs.named("c")("x")
        return [a, b, c]

    async with hf.open(url(db)) as engine:
        run = await engine.start(phased)
        await run.result()
        events = await run.events()
        phases = [(e.type, e.data["phase"]) for e in events if e.type.startswith("Phase")]
        assert phases == [
            ("PhaseStarted", "one"),
            ("PhaseCompleted", "one"),
            ("PhaseStarted", "two"),
            ("PhaseCompleted", "two"),
        ]
        kinds = [(e.type, e.node) for e in events]
        assert kinds.index(("NodeScheduled", "c")) > kinds.index(("NodeCompleted", "a"))
        assert kinds.index(("NodeScheduled", "c")) > kinds.index(("NodeCompleted", "b"))
    check_file(db)


async def test_a_skipped_branch_is_null_in_the_result_and_first_takes_the_other(db: Path) -> None:
    @hf.node(inline=True)
    def give(text: str) -> str:
        return text

    @hf.workflow
    def routed(kind: str):
        with hf.route(kind) as r:
            with r("a"):
                one = give.named("one")("A")
            with r.otherwise():
                two = give.named("two")("B")
        return {"chosen": hf.first(one, two), "one": hf.first(one, None)}

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(routed, kind="a")).result() == {"chosen": "A", "one": "A"}
        assert await (await engine.start(routed, kind="z")).result() == {"chosen": "B", "one": None}
    check_file(db)


async def test_a_loop_runs_until_its_condition_holds_or_fails_at_its_limit(db: Path) -> None:
    @hf.node(inline=True)
    def more(n: int) -> int:
        return n + 1

    @hf.workflow
    def counts(limit: int):
        return hf.loop(more, start=0, until=lambda n: n >= 5, max_visits=10)

    @hf.workflow
    def stops():
        return hf.loop(more, start=0, until=lambda n: n >= 50, max_visits=3)

    @hf.workflow
    def takes():
        return hf.loop(more, start=0, until=lambda n: n >= 50, max_visits=3, at_limit="take")

    async with hf.open(url(db)) as engine:
        run = await engine.start(counts, limit=1)
        assert await run.result() == 5
        assert types(await run.events()).count("NodeStarted") == 5
        with pytest.raises(hf.RunFailed, match="3 rounds"):
            await (await engine.start(stops)).result()
        assert await (await engine.start(takes)).result() == 3
    check_file(db)
