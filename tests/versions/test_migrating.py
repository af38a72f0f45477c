"""Migrating: runs are moved to another version, and what they wait for stays."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import check_journal, until_async
from tests.versions.flows import declare, vs_first, vs_second, vs_third

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_has_run() -> None:
    RAN.clear()


@hf.node
async def vs_counted(ctx: hf.Context, x: int) -> int:
    RAN.append(f"{ctx.run_id}:counted")
    return x + 1


@hf.node
async def vs_asks(ctx: hf.Context, x: int) -> int:
    RAN.append(f"{ctx.run_id}:asks")
    return x + int(await ctx.ask("How many?", schema=int))


def asking(*later: Any, **options: Any) -> hf.Workflow[..., Any]:
    """Count, ask, then what a version does with the answer."""

    def vs_asking(x: int) -> Any:
        x = vs_asks(vs_counted(x))
        for node in later:
            x = node(x)
        return x

    return declare(vs_asking, name="vs_asking", **options)


async def asked(engine: hf.Engine, run: hf.Run[Any]) -> str:
    async def open_question() -> str | None:
        waits = await run.waits()
        return waits[0].wait_id if waits and await run.status() == "suspended" else None

    found: str = await until_async(open_question)
    return found


def check(engine: hf.Engine, run_id: str) -> None:
    row = engine.store.run(run_id)
    assert row is not None
    check_journal(engine.store, row)


async def test_a_waiting_run_keeps_its_question_and_continues_under_the_new_version(address: str) -> None:
    async with hf.open(address) as engine:
        run = await engine.start(asking(), run_id="r", x=1)
        wait = await asked(engine, run)
        await engine.deploy(asking(vs_second))
        plan = await engine.plan_migration("r", 2)
        assert (plan["outcome"], plan["kept"], plan.get("lost")) == ("possible", ["vs_counted", "vs_asks"], None)
        await run.migrate(2, actor="ann")
        assert await asked(engine, run) == wait, "it is not asked again"
        (_, branch) = await run.branches()
        assert (branch["reason"], branch["actor"], branch["key_epoch"], branch["version"]) == ("migrated", "ann", 1, 2)
        await run.respond(wait, 3)
        assert await run.result() == 50
        assert RAN.count("r:counted") == 1
        check(engine, "r")
        await run.migrate(2)  # it has the version already: nothing happens
        assert len(await run.branches()) == 2


async def test_an_answer_that_was_given_before_is_not_lost(address: str) -> None:
    """The body has its answer and has not run on: no engine that has the code drives the run."""
    async with hf.open(address) as engine:
        run = await engine.start(asking(), run_id="r", x=1)
        wait = await asked(engine, run)
        await engine.deploy(asking(vs_second))
    async with hf.open(address, drive=False) as operator:
        await operator.get("r").respond(wait, 3)
        await operator.get("r").migrate(2)
        assert (await operator.get("r").show())["version"] == 2
    async with hf.open(address) as engine:
        assert await engine.get("r").result() == 50
        assert RAN.count("r:counted") == 1
        check(engine, "r")


async def test_held_signals_timers_and_children_stay(address: str) -> None:
    @hf.node
    async def vs_sleeps(ctx: hf.Context, x: int) -> int:
        await ctx.sleep(3600)
        return x

    @hf.node
    async def vs_child_of(ctx: hf.Context, x: int) -> int:
        return int(await ctx.child(child, x=x))

    @hf.node
    async def vs_listens(ctx: hf.Context, x: int) -> int:
        return x + int(await ctx.receive("later"))

    child = asking()

    def flow(*later: Any) -> hf.Workflow[..., Any]:
        def vs_waits(x: int) -> Any:
            vs_sleeps(x)
            total = vs_listens(vs_child_of(x))
            for node in later:
                total = node(total)
            return total

        return declare(vs_waits, name="vs_waits")

    async with hf.open(address) as engine:
        run = await engine.start(flow(), run_id="r", x=1)

        async def both_wait() -> bool:
            return {wait.kind for wait in await run.waits()} == {"timer", "child"}

        await until_async(both_wait)
        await run.signal("later", 7)
        before = {wait.wait_id for wait in await run.waits()}
        (child_id,) = [one["run_id"] for one in await engine.list(workflow="vs_asking")]
        timers = engine.store.set_timers([engine.store.run("r").run_no])  # type: ignore[union-attr]
        await engine.deploy(flow(vs_third))
        await run.migrate(2)
        await until_async(both_wait)
        assert {wait.wait_id for wait in await run.waits()} == before
        after = engine.store.set_timers([engine.store.run("r").run_no])  # type: ignore[union-attr]
        assert [(t.timer, t.due_at) for t in after] == [(t.timer, t.due_at) for t in timers]
        the_child = engine.get(child_id)
        await the_child.respond(await asked(engine, the_child), 2)

        async def received() -> bool:
            return any(node["node"] == "vs_third" and node["status"] == "completed" for node in await run.nodes())

        await until_async(received)
        assert RAN.count(f"{child_id}:counted") == 1
        check(engine, "r")


async def test_what_has_started_and_is_not_kept_is_refused_unless_it_is_named(address: str) -> None:
    def other() -> hf.Workflow[..., Any]:
        def vs_asking(x: int) -> Any:
            return vs_asks(vs_first.named("vs_counted")(x))

        return declare(vs_asking, name="vs_asking")

    async with hf.open(address) as engine:
        run = await engine.start(asking(), run_id="r", x=1)
        wait = await asked(engine, run)
        await engine.deploy(other())
        plan = await engine.plan_migration("r", 2)
        assert (plan["outcome"], plan["lost"]) == ("lost", ["vs_counted", "vs_asks"])
        with pytest.raises(hf.Refused, match="does not keep vs_counted, vs_asks") as found:
            await run.migrate(2)
        assert found.value.reason == "lost"
        with pytest.raises(hf.Refused, match="does not keep vs_asks"):
            await run.migrate(2, drop=["vs_counted"])
        assert (await run.show())["version"] == 1
        assert await asked(engine, run) == wait
        await run.migrate(2, drop=["vs_counted", "vs_asks"])
        again = await asked(engine, run)
        assert again != wait, "it asks anew"
        await run.respond(again, 5)
        assert await run.result() == 7
        check(engine, "r")


async def test_a_condition_of_the_new_version_reads_what_was_made_before(address: str) -> None:
    """The old version had captured neither the output, nor the input, nor has it the new input."""

    def flow(*, conditional: bool) -> hf.Workflow[..., Any]:
        def plain(x: int) -> Any:
            return vs_asks(vs_counted(x))

        def routed(x: int, limit: int = 2) -> Any:
            counted = vs_counted(x)
            answer = vs_asks(counted)
            with hf.when((counted > limit) & (x > 1)):
                high = vs_second(answer)
            return hf.first(high, answer)

        return declare(routed if conditional else plain, name="vs_routed")

    async with hf.open(address) as engine:
        runs = [await engine.start(flow(conditional=False), run_id=f"r{x}", x=x) for x in (1, 5)]
        waits = [await asked(engine, run) for run in runs]
        await engine.deploy(flow(conditional=True))
        done = await engine.migrate("vs_routed", from_version=1, to=2)
        assert {one["outcome"] for one in done} == {"migrated"}
        for run, wait in zip(runs, waits, strict=True):
            await run.respond(wait, 1)
        assert [await run.result() for run in runs] == [3, 70]
        again = await engine.start("vs_routed", run_id="r5", x=5)
        assert again.run_id == "r5", "a repeated start is compared by the version that the run began with"
        for run in runs:
            check(engine, run.run_id)


async def test_what_cannot_be_moved_says_why_and_stays(address: str) -> None:
    def needs_more() -> hf.Workflow[..., Any]:
        def vs_asking(x: int, more: int) -> Any:
            return vs_asks(vs_counted(x))

        return declare(vs_asking, name="vs_asking")

    async with hf.open(address) as engine:
        run = await engine.start(asking(), run_id="r", x=1)
        wait = await asked(engine, run)
        await engine.deploy(needs_more())
        with pytest.raises(hf.Refused, match="requires the input more"):
            await run.migrate(2)
        assert (await engine.plan_migration("r", 2))["outcome"] == "impossible"
        with pytest.raises(hf.HoldfastError, match="has no version 9"):
            await run.migrate(9)
        await run.respond(wait, 1)
        assert await run.result() == 3
        with pytest.raises(hf.Refused, match="has ended"):
            await run.migrate(2)


async def test_durable_code_that_does_not_match_its_memory_is_held(address: str) -> None:
    def release(question: str, **options: Any) -> hf.Workflow[..., Any]:
        async def vs_code(ctx: hf.Context) -> Any:
            first = await ctx.step(vs_first if question == "one" else vs_second, 1)
            return first + int(await ctx.ask(question, schema=int))

        return declare(vs_code, name="vs_code", **options)

    async with hf.open(address) as engine:
        run = await engine.start(release("one"), run_id="r")
        await asked(engine, run)
    other = release("two", timeout="9h")
    async with hf.open(address) as engine:
        await engine.deploy(other)
        run = engine.get("r")
        await run.migrate(2)

        async def is_held() -> bool:
            row = engine.store.run("r")
            return row is not None and "code_changed" in (row.hold or "")

        async def shows_hold() -> bool:
            return await is_held() or "code" in await run.why()

        await until_async(shows_hold)
        assert (await run.show())["version"] == 2


async def test_a_version_is_retired_once_its_runs_are_moved(address: str) -> None:
    async with hf.open(address) as engine:
        old = asking()
        runs = [await engine.start(old, run_id=f"r{n}", x=n) for n in range(3)]
        for run in runs:
            await asked(engine, run)
        new = asking(vs_second)
        checked = await engine.check_running(new)
        assert [(one["outcome"], one["to_version"]) for one in checked] == [("possible", 2)] * 3
        assert len(await engine.versions("vs_asking")) == 1, "nothing was deployed"
        await engine.deploy(new)
        planned = await engine.migrate("vs_asking", from_version=1, to=2, dry_run=True)
        assert {one["outcome"] for one in planned} == {"possible"}
        with pytest.raises(hf.Refused, match="3 runs of it are unfinished"):
            await engine.retire("vs_asking", 1)
        await engine.migrate("vs_asking", from_version=1, to=2)
        await engine.retire("vs_asking", 1)
        with pytest.raises(hf.Refused, match="is retired"):
            await runs[0].migrate(1)


WRITES = ("commit", "send", "claim", "release")


class Dies:
    """The writes of one engine: it dies at the n-th, before it happens or after."""

    def __init__(self, store: Any, at: int, *, after: bool) -> None:
        self.left = at
        self.after = after
        for verb in WRITES:
            setattr(store, verb, self._counted(getattr(store, verb)))

    def _counted(self, write: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise hf.OutcomeUnknown("the process died before this write")
            done = write(*args, **options)
            if self.left == 0:
                raise hf.OutcomeUnknown("the process died after this write")
            return done

        return counted


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_any_write_of_a_migration_moves_the_run_once_or_not_at_all(
    tmp_path: Path, *, after: bool
) -> None:
    """The engine dies at its first write, its second, ... until none is left; the same request completes it."""
    for at in range(1, 20):
        address, run_id = f"sqlite:///{tmp_path}/{at}-{after}.db", f"r{at}"
        async with hf.open(address) as engine:
            wait = await asked(engine, await engine.start(asking(), run_id=run_id, x=1))
            await engine.deploy(asking(vs_second))
        dies = None
        with contextlib.suppress(hf.HoldfastError):
            async with hf.open(address, drive=False) as operator:
                dies = Dies(operator.store, at, after=after)
                await operator.get(run_id).migrate(2)
        assert dies is not None
        async with hf.open(address) as engine:
            run = engine.get(run_id)
            await run.migrate(2)
            assert await asked(engine, run) == wait
            assert [branch["reason"] for branch in await run.branches()] == ["start", "migrated"]
            await run.respond(wait, 3)
            assert await run.result() == 50
            assert RAN.count(f"{run_id}:counted") == 1
            check(engine, run_id)
        if dies.left > 0:
            assert at > 3, "there are writes to die at"
            return
    raise AssertionError("a migration of one run makes fewer writes than this")


@pytest.mark.slow
async def test_a_thousand_waiting_runs_are_moved_and_answered_before_and_after(address: str) -> None:
    count = 1_000
    async with hf.open(address, idle_seconds=0.1) as engine:
        old = asking()
        for at in range(0, count, 200):
            await asyncio.gather(*(engine.start(old, run_id=f"r{n}", x=n) for n in range(at, at + 200)))
        runs = [engine.get(f"r{n}") for n in range(count)]
        waits = [await asked(engine, run) for run in runs]
        await engine.deploy(asking(vs_second))
        moving = asyncio.create_task(engine.migrate("vs_asking", from_version=1, to=2))
        for n in range(100):  # answered while others are being moved: under either version
            await runs[n].respond(waits[n], 1)
        done = await moving
        assert {one["outcome"] for one in done} <= {"migrated", "impossible"}
        assert all("has ended" in one["why"] for one in done if one["outcome"] == "impossible")
        for n in range(100, count):
            assert (await runs[n].waits())[0].wait_id == waits[n]
            await runs[n].respond(waits[n], 1)
        results = [await run.result() for run in runs]
        by_id = {row.run_id: row.version for row in engine.store.runs(limit=2_000)}
        versions = [by_id[f"r{n}"] for n in range(count)]
        assert set(versions[100:]) == {2}
        assert results == [(n + 2) * (10 if versions[n] == 2 else 1) for n in range(count)]
        assert all(RAN.count(f"r{n}:counted") == 1 for n in (0, 50, 500, 999))
        for n in (0, 99, 100, 999):
            check(engine, f"r{n}")
