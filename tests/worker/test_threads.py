"""Sync bodies in threads: results come back once, on the loop, and no body can take the pool down."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.model.errors import UsageError
from holdfast.worker.threads import Done, GivenUp, ThreadBodies, ThreadJob


@pytest.fixture
async def bodies() -> AsyncIterator[ThreadBodies]:
    pool = ThreadBodies(threads=4)
    yield pool
    await pool.close(10)


def outcome() -> tuple[asyncio.Future[tuple[Any, BaseException | None]], Done]:
    future: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
    return future, lambda value, error: future.set_result((value, error))


async def run(pool: ThreadBodies, job: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    future, done = outcome()
    pool.start(job, done)
    return await future


class Stuck:
    """A body that says that it began and then ignores everything until it is released."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.release = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> str:
        self.thread = threading.current_thread()
        self.began.set()
        self.release.wait()
        return "late"

    async def running(self) -> None:
        await asyncio.to_thread(self.began.wait)

    async def ended(self) -> None:
        """Return when its thread is gone and the loop has heard all that it said."""
        self.release.set()
        assert self.thread is not None
        await asyncio.to_thread(self.thread.join)
        await asyncio.sleep(0)


def never(value: Any, error: BaseException | None) -> None:
    raise AssertionError(f"done was called with {value!r}, {error!r}")


async def test_result_comes_back_on_the_loops_thread(bodies: ThreadBodies) -> None:
    seen: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    bodies.start(threading.get_ident, lambda value, _: seen.set_result((value, threading.get_ident())))
    body, done = await seen
    assert done == threading.get_ident() != body


async def test_a_thousand_jobs_are_each_done_once(bodies: ThreadBodies) -> None:
    results: list[int] = []
    all_done = asyncio.Event()

    def done(value: int, error: BaseException | None) -> None:
        assert error is None
        results.append(value)
        if len(results) == 1000:
            all_done.set()

    for number in range(1000):
        bodies.start(lambda number=number: number, done)  # type: ignore[misc]
    await all_done.wait()
    assert sorted(results) == list(range(1000))
    assert bodies.free == 4


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()]
)
async def test_whatever_a_body_raises_is_its_outcome_and_the_thread_lives_on(error: BaseException) -> None:
    pool = ThreadBodies(threads=1)

    def body() -> None:
        raise error

    assert await run(pool, body) == (None, error)
    before, _ = await run(pool, threading.get_ident)
    await run(pool, body)
    after, _ = await run(pool, threading.get_ident)
    assert before == after
    await pool.close(10)


async def test_body_sees_the_context_of_its_start_and_cannot_change_it(bodies: ThreadBodies) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")

    def body() -> str:
        seen = name.get()
        name.set("changed by the body")
        return seen

    name.set("first")
    first, first_done = outcome()
    bodies.start(body, first_done)
    name.set("second")
    assert await first == ("first", None)
    assert await run(bodies, body) == ("second", None)
    assert name.get() == "second"


async def test_jobs_beyond_the_threads_wait_their_turn() -> None:
    pool = ThreadBodies(threads=1)
    stuck = Stuck()
    first, first_done = outcome()
    second, second_done = outcome()
    running = pool.start(stuck, first_done)
    waiting = pool.start(lambda: "second", second_done)
    await stuck.running()
    assert (running.started, waiting.started, pool.free) == (True, False, 0)
    stuck.release.set()
    assert await first == ("late", None)
    assert await second == ("second", None)
    assert waiting.started
    assert pool.free == 1
    await pool.close(10)


async def test_a_queued_job_that_is_given_up_never_begins() -> None:
    pool = ThreadBodies(threads=1)
    stuck = Stuck()
    first, first_done = outcome()
    pool.start(stuck, first_done)
    began: list[str] = []
    waiting = pool.start(lambda: began.append("waiting"), never)
    waiting.give_up()
    waiting.give_up()
    stuck.release.set()
    await first
    assert await run(pool, lambda: "next") == ("next", None)
    assert (began, waiting.started, pool._given_up.count, pool.free) == ([], False, 0, 1)
    await pool.close(10)


async def test_only_what_has_not_begun_is_given_up_by_who_asks_for_that() -> None:
    pool = ThreadBodies(threads=1)
    stuck = Stuck()
    heard: list[Any] = []
    began = pool.start(stuck, lambda value, error: heard.append(value))
    queues = pool.start(lambda: "never", lambda value, error: heard.append(value))
    await stuck.running()
    assert not began.give_up_unless_begun()
    assert queues.give_up_unless_begun()
    assert not queues.give_up_unless_begun()
    stuck.release.set()
    assert await run(pool, lambda: "next") == ("next", None)
    assert heard == ["late"]
    assert not queues.started
    await pool.close(10)


async def test_a_given_up_thread_is_replaced_and_its_late_result_dropped() -> None:
    pool = ThreadBodies(threads=1)
    stuck = Stuck()
    job = pool.start(stuck, never)
    waiting, waiting_done = outcome()
    pool.start(lambda: "waiting", waiting_done)
    await stuck.running()
    assert job.give_up()
    assert not job.give_up()
    assert pool._given_up.count == 1
    assert await waiting == ("waiting", None)
    assert pool.free == 1
    await stuck.ended()
    assert (pool._given_up.count, job.started) == (0, True)
    assert await run(pool, lambda: "next") == ("next", None)
    await pool.close(10)


async def test_a_result_that_is_on_its_way_when_the_job_is_given_up_is_dropped() -> None:
    pool = ThreadBodies(threads=1)
    ended = threading.Event()
    job = pool.start(lambda: None, never)
    pool.start(ended.set, lambda value, error: None)
    ended.wait()  # the one thread took them in turn, and the loop has not looked yet
    assert not job.give_up()  # no thread is lost
    assert await run(pool, lambda: "next") == ("next", None)
    assert (pool._given_up.count, pool.free, job.started) == (0, 1, True)
    await pool.close(10)


async def test_lost_threads_count_over_all_pools_until_their_functions_return() -> None:
    counts: list[int] = []
    given_up = GivenUp(limit=2)
    given_up.on_change = counts.append
    pools = [ThreadBodies(threads=4, given_up=given_up) for _ in range(3)]
    bodies_stuck = [Stuck() for _ in range(3)]
    jobs: list[ThreadJob] = [pool.start(stuck, never) for pool, stuck in zip(pools, bodies_stuck, strict=True)]
    for stuck, job, pool in zip(bodies_stuck, jobs, pools, strict=True):
        await stuck.running()
        assert await run(pool, lambda: "fine") == ("fine", None)
        assert not given_up.too_many
        job.give_up()
    assert given_up.too_many
    waiting = asyncio.create_task(given_up.fewer(30))
    await asyncio.sleep(0)
    assert not waiting.done()
    await bodies_stuck[0].ended()
    await waiting
    assert not given_up.too_many
    for stuck in bodies_stuck[1:]:
        await stuck.ended()
    assert (given_up.count, counts) == (0, [1, 2, 3, 2, 1, 0])
    for pool in pools:
        await pool.close(10)


async def test_a_done_that_raises_does_not_lose_the_results_behind_it() -> None:
    pool = ThreadBodies(threads=1)
    reported: list[BaseException | None] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    bug = RuntimeError("a bug in done")

    def broken(value: Any, error: BaseException | None) -> None:
        raise bug

    ended = threading.Event()
    last, last_done = outcome()
    pool.start(lambda: None, broken)
    pool.start(lambda: None, broken)
    pool.start(lambda: "last", last_done)
    pool.start(ended.set, lambda value, error: None)
    ended.wait()  # all four are in one batch, as far as the threads are concerned
    assert await last == ("last", None)
    assert reported == [bug, bug]
    await pool.close(10)


async def test_close_waits_for_what_runs_and_refuses_what_comes() -> None:
    pool = ThreadBodies(threads=2)
    stuck = Stuck()
    first, first_done = outcome()
    pool.start(stuck, first_done)
    await stuck.running()
    closing = asyncio.create_task(pool.close(60))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="closing"):
        pool.start(lambda: None, never)
    assert not closing.done()
    stuck.release.set()
    await closing
    assert first.result() == ("late", None)
    assert stuck.thread is not None
    await asyncio.to_thread(stuck.thread.join)


async def test_close_without_grace_reports_nothing_more() -> None:
    pool = ThreadBodies(threads=1)
    stuck = Stuck()
    pool.start(stuck, never)
    queued = pool.start(lambda: None, never)
    await stuck.running()
    await pool.close(0)
    await stuck.ended()
    assert not queued.started


def test_a_body_that_never_returns_does_not_keep_the_interpreter() -> None:
    script = """
import asyncio, threading
from holdfast.worker.threads import ThreadBodies

async def main():
    bodies = ThreadBodies()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    def forever():
        loop.call_soon_threadsafe(began.set)
        threading.Event().wait()
    bodies.start(forever, lambda value, error: None)
    await began.wait()
    await bodies.close(0.01)

asyncio.run(main())
print("left")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")
