"""Two processes on one file: reading, asking and taking over work from either side."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from tests.engine.kit import check_file, hold_time, types, until, until_async, url

SCRIPT = Path(__file__).with_name("worker_process.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Other:
    """Another process on the file."""

    def __init__(self, db: Path, action: str, *run_ids: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(db), action, *run_ids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )

    async def says(self, line: str) -> None:
        assert self.process.stdout is not None
        found = await asyncio.to_thread(self.process.stdout.readline)
        assert found.strip() == line, found

    async def ends(self) -> list[str]:
        """Let it end, and give back what it said."""
        output, _ = await asyncio.to_thread(self.process.communicate, "", 60)
        assert self.process.returncode == 0, output
        return output.split("\n")[:-1]


@pytest.fixture
def patient(tmp_path: Path) -> hf.Workflow:
    from tests.engine import worker_process

    return worker_process.declare(tmp_path)


def _go(db: Path, name: str) -> None:
    (db.parent / f"{name}.go").touch()


def _began(db: Path, name: str) -> list[int]:
    path = db.parent / f"{name}.began"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def _is(run: hf.Run, status: str) -> bool:
    return await run.status() == status


async def test_result_and_follow_of_a_run_that_another_process_drives(db: Path) -> None:
    other = Other(db, "start", "r")
    await other.says("ready")
    async with hf.open(url(db), recover=False) as engine:
        run = engine.get("r")
        following = asyncio.ensure_future(_follow(run))
        waiting = asyncio.ensure_future(run.result())
        await until(lambda: _began(db, "r"))
        assert await run.status() == "running"
        _go(db, "r")
        assert await waiting == "r went"
        assert await following == [e.seq for e in await run.events()]
        assert types(await run.events())[-1] == "RunCompleted"
    await other.ends()
    assert _began(db, "r") == [1]
    check_file(db)


async def _follow(run: hf.Run) -> list[int]:
    return [event.seq async for event in run.follow()]


async def test_another_process_reads_what_this_one_drives(db: Path, patient: hf.Workflow) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(patient, name="r", run_id="r")
        readers = Other(db, "result", "r"), Other(db, "follow", "r")
        await until(lambda: _began(db, "r"))
        _go(db, "r")
        assert [json.loads(line) for line in await readers[0].ends()] == ["r went"]
        followed = [json.loads(line) for line in await readers[1].ends()]
        assert followed == [[e.seq, e.type] for e in await run.events()]
    check_file(db)


async def test_another_process_cancels_without_the_code_while_this_one_drives(db: Path, patient: hf.Workflow) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(patient, name="r", run_id="r")
        await until(lambda: _began(db, "r"))
        await Other(db, "cancel", "r").ends()
        with pytest.raises(hf.RunCancelled, match="from another process"):
            await run.result()
    check_file(db)


async def test_a_process_without_the_code_cancels_while_no_engine_runs(db: Path, patient: hf.Workflow) -> None:
    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(patient, name="r", run_id="r")
        await until(lambda: _began(db, "r"))
    await Other(db, "cancel", "r").ends()
    async with hf.open(url(db)) as engine:
        with pytest.raises(hf.RunCancelled, match="from another process"):
            await engine.get("r").result()
    assert _began(db, "r") == [1]
    check_file(db)


async def test_resume_from_a_process_without_the_code_says_what_is_missing(db: Path, tmp_path: Path) -> None:
    other = Other(db, "start", "r")
    await other.says("ready")
    await until(lambda: _began(db, "r"))
    await other.ends()
    script = (
        "import asyncio, holdfast as hf\n"
        "async def main():\n"
        f"    async with hf.open('{url(db)}', recover=False) as engine:\n"
        "        try:\n"
        "            await engine.resume('r')\n"
        "        except hf.MissingCode as e:\n"
        "            print(e)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert "patient" in done.stdout
    check_file(db)


async def test_another_process_resumes_what_this_one_left(db: Path, patient: hf.Workflow) -> None:
    async with hf.open(url(db), grace_seconds=0) as engine:
        await engine.start(patient, name="r", run_id="r")
        await until(lambda: _began(db, "r"))
    _go(db, "r")
    other = Other(db, "resume", "r")
    assert [json.loads(line) for line in await other.ends()] == ["r went"]
    assert _began(db, "r") == [1, 1]
    check_file(db)


async def test_resume_of_a_run_that_another_process_drives_changes_nothing(db: Path) -> None:
    driver = Other(db, "start", "r")
    await driver.says("ready")
    await until(lambda: _began(db, "r"))
    resumer = Other(db, "resume", "r")
    async with hf.open(url(db), recover=False) as engine:
        _go(db, "r")
        assert [json.loads(line) for line in await resumer.ends()] == ["r went"]
        assert "RunTakenOver" not in types(await engine.get("r").events())
    await driver.ends()
    assert _began(db, "r") == [1]
    check_file(db)


@pytest.mark.smoke
async def test_a_living_engine_takes_over_at_once_when_another_process_is_killed(db: Path) -> None:
    survivor = Other(db, "serve")
    await survivor.says("ready")
    victim = Other(db, "start", "r", "s")
    await victim.says("ready")
    await until(lambda: _began(db, "r") and _began(db, "s"))
    victim.process.kill()
    await asyncio.to_thread(victim.process.communicate)
    _go(db, "r")
    _go(db, "s")
    async with hf.open(url(db), recover=False) as engine:
        for name in ("r", "s"):
            assert await engine.get(name).result(timeout=60) == f"{name} went"
    await survivor.ends()
    assert (_began(db, "r"), _began(db, "s")) == ([1, 2], [1, 2])
    check_file(db)


async def test_an_orderly_end_of_one_process_hands_its_runs_to_the_other_without_losing_an_attempt(db: Path) -> None:
    survivor = Other(db, "serve")
    await survivor.says("ready")
    leaver = Other(db, "start", "r")
    await leaver.says("ready")
    await until(lambda: _began(db, "r"))
    await leaver.ends()
    _go(db, "r")
    async with hf.open(url(db), recover=False) as engine:
        assert await engine.get("r").result(timeout=60) == "r went"
    await survivor.ends()
    assert _began(db, "r") == [1, 1]
    check_file(db)


async def test_two_processes_write_at_once_and_nobody_hears_that_the_database_is_locked(
    db: Path, patient: hf.Workflow
) -> None:
    names = [f"r{i}" for i in range(20)]
    for name in names:
        _go(db, name)
        _go(db, f"mine-{name}")
    other = Other(db, "start", *names)
    async with hf.open(url(db), recover=False) as engine:
        runs = [await engine.start(patient, name=f"mine-{n}", run_id=f"mine-{n}") for n in names]
        assert [await run.result() for run in runs] == [f"mine-{n} went" for n in names]
        await other.says("ready")
        for name in names:
            assert await engine.get(name).result() == f"{name} went"
    await other.ends()
    assert all(_began(db, n) == [1] and _began(db, f"mine-{n}") == [1] for n in names)
    check_file(db)


async def test_a_sleeping_run_of_a_dead_process_wakes_in_a_living_one(db: Path) -> None:
    @hf.workflow(name="sleeper_of_two")
    async def sleeper(ctx: hf.Context) -> str:
        await ctx.sleep(0.3)
        return "woke"

    async with hf.open(url(db)) as first:
        hold_time(first)
        run = await first.start(sleeper, run_id="r")
        await until_async(lambda: _is(run, "suspended"))
    async with hf.open(url(db)) as second:
        assert await second.get("r").result() == "woke"
    check_file(db)
