"""Walk: how many pages a reader turns to follow one run through the code.

    python benchmarks/walk.py            # a table
    python benchmarks/walk.py --json

A profiler hook (`sys.setprofile`) records every call of a function of Holdfast while a graph of two nodes, whose bodies
await once, runs on a SQLite file: on the event loop and on the writer's thread. (What a fork plans in a thread of its
own is not counted.) What a thread does is one story: changes of file are counted within each thread. Each walk is made
once before it is measured, so that definitions are registered, statements are prepared and caches are filled. Engines
poll so seldom here that no poll is in a walk; each walk is measured several times, and the median by changes is shown.

- calls: calls of functions, and resumptions of coroutines and generators
- functions, files: how many different ones
- changes: how often the next call is in another file: what a reader who follows the run pays for
- entered: the same without coroutines and generators that are resumed, to which a reader need not turn back
- text: the lines of these functions
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import holdfast as hf

PACKAGE = str(Path(hf.__file__).parent) + os.sep
SUSPENDS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
REPEAT = 5
GOALS = {
    "start to result": (150, 30),
    "respond to result": (130, None),
    "fork to the new result": (450, None),
    "resume in another process to the end": (400, None),
}
"""Changes of file, and files, at most."""


class Walk:
    """Records the calls of project functions while it is on."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        self._called: defaultdict[int, list[str]] = defaultdict(list)
        """The files of these calls, by thread."""
        self._entered: defaultdict[int, list[str]] = defaultdict(list)
        """The same without coroutines and generators that are resumed."""
        self._frames: set[FrameType] = set()

    def record(self, frame: FrameType) -> None:
        code, thread = frame.f_code, threading.get_ident()
        self.codes.append(code)
        self._called[thread].append(code.co_filename)
        if frame not in self._frames:
            self._entered[thread].append(code.co_filename)
        if code.co_flags & SUSPENDS:
            self._frames.add(frame)

    def __enter__(self) -> Walk:
        global _walk
        _walk = self
        return self

    def __exit__(self, *_: object) -> None:
        global _walk
        _walk = None
        self._frames.clear()

    def figures(self) -> dict[str, int]:
        functions = set(self.codes)
        return {
            "calls": len(self.codes),
            "functions": len(functions),
            "files": len({code.co_filename for code in functions}),
            "changes": sum(map(_changes, self._called.values())),
            "entered": sum(map(_changes, self._entered.values())),
            "text": sum(len(inspect.getsourcelines(code)[0]) for code in functions),
        }

    def listing(self) -> list[str]:
        """File and function of each call, in order."""
        return [f"{code.co_filename.removeprefix(PACKAGE)}: {code.co_name}" for code in self.codes]


_walk: Walk | None = None
"""The walk that is on."""


def _profile(frame: FrameType, event: str, _: Any) -> None:
    if _walk is not None and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
        thread = threading.current_thread()
        if thread is threading.main_thread() or thread.name.startswith("holdfast-writer"):
            _walk.record(frame)


def _changes(files: list[str]) -> int:
    return sum(a != b for a, b in itertools.pairwise(files))


# --- what is walked -------------------------------------------------------------------------------------------------


@hf.node(name="walk_one")
async def walk_one(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@hf.node(name="walk_two")
async def walk_two(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@hf.workflow
def walk_graph(n: int) -> Any:
    return walk_two(n=walk_one(n=n))


@hf.workflow
def walk_question(n: int) -> Any:
    return walk_two(n=hf.ask("How many?", about=walk_one(n=n), schema=int))


@hf.node(name="walk_hang")
async def walk_hang(n: int) -> int:
    """Hang until the process is killed; in the process that resumes the run, return at once."""
    if (ready := os.environ.get("WALK_READY")) is not None:
        Path(ready).touch()  # noqa: ASYNC240 - an empty file, in a process that is about to be killed
        await asyncio.sleep(60)
    await asyncio.sleep(0)
    return n + 1


@hf.workflow
def walk_killed(n: int) -> Any:
    return walk_hang(n=walk_one(n=n))


Measured = Callable[[hf.Engine, Walk], Awaitable[None]]


async def start_to_result(engine: hf.Engine, walk: Walk) -> None:
    with walk:
        run = await engine.start(walk_graph, n=1)
        await run.result()


async def respond_to_result(engine: hf.Engine, walk: Walk) -> None:
    run = await engine.start(walk_question, n=1)
    while not (waits := await run.waits()):  # noqa: ASYNC110 - before anything is measured
        await asyncio.sleep(0.01)
    with walk:
        await run.respond(waits[0].wait_id, 2)
        await run.result()


async def fork_to_result(engine: hf.Engine, walk: Walk) -> None:
    run = await engine.start(walk_graph, n=1)
    await run.result()
    with walk:
        await run.fork(at="walk_two")
        await run.result()


async def embedded(measured: Measured, folder: str) -> list[Walk]:
    walks = []
    async with hf.open(f"sqlite:///{folder}/{measured.__name__}.db") as engine:
        for _ in range(REPEAT + 1):
            walks.append(walk := Walk())
            await measured(engine, walk)
    return walks[1:]


def killed_and_resumed(folder: str) -> list[Walk]:
    walks = []
    for number in range(REPEAT + 1):
        url, ready = f"sqlite:///{folder}/killed{number}.db", Path(folder, f"ready{number}")
        child = multiprocessing.get_context("spawn").Process(target=_drive, args=(url, str(ready)))
        child.start()
        assert child.pid is not None
        while not ready.exists():
            child.join(0.01)
            assert child.is_alive(), "the process that is to be killed has ended"
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        walks.append(asyncio.run(_resume(url)))
    return walks[1:]


def _drive(url: str, ready: str) -> None:
    os.environ["WALK_READY"] = ready

    async def drive() -> None:
        async with hf.open(url) as engine:
            await (await engine.start(walk_killed, run_id="killed", n=1)).result()

    asyncio.run(drive())


async def _resume(url: str) -> Walk:
    with Walk() as walk:
        async with hf.open(url) as engine:
            await engine.get("killed").result()
            walk.__exit__()
    return walk


def measure() -> dict[str, Walk]:
    """The median of each walk, by changes of file."""
    with tempfile.TemporaryDirectory() as folder:
        walks = {
            "start to result": asyncio.run(embedded(start_to_result, folder)),
            "respond to result": asyncio.run(embedded(respond_to_result, folder)),
            "fork to the new result": asyncio.run(embedded(fork_to_result, folder)),
            "resume in another process to the end": killed_and_resumed(folder),
        }
    return {
        name: sorted(found, key=lambda walk: walk.figures()["changes"])[len(found) // 2]
        for name, found in walks.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the page turns of four walks through the code.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", metavar="WALK", help="print every call of one walk, such as 'start'")
    arguments = parser.parse_args()
    os.environ |= {"HOLDFAST_POLL_SECONDS": "60", "HOLDFAST_SWEEP_SECONDS": "600"}
    threading.setprofile(_profile)  # the threads that the engine starts
    sys.setprofile(_profile)
    walks = measure()
    sys.setprofile(None)
    if arguments.list:
        chosen = next(name for name in walks if name.startswith(arguments.list))
        print("\n".join(walks[chosen].listing()))
        return
    figures = {name: walk.figures() for name, walk in walks.items()}
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    columns = ("calls", "functions", "files", "changes", "entered", "text")
    print(f"{'walk':38}" + "".join(f"{column:>11}" for column in columns) + "   goal")
    for name, found in figures.items():
        changes, files = GOALS[name]
        goal = f"{changes} changes" + (f", {files} files" if files else "")
        print(f"{name:38}" + "".join(f"{found[column]:11,}" for column in columns) + f"   {goal}")


if __name__ == "__main__":
    main()
