"""Scopes of tasks (SEMANTICS 8): a task is found again by who created it and in which order, not by who was quicker."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import harness
from holdfast.worker import recording
from holdfast.worker.call_scopes import scope_here
from tests.engine.kit import check_file, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Lives:
    """Runs a body until it waits for the signal `go`, evicts it, and lets it run again to its end."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.done: list[tuple[Any, str]] = []
        """What the steps did, and under which idempotency key."""
        self.life = 0

    async def act(self, ctx: hf.Context, what: Any) -> Any:
        self.done.append((what, ctx.idempotency_key))
        return what

    async def drive(self, body: Callable[[hf.Context], Any]) -> Any:
        @hf.workflow(name="scoped")
        async def scoped(ctx: hf.Context) -> Any:
            self.life += 1
            return await body(ctx)

        async with hf.open(url(self.db), idle_seconds=0) as engine:
            run = await engine.start(scoped, run_id="r")
            await until_async(lambda: _is(run, "suspended", "failed"), "the body waits")
            await until(lambda: not engine.actors, "the run is evicted")
        async with hf.open(url(self.db)) as engine:
            run = engine.get("r")
            if await run.status() != "failed":
                await run.signal("go")
            result = await run.result(timeout=30)
        check_file(self.db)
        return result

    def keys(self) -> list[str]:
        return sorted(key for _, key in self.done)


async def _is(run: Any, *statuses: str) -> bool:
    return await run.status() in statuses


@pytest.mark.parametrize("keyed", [False, True])
async def test_tasks_that_await_each_other_are_found_again_whichever_was_quicker(db: Path, keyed: bool) -> None:
    lives = Lives(db)
    b_is_charged = asyncio.Event()

    async def fetch(page: str) -> str:
        if page == "a":
            await b_is_charged.wait()  # in the first life the second task is the first to call
        return page

    async def charge(ctx: hf.Context, page: str) -> str:
        await lives.act(ctx, page)
        if page == "b":
            b_is_charged.set()
        return f"paid {page}"

    async def body(ctx: hf.Context) -> Any:
        async def handle(name: str, page: asyncio.Task[str]) -> str:
            found = await page
            return await (ctx.keyed(name) if keyed else ctx).step(charge, found)

        async with asyncio.TaskGroup() as group:
            pages = [group.create_task(ctx.step(fetch, name)) for name in "ab"]
            paid = [group.create_task(handle(n, page)) for n, page in zip("ab", pages, strict=True)]
        await ctx.receive("go")
        return [task.result() for task in paid]

    assert await lives.drive(body) == ["paid a", "paid b"]
    assert lives.life == 2
    assert sorted(what for what, _ in lives.done) == ["a", "b"]


async def test_tasks_inside_tasks_are_numbered_by_their_creator(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        async def leaf(name: str) -> Any:
            for _ in range(len(name) if lives.life == 1 else 9 - len(name)):
                await asyncio.sleep(0)  # who calls first differs between the lives
            return await ctx.step(lives.act, name)

        async def branch(name: str, n: int) -> Any:
            return await asyncio.gather(*(leaf(name * i) for i in range(1, n)))

        found = await asyncio.gather(branch("a", 4), branch("b", 3), leaf("c"))
        await ctx.receive("go")
        return found

    assert await lives.drive(body) == [["a", "aa", "aaa"], ["b", "bb"], "c"]
    assert len(lives.done) == 6


async def test_a_task_that_is_given_a_context_has_a_scope_of_its_own(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        shared = contextvars.copy_context()

        async def inner(name: str) -> Any:
            return await ctx.step(lives.act, name)

        async def outer(name: str, pauses: int) -> Any:
            for _ in range(pauses if lives.life == 1 else 5 - pauses):
                await asyncio.sleep(0)
            task = asyncio.create_task(inner(f"{name} inside"), context=shared)
            return [await ctx.step(lives.act, name), await task]

        contexts = [shared, shared, contextvars.Context(), contextvars.copy_context()]
        tasks = [asyncio.create_task(outer(f"t{n}", n), context=given) for n, given in enumerate(contexts)]
        found = [await task for task in tasks]
        await ctx.receive("go")
        return found

    assert await lives.drive(body) == [[f"t{n}", f"t{n} inside"] for n in range(4)]
    assert len(lives.done) == 8
    assert len(set(lives.keys())) == 8


async def test_tasks_that_a_step_creates_take_no_number_in_the_body(db: Path) -> None:
    lives = Lives(db)

    async def work(ctx: hf.Context, what: str) -> Any:
        return await ctx.step(lives.act, what)

    async def crowd() -> int:
        return len(await asyncio.gather(*(asyncio.create_task(asyncio.sleep(0)) for _ in range(3))))

    async def crowd_with_ctx(ctx: hf.Context) -> Any:
        return await asyncio.gather(work(ctx, "x"), work(ctx, "y"))

    async def body(ctx: hf.Context) -> Any:
        before = [await ctx.step(crowd), await ctx.step(crowd_with_ctx)]
        after = [await asyncio.create_task(work(ctx, "after"))]
        await ctx.receive("go")
        return [*before, *after, await asyncio.create_task(work(ctx, "last"))]

    assert await lives.drive(body) == [3, ["x", "y"], "after", "last"]
    assert [what for what, _ in lives.done] == ["x", "y", "after", "last"]


async def test_numbers_of_tasks_start_again_at_a_checkpoint(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        async def one(what: str) -> Any:
            return await ctx.step(lives.act, what)

        state = ctx.checkpointed or []
        if not state:
            state = [await asyncio.create_task(one("before"))]
            await ctx.checkpoint(state)
        found = await asyncio.create_task(one("after"))
        await ctx.receive("go")
        return [*state, found]

    assert await lives.drive(body) == ["before", "after"]
    assert [what for what, _ in lives.done] == ["before", "after"]


async def test_a_chain_of_tasks_does_not_make_the_journal_long(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        async def deeper(depth: int) -> int:
            await ctx.step(lives.act, depth)
            return 1 + (await asyncio.create_task(deeper(depth - 1)) if depth else 0)

        found = await deeper(60)
        await ctx.receive("go")
        return found

    assert await lives.drive(body) == 61
    assert len(lives.done) == 61
    async with hf.open(url(db)) as engine:
        scopes = [e.data["scope"] for e in await engine.get("r").events() if e.type == "StepCompleted"]
    assert len(set(scopes)) == 61
    assert max(map(len, scopes)) < 250


# --- keys ----------------------------------------------------------------------------------------------------------


async def test_a_keyed_step_keeps_its_key_and_is_not_run_again_when_tasks_are_created_in_another_order(
    db: Path,
) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        async def handle(name: str) -> Any:
            return await ctx.keyed(f"charge {name}").step(lives.act, name)

        order = "ab" if lives.life == 1 else "ba"  # as asyncio.as_completed may do it
        found = await asyncio.gather(*(handle(name) for name in order))
        await ctx.receive("go")
        return sorted(found)

    assert await lives.drive(body) == ["a", "b"]
    assert [what for what, _ in lives.done] == ["a", "b"]


async def test_one_key_in_two_scopes_of_a_body_is_refused(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        async def handle(name: str) -> Any:
            return await ctx.keyed("charge").step(lives.act, name)

        return await asyncio.gather(handle("a"), handle("b"))

    with pytest.raises(hf.RunFailed, match="the key 'charge' is used by") as caught:
        await lives.drive(body)
    assert caught.value.error.code == "duplicate_key"


async def test_a_key_may_be_used_again_in_its_scope_and_each_use_is_remembered(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        found = [await ctx.keyed("poll").step(lives.act, n) for n in range(3)]
        await ctx.receive("go")
        return [*found, await ctx.keyed("poll").step(lives.act, 3)]

    assert await lives.drive(body) == [0, 1, 2, 3]
    assert [what for what, _ in lives.done] == [0, 1, 2, 3]


async def test_equal_calls_under_one_key_are_different_effects_also_after_a_checkpoint(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> None:
        if ctx.checkpointed is None:
            for _ in range(2):
                await ctx.keyed("charge").step(lives.act, "o1")
            await ctx.checkpoint("charged twice")
        await ctx.keyed("charge").step(lives.act, "o1")
        await ctx.receive("go")

    await lives.drive(body)
    assert len(lives.done) == len(set(lives.keys())) == 3


@pytest.mark.parametrize("equal", [False, True])
async def test_of_calls_under_one_key_each_finds_its_own_result_after_a_crash(equal: bool) -> None:
    done: list[str] = []
    hangs = True

    async def act(ctx: hf.Context, what: int) -> int:
        done.append(ctx.idempotency_key)
        if len(done) == 1 and hangs:
            await asyncio.Event().wait()
        return what

    @hf.workflow
    async def ts_under_one_key(ctx: hf.Context) -> list[int]:
        return await asyncio.gather(*(ctx.keyed("poll").step(act, 7 if equal else n) for n in range(3)))

    async with harness() as h:
        run = await h.start(ts_under_one_key)
        await h.advance(seconds=1)
        hangs = False
        await h.crash()
        assert await run.result() == ([7, 7, 7] if equal else [0, 1, 2])
    assert len(set(done)) == 3
    assert done[3:] == done[:1], "only the step that was cut off runs again, under its own key"


# --- the factory ---------------------------------------------------------------------------------------------------


async def test_the_factory_of_the_loop_is_wrapped_and_given_back(db: Path) -> None:
    lives = Lives(db)
    made: list[str] = []

    def own(loop: asyncio.AbstractEventLoop, coro: Any) -> asyncio.Task[Any]:  # takes no context, as older ones
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop)

    async def body(ctx: hf.Context) -> Any:
        async def mine(name: str) -> Any:
            return await ctx.step(lives.act, name)

        found = await asyncio.gather(mine("a"), mine("b"))
        await ctx.receive("go")
        return found

    loop = asyncio.get_running_loop()
    loop.set_task_factory(own)
    try:
        assert await lives.drive(body) == ["a", "b"]
        assert loop.get_task_factory() is own
    finally:
        loop.set_task_factory(None)
    assert len([name for name in made if name.endswith("mine")]) == 4


async def test_two_engines_on_one_loop_share_the_factory(db: Path, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with hf.open(url(db)):
        ours = loop.get_task_factory()
        async with hf.open(url(tmp_path / "other.db")):
            assert loop.get_task_factory() is ours
        assert loop.get_task_factory() is ours
    assert loop.get_task_factory() is None


async def test_a_library_that_wraps_the_factory_between_two_engines_changes_no_scope(db: Path, tmp_path: Path) -> None:
    lives = Lives(db)
    loop = asyncio.get_running_loop()
    scopes: list[str] = []

    async def body(ctx: hf.Context) -> Any:
        async def mine(name: str) -> Any:
            found = scope_here()
            assert found is not None
            scopes.append(found.name)
            return await ctx.step(lives.act, name)

        if lives.life == 1:
            found = await asyncio.gather(mine("a"), mine("b"))
        else:
            ours = loop.get_task_factory()
            assert ours is not None
            loop.set_task_factory(lambda loop, coro, **options: ours(loop, coro, **options))
            async with hf.open(url(tmp_path / "other.db")):
                found = await asyncio.gather(mine("a"), mine("b"))
        await ctx.receive("go")
        return found

    try:
        assert await lives.drive(body) == ["a", "b"]
    finally:
        loop.set_task_factory(None)
    assert len(lives.done) == 2
    assert scopes[:2] == scopes[2:]


async def test_a_factory_set_between_two_engines_is_kept_and_numbers_until_the_last_has_closed(
    db: Path, tmp_path: Path
) -> None:
    def own(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=loop, **options)

    loop = asyncio.get_running_loop()
    first = hf.open(url(db))
    await first.__aenter__()
    loop.set_task_factory(own)
    try:
        async with hf.open(url(tmp_path / "other.db")) as engine:
            await first.__aexit__(None, None, None)
            assert await (await engine.start(tasks_under_run)).result(timeout=30) == [1, 2]
        assert loop.get_task_factory() is own
    finally:
        loop.set_task_factory(None)


async def test_a_factory_that_was_replaced_after_open_ends_the_body_that_would_not_be_found_again(db: Path) -> None:
    seen: list[str] = []

    @hf.workflow
    async def replaced(ctx: hf.Context) -> str:
        async def one() -> None:
            await ctx.step(seen.append, "acted")

        try:
            await asyncio.create_task(one())
        except hf.UsageError:
            seen.append("caught")
        await ctx.step(seen.append, "went on")
        return "ended"

    async with hf.open(url(db)) as engine:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))
        run = await engine.start(replaced, run_id="r")
        with pytest.raises(hf.RunFailed, match="task factory was replaced") as caught:
            await run.result(timeout=30)
        loop.set_task_factory(None)
    assert caught.value.error.code == "usage"
    assert "acted" not in seen
    assert "went on" not in seen


@pytest.mark.parametrize("has_loop", [True, False])
async def test_a_call_in_a_thread_is_refused_and_neither_the_run_nor_the_engine_hangs(db: Path, has_loop: bool) -> None:
    """With a loop of its own the thread made a task that the body then waited for, in a loop that knew none of it."""

    def act() -> None:
        raise AssertionError("it acted")

    @hf.workflow
    async def threaded(ctx: hf.Context) -> str:
        async def inside() -> None:
            await ctx.step(act)

        try:
            await asyncio.to_thread(lambda: asyncio.run(inside() if has_loop else ctx.step(act)))
        except hf.UsageError as error:
            return str(error)
        return ""

    async with hf.open(url(db)) as engine:
        run = await engine.start(threaded, run_id="r")
        assert "in a thread" in await run.result(timeout=10)


async def test_a_task_made_past_the_factory_may_await_a_call_that_the_body_made(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        made = ctx.step(lives.act, "a")
        found = await asyncio.Task(made, loop=asyncio.get_running_loop())
        await ctx.receive("go")
        return found

    assert await lives.drive(body) == "a"
    assert len(lives.done) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks from 3.12 on")
async def test_eager_tasks_have_their_scope_before_they_begin(db: Path) -> None:
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        async def one(name: str) -> Any:
            return await ctx.step(lives.act, name)

        found = await asyncio.gather(one("a"), one("b"))
        await ctx.receive("go")
        return found

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        assert await lives.drive(body) == ["a", "b"]
    finally:
        loop.set_task_factory(None)
    assert len(lives.done) == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks from 3.12 on")
async def test_a_step_that_an_eager_task_with_a_context_has_begun_keeps_its_scope(db: Path) -> None:
    lives = Lives(db)

    async def inner(ctx: hf.Context, name: str) -> Any:
        return await ctx.step(lives.act, name)

    async def crowd(ctx: hf.Context) -> Any:
        await asyncio.sleep(0)  # from here on the task runs by itself
        return await asyncio.create_task(inner(ctx, "inside"))

    async def body(ctx: hf.Context) -> Any:
        async def outer() -> Any:
            return [await ctx.step(crowd), await asyncio.create_task(inner(ctx, "behind"))]

        found = await asyncio.create_task(outer(), context=contextvars.copy_context())
        await ctx.receive("go")
        return found

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        assert await lives.drive(body) == ["inside", "behind"]
    finally:
        loop.set_task_factory(None)
    assert len(lives.done) == 2


@hf.workflow
async def tasks_under_run(ctx: hf.Context) -> list[int]:
    async def one(n: int) -> int:
        return await ctx.step(abs, n)

    return await asyncio.gather(one(-1), one(-2))


def test_tasks_are_numbered_under_hf_run_and_uvloop(db: Path) -> None:
    assert hf.run(tasks_under_run, db=url(db), run_id="a") == [1, 2]
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def drive() -> Any:
            async with hf.open(url(db)) as engine:
                run = await engine.start(tasks_under_run, run_id="b")
                return await run.result(timeout=30), [
                    e.data["scope"] for e in await run.events() if e.type == "StepCompleted"
                ]

        result, scopes = runner.run(drive())
    assert result == [1, 2]
    assert sorted(scopes) == ["tasks_under_run.<locals>.one.1/", "tasks_under_run.<locals>.one.2/"]


# --- counting ------------------------------------------------------------------------------------------------------


async def test_a_call_counts_once_however_often_the_body_runs(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both limits count calls; what is remembered of a call is not another one."""
    monkeypatch.setattr(recording, "REMEMBERED_CALLS_MAX", 12)
    monkeypatch.setattr(recording, "REMEMBERED_CALLS_WARN", 11)
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        found = sum([await ctx.step(abs, -1) for _ in range(10)])
        await ctx.receive("go")
        return found

    assert await lives.drive(body) == 10
    assert lives.life == 2
    assert "remembered calls" not in caplog.text


async def test_one_call_too_many_fails_in_the_first_life_and_after_a_replay_alike(
    db: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "REMEMBERED_CALLS_MAX", 12)
    monkeypatch.setattr(recording, "REMEMBERED_CALLS_WARN", 5)
    lives = Lives(db)

    async def body(ctx: hf.Context) -> Any:
        await ctx.map(abs, range(10))  # and the map itself is one
        await ctx.receive("go")
        return await ctx.step(abs, -1)

    with pytest.raises(hf.RunFailed, match="more than 12 remembered calls"):
        await lives.drive(body)
    assert caplog.text.count("remembered calls without a checkpoint") == 2, "once in each life"


async def test_a_task_made_where_no_loop_runs_has_the_scope_of_its_context(db: Path) -> None:
    """Code of a body may run while no loop does: in a thread that carries its context, or while a loop is torn down."""
    seen: list[Any] = []

    async def body(ctx: hf.Context) -> None:
        kept = asyncio.create_task(asyncio.sleep(30), context=contextvars.copy_context())
        seen.append(await asyncio.to_thread(scope_here))
        kept.cancel()
        await ctx.receive("go")

    await Lives(db).drive(body)
    assert [scope.name for scope in seen] == ["", ""]
