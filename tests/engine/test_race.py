"""`ctx.race`: the first call to end wins, for good; the others are stopped.

Time is the harness's; the engine, the store and asyncio are real.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import context, explore, harness
from tests.engine.kit import PATIENCE_SECONDS, check_file, hold_time, types, until_async, url


def _closed(events: list[Any]) -> list[str]:
    """How waits were closed, in the order in which they were opened."""
    outcomes = {e.data["wait_id"]: e.data["outcome"] for e in events if e.type == "WaitClosed"}
    return [outcomes.get(e.data["wait_id"], "open") for e in events if e.type == "WaitOpened"]


async def _waits(run: hf.Run[Any], number: int) -> bool:
    return len(await run.waits()) == number


async def test_a_step_that_ends_before_the_time_is_over_wins_and_no_timer_stays() -> None:
    async def fetch(page: int) -> str:
        return f"page {page}"

    @hf.workflow
    async def race_step_first(ctx: hf.Context) -> Any:
        won = await ctx.race(ctx.step(fetch, 3), ctx.sleep("1h"))
        assert isinstance(won, hf.Won)
        index, value = won
        return [index, value, won.index, won.value]

    async with harness() as h:
        run = await h.start(race_step_first)
        assert await run.result() == [0, "page 3", 0, "page 3"]
        assert _closed(await run.events()) == ["superseded"]
        kinds = types(await run.events())
        assert kinds.count("TimerSet") == kinds.count("TimerCancelled")


async def test_a_step_that_takes_longer_than_its_time_is_cancelled() -> None:
    how: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(7200)
        except asyncio.CancelledError:
            how.append("cancelled")
            raise

    @hf.workflow
    async def race_sleep_first(ctx: hf.Context) -> Any:
        won = await ctx.race(ctx.step(slow), ctx.sleep("1h"))
        return [*won, how]

    async with harness() as h:
        run = await h.start(race_sleep_first)
        await h.advance(minutes=30)
        assert await run.status() == "running", "a step is at work"
        await h.advance(minutes=30)
        assert await run.result() == [1, None, ["cancelled"]]


async def test_while_all_of_its_calls_wait_the_run_leaves_memory() -> None:
    lives: list[int] = []

    @hf.workflow
    async def race_of_sleeps(ctx: hf.Context) -> int:
        lives.append(1)
        won = await ctx.race(ctx.sleep("3h"), ctx.sleep("1h"), ctx.sleep("2h"))
        await ctx.sleep("5h")
        return won.index

    async with harness() as h:
        run = await h.start(race_of_sleeps)
        await h.advance(minutes=1)
        assert await run.status() == "suspended"
        assert not h.engine.actors
        await h.advance(hours=1)
        assert _closed(await run.events()) == ["superseded", "fired", "superseded", "open"]
        assert len(await run.waits()) == 1
        await h.advance(hours=5)
        assert await run.result() == 1
        assert types(await run.events()).count("WaitOpened") == 4, "nothing was slept twice"
    assert len(lives) == 3


async def test_the_winner_stays_the_winner_whatever_happens_afterwards() -> None:
    """The loser would end long before the winner when the body runs again."""
    made: list[str] = []

    async def fetch(name: str) -> str:
        made.append(name)
        await asyncio.sleep({"slow": 60, "quick": 1}[name] if made.count(name) == 1 else 0)
        return name

    @hf.workflow
    async def race_is_remembered(ctx: hf.Context) -> list[Any]:
        won = await ctx.race(ctx.step(fetch, "slow"), ctx.step(fetch, "quick"))
        await ctx.sleep("1h")
        return [*won, await ctx.step(len, "abc")]

    async with harness() as h:
        run = await h.start(race_is_remembered)
        await h.advance(seconds=30)
        await h.crash()
        await h.advance(hours=1)
        assert await run.result() == [1, "quick", 3]
    assert made == ["slow", "quick"], "a loser is never run again"


async def test_calls_after_a_race_find_their_memory_whoever_lost() -> None:
    """Coroutines of several calls, one of which starts tasks: their memory is their own."""
    noted: list[Any] = []

    def note(x: Any) -> Any:
        noted.append(x)
        return x

    async def quick(ctx: hf.Context) -> str:
        await ctx.step(note, "quick")
        return str(await ctx.step(note, "same"))

    async def slow(ctx: hf.Context) -> str:
        await asyncio.gather(asyncio.create_task(_one(ctx, "slow")), asyncio.create_task(_one(ctx, "same")))
        await ctx.sleep("1h")
        return "never"

    async def _one(ctx: hf.Context, x: str) -> None:
        await ctx.step(note, x)

    @hf.workflow
    async def race_of_coroutines(ctx: hf.Context) -> list[Any]:
        won = await ctx.race(slow(ctx), quick(ctx))
        await asyncio.create_task(_one(ctx, "task"))
        await ctx.sleep("2h")
        return [*won, await ctx.step(note, "end")]

    async with harness() as h:
        run = await h.start(race_of_coroutines)
        await h.advance(minutes=1)
        await h.crash()
        await h.advance(hours=2)
        assert await run.result() == [1, "same", "end"]
    assert noted.count("task") == noted.count("quick") == noted.count("end") == 1
    assert noted.count("same") <= 2


async def test_equal_calls_in_different_parts_of_a_race_keep_their_own_results() -> None:
    """The winner does not get what the loser was told, nor does anybody after them."""
    numbers = iter(range(1, 100))

    def number() -> int:
        return next(numbers)

    async def loses(ctx: hf.Context) -> int:
        await ctx.step(number)
        await ctx.sleep("1h")
        return 0

    async def wins(ctx: hf.Context) -> int:
        await ctx.sleep(1)
        return await ctx.step(number)

    async def after(ctx: hf.Context) -> int:
        return await ctx.step(number)

    @hf.workflow
    async def race_of_equal_calls(ctx: hf.Context) -> list[Any]:
        won = await ctx.race(loses(ctx), wins(ctx))
        number_after = await asyncio.create_task(after(ctx))
        await ctx.sleep("2h")
        return [*won, number_after]

    async with harness() as h:
        run = await h.start(race_of_equal_calls)
        await h.advance(minutes=1)
        await h.crash()
        await h.advance(hours=2)
        assert await run.result() == [1, 2, 3]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_race_in_a_race(crash: bool) -> None:
    @hf.workflow(name=f"race_in_a_race_{crash}")
    async def nested(ctx: hf.Context) -> list[Any]:
        outer = await ctx.race(
            ctx.race(ctx.sleep("3h"), ctx.sleep("4h")),
            ctx.race(ctx.sleep("2h"), ctx.sleep("1h")),
        )
        await ctx.sleep("1h")
        return [outer.index, outer.value.index]

    async with harness() as h:
        run = await h.start(nested)
        await h.advance(minutes=1)
        assert await run.status() == "suspended"
        await h.advance(hours=1)
        assert _closed(await run.events()) == ["superseded", "superseded", "superseded", "fired", "open"]
        if crash:
            await h.crash()
        await h.advance(hours=1)
        assert await run.result() == [1, 1]


async def test_a_winner_that_raised_makes_the_race_raise_and_again_when_it_is_remembered() -> None:
    tries: list[int] = []

    async def bad() -> None:
        tries.append(1)
        raise LookupError("nothing there")

    @hf.workflow
    async def race_that_raises(ctx: hf.Context) -> str:
        try:
            await ctx.race(ctx.sleep("1h"), ctx.step(bad))
        except LookupError as e:
            await ctx.sleep("1h")
            return str(e)
        return "nobody raised"

    async with harness() as h:
        run = await h.start(race_that_raises)
        await h.crash()
        await h.advance(hours=1)
        assert await run.result() == "nothing there"
        assert _closed(await run.events()) == ["superseded", "fired"]
    assert tries == [1]


async def test_a_race_that_made_its_body_fail_is_run_again_by_the_next_attempt() -> None:
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("weather")
        await asyncio.sleep(3600)
        return "late"

    @hf.node(retry=hf.Retry(attempts=2, backoff=0))
    async def races(ctx: hf.Context) -> int:
        return (await ctx.race(ctx.step(flaky), ctx.sleep("30m"))).index

    @hf.workflow
    def race_in_a_retry():
        return races()

    async with harness() as h:
        run = await h.start(race_in_a_retry)
        await h.advance(minutes=31)
        assert await run.result() == 1, "the second attempt has its time limit as well"


@pytest.mark.parametrize("order", [("1h", "2h"), ("2h", "1h")])
async def test_of_calls_that_were_answered_while_nobody_ran_the_earlier_one_wins(
    order: tuple[str, str], tmp_path: Path
) -> None:
    @hf.workflow(name=f"race_while_nobody_ran_{order[0]}")
    async def race(ctx: hf.Context) -> str:
        won = await ctx.race(*(ctx.sleep({"1h": 0.2, "2h": 0.4}[o]) for o in order))
        return order[won.index]

    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        hold_time(engine)
        run = await engine.start(race, run_id="r")
        await until_async(lambda: _waits(run, 2))
    await asyncio.sleep(0.5)  # both are due
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result() == "1h"
    check_file(path)


async def test_a_lost_child_is_cancelled() -> None:
    @hf.workflow
    async def race_child(ctx: hf.Context) -> str:
        await ctx.sleep("5h")
        return "late"

    @hf.workflow
    async def race_of_a_child(ctx: hf.Context) -> int:
        won = await ctx.race(ctx.child(race_child, run_id="kid"), ctx.sleep("1h"))
        return won.index

    async with harness() as h:
        run = await h.start(race_of_a_child)
        await h.advance(hours=1)
        assert await run.result() == 1
        await h.advance(seconds=10)
        assert await h.get("kid").status() == "cancelled"


async def test_a_race_that_is_given_up_closes_all_of_its_waits(tmp_path: Path) -> None:
    give_up = asyncio.Event()

    @hf.workflow
    async def race_given_up(ctx: hf.Context) -> str:
        race = asyncio.create_task(ctx.race(ctx.sleep("1h"), ctx.sleep("2h")))
        await give_up.wait()
        race.cancel()
        await asyncio.wait([race])
        await ctx.step(abs, 1)
        return f"cancelled: {race.cancelled()}"

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(race_given_up)
        await until_async(lambda: _waits(run, 2))
        give_up.set()
        assert await run.result() == "cancelled: True"
        kinds = types(await run.events())
        assert kinds.index("StepCompleted") > max(i for i, kind in enumerate(kinds) if kind == "WaitClosed")
    check_file(tmp_path / "runs.db")


async def test_a_call_that_loses_at_once_leaves_no_wait_behind() -> None:
    """The winner needs no commit; the wait of the other one is on its way to the store when it loses."""

    @hf.workflow
    async def race_lost_early(ctx: hf.Context) -> int:
        async def at_once() -> int:
            return 7

        won = await ctx.race(ctx.sleep("1h"), at_once())
        await ctx.sleep("5h")
        return won.value or 0

    async with harness() as h:
        run = await h.start(race_lost_early)
        await h.advance(seconds=10)
        assert _closed(await run.events()) == ["superseded", "open"]
        assert await run.status() == "suspended"


async def test_an_orderly_stop_is_no_win(tmp_path: Path) -> None:
    @hf.workflow
    async def race_over_a_stop(ctx: hf.Context) -> int:
        return (await ctx.race(ctx.sleep(0.3), ctx.sleep("1h"))).index

    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        hold_time(engine)
        run = await engine.start(race_over_a_stop, run_id="r")
        await until_async(lambda: _waits(run, 2))
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result() == 0
    check_file(path)


async def test_a_step_may_end_within_the_grace_time_of_a_stop_although_its_rival_was_left(tmp_path: Path) -> None:
    began, ends = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    async def slow() -> str:
        runs.append(1)
        began.set()
        await ends.wait()
        return "ended"

    @hf.workflow
    async def race_in_grace(ctx: hf.Context) -> str:
        return str((await ctx.race(ctx.sleep("1h"), ctx.step(slow))).value)

    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        run = await engine.start(race_in_grace, run_id="r")
        await began.wait()
        await until_async(lambda: _waits(run, 1))
        asyncio.get_running_loop().call_later(0.1, ends.set)
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result() == "ended"
    assert runs == [1]
    check_file(path)


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (lambda ctx: [], "at least one call"),
        (lambda ctx: [ctx.sleep("1h"), 3], "not awaited yet.*not 3"),
        (lambda ctx: [ctx.sleep("1h"), len], "not awaited yet"),
        (lambda ctx: [ctx.sleep("1h")] * 2, "the same call twice"),
    ],
)
async def test_what_cannot_race_is_refused(calls: Any, message: str) -> None:
    @hf.workflow(name=f"race_refused_{message[:10].replace(' ', '_')}")
    async def race(ctx: hf.Context) -> None:
        await ctx.race(*calls(ctx))

    async with harness() as h:
        run = await h.start(race)
        with pytest.raises(hf.RunFailed, match=message) as caught:
            await run.result()
        assert caught.value.error.code == "usage"


async def test_a_race_that_is_given_up_before_it_began_leaves_nothing_behind() -> None:
    """A call that was never awaited would be a warning, and a warning fails this test."""

    @hf.workflow
    async def race_never_begun(ctx: hf.Context) -> str:
        race = asyncio.create_task(ctx.race(ctx.race(ctx.sleep("1h"), ctx.sleep("2h")), ctx.sleep("3h")))
        await asyncio.sleep(0)  # its calls are made and have not begun
        race.cancel()
        await asyncio.wait([race])
        return "gave up"

    async with harness() as h:
        run = await h.start(race_never_begun)
        assert await run.result() == "gave up"
        assert await run.waits() == []


async def test_another_number_of_calls_is_another_race(tmp_path: Path) -> None:
    changed, began = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def race_changed(ctx: hf.Context) -> int:
        calls = [ctx.keyed("a").step(abs, 1), ctx.keyed("b").sleep("1h")]
        if changed.is_set():
            calls.append(ctx.keyed("c").sleep("1h"))
        won = await ctx.keyed("race").race(*calls)
        began.set()
        if not changed.is_set():
            await asyncio.Event().wait()
        return won.index

    path = tmp_path / "runs.db"
    async with hf.open(url(path), grace_seconds=0) as engine:
        await engine.start(race_changed, run_id="r")
        await began.wait()
    changed.set()
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result() == 0, "a key stands for whatever its author means by it"


async def test_a_sync_body_is_told_that_it_cannot_race(tmp_path: Path) -> None:
    @hf.node
    def sync_racer(ctx: hf.SyncContext) -> Any:
        return ctx.race()  # type: ignore[attr-defined]

    @hf.workflow
    def race_in_a_thread():
        return sync_racer()

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        with pytest.raises(hf.RunFailed, match="make it `async def`"):
            await (await engine.start(race_in_a_thread)).result()


async def test_in_a_unit_test_the_first_call_wins() -> None:
    ctx = context()
    assert await ctx.race(ctx.step(abs, -1), ctx.sleep("1h")) == (0, 1)
    assert ctx.slept == []


# --- what is taken is not lost -------------------------------------------------------------------------------------


async def _two_of_two(ctx: hf.Context) -> list[Any]:
    got = []
    for _ in range(2):
        won = await ctx.race(ctx.receive("a"), ctx.receive("b"))
        got.append([won.index, won.value])
    return got


async def test_of_two_signals_that_are_there_already_one_wins_and_the_other_is_kept() -> None:
    @hf.workflow
    async def race_of_early_signals(ctx: hf.Context) -> list[Any]:
        await ctx.ask("Begin?")
        return await _two_of_two(ctx)

    async with harness() as h:
        run = await h.start(race_of_early_signals)
        await run.signal("b", 2)
        await run.signal("a", 1)
        (question,) = await run.waits()
        await run.respond(question.wait_id, True)
        assert await run.result() == [[0, 1], [1, 2]]


async def test_of_two_signals_that_come_at_once_one_wins_and_the_other_is_kept(tmp_path: Path) -> None:
    race_of_two_signals = hf.workflow(name="race_of_two_signals")(_two_of_two)
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(race_of_two_signals)
        await until_async(lambda: _waits(run, 2))
        await asyncio.gather(run.signal("a", 1), run.signal("b", 2))
        assert await run.result(timeout=PATIENCE_SECONDS) == [[0, 1], [1, 2]]
    check_file(tmp_path / "runs.db")


async def test_of_two_signals_that_came_while_nobody_ran_one_wins_and_the_other_is_kept(tmp_path: Path) -> None:
    race_while_away = hf.workflow(name="race_while_away")(_two_of_two)
    path = tmp_path / "runs.db"
    async with hf.open(url(path)) as engine:
        run = await engine.start(race_while_away, run_id="r")
        await until_async(lambda: _waits(run, 2))
    for name, payload in (("b", "2"), ("a", "1")):
        send = [sys.executable, "-m", "holdfast", "signal", "r", name, payload, "--db", url(path)]
        sent = await asyncio.create_subprocess_exec(*send, stdout=asyncio.subprocess.DEVNULL)
        assert await sent.wait() == 0
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result(timeout=PATIENCE_SECONDS) == [[1, 2], [0, 1]]
    check_file(path)


async def _tick() -> None:
    await asyncio.sleep(0.001)


async def _ticks(ctx: hf.Context) -> None:
    await ctx.step(_tick)
    await ctx.sleep(0.001)


RIVALS: dict[str, Any] = {"sleep": lambda ctx: ctx.sleep(0.001), "step": lambda ctx: ctx.step(_tick), "several": _ticks}


@hf.workflow(name="race_for_every_signal")
async def race_for_every_signal(ctx: hf.Context, number: int, rival: str) -> list[int]:
    got: list[int] = ctx.checkpointed or []
    while len(got) < number:
        signal = ctx.receive("x", schema=int)
        won = await ctx.race(RIVALS[rival](ctx), signal)
        if won.index == 1:
            await ctx.checkpoint(got := [*got, won.value])
    return got


@pytest.mark.parametrize("rival", RIVALS)
async def test_every_signal_is_received_once_however_often_its_call_loses(tmp_path: Path, rival: str) -> None:
    path = tmp_path / "runs.db"
    for life in range(4):
        async with hf.open(url(path)) as engine:
            run = await engine.start(race_for_every_signal, run_id="r", number=200, rival=rival)
            for i in range(50 * life, 50 * life + 50):
                await run.signal("x", i, id=f"{i}")
    async with hf.open(url(path)) as engine:
        assert await engine.get("r").result(timeout=PATIENCE_SECONDS) == list(range(200))
    check_file(path)


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("seed", range(3))
async def test_every_signal_is_received_once_over_crashes(seed: int, rival: str) -> None:
    chance = random.Random(seed)
    async with harness() as h:
        run = await h.start(race_for_every_signal, number=30, rival=rival)
        for i in range(30):
            await run.signal("x", i)
            if chance.random() < 0.5:
                await h.advance(seconds=chance.random() / 500)
            if chance.random() < 0.3:
                await h.crash()
        await h.advance(seconds=30)
        assert await run.result() == list(range(30))


async def test_who_answers_when_the_time_is_over_is_told_that_it_is() -> None:
    @hf.workflow
    async def race_against_time(ctx: hf.Context) -> int:
        won = await ctx.race(ctx.ask("Go?"), ctx.sleep("1h"))
        await ctx.sleep("1h")
        return won.index

    async with harness() as h:
        run = await h.start(race_against_time)
        (question,) = [wait for wait in await run.waits() if wait.kind == "input"]
        await h.advance(hours=1)
        with pytest.raises(hf.Refused, match=r"another call of the same ctx\.race has won"):
            await run.respond(question.wait_id, True)
        await h.advance(hours=1)
        assert await run.result() == 1


async def test_a_signal_for_a_call_in_a_race_in_a_race_ends_both_of_them_in_one_commit() -> None:
    @hf.workflow
    async def race_nested_for_signals(ctx: hf.Context) -> list[Any]:
        outer = await ctx.race(
            ctx.sleep("1h"), ctx.race(ctx.receive("a"), ctx.race(ctx.receive("b"), ctx.receive("c")))
        )
        assert outer.index == 1
        return [*outer.value, await ctx.receive("a"), await ctx.receive("c")]

    async with harness() as h:
        run = await h.start(race_nested_for_signals)
        assert len(await run.waits()) == 4
        for name in ("b", "c", "a"):
            await run.signal(name, name.upper())
        assert await run.result() == [1, [0, "B"], "A", "C"]
        events = await run.events()
        received = next(i for i, e in enumerate(events) if e.type == "WaitClosed")
        assert {e.type for e in events[received : received + 5]} == {"WaitClosed", "TimerCancelled"}
        assert _closed(events)[:4] == ["superseded", "superseded", "received", "superseded"]


async def test_a_signal_that_was_taken_wins_although_a_coroutine_has_ended_meanwhile() -> None:
    """The coroutine ends in the turn in which the signal of the other call is taken, and tells it a turn later."""

    @hf.workflow
    async def race_against_a_coroutine(ctx: hf.Context) -> list[Any]:
        async def at_once() -> str:
            return "ended"

        await ctx.ask("Begin?")
        return [*await ctx.race(at_once(), ctx.receive("a")), *await ctx.race(at_once(), ctx.receive("a"))]

    async with harness() as h:
        run = await h.start(race_against_a_coroutine)
        await run.signal("a", "early")
        (question,) = await run.waits()
        await run.respond(question.wait_id, True)
        assert await run.result() == [1, "early", 0, "ended"]


# --- crashes -------------------------------------------------------------------------------------------------------


@hf.node(idempotent=True)
async def racing_step(x: int) -> int:
    return x + 1


@hf.workflow(name="xp_race_step_against_sleep")
async def step_against_sleep(ctx: hf.Context) -> list[Any]:
    won = await ctx.race(ctx.sleep("1h"), ctx.step(racing_step, 1))
    return [*won, await ctx.step(racing_step, 2)]


@hf.workflow(name="xp_race_sleep_against_sleep")
async def sleep_against_sleep(ctx: hf.Context) -> list[Any]:
    won = await ctx.race(ctx.sleep("2h"), ctx.sleep("1h"))
    await ctx.sleep("3h")
    return [*won]


@hf.workflow(name="xp_race_in_a_race")
async def race_in_a_race(ctx: hf.Context) -> list[Any]:
    won = await ctx.race(ctx.race(ctx.sleep("2h"), ctx.sleep("1h")), ctx.sleep("3h"))
    return [won.index, list(won.value or ())]


@hf.workflow(name="xp_waits_in_tasks")
async def waits_in_tasks(ctx: hf.Context) -> int:
    async def lane(hours: int) -> int:
        await ctx.sleep(f"{hours}h")
        return await ctx.step(racing_step, hours)

    return sum(await asyncio.gather(lane(1), lane(2)))


@hf.workflow(name="xp_race_for_signals")
async def race_for_signals(ctx: hf.Context) -> list[Any]:
    """Both signals are there, or come at the same time: whoever wins, each of them is received, once."""
    got = []
    for _ in range(2):
        won = await ctx.race(ctx.race(ctx.receive("a"), ctx.sleep("1h")), ctx.receive("b"))
        got.append(won.value if won.index == 1 else won.value.value)
        await ctx.step(racing_step, 1)
    return sorted(got)


@pytest.mark.parametrize(
    ("seed", "people_take"),
    [(0, 10), (7, 0), pytest.param(0, 0, marks=pytest.mark.soak), pytest.param(7, 10, marks=pytest.mark.soak)],
)
def test_no_crash_loses_a_signal_of_a_race(people_take: int, seed: int) -> None:
    signals = [("a", 1), ("b", 2)]
    report = explore(race_for_signals, idempotent=["racing_step"], signals=signals, people_take=people_take, seed=seed)
    assert report.safe, report.explain()
    assert report.schedules > 50


@pytest.mark.parametrize("workflow", [step_against_sleep, sleep_against_sleep, race_in_a_race, waits_in_tasks])
def test_no_crash_after_any_commit_changes_the_outcome(workflow: Any) -> None:
    report = explore(workflow, idempotent=["racing_step"])
    assert report.safe, report.explain()
    assert report.schedules > 50


@pytest.mark.parametrize("workflow", [sleep_against_sleep, waits_in_tasks])
def test_no_crash_changes_the_outcome_whoever_goes_first(workflow: Any) -> None:
    report = explore(workflow, idempotent=["racing_step"], seed=7)
    assert report.safe, report.explain()
