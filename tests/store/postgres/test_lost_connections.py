"""PostgreSQL in bad weather: answers that are lost, a server that is away, a server that dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import asyncpg
import pytest

from holdfast.model.errors import (
    OutcomeUnknown,
    StoreError,
)
from holdfast.store.postgres import postgres_access as driver
from holdfast.store.postgres import postgres_connections
from holdfast.store.postgres.postgres_address import address
from holdfast.store.postgres.postgres_schema import in_schema
from holdfast.store.postgres.postgres_store import PostgresStore
from holdfast.store.row_types import Commit, EngineRow, MessageOutcome, Rebuilt
from tests.servers import EXECUTE, PostgresServer, Proxy, Side
from tests.store.conformance.store import (
    change,
    claimable,
    creation,
    event_row,
    make_runs,
    message,
    node_row,
    refusals,
    run_row,
    step,
)
from tests.store.postgres_kit import asking, sql

T = TypeVar("T")


# --- answers that are lost -------------------------------------------------------------------------------------------


class Meeting:
    """A store behind a proxy, and a way to look beside it."""

    def __init__(self, proxy: Proxy, store: PostgresStore) -> None:
        self.proxy = proxy
        self.store = store

    def losing(self, side: Side, work: Callable[[], T], holding: bytes = EXECUTE) -> T:
        """Does `work` and loses what it sends or the answer to it."""
        before = self.proxy.cuts
        self.proxy.cut(side, holding)
        done = work()
        assert self.proxy.cuts == before + 1, "nothing was cut"
        return done


@pytest.fixture
def meeting(postgres: PostgresServer) -> Iterator[Meeting]:
    proxy = Proxy(postgres)
    store = PostgresStore(proxy.url())
    store.open()
    yield Meeting(proxy, store)
    store.close()
    proxy.close()


SIDES: tuple[Side, ...] = ("there", "back")


@pytest.mark.parametrize("side", SIDES)
def test_a_commit_whose_answer_is_lost_happens_once(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    numbers = make_runs(store, 5)
    assert refusals(store, *(step(no) for no in numbers)) == [None] * 5
    group = [step(no, 2, nodes=[node_row(no, "a")]) for no in numbers]
    assert meeting.losing(side, lambda: refusals(store, *group)) == [None] * 5
    for no in numbers:
        assert [event.seq for event in store.events(no)] == [1, 2, 3]
        assert [node.node for node in store.nodes(no)] == ["a"]
    assert refusals(store, *(step(no, 3) for no in numbers)) == [None] * 5


@pytest.mark.parametrize("is_new", [False, True])
def test_a_commit_that_landed_before_its_run_was_taken_over_is_told_from_one_that_is_still_ours(
    meeting: Meeting, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    store = meeting.store
    ours, lost = make_runs(store, 2)
    if is_new:
        lost += 1
    group = [step(ours), creation(lost) if is_new else step(lost)]
    wait = store._wait

    def taken_over_meanwhile(*args: Any, **options: Any) -> None:
        direct = postgres.url(schema=address(store.url).schema)
        sql(direct, f"UPDATE holdfast.run_state SET token = 9 WHERE run_no = {lost}")  # noqa: S608 - a number
        wait(*args, **options)

    monkeypatch.setattr(store, "_wait", taken_over_meanwhile)
    assert meeting.losing("back", lambda: refusals(store, *group)) == [None, "replaced"]
    assert len(store.events(lost)) == (1 if is_new else 2), "it has landed, once"


@pytest.mark.parametrize("side", SIDES)
def test_a_commit_as_the_engine_makes_it_happens_once(meeting: Meeting, side: Side) -> None:
    """Its rows are plain tuples."""
    store = meeting.store
    numbers = make_runs(store, 3)
    group = [step(no, nodes=[tuple(node_row(no, "a"))], events=[tuple(event_row(no, 2))]) for no in numbers]
    assert meeting.losing(side, lambda: refusals(store, *group)) == [None] * 3
    assert [[event.seq for event in store.events(no)] for no in numbers] == [[1, 2]] * 3


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("holding", [b"BEGIN", b"COMMIT"])
def test_a_commit_of_several_statements_whose_answer_is_lost_happens_once(
    meeting: Meeting, side: Side, holding: bytes
) -> None:
    store = meeting.store
    ending, other = make_runs(store, 2)
    store.send([message("unread", ending)])
    end = change(2, status="completed", engine=None, finished_at=9)
    commit = step(ending, change=end, ends=True, messages=[message("report", other)])
    assert meeting.losing(side, lambda: refusals(store, commit), holding) == [None]
    unread, report, row = store.message("unread"), store.message("report"), store.run_by_no(ending)
    assert unread is not None
    assert report is not None
    assert row is not None
    assert (unread.status, report.status, row.status, row.last_seq) == ("dead", "new", "completed", 2)
    assert len(store.events(ending)) == 2


@pytest.mark.parametrize("side", SIDES)
def test_a_refused_commit_whose_answer_is_lost_is_refused(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    lost, kept = make_runs(store, 2)
    store.release("one", [(lost, 1)])
    store.claim("two", [lost])
    assert meeting.losing(side, lambda: refusals(store, step(lost), step(kept))) == ["fenced", None]
    assert (len(store.events(lost)), len(store.events(kept))) == (1, 2)


def test_a_commit_that_another_owner_made_at_the_same_seq_is_not_taken_for_our_own(meeting: Meeting) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    theirs = step(no, token=2, change=change(2, engine="two"), events=[event_row(no, 2)._replace(token=2)])

    def race() -> list[str | None]:
        return refusals(store, step(no))

    store.release("one", [(no, 1)])
    store.claim("two", [no])
    assert refusals(store, theirs) == [None]
    assert meeting.losing("there", race) == ["fenced"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("with_events", [True, False])
def test_a_creation_whose_answer_is_lost_happens_once(meeting: Meeting, side: Side, with_events: bool) -> None:
    store = meeting.store
    make_runs(store, 1)
    first = store.reserve_run_numbers(3)
    group = [creation(no) for no in range(first, first + 3)]
    if not with_events:
        group = [Commit(no, 1, 0, create=run_row(no)) for no in range(first, first + 3)]
    assert meeting.losing(side, lambda: refusals(store, *group)) == [None] * 3
    assert [len(store.events(no)) for no in range(first, first + 3)] == [int(with_events)] * 3
    taken = creation(store.reserve_run_numbers(1), run_id=f"run_{first}")
    assert meeting.losing(side, lambda: refusals(store, taken)) == ["run_exists"]


@pytest.mark.parametrize("side", SIDES)
def test_a_commit_with_children_whose_answer_is_lost_happens_once(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    (parent,) = make_runs(store, 1)
    child = store.reserve_run_numbers(1)
    commit = step(parent, children=[creation(child, parent_no=parent, root_no=parent)])
    assert meeting.losing(side, lambda: refusals(store, commit)) == [None]
    assert (len(store.events(parent)), len(store.events(child))) == (2, 1)


@pytest.mark.parametrize("side", SIDES)
def test_an_outcome_without_events_whose_answer_is_lost_is_there(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    store.send([message("m", no)])
    held = step(no, change=change(1), events=[], outcomes=[MessageOutcome("m", "held", None)])
    assert meeting.losing(side, lambda: refusals(store, held)) == [None]
    assert [m.message_id for m in store.held_messages([no])] == ["m"]


@pytest.mark.parametrize("side", SIDES)
def test_a_claim_whose_answer_is_lost_is_won(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    free, owned = make_runs(store, 1, engine=None)[0], make_runs(store, 1, engine="other")[0]
    store.claim("warm", [owned])
    won = meeting.losing(side, lambda: store.claim("two", [free, owned]), b"two")
    assert [(row.run_no, row.engine, row.token) for row in won] == [(free, "two", 2)]
    assert store.run_by_no(free) == won[0]


@pytest.mark.parametrize("side", SIDES)
def test_messages_whose_answer_is_lost_are_there_once(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    became = meeting.losing(side, lambda: store.send([message("a", no), message("b", no), message("c", 999)]))
    assert became[2] == "unknown_run"
    assert set(became[:2]) == {"new" if side == "there" else "duplicate"}
    assert [m.message_id for m in store.new_messages([no])] == ["a", "b"]


@pytest.mark.parametrize("side", SIDES)
def test_every_other_write_whose_answer_is_lost_is_done(meeting: Meeting, side: Side) -> None:
    store = meeting.store
    free, held, broken = make_runs(store, 3)
    first = store.reserve_run_numbers(1)
    assert meeting.losing(side, lambda: store.reserve_run_numbers(5)) > first
    assert meeting.losing(side, lambda: store.register_version("order", "h", b"{}", 1)) == 1
    row = EngineRow("one", "host", 1, "lock", 1, 2, b"{}")
    meeting.losing(side, lambda: store.register_engine(row))
    assert store.engines() == [row]
    assert meeting.losing(side, lambda: store.renew_engine("one", 9))
    assert meeting.losing(side, lambda: store.set_hold(held, 1, "one", "why"))
    assert meeting.losing(side, lambda: store.raise_token(held, 1, "one", 5))
    meeting.losing(side, lambda: store.release("one", [(free, 1), (broken, 1)]))
    assert claimable(store) == [free, broken]
    rebuilt = Rebuilt(broken, 1, 1, 1, b"hash1", "running", 1, 0, 11, None, b"{}", [node_row(broken, "a")], (), ())
    assert meeting.losing(side, lambda: store.rebuild(rebuilt), b"COMMIT")
    assert [node.node for node in store.nodes(broken)] == ["a"]
    assert meeting.losing(side, lambda: store.remove_engine("one", 8)) is None
    assert meeting.losing(side, lambda: store.remove_engine("one", 9)) is not None
    assert (store.engines(), [r.engine for r in store.runs()]) == ([], [None] * 3)
    assert meeting.losing(side, lambda: len(store.runs())) == 3
    assert meeting.losing(side, lambda: store.evidence(broken)).run == store.run_by_no(broken)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("holding", [b"BEGIN", EXECUTE, b"COMMIT"])
def test_places_whose_answer_is_lost_are_taken_and_given_back_once(
    meeting: Meeting, side: Side, holding: bytes
) -> None:
    store = meeting.store
    store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
    assert store.take_slots("one", "pool", 1, 9) == 1
    assert meeting.losing(side, lambda: store.take_slots("one", "pool", 2, 9), holding) == 2
    assert store.take_slots("one", "pool", 9, 9) == 6
    meeting.losing(side, lambda: store.give_slots("one", "pool", 3), holding)
    assert store.take_slots("one", "pool", 9, 9) == 3


def test_places_that_are_asked_for_again_on_a_server_that_never_heard_of_it_are_taken_there(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica took over that had not got so far: the number of our transaction is still to come there."""
    store = meeting.store
    store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
    assert store.take_slots("one", "pool", 1, 9) == 1
    numbered = store._sql["take_slots"].replace("pg_current_xact_id()", "'999999999'::xid8")
    monkeypatch.setitem(store._sql._named, "take_slots", numbered)
    assert meeting.losing("there", lambda: store.take_slots("one", "pool", 2, 9), b"COMMIT") == 2
    assert store.take_slots("one", "pool", 9, 9) == 6


def test_a_store_that_is_closed_while_its_server_is_away_says_that_it_does_not_know(meeting: Meeting) -> None:
    store = meeting.store
    (no,) = make_runs(store, 1)
    with ThreadPoolExecutor(2) as pool, meeting.proxy.unplugged():
        writing = pool.submit(store.commit, [step(no)])
        while not _waits_for_server(store):
            pass  # until it has taken the only connection there was, and so does not know
        reading = pool.submit(store.runs)
        store.close()
        with pytest.raises(OutcomeUnknown):
            writing.result(30)
        with pytest.raises(StoreError, match=r"cannot be|closed"):
            reading.result(30)
    with pytest.raises(StoreError, match="cannot be used"):
        store.runs()
    store.open()
    assert refusals(store, step(no)) == [None]


def _waits_for_server(store: PostgresStore) -> bool:
    connections = store._connections
    return connections is not None and not connections._idle


def test_a_server_that_stays_away_ends_the_patience(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "AWAY_SECONDS", 0.2)
    (no,) = make_runs(meeting.store, 1)
    with meeting.proxy.unplugged():
        with pytest.raises(StoreError, match=r"cannot be reached|connection"):
            meeting.store.runs()
        assert meeting.store.changed() is None
        with pytest.raises(StoreError, match=r"cannot be reached|connection"):
            meeting.store.commit([step(no)])  # it was never sent
    assert refusals(meeting.store, step(no)) == [None]


def test_whoever_only_looks_for_changes_learns_that_the_server_is_away_and_that_it_is_back(
    meeting: Meeting,
) -> None:
    for _ in range(3):
        with meeting.proxy.unplugged():
            while meeting.store.changed() is not None:
                pass
            assert [meeting.store.changed() for _ in range(20)] == [None] * 20
        while meeting.store.changed() is None:
            pass


def test_a_connection_that_ends_before_it_was_used_is_made_again(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the server is killed just after it has let somebody in."""
    connect = postgres_connections._connect
    ended: list[object] = []

    async def let_in_once_in_vain(*arguments: Any) -> Any:
        raw = await connect(*arguments)
        if not ended:
            ended.append(raw)
            await raw.close()
        return raw

    monkeypatch.setattr(postgres_connections, "_connect", let_in_once_in_vain)
    with meeting.proxy.unplugged():
        pass  # nobody is connected any more
    assert len(make_runs(meeting.store, 1)) == 1
    assert ended


def test_a_store_that_is_opened_when_the_server_goes_says_that_it_cannot_be_reached(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = postgres_connections._connect

    async def let_in_in_vain(*arguments: Any) -> Any:
        raw = await connect(*arguments)
        await raw.close()
        return raw

    monkeypatch.setattr(postgres_connections, "_connect", let_in_in_vain)
    with pytest.raises(StoreError, match="cannot be reached"):
        PostgresStore(meeting.store.url).open()


def test_opening_waits_longer_for_an_answer_than_whoever_only_looks_for_changes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOOK_SECONDS", 1e-9)
    with closing(PostgresStore(url)) as store:
        store.open()
        assert store.changed() is None
        assert store.runs() == []


def test_a_commit_waits_as_often_as_a_timeout_of_the_server_stops_it(store: PostgresStore, url: str) -> None:
    (no,) = make_runs(store, 1)
    hurried = PostgresStore(f"{url}&statement_timeout=2s")  # it has to be opened in that time, too
    locked = threading.Event()

    async def hold(connection: asyncpg.Connection[Any]) -> None:
        async with connection.transaction():
            await connection.fetch(in_schema("SELECT 1 FROM holdfast.run_state FOR UPDATE", address(url).schema))
            locked.set()
            await asyncio.sleep(5)  # several timeouts long

    with ThreadPoolExecutor(1) as pool, closing(hurried):
        hurried.open()
        holding = pool.submit(asking, url, hold)
        assert locked.wait(30)
        assert refusals(hurried, step(no)) == [None]
        holding.result()


# --- a server that dies ----------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_loses_nothing_it_acknowledged(own_server: PostgresServer) -> None:
    """F40: kill -9 of the postmaster while four threads commit; they go on by themselves."""
    own_server.start()
    with closing(PostgresStore(own_server.url())) as store:
        store.open()
        _kill_it_while_threads_commit(own_server, store)


def _kill_it_while_threads_commit(own_server: PostgresServer, store: PostgresStore) -> None:
    done = threading.Event()

    def live(numbers: list[int]) -> int:
        seq = 1
        while not done.is_set():
            group = [step(no, seq, nodes=[node_row(no, f"n{seq}")]) for no in numbers]
            assert refusals(store, *group) == [None] * len(numbers)
            seq += 1
        return seq

    groups = [make_runs(store, 10) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        living = [pool.submit(live, numbers) for numbers in groups]
        try:
            for _ in range(3):
                _until_all_move(store, groups, living)
                own_server.kill()
                own_server.start()
            _until_all_move(store, groups, living)
        finally:
            done.set()
        acknowledged = [one.result(60) for one in living]
    for numbers, seq in zip(groups, acknowledged, strict=True):
        for no in numbers:
            row = store.run_by_no(no)
            assert row is not None
            assert row.last_seq == seq
            assert [event.seq for event in store.events(no)] == list(range(1, seq + 1))
            assert len(store.nodes(no)) == seq - 1


def _until_all_move(store: PostgresStore, groups: list[list[int]], living: list[Future[int]]) -> None:
    def heads() -> list[int]:
        rows = [store.run_by_no(numbers[0]) for numbers in groups]
        return [row.last_seq for row in rows if row is not None]

    before = heads()
    while any(now <= then for now, then in zip(heads(), before, strict=True)):
        for one in living:
            assert not one.done() or one.result()
