"""Requests from outside: what cannot be meant is told at once, in the caller's words, and nothing is stored."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.engine.run_handle import Run
from holdfast.testing import harness
from tests.engine.kit import types, url, waiting


class Lock:
    """No JSON value becomes one."""


BROKEN = "a\ud800"
"""Text that is no Unicode: half of a character."""


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.workflow
async def req_asks(ctx: hf.Context) -> int:
    return await ctx.ask("Well?", schema=int)


def messages(db: Path) -> int:
    """By the SQLite that the engine uses, which has the file open: another one would take its locks away by closing."""
    with contextlib.closing(apsw.Connection(str(db))) as connection:
        return int(connection.execute("SELECT count(*) FROM run_inbox_messages").get)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.respond(7, 1), "wait_id is a name, not 7"),
        (lambda run: run.respond("", 1), "wait_id is a name, not ''"),
        (lambda run: run.respond("w_1", 1, actor=BROKEN), "actor: .* cannot be stored"),
        (lambda run: run.respond("w_1", 1, actor="x" * 201), "actor has 201 characters; at most 200"),
        (lambda run: run.signal(BROKEN), "name: .* cannot be stored"),
        (lambda run: run.signal("n\0"), "name: .* cannot be stored"),
        (lambda run: run.signal(""), "name is a name, not"),
        (lambda run: run.signal("n" * 1_000_000), "name has 1,000,000 characters"),
        (lambda run: run.signal("n", id=BROKEN), "id: .* cannot be stored"),
        (lambda run: run.signal("n", id=""), "id is a text, not"),
        (lambda run: run.pause(BROKEN), "reason: .* cannot be stored"),
        (lambda run: run.pause("x" * 10_001), "reason has 10,001 characters; at most 10,000"),
        (lambda run: run.pause(7), "reason is a text, not 7"),
        (lambda run: run.pause(actor=7), "actor is a name, not 7"),
        (lambda run: run.cancel(BROKEN), "reason: .* cannot be stored"),
        (lambda run: run.cancel(actor=BROKEN), "actor: .* cannot be stored"),
        (lambda run: run.resume(vars=[1]), r"vars are variables by their names.*not \[1\]"),
        (lambda run: run.resume(vars={1: 2}), "vars are variables by their names"),
        (lambda run: run.resume(wait=""), "wait is a name"),
        (lambda run: run.resume(wait=7), "wait is a name, not 7"),
        (lambda run: run.resume(path=BROKEN), "path: .* cannot be stored"),
        (lambda run: run.resume(actor=BROKEN), "actor: .* cannot be stored"),
        (lambda run: run.reassign("w_1", assignee=BROKEN), "assignee: .* cannot be stored"),
        (lambda run: run.reassign("w_1", basket=""), "basket is a name"),
        (lambda run: run.reassign("", basket="b"), "wait_id is a name"),
        (lambda run: run.fork("start", actor=BROKEN), "actor: .* cannot be stored"),
        (lambda run: run.jump("req_asks", actor=BROKEN), "actor: .* cannot be stored"),
        (lambda run: run.retry(actor=BROKEN), "actor: .* cannot be stored"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_nothing_is_stored(
    db: Path, ask: Callable[[Run[Any]], Awaitable[Any]], message: str
) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(req_asks)
        (wait,) = await waiting(run, "input")
        before = len(await run.events())
        with pytest.raises(hf.UsageError, match=message):
            await ask(run)
        assert (len(await run.events()), messages(db)) == (before, 0)
        await run.respond(wait.wait_id, 3)
        assert await run.result() == 3


@pytest.mark.parametrize("run_id", ["", "\udfff", "x" * 201, 7])
async def test_what_is_no_run_id_is_the_beginning_of_none(db: Path, run_id: Any) -> None:
    async with hf.open(url(db)) as engine:
        await engine.start(req_asks)
        with pytest.raises(hf.UnknownRun, match="is not a run id"):
            engine.get(run_id)
        with pytest.raises(hf.UnknownRun, match="is not a run id"):
            await engine.resume(run_id)


async def test_a_resume_that_makes_no_sense_releases_no_hold(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        run = await engine.start(req_asks, run_id="r")
        await waiting(run, "input")
    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE run_state SET hold = 'crash_loop: it dies'")
    async with hf.open(url(db)) as engine:
        wrong: Any = [1]
        with pytest.raises(hf.UsageError, match="vars are variables"):
            await engine.resume("r", vars=wrong)
        assert [w.kind for w in await engine.get("r").waits()] == ["input", "hold"]


async def test_who_is_looked_for_has_a_name(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        for wrong in (BROKEN, "", "x" * 201):
            with pytest.raises(hf.UsageError, match="asked: basket"):
                await engine.asked(basket=wrong)
            with pytest.raises(hf.UsageError, match="asked: assignee"):
                await engine.asked(assignee=wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ctx: ctx.receive(BROKEN), "cannot be stored"),
        (lambda ctx: ctx.receive("n" * 201), "201 characters"),
        (lambda ctx: ctx.receive("n", schema=Lock), "a Lock cannot be made from JSON"),
        (lambda ctx: ctx.receive("n", deadline="9999999d"), "not a time to wait"),
        (lambda ctx: ctx.signal("to", BROKEN), "name: .* cannot be stored"),
        (lambda ctx: ctx.signal("to", ""), "name is a name"),
        (lambda ctx: ctx.signal("", "n"), "run is a name"),
        (lambda ctx: ctx.signal("to", "n", id=""), "id is a text"),
    ],
)
async def test_a_body_hears_at_once_what_it_cannot_ask_for(call: Callable[[Any], Awaitable[Any]], message: str) -> None:
    @hf.workflow(name=f"req_wrongly_{abs(hash(message))}_{call.__code__.co_firstlineno}")
    async def wrongly(ctx: hf.Context) -> None:
        await call(ctx)

    async with harness() as h:
        await h.start(req_asks, run_id="to")
        run = await h.start(wrongly)
        with pytest.raises(hf.RunFailed, match=message):
            await run.result()
        assert "WaitOpened" not in types(await run.events())


async def test_a_pend_into_a_basket_without_a_name_fails_its_node() -> None:
    @hf.node
    def req_pends() -> None:
        hf.pend(BROKEN)

    @hf.workflow
    def req_pended() -> None:
        req_pends()

    async with harness() as h:
        run = await h.start(req_pended)
        with pytest.raises(hf.RunFailed, match=r"hf\.pend: the basket: .* cannot be stored"):
            await run.result()
