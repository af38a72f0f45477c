"""The format of a run: who writes something new raises it, and who cannot read it does not touch the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.cli.main import main
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.errors import NewerFormat, NotYetApplied
from holdfast.model.journal_format import FORMAT
from tests.engine.kit import until, url

ACTED: list[str] = []
NEWER = f"written by a newer Holdfast (format {FORMAT + 1}, this one reads {FORMAT}); upgrade"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    ACTED.clear()
    return tmp_path / "runs.db"


@hf.node
async def for_first() -> int:
    ACTED.append("first")
    return 1


@hf.node
async def for_last(number: int, ok: bool) -> int:
    ACTED.append("last")
    return number


@hf.workflow
def for_asks() -> Any:
    return for_last(for_first(), hf.ask("go?", schema=bool))


@hf.workflow
async def for_sleeps(ctx: hf.Context) -> int:
    await ctx.sleep(0.05)
    return await ctx.step(for_first)


async def waiting(db: Path, run_id: str = "r") -> None:
    async with hf.open(url(db)) as engine:
        await engine.start(for_asks, run_id=run_id)
        await until(lambda: engine.store.asked(), "it asks")


def upgrade(db: Path, status: str | None = None) -> None:
    """A newer Holdfast has written something into run `r`."""
    connection = apsw.Connection(str(db))
    connection.execute("UPDATE run_state SET format = ? WHERE run_id = 'r'", (FORMAT + 1,))
    if status is not None:
        connection.execute("UPDATE run_state SET status = ? WHERE run_id = 'r'", (status,))
    connection.close()


async def test_engine_does_not_claim_a_run_of_a_newer_format_and_says_why(db: Path) -> None:
    await waiting(db)
    upgrade(db)
    async with hf.open(url(db)) as engine:
        run = engine.get("r")
        before = await run.events()
        (wait,) = [wait for wait in await run.waits() if wait.kind == "input"]
        with pytest.raises(NotYetApplied, match=r"not applied: run r was written by a newer Holdfast"):
            await run.respond(wait.wait_id, True)
        await engine.claims.sweep()
        for refused in (engine.resume("r"), engine.recover("r"), run.fork(at="for_first"), run.retry()):
            with pytest.raises(NewerFormat, match="upgrade"):
                await refused
        assert NEWER in await run.why()
        (listed,) = await engine.list()
        assert (listed["status"], NEWER in listed["waits"][-1]["question"]) == ("suspended", True)
        assert await run.events() == before
        assert engine.store.runs()[0].engine is None
        neighbour = await engine.start(for_sleeps, run_id="neighbour")
        assert await neighbour.result(timeout=20) == 1
    assert ACTED == ["first", "first"], "the neighbour's own"


async def test_run_that_was_at_work_when_its_newer_engine_died_is_left_to_a_newer_one(db: Path) -> None:
    await waiting(db)
    upgrade(db, "running")
    async with hf.open(url(db)) as engine:
        await engine.claims.sweep()
        assert engine.actors == {}
        connection = apsw.Connection(str(db))
        connection.execute("UPDATE run_state SET format = 1, status = 'suspended'")
        connection.close()
        (wait,) = await engine.get("r").waits()
        await engine.get("r").respond(wait.wait_id, True)
        assert await engine.get("r").result(timeout=20) == 1


async def test_commands_say_that_a_run_is_of_a_newer_format(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await waiting(db)
    upgrade(db)
    at = ("--db", url(db))

    def call(*command: str) -> tuple[int, str]:
        code = main([*command, *at])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert NEWER in call("list")[1].replace("\n", " ")
    assert NEWER in call("why", "r")[1].replace("\n", " ")
    code, said = call("doctor", "--deep")
    assert (code, NEWER in said) == (0, True)
    code, said = call("events", "r")
    assert (code, "NodeCompleted" in said) == (0, True)
    code, said = call("show", "r", "--json")
    assert (code, json.loads(said)["status"]) == (0, "suspended")


async def test_writing_something_new_raises_the_format_in_the_same_commit(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(journal_format.RAISES, ev.WaitClosed, lambda e: FORMAT + 1)
    async with hf.open(url(db)) as engine:
        run = await engine.start(for_asks, run_id="r")
        await until(lambda: engine.store.asked(), "it asks")
        row = engine.store.run("r")
        assert row is not None
        assert row.format == FORMAT, "it uses nothing new yet"
        (wait,) = await run.waits()
        await run.respond(wait.wait_id, True)
        assert await run.result(timeout=20) == 1, "who wrote it goes on with it"
        row = engine.store.run("r")
        assert row is not None
        assert row.format == FORMAT + 1


def test_everything_that_this_version_writes_has_the_first_format() -> None:
    assert (FORMAT, journal_format.RAISES) == (1, {}), "a release that changes this says so in CHANGELOG.md"
