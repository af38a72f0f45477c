"""A result that is too large for one event is made from the values that the journal holds already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli import main as cli
from holdfast.model.limits import INLINE_LIMIT_BYTES
from holdfast.testing import harness
from tests.engine.kit import check_file, types, url
from tests.servers import PostgresServer

ITEM = "x" * 1_000
MANY = 1_100


@hf.node
async def filled(n: int) -> str:
    return f"{n}:{ITEM}"


@hf.workflow
def large_list(count: int) -> list[str]:
    return hf.map(filled, numbers_up_to(count))


@hf.node
async def numbers_up_to(count: int) -> list[int]:
    return list(range(count))


@hf.workflow
def large_dict(count: int) -> Any:
    items = hf.map(filled, numbers_up_to(count))
    return {"items": items, "first": items[0], "size": hf.size(items)}


@hf.workflow
def parent_of_large(count: int) -> Any:
    return large_list(count)


@hf.workflow
async def attached_to_large(ctx: hf.Context) -> Any:
    return await ctx.child(large_list, run_id="large", count=MANY)


WANTED = [f"{n}:{ITEM}" for n in range(MANY)]


async def test_a_map_larger_than_an_event_is_the_result_of_its_run(tmp_path: Path) -> None:
    assert len(json.dumps(WANTED)) > INLINE_LIMIT_BYTES
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        run = await engine.start(large_list, count=MANY, run_id="large")
        assert await run.result() == WANTED
        assert (await run.show())["result"] == WANTED
        last = (await run.events())[-1]
        assert (last.type, last.data["result"]) == ("RunCompleted", None)
        whole = await (await engine.start(large_dict, count=MANY)).result()
        assert whole == {"items": WANTED, "first": WANTED[0], "size": MANY}
        small = await engine.start(large_list, count=3)
        assert await small.result() == WANTED[:3]
        assert "located" not in (await small.events())[-1].data
    async with hf.open(url(db), drive=False) as other:
        assert await other.get("large").result() == WANTED
    check_file(db)


async def test_a_large_result_is_read_on_an_old_branch_and_after_a_fork(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        run = await engine.start(large_list, count=MANY, run_id="large")
        await run.result()
        await run.fork("start", edits={"input": {"count": 2}})
        assert await run.result() == WANTED[:2]
        assert (await run.show(branch=1))["result"] == WANTED
        fork = await run.fork(branch=1, as_run="again")
        assert await fork.result() == WANTED
    check_file(db)


@pytest.mark.parametrize("attached", [False, True])
async def test_a_parent_is_told_that_the_result_of_its_child_is_too_large(tmp_path: Path, attached: bool) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        if attached:
            await (await engine.start(large_list, count=MANY, run_id="large")).result()
            run = await engine.start(attached_to_large)
        else:
            run = await engine.start(parent_of_large, count=MANY)
        with pytest.raises(hf.RunFailed, match=r"has completed, and its result has more than 1,000,000 bytes"):
            await run.result()
        child = next(r for r in await engine.list(workflow="large_list"))
        assert child["status"] == "completed"
        assert await engine.get(child["run_id"]).result() == WANTED
    check_file(db)


PROGRAM = """
import os, signal, sys
import holdfast as hf
from holdfast.engine import rule_inputs

@hf.node
async def numbers() -> list[int]:
    return list(range(1100))

@hf.node
async def filled(n: int) -> str:
    with open("ran", "a") as f:
        f.write("x")
    return str(n) + "x" * 1000

@hf.workflow
def large() -> list[str]:
    return hf.map(filled, numbers())

if "die" in sys.argv:
    rule_inputs.result = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
print(sum(map(len, hf.run(large, run_id="r", db="sqlite:///runs.db"))))
"""


def test_a_process_that_dies_before_a_large_result_runs_no_item_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "program.py", *args]
        return subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False)

    died = run("die")
    assert died.returncode == -signal.SIGKILL, died.stderr
    for _ in range(2):
        again = run()
        assert again.stdout.strip() == str(sum(len(str(n)) + 1000 for n in range(1100))), again.stderr
    assert (tmp_path / "ran").read_text() == "x" * 1100


def test_the_command_line_shows_a_large_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = url(tmp_path / "runs.db")
    hf.run(large_list, count=MANY, run_id="large", db=db)
    assert cli.main(["show", "large", "--json", "--db", db]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == WANTED
    assert cli.main(["show", "large", "--db", db]) == 0
    assert 'result    ["0:xxx' in capsys.readouterr().out


async def test_a_large_result_on_postgresql(postgres: PostgresServer) -> None:
    async with hf.open(postgres.url()) as engine:
        run = await engine.start(large_dict, count=MANY, run_id="large")
        assert (await run.result())["items"] == WANTED
        assert (await run.show())["result"]["size"] == MANY


async def test_a_large_result_of_a_run_that_is_persisted_lazily(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        run = await engine.start(large_list, count=MANY, persistence="lazy")
        assert await run.result() == WANTED
        assert types(await run.events())[-1] == "RunCompleted"
    check_file(db)


async def test_a_large_result_in_the_testing_harness() -> None:
    async with harness() as h:
        run = await h.start(large_list, count=MANY)
        assert await run.result() == WANTED
