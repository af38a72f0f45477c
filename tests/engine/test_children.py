"""Children: runs of their own that report once to whoever started them."""

from __future__ import annotations

import asyncio
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.store.sqlite.sqlite_store import SqliteStore
from tests.engine.kit import check_file, types, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.workflow
async def doubles(ctx: hf.Context, n: int) -> int:
    return n * 2


@hf.workflow
async def fails_for(ctx: hf.Context, why: str = "no") -> int:
    raise ValueError(why)


@hf.node(inline=True)
def plus_one(n: int) -> int:
    return n + 1


async def _has(run: hf.Run, status: str) -> bool:
    return await run.status() == status


async def test_a_child_gives_its_result_to_its_parent(db: Path) -> None:
    @hf.workflow
    async def parent(ctx: hf.Context) -> int:
        return await ctx.child(doubles, n=4) + await ctx.child(doubles, n=5)

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent)
        assert await run.result() == 18
        assert types(await run.events()).count("ChildStarted") == 2
        assert len(await engine.list(workflow="doubles")) == 2
    check_file(db)


async def test_a_workflow_called_in_a_graph_is_a_child_node(db: Path) -> None:
    @hf.workflow
    def graph(n: int):
        return plus_one(doubles(n=n))

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(graph, n=4)).result() == 9
    check_file(db)


async def test_the_parents_journal_says_when_its_child_started_and_how_it_ended(db: Path) -> None:
    @hf.workflow
    async def parent(ctx: hf.Context) -> int:
        return await ctx.child(doubles, n=4)

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent)
        await run.result()
        (started,) = [e for e in await run.events() if e.type == "ChildStarted"]
        child = engine.get(started.data["child"])
        created = (await child.events())[0]
        assert created.data["parent"] == {"run_id": run.run_id, "wait_id": started.data["wait_id"]}
        (ended,) = [e for e in await run.events() if e.type == "ChildEnded"]
        assert (ended.data["status"], ended.data["result"]) == ("completed", 8)


async def test_a_failed_child_raises_child_failed_in_the_parent(db: Path) -> None:
    caught: list[Any] = []

    @hf.workflow
    async def parent(ctx: hf.Context) -> str:
        try:
            await ctx.child(fails_for, why="weather")
        except hf.ChildFailed as e:
            caught.append(e)
            return "handled"
        return "not reached"

    @hf.workflow
    async def careless(ctx: hf.Context) -> int:
        return await ctx.child(fails_for, why="weather")

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(parent)).result() == "handled"
        with pytest.raises(hf.RunFailed, match="weather") as failed:
            await (await engine.start(careless)).result()
        assert failed.value.error.code == "child_failed"
    assert "ValueError: weather" in str(caught[0])
    assert caught[0].error.kinds[0] == "ValueError"
    check_file(db)


async def test_child_failed_names_the_child_also_when_it_is_remembered(db: Path) -> None:
    caught: list[hf.ChildFailed] = []

    @hf.workflow
    async def parent(ctx: hf.Context) -> None:
        try:
            await ctx.child(fails_for)
        except hf.ChildFailed as e:
            caught.append(e)
        await ctx.receive("go on")
        await ctx.child(fails_for)

    async with hf.open(url(db)) as engine:
        await engine.start(parent, run_id="above")
        await until(lambda: [wait for wait in engine.store.open_waits([1]) if wait.kind == "signal"])
        (child,) = await engine.list(workflow="fails_for")
    async with hf.open(url(db)) as engine:
        await engine.get("above").signal("go on")
        with pytest.raises(hf.RunFailed) as failed:
            await engine.get("above").result()
        other = next(row for row in await engine.list(workflow="fails_for") if row["run_id"] != child["run_id"])
    assert [e.run_id for e in caught] == [child["run_id"]] * 2
    assert failed.value.error.message == f"child {other['run_id']} of workflow fails_for has failed: ValueError: no"


@pytest.mark.parametrize(
    ("run_id", "child"), [("kid", "child kid of workflow liar"), (None, "a child of workflow liar")]
)
async def test_a_childs_result_of_a_wrong_type_names_the_child_and_its_workflow(
    db: Path, run_id: str | None, child: str
) -> None:
    @hf.workflow
    async def liar(ctx: hf.Context) -> int:
        return "seven"  # type: ignore[return-value]

    @hf.workflow
    async def parent(ctx: hf.Context) -> int:
        return await ctx.child(liar, run_id=run_id)

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed) as failed:
            await (await engine.start(parent)).result()
    error = failed.value.error
    assert error.code == "invalid_input"
    assert error.message.startswith(f"the result of {child} is not what that is annotated with: expected int, got str")


async def test_a_cancelled_child_raises_child_failed(db: Path) -> None:
    began = asyncio.Event()

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        began.set()
        await asyncio.Event().wait()

    @hf.workflow
    async def parent(ctx: hf.Context) -> str:
        try:
            await ctx.child(waits, run_id="the-child")
        except hf.ChildFailed as e:
            return str(e)
        return "not reached"

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent)
        await began.wait()
        await engine.get("the-child").cancel("not needed")
        assert "not needed" in await run.result()
    check_file(db)


async def test_cancelling_a_parent_cancels_its_child(db: Path) -> None:
    began, stopped = asyncio.Event(), []

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    @hf.workflow
    async def parent(ctx: hf.Context) -> None:
        await ctx.child(waits, run_id="kid")

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent)
        await began.wait()
        await run.cancel("all of it")
        with pytest.raises(hf.RunCancelled):
            await run.result()
        with pytest.raises(hf.RunCancelled):
            await engine.get("kid").result()
    assert stopped == [True]
    check_file(db)


async def test_a_failing_parent_cancels_its_child(db: Path) -> None:
    began = asyncio.Event()

    @hf.workflow
    async def waits(ctx: hf.Context) -> None:
        began.set()
        await asyncio.Event().wait()

    @hf.node
    async def boom() -> None:
        await began.wait()
        raise ValueError("boom")

    @hf.workflow
    def parent():
        return [waits(run_id="kid"), boom()]

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="boom"):
            await (await engine.start(parent)).result()
        with pytest.raises(hf.RunCancelled):
            await engine.get("kid").result()
    check_file(db)


async def test_a_detached_child_is_started_and_outlives_its_parent(db: Path) -> None:
    release = asyncio.Event()

    @hf.workflow
    async def free(ctx: hf.Context) -> str:
        await release.wait()
        return "free"

    @hf.workflow
    async def parent(ctx: hf.Context) -> str:
        return await ctx.child(free, detached=True)

    async with hf.open(url(db)) as engine:
        child_id = await (await engine.start(parent)).result(timeout=30)
        child = engine.get(child_id)
        assert await child.status() == "running"
        release.set()
        assert await child.result() == "free"
    check_file(db)


async def test_an_explicit_run_id_attaches_to_an_equal_run(db: Path) -> None:
    ran: list[int] = []

    @hf.workflow
    async def work(ctx: hf.Context, n: int) -> int:
        ran.append(n)
        return n * 10

    @hf.workflow
    async def parent(ctx: hf.Context, tag: str) -> int:
        return await ctx.child(work, n=3, run_id="shared")

    async with hf.open(url(db)) as engine:
        await (await engine.start(work, n=3, run_id="shared")).result()
        assert await (await engine.start(parent, tag="a")).result() == 30
        assert await (await engine.start(parent, tag="b")).result() == 30
    assert ran == [3]
    check_file(db)


async def test_attaching_to_a_run_that_is_still_at_work_waits_for_it(db: Path) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def work(ctx: hf.Context) -> str:
        began.set()
        await release.wait()
        return "shared"

    @hf.workflow
    async def parent(ctx: hf.Context) -> str:
        return await ctx.child(work, run_id="shared")

    async with hf.open(url(db), idle_seconds=0) as engine:
        await engine.start(work, run_id="shared")
        await began.wait()
        run = await engine.start(parent)
        await until_async(lambda: _has(run, "suspended"))
        release.set()
        assert await run.result() == "shared"
    check_file(db)


async def test_whoever_waits_for_a_run_that_ended_unnoticed_is_told_however_many_they_are(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pages = partialmethod(SqliteStore.waits_for_ended, limit=1)
    release, began = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def noticed_late(ctx: hf.Context) -> str:
        began.set()
        await release.wait()
        return "shared"

    @hf.workflow
    async def attached(ctx: hf.Context, tag: int) -> str:
        return await ctx.child(noticed_late, run_id="shared")

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(noticed_late, run_id="shared")
        await began.wait()
        runs = [await engine.start(attached, tag=i, run_id=f"p{i}") for i in range(4)]
        for run in runs:
            await until_async(lambda run=run: _has(run, "suspended"))
    release.set()
    async with hf.open(url(db), recover=False) as engine:
        await engine.resume("shared")
        await engine.get("shared").result()
    monkeypatch.setattr(SqliteStore, "waits_for_ended", in_pages)
    async with hf.open(url(db)) as engine:
        assert [await engine.get(f"p{i}").result(timeout=20) for i in range(4)] == ["shared"] * 4
    check_file(db)


async def test_an_explicit_run_id_that_is_taken_by_another_input_fails_the_node_and_changes_nothing(db: Path) -> None:
    @hf.workflow
    async def parent(ctx: hf.Context) -> int:
        return await ctx.child(doubles, n=4, run_id="taken")

    async with hf.open(url(db)) as engine:
        other = await engine.start(doubles, n=1, run_id="taken")
        await other.result()
        before = await other.events()
        with pytest.raises(hf.RunFailed, match="another input") as caught:
            await (await engine.start(parent)).result(timeout=30)
        assert caught.value.error.code == "run_exists"
        assert await other.events() == before
    check_file(db)


async def test_two_parents_that_want_the_same_child_at_once_share_it(db: Path) -> None:
    ran: list[int] = []

    @hf.workflow
    async def work(ctx: hf.Context, n: int) -> int:
        ran.append(n)
        return n

    @hf.workflow
    async def parent(ctx: hf.Context, tag: int) -> int:
        return await ctx.child(work, n=7, run_id="shared")

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(parent, tag=i) for i in range(6)]
        assert [await run.result(timeout=30) for run in runs] == [7] * 6
    assert ran == [7]
    check_file(db)


async def test_a_workflow_that_starts_itself_ends_at_the_depth_limit(db: Path) -> None:
    @hf.workflow
    async def matryoshka(ctx: hf.Context, depth: int) -> int:
        return await ctx.child("matryoshka", depth=depth + 1)

    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunFailed, match="nested deeper than 20"):
            await (await engine.start(matryoshka, depth=0)).result()
        assert len(await engine.list(workflow="matryoshka")) == 21
    check_file(db)


async def test_a_retry_after_a_failed_child_is_a_new_child(db: Path) -> None:
    tries: list[str] = []

    @hf.workflow
    async def flaky(ctx: hf.Context) -> str:
        tries.append(ctx.run_id)
        if len(tries) == 1:
            raise OSError("first")
        return "second"

    @hf.node(retry=hf.Retry(attempts=2, backoff=0, on=(hf.ChildFailed,)))
    async def caller(ctx: hf.Context) -> str:
        try:
            return await ctx.child(flaky)
        except hf.ChildFailed as e:
            raise hf.Fail(str(e), retryable=True) from None

    @hf.workflow
    def parent():
        return caller()

    async with hf.open(url(db)) as engine:
        assert await (await engine.start(parent)).result() == "second"
    assert len(set(tries)) == 2
    check_file(db)


async def test_a_parent_that_is_out_of_memory_wakes_for_its_childs_report(db: Path) -> None:
    release = asyncio.Event()

    @hf.workflow
    async def slow(ctx: hf.Context) -> str:
        await release.wait()
        return "late"

    @hf.workflow
    async def parent(ctx: hf.Context) -> str:
        return await ctx.child(slow)

    async with hf.open(url(db), idle_seconds=0) as engine:
        run = await engine.start(parent)
        number = engine.store.run(run.run_id).run_no
        await until(lambda: number not in engine.actors, "the parent is evicted")
        release.set()
        assert await run.result() == "late"
    check_file(db)


async def test_a_parent_finds_its_childs_report_after_the_engine_was_gone(db: Path) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @hf.workflow
    async def slow(ctx: hf.Context) -> str:
        began.set()
        await release.wait()
        return "late"

    @hf.workflow
    async def parent(ctx: hf.Context) -> str:
        return await ctx.child(slow, run_id="kid")

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(parent, run_id="p")
        await began.wait()
    release.set()
    async with hf.open(url(db), recover=False) as engine:
        await engine.resume("kid")
        assert await engine.get("kid").result() == "late"
        assert await engine.get("p").status() == "suspended"
    async with hf.open(url(db)) as engine:
        assert await engine.get("p").result() == "late"
    check_file(db)
