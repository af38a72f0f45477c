"""Record golden journals and a database: `python3 -m tests.golden.record [FOLDER]`.

Owns: driving the workflows of flows.py in three processes on one SQLite file (start, end in the middle, deploy other
code and resume, damage one run and recover it), then writing the file and one `RUN.jsonl` per run into FOLDER (without
one: `tests/golden/VERSION`, the version of this Holdfast). Fails unless every type of event was recorded and every run
came to the status in `STATUSES`.

What is recorded is frozen: every later version must open it and fold it to the same states (test_golden.py). Record
anew only before a release; afterwards add a folder for the new version and keep the old ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

import holdfast as hf
from holdfast.model import events as ev
from holdfast.opening import open_engine
from holdfast.store.sqlite.sqlite_store import SqliteStore
from holdfast.testing import corrupt
from tests.golden import journals

PATIENCE_SECONDS = 60.0

STATUSES = {
    "branched": "completed",
    "cancelled": "cancelled",
    "changed": "completed",
    "checkpoint": "completed",
    "code": "completed",
    "forked": "completed",
    "graph": "completed",
    "journey": "completed",
    "paths": "completed",
    "question": "suspended",
    "recovered": "completed",
    "undone": "failed",
}
"""How each run ends; children are not among them."""


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-golden-") as scratch:
        database = Path(scratch) / journals.DATABASE
        # a copy, so that no journal names a path of the developer
        shutil.copytree(
            journals.ROOT, Path(scratch) / "tests" / "golden", ignore=shutil.ignore_patterns("*.jsonl", "*.db")
        )
        paths = os.pathsep.join((scratch, str(journals.ROOT.parents[1])))
        for life in ("1", "2", "3"):
            environment = {**os.environ, "GOLDEN_LIFE": life, "PYTHONPATH": paths}
            command = [sys.executable, "-m", "tests.golden.record", "--life", str(database)]
            subprocess.run(command, env=environment, cwd=scratch, check=True)
        found = export(database)
        ended = {journal.run_id: journal.states[journal.branch]["status"] for journal in found}
        assert {run_id: ended.get(run_id) for run_id in STATUSES} == STATUSES
        missing = ev.TYPES.keys() - {event["type"] for journal in found for event in journal.events}
        assert not missing, f"no journal has these events; extend flows.py: {', '.join(sorted(missing))}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with closing(apsw.Connection(str(database))) as connection:  # without what was deleted (the names of hosts)
            connection.execute("VACUUM INTO ?", (str(folder / journals.DATABASE),))
        for journal in found:
            journals.write(folder, journal)
    print(f"recorded {len(found)} runs with {sum(len(one.events) for one in found)} events in {folder}")


def export(database: Path) -> list[journals.Journal]:
    """All runs of a file that no process has open."""
    with closing(SqliteStore(str(database))) as store:
        store.open()
        return [journals.exported(store, row) for row in reversed(store.runs(limit=1_000))]


# --- the three processes ----------------------------------------------------------------------------------------------


async def live(database: Path) -> None:
    life = os.environ["GOLDEN_LIFE"]
    url = f"sqlite:///{database}"
    await {"1": _first_life, "2": _second_life, "3": _third_life}[life](url)


async def _first_life(url: str) -> None:
    """Start every run; leave some of them waiting for the next process."""
    from tests.golden import flows

    async with hf.open(url, drain_seconds=0.1) as engine:
        await (await engine.start(flows.graph, numbers=[1, 2, 3], run_id="graph")).result()
        asked = await engine.start(flows.question, sum=5, run_id="question")
        wait = await _waits(asked, "input", "Pay?")
        await asked.reassign(wait.wait_id, assignee="ann", actor="bob")
        await asked.respond(wait.wait_id, True, actor="ann")
        await engine.start(flows.code, n=1, run_id="code")
        await _waits(engine.get("code"), "signal")
        await _ended(await engine.start(flows.undone, city="Rome", run_id="undone"))
        run = await engine.start(flows.cancelled, run_id="cancelled")
        await _waits(run, "signal")
        await run.pause("to look at it", actor="bob")
        await run.resume(actor="bob")
        await run.cancel("not needed", actor="bob")
        await _ended(run)
        await engine.start(flows.changed, run_id="changed")
        await _started(engine.get("changed"))
        await _ended(await engine.start(flows.checkpoint, n=2, run_id="checkpoint"))
        journey = await engine.start(flows.journey, run_id="journey")
        await _waits(journey, "basket")
        paths = await engine.start("golden_paths", run_id="paths")
        await _waits(paths, "basket", basket="supervisor")
        await _branch(engine, flows)


async def _branch(engine: Any, flows: Any) -> None:
    run = await engine.start(flows.branched, n=-1, run_id="branched")
    wait = await _waits(run, "input")
    await run.respond(wait.wait_id, True, actor="ann")
    await _ended(run)
    await run.retry(actor="bob")
    await _ended(run)
    await run.fork(at="start", edits={"input": {"n": 1}, "answers": {wait.wait_id: False}}, actor="bob")
    await _ended(run)
    await run.jump("joined", edits={"outputs": {"first_part": 40}, "vars": {"rate": 3}}, actor="bob")
    await _ended(run)
    await _ended(await run.fork(at="joined", as_run="forked", actor="bob"))


async def _second_life(url: str) -> None:
    """Another process with other code goes on with what the first has left."""
    from tests.golden import flows

    assert flows.IS_SECOND_LIFE
    async with hf.open(url) as engine:
        await _ended(engine.get("changed"))
        with contextlib.suppress(hf.Refused):
            await engine.get("code").signal("go", "not a number")
        await engine.get("code").signal("go", 7)
        await _ended(engine.get("code"))
        await engine.get("journey").resume(actor="cy")
        await _ended(engine.get("journey"))
        await _reopen(engine.get("paths"))
        run = await engine.start(flows.branched, n=1, run_id="recovered")
        wait = await _waits(run, "input")
        await run.respond(wait.wait_id, True, actor="ann")
        await _ended(run)


async def _reopen(run: Any) -> None:
    await run.resume(path=".split.inside.", actor="cy")
    await _ended(run)
    await run.reopen("appeal", basket="appeals", actor="cy")
    await _waits(run, "pause", basket="appeals")
    await run.resume(actor="cy")
    await _ended(run)


async def _third_life(url: str) -> None:
    """The rows of a run are behind its journal, as after a restored backup; recovering makes them right."""
    corrupt(url, "recovered", "D2")
    async with open_engine(url, recover=False) as engine:
        await engine.recover("recovered")
        await _ended(engine.get("recovered"))


async def _waits(run: Any, kind: str, question: str | None = None, basket: str | None = None) -> hf.Wait:
    """Wait until a run is suspended, with a wait of this kind."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = [w for w in await run.waits() if w.kind == kind and question in (None, w.question)]
            found = [w for w in found if basket in (None, w.basket)]
            if found and await run.status() == "suspended":
                return found[0]
            await asyncio.sleep(0.01)


async def _started(run: Any) -> None:
    async for event in run.follow():
        if event.type == "NodeStarted":
            return


async def _ended(run: Any) -> None:
    with contextlib.suppress(hf.RunFailed, hf.RunCancelled):
        await run.result(timeout=PATIENCE_SECONDS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python3 -m tests.golden.record", description="Record golden journals.")
    default = journals.ROOT / version("holdfast")
    parser.add_argument("folder", type=Path, nargs="?", default=default, help="replaced by the recording (%(default)s)")
    parser.add_argument("--life", type=Path, metavar="DATABASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.life is not None:
        asyncio.run(live(arguments.life))
    else:
        main(arguments.folder)
