"""Whether the loop writes a commit by itself, or hands it to the writer's thread."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.engine import asyncio_internals, committer
from holdfast.engine.committer import InlineCommits
from holdfast.engine.engine import Engine
from holdfast.store.row_types import Commit
from tests.engine.kit import PATIENCE_SECONDS, beside_a_server, check_file, url
from tests.processes import child_process


@pytest.fixture(autouse=True)
def _is_quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's disk may be slow at any moment; most of this is not about that."""
    if "slow" not in request.node.name:
        monkeypatch.setattr(committer, "SLOW_SECONDS", 1e9)


@hf.node
async def hov_up(x: int) -> int:
    return x + 1


@hf.node
async def hov_up_after_a_while(x: int) -> int:
    await asyncio.sleep(0.1)
    return x + 1


@hf.workflow
def hov_chain(x: int):
    return hov_up(hov_up(hov_up(x)))


@hf.workflow
def hov_late(x: int):
    return hov_up(hov_up_after_a_while(x))


def threads_of_commits(engine: Engine, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[int]:
    """In which threads commits are written from now on, the first of them slowly."""
    threads: list[int] = []
    write = engine.store.commit

    def commit(group: Any) -> Any:
        if not threads:
            time.sleep(seconds)
        threads.append(threading.get_ident())
        return write(group)

    monkeypatch.setattr(engine.store, "commit", commit)
    return threads


async def test_one_live_run_is_committed_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        threads = threads_of_commits(engine, monkeypatch)
        assert await (await engine.start(hov_chain, x=1)).result() == 4
        assert set(threads) == {threading.get_ident()}


async def test_who_is_served_by_the_loop_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        threads = threads_of_commits(engine, monkeypatch)
        async with beside_a_server():
            assert await (await engine.start(hov_chain, x=2)).result() == 5
        assert threads
        assert threading.get_ident() not in threads
        threads.clear()
        assert await (await engine.start(hov_chain, x=3)).result() == 6
        assert set(threads) == {threading.get_ident()}, "the server is gone"


async def test_a_run_that_another_queue_gets_is_handed_over_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is made without a turn of a run."""
    async with hf.open(url(tmp_path / "runs.db"), queues=["default"]) as engine:
        threads = threads_of_commits(engine, monkeypatch)
        await engine.start(hov_chain, x=1, queue="elsewhere")
        assert set(threads) == {threading.get_ident()}
        threads.clear()
        async with beside_a_server():
            await engine.start(hov_chain, x=2, queue="elsewhere")
        assert threads
        assert threading.get_ident() not in threads


async def test_runs_that_are_written_for_others_in_one_turn_are_one_group(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db"), drive=False) as engine:
        await engine.start(hov_chain, x=0)
        before = engine.committer.commits
        await asyncio.gather(*[engine.start(hov_chain, x=n) for n in range(100)])
        assert engine.committer.commits - before <= 3


async def test_several_live_runs_are_committed_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        threads = threads_of_commits(engine, monkeypatch)
        runs = [await engine.start(hov_late, x=n) for n in range(5)]
        threads.clear()
        assert [await run.result() for run in runs] == [2, 3, 4, 5, 6]
        assert threading.get_ident() not in threads[:1]


@hf.workflow
async def hov_wide(ctx: hf.Context, n: int) -> int:
    return sum(await asyncio.gather(*[ctx.step(hov_up_in_its_time, k) for k in range(n)]))


@hf.node
async def hov_up_in_its_time(x: int) -> int:
    await asyncio.sleep(0.002 * x)
    return x + 1


async def test_what_else_a_run_does_goes_on_while_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(hov_wide, n=20)
        threads = threads_of_commits(engine, monkeypatch)
        assert await run.result() == 210
        on_loop = threads.count(threading.get_ident())
        assert on_loop <= 4, "only while the last of them is alone"
        assert on_loop < len(threads)


async def test_the_loop_keeps_away_from_a_disk_that_was_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        threads = threads_of_commits(engine, monkeypatch, seconds=100 * committer.SLOW_SECONDS)
        assert await (await engine.start(hov_chain, x=1)).result() == 4
    assert threads[0] == threading.get_ident()
    assert threading.get_ident() not in threads[1:]


@hf.node
async def hov_much(x: int) -> str:
    return "x" * x


@hf.workflow
def hov_some(x: int):
    return hov_much(x)


@pytest.mark.parametrize(("size", "is_written_here"), [(10_000, True), (900_000, False)])
async def test_the_loop_leaves_large_commits_to_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_written_here: bool
) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        threads = threads_of_commits(engine, monkeypatch)
        assert len(await (await engine.start(hov_some, x=size)).result()) == size
        assert (set(threads) == {threading.get_ident()}) is is_written_here


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time is told."""

    now = 0.0

    def time(self) -> float:
        return self.now


async def test_how_long_it_keeps_away_depends_on_how_slow_it_was() -> None:
    loop = Loop()
    saved = InlineCommits(loop, (), lambda: True)

    def keeps_away(seconds: float) -> float:
        saved.took(seconds)
        until = next(s / 10 for s in range(10_000) if _at(loop, saved, loop.now + s / 10))
        loop.now += until + 1
        return until

    try:
        assert [keeps_away(s) for s in (0.001, 0.05, 0.5, 600.0)] == pytest.approx([0, 0.5, 5, 60], abs=0.11)
    finally:
        loop.close()


def _at(loop: Loop, saved: InlineCommits, moment: float) -> bool:
    before, loop.now = loop.now, moment
    try:
        return saved.is_allowed(Commit(1, 1, 0))
    finally:
        loop.now = before


async def test_of_a_loop_that_cannot_be_asked_nobody_knows_whom_it_serves() -> None:
    class Other(asyncio.AbstractEventLoop):
        pass

    assert asyncio_internals.watches_only_itself(asyncio.get_running_loop())
    assert not asyncio_internals.watches_only_itself(Other())


async def test_the_loop_does_not_wait_for_another_process_that_writes(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(hov_late, x=1)
        other = apsw.Connection(str(tmp_path / "runs.db"))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError):  # else nobody could tell: this loop would stand still
            await asyncio.wait_for(run.result(), 0.5)
        other.execute("ROLLBACK")
        assert await run.result() == 3


async def test_others_on_the_loop_have_their_turn_between_two_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = 0, list[int]()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        write = engine.store.commit

        def commit(group: Any) -> Any:
            seen.append(turns)
            return write(group)

        monkeypatch.setattr(engine.store, "commit", commit)
        beside = asyncio.ensure_future(others())
        assert await (await engine.start(hov_chain, x=1)).result() == 4
        beside.cancel()
    assert len(seen) == 4
    assert seen == sorted(set(seen)), "each commit came in another turn"


async def test_runs_that_go_on_together_are_committed_together(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        assert await (await engine.start(hov_chain, x=0)).result() == 3
        before = engine.committer.commits
        runs = await asyncio.gather(*(engine.start(hov_chain, x=n) for n in range(100)))
        assert [await run.result() for run in runs] == list(range(3, 103))
        assert engine.committer.commits - before == 4, "one for the beginning and one for the end of each step"


async def test_a_commit_does_not_overtake_a_write_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        assert await (await engine.start(hov_chain, x=0)).result() == 3
        threads = threads_of_commits(engine, monkeypatch)
        may_end = threading.Event()
        other = asyncio.ensure_future(engine.committer.call(may_end.wait))
        await asyncio.sleep(0)
        run = asyncio.ensure_future(engine.start(hov_chain, x=1))
        await asyncio.sleep(0.05)
        assert not threads
        may_end.set()
        await other
        assert await (await run).result() == 4
        assert threading.get_ident() != threads[0]
        assert threading.get_ident() == threads[-1], "and then the loop writes again"


@pytest.mark.parametrize("is_written", [False, True])
def test_a_program_goes_on_after_a_commit_on_its_loop_was_interrupted(tmp_path: Path, is_written: bool) -> None:
    path = tmp_path / "runs.db"
    with asyncio.Runner() as runner:
        opening = hf.open(url(path))
        engine = runner.run(opening.__aenter__())
        write, commits = engine.store.commit, 0

        def commit(group: Any) -> Any:
            nonlocal commits
            commits += 1
            if commits == 3:
                if is_written:
                    write(group)
                raise KeyboardInterrupt
            return write(group)

        async def result() -> int:
            run = await engine.start(hov_chain, x=1, run_id="r")
            found: int = await asyncio.wait_for(run.result(), 10)
            return found

        engine.store.commit = commit  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            runner.run(result())
        assert runner.run(result()) == 4
        runner.run(opening.__aexit__(None, None, None))
    check_file(path)


@pytest.mark.parametrize("where", ["is_allowed", "took"])
def test_an_engine_goes_on_after_an_interruption_beside_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    ask, asked = getattr(InlineCommits, where), 0

    def interrupted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise KeyboardInterrupt
        return ask(*args)

    async def result(engine: Engine, run_id: str) -> int:
        async with asyncio.timeout(5):
            found: int = await (await engine.start(hov_chain, x=1, run_id=run_id)).result()
            return found

    with asyncio.Runner() as runner:
        opening = hf.open(url(tmp_path / "runs.db"))
        engine = runner.run(opening.__aenter__())
        monkeypatch.setattr(InlineCommits, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run(result(engine, "first"))
        assert runner.run(result(engine, "second")) == 4
        assert runner.run(result(engine, "first")) == 4
        runner.run(opening.__aexit__(None, None, None))


INTERRUPTED = """
import asyncio, sys
import holdfast as hf
from holdfast.engine.event_loop import may_be_interrupted

async def main():
    print(may_be_interrupted(), flush=True)

asyncio.run(main())
asyncio.new_event_loop().run_until_complete(main())
"""


def test_where_ctrl_c_breaks_into_what_the_loop_does_the_loop_does_not_write() -> None:
    """`asyncio.run` makes a cancellation of the first one; a loop that is driven by hand does not, as in a REPL."""
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert said.stdout.split() == ["False", "True"]


STEPS = """
import asyncio, sys
import holdfast as hf

@hf.node
async def hov_step(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1

@hf.workflow
async def hov_many(ctx: hf.Context) -> int:
    x = 0
    for n in range(100_000):
        x = await ctx.step(hov_step, x)
        if n == 50:
            print("steps", flush=True)
    return x

hf.run(hov_many, run_id="r", db=sys.argv[1])
"""


def test_ctrl_c_while_the_loop_writes_again_and_again_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HOLDFAST_GRACE_SECONDS": "0.1"}
    for _ in range(3):
        command = [sys.executable, "-c", STEPS, url(path)]
        pipe = subprocess.PIPE
        with child_process(command, stdout=pipe, stderr=pipe, env=environment) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "steps\n"
            program.send_signal(signal.SIGINT)
            time.sleep(0.01)
            program.send_signal(signal.SIGINT)
            _, said = program.communicate(timeout=PATIENCE_SECONDS)
        assert "KeyboardInterrupt" in said
        check_file(path)
