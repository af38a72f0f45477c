"""What an engine reads beside its loop may be old when it is used: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import threading
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
    run_id = await suspended_run(db)
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = engine.get(run_id)
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


async def test_a_caller_who_gives_up_while_a_run_is_claimed_leaves_it_to_the_engine(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await suspended_run(db)
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = engine.get(run_id)
        reader = slowly(engine, "_read_runs", monkeypatch)
        await write(engine, run, "go", "m_1")
        asking = asyncio.create_task(engine.inbox.look())
        await reader.has_read.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        reader.goes_on.set()
        assert await run.result(timeout=20) == 1
    check_file(db)


async def test_a_damaged_run_whose_code_has_changed_is_put_on_hold_and_its_neighbours_go_on(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ids = [await suspended_run(db) for _ in range(3)]
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        numbers = [number(engine, engine.get(run_id)) for run_id in run_ids]
        event_data = engine.store.event_data

        def damaged(run_no: int, seqs: Any) -> Any:
            return {} if run_no == numbers[1] else event_data(run_no, seqs)

        monkeypatch.setattr(engine.store, "event_data", damaged)
        monkeypatch.setattr("holdfast.engine.recovery.code_hash", lambda fingerprints: "another")
        await engine.recovery.claim(numbers)
        assert sorted(engine.actors) == [numbers[0], numbers[2]]
        (row,) = [row for row in engine.store.runs() if row.run_no == numbers[1]]
        assert row.hold == "corrupt: KeyError: 1"


async def test_mail_that_could_not_be_looked_for_is_looked_for_again(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hf.open(url(db), idle_seconds=60.0) as engine, hf.open(url(db), drive=False) as other:
        run = await engine.start(rdr_signalled)
        await until(lambda: engine.store.counts().get("suspended") == 1)
        new_messages, errors = engine.store.new_messages, [StoreError("not now")]

        def fails_once(numbers: Any) -> Any:
            if errors:
                raise errors.pop()
            return new_messages(numbers)

        monkeypatch.setattr(engine.store, "new_messages", fails_once)
        await write(other, run, "go", "m_1")
        with pytest.raises(StoreError, match="not now"):
            await engine.patrol.look()
        await engine.patrol.look()
        assert await run.result(timeout=20) == 1


async def test_a_branch_that_could_not_be_looked_up_leaves_its_run_at_work(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        run = await engine.start(rdr_signalled)
        await until(lambda: engine.store.counts().get("suspended") == 1)
        (actor,) = engine.actors.values()

        def broken(run_no: int) -> Any:
            raise StoreError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(engine.store, "run_by_no", broken)
            message = MessageRow("m_1", actor.run_no, "retry", b"{}", engine.clock.now())
            with pytest.raises(StoreError, match="not now"):
                await engine.branching.apply_to(actor, message)
        await run.signal("go", 1)
        assert await run.result(timeout=20) == 1


async def test_an_engine_that_could_not_make_its_new_name_known_tries_again(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hf.open(url(db)) as engine:
        await engine.committer.call(engine.store.remove_engine, engine.lease.engine)
        engine.lease.renew_once()
        register, errors = engine.store.register_engine, [StoreError("not now")]

        def fails_once(row: Any) -> None:
            if errors:
                raise errors.pop()
            register(row)

        monkeypatch.setattr(engine.store, "register_engine", fails_once)
        with pytest.raises(StoreError, match="not now"):
            await engine.patrol.look()
        await engine.patrol.look()
        assert not engine.lease.lost
        assert [row.engine for row in engine.store.engines()] == [engine.lease.engine]


async def test_whoever_claims_while_the_engine_is_closed_hears_of_it(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await suspended_run(db)
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        reader = slowly(engine, "_read_runs", monkeypatch)
        claiming = asyncio.create_task(engine.recovery.claim([number(engine, engine.get(run_id))]))
        await reader.has_read.wait()
    with pytest.raises(StoreError, match="the engine is closed"):
        await claiming


async def test_nobody_waits_for_an_engine_that_is_closed(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        pass
    with pytest.raises(StoreError, match="the engine is closed"):
        await engine.recovery.claim([1], even_without_code=True)


async def test_a_server_that_refuses_us_leaves_no_threads_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(StoreError, match="cannot be reached"):
        async with hf.open(f"postgresql://nobody@/nothing?host={tmp_path}"):
            pass
    assert threading.active_count() == before


async def test_readers_beside_the_loop_say_what_the_store_says_when_they_are_closed() -> None:
    reader = ReaderThreads()
    assert await reader.read(sum, [1, 2]) == 3
    reader.close()

    def closed() -> None:
        raise StoreError("it was closed")

    with pytest.raises(StoreError, match="it was closed"):
        await reader.read(closed)
