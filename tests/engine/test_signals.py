"""Signals on real engines: to a run that waits, or not yet, or that nobody drives; from people and from runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness
from tests.engine.kit import (
    attempts,
    check_file,
    check_harness,
    closed_waits,
    types,
    until,
    url,
    waiting,
    without_code_of,
)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@dataclass
class Reading:
    celsius: float
    room: str = "hall"


CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _calls() -> None:
    CALLS.clear()


@hf.workflow
async def sig_collects(ctx: hf.Context, names: list[str]) -> list[Any]:
    """Receives signals by these names, one after the other."""
    CALLS["bodies"] += 1
    return [await ctx.receive(name) for name in names]


@hf.workflow
async def sig_gated(ctx: hf.Context) -> list[Any]:
    """Receives three readings, but only after somebody has opened the gate."""
    await ctx.receive("gate")
    return [await ctx.receive("n") for _ in range(3)]


# --- receiving ------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["async", "sync", "graph"])
async def test_a_signal_is_received_typed_by_who_waits_for_it(db: Path, kind: str) -> None:
    @hf.node
    async def asynchronous(ctx: hf.Context) -> float:
        return (await ctx.receive("hot", schema=Reading)).celsius

    @hf.node
    def synchronous(ctx: hf.SyncContext) -> float:
        return ctx.receive("hot", schema=Reading).celsius  # type: ignore[no-any-return]

    @hf.workflow(name=f"sig_typed_{kind}")
    def typed() -> float:
        if kind == "graph":
            return hf.receive("hot", schema=Reading).celsius
        return (asynchronous if kind == "async" else synchronous)()

    async with hf.open(url(db)) as engine:
        run = await engine.start(typed)
        (wait,) = await waiting(run, "signal")
        assert (wait.name, wait.schema["$defs"]["Reading"]["required"]) == ("hot", ["celsius"])
        await run.signal("hot", Reading(31.5))
        assert await run.result() == 31.5
        events = await run.events()
        assert closed_waits(events) == [("received", "")]
        assert types(events).count("MessageConsumed") == 1
    check_file(db)


async def test_signals_that_come_early_are_kept_in_order_over_crashes() -> None:
    async with harness() as h:
        run = await h.start(sig_gated)
        for n in (1, 2):
            await run.signal("n", n)
            await h.crash()
        assert [w.name for w in await run.waits()] == ["gate"], "they wake nobody"
        await run.signal("n", 3)
        await run.signal("gate")
        assert await run.result() == [1, 2, 3]
        check_harness(h)


async def test_names_do_not_mix() -> None:
    async with harness() as h:
        run = await h.start(sig_collects, names=["b", "a", "b"])
        for name, payload in (("a", 1), ("b", 2), ("c", 3), ("b", 4)):
            await run.signal(name, payload)
        assert await run.result() == [2, 1, 4]


async def test_two_who_wait_for_one_name_are_served_in_the_order_in_which_they_began() -> None:
    @hf.workflow
    def sig_two_receivers() -> list[Any]:
        first = hf.receive("go", named="first")
        second = hf.receive("go", named="second")
        return [first, second]

    async with harness() as h:
        run = await h.start(sig_two_receivers)
        await h.crash()
        await run.signal("go", "one")
        await h.crash()
        await run.signal("go", "two")
        assert await run.result() == ["one", "two"]
        check_harness(h)


async def test_the_same_id_is_the_same_signal_and_another_payload_under_it_is_an_error() -> None:
    async with harness() as h:
        run = await h.start(sig_collects, names=["n", "n", "n"])
        await run.signal("n", 1, id="a")
        await run.signal("n", 1, id="a")
        with pytest.raises(hf.Refused, match="something else under this id"):
            await run.signal("n", 2, id="a")
        await run.signal("n", 1)
        await run.signal("n", 1)
        assert await run.result() == [1, 1, 1], "once by its id, and two that have none"


async def test_the_same_id_counts_also_while_a_signal_is_kept_and_when_it_was_used() -> None:
    async with harness() as h:
        run = await h.start(sig_gated)
        await run.signal("n", 1, id="a")
        await h.crash()
        await run.signal("n", 1, id="a")
        with pytest.raises(hf.Refused):
            await run.signal("n", 7, id="a")
        await run.signal("gate")
        await run.signal("n", 1, id="a")
        await run.signal("n", 2, id="b")
        await run.signal("n", 3, id="c")
        assert await run.result() == [1, 2, 3]


@hf.workflow
async def sig_sends_one(ctx: hf.Context, to: str, payload: int, id: str) -> None:
    await ctx.signal(to, "n", payload, id=id)


@pytest.mark.parametrize("ending", ["used", "kept"])
async def test_the_same_id_is_a_no_op_also_when_the_run_has_ended(db: Path, ending: str) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sig_collects, names=["n"] if ending == "used" else ["end"], run_id="r")
        await waiting(run, "signal")
        await run.signal("n", 1, id="a")
        if ending == "kept":
            await run.signal("end")
        await run.result()
        before = len(await run.events())
        await run.signal("n", 1, id="a")
        with pytest.raises(hf.Refused, match="something else under this id"):
            await run.signal("n", 2, id="a")
        with pytest.raises(hf.Refused, match="no longer receives signals"):
            await run.signal("n", 1, id="b")
        assert len(await run.events()) == before
        await (await engine.start(sig_sends_one, to="r", payload=1, id="a")).result()
        with pytest.raises(hf.RunFailed, match="another signal under the id"):
            await (await engine.start(sig_sends_one, to="r", payload=2, id="a")).result()
        with pytest.raises(hf.RunFailed, match="no longer receives signals"):
            await (await engine.start(sig_sends_one, to="r", payload=1, id="b")).result()
    async with hf.open(url(db)) as engine:
        await engine.get("r").signal("n", 1, id="a")
    check_file(db)


async def test_the_same_id_means_something_else_for_another_run() -> None:
    async with harness() as h:
        runs = [await h.start(sig_collects, names=["n"]) for _ in range(2)]
        for payload, run in enumerate(runs):
            await run.signal("n", payload, id="a")
        assert [await run.result() for run in runs] == [[0], [1]]


async def test_many_who_send_the_same_signal_at_once_send_it_once(db: Path) -> None:
    async with hf.open(url(db)) as engine, hf.open(url(db), recover=False) as other:
        run = await engine.start(sig_collects, names=["n", "end"])
        await waiting(run, "signal")
        senders = [engine.get(run.run_id), other.get(run.run_id)]
        await asyncio.gather(*(senders[i % 2].signal("n", 1, id="a") for i in range(20)))
        await run.signal("end", 2)
        assert await run.result() == [1, 2]
        assert types(await run.events()).count("MessageConsumed") == 2
    check_file(db)


async def test_a_signal_that_does_not_fit_is_refused_and_the_wait_stays_open() -> None:
    @hf.workflow
    def sig_typed_wait() -> float:
        return hf.receive("hot", schema=Reading).celsius

    async with harness() as h:
        run = await h.start(sig_typed_wait)
        with pytest.raises(hf.Refused, match="celsius"):
            await run.signal("hot", {"celsius": "warm"})
        assert [w.kind for w in await run.waits()] == ["signal"]
        await run.signal("hot", {"celsius": 30})
        assert await run.result() == 30


@hf.workflow
async def sig_counts(ctx: hf.Context) -> list[int]:
    await ctx.receive("gate")
    return [await ctx.receive("n", schema=int), await ctx.receive("n", schema=int)]


async def test_a_refused_signal_does_not_use_up_its_id() -> None:
    async with harness() as h:
        run = await h.start(sig_counts)
        await run.signal("n", "kept, and refused when it is asked for", id="a")
        await run.signal("gate")
        for _ in range(2):
            with pytest.raises(hf.Refused, match="signal 'n'"):
                await run.signal("n", "two", id="a")
        await run.signal("n", 1, id="a")
        await run.signal("n", 1, id="a")
        with pytest.raises(hf.Refused, match="something else under this id"):
            await run.signal("n", 2, id="a")
        await h.crash()
        await run.signal("n", 2, id="b")
        assert await run.result() == [1, 2]
        await run.signal("n", 1, id="a")  # it was accepted, so that sending it again changes nothing
        with pytest.raises(hf.Refused, match="something else under this id"):
            await run.signal("n", "two", id="a")
        check_harness(h)


async def test_a_refused_signal_does_not_use_up_its_id_for_a_body_that_sends_the_corrected_one() -> None:
    @hf.workflow
    async def sig_corrects(ctx: hf.Context, payload: Any) -> None:
        await ctx.signal("to", "n", payload, id="a")

    async with harness() as h:
        run = await h.start(sig_counts, run_id="to")
        await run.signal("gate")
        for payload in ("one", 1, 1):
            await (await h.start(sig_corrects, payload=payload)).result()
        await run.signal("n", 2, id="b")
        assert await run.result() == [1, 2]
        check_harness(h)


async def test_a_branch_delivers_the_corrected_signal_again_behind_the_refused_one() -> None:
    async with harness() as h:
        run = await h.start(sig_counts)
        await run.signal("gate")
        with pytest.raises(hf.Refused):
            await run.signal("n", "one", id="a")
        await run.signal("n", 1, id="a")
        await run.signal("n", 2, id="b")
        assert await run.result() == [1, 2]
        await run.fork("start")
        assert await run.result() == [1, 2]
        check_harness(h)


async def test_a_kept_signal_that_turns_out_not_to_fit_is_refused_on_record() -> None:
    @hf.workflow
    async def sig_late_type(ctx: hf.Context) -> int:
        await ctx.receive("gate")
        return await ctx.receive("n", schema=int)

    async with harness() as h:
        run = await h.start(sig_late_type)
        await run.signal("n", "one")
        await run.signal("n", 1)
        await run.signal("gate")
        assert await run.result() == 1
        (refused,) = [e for e in await run.events() if e.type == "MessageRefused"]
        assert refused.data["code"] == "invalid_signal"


async def test_a_signal_past_the_deadline_is_the_default_or_an_error() -> None:
    @hf.workflow
    async def sig_until(ctx: hf.Context) -> list[Any]:
        first = await ctx.receive("n", deadline="1h", default=0)
        try:
            await ctx.receive("n", deadline="1h")
        except hf.DeadlinePassed:
            return [first, "nothing came"]
        return [first, "something came"]

    async with harness() as h:
        run = await h.start(sig_until)
        await h.advance(hours=1)
        await h.crash()
        assert [w.name for w in await run.waits()] == ["n"]
        await h.advance(hours=1)
        assert await run.result() == [0, "nothing came"]
        check_harness(h)


async def test_a_deadline_of_a_signal_in_a_graph_fails_its_node() -> None:
    @hf.workflow
    def sig_graph_until() -> Any:
        return hf.receive("n", deadline="1h")

    async with harness() as h:
        run = await h.start(sig_graph_until)
        await h.advance(hours=1)
        with pytest.raises(hf.RunFailed, match="was not received in time"):
            await run.result()


# --- to runs that nobody drives -------------------------------------------------------------------------------------


async def test_a_run_that_was_evicted_is_woken_by_its_signal_and_by_no_other(db: Path) -> None:
    async with hf.open(url(db), idle_seconds=0) as engine, hf.open(url(db), recover=False) as other:
        run = await engine.start(sig_collects, names=["n"])
        await until(lambda: not engine.actors, "it is evicted")
        assert CALLS["bodies"] == 1
        await other.get(run.run_id).signal("other", 1)
        await until(lambda: not engine.actors and not other.actors, "it is evicted again")
        assert CALLS["bodies"] == 1, "a kept signal runs no body"
        await other.get(run.run_id).signal("n", 2)
        assert await run.result() == [2]
        assert attempts(await run.events(), "sig_collects") == [1]
    check_file(db)


async def test_a_signal_needs_neither_an_engine_that_runs_nor_the_code(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sig_collects, names=["n", "m"], run_id="r")
        await waiting(run, "signal")
    with without_code_of("sig_collects"):
        async with hf.open(url(db)) as engine:
            await engine.get("r").signal("m", 2)
            await engine.get("r").signal("n", 1)
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result() == [1, 2]
    check_file(db)


async def test_a_run_that_has_ended_cannot_be_signalled(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(sig_collects, names=[])
        await run.result()
        with pytest.raises(hf.Refused, match="no longer receives signals"):
            await run.signal("n")
        with pytest.raises(hf.UsageError):
            await run.signal("")


async def test_nothing_that_was_answered_with_success_is_lost_when_runs_end_meanwhile(db: Path) -> None:
    """A signal is either refused, or received, or kept by a run that ended without asking for it."""
    async with hf.open(url(db)) as engine:
        runs = [await engine.start(sig_collects, names=["n"]) for _ in range(10)]
        for run in runs:
            sent = await asyncio.gather(*(run.signal("n", i) for i in range(4)), return_exceptions=True)
            (received,) = await run.result()
            assert sent[received] is None
            assert all(s is None or isinstance(s, hf.Refused) for s in sent)
            accepted = sum(s is None for s in sent)
            stored = engine.store.held_messages([engine.store.run(run.run_id).run_no])
            assert len(stored) == accepted - 1
    check_file(db)


# --- from run to run ------------------------------------------------------------------------------------------------


@hf.workflow
async def sig_sender(ctx: hf.Context, to: str, count: int, id: str | None = None) -> None:
    for n in range(count):
        await ctx.signal(to, "n", n, id=id)
    await ctx.sleep("1h")
    for n in range(count):
        await ctx.signal(to, "n", n, id=id)


async def test_a_body_signals_another_run_once_however_often_it_runs_again() -> None:
    async with harness() as h:
        await h.start(sig_collects, names=["n"] * 4, run_id="to")
        sender = await h.start(sig_sender, to="to", count=2)
        await h.crash()
        await h.advance(minutes=59)
        await h.crash()
        await h.advance(hours=1)
        assert await sender.result() is None
        assert await h.get("to").result() == [0, 1, 0, 1]
        check_harness(h)


async def test_a_signal_with_an_id_is_one_signal_whoever_sends_it() -> None:
    async with harness() as h:
        receiver = await h.start(sig_collects, names=["n", "end"], run_id="to")
        await h.start(sig_sender, to="to", count=1, id="same")
        await receiver.signal("n", 0, id="same")
        await h.advance(hours=2)
        assert [w.name for w in await receiver.waits()] == ["end"]
        await receiver.signal("end")
        assert await receiver.result() == [0, None]


@pytest.mark.parametrize("to", ["nobody", "done"])
async def test_a_signal_to_a_run_that_is_not_there_or_has_ended_fails_the_body_that_sends_it(to: str) -> None:
    @hf.workflow(name=f"sig_to_{to}")
    async def sends(ctx: hf.Context) -> str:
        try:
            await ctx.signal(to, "n", 1)
        except hf.HoldfastError as e:
            return e.code
        return "sent"

    async with harness() as h:
        await h.start(sig_collects, names=[], run_id="done")
        run = await h.start(sends)
        assert await run.result() == ("unknown_run" if to == "nobody" else "refused")


async def test_another_payload_under_the_same_id_is_an_error_in_the_body_that_sends_it() -> None:
    @hf.workflow
    async def sig_contradicts(ctx: hf.Context) -> str:
        await ctx.signal("to", "n", 1, id="a")
        try:
            await ctx.signal("to", "n", 2, id="a")
        except hf.Refused as e:
            return e.code
        return "sent"

    async with harness() as h:
        await h.start(sig_collects, names=["n", "n"], run_id="to")
        run = await h.start(sig_contradicts)
        assert await run.result() == "refused"
        assert [w.name for w in await h.get("to").waits()] == ["n"]


async def test_a_sync_body_sends_signals_too(db: Path) -> None:
    @hf.node
    def sends(ctx: hf.SyncContext) -> None:
        ctx.signal("to", "n", 5)

    @hf.workflow
    def sig_from_a_thread() -> None:
        sends()

    async with hf.open(url(db)) as engine:
        receiver = await engine.start(sig_collects, names=["n"], run_id="to")
        await engine.start(sig_from_a_thread)
        assert await receiver.result() == [5]
    check_file(db)


async def test_two_runs_play_ping_pong_over_crashes() -> None:
    @hf.workflow
    async def sig_player(ctx: hf.Context, other: str, serves: bool) -> list[int]:
        seen: list[int] = []
        if serves:
            await ctx.signal(other, "ball", 1)
        while len(seen) < 5:
            ball = await ctx.receive("ball", schema=int)
            seen.append(ball)
            if ball < 10:
                await ctx.signal(other, "ball", ball + 1)
        return seen

    async with harness() as h:
        one = await h.start(sig_player, other="two", serves=False, run_id="one")
        two = await h.start(sig_player, other="one", serves=True, run_id="two")
        await h.crash()
        assert await one.result() == [1, 3, 5, 7, 9]
        assert await two.result() == [2, 4, 6, 8, 10]
        check_harness(h)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((5, "x"), "ctx.signal: run is a name, not 5"),
        (("r", 7), "ctx.signal: name is a name, not 7"),
        (("r", ""), "ctx.signal: name is a name, not ''"),
        (("r", "x", None, 3), "ctx.signal: id is a text, not 3"),
    ],
)
async def test_a_body_that_sends_what_is_no_signal_is_told_and_nothing_of_it_is_recorded(
    db: Path, args: tuple[Any, ...], message: str
) -> None:
    run_id, name, payload, signal_id = (*args, None, None)[:4]

    @hf.workflow(name=f"sig_wrong_{message[12:15]}_{name}")
    async def sends_what_is_none(ctx: hf.Context) -> None:
        await ctx.signal(run_id, name, payload, id=signal_id)

    async with hf.open(url(db)) as engine:
        run = await engine.start(sends_what_is_none)
        with pytest.raises(hf.RunFailed, match=message):
            await run.result()
        assert "StepCompleted" not in types(await run.events())
    check_file(db)
