"""What an engine reads beside its loop may be old when it is used: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holdfast as hf
from holdfast.engine import inbox
from holdfast.engine.engine import Engine
from holdfast.engine.readers import LoopReader, ReaderThreads
from holdfast.model.errors import StoreError
from holdfast.store.api import MessageRow
from tests.engine.kit import check_file, owner, until, url

T = TypeVar("T")


class SlowReader(LoopReader):
    """Keeps to itself what it read by one function, until it is let go."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.has_read = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        found = function(*args)
        if function.__name__ == self.held:
            self.has_read.set()
            await self.goes_on.wait()
        return found


@pytest.fixture(autouse=True)
def _nobody_looks_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "60")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@hf.workflow
async def rdr_signalled(ctx: hf.Context) -> Any:
    return await ctx.receive("go")


async def suspended_run(db: Path) -> str:
    """A run that nobody drives."""
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        run = await engine.start(rdr_signalled)
        await until(lambda: not engine.actors)
    return run.run_id


def slowly(engine: Engine, held: str, monkeypatch: pytest.MonkeyPatch) -> SlowReader:
    reader = SlowReader(held)
    monkeypatch.setattr(engine, "_reader", reader)
    return reader


@hf.workflow
async def rdr_signalled_twice(ctx: hf.Context) -> list[Any]:
    return [await ctx.receive("go"), await ctx.receive("go")]


def number(engine: Engine, run: hf.Run[Any]) -> int:
    row = engine.store.run(run.run_id)
    assert row is not None
    return row.run_no


async def write(engine: Engine, run: hf.Run[Any], name: str, message_id: str) -> None:
    """As another process sends a signal."""
    payload = b'{"name": "%s", "payload": 1}' % name.encode()
    message = MessageRow(message_id, number(engine, run), "signal", payload, engine.clock.now())
    await engine.committer.call(engine.store.send, [message])


async def test_mail_that_comes_while_its_run_is_being_read_is_delivered(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await suspended_run(db)
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = engine.get(run_id)
        reader = slowly(engine, "_read_runs", monkeypatch)
        claiming = asyncio.create_task(engine.recovery.claim([number(engine, run)]))
        await reader.has_read.wait()
        await write(engine, run, "go", "m_1")
        await engine.inbox.look()  # which knows nobody to whom it could bring this
        reader.goes_on.set()
        await claiming
        assert await run.result(timeout=20) == 1
    check_file(db)


async def test_mail_goes_to_nobody_who_began_to_drive_a_run_after_it_was_read(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He has read it himself, and may have done what it asks for."""
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = await engine.start(rdr_signalled)
        (run_no,) = engine.actors
        await until(lambda: engine.store.counts().get("suspended") == 1)
        delivered: list[Any] = []
        monkeypatch.setattr(inbox, "deliver", lambda actor, message: delivered.append((actor, message.message_id)))
        reader = slowly(engine, "new_messages", monkeypatch)
        await write(engine, run, "go", "m_1")
        looking = asyncio.create_task(engine.inbox.look())
        await reader.has_read.wait()
        before = engine.actors.pop(run_no)
        engine.actors[run_no] = successor = object()  # type: ignore[assignment]
        reader.goes_on.set()
        await looking
        assert delivered == []
        engine.actors[run_no] = before
        await engine.inbox.look()
        assert delivered == [(before, "m_1")]
        assert successor is not before


async def test_mail_that_was_settled_while_it_was_read_once_more_is_not_delivered_again(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = await engine.start(rdr_signalled_twice)
        await until(lambda: engine.store.counts().get("suspended") == 1)
        (actor,) = engine.actors.values()
        reader = slowly(engine, "new_messages", monkeypatch)
        await write(engine, run, "go", "m_1")
        looking = asyncio.create_task(engine.inbox.look())
        await reader.has_read.wait()
        message = engine.store.message("m_1")
        assert message is not None
        inbox.deliver(actor, message)  # as an earlier look did, which had not heard of its commit yet
        await until(lambda: "m_1" not in actor.delivered, "it is consumed")
        reader.goes_on.set()
        await looking
        await run.signal("go", 2)
        assert await run.result(timeout=20) == [1, 2]
    check_file(db)


async def test_what_was_read_by_an_engine_that_was_declared_dead_meanwhile_is_not_used(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await suspended_run(db)
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = engine.get(run_id)
        reader = slowly(engine, "_read_runs", monkeypatch)
        claiming = asyncio.create_task(engine.recovery.claim([number(engine, run)]))
        await reader.has_read.wait()
        reader.held = ""
        await engine.committer.call(engine.store.remove_engine, engine.lease.engine)
        engine.lease.renew_once()
        assert engine.lease.lost
        await engine.patrol.look()  # it has another name now
        await engine.recovery.claim([number(engine, run)])
        (actor,) = engine.actors.values()
        reader.goes_on.set()
        await claiming
        assert list(engine.actors.values()) == [actor]
        await run.signal("go", 1)
        assert await run.result(timeout=20) == 1
    check_file(db)


async def test_runs_that_were_claimed_and_could_not_be_read_are_given_back(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db), idle_seconds=0.0) as engine:
        run = await engine.start(rdr_signalled)
        await until(lambda: not engine.actors)
        broken = [StoreError("the server did not come back")]
        open_nodes = engine.store.open_nodes

        def fails_once(numbers: list[int]) -> Any:
            if broken:
                raise broken.pop()
            return open_nodes(numbers)

        monkeypatch.setattr(engine.store, "open_nodes", fails_once)
        await write(engine, run, "go", "m_1")
        with pytest.raises(StoreError, match="did not come back"):
            await engine.inbox.look()
        await until(lambda: owner(engine, run.run_id) is None)
        await engine.inbox.look()
        assert await run.result(timeout=20) == 1
    check_file(db)


async def test_readers_beside_the_loop_say_what_the_store_says_when_they_are_closed() -> None:
    reader = ReaderThreads()
    assert await reader.read(sum, [1, 2]) == 3
    reader.close()

    def closed() -> None:
        raise StoreError("it was closed")

    with pytest.raises(StoreError, match="it was closed"):
        await reader.read(closed)
