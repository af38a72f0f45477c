"""The bodies of a suspect run in processes of their own, and everything that a body can do works there.

Who is found guilty, with engines that really die, is in tests/crash/test_isolation.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import msgspec
import pytest

import holdfast as hf
from holdfast.engine.run.actor import RunActor
from holdfast.worker.loading import load_file
from tests.engine import isolated_flows as flows
from tests.engine.kit import attempts, check_file, types, until, until_async, url


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def always_isolated() -> Iterator[None]:
    """Every run is a suspect, also after it made progress."""
    with mock.patch.object(RunActor, "is_suspect", property(lambda _: True)):
        yield


def inside(folder: Path) -> list[tuple[int, int]]:
    """(attempt, process) of the bodies that have begun."""
    path = folder / "inside"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


async def cut_off(db: Path, workflow: Any, recoveries: int = 2, run_id: str = "suspect", **inputs: Any) -> None:
    """Leave a run as engines leave it that died while it ran, several times in a row."""
    async with hf.open(url(db), recover=False, grace_seconds=0) as engine:
        await engine.start(workflow, run_id=run_id, **inputs)
        await until(lambda: engine.store.run(run_id).status == "running")
        connection = apsw.Connection(str(db))
        connection.set_busy_timeout(10_000)
        connection.execute(
            "UPDATE run_state SET token = token + 1, engine = NULL, recoveries = ? WHERE run_id = ?",
            (recoveries, run_id),
        )
        connection.close()


async def held(engine: Any, run_id: str) -> str:
    def hold() -> Any:
        return engine.store.run(run_id).hold

    return str(await until(hold))


async def test_a_suspect_runs_in_another_process_and_progress_ends_the_suspicion(db: Path, tmp_path: Path) -> None:
    await cut_off(db, flows.isolated_gated, folder=str(tmp_path))
    (tmp_path / "gate").touch()
    async with hf.open(url(db)) as engine:
        assert await engine.get("suspect").result(timeout=30) != os.getpid()
        assert (await engine.get("suspect").show())["recoveries"] == 0
        assert await (await engine.start(flows.isolated_gated, folder=str(tmp_path))).result(timeout=30) == os.getpid()


async def test_steps_in_processes_take_places_of_their_node_in_the_engine(
    db: Path, tmp_path: Path, always_isolated: None
) -> None:
    async with hf.open(url(db)) as engine:
        runs = [await engine.start(flows.isolated_limited, folder=str(tmp_path)) for _ in range(2)]
        for run in runs:
            assert await run.result(timeout=30) == [0, 1, 2]
        refused = await engine.start(flows.isolated_in_itself, folder=str(tmp_path))
        with pytest.raises(hf.RunFailed, match="isolated_nested has a concurrency limit"):
            await refused.result(timeout=30)
        assert not [pool for pool in engine.slots.used() if pool.startswith("handler:")]
    check_file(db)


@pytest.mark.parametrize("arguments", [["app.py", "--tenant", "Zoë \udcff"], [""], []])
async def test_bodies_in_processes_see_the_arguments_of_the_engines_process(
    db: Path, always_isolated: None, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    async with hf.open(url(db)) as engine:
        for workflow in (flows.isolated_arguments, flows.process_arguments):
            found = await (await engine.start(workflow)).result(timeout=30)
            assert found == ascii(arguments)


async def test_how_far_a_body_in_a_process_is_can_be_seen_while_it_runs(db: Path, tmp_path: Path) -> None:
    await cut_off(db, flows.isolated_gated, folder=str(tmp_path))
    async with hf.open(url(db)) as engine:
        found = await until(lambda: engine.executor.progress(1))
        assert found == {("isolated_waiter", "."): (1, 2, "waits")}
        (tmp_path / "gate").touch()
        await engine.get("suspect").result(timeout=30)


async def test_every_call_on_ctx_works_in_a_process(
    db: Path, tmp_path: Path, always_isolated: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with hf.open(url(db)) as engine:
        listener = await engine.start(flows.isolated_listener, run_id="listener")
        run = await engine.start(flows.isolated_everything, run_id="all", folder=str(tmp_path))
        wait = await until_async(lambda: _asked(run))
        await run.respond(wait.wait_id, True)
        await run.signal("go", {"name": "b", "amount": 1})
        found = await run.result(timeout=30)
        assert re.fullmatch("key_.*", found.pop("key"))
        assert "nobody" in found.pop("unknown")
        assert "listener" in found.pop("exists")
        assert found == {
            "first": 2,
            "patched": True,
            "sync": 2,
            "keyed": 4,
            "flaky": 3,
            "map": [2, 4, 6],
            "gather": [10, 12],
            "now": True,
            "uuid": 36,
            "random": True,
            "child": 8,
            "race": [1, 14],
            "total": 42,
            "cancelled": False,
            "leaving": False,
            "answer": True,
            "received": "b",
        }
        assert await listener.result(timeout=30) == {"from": "all"}
        steps = [e.data["name"] for e in await run.events() if e.type == "StepCompleted" and e.data["kind"] == "step"]
        assert len(steps) == 7  # none of them twice, though the body was left and run again at every wait
    check_file(db)
    assert {attempt for attempt, _ in inside(tmp_path)} == {1}
    assert os.getpid() not in {pid for _, pid in inside(tmp_path)}
    (line,) = [record for record in caplog.records if record.name == "holdfast.node"][:1]
    assert (line.getMessage(), line.levelno) == ("a line of isolated_everything", logging.WARNING)
    assert line.run_id == "all"


async def test_a_body_in_a_process_that_makes_other_calls_than_it_remembers_holds_its_run(
    db: Path, tmp_path: Path, always_isolated: None
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(flows.isolated_changed, folder=str(tmp_path))
        wait = await until_async(lambda: _asked(run))
        await until(lambda: not engine.executor.is_live(1, "isolated_changed", "."))  # else it need not run again
        await run.respond(wait.wait_id, 1)
        held = await until_async(lambda: _held(run))
        assert held.question.startswith("code_changed"), held
        assert (await run.show())["error"] is None


async def _held(run: Any) -> Any:
    return next((wait for wait in await run.waits() if wait.kind == "hold"), None)


async def _asked(run: Any) -> Any:
    return next((wait for wait in await run.waits() if wait.kind == "input"), None)


async def test_a_sync_body_in_a_process_blocks_in_its_calls_and_is_left_when_it_asks(
    db: Path, tmp_path: Path, always_isolated: None
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(flows.isolated_sync_everything, folder=str(tmp_path))
        wait = await until_async(lambda: _asked(run))
        await until(lambda: not engine.executor.is_live(1, "isolated_sync_calls", "."))  # its process is given back
        await run.respond(wait.wait_id, "yes")
        assert await run.result(timeout=30) == [2, [2, 3], "yes", 1]
    assert os.getpid() not in {pid for _, pid in inside(tmp_path)}


async def test_bodies_in_processes_pend_go_elsewhere_run_inline_and_fail(
    db: Path, tmp_path: Path, always_isolated: None
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(flows.isolated_ends, folder=str(tmp_path))
        await until_async(lambda: _in_basket(run))
        await run.resume()
        with pytest.raises(hf.RunFailed, match=r"visit 2, pid (\d+) is wrong") as failed:
            await run.result(timeout=30)
    assert f"pid {os.getpid()}" not in str(failed.value)
    assert failed.value.error.kinds[0].endswith("ValueError")
    assert any("isolated_flows.py" in frame for frame in failed.value.error.frames)


async def _in_basket(run: Any) -> Any:
    return [wait for wait in await run.waits() if wait.kind == "basket"]


async def test_a_timeout_lets_the_body_clean_up_and_is_a_failure_like_any_other(db: Path, tmp_path: Path) -> None:
    await cut_off(db, flows.isolated_timeout, folder=str(tmp_path))
    async with hf.open(url(db), grace_seconds=5) as engine:
        with pytest.raises(hf.RunFailed, match="longer than its timeout"):
            await engine.get("suspect").result(timeout=30)
        assert attempts(await engine.get("suspect").events(), "isolated_slow") == [1, 2, 3]
    assert (tmp_path / "cleaned up").exists()


async def test_a_body_that_blocks_its_process_is_killed_past_its_timeout(
    db: Path, tmp_path: Path, always_isolated: None
) -> None:
    with mock.patch("holdfast.worker.isolated.ISOLATED_OVERDUE_SECONDS", 0.0):
        async with hf.open(url(db), grace_seconds=0) as engine:
            run = await engine.start(flows.isolated_stuck, folder=str(tmp_path))
            with pytest.raises(hf.RunFailed, match="longer than its timeout"):
                await run.result(timeout=30)


@pytest.mark.parametrize("workflow", [flows.isolated_gated, flows.isolated_sync], ids=["async", "sync"])
async def test_a_suspect_can_be_cancelled_while_its_body_runs(db: Path, tmp_path: Path, workflow: Any) -> None:
    await cut_off(db, workflow, folder=str(tmp_path))
    async with hf.open(url(db), grace_seconds=5) as engine:
        await until(lambda: any(pid != os.getpid() for _, pid in inside(tmp_path)))
        await engine.get("suspect").cancel("not worth it")
        with pytest.raises(hf.RunCancelled):
            await engine.get("suspect").result(timeout=30)


async def test_a_suspect_whose_engine_is_stopped_goes_on_with_the_same_attempt(db: Path, tmp_path: Path) -> None:
    await cut_off(db, flows.isolated_one_at_a_time, folder=str(tmp_path))
    before = len(inside(tmp_path))  # the first engine's body may have begun before it was stopped
    for _ in range(2):
        async with hf.open(url(db), grace_seconds=0.2) as engine:
            count = len(inside(tmp_path))
            await until(lambda count=count: len(inside(tmp_path)) > count)
    (tmp_path / "gate").touch()
    async with hf.open(url(db)) as engine:
        await engine.get("suspect").result(timeout=30)
        assert attempts(await engine.get("suspect").events(), "isolated_one_at_a_time") == [1, 2]
    assert [attempt for attempt, _ in inside(tmp_path)[before:]] == [2, 2, 2]


async def test_a_suspect_keeps_to_the_concurrency_of_its_workflow(db: Path, tmp_path: Path) -> None:
    for run_id in ("s0", "s1"):
        await cut_off(db, flows.isolated_one_at_a_time, run_id=run_id, folder=str(tmp_path))
    async with hf.open(url(db)) as engine:
        await until(lambda: inside(tmp_path))
        other = await engine.start(flows.isolated_gated, folder=str(tmp_path))
        await until(lambda: len(inside(tmp_path)) == 2)  # another workflow's body: the second suspect is not inside
        (tmp_path / "gate").touch()
        for run_id in ("s0", "s1", other.run_id):
            await engine.get(run_id).result(timeout=30)
        await until(lambda: not engine.slots.used())


async def test_a_suspended_run_is_claimed_like_any_other(db: Path) -> None:
    async with hf.open(url(db), recover=False) as engine:
        await engine.start(flows.isolated_listener, run_id="listener")
        await until(lambda: engine.store.run("listener").status == "suspended")
    connection = apsw.Connection(str(db))
    connection.execute("UPDATE run_state SET recoveries = 9")
    connection.close()
    async with hf.open(url(db)) as engine:
        await engine.get("listener").signal("news", 1)
        assert await engine.get("listener").result(timeout=30) == 1


# --- code that cannot be tried in another process --------------------------------------------------------------------


async def test_code_that_no_other_process_can_find_holds_and_runs_in_the_engine_when_it_is_resumed(
    db: Path, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    @hf.workflow(name="isolation_local")
    async def local(ctx: hf.Context) -> int:
        flows.inside(ctx, folder)
        await flows.gate(folder)
        return os.getpid()

    await cut_off(db, local)
    async with hf.open(url(db)) as engine:
        why = await held(engine, "suspect")
        assert why.startswith("crash_loop: 3 engines in a row died")
        assert "top level of a file" in why
        assert inside(tmp_path) == []
        (tmp_path / "gate").touch()
        await engine.resume("suspect")
        assert await engine.get("suspect").result(timeout=30) == os.getpid()


SCRIPT = """
import asyncio, os
from pathlib import Path
import holdfast as hf
{at_import}
@hf.workflow(name="isolation_script_{name}")
async def flow(ctx: hf.Context) -> int:
    while not os.path.exists({gate!r}):
        await asyncio.sleep(0.005)
    return os.getpid()
{at_end}
"""


def script(tmp_path: Path, name: str, at_import: str = "", at_end: str = "") -> Any:
    file = tmp_path / f"isolation_script_{name}.py"
    text = SCRIPT.format(name=name, gate=str(tmp_path / "gate"), at_import=at_import, at_end=at_end)
    file.write_text(textwrap.dedent(text))
    return file


async def test_code_whose_import_fails_in_a_process_holds_with_the_reason(db: Path, tmp_path: Path) -> None:
    file = script(tmp_path, "fails", at_import="if os.path.exists('{0}'): raise OSError('no licence')")
    file.write_text(file.read_text().replace("{0}", str(tmp_path / "broken")))
    await cut_off(db, load_file(file).flow)
    (tmp_path / "broken").touch()
    async with hf.open(url(db)) as engine:
        why = await held(engine, "suspect")
        assert why.startswith("crash_loop: ")
        assert "no licence" in why
        assert "holdfast resume suspect" in why
        (tmp_path / "broken").unlink()
        (tmp_path / "gate").touch()
        await engine.resume("suspect")
        assert await engine.get("suspect").result(timeout=30) != os.getpid()


async def test_resume_ends_a_hold_whose_engine_gives_its_lease_back_meanwhile(db: Path, tmp_path: Path) -> None:
    """The row that resume has read names the engine that put the run on hold; the store names none any more."""
    file = script(tmp_path, "meanwhile", at_import="if os.path.exists('{0}'): raise OSError('no licence')")
    file.write_text(file.read_text().replace("{0}", str(tmp_path / "broken")))
    await cut_off(db, load_file(file).flow)
    (tmp_path / "broken").touch()
    async with hf.open(url(db)) as engine:
        await held(engine, "suspect")
        await until(lambda: engine.store.run("suspect").engine is None)
        (tmp_path / "broken").unlink()
        (tmp_path / "gate").touch()
        row = msgspec.structs.replace(engine.store.run("suspect"), engine="the engine that put it on hold")
        await engine.custody.lift_hold(row)
        assert engine.store.run("suspect").hold is None
        await engine.resume("suspect")
        assert await engine.get("suspect").result(timeout=30) != os.getpid()


async def test_a_script_that_starts_its_runs_when_it_is_imported_can_be_isolated(db: Path, tmp_path: Path) -> None:
    """What it has defined by then is all that its bodies see in the engine, too."""
    file = script(tmp_path, "starts", at_end="if Path('{0}').exists(): hf.run(flow)")
    file.write_text(file.read_text().replace("{0}", str(tmp_path / "started")))
    await cut_off(db, load_file(file).flow)
    (tmp_path / "started").touch()
    (tmp_path / "gate").touch()
    async with hf.open(url(db)) as engine:
        assert await engine.get("suspect").result(timeout=30) != os.getpid()


async def test_a_process_that_cannot_be_spawned_is_tried_again_and_counts_nothing(db: Path, tmp_path: Path) -> None:
    await cut_off(db, flows.isolated_gated, folder=str(tmp_path))
    (tmp_path / "gate").touch()
    with mock.patch("holdfast.worker.isolated_processes.ISOLATED_SPAWN_SECONDS", 0.01):
        async with hf.open(url(db), recover=False) as engine:
            python, sys.executable = sys.executable, str(tmp_path / "no python")
            try:
                await engine.resume("suspect")
                await asyncio.sleep(0.1)
                assert engine.store.run("suspect").recoveries == 3
            finally:
                sys.executable = python
            await engine.get("suspect").result(timeout=30)
            assert "died" not in str([e.data for e in await engine.get("suspect").events()])
            assert types(await engine.get("suspect").events()).count("RunTakenOver") == 1
