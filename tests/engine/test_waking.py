"""Many runs that wake together, by signals or by timers, from memory or from their rows: few questions to the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.engine import replay_reader
from holdfast.engine.engine import Engine
from holdfast.engine.ownership import claim
from holdfast.engine.run_handle import Run
from holdfast.model.errors import StoreDamaged, StoreError
from holdfast.store.row_types import MessageRow
from tests.engine.kit import attempts, check_file, hold_time, opened_with, until, url

RUNS = 30
RAN: Counter[str] = Counter()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(autouse=True)
def _ran() -> None:
    RAN.clear()


@hf.node
async def wak_note(text: str) -> str:
    RAN[text] += 1
    return text


@hf.workflow
async def wak_signalled(ctx: hf.Context, name: str) -> list[Any]:
    return [await ctx.step(wak_note, name), await ctx.receive("go"), await ctx.step(wak_note, f"{name} again")]


@hf.workflow
async def wak_asleep(ctx: hf.Context, name: str) -> str:
    await ctx.sleep(0.4)
    return await ctx.step(wak_note, name)


@hf.node
async def wak_half(ctx: hf.Context, side: str) -> list[Any]:
    return [await ctx.step(wak_note, side), await ctx.receive(side)]


@hf.workflow
def wak_halves() -> Any:
    return {"left": wak_half("left"), "right": wak_half("right")}


def counted(engine: Engine, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a verb of the store is asked, from now on."""
    asked: list[Any] = []
    ask: Callable[..., Any] = getattr(engine.store, verb)

    def note(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return ask(*args, **kwargs)

    monkeypatch.setattr(engine.store, verb, note)
    return asked


def stays_until(done: asyncio.Event) -> hf.Workflow[[], str]:
    """A workflow whose run is at work until it is let go."""

    @hf.node
    async def wak_stays() -> str:
        await done.wait()
        return "stayed"

    @hf.workflow
    def wak_staying() -> str:
        return wak_stays()

    return wak_staying


def number_of(engine: Engine, run: Run[Any]) -> int:
    row = engine.store.run(run.run_id)
    assert row is not None
    return row.run_no


async def evicted(engine: Engine, runs: int) -> None:
    await until(lambda: engine.store.counts().get("suspended") == runs and not engine.actors, "nothing is in memory")


@pytest.mark.parametrize("idle_seconds", [60.0, 0.0])
async def test_signals_to_many_runs_at_once_are_looked_for_once(
    db: Path, monkeypatch: pytest.MonkeyPatch, idle_seconds: float
) -> None:
    async with hf.open(url(db), idle_seconds=idle_seconds) as engine:
        runs = [await engine.start(wak_signalled, name=f"run {n}") for n in range(RUNS)]
        await until(lambda: engine.store.counts().get("suspended") == RUNS)
        if idle_seconds == 0:
            await evicted(engine, RUNS)
        looks = counted(engine, "new_messages", monkeypatch)
        sends = counted(engine, "send", monkeypatch)
        reads = counted(engine, "events_of", monkeypatch)
        await asyncio.gather(*(run.signal("go", n) for n, run in enumerate(runs)))
        results = [await run.result() for run in runs]
        assert len(sends) < RUNS / 3
        assert len(looks) < RUNS / 3
        assert len(reads) < RUNS / 3, "bodies that begin again together read what they remember together"
    assert results == [[f"run {n}", n, f"run {n} again"] for n in range(RUNS)]
    assert set(RAN.values()) == {1}, "what was remembered did not run again"
    check_file(db)


async def test_two_bodies_of_one_run_that_begin_again_together_remember_each_its_own(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        run = await engine.start(wak_halves)
        await evicted(engine, 1)
        await asyncio.gather(run.signal("left", 1), run.signal("right", 2))
        assert await run.result() == {"left": ["left", 1], "right": ["right", 2]}
    assert RAN == {"left": 1, "right": 1}
    check_file(db)


async def test_of_many_bodies_that_begin_again_some_are_read_at_a_time(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_reader, "READ_AT_ONCE", 4)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        runs = [await engine.start(wak_signalled, name=f"run {n}") for n in range(RUNS)]
        await evicted(engine, RUNS)
        reads = counted(engine, "events_of", monkeypatch)
        await asyncio.gather(*(run.signal("go", n) for n, run in enumerate(runs)))
        assert [await run.result() for run in runs] == [[f"run {n}", n, f"run {n} again"] for n in range(RUNS)]
    sizes = [len(pages) for pages, _ in reads]
    assert max(sizes) == 4, "in between everybody else has a turn"
    assert sum(sizes) == RUNS, "and nobody is read twice"
    assert set(RAN.values()) == {1}


async def test_who_gives_up_before_it_is_read_leaves_the_others_their_memory(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        for name in ("first", "second"):
            await engine.start(wak_signalled, name=name)
        await until(lambda: engine.store.counts().get("suspended") == 2)
        first, second = (
            asyncio.create_task(engine.bodies.replay_reader.recall(actor.state, *next(iter(actor.state.nodes)), 1, ()))
            for actor in engine.actors.values()
        )
        await asyncio.sleep(0)  # both have asked
        first.cancel()
        assert [kind for kind, _ in await second] == ["StepCompleted", "WaitOpened"]


async def test_of_one_read_each_body_gets_its_own_events_from_its_own_beginning_on(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        await engine.start(wak_halves)
        await until(lambda: engine.store.counts().get("suspended") == 1)
        (state,) = (actor.state for actor in engine.actors.values())
        left, right = state.nodes
        recall = engine.bodies.replay_reader.recall
        answers = await asyncio.gather(
            recall(state, *left, 1, ()), recall(state, *right, 1, ()), recall(state, *left, state.seq, ())
        )
    assert [[kind for kind, _ in answer] for answer in answers] == [["StepCompleted", "WaitOpened"]] * 2 + [[]]
    assert b'"left"' in answers[0][0][1]
    assert b'"right"' in answers[1][0][1]


async def test_what_cannot_be_read_now_is_read_again_and_no_body_fails_of_it(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_reader, "AGAIN_SECONDS", 0.01)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        run = await engine.start(wak_signalled, name="one")
        await evicted(engine, 1)
        events_of, errors = engine.store.events_of, [StoreError("the disk says nothing")] * 3

        def broken(*asked: Any) -> Any:
            if errors:
                raise errors.pop()
            return events_of(*asked)

        monkeypatch.setattr(engine.store, "events_of", broken)
        await run.signal("go", 1)
        assert await run.result(timeout=20) == ["one", 1, "one again"]
    assert not errors
    assert set(RAN.values()) == {1}


async def test_damaged_page_under_one_memory_holds_its_run_and_the_others_read_theirs(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        runs = [await engine.start(wak_signalled, name=name) for name in ("one", "two", "three")]
        await evicted(engine, 3)
        damaged = engine.store.run(runs[1].run_id)
        assert damaged is not None
        events_of = engine.store.events_of

        def broken(pages: Any, without: Any) -> Any:
            if any(run_no == damaged.run_no for run_no, _ in pages):
                raise StoreDamaged("a page is no page")
            return events_of(pages, without)

        monkeypatch.setattr(engine.store, "events_of", broken)
        await asyncio.gather(*(run.signal("go", 1) for run in runs))
        assert await runs[0].result(timeout=20) == ["one", 1, "one again"]
        assert await runs[2].result(timeout=20) == ["three", 1, "three again"]
        held = await until(lambda: (row := engine.store.run(runs[1].run_id)) and row.hold, "the damaged one is held")
        assert held == "corrupt: a page is no page"
        assert "RunFailed" not in {event.type for event in await runs[1].events()}


async def test_a_look_whose_caller_gives_up_is_made_by_the_next_one(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "60")
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = await engine.start(wak_signalled, name="one")
        await until(lambda: engine.store.counts().get("suspended") == 1)
        (row,) = engine.store.runs()
        signal = MessageRow("m_1", row.run_no, "signal", b'{"name": "go", "payload": 1}', engine.clock.now())
        await engine.committer.call(engine.store.send, [signal])
        first, second = (asyncio.create_task(engine.inbox.deliver_new()) for _ in range(2))
        await asyncio.sleep(0)  # the first one is under way, and the second waits for it
        first.cancel()
        await second
        assert await run.result(timeout=20) == ["one", 1, "one again"]


async def test_more_timers_than_are_woken_at_once_all_fire(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "DUE_AT_ONCE", 8)
    monkeypatch.setattr(claim, "LOADED_AT_ONCE", 3)
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "0.2")
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        runs = [await engine.start(wak_asleep, name=f"run {n}") for n in range(RUNS)]
        pages = counted(engine, "due_timers", monkeypatch)
        assert [await run.result() for run in runs] == [f"run {n}" for n in range(RUNS)]
        assert len(pages) >= 2
    assert set(RAN.values()) == {1}
    check_file(db)


async def test_a_timer_fires_on_time_although_there_is_no_room_for_its_run(db: Path) -> None:
    done = asyncio.Event()
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        clock = hold_time(engine)
        due = await engine.start(wak_asleep, name="due")
        await evicted(engine, 1)
    async with opened_with(clock, url(db), concurrency=1) as engine:
        staying = await engine.start(stays_until(done))
        clock.go_on()
        run = engine.get(due.run_id)
        await until(lambda: not engine.store.set_timers([number_of(engine, run)]), "it has fired")
        row = engine.store.run_by_no(number_of(engine, run))
        assert row is not None
        assert (row.status, row.engine) == ("running", None), "whoever has room takes it"
        assert list(engine.actors) == [number_of(engine, staying)]
        done.set()
        assert await staying.result() == "stayed"
        assert await run.result(timeout=20) == "due"
        told = [event.type for event in await run.events()]
    assert told[-8:] == [
        "TimerFired",
        "WaitClosed",
        "RunResumed",
        "RunTakenOver",
        "NodeResumed",
        "StepCompleted",
        "NodeCompleted",
        "RunCompleted",
    ]
    assert RAN["due"] == 1
    check_file(db)


async def test_very_many_timers_fire_before_the_bodies_of_their_runs_are_waited_for(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_while: list[int] = []

    @hf.workflow
    async def wak_counts_timers(ctx: hf.Context) -> None:
        await ctx.sleep(0.4)
        set_while.append(len(engine.store.set_timers(numbers)))

    async with hf.open(url(db), idle_seconds=0.0) as engine:
        hold_time(engine)
        runs = [await engine.start(wak_counts_timers) for _ in range(RUNS)]
        numbers = [number_of(engine, run) for run in runs]
        await evicted(engine, RUNS)
    monkeypatch.setattr(claim, "DUE_AT_ONCE", 10)
    monkeypatch.setattr(claim, "CLAIMED_AT_ONCE", 4)
    monkeypatch.setattr(claim, "CLAIMED_WHILE_DUE", 1)
    monkeypatch.setattr(claim, "LOADED_AT_ONCE", 3)
    async with hf.open(url(db)) as engine:
        await asyncio.gather(*(engine.get(run.run_id).result(timeout=20) for run in runs))
        fired = [event.type for run in runs for event in await engine.get(run.run_id).events()].count("TimerFired")
    assert fired == len(set_while) == RUNS
    assert sum(1 for others in set_while if others) <= 3 * 2, "of each page of timers one or two runs go on at once"
    assert any(set_while), "but these do"
    check_file(db)


async def test_timers_are_looked_for_while_very_many_runs_are_claimed(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "CLAIMED_AT_ONCE", 1)
    async with hf.open(url(db), drive=False) as engine:
        runs = [await engine.start(wak_asleep, name=f"run {n}") for n in range(6)]
    async with hf.open(url(db), recover=False) as engine:
        looks = counted(engine, "due_timers", monkeypatch)
        engine.claims.only_root_runs = None
        assert await engine.claims.claim_unowned() == 6
        assert looks
        assert [await engine.get(run.run_id).result() for run in runs] == [f"run {n}" for n in range(6)]


async def test_of_a_run_with_mail_and_a_timer_that_is_due_the_mail_comes_first(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where timers are only fired: an answer that came in time is never too late."""

    @hf.workflow
    async def wak_asks(ctx: hf.Context) -> str:
        return await ctx.ask("Which?", schema=str, deadline=0.4, default="nobody answered")

    monkeypatch.setattr(claim, "DUE_AT_ONCE", 1)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        hold_time(engine)
        runs = [await engine.start(wak_asks) for _ in range(2)]
        await evicted(engine, 2)
        (wait,) = await runs[0].waits()
        row = engine.store.run_by_no(number_of(engine, runs[0]))
        assert row is not None
        payload = msgspec.json.encode({"wait_id": wait.wait_id, "value": "this one", "actor": "test"})
        answer = MessageRow("m_in_time", row.run_no, "answer", payload, engine.clock.now())
        await engine.committer.call(engine.store.send, [answer])
    async with hf.open(url(db), drive=False) as engine:
        assert engine.store.new_messages([row.run_no]), "nobody has seen it yet"
        await until(lambda: engine.clock.now() > row.created_at + 600_000, "both are due")
    async with hf.open(url(db)) as engine:
        found = [await engine.get(run.run_id).result(timeout=20) for run in runs]
    assert found == ["this one", "nobody answered"]
    check_file(db)


@pytest.mark.parametrize("persistence", ["aggressive", "lazy"])
async def test_runs_whose_timers_were_only_fired_are_nobodys_and_go_on_with_the_same_attempt(
    db: Path, monkeypatch: pytest.MonkeyPatch, persistence: str
) -> None:
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        hold_time(engine)
        runs = [await engine.start(wak_asleep, name=f"run {n}", persistence=persistence) for n in range(3)]
        await evicted(engine, 3)
    monkeypatch.setattr(claim, "DUE_AT_ONCE", 1)
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "60")
    async with hf.open(url(db)) as engine:
        numbers = [number_of(engine, run) for run in runs]
        await until(lambda: len(engine.store.due_timers(engine.clock.now(), 100, ["wak_asleep"])) == 3)
        for _ in runs:
            await engine.claims.fire_due_timers()
        await until(lambda: not (engine.store.set_timers(numbers) or engine.actors), "all have fired")
        rows = [engine.store.run_by_no(number) for number in numbers]
        assert [(row.status, row.engine) for row in rows if row is not None] == [("running", None)] * 3
    assert not RAN
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "0.05")
    async with hf.open(url(db)) as engine:
        for run in runs:
            mine = engine.get(run.run_id)
            assert (await mine.result(timeout=20)).startswith("run ")
            assert attempts(await mine.events(), "wak_asleep") == [1]
    assert set(RAN.values()) == {1}
    check_file(db)


async def test_timers_that_are_not_for_us_do_not_hide_those_that_are(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose code is not here has more timers due than one look takes."""
    monkeypatch.setattr(claim, "DUE_AT_ONCE", 4)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        hold_time(engine)
        foreign = [await engine.start(wak_asleep, name=f"foreign {n}") for n in range(10)]
        await evicted(engine, 10)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        drivable = engine.claims._drivable
        theirs = {engine.store.run(run.run_id).run_no for run in foreign}  # type: ignore[union-attr]

        async def drivable_here(run_nos: Sequence[int], **how: Any) -> list[int]:
            return [run_no for run_no in await drivable(run_nos, **how) if run_no not in theirs]

        monkeypatch.setattr(engine.claims, "_drivable", drivable_here)
        ours = await engine.start(wak_asleep, name="ours")
        assert await ours.result(timeout=20) == "ours"


async def test_an_engine_that_stops_while_it_wakes_runs_loses_none(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "LOADED_AT_ONCE", 1)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        hold_time(engine)
        runs = [await engine.start(wak_asleep, name=f"run {n}") for n in range(RUNS)]
        await evicted(engine, RUNS)
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "60")
    async with hf.open(url(db)) as engine:
        await until(lambda: len(engine.store.due_timers(engine.clock.now(), 100, ["wak_asleep"])) == RUNS)
        waking = asyncio.create_task(engine.claims.fire_due_timers())
        await until(lambda: engine.actors)
    with contextlib.suppress(StoreError):  # the engine is closed
        await waking
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "0.05")
    async with hf.open(url(db)) as engine:
        assert [await engine.get(run.run_id).result() for run in runs] == [f"run {n}" for n in range(RUNS)]
    check_file(db)


@pytest.mark.parametrize("due_at_once", [claim.DUE_AT_ONCE, 1])
async def test_a_part_of_a_body_that_has_slept_goes_on_while_another_part_still_waits(
    db: Path, monkeypatch: pytest.MonkeyPatch, due_at_once: int
) -> None:
    """Also where timers are only fired: a run that something woke must not be suspended again for what it waits for
    beside it."""

    async def wak_done(what: str) -> str:
        RAN[what] += 1
        return what

    @hf.workflow
    async def wak_two_parts(ctx: hf.Context) -> list[str]:
        async def sleeps() -> str:
            await ctx.sleep(0.2)
            return await ctx.step(wak_done, "slept")

        return list(await asyncio.gather(sleeps(), ctx.ask("Which?", schema=str)))

    monkeypatch.setattr(claim, "DUE_AT_ONCE", due_at_once)
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        run = await engine.start(wak_two_parts)
        await until(lambda: RAN["slept"], "nobody has answered, and it has gone on")
        (wait,) = [wait for wait in await run.waits() if wait.kind == "input"]
        await run.respond(wait.wait_id, "this one")
        assert await run.result(timeout=20) == ["slept", "this one"]
    check_file(db)


async def test_runs_with_mail_and_a_timer_that_is_due_take_no_room_that_is_not_there(db: Path) -> None:
    done, at_work = asyncio.Event(), []

    @hf.workflow
    async def wak_answered(ctx: hf.Context) -> str:
        answer = await ctx.ask("Which?", schema=str, deadline=0.4, default="nobody answered")
        at_work.append(sum(actor.is_at_work for actor in engine.actors.values()))
        return answer

    async with hf.open(url(db), idle_seconds=0.0) as engine:
        clock = hold_time(engine)
        runs = [await engine.start(wak_answered) for _ in range(5)]
        await evicted(engine, 5)
        waits = [(await run.waits())[0] for run in runs]
    async with opened_with(clock, url(db), concurrency=1) as engine:
        staying = await engine.start(stays_until(done))
        for run, wait in zip(runs, waits, strict=True):
            payload = msgspec.json.encode({"wait_id": wait.wait_id, "value": "this one", "actor": "test"})
            answer = MessageRow(f"m_{run.run_id}", number_of(engine, run), "answer", payload, 0)
            await engine.committer.call(engine.store.send, [answer])
        clock.go_on()
        numbers = [number_of(engine, run) for run in runs]
        await until(lambda: not engine.store.new_messages(numbers), "all of it was read")
        assert not at_work, "there is no room for their bodies"
        done.set()
        assert await staying.result() == "stayed"
        assert [await engine.get(run.run_id).result(timeout=20) for run in runs] == ["this one"] * 5
    assert set(at_work) == {1}
    check_file(db)
