"""How much runs at once, who comes first, and that nobody is forgotten in the queue."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.engine.kit import check_file, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Turnstile:
    """Counts who is inside; lets one out at a time."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.inside = 0
        self.most = 0
        self._out = asyncio.Semaphore(0)

    async def pass_through(self, who: Any) -> Any:
        self.entered.append(who)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self._out.acquire()
        self.inside -= 1
        return who

    def let_out(self, n: int = 1) -> None:
        for _ in range(n):
            self._out.release()


async def _is(run: hf.Run, status: str) -> bool:
    return await run.status() == status


async def test_at_most_so_many_runs_of_a_workflow_are_at_work_in_the_order_of_priority(db: Path) -> None:
    gate = Turnstile()

    @hf.workflow(concurrency=2)
    async def limited(ctx: hf.Context, n: int) -> int:
        return await gate.pass_through(n)

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(limited, n=n) for n in range(2)]
        await until(lambda: gate.inside == 2)
        runs += [await engine.start(limited, n=n, priority=p) for n, p in enumerate([0, 5, 1, 5], start=2)]
        assert await runs[3].status() == "created"
        for entered in range(3, 7):
            gate.let_out()
            await until(lambda entered=entered: len(gate.entered) == entered)
        gate.let_out(9)
        assert [await run.result() for run in runs] == list(range(6))
    assert sorted(gate.entered[:2]) == [0, 1]
    assert gate.entered[2:] == [3, 5, 4, 2]
    assert gate.most == 2
    check_file(db)


async def test_a_run_cancelled_while_it_waits_for_its_turn_does_not_block_the_line(db: Path) -> None:
    gate = Turnstile()

    @hf.workflow(concurrency=1)
    async def limited(ctx: hf.Context, n: int) -> int:
        return await gate.pass_through(n)

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(limited, n=n) for n in range(5)]
        await until(lambda: gate.inside == 1)
        for n in (1, 3):
            await runs[n].cancel()
            with pytest.raises(hf.RunCancelled):
                await runs[n].result()
        gate.let_out(9)
        assert [await runs[n].result(timeout=30) for n in (0, 2, 4)] == [0, 2, 4]
    assert gate.entered == [0, 2, 4]
    check_file(db)


async def test_a_limit_holds_for_runs_that_are_taken_over(db: Path) -> None:
    gate = Turnstile()

    @hf.workflow(concurrency=2)
    async def limited(ctx: hf.Context, n: int) -> int:
        return await gate.pass_through(n)

    async with hf.open(url(db), grace_seconds=0) as engine:
        for n in range(6):
            await engine.start(limited, n=n, run_id=f"r{n}")
        await until(lambda: gate.inside == 2)
    gate.inside = gate.most = 0
    gate.entered.clear()
    async with hf.open(url(db)) as engine:
        await until(lambda: gate.inside == 2)
        gate.let_out(9)
        assert [await engine.get(f"r{n}").result(timeout=30) for n in range(6)] == list(range(6))
    assert gate.most == 2
    check_file(db)


async def test_a_limit_holds_for_children_too(db: Path) -> None:
    gate = Turnstile()

    @hf.workflow(concurrency=1)
    async def limited(ctx: hf.Context, n: int) -> int:
        return await gate.pass_through(n)

    @hf.workflow
    def parent():
        return hf.map(limited, [0, 1, 2])

    async with hf.open(url(db)) as engine:
        run = await engine.start(parent)
        await until(lambda: gate.inside == 1)
        gate.let_out(9)
        assert await run.result(timeout=30) == [0, 1, 2]
    assert gate.most == 1
    check_file(db)


async def test_a_sleeping_run_makes_room_for_the_next_one(db: Path) -> None:
    done: list[str] = []

    @hf.workflow(concurrency=1)
    async def naps(ctx: hf.Context, name: str, seconds: float) -> str:
        await ctx.sleep(seconds)
        done.append(name)
        return name

    async with hf.open(url(db), idle_seconds=0) as engine:
        long = await engine.start(naps, name="long", seconds=3600)
        short = await engine.start(naps, name="short", seconds=0.01)
        assert await short.result(timeout=30) == "short"
        await long.cancel()
    assert done == ["short"]
    check_file(db)


async def test_at_most_so_many_bodies_of_a_node_run_at_once_over_all_runs(db: Path) -> None:
    gate = Turnstile()

    @hf.node(concurrency=3)
    async def limited(n: int) -> int:
        return await gate.pass_through(n)

    @hf.workflow
    def fan(base: int):
        return hf.map(limited, [1, 2, 3, 4])

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(fan, base=i) for i in range(3)]
        await until(lambda: gate.inside == 3)
        gate.let_out(99)
        for run in runs:
            assert await run.result(timeout=30) == [1, 2, 3, 4]
    assert gate.most == 3
    assert len(gate.entered) == 12
    check_file(db)


async def test_higher_priority_gets_the_next_place(db: Path) -> None:
    gate = Turnstile()

    @hf.node(concurrency=1)
    async def limited(n: int) -> int:
        return await gate.pass_through(n)

    @hf.node(concurrency=1, priority=7, name="urgent")
    async def urgent(n: int) -> int:
        return await gate.pass_through(n)

    @hf.workflow
    def one(n: int):
        return limited(n)

    async with hf.open(url(db)) as engine:
        runs = [await engine.start(one, n=0)]
        await until(lambda: gate.inside == 1)
        runs += [await engine.start(one, n=n, priority=p) for n, p in enumerate([1, 0, 9], start=1)]
        gate.let_out(9)
        for n, run in enumerate(runs):
            assert await run.result(timeout=30) == n
    assert gate.entered == [0, 3, 1, 2]


async def test_a_body_cancelled_while_it_waits_for_a_place_does_not_block_the_line(db: Path) -> None:
    release = threading.Event()
    entered: list[int] = []

    @hf.node
    def held(n: int) -> int:
        entered.append(n)
        if n == 0:
            release.wait()
        return n

    @hf.workflow
    def one(n: int):
        return held(n)

    async with hf.open(url(db), threads=1) as engine:
        runs = [await engine.start(one, n=n) for n in range(4)]
        await until(lambda: entered == [0])
        for n in (1, 2):
            await runs[n].cancel()
            with pytest.raises(hf.RunCancelled):
                await runs[n].result()
        release.set()
        assert await runs[3].result(timeout=30) == 3
        assert await runs[0].result() == 0
    assert entered == [0, 3]
    check_file(db)


async def test_a_run_s_priority_comes_before_any_priority_of_a_node(db: Path) -> None:
    release = threading.Event()
    entered: list[str] = []

    def hold(name: str) -> None:
        entered.append(name)
        release.wait()

    @hf.node(priority=1_000_000)
    def loud(name: str) -> None:
        hold(name)

    @hf.node(priority=-1_000_000)
    def quiet(name: str) -> None:
        hold(name)

    @hf.workflow
    def with_loud_node(name: str) -> None:
        loud(name)

    @hf.workflow(priority=1)
    def with_quiet_node(name: str) -> None:
        quiet(name)

    async with hf.open(url(db), threads=1) as engine:
        runs = [await engine.start(with_loud_node, name="first")]
        await until(lambda: entered == ["first"])
        runs += [await engine.start(with_loud_node, name="loud"), await engine.start(with_quiet_node, name="quiet")]
        await until(lambda: sum(map(len, engine.slots._waiting.values())) == 2)
        release.set()
        for run in runs:
            await run.result(timeout=30)
    assert entered == ["first", "quiet", "loud"]
    check_file(db)


async def test_a_body_that_waits_for_one_place_does_not_hold_another(db: Path) -> None:
    """`slow` is limited to one and needs a thread: its second body must not sit on the thread that `quick` needs."""
    release = threading.Event()
    entered: list[str] = []

    @hf.node(concurrency=1)
    def slow(n: int) -> int:
        entered.append("slow")
        release.wait()
        return n

    @hf.node
    def quick(n: int) -> int:
        entered.append("quick")
        return n

    @hf.workflow
    def slow_run(n: int):
        return slow(n)

    @hf.workflow
    def quick_run(n: int):
        return quick(n)

    async with hf.open(url(db), threads=2) as engine:
        slow_runs = [await engine.start(slow_run, n=n) for n in range(2)]
        await until(lambda: entered == ["slow"])
        assert await (await engine.start(quick_run, n=5)).result(timeout=30) == 5
        release.set()
        assert [await run.result(timeout=30) for run in slow_runs] == [0, 1]
    check_file(db)


async def test_many_sync_bodies_share_a_few_threads(db: Path) -> None:
    lock = threading.Lock()
    inside, most = 0, 0

    @hf.node
    def work(n: int) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.001)
        with lock:
            inside -= 1
        return n

    @hf.workflow
    def fan():
        return hf.map(work, list(range(60)), limit=60)

    async with hf.open(url(db), threads=3) as engine:
        assert await (await engine.start(fan)).result() == list(range(60))
    assert most <= 3
    check_file(db)


async def test_a_map_starts_at_most_its_limit_of_items(db: Path) -> None:
    gate = Turnstile()

    @hf.node
    async def item(n: int) -> int:
        return await gate.pass_through(n)

    @hf.workflow
    def mapped():
        return hf.map(item, list(range(20)), limit=3)

    async with hf.open(url(db)) as engine:
        run = await engine.start(mapped)
        await until(lambda: gate.inside == 3)
        started = [e for e in await run.events() if e.type == "NodeStarted"]
        assert len(started) == 3
        gate.let_out(99)
        assert await run.result() == list(range(20))
    assert gate.most == 3
    check_file(db)


async def test_a_run_waiting_for_its_turn_is_found_by_the_next_engine(db: Path) -> None:
    gate = Turnstile()

    @hf.workflow(concurrency=1)
    async def limited(ctx: hf.Context, n: int) -> int:
        return await gate.pass_through(n)

    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(limited, n=0, run_id="a")
        waiting = await engine.start(limited, n=1, run_id="b")
        await until(lambda: gate.inside == 1)
        await until_async(lambda: _is(waiting, "created"))
    gate.let_out(9)
    async with hf.open(url(db)) as engine:
        assert await engine.get("b").result(timeout=30) == 1
        assert await engine.get("a").result(timeout=30) == 0
    check_file(db)
