"""What every store must do, whatever its database: the contract of holdfast/store/contract.py as tests.

Owns: the behaviours that the engine relies on. A driver's test file subclasses the suites and makes the store.
Never: names a database. What only one database does is tested beside its driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.model.errors import StoreError
from holdfast.model.statuses import BRANCH_REQUESTS
from holdfast.model.timers import Elapsed
from holdfast.store.contract import Store
from holdfast.store.row_types import (
    BranchRow,
    Commit,
    EngineRow,
    EventRow,
    LinkedRow,
    MessageOutcome,
    MessageRow,
    NodeRow,
    RunChange,
    RunRow,
    RunStep,
    TimerRow,
    WaitRow,
)

# --- rows ------------------------------------------------------------------------------------------------------


def run_row(run_no: int, **other: Any) -> RunRow:
    """A running run owned by `one` with token 1 and one event."""
    values: dict[str, Any] = {
        "run_no": run_no,
        "run_id": f"run_{run_no}",
        "workflow": "order",
        "version": 1,
        "status": "running",
        "branch": 1,
        "last_seq": 1,
        "head_hash": b"head",
        "token": 1,
        "engine": "one",
        "fold": b"{}",
        "input_hash": "in",
        "parent_no": None,
        "root_no": run_no,
        "priority": 0,
        "recoveries": 0,
        "hold": None,
        "created_at": 10,
        "started_at": 11,
        "finished_at": None,
    }
    return RunRow(**{**values, **other})


def event_row(run_no: int, seq: int, kind: str = "NodeStarted", data: bytes = b"{}") -> EventRow:
    return EventRow(run_no, seq, 1, kind, "charge", "", 1, 100 + seq, 1, b"hash%d" % seq, data)


def node_row(run_no: int, node: str, path: str = "", status: str = "running", is_open: int = 1) -> NodeRow:
    return NodeRow(run_no, node, path, 1, status, 1, 0, 0, 0, 0, None, None, is_open, 12, None)


def change(last_seq: int, **other: Any) -> RunChange:
    values: dict[str, Any] = {
        "last_seq": last_seq,
        "head_hash": b"head%d" % last_seq,
        "status": "running",
        "branch": 1,
        "engine": "one",
        "recoveries": 0,
        "started_at": 11,
        "finished_at": None,
        "fold": None,
    }
    return RunChange(**{**values, **other})


def creation(run_no: int, **other: Any) -> Commit:
    return Commit(run_no, 1, 0, create=run_row(run_no, **other), events=[event_row(run_no, 1, "RunCreated")])


def step(run_no: int, expected_seq: int = 1, token: int = 1, **other: Any) -> Commit:
    """One event after `expected_seq`."""
    events = other.pop("events", [event_row(run_no, expected_seq + 1)])
    moved = other.pop("change", change(expected_seq + 1))
    return Commit(run_no, token, expected_seq, change=moved, events=events, **other)


def message(message_id: str, run_no: int, payload: bytes = b"1") -> MessageRow:
    return MessageRow(message_id, run_no, "signal", payload, 50)


def payloads(found: dict[Any, LinkedRow]) -> dict[Any, tuple[str, bytes]]:
    return {place: (event.type, event.data) for place, event in found.items()}


def refusals(store: Store, *group: Commit) -> list[str | None]:
    return [landed.refusal for landed in store.commit(group)]


def make_runs(store: Store, count: int, **other: Any) -> list[int]:
    """New runs, committed as one group; their numbers."""
    first = store.reserve_run_numbers(count)
    numbers = list(range(first, first + count))
    assert refusals(store, *(creation(no, **other) for no in numbers)) == [None] * count
    return numbers


def claimable(store: Store, **narrowed: Any) -> list[int]:
    """What could be claimed by an engine that has all code there is."""
    return [run_no for run_no, _, _ in store.claimable(store.unowned_versions(), **narrowed)]


class Suite:
    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        """A function that makes one more store object on the same, at first empty, database. Subclasses give it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, connect: Callable[[], Store]) -> Iterator[Store]:
        store = connect()
        store.open()
        yield store
        store.close()

    @pytest.fixture
    def other(self, store: Store, connect: Callable[[], Store]) -> Iterator[Store]:
        other = connect()
        other.open()
        yield other
        other.close()


# --- one store object ------------------------------------------------------------------------------------------


class StoreConformance(Suite):
    """What one store object promises."""

    def test_the_store_id_stays_the_same_and_is_never_empty(self, store: Store) -> None:
        assert store.store_id() == store.store_id() != ""

    def test_a_new_store_is_the_first_of_its_copies_and_open_to_engines(self, store: Store) -> None:
        assert store.standing() == (1, "")

    def test_odd_values_come_back_as_they_were(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        odd = "naïve ☃ \U0001f600 'quoted' \"x\" ; -- $1 {}"
        nodes = [node_row(no, odd, f".{odd}.0.")]
        commit = creation(no, run_id=odd, workflow=odd, fold=bytes(range(256)), priority=-(2**62))
        commit.nodes = nodes
        assert refusals(store, commit) == [None]
        assert store.run(odd) == commit.create
        assert store.resolve_run_id(odd[:8]) == [odd]
        assert store.nodes_under(no, [odd], f".{odd}.", 1) == nodes

    def test_a_created_run_is_read_back_as_it_was_written(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        row = run_row(no, hold="why", parent_no=3, root_no=3, fold=b"\x00\xff", finished_at=99)
        assert refusals(store, Commit(no, 1, 0, create=row)) == [None]
        assert store.run(row.run_id) == row
        assert store.run_by_no(no) == row
        assert store.run("no such run") is None
        assert store.run_by_no(no + 1) is None

    def test_a_step_moves_the_run_and_appends_its_rows(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        moved = change(3, status="completed", engine=None, finished_at=77, recoveries=2, branch=2)
        events = [event_row(no, 2), event_row(no, 3, "RunCompleted", b'{"x": 1}')]
        nodes = [node_row(no, "charge", status="completed")]
        assert refusals(store, step(no, change=moved, events=events, nodes=nodes)) == [None]
        expected = run_row(
            no, last_seq=3, head_hash=b"head3", status="completed", engine=None, finished_at=77, recoveries=2, branch=2
        )
        assert store.run_by_no(no) == expected
        assert store.events(no)[1:] == events
        assert store.nodes(no) == nodes

    def test_a_fold_of_none_leaves_the_fold_as_it_is(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        assert refusals(store, step(no, change=change(2, fold=b"new"))) == [None]
        assert refusals(store, step(no, 2)) == [None]
        row = store.run_by_no(no)
        assert row is not None
        assert row.fold == b"new"

    @pytest.mark.parametrize(
        "fence",
        [{"token": 2}, {"token": 0}, {"expected_seq": 0}, {"expected_seq": 2}, {"expected_hash": b"of another run"}],
    )
    @pytest.mark.parametrize("moved", [change(2), RunStep(2, b"head2", 0)])
    def test_another_token_seq_or_head_is_fenced_and_writes_nothing(
        self, store: Store, fence: dict[str, Any], moved: RunChange | RunStep
    ) -> None:
        (no,) = make_runs(store, 1)
        before = store.run_by_no(no)
        commit = step(
            no,
            **fence,
            change=moved,
            nodes=[node_row(no, "charge")],
            waits=[WaitRow(no, "w", "ask", None, None, 1, 1, "open", 5, None, b"{}")],
            timers=[TimerRow(no, "t", 5, 1, "set")],
            messages=[message("m", no)],
        )
        assert refusals(store, commit) == ["fenced"]
        (other,) = make_runs(store, 1)
        group = [commit, step(other, change=RunStep(2, b"head2", 0), expected_hash=b"head")]
        assert refusals(store, *group) == ["fenced", None]
        assert store.run_by_no(no) == before
        assert len(store.events(no)) == 1
        left = (store.nodes(no), store.open_waits([no]), store.set_timers([no]), store.new_messages([no]))
        assert left == ([], [], [], [])

    def test_a_run_that_does_not_exist_is_fenced(self, store: Store) -> None:
        assert refusals(store, step(99)) == ["fenced"]

    @pytest.mark.parametrize("place", [0, 25, 50])
    def test_one_fenced_run_is_refused_alone_and_fifty_others_land(self, store: Store, place: int) -> None:
        numbers = make_runs(store, 51)
        group = [step(no, nodes=[node_row(no, "charge")]) for no in numbers]
        group[place] = step(numbers[place], token=7, nodes=[node_row(numbers[place], "charge")])
        expected: list[str | None] = [None] * 51
        expected[place] = "fenced"
        assert refusals(store, *group) == expected
        for index, no in enumerate(numbers):
            row = store.run_by_no(no)
            assert row is not None
            assert row.last_seq == len(store.events(no)) == (1 if index == place else 2)
            assert len(store.nodes(no)) == (0 if index == place else 1)

    def test_rows_that_cannot_be_stored_fail_their_commit_alone(self, store: Store) -> None:
        first, bad, last = make_runs(store, 3)
        twice = step(bad, events=[event_row(bad, 2), event_row(bad, 1)])
        landed = store.commit([step(first), twice, step(last)])
        assert [one.refusal for one in landed] == [None, "failed", None]
        assert landed[1].detail
        no_type = event_row(bad, 2)._replace(type=None)  # type: ignore[arg-type]  # what a bug would send
        assert refusals(store, step(first, 2), step(bad, events=[no_type])) == [None, "failed"]
        too_big = event_row(bad, 2)._replace(at=2**70)
        assert refusals(store, step(first, 3), step(bad, events=[too_big])) == [None, "failed"]
        assert refusals(store, step(bad)) == [None]
        assert [event.seq for event in store.events(bad)] == [1, 2]
        assert [event.seq for event in store.events(first)] == [1, 2, 3, 4]

    def test_a_commit_that_neither_creates_nor_changes_fails(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        assert refusals(store, Commit(no, 1, 1, events=[event_row(no, 2)]), step(no)) == ["failed", None]

    def test_seqs_have_no_gap_over_many_groups(self, store: Store) -> None:
        numbers = make_runs(store, 70)
        for seq in range(1, 8):
            assert refusals(store, *(step(no, seq) for no in numbers)) == [None] * 70
        for no in numbers:
            events = store.events(no)
            assert [event.seq for event in events] == list(range(1, 9))
            assert {event.run_no for event in events} == {no}

    @pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 127, 200])
    def test_groups_of_any_size_land(self, store: Store, count: int) -> None:
        numbers = make_runs(store, count)
        assert refusals(store, *(step(no, nodes=[node_row(no, "charge")]) for no in numbers)) == [None] * count
        assert {row.last_seq for row in store.runs(limit=1000)} == {2}
        assert len(store.open_nodes(numbers)) == count

    def test_an_empty_group_is_nothing(self, store: Store) -> None:
        assert store.commit([]) == []

    def test_a_run_id_that_is_taken_refuses_the_second_creation_alone(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        again, other = store.reserve_run_numbers(2), store.reserve_run_numbers(1)
        assert refusals(store, creation(again, run_id=f"run_{no}"), creation(other)) == ["run_exists", None]
        assert store.run_by_no(again) is None
        assert store.events(again) == []
        assert store.run_by_no(other) is not None

    def test_the_same_new_run_id_twice_in_a_group_lands_once(self, store: Store) -> None:
        first = store.reserve_run_numbers(2)
        assert refusals(store, creation(first, run_id="x"), creation(first + 1, run_id="x")) == [None, "run_exists"]

    def test_children_are_created_with_their_first_rows(self, store: Store) -> None:
        (parent,) = make_runs(store, 1)
        child = store.reserve_run_numbers(1)
        row = run_row(child, parent_no=parent, root_no=parent, status="created", engine=None)
        first = Commit(child, 1, 0, create=row, events=[event_row(child, 1, "RunCreated")])
        first.nodes = [node_row(child, "first")]
        first.timers = [TimerRow(child, "run_timeout", 99, 1, "set")]
        commit = step(parent, children=[first])
        assert refusals(store, commit) == [None]
        assert store.run_by_no(child) == row
        assert [event.type for event in store.events(child)] == ["RunCreated"]
        assert [node.node for node in store.nodes(child)] == ["first"]
        assert [timer.due_at for timer in store.set_timers([child])] == [99]
        assert [run.run_no for run in store.runs(root_no=parent)] == [child, parent]

    def test_a_child_whose_run_id_is_taken_refuses_the_whole_commit(self, store: Store) -> None:
        parent, taken = make_runs(store, 2)
        first = store.reserve_run_numbers(2)
        children = [creation(first, parent_no=parent), creation(first + 1, run_id=f"run_{taken}", parent_no=parent)]
        landed = store.commit([step(parent, children=children), step(taken)])
        assert [one.refusal for one in landed] == ["run_exists", None]
        assert f"run_{taken}" in landed[0].detail
        assert store.run_by_no(first) is None
        assert len(store.events(parent)) == 1
        assert store.events(first) == []

    def test_a_new_run_whose_number_is_taken_is_refused_with_that_reason(self, store: Store) -> None:
        parent, taken = make_runs(store, 2)
        other = store.reserve_run_numbers(1)
        again, child = creation(taken, run_id="again"), creation(taken, run_id="child", parent_no=parent)
        landed = store.commit([again, step(parent, children=[child]), creation(other)])
        assert [one.refusal for one in landed] == ["number_taken", "number_taken", None]
        assert refusals(store, creation(taken, run_id=f"run_{taken}")) == ["run_exists"], "it has landed before"
        assert store.run("again") is None
        assert len(store.events(parent)) == len(store.events(taken)) == 1

    # --- messages ---

    def test_a_message_is_new_then_duplicate_then_conflict(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        assert store.send([message("m", no)]) == ["new"]
        assert store.send([message("m", no)]) == ["duplicate"]
        assert store.send([message("m", no, b"2")]) == ["conflict"]
        assert store.send([message("n", 999)]) == ["unknown_run"]
        stored = store.message("m")
        assert stored is not None
        assert stored.payload == b"1"
        assert stored.status == "new"
        assert store.message("n") is None

    def test_a_run_that_ends_leaves_no_message_open_and_takes_no_further_one(self, store: Store) -> None:
        sender, receiver = make_runs(store, 2)
        store.send([message("early", receiver)])
        end = change(2, status="completed", engine=None, finished_at=9)
        assert refusals(store, step(receiver, change=end, ends=True)) == [None]
        stored = store.message("early")
        assert stored is not None
        assert (stored.status, stored.outcome is not None) == ("dead", True)
        assert store.send([message("late", receiver)]) == ["finished"]
        assert refusals(store, step(sender, messages=[message("report", receiver)])) == [None]
        assert store.new_messages() == store.new_messages([receiver]) == []

    def test_runs_that_end_in_one_group_close_their_own_inboxes_and_nobody_elses(self, store: Store) -> None:
        first, stays, second = make_runs(store, 3)
        store.send([message(f"to {no}", no) for no in (first, stays, second)])
        end = change(2, status="completed", engine=None, finished_at=9)
        group = [step(first, change=end, ends=True), step(stays), step(second, change=end, ends=True)]
        assert refusals(store, *group) == [None, None, None]
        assert [m.message_id for m in store.new_messages([first, stays, second])] == [f"to {stays}"]

    def test_messages_come_in_order_of_arrival(self, store: Store) -> None:
        first, second = make_runs(store, 2)
        for name in ("z", "a", "m"):
            store.send([message(name, first)])
            store.send([message(name + "2", second)])
        assert [m.message_id for m in store.new_messages([first])] == ["z", "a", "m"]
        both = store.new_messages([first, second])
        assert [m.message_id for m in both] == ["z", "z2", "a", "a2", "m", "m2"]
        assert [m.no for m in both] == sorted({m.no for m in both})

    def test_an_outcome_lands_with_its_events_or_not_at_all(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        store.send([message("m", no)])
        outcome = MessageOutcome("m", "consumed", b'"applied"')
        assert refusals(store, step(no, token=5, outcomes=[outcome])) == ["fenced"]
        assert [m.message_id for m in store.new_messages([no])] == ["m"]
        assert refusals(store, step(no, outcomes=[outcome])) == [None]
        stored = store.message("m")
        assert stored is not None
        assert (stored.status, stored.outcome) == ("consumed", b'"applied"')
        assert store.new_messages([no]) == []
        assert store.send([message("m", no)]) == ["duplicate"]

    def test_a_held_message_is_not_new(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        store.send([message("m", no)])
        held = MessageOutcome("m", "held", None)
        assert refusals(store, step(no, outcomes=[held], change=change(2, status="suspended", engine=None))) == [None]
        assert store.new_messages([no]) == store.new_messages() == []
        assert claimable(store) == []

    def test_a_message_of_a_commit_that_exists_already_is_left_as_it_is(self, store: Store) -> None:
        sender, receiver = make_runs(store, 2)
        sent = [message("m", receiver), message("n", receiver)]
        assert refusals(store, step(sender, messages=sent)) == [None]
        again = [message("m", receiver, b"other"), message("o", receiver)]
        assert refusals(store, step(sender, 2, messages=again)) == [None]
        new = store.new_messages([receiver])
        assert [(m.message_id, m.payload) for m in new] == [("m", b"1"), ("n", b"1"), ("o", b"1")]

    def test_new_messages_of_nobody_are_those_of_runs_without_owner(self, store: Store) -> None:
        owned, free = make_runs(store, 2)
        assert store.release("one", [(free, 1)])
        store.send([message("a", owned)])
        store.send([message("b", free)])
        assert [m.message_id for m in store.new_messages()] == ["b"]

    # --- leases ---

    def test_a_claim_wins_only_runs_that_are_unfinished_unowned_and_not_on_hold(self, store: Store) -> None:
        (free,) = make_runs(store, 1, engine=None)
        (waiting,) = make_runs(store, 1, engine=None, status="suspended")
        (owned,) = make_runs(store, 1)
        (held,) = make_runs(store, 1, engine=None, hold="too many recoveries")
        (done,) = make_runs(store, 1, engine=None, status="completed")
        won = store.claim("two", [free, waiting, owned, held, done, 999])
        assert {row.run_no for row in won} == {free, waiting}
        assert {(row.engine, row.token) for row in won} == {("two", 2)}
        assert store.run_by_no(free) in won
        assert store.claim("three", [free]) == []

    def test_a_claim_refuses_what_the_old_owner_still_sends(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        assert store.release("one", [(no, 1)])
        assert not store.release("one", [(no, 1)])
        assert [row.token for row in store.claim("two", [no])] == [2]
        assert refusals(store, step(no, token=1)) == ["fenced"]
        assert not store.release("one", [(no, 1)])
        assert not store.set_hold(no, 1, "one", "x")
        assert refusals(store, step(no, token=2, change=change(2, engine="two"))) == [None]

    def test_removing_an_engine_frees_its_runs_and_their_tokens_grow(self, store: Store) -> None:
        store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
        store.register_engine(EngineRow("two", "host", 2, "lock2", 3, 4, b"{}"))
        mine = make_runs(store, 3)
        (theirs,) = make_runs(store, 1, engine="two")
        assert store.remove_engine("one") == 3
        for no in mine:
            row = store.run_by_no(no)
            assert row is not None
            assert (row.engine, row.token) == (None, 2)
        other = store.run_by_no(theirs)
        assert other is not None
        assert (other.engine, other.token) == ("two", 1)
        assert refusals(store, *(step(no) for no in mine)) == ["fenced"] * 3
        assert [row.engine for row in store.engines()] == ["two"]
        assert store.remove_engine("one") == 0
        assert [row.token for row in store.claim("two", mine)] == [3, 3, 3]

    def test_owners_that_are_not_on_the_list_are_unknown_whatever_they_hold(self, store: Store) -> None:
        store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
        make_runs(store, 2)
        make_runs(store, 1, engine=None)
        assert store.unknown_owners() == []
        make_runs(store, 2, engine="ghost")
        make_runs(store, 1, engine="shade", status="suspended")
        assert sorted(store.unknown_owners()) == ["ghost", "shade"]
        assert store.remove_engine("ghost") == 2
        assert store.unknown_owners() == ["shade"]
        store.register_engine(EngineRow("shade", "host", 2, "lock2", 1, 2, b"{}"))
        assert store.unknown_owners() == []

    def test_renewing_an_engine_that_was_removed_says_so(self, store: Store) -> None:
        row = EngineRow("one", "host", 1, "lock", 1, 2, b"{}")
        store.register_engine(row)
        assert store.renew_engine("one", 50)
        assert store.engines() == [row._replace(expires_at=50)]
        store.remove_engine("one")
        assert not store.renew_engine("one", 60)
        assert store.engines() == []

    def test_an_engine_says_anew_what_it_can_run_while_it_is_on_the_list(self, store: Store) -> None:
        row = EngineRow("one", "host", 1, "lock", 1, 2, b"{}")
        store.register_engine(row)
        assert store.set_offer("one", b'{"lost_threads":17}')
        assert store.engines() == [row._replace(can_run=b'{"lost_threads":17}')]
        store.remove_engine("one")
        assert not store.set_offer("one", b"{}")
        assert store.engines() == []

    def test_a_hold_keeps_a_run_from_being_claimed_until_it_is_lifted(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        assert store.set_hold(no, 1, "one", "recoveries")
        store.release("one", [(no, 1)])
        assert claimable(store) == []
        assert store.claim("two", [no]) == []
        assert store.set_hold(no, 1, None, None)
        assert claimable(store) == [no]

    def test_a_token_is_raised_by_the_owner_of_its_run_who_loses_the_lease_with_it(self, store: Store) -> None:
        mine, free = make_runs(store, 1) + make_runs(store, 1, engine=None)
        assert not store.raise_token(mine, 1, "two", 7)
        assert not store.raise_token(mine, 2, "one", 7)
        assert not store.raise_token(mine, 1, "one", 1)
        assert not store.raise_token(free, 1, "one", 7)
        assert store.raise_token(mine, 1, "one", 7)
        assert store.raise_token(free, 1, None, 3)
        rows = [store.run_by_no(mine), store.run_by_no(free)]
        assert [(row.token, row.engine) for row in rows if row is not None] == [(7, None), (3, None)]
        assert [row.token for row in store.claim("two", [mine, free])] == [8, 4]

    def test_a_run_of_another_engine_with_the_same_number_and_token_is_left_alone(self, store: Store) -> None:
        """A database that fell back to an earlier state gives numbers out again, and tokens begin at 1."""
        mine, theirs, free = make_runs(store, 1) + make_runs(store, 1, engine="two") + make_runs(store, 1, engine=None)
        before = store.run_by_no(theirs)
        assert store.release("one", [(mine, 1), (theirs, 1), (free, 1)]) == 1
        assert not store.set_hold(theirs, 1, "one", "corrupt")
        assert not store.set_hold(theirs, 1, None, "corrupt")
        assert not store.set_hold(free, 1, "one", "corrupt")
        assert store.run_by_no(theirs) == before
        assert store.set_hold(theirs, 1, "two", "corrupt")
        assert store.release("two", [(theirs, 1)]) == 1
        assert store.set_hold(theirs, 1, None, None)

    def test_a_run_that_fell_back_under_its_owner_can_be_given_back(self, store: Store) -> None:
        """Its owner knows more events than the database has; whoever claims it goes on from there."""
        (no,) = make_runs(store, 1)
        assert refusals(store, step(no, 5)) == ["fenced"]
        assert store.release("one", [(no, 1)]) == 1
        assert claimable(store) == [no]

    # --- rows of a run ---

    def test_node_rows_are_replaced_by_key_and_keep_their_order(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        names = ["b", "a", "c"]
        assert refusals(store, step(no, nodes=[node_row(no, name) for name in names])) == [None]
        full = NodeRow(no, "b", "", 1, "completed", 3, 2, 7, 6, 5, b"cap", b"scope", 1, 8, 9)
        second_visit = node_row(no, "b")._replace(visit=2)
        assert refusals(store, step(no, 2, nodes=[full, second_visit])) == [None]
        rows = store.nodes(no)
        assert [(row.node, row.visit) for row in rows] == [("b", 1), ("a", 1), ("c", 1), ("b", 2)]
        assert rows[0] == full
        assert store.open_nodes([no]) == rows

    def test_closed_rows_leave_the_memory_and_can_be_opened_again(self, store: Store) -> None:
        first, second = make_runs(store, 2)
        assert refusals(store, *(step(no, nodes=[node_row(no, "a"), node_row(no, "b")]) for no in (first, second))) == [
            None,
            None,
        ]
        closed = node_row(first, "a", status="completed", is_open=0)
        never_open = node_row(first, "c", is_open=0)
        assert refusals(store, step(first, 2, nodes=[closed, never_open])) == [None]
        assert [(row.run_no, row.node) for row in store.open_nodes([first, second])] == [
            (first, "b"),
            (second, "a"),
            (second, "b"),
        ]
        assert {row.node for row in store.nodes(first)} == {"a", "b", "c"}
        again = [node_row(first, "a"), node_row(first, "b", status="completed")]
        assert refusals(store, step(first, 3, nodes=again)) == [None]
        assert store.open_nodes([first]) == again

    def test_open_rows_of_every_scope_and_visit_come_in_the_order_in_which_they_first_came(self, store: Store) -> None:
        first, second = make_runs(store, 2)

        def rows(no: int) -> list[NodeRow]:
            items = [node_row(no, "each", f".map.{i}.", is_open=int(i > 1)) for i in range(4)]
            visits = [node_row(no, "late", ".")._replace(visit=visit, is_open=int(visit != 2)) for visit in (1, 2, 3)]
            rounds = [node_row(no, "zeal", ".", is_open=0), node_row(no, "each", ".")]
            return [node_row(no, "map", "."), *items, node_row(no, "early", "."), *visits, *rounds]

        assert refusals(store, *(step(no, nodes=rows(no)) for no in (first, second))) == [None, None]
        opened = [row for no in (first, second) for row in rows(no) if row.is_open]
        assert store.open_nodes([second, first]) == opened
        assert store.open_nodes([first, 77_777, first]) == [row for row in opened if row.run_no == first]
        again = [node_row(first, "zeal", "."), node_row(first, "map", ".", is_open=0)]
        assert refusals(store, step(first, 2, nodes=again)) == [None]
        names = [row.node for row in store.open_nodes([first])]
        assert names == ["each", "each", "early", "late", "late", "zeal", "each"]

    def test_nodes_under_a_path(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        paths = ["", ".map.0.", ".map.1.", ".map.10.", ".mapper.1.", ".map.1.loop.0."]
        nodes = [node_row(no, name, path, is_open=i % 2) for i, path in enumerate(paths) for name in ("a", "b")]
        assert refusals(store, step(no, nodes=nodes)) == [None]
        assert {row.path for row in store.nodes_under(no, ["a"], ".map.1.", 1)} == {".map.1.", ".map.1.loop.0."}
        assert len(store.nodes_under(no, ["a", "b"], ".map.", 1)) == 8
        assert len(store.nodes_under(no, ["a", "b", "c"], "", 1)) == 12
        assert store.nodes_under(no, [], "", 1) == store.nodes_under(no + 1, ["a"], "", 1) == []
        again = [node_row(no, "a", ".map.1.")._replace(visit=2)]
        assert refusals(store, step(no, 2, nodes=again)) == [None]
        assert store.nodes_under(no, ["a", "b"], ".map.", 2) == again
        assert len(store.nodes_under(no, ["a", "b"], ".map.", 1)) == 8

    def test_waits_are_open_until_closed(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        waits = [WaitRow(no, f"w{i}", "ask", "charge", "", 1, 1, "open", 5, 60 + i, b'{"q": 1}') for i in range(2)]
        assert refusals(store, step(no, waits=waits)) == [None]
        assert store.open_waits([no]) == waits
        assert refusals(store, step(no, 2, waits=[waits[0]._replace(status="closed")])) == [None]
        assert store.open_waits([no]) == waits[1:]
        assert store.open_waits([]) == []

    def test_waits_for_children_that_have_ended_are_found_page_by_page(self, store: Store) -> None:
        (alive,) = make_runs(store, 1)
        (ended,) = make_runs(store, 1, status="failed", engine=None)

        def waits(no: int, *children: int) -> list[WaitRow]:
            data = [f'{{"child":"run_{child}"}}'.encode() for child in children]
            return [WaitRow(no, f"w{i}", "child", "a", ".", 1, 1, "open", 5, None, d) for i, d in enumerate(data)]

        parents = make_runs(store, 5)
        group = [step(no, change=change(2, status="suspended", engine=None)) for no in parents]
        for commit, children in zip(group, ([alive], [ended, alive], [alive, alive], [ended], [ended]), strict=True):
            commit.waits = waits(commit.run_no, *children)
        group[3].change = change(2)  # somebody drives it
        assert refusals(store, *group) == [None] * 5
        lost = [(parents[1], f"run_{ended}"), (parents[4], f"run_{ended}")]
        assert store.waits_for_ended() == (lost, 0)
        pages = [store.waits_for_ended(0, 2)]  # the waits of one run are never cut in two
        while pages[-1][1]:
            pages.append(store.waits_for_ended(pages[-1][1], 2))
        assert [found for page, _ in pages for found in page] == lost
        assert [go_on for _, go_on in pages] == [parents[1], parents[2], parents[4], 0]
        closed = waits(parents[1], ended)[0]._replace(status="closed")
        assert refusals(store, step(parents[1], 2, change=change(3, engine=None), waits=[closed])) == [None]
        assert store.waits_for_ended() == (lost[1:], 0)

    def test_timers_are_due_only_where_the_run_could_be_claimed(self, store: Store) -> None:
        (free,) = make_runs(store, 1)
        (owned,) = make_runs(store, 1)
        (held,) = make_runs(store, 1)
        late, soon = TimerRow(free, "late", 90, 1, "set"), TimerRow(free, "soon", 20, 1, "set")
        assert store.next_timer() is None
        released = change(2, status="suspended", engine=None)
        others = [
            step(owned, timers=[TimerRow(owned, "t", 5, 1, "set")]),
            step(held, change=released, timers=[TimerRow(held, "t", 6, 1, "set")]),
        ]
        assert refusals(store, step(free, change=released, timers=[late, soon]), *others) == [None] * 3
        assert store.set_hold(held, 1, None, "x")
        assert store.set_timers([free]) == [soon, late]
        assert store.next_timer() == 20
        assert store.due_timers(19, 10, ["order"]) == []
        assert store.due_timers(20, 10, ["order"]) == [soon]
        assert store.due_timers(1000, 10, ["order"]) == [soon, late]
        assert store.due_timers(1000, 1, ["order"]) == [soon]
        assert store.due_timers(1000, 1, ["order"], after=soon) == [late]
        assert store.due_timers(1000, 1, ["order"], after=late) == []
        fired = [soon._replace(status="fired"), late._replace(due_at=95)]
        assert refusals(store, step(free, 2, change=change(3, engine=None), timers=fired)) == [None]
        assert store.set_timers([free, owned]) == [TimerRow(owned, "t", 5, 1, "set"), late._replace(due_at=95)]
        assert store.next_timer() == 95

    def test_timers_set_by_a_duration_are_due_by_the_time_that_passes_in_their_boot(self, store: Store) -> None:
        if store.is_shared:  # the clock of the store decides
            return
        (no,) = make_runs(store, 1)
        instant = TimerRow(no, "instant", 50, 1, "set")
        lasting = [TimerRow(no, f"l{n}", 10 + n, 1, "set", "here", 500 + n) for n in range(3)]
        elsewhere = TimerRow(no, "elsewhere", 40, 1, "set", "before", 1)
        released = change(2, status="suspended", engine=None)
        assert refusals(store, step(no, change=released, timers=[instant, *lasting, elsewhere])) == [None]
        assert store.set_timers([no]) == [*lasting, elsewhere, instant]
        assert store.due_timers(60, 10, ["order"]) == [*lasting, elsewhere, instant]
        assert store.due_timers(60, 10, ["order"], elapsed=Elapsed("here", 499)) == [elsewhere, instant]
        assert store.due_timers(45, 10, ["order"], elapsed=Elapsed("here", 501)) == [elsewhere, *lasting[:2]]
        assert store.due_timers(5, 10, ["order"], elapsed=Elapsed("here", 600)) == lasting
        now = Elapsed("here", 515)
        whole: list[TimerRow] = []
        while page := store.due_timers(60, 2, ["order"], after=whole[-1] if whole else None, elapsed=now):
            whole += page
        assert whole == [elsewhere, *lasting, instant]
        ended = [lasting[0]._replace(status="fired", due_at=0, boot="", elapsed=0)]
        assert refusals(store, step(no, 2, change=change(3, engine=None), timers=ended)) == [None]
        kept = {timer.timer: timer for timer in store.evidence(no).timers}
        assert kept["l0"] == lasting[0]._replace(status="fired")

    def test_timers_due_at_the_same_time_come_page_by_page(self, store: Store) -> None:
        numbers = make_runs(store, 5)
        timers = [TimerRow(no, name, 20, 1, "set") for no in numbers for name in ("a", "b")]
        released = change(2, status="suspended", engine=None)
        group = [step(no, change=released, timers=[t for t in timers if t.run_no == no]) for no in numbers]
        assert refusals(store, *group) == [None] * 5
        pages = [store.due_timers(20, 3, ["order"])]
        while pages[-1]:
            pages.append(store.due_timers(20, 3, ["order"], after=pages[-1][-1]))
        assert [len(page) for page in pages] == [3, 3, 3, 1, 0]
        assert [timer for page in pages for timer in page] == timers

    def test_what_runs_are_runs_of(self, store: Store) -> None:
        first, second = make_runs(store, 2)
        found = sorted(store.workflows_of([second, first, second + 100]))
        assert found == [(run_no, run_no, "order", 1, "default", "running") for run_no in (first, second)]
        assert store.workflows_of([]) == []

    def test_journals_and_payloads_of_many_runs_in_one_read(self, store: Store) -> None:
        first, second, third = make_runs(store, 3)
        for no in (first, second):
            events = [event_row(no, seq, "A" if seq % 2 else "B", b"%d" % seq) for seq in range(2, 6)]
            assert refusals(store, step(no, events=events, change=change(5))) == [None]
        found = store.events_of([(second, 3), (first, 0), (third, 0)], ["B", "RunCreated"])
        assert {no: [e.seq for e in events] for no, events in found.items()} == {first: [3, 5], second: [5], third: []}
        assert [event[:11] for event in found[second]] == store.events(second, 3, types=["A"])
        assert store.events_of([], ["A"]) == {}
        data = store.event_data_of([(second, 4), (first, 3), (third, 9)])
        assert payloads(data) == {(second, 4): ("B", b"4"), (first, 3): ("A", b"3")}
        before = {e.seq: e.hash for e in store.events(second)}
        assert data[second, 4].previous == before[3], "an event comes with the hash of the one before it"
        assert data[second, 4].run_id == found[second][0].run_id == f"run_{second}"

    def test_events_by_page_and_by_type(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        events = [event_row(no, seq, "A" if seq % 2 else "B", b"%d" % seq) for seq in range(2, 10)]
        assert refusals(store, step(no, events=events, change=change(9))) == [None]
        assert store.events(no, after=1) == events
        assert store.events(no, after=3, limit=2) == events[2:4]
        assert [event.seq for event in store.events(no, types=["A"])] == [3, 5, 7, 9]
        assert [event.seq for event in store.events(no, after=3, limit=2, types=["A", "RunCreated"])] == [5, 7]
        assert store.events(no, types=[]) == []
        assert payloads(store.event_data(no, [9, 2, 50])) == {2: ("B", b"2"), 9: ("A", b"9")}
        assert store.event_data(no, [1])[1].previous is None
        assert store.event_data(no, []) == {}

    # --- branches ---

    def test_opening_a_branch_writes_its_row_drops_rows_and_pins_the_version(self, store: Store) -> None:
        (run_no,) = make_runs(store, 1, status="failed", engine=None)
        assert refusals(store, step(run_no, nodes=[node_row(run_no, n) for n in ("a", "b")])) == [None]
        opened = BranchRow(run_no, 2, 1, 1, 3, "fork", None, 60)
        opening = step(run_no, 2, change=change(3, branch=2), opens=opened, gone=[("b", "", 1)], version=4)
        assert refusals(store, opening) == [None]
        assert store.branches(run_no) == [opened]
        assert [node.node for node in store.nodes(run_no)] == ["a"]
        run = store.run_by_no(run_no)
        assert run is not None
        assert (run.branch, run.version, run.last_seq) == (2, 4, 3)

    def test_rows_are_dropped_and_a_version_is_pinned_without_a_branch(self, store: Store) -> None:
        (run_no,) = make_runs(store, 1)
        assert refusals(store, step(run_no, nodes=[node_row(run_no, n) for n in ("a", "b")])) == [None]
        assert refusals(store, step(run_no, 2, change=change(3), gone=[("b", "", 1)], version=4)) == [None]
        run = store.run_by_no(run_no)
        assert run is not None
        assert ([node.node for node in store.nodes(run_no)], run.version, store.branches(run_no)) == (["a"], 4, [])

    def test_a_branch_that_is_fenced_leaves_everything_as_it_was(self, store: Store) -> None:
        (run_no,) = make_runs(store, 1)
        assert refusals(store, step(run_no, nodes=[node_row(run_no, "a")])) == [None]
        opened = BranchRow(run_no, 2, 1, 1, 2, "jump", None, 60)
        stale = step(run_no, 2, token=9, change=change(3, branch=2), opens=opened, gone=[("a", "", 1)], version=4)
        assert refusals(store, stale) == ["fenced"]
        run = store.run_by_no(run_no)
        assert run is not None
        assert (store.branches(run_no), run.branch, run.version) == ([], 1, 1)
        assert [node.node for node in store.nodes(run_no)] == ["a"]

    def test_a_row_that_was_closed_is_open_again_on_another_branch(self, store: Store) -> None:
        (run_no,) = make_runs(store, 1)
        assert refusals(store, step(run_no, nodes=[node_row(run_no, "a", is_open=0)])) == [None]
        assert store.open_nodes([run_no]) == []
        opened = BranchRow(run_no, 2, 1, 1, 2, "retry", None, 60)
        again = step(run_no, 2, change=change(3, branch=2), nodes=[node_row(run_no, "a")], opens=opened)
        assert refusals(store, again) == [None]
        assert [node.node for node in store.open_nodes([run_no])] == ["a"]

    def test_a_run_that_has_ended_takes_only_what_opens_a_branch_and_can_then_be_claimed(self, store: Store) -> None:
        (run_no,) = make_runs(store, 1)
        early = MessageRow("m_early", run_no, "retry", b"{}", 50)
        assert store.send([early]) == ["new"]
        ending = step(run_no, change=change(2, status="failed", engine=None), ends=True)
        assert refusals(store, ending) == [None]
        assert [m.message_id for m in store.new_messages()] == ["m_early"], "it may still open a branch"
        assert store.send([message("m_signal", run_no)]) == ["finished"]
        for kind in sorted(BRANCH_REQUESTS):
            assert store.send([MessageRow(f"m_{kind}", run_no, kind, b"{}", 50)]) == ["new"]
        assert claimable(store) == [run_no]
        assert [row.run_no for row in store.claim("two", [run_no])] == [run_no]

    def test_a_forked_run_reads_the_beginning_of_its_journal_from_its_origin(self, store: Store) -> None:
        origin, fork, nested = self._forks(store)
        assert [e.seq for e in store.events(fork)] == [1, 2, 3, 4, 5]
        assert [e.run_no for e in store.events(fork)] == [origin] * 3 + [fork] * 2
        assert [e.run_no for e in store.events(nested)] == [origin] * 2 + [nested] * 2, "cut below its origin's own cut"
        assert [e.seq for e in store.events(fork, 2)] == [3, 4, 5]
        assert [e.seq for e in store.events(fork, 3)] == [4, 5]
        assert [e.seq for e in store.events(fork, 0, 2)] == [1, 2]
        assert [e.seq for e in store.events(fork, 2, 2)] == [3, 4]
        assert [e.seq for e in store.events(fork, types=["RunCreated"])] == [1, 4]
        assert payloads(store.event_data(fork, [2, 5])) == {2: ("NodeStarted", b"2"), 5: ("NodeStarted", b"5")}
        own = store.event_data(nested, [2, 3])
        assert payloads(own) == {2: ("NodeStarted", b"2"), 3: ("RunCreated", b"3")}
        assert own[3].previous == own[2].hash, "the first event of a fork is linked to the last that it shares"
        assert (own[2].run_id, own[3].run_id) == (f"run_{origin}", f"run_{nested}")
        assert [e.seq for e in store.events(origin)] == list(range(1, 7)), "the origin is not touched"
        together = store.events_of([(origin, 4), (fork, 2), (nested, 0)], [])
        journals = {origin: store.events(origin, 4), fork: store.events(fork, 2), nested: store.events(nested)}
        assert {no: [event[:11] for event in events] for no, events in together.items()} == journals
        assert payloads(store.event_data_of([(fork, 2), (fork, 5)])) == {(fork, 5): ("NodeStarted", b"5")}

    @staticmethod
    def _forks(store: Store) -> tuple[int, int, int]:
        """A run of six events, one that goes on from it behind the third, and one that goes on from that one behind
        the second."""
        (origin,) = make_runs(store, 1)
        for seq in range(2, 7):
            assert refusals(store, step(origin, seq - 1, events=[event_row(origin, seq, data=b"%d" % seq)])) == [None]
        fork, nested = store.reserve_run_numbers(1), store.reserve_run_numbers(1)
        for run_no, parent_no, cut in ((fork, origin, 3), (nested, fork, 2)):
            events = [event_row(run_no, cut + 1, "RunCreated", b"%d" % (cut + 1))]
            events.append(event_row(run_no, cut + 2, data=b"%d" % (cut + 2)))
            opened = BranchRow(run_no, 2, 1, cut, 2, "fork", parent_no, 60)
            row = run_row(run_no, last_seq=cut + 2, branch=2)
            assert refusals(store, Commit(run_no, 1, 0, create=row, events=events, opens=opened)) == [None]
        return origin, fork, nested

    # --- definitions and listings ---

    def test_versions_are_numbered_per_name_and_a_known_hash_keeps_its_number(self, store: Store) -> None:
        assert store.latest_version("order") is None
        assert store.register_version("order", "h1", b"one", 1) == 1
        assert store.register_version("order", "h2", b"two", 2) == 2
        assert store.register_version("order", "h1", b"ignored", 3) == 1
        assert store.register_version("other", "h1", b"three", 4) == 1
        first, latest = store.version("order", 1), store.latest_version("order")
        assert first is not None
        assert latest is not None
        assert tuple(first) == ("order", 1, "h1", b"one", 1, b"", None)
        assert (latest.version, latest.definition) == (2, b"two")
        assert store.version("order", 3) is None

    def test_listings_are_newest_first_and_filtered(self, store: Store) -> None:
        statuses = ["created", "running", "suspended", "completed", "failed", "cancelled", "recovering"]
        numbers = []
        for index in range(21):
            status = statuses[index % 7]
            name = "a" if index % 2 else "b"
            (no,) = make_runs(store, 1, status=status, workflow=name, engine="one" if status == "running" else None)
            numbers.append(no)
        listed = store.runs()
        assert [row.run_no for row in listed] == numbers[::-1]
        assert [row.run_no for row in store.runs(limit=3)] == numbers[:-4:-1]
        assert [row.run_no for row in store.runs(before_no=numbers[5], limit=2)] == [numbers[4], numbers[3]]
        for wanted in (["failed"], ["running"], ["failed", "running"], ["created", "completed", "cancelled"], []):
            of_status = [row for row in listed if row.status in wanted]
            assert store.runs(status=wanted) == of_status
            assert store.runs(status=wanted, limit=2) == of_status[:2]
            assert store.runs(status=wanted, workflow="a") == [row for row in of_status if row.workflow == "a"]
        assert store.runs(workflow="a") == [row for row in listed if row.workflow == "a"]
        assert store.runs(workflow="a", before_no=numbers[5]) == [
            row for row in listed if row.workflow == "a" and row.run_no < numbers[5]
        ]
        assert store.unfinished_count() == 12
        assert store.counts() == dict.fromkeys(statuses, 3)

    def test_listing_a_tree(self, store: Store) -> None:
        root, stranger = make_runs(store, 2)
        (child,) = make_runs(store, 1, root_no=root, parent_no=root, workflow="sub", status="failed")
        (grandchild,) = make_runs(store, 1, root_no=root, parent_no=child)
        assert [row.run_no for row in store.runs(root_no=root)] == [grandchild, child, root]
        assert [row.run_no for row in store.runs(root_no=root, workflow="sub")] == [child]
        assert [row.run_no for row in store.runs(root_no=root, status=["running"])] == [grandchild, root]
        assert [row.run_no for row in store.runs(root_no=root, before_no=child, limit=5)] == [root]
        assert [row.run_no for row in store.runs(root_no=stranger)] == [stranger]

    def test_run_ids_are_resolved_by_prefix(self, store: Store) -> None:
        for run_id in ["run_b", "run_ab", "run_aa", "run%x", "RUN_A"]:
            make_runs(store, 1, run_id=run_id)
        assert store.resolve_run_id("run_a") == ["run_aa", "run_ab"]
        assert store.resolve_run_id("run_b") == ["run_b"]
        assert store.resolve_run_id("run%") == ["run%x"]
        assert store.resolve_run_id("x") == []
        for index in range(12):
            make_runs(store, 1, run_id=f"many_{index:02d}")
        assert store.resolve_run_id("many_") == [f"many_{index:02d}" for index in range(10)]

    def test_run_numbers_are_given_out_once(self, store: Store) -> None:
        first, second, third = (store.reserve_run_numbers(count) for count in (3, 1, 2))
        assert first >= 1
        assert second >= first + 3
        assert third >= second + 1

    def test_run_numbers_begin_behind_the_runs_that_are_there(self, store: Store) -> None:
        far = store.reserve_run_numbers(1) + 1000
        assert refusals(store, creation(far)) == [None]  # as a restored or merged database may have it
        assert store.reserve_run_numbers(1) > far

    # --- side by side ---

    def test_readers_see_a_group_whole_or_not_at_all(self, store: Store) -> None:
        numbers = make_runs(store, 200)
        done = threading.Event()
        seen: list[set[int]] = []

        def read() -> None:
            while not done.is_set():
                seen.append({row.last_seq for row in store.runs(limit=200)})

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            for seq in range(1, 40):
                assert refusals(store, *(step(no, seq) for no in numbers)) == [None] * 200
            done.set()
            for reader in readers:
                reader.result()
        assert all(len(one) == 1 for one in seen)

    def test_sixty_four_callers_at_once(self, store: Store) -> None:
        numbers = make_runs(store, 64)
        together = threading.Barrier(64)

        def live(no: int) -> list[str | None]:
            together.wait()
            ends: list[str | None] = []
            for seq in range(1, 6):
                ends += refusals(store, step(no, seq, nodes=[node_row(no, f"n{seq}")]))
                assert store.send([message(f"m{no}-{seq}", no)]) == ["new"]
                assert len(store.events(no)) == seq + 1
                assert len(store.nodes(no)) == len(store.new_messages([no])) == seq
            return ends

        with ThreadPoolExecutor(64) as pool:
            assert all(ends == [None] * 5 for ends in pool.map(live, numbers))
        assert {row.last_seq for row in store.runs(limit=100)} == {6}


# --- several store objects on one database -----------------------------------------------------------------------


class SharedStoreConformance(Suite):
    """What a database keeps while it is closed, and what two store objects promise to each other, be they in one
    process or in two."""

    def test_it_is_not_used_in_a_forked_process(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("os.getpid", lambda: 1)
            for use in (store.runs, store.changed, store.close, lambda: store.commit([creation(5)])):
                with pytest.raises(StoreError, match="opened by process"):
                    use()
        assert store.runs() == []

    def test_a_closed_store_refuses_everything_and_opens_again(self, store: Store) -> None:
        make_runs(store, 1)
        store.close()
        store.close()
        uses = (store.runs, store.changed, lambda: store.commit([creation(5)]), lambda: store.reserve_run_numbers(1))
        for use in uses:
            with pytest.raises(StoreError, match="it was closed"):
                use()
        store.open()
        with pytest.raises(StoreError, match="open already"):
            store.open()
        assert len(store.runs()) == 1

    def test_what_one_has_committed_the_other_reads(self, store: Store, other: Store) -> None:
        other.changed()
        store.changed()
        (no,) = make_runs(store, 1)
        assert other.changed()
        assert not other.changed()
        assert not store.changed(), "a store does not wake itself"
        assert other.run_by_no(no) == store.run_by_no(no)
        store.close()
        assert other.run_by_no(no) is not None

    def test_what_was_committed_is_there_after_reopening(self, store: Store) -> None:
        numbers = make_runs(store, 5)
        before = store.runs()
        reserved = store.reserve_run_numbers(1)
        store.close()
        store.open()
        assert store.runs() == before
        assert [len(store.events(no)) for no in numbers] == [1] * 5
        assert store.reserve_run_numbers(1) > reserved

    def test_run_numbers_never_repeat_across_two(self, store: Store, other: Store) -> None:
        def reserve(one: Store) -> list[int]:
            firsts = [one.reserve_run_numbers(3) for _ in range(50)]
            return [no for first in firsts for no in range(first, first + 3)]

        with ThreadPoolExecutor(2) as pool:
            numbers = [no for part in pool.map(reserve, (store, other)) for no in part]
        assert len(set(numbers)) == len(numbers) == 300

    def test_of_two_that_claim_one_run_one_wins(self, store: Store, other: Store) -> None:
        numbers = make_runs(store, 40, engine=None)
        together = threading.Barrier(2)

        def claim(engine: str, one: Store) -> list[int]:
            won = []
            for no in numbers:
                together.wait()
                won += [row.run_no for row in one.claim(engine, [no])]
            return won

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(claim, "one", store), pool.submit(claim, "two", other)
            assert sorted(first.result() + second.result()) == numbers
        for no in numbers:
            row = other.run_by_no(no)
            assert row is not None
            assert row.token == 2
            assert row.engine == ("one" if no in first.result() else "two")

    def test_the_owner_that_lost_its_run_is_fenced(self, store: Store, other: Store) -> None:
        lost, kept = make_runs(store, 2)
        store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
        other.remove_engine("one")
        (row,) = store.claim("one", [kept])
        assert refusals(store, step(lost), step(kept, token=row.token)) == ["fenced", None]

    def test_two_that_write_at_once_both_land_everything(self, store: Store, other: Store) -> None:
        halves = [make_runs(store, 20), make_runs(other, 20)]

        def write(one: Store, numbers: list[int]) -> None:
            for seq in range(1, 30):
                assert refusals(one, *(step(no, seq) for no in numbers)) == [None] * 20

        with ThreadPoolExecutor(2) as pool:
            for half in pool.map(write, (store, other), halves):
                assert half is None
        assert {row.last_seq for row in store.runs(limit=100)} == {30}
        assert all([e.seq for e in other.events(no)] == list(range(1, 31)) for half in halves for no in half)

    def test_the_same_definition_registered_by_two_has_one_number(self, store: Store, other: Store) -> None:
        assert store.register_version("order", "h1", b"one", 1) == other.register_version("order", "h1", b"one", 1)
        assert other.register_version("order", "h2", b"two", 1) == 2
        assert store.register_version("order", "h3", b"three", 1) == 3
