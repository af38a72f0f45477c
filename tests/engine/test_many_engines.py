"""Several engines on one store: who takes what, how much, in which order, and what they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.model import handlers
from holdfast.model.capabilities import EngineCapabilities
from holdfast.store.clocks import SystemClock
from holdfast.store.row_types import EngineRow
from holdfast.store.urls import store_at
from tests.engine.kit import hold_time, owner, types, until, until_async, waiting
from tests.servers import PostgresServer

ORDER: list[str] = []
AT_WORK: dict[str, int] = {"now": 0, "most": 0, "wanted": 0}
"""How many are at work now, how many were at once at most, and how many must have been before anybody may leave."""
GATES: dict[str, asyncio.Event] = {}
AN_HOUR = 3_600_000_000
"""In microseconds, as the store counts."""


@pytest.fixture(autouse=True)
def _nothing_has_run() -> None:
    ORDER.clear()
    AT_WORK.update(now=0, most=0, wanted=0)
    GATES.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of its own, of either kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runs.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    yield server.url(schema=f"many_{abs(hash(request.node.name)):x}")


async def _works(name: str) -> None:
    ORDER.append(name)
    AT_WORK["now"] += 1
    AT_WORK["most"] = max(AT_WORK["most"], AT_WORK["now"])
    await asyncio.sleep(0.02)
    await until(lambda: AT_WORK["most"] >= AT_WORK["wanted"], "there is room for more")
    AT_WORK["now"] -= 1


@hf.workflow
async def many_first(ctx: hf.Context, n: int) -> int:
    await _works(f"first {n}")
    return n


@hf.workflow
async def many_second(ctx: hf.Context, n: int) -> int:
    await _works(f"second {n}")
    return n


@hf.workflow
async def many_gated(ctx: hf.Context, name: str) -> str:
    await GATES.setdefault(name, asyncio.Event()).wait()
    return name


@hf.workflow
async def many_asks(ctx: hf.Context) -> str:
    answer: str = await ctx.ask("Which?", schema=str)
    ORDER.append(answer)
    return answer


@hf.workflow(queue="slow")
async def many_slow(ctx: hf.Context, name: str) -> str:
    await GATES.setdefault(name, asyncio.Event()).wait()
    return f"{name} was slow"


@hf.workflow
async def many_parent(ctx: hf.Context, name: str) -> str:
    return f"parent of {await ctx.child(many_slow, name=name)}"


@hf.workflow(concurrency=1)
async def many_one_at_a_time(ctx: hf.Context, n: int) -> int:
    await _works(f"one {n}")
    return n


@hf.node(concurrency=2)
async def many_two_bodies(n: int) -> int:
    await _works(f"body {n}")
    return n


@hf.workflow
def many_limited_node(n: int):
    return many_two_bodies(n)


@hf.workflow(on_code_change="fail")
async def many_strict(ctx: hf.Context) -> str:
    return str(await ctx.ask("Go on?", schema=str))


# --- starting from anywhere -------------------------------------------------------------------------------------


async def test_an_engine_that_does_not_drive_only_writes_and_some_engine_picks_the_run_up(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        run = await client.start(many_first, n=1, run_id="one")
        assert (await run.status(), owner(client, "one")) == ("created", None)
        await asyncio.sleep(0.2)
        assert (ORDER, await run.status()) == ([], "created")
        async with hf.open(address):
            assert await run.result(timeout=30) == 1
        assert types(await run.events())[0] == "RunCreated"


async def test_a_run_that_only_was_written_is_the_same_run_when_it_is_started_again(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        await client.start(many_first, n=1, run_id="one")
        assert (await client.start(many_first, n=1, run_id="one")).run_id == "one"
        with pytest.raises(hf.RunExists):
            await client.start(many_first, n=2, run_id="one")
        assert len(await client.list()) == 1


async def test_a_client_answers_with_no_engine_running_and_runs_nothing_itself(address: str) -> None:
    async with hf.open(address, idle_seconds=0.01) as engine:
        await engine.start(many_asks, run_id="asks")
        (asked,) = await waiting(engine.get("asks"), "input")
    async with hf.open(address, drive=False) as client:
        run = client.get("asks")
        await run.respond(asked.wait_id, "this")
        await until(lambda: owner(client, "asks") is None)
        await asyncio.sleep(0.2)
        assert (ORDER, await run.status()) == ([], "running")
        async with hf.open(address):
            assert await run.result(timeout=30) == "this"


async def test_a_client_is_told_that_it_cannot_release_a_hold(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        await client.start(many_first, n=1, run_id="held")
        row = client.store.run("held")
        assert row is not None
        assert client.store.set_hold(row.run_no, row.token, row.engine, "crash_loop: it kills engines")
        with pytest.raises(hf.Refused, match=r"on hold .crash_loop.* `holdfast resume held`"):
            await client.resume("held")
        assert client.store.run("held").hold is not None


# --- queues -----------------------------------------------------------------------------------------------------


async def test_an_engine_takes_only_runs_of_its_queues(address: str) -> None:
    async with hf.open(address, queues=["default"]) as plain, hf.open(address, queues=["slow", "gpu"]) as slow:
        run = await plain.start(many_slow, name="a", run_id="by workflow")
        other = await plain.start(many_gated, name="b", run_id="by run", queue="gpu")
        own = await plain.start(many_gated, name="c", run_id="own")
        for run_id in ("by workflow", "by run"):
            await until(lambda run_id=run_id: owner(plain, run_id) == slow.lease.engine)
        assert owner(plain, "own") == plain.lease.engine
        await until(lambda: len(GATES) == 3)
        for gate in GATES.values():
            gate.set()
        assert [await r.result(timeout=30) for r in (run, other, own)] == ["a was slow", "b", "c"]


async def test_a_child_of_another_queue_is_driven_by_who_serves_it_and_reports_to_its_parent(address: str) -> None:
    async with hf.open(address, queues=["default"]) as plain, hf.open(address, queues=["slow"]) as slow:
        run = await plain.start(many_parent, name="x", run_id="parent")

        def driven_elsewhere() -> bool:
            children = [row for row in plain.store.runs() if row.workflow == "many_slow"]
            return bool(children) and children[0].engine == slow.lease.engine

        await until(driven_elsewhere)
        await until(lambda: "x" in GATES)
        GATES["x"].set()
        assert await run.result(timeout=30) == "parent of x was slow"


async def test_a_run_whose_queue_nobody_serves_says_so(address: str) -> None:
    async with hf.open(address, queues=["default"]) as engine:
        run = await engine.start(many_gated, name="b", queue="gpu", run_id="lonely")
        told = await run.why()
        assert "No engine that runs serves the queue 'gpu'" in told


async def test_a_run_whose_code_nobody_has_says_which_is_missing(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        run = await client.start(many_limited_node, n=1, run_id="unknown")
        assert "No engine is running" in await run.why()
        offer = EngineCapabilities(handlers=frozenset({"somewhere.else"}), lease_seconds=60)
        now = client.store.now()
        client.store.register_engine(EngineRow("eng_other", "elsewhere", 1, "", now, now + 60_000_000, offer.encode()))
        node = many_limited_node.definition.nodes[0].uses
        assert f"have not loaded the code of workflow many_limited_node ({node})" in await run.why()


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1_000])
async def test_a_queue_that_cannot_be_a_name_is_refused_and_nothing_is_started(tmp_path: Path, name: str) -> None:
    async with hf.open(f"sqlite:///{tmp_path / 'runs.db'}") as engine:
        with pytest.raises(hf.HoldfastError, match="queue"):
            await engine.start(many_first, n=1, queue=name)
        assert await engine.list() == []


@pytest.mark.parametrize("queues", [[""], ["a\0b"], "reports", []])
async def test_queues_that_no_run_can_be_in_are_refused(tmp_path: Path, queues: Any) -> None:
    with pytest.raises(hf.UsageError, match="queue"):
        async with hf.open(f"sqlite:///{tmp_path / 'runs.db'}", queues=queues):
            pass


@pytest.mark.parametrize("priority", [2**63, -(2**63) - 1, 10**30])
async def test_a_priority_that_no_database_can_compare_is_refused(address: str, priority: int) -> None:
    async with hf.open(address, drive=False) as client:
        with pytest.raises(hf.UsageError, match="priority"):
            await client.start(many_first, n=1, priority=priority)
        assert await client.list() == []


# --- how much, and in which order -------------------------------------------------------------------------------


async def test_an_engine_has_at_most_its_concurrency_of_runs_at_work(address: str) -> None:
    AT_WORK["wanted"] = 3
    async with hf.open(address, drive=False) as client:
        runs = [await client.start(many_first, n=n) for n in range(12)]
        async with hf.open(address, concurrency=3):
            assert [await run.result(timeout=60) for run in runs] == list(range(12))
    assert AT_WORK["most"] == 3


async def test_what_an_engine_has_no_room_for_is_written_for_whoever_has(address: str) -> None:
    async with hf.open(address, concurrency=1) as full, hf.open(address, concurrency=1) as free:
        held = await full.start(many_gated, name="held", run_id="held")
        other = await full.start(many_gated, name="other", run_id="other")
        await until(lambda: owner(full, "other") == free.lease.engine)
        await until(lambda: len(GATES) == 2)
        for gate in GATES.values():
            gate.set()
        assert [await held.result(timeout=30), await other.result(timeout=30)] == ["held", "other"]


async def test_waiting_runs_take_no_room(address: str) -> None:
    async with hf.open(address, concurrency=1, idle_seconds=30) as engine:
        asks = await engine.start(many_asks)
        (asked,) = await waiting(asks, "input")
        assert await (await engine.start(many_first, n=1)).result(timeout=30) == 1
        await asks.respond(asked.wait_id, "done")
        assert await asks.result(timeout=30) == "done"


async def test_workflows_have_turns_and_priority_counts_inside_each(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        runs: list[Any] = [await client.start(many_first, n=n) for n in range(6)]
        runs += [await client.start(many_second, n=n, priority=n) for n in range(2)]
        async with hf.open(address, concurrency=1):
            for run in runs:
                await run.result(timeout=60)
    assert ORDER[:4] == ["first 0", "second 1", "first 1", "second 0"]
    assert ORDER[4:] == ["first 2", "first 3", "first 4", "first 5"]


async def test_timers_wake_no_more_runs_than_there_is_room_for(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        runs = [await client.start(many_sleepy, n=n) for n in range(6)]
        async with hf.open(address, concurrency=2, idle_seconds=0.01) as engine:
            clock = hold_time(engine)
            await until(lambda: client.store.counts().get("suspended") == 6 and not engine.actors, "all are let go of")
            clock.go_on()
            assert [await run.result(timeout=60) for run in runs] == list(range(6))
    assert AT_WORK["most"] <= 2


async def test_runs_that_wake_in_memory_are_no_more_than_may_be_at_work(address: str) -> None:
    async with hf.open(address, concurrency=2, idle_seconds=600) as engine:
        clock = hold_time(engine)
        runs = []
        for n in range(6):  # one after the other: there is room for each of them
            runs.append(await engine.start(many_sleepy, n=n))
            await until(lambda: engine.store.counts().get("suspended") == n + 1)  # noqa: B023
        assert len(engine.actors) == 2
        clock.go_on()
        assert [await run.result(timeout=60) for run in runs] == list(range(6))
    assert AT_WORK["most"] <= 2


async def test_who_came_while_others_had_just_begun_to_wait_is_not_one_too_many_for_long(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(address, concurrency=2, idle_seconds=600) as engine:
        hold_time(engine)
        commit = engine.store.commit

        def commit_slowly(group: Any) -> Any:
            time.sleep(0.1)
            return commit(group)

        monkeypatch.setattr(engine.store, "commit", commit_slowly)
        await asyncio.gather(*(engine.start(many_sleepy, n=n) for n in range(2)))
        await until(lambda: all(actor.state.status == "suspended" for actor in engine.actors.values()))
        await engine.start(many_sleepy, n=2)
        await until(lambda: engine.store.counts().get("suspended") == 3)
        await until(lambda: len(engine.actors) <= 2, "the others are let go of")


@hf.workflow
async def many_sleepy(ctx: hf.Context, n: int) -> int:
    await ctx.sleep(0.3)
    await _works(f"sleepy {n}")
    return n


async def _asleep_and_due(address: str, workflow: hf.Workflow[..., Any], *inputs: dict[str, Any]) -> list[str]:
    """Runs that nobody owns and whose time has come."""
    async with hf.open(address, idle_seconds=0.01) as engine:
        hold_time(engine)
        started = [await engine.start(workflow, **values) for values in inputs]
        await until(lambda: all(owner(engine, run.run_id) is None for run in started))
    async with hf.open(address, drive=False) as client:
        names = [workflow.definition.name]
        await until(lambda: len(client.store.due_timers(client.clock.now(), len(inputs), names)) == len(inputs))
    return [run.run_id for run in started]


async def test_a_full_engine_rests_although_more_timers_are_due(address: str) -> None:
    asleep = await _asleep_and_due(address, many_sleepy_gated, *({"name": f"gate {n}"} for n in range(3)))
    async with hf.open(address, concurrency=1) as engine:
        await until(lambda: len(GATES) == 1)
        assert engine.custody.room() == 0
        assert not engine.claims.has_more_due_timers
        for n in range(3):
            GATES.setdefault(f"gate {n}", asyncio.Event()).set()
        assert [await engine.get(run_id).result(timeout=30) for run_id in asleep] == ["gate 0", "gate 1", "gate 2"]


@hf.workflow
async def many_sleepy_gated(ctx: hf.Context, name: str) -> str:
    await ctx.sleep(1)
    await GATES.setdefault(name, asyncio.Event()).wait()
    return name


async def test_what_is_due_wakes_though_ready_runs_wait_for_every_place(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server's clock, as an engine knows it, is behind for as long as the answer took: then nothing is due yet.
    monkeypatch.setattr("holdfast.engine.engine.clock_of", lambda store: SystemClock())
    (asleep,) = await _asleep_and_due(address, many_sleepy_long, {"n": 0})
    async with hf.open(address, drive=False) as client:
        runs = [await client.start(many_first, n=n) for n in range(30)]
        async with hf.open(address, concurrency=1):
            for run in [*runs, client.get(asleep)]:
                await run.result(timeout=60)
    assert ORDER.index("sleepy 0") < 10, "by turns; not behind all thirty"


async def test_runs_that_are_about_to_wake_take_room(address: str) -> None:
    AT_WORK["wanted"] = 2
    asleep = await _asleep_and_due(address, many_sleepy_long, *({"n": n} for n in range(8)))
    async with hf.open(address, concurrency=2) as engine:
        for run_id in asleep:
            await engine.get(run_id).result(timeout=60)
    assert AT_WORK["most"] == 2


@hf.workflow
async def many_sleepy_long(ctx: hf.Context, n: int) -> int:
    await ctx.sleep(1)
    await _works(f"sleepy {n}")
    return n


# --- what they share --------------------------------------------------------------------------------------------


async def test_a_workflows_concurrency_counts_over_all_engines(address: str) -> None:
    async with hf.open(address) as one, hf.open(address) as two:
        runs = [await engine.start(many_one_at_a_time, n=n) for n in range(4) for engine in (one, two)]
        assert sorted([await run.result(timeout=60) for run in runs]) == sorted([*range(4), *range(4)])
    assert AT_WORK["most"] == 1


async def test_runs_that_wait_for_their_workflows_place_do_not_keep_others_out(address: str) -> None:
    async with hf.open(address, drive=False) as client:
        limited = [await client.start(many_one_gated, name=f"limited {n}") for n in range(6)]
        async with hf.open(address, concurrency=3):
            await until(lambda: "limited 0" in GATES)
            free = [await client.start(many_first, n=n) for n in range(4)]
            assert [await run.result(timeout=30) for run in free] == list(range(4))
            for n in range(6):
                GATES.setdefault(f"limited {n}", asyncio.Event()).set()
            assert len([await run.result(timeout=60) for run in limited]) == 6


async def test_a_nodes_concurrency_counts_over_all_engines(address: str) -> None:
    AT_WORK["wanted"] = 2
    async with hf.open(address) as one, hf.open(address) as two:
        runs = [await engine.start(many_limited_node, n=n) for n in range(6) for engine in (one, two)]
        assert len([await run.result(timeout=60) for run in runs]) == 12
    assert AT_WORK["most"] == 2


async def test_the_places_of_a_dead_engine_are_free_with_its_lease(address: str) -> None:
    store = store_at(address)
    store.open()
    try:
        now = store.now()
        store.register_engine(
            EngineRow("eng_dead", "elsewhere", 1, "", now, now + AN_HOUR, EngineCapabilities().encode())
        )
        assert store.take_slots("eng_dead", "workflow:many_one_at_a_time", 1, 1) == 1
        async with hf.open(address) as engine:
            run = await engine.start(many_one_at_a_time, n=1, run_id="next")
            assert await run.status() == "created"
            assert "waits for its turn" in await run.why()
            assert store.renew_engine("eng_dead", now)  # its lease has run out
            assert await run.result(timeout=30) == 1
    finally:
        store.close()


async def test_places_that_nobody_uses_are_given_back_to_the_others(address: str) -> None:
    async with hf.open(address) as one, hf.open(address) as two:
        assert await (await one.start(many_one_at_a_time, n=1)).result(timeout=30) == 1
        assert await (await two.start(many_one_at_a_time, n=2)).result(timeout=30) == 2
        assert await (await one.start(many_one_at_a_time, n=3)).result(timeout=30) == 3


@hf.node(concurrency=2)
def many_in_a_thread(n: int) -> int:
    time.sleep(0.01)
    return n


@hf.node
def many_thread_only(n: int) -> int:
    time.sleep(0.01)
    return n


@hf.workflow
def many_threads(n: int):
    return [many_in_a_thread(n), many_thread_only(n)]


async def test_who_needs_a_thread_and_a_shared_place_gets_both_however_few_threads_there_are(address: str) -> None:
    async with hf.open(address, threads=1) as engine:
        runs = [await engine.start(many_threads, n=n) for n in range(8)]
        assert [await run.result(timeout=60) for run in runs] == [[n, n] for n in range(8)]
        assert engine.slots.used() == {}


async def test_an_engine_that_was_declared_dead_asks_anew_for_its_places(address: str) -> None:
    async with hf.open(address) as engine, hf.open(address, drive=False) as other:
        gated = await engine.start(many_one_gated, name="a", run_id="a")
        waits = await engine.start(many_one_gated, name="b", run_id="b")
        await until(lambda: "a" in GATES)
        other.store.remove_engine(engine.lease.engine)
        engine.lease.renew_once()
        await until(lambda: engine.lease.engine == owner(engine, "a"))
        await until(lambda: "a" in GATES or "b" in GATES)
        for name in ("a", "b"):
            GATES.setdefault(name, asyncio.Event()).set()
        assert [await gated.result(timeout=30), await waits.result(timeout=30)] == ["a", "b"]


@hf.workflow(concurrency=1)
async def many_one_gated(ctx: hf.Context, name: str) -> str:
    await GATES.setdefault(name, asyncio.Event()).wait()
    return name


# --- code -------------------------------------------------------------------------------------------------------


async def test_a_run_that_refuses_other_code_is_left_to_an_engine_that_has_its_own(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(address, idle_seconds=0.01) as engine:
        run = await engine.start(many_strict, run_id="strict")
        (asked,) = await waiting(run, "input")
        created: Any = (await run.events())[0]
        await until(lambda: owner(engine, "strict") is None)
    fingerprints = created.data["fingerprints"]
    assert fingerprints
    changed = dict.fromkeys(fingerprints, "other code")
    for name in fingerprints:
        found = handlers.find(name)
        assert found is not None
        other = msgspec.structs.replace(found, fingerprint=changed[name])
        monkeypatch.setitem(handlers._handlers, name, lambda other=other: other)
    async with hf.open(address, drive=False) as client:
        now = client.store.now()
        offer = EngineCapabilities(handlers=frozenset(handlers.names()), fingerprints=fingerprints, lease_seconds=60)
        row = EngineRow("eng_right", "elsewhere", 1, "", now, now + 60_000_000, offer.encode())
        client.store.register_engine(row)
        await client.get("strict").respond(asked.wait_id, "yes")
        async with hf.open(address) as engine:
            await asyncio.sleep(0.5)
            found_row = engine.store.run("strict")
            assert found_row is not None
            assert (found_row.engine, found_row.hold) == (None, None)
            assert found_row.last_engine == client.lease.engine, "who only looked at it has not driven it"
            client.store.remove_engine("eng_right")

    async def is_held() -> bool:
        row = engine.store.run("strict")
        return row is not None and (row.hold or "").startswith("code_changed")

    async with hf.open(address) as engine:
        await until_async(is_held)


@hf.workflow(on_code_change="fail")
async def many_strict_quick(ctx: hf.Context, n: int) -> int:
    return n


async def test_runs_that_are_left_to_others_do_not_hide_those_behind_them(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(address, drive=False) as client:
        for n in range(3):
            await client.start(many_strict_quick, n=n, run_id=f"old {n}")
        created: Any = (await client.get("old 0").events())[0]
        now = client.store.now()
        offer = EngineCapabilities(
            handlers=frozenset(handlers.names()), fingerprints=created.data["fingerprints"], lease_seconds=60
        )
        client.store.register_engine(EngineRow("eng_right", "elsewhere", 1, "", now, now + 60_000_000, offer.encode()))
    for name in created.data["fingerprints"]:
        found = handlers.find(name)
        assert found is not None
        other = msgspec.structs.replace(found, fingerprint="other code")
        monkeypatch.setitem(handlers._handlers, name, lambda other=other: other)
    async with hf.open(address, drive=False) as client:
        new = await client.start(many_strict_quick, n=9)
        async with hf.open(address, concurrency=1):
            assert await new.result(timeout=30) == 9
        assert [await client.get(f"old {n}").status() for n in range(3)] == ["created"] * 3
