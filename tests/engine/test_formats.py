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
from holdfast.model.definition import Body, Definition, NodeDef, Param
from holdfast.model.errors import NewerFormat, NotYetApplied
from holdfast.model.expressions import NEEDS_FORMAT, OPERATORS
from holdfast.model.journal_format import FORMAT
from holdfast.model.plans import compile_definition
from holdfast.store import queries
from holdfast.store.sqlite import sqlite_writes
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
        assert row.format == 1, "it uses nothing new yet"
        (wait,) = await run.waits()
        await run.respond(wait.wait_id, True)
        assert await run.result(timeout=20) == 1, "who wrote it goes on with it"
        row = engine.store.run("r")
        assert row is not None
        assert row.format == FORMAT + 1


@hf.workflow
def for_chooses(fast: bool) -> Any:
    return for_last(hf.if_else(fast, for_first(), 7), hf.ask("go?", schema=bool))


async def test_run_of_a_definition_with_a_new_operator_is_not_claimed_by_an_engine_that_does_not_know_it(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db)) as engine:
        await engine.start(for_chooses, run_id="r", fast=False)
        await engine.start(for_asks, run_id="plain")
        await until(lambda: len(engine.store.asked()) == 2, "both ask")
        assert {row.run_id: row.format for row in engine.store.runs()} == {"r": 2, "plain": 1}
    with monkeypatch.context() as older:
        for module in (queries, sqlite_writes, journal_format):
            older.setattr(module, "FORMAT", 1)
        async with hf.open(url(db)) as engine:
            for run_id in ("r", "plain"):
                (wait,) = [wait for wait in await engine.get(run_id).waits() if wait.kind == "input"]
                if run_id == "plain":
                    await engine.get(run_id).respond(wait.wait_id, True)
                    assert await engine.get(run_id).result(timeout=20) == 1
                else:
                    with pytest.raises(NotYetApplied, match="format 2, this one reads 1"):
                        await engine.get(run_id).respond(wait.wait_id, True)
    async with hf.open(url(db)) as engine:
        assert await engine.get("r").result(timeout=20) == 7


def test_definition_with_an_operator_of_a_newer_version_is_not_compiled() -> None:
    node = NodeDef(id="a", uses="x", args={"x": ["list", ["input", "n"], ["of_tomorrow", 1]]})
    with pytest.raises(NewerFormat, match="uses the operator 'of_tomorrow', which is not known here"):
        compile_definition(Definition(name="w", params=(Param(name="n"),), nodes=(node,)), 1)


def test_each_new_operator_has_a_format_that_this_version_reads() -> None:
    assert (FORMAT, journal_format.RAISES) == (2, {}), "a release that changes this says so in CHANGELOG.md"
    assert max(NEEDS_FORMAT.values()) <= FORMAT
    assert NEEDS_FORMAT.keys() <= OPERATORS
    for operator in NEEDS_FORMAT:
        expr = [operator, True, "a", "b"] if operator == "if" else [operator, "a", "b"]
        inner = NodeDef(id="b", uses="x", when=["eq", expr, "a"])
        outer = NodeDef(id="m", kind="map", item="i", over=["const", [1]], body=Body(nodes=(inner,)))
        assert compile_definition(Definition(name="w", nodes=(outer,)), 1).format == NEEDS_FORMAT[operator]
