"""What is handed to the writer's thread together, in which order, and that the loop never waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from tests.engine.kit import PATIENCE_SECONDS, check_file, url
from tests.processes import child_process


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


async def test_runs_that_are_written_for_others_in_one_turn_are_one_group(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db"), drive=False) as engine:
        await engine.start(hov_chain, x=0)
        before = engine.committer.commits
        await asyncio.gather(*[engine.start(hov_chain, x=n) for n in range(100)])
        assert engine.committer.commits - before <= 3


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
        write, threads = engine.store.commit, list[int]()

        def commit(group: Any) -> Any:
            threads.append(threading.get_ident())
            return write(group)

        monkeypatch.setattr(engine.store, "commit", commit)
        may_end = threading.Event()
        other = asyncio.ensure_future(engine.committer.call(may_end.wait))
        await asyncio.sleep(0)
        run = asyncio.ensure_future(engine.start(hov_chain, x=1))
        await asyncio.sleep(0.05)
        assert not threads
        may_end.set()
        await other
        assert await (await run).result() == 4
        assert threading.get_ident() not in threads, "the loop never writes by itself"


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
