"""What an engine reads beside its loop may be old when it is used: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.engine.run.actor import Life
from holdfast.engine.runtime import LoopReader, ReaderThreads
from holdfast.model.errors import StoreError
from holdfast.store.row_types import MessageRow
from tests.doctor.ward import harm
from tests.engine.kit import PATIENCE_SECONDS, check_file, owner, until, url

T = TypeVar("T")


@hf.workflow
async def rdr_signalled(ctx: hf.Context) -> Any:
    return await ctx.receive("go")


@hf.workflow
async def rdr_signalled_twice(ctx: hf.Context) -> list[Any]:
    return [await ctx.receive("go"), await ctx.receive("go")]


@pytest.fixture(autouse=True)
def _nobody_looks_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLL_SECONDS", "60")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def engine(db: Path) -> AsyncIterator[Engine]:
    """It keeps the runs that it drives. What it has written is proved when it has been closed."""
    async with hf.open(url(db), idle_seconds=60.0) as engine:
        yield engine
    check_file(db)


async def driven(engine: Engine, workflow: hf.Workflow[..., Any] = rdr_signalled) -> hf.Run[Any]:
    """A run that waits for a signal and is driven by this engine."""
    run = await engine.start(workflow)
    await until(lambda: engine.store.counts().get("suspended") == 1)
    await until(lambda: all(actor.life is Life.IDLE for actor in engine.actors.values()), "its commit is applied")
    return run


async def left(engine: Engine) -> hf.Run[Any]:
    """A run that waits for a signal and is driven by nobody."""
    async with hf.open(engine.store.url, idle_seconds=0.0) as another:
        run = await another.start(rdr_signalled)
        await until(lambda: not another.actors)
    return engine.get(run.run_id)


def number(engine: Engine, run: hf.Run[Any]) -> int:
    row = engine.store.run(run.run_id)
    assert row is not None
    return row.run_no


async def write(engine: Engine, run: hf.Run[Any], message_id: str = "m_1") -> None:
    """As another process sends the signal."""
    message = MessageRow(message_id, number(engine, run), "signal", b'{"name": "go", "payload": 1}', engine.clock.now())
    await engine.committer.call(engine.store.send, [message])


class LateReader(LoopReader):
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


class HalfwayReader(LoopReader):
    """Stops behind the first of the reads that one function makes, until it is let go."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.has_begun = threading.Event()
        self.goes_on = threading.Event()

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        if function.__name__ != self.held:
            return function(*args)
        return await asyncio.to_thread(function, *args)

    def stopping_behind(self, verb: Callable[..., T]) -> Callable[..., T]:
        def read(*args: Any) -> T:
            found = verb(*args)
            if threading.current_thread() is not threading.main_thread() and not self.has_begun.is_set():
                self.has_begun.set()
                assert self.goes_on.wait(PATIENCE_SECONDS)
            return found

        return read


@pytest.fixture
def late(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LateReader]:
    """From now on the engine is late with what it reads by one function."""

    def make(held: str) -> LateReader:
        reader = LateReader(held)
        monkeypatch.setattr(engine.runtime, "read", reader.read)
        return reader

    return make


@pytest.fixture
def fails_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The next time that the engine's store is asked for something, it says `not now`."""

    def make(verb: str) -> None:
        works, errors = getattr(engine.store, verb), [StoreError("not now")]

        def fail(*args: Any) -> Any:
            if errors:
                raise errors.pop()
            return works(*args)

        monkeypatch.setattr(engine.store, verb, fail)

    return make


Late = Callable[[str], LateReader]
FailsOnce = Callable[[str], None]


# --- what is read is old -----------------------------------------------------------------------------------------


async def test_mail_that_comes_while_its_run_is_being_read_is_delivered(engine: Engine, late: Late) -> None:
    run = await left(engine)
    reader = late("_read_runs")
    claiming = asyncio.create_task(engine.claims.claim([number(engine, run)]))
    await reader.has_read.wait()
    await write(engine, run)
    await engine.inbox.deliver_new()  # which knows nobody to whom it could bring this
    reader.goes_on.set()
    await claiming
    assert await run.result(timeout=20) == 1


async def test_mail_goes_to_nobody_who_began_to_drive_a_run_after_it_was_read(
    engine: Engine, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He has read it himself, and may have done what it asks for."""
    run = await driven(engine)
    (run_no,) = engine.actors
    delivered: list[Any] = []
    monkeypatch.setattr(engine.inbox, "deliver", lambda actor, message: delivered.append((actor, message.message_id)))
    reader = late("new_messages")
    await write(engine, run)
    looking = asyncio.create_task(engine.inbox.deliver_new())
    await reader.has_read.wait()
    before = engine.actors.pop(run_no)
    engine.actors[run_no] = successor = object()  # type: ignore[assignment]
    reader.goes_on.set()
    await looking
    assert delivered == []
    engine.actors[run_no] = before
    await engine.inbox.deliver_new()
    assert delivered == [(before, "m_1")]
    assert successor is not before


async def test_mail_that_was_settled_while_it_was_read_once_more_is_not_delivered_again(
    engine: Engine, late: Late
) -> None:
    run = await driven(engine, rdr_signalled_twice)
    (actor,) = engine.actors.values()
    reader = late("new_messages")
    await write(engine, run)
    looking = asyncio.create_task(engine.inbox.deliver_new())
    await reader.has_read.wait()
    message = engine.store.message("m_1")
    assert message is not None
    engine.inbox.deliver(actor, message)  # as an earlier look did, which had not heard of its commit yet
    await until(lambda: "m_1" not in actor.delivered, "it is consumed")
    reader.goes_on.set()
    await looking
    await run.signal("go", 2)
    assert await run.result(timeout=20) == [1, 2]


async def test_mail_that_was_applied_and_ended_its_run_while_its_sender_read_of_both_was_not_too_late(
    engine: Engine, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await driven(engine)
    async with hf.open(url(db), drive=False) as client:
        reader = HalfwayReader("_run_and_message")
        monkeypatch.setattr(client.runtime, "read", reader.read)
        for verb in ("run_by_no", "message"):
            monkeypatch.setattr(client.store, verb, reader.stopping_behind(getattr(client.store, verb)))
        sending = asyncio.create_task(client.get(run.run_id).signal("go", 1))
        await until(reader.has_begun.is_set, "it has read one of the two")
        await engine.inbox.deliver_new()
        assert await run.result(timeout=20) == 1
        reader.goes_on.set()
        await sending


async def test_what_was_read_by_an_engine_that_was_declared_dead_meanwhile_is_not_used(
    engine: Engine, late: Late
) -> None:
    run = await left(engine)
    reader = late("_read_runs")
    claiming = asyncio.create_task(engine.claims.claim([number(engine, run)]))
    await reader.has_read.wait()
    reader.held = ""
    await engine.committer.call(engine.store.remove_engine, engine.lease.engine)
    engine.lease.renew_once()
    assert engine.lease.lost
    await engine.poll_loop.poll_once()  # it has another name now
    await engine.claims.claim([number(engine, run)])
    (actor,) = engine.actors.values()
    reader.goes_on.set()
    await claiming
    assert list(engine.actors.values()) == [actor]
    await run.signal("go", 1)
    assert await run.result(timeout=20) == 1


async def test_a_caller_who_gives_up_while_a_run_is_claimed_leaves_it_to_the_engine(engine: Engine, late: Late) -> None:
    run = await left(engine)
    reader = late("_read_runs")
    await write(engine, run)
    asking = asyncio.create_task(engine.inbox.deliver_new())
    await reader.has_read.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    reader.goes_on.set()
    assert await run.result(timeout=20) == 1


# --- what is to be read cannot be read ---------------------------------------------------------------------------


async def test_runs_that_were_claimed_and_could_not_be_read_are_given_back(
    engine: Engine, fails_once: FailsOnce
) -> None:
    run = await left(engine)
    fails_once("open_nodes")
    await write(engine, run)
    with pytest.raises(StoreError, match="not now"):
        await engine.inbox.deliver_new()
    await until(lambda: owner(engine, run.run_id) is None)
    await engine.inbox.deliver_new()
    assert await run.result(timeout=20) == 1


async def test_a_run_that_was_to_be_repaired_and_could_not_be_read_is_given_back(
    engine: Engine, fails_once: FailsOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await left(engine)
    heads = iter([[number(engine, run)]])  # as if its rows and its journal did not end alike, when it is read first
    monkeypatch.setattr(engine.store, "differing_heads", lambda numbers, types: next(heads, []))
    fails_once("events")
    await write(engine, run)
    await engine.inbox.deliver_new()
    await until(lambda: owner(engine, run.run_id) is None, "it is given back")
    await engine.inbox.deliver_new()
    assert await run.result(timeout=20) == 1


async def test_a_run_whose_commit_was_refused_and_that_could_not_be_read_again_is_given_back(
    engine: Engine, fails_once: FailsOnce
) -> None:
    run = await driven(engine)
    (actor,) = engine.actors.values()
    actor.expected_seq += 1  # as if the database had been restored to an earlier state
    fails_once("run_by_no")
    await write(engine, run)
    await engine.inbox.deliver_new()
    await until(lambda: owner(engine, run.run_id) is None, "it is given back")
    await engine.inbox.deliver_new()
    assert await run.result(timeout=20) == 1


async def test_a_run_whose_row_is_no_text_is_put_on_hold_and_its_neighbours_go_on(engine: Engine, db: Path) -> None:
    numbers = [number(engine, await left(engine)) for _ in range(3)]
    harm(db, "UPDATE run_state SET fold = x'22ff22' WHERE run_no = {damaged}", damaged=numbers[1])
    await engine.claims.claim(numbers)
    assert sorted(engine.actors) == [numbers[0], numbers[2]]
    (row,) = [row for row in engine.store.runs() if row.run_no == numbers[1]]
    assert row.hold is not None
    assert row.hold.startswith("corrupt: ")
    harm(db, "DELETE FROM run_state WHERE run_no = {damaged}", damaged=numbers[1])  # the others are proved later


async def test_a_damaged_run_whose_code_has_changed_is_put_on_hold_and_its_neighbours_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [number(engine, await left(engine)) for _ in range(3)]
    event_data = engine.store.event_data

    def damaged(run_no: int, seqs: Any) -> Any:
        return {} if run_no == numbers[1] else event_data(run_no, seqs)

    monkeypatch.setattr(engine.store, "event_data", damaged)
    monkeypatch.setattr("holdfast.engine.ownership.load.code_hash", lambda fingerprints: "another")
    await engine.claims.claim(numbers)
    assert sorted(engine.actors) == [numbers[0], numbers[2]]
    (row,) = [row for row in engine.store.runs() if row.run_no == numbers[1]]
    assert row.hold == f"corrupt: event 1 of run {row.run_id} is missing from its journal"


async def test_mail_that_could_not_be_looked_for_is_looked_for_again(
    engine: Engine, db: Path, fails_once: FailsOnce
) -> None:
    run = await driven(engine)
    fails_once("new_messages")
    async with hf.open(url(db), drive=False) as other:
        await write(other, run)
    with pytest.raises(StoreError, match="not now"):
        await engine.poll_loop.poll_once()
    await engine.poll_loop.poll_once()
    assert await run.result(timeout=20) == 1


async def test_a_branch_that_could_not_be_looked_up_leaves_its_run_at_work(
    engine: Engine, fails_once: FailsOnce
) -> None:
    run = await driven(engine)
    (actor,) = engine.actors.values()
    fails_once("run_by_no")
    message = MessageRow("m_1", actor.run_no, "retry", b"{}", engine.clock.now())
    with pytest.raises(StoreError, match="not now"):
        await engine.branching.apply_to(actor, message)
    await run.signal("go", 1)
    assert await run.result(timeout=20) == 1


async def test_an_engine_that_could_not_make_its_new_name_known_tries_again(
    engine: Engine, fails_once: FailsOnce
) -> None:
    await engine.committer.call(engine.store.remove_engine, engine.lease.engine)
    engine.lease.renew_once()
    fails_once("register_engine")
    with pytest.raises(StoreError, match="not now"):
        await engine.poll_loop.poll_once()
    await engine.poll_loop.poll_once()
    assert not engine.lease.lost
    assert [row.engine for row in engine.store.engines()] == [engine.lease.engine]


# --- the engine is closed ----------------------------------------------------------------------------------------


async def test_whoever_claims_while_the_engine_is_closed_hears_of_it(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LateReader("_read_runs")
    async with hf.open(url(db)) as engine:
        run = await left(engine)
        monkeypatch.setattr(engine.runtime, "read", reader.read)
        claiming = asyncio.create_task(engine.claims.claim([number(engine, run)]))
        await reader.has_read.wait()
    with pytest.raises(StoreError, match="the engine is closed"):
        await claiming


async def test_nobody_waits_for_an_engine_that_is_closed(db: Path) -> None:
    async with hf.open(url(db)) as engine:
        pass
    with pytest.raises(StoreError, match="the engine is closed"):
        await engine.claims.claim([1], even_without_code=True)


async def test_a_server_that_refuses_us_leaves_no_threads_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # of others, which may take a moment to end
    with pytest.raises(StoreError, match="cannot be reached"):
        async with hf.open(f"postgresql://nobody@/nothing?host={tmp_path}"):
            pass
    assert set(threading.enumerate()) <= before


async def test_readers_beside_the_loop_say_what_the_store_says_when_they_are_closed() -> None:
    reader = ReaderThreads()
    assert await reader.read(sum, [1, 2]) == 3
    reader.close()

    def closed() -> None:
        raise StoreError("it was closed")

    with pytest.raises(StoreError, match="it was closed"):
        await reader.read(closed)
