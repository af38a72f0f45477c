"""What waits for people, and messages that come in numbers, in every store.

Never: names a database.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.store.contract import Store
from holdfast.store.row_types import OF_PEOPLE, BasketRow, Commit, MessageOutcome, MessageRow, WaitRow
from tests.store.conformance.store import Suite, change, claimable, make_runs, message, refusals, run_row, step


def question(run_no: int, wait_id: str, **other: Any) -> WaitRow:
    """An open question, asked at 5."""
    values: dict[str, Any] = {"kind": "input", "node": "ask", "path": ".", "status": "open", "since": 5, "until": None}
    values |= {"run_no": run_no, "wait_id": wait_id, "visit": 1, "branch": 1, "data": b'{"q": 1}', **other}
    return WaitRow(**values)


def known(run_no: int, wait_id: str, status: str, **other: Any) -> WaitRow:
    """A change of a wait that is there: nothing is said of what it is about."""
    return question(run_no, wait_id, **{"kind": "", "node": None, "since": 0, "data": b"{}", "status": status, **other})


class PeopleConformance(Suite):
    """What the engine relies on when runs wait for people, and for signals."""

    def ask(self, store: Store, *waits: WaitRow, **columns: Any) -> list[int]:
        """A suspended run for each wait, which waits for just that; their numbers."""
        first = store.reserve_run_numbers(len(waits))
        numbers = list(range(first, first + len(waits)))
        rows = [run_row(no, **{"status": "suspended", "engine": None, **columns}) for no in numbers]
        own = [wait._replace(run_no=no) for no, wait in zip(numbers, waits, strict=True)]
        group = [Commit(r.run_no, 1, 0, create=r, waits=[w]) for r, w in zip(rows, own, strict=True)]
        assert refusals(store, *group) == [None] * len(group)
        return numbers

    def asked(self, store: Store, **which: Any) -> list[str]:
        return [row.wait.wait_id for row in store.asked(**which)]

    # --- waits ---

    def test_a_wait_keeps_its_basket_and_assignee_and_tells_how_it_was_closed(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        asked = question(no, "w_1", basket="tax", assignee="ann", until=60)
        assert refusals(store, step(no, waits=[asked])) == [None]
        assert store.open_waits([no]) == [asked]
        closed = known(no, "w_1", "closed", outcome="answered", actor="bob")
        assert refusals(store, step(no, 2, waits=[closed])) == [None]
        assert store.open_waits([no]) == []
        assert [row.wait for row in store.wait("w_1")] == [
            asked._replace(status="closed", outcome="answered", actor="bob")
        ]

    def test_an_open_wait_is_handed_on_and_what_it_is_about_stays(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        asked = question(no, "w_1", basket="tax", assignee="ann")
        assert refusals(store, step(no, waits=[asked])) == [None]
        assert refusals(store, step(no, 2, waits=[known(no, "w_1", "open", basket="law", assignee=None)])) == [None]
        assert store.open_waits([no]) == [asked._replace(basket="law", assignee=None)]
        assert self.asked(store, basket="tax") == self.asked(store, assignee="ann") == []
        assert self.asked(store, basket="law") == ["w_1"]

    def test_a_wait_that_is_opened_and_closed_at_once_is_one_closed_row(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        closed = known(no, "w_1", "closed", outcome="answered")
        assert refusals(store, step(no, waits=[question(no, "w_1", basket="tax"), closed])) == [None]
        assert store.open_waits([no]) == []
        assert [(r.wait.basket, r.wait.outcome) for r in store.wait("w_1")] == [("tax", "answered")]

    def test_a_pause_belongs_to_no_node(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        pause = question(no, "w_1", kind="pause", node=None, path=None)
        assert refusals(store, step(no, waits=[pause])) == [None]
        assert store.open_waits([no]) == [pause]

    # --- what people are asked ---

    def test_what_is_asked_comes_oldest_first_with_the_run_that_asks(self, store: Store) -> None:
        old, new, same = self.ask(
            store, question(0, "w_b", since=1), question(0, "w_a", since=2, kind="basket"), question(0, "w_c", since=1)
        )
        rows = store.asked()
        assert [(row.run_id, row.workflow, row.wait.wait_id) for row in rows] == [
            (f"run_{old}", "order", "w_b"),
            (f"run_{same}", "order", "w_c"),
            (f"run_{new}", "order", "w_a"),
        ]
        assert rows[0].wait == question(old, "w_b", since=1)

    def test_pages_of_what_is_asked_follow_each_other_without_gap_or_overlap(self, store: Store) -> None:
        self.ask(store, *(question(0, f"w_{i:02}", since=i // 4) for i in range(17)))
        pages: list[list[str]] = []
        after: tuple[int, str] | None = None
        for _ in range(5):
            page = store.asked(limit=5, after=after)
            pages.append([row.wait.wait_id for row in page])
            after = (page[-1].wait.since, page[-1].wait.wait_id) if page else after
        assert [len(page) for page in pages] == [5, 5, 5, 2, 0]
        assert [wait_id for page in pages for wait_id in page] == [f"w_{i:02}" for i in range(17)]

    def test_what_is_asked_is_found_by_basket_by_assignee_and_by_both(self, store: Store) -> None:
        self.ask(
            store,
            question(0, "w_1", since=1, basket="tax", assignee="ann"),
            question(0, "w_2", since=2, basket="tax"),
            question(0, "w_3", since=3, assignee="ann"),
            question(0, "w_4", since=4, basket="tax", assignee="bob", kind="basket"),
            question(0, "w_5", since=5),
        )
        assert self.asked(store) == ["w_1", "w_2", "w_3", "w_4", "w_5"]
        assert self.asked(store, basket="tax") == ["w_1", "w_2", "w_4"]
        assert self.asked(store, assignee="ann") == ["w_1", "w_3"]
        assert self.asked(store, basket="tax", assignee="bob") == ["w_4"]
        assert self.asked(store, basket="law") == self.asked(store, assignee="eve") == []
        choices: list[dict[str, Any]] = [{"basket": "tax"}, {"assignee": "ann"}, {}]
        for which in choices:
            first, second = store.asked(**which, limit=1), self.asked(store, **which)[1]
            after = (first[0].wait.since, first[0].wait.wait_id)
            assert self.asked(store, **which, limit=1, after=after) == [second]
        assert self.asked(store, kinds=["basket"]) == self.asked(store, kinds=["basket"], basket="tax") == ["w_4"]

    def test_only_open_waits_for_people_of_unfinished_runs_are_asked(self, store: Store) -> None:
        kinds = [*OF_PEOPLE, "signal", "timer", "child"]
        self.ask(store, *(question(0, f"w_{kind}", kind=kind) for kind in kinds))
        self.ask(store, question(0, "w_closed", status="closed", outcome="answered"))
        self.ask(store, question(0, "w_ended"), status="failed")
        self.ask(store, question(0, "w_running"), status="running", engine="one")
        assert self.asked(store) == ["w_basket", "w_input", "w_running"]
        assert self.asked(store, kinds=["pause"]) == ["w_pause"]
        assert self.asked(store, kinds=OF_PEOPLE) == ["w_basket", "w_hold", "w_input", "w_pause", "w_running"]
        assert self.asked(store, kinds=[]) == []

    @pytest.mark.parametrize("kind", OF_PEOPLE)
    def test_a_wait_for_a_person_is_found_by_its_id_open_or_closed(self, store: Store, kind: str) -> None:
        (no,) = self.ask(store, question(0, "w_1", kind=kind))
        assert [(row.run_id, row.workflow, row.wait.status) for row in store.wait("w_1")] == [
            (f"run_{no}", "order", "open")
        ]
        assert refusals(store, step(no, waits=[known(no, "w_1", "closed", outcome="answered")])) == [None]
        assert [row.wait.status for row in store.wait("w_1")] == ["closed"]

    def test_waits_are_found_by_the_beginning_of_their_id(self, store: Store) -> None:
        self.ask(
            store, question(0, "w_ab"), question(0, "w_abc"), question(0, "w_b"), question(0, "w_ax", kind="timer")
        )
        self.ask(store, *(question(0, f"w_many{i:02}") for i in range(12)))

        def found(wait_id: str) -> list[str]:
            return [row.wait.wait_id for row in store.wait(wait_id)]

        assert found("w_a") == ["w_ab", "w_abc"]
        assert found("w_ab") == ["w_ab"], "an id is not the beginning of others"
        assert found("w_ax") == found("x") == found("w_%") == []
        assert found("w_many") == [f"w_many{i:02}" for i in range(10)]

    def test_two_runs_may_have_a_wait_of_the_same_id(self, store: Store) -> None:
        numbers = self.ask(store, question(0, "w_1"), question(0, "w_1"))
        assert [row.wait.run_no for row in store.wait("w_1")] == numbers

    def test_baskets_tell_what_lies_in_them(self, store: Store) -> None:
        assert store.baskets() == []
        self.ask(
            store,
            question(0, "w_1", since=9, basket="tax"),
            question(0, "w_2", since=7, basket="tax", kind="basket"),
            question(0, "w_3", since=8, basket="tax", kind="basket"),
            question(0, "w_4", since=3, basket="law"),
            question(0, "w_5", since=1),
            question(0, "w_6", since=1, basket="tax", status="closed"),
        )
        assert store.baskets() == [BasketRow("law", 1, 0, 3), BasketRow("tax", 1, 2, 7)]

    # --- messages and leases in numbers ---

    def test_messages_that_are_sent_together_arrive_in_their_order_and_each_has_its_own_end(self, store: Store) -> None:
        alive, other = make_runs(store, 2)
        (ended,) = make_runs(store, 1, status="completed", engine=None)
        store.send([message("old", alive)])
        became = store.send(
            [
                message("z", alive),
                message("old", alive),
                message("old", alive, b"2"),
                message("to nobody", 999),
                message("too late", ended),
                MessageRow("again", ended, "retry", b"{}", 50),
                message("z", alive),
                message("z", other),
                message("a", other),
            ]
        )
        expected = ["new", "duplicate", "conflict", "unknown_run", "finished", "new", "duplicate", "conflict", "new"]
        assert became == expected
        arrived = store.new_messages([alive, other, ended])
        assert [m.message_id for m in arrived] == ["old", "z", "again", "a"]
        assert [m.run_no for m in arrived] == [alive, alive, ended, other]
        assert store.send([]) == []

    def test_the_same_id_with_another_kind_or_to_another_run_is_a_conflict(self, store: Store) -> None:
        one, other = make_runs(store, 2)
        sent = message("m", one)
        assert store.send([sent]) == ["new"]
        assert store.send([sent._replace(kind="cancel"), sent._replace(run_no=other)]) == ["conflict", "conflict"]
        assert store.send([sent._replace(created_at=99)]) == ["duplicate"]

    def test_a_thousand_messages_at_once(self, store: Store) -> None:
        numbers = make_runs(store, 50)
        sent = [message(f"m{i:04}", numbers[i % 50]) for i in range(1000)]
        assert store.send(sent) == ["new"] * 1000
        assert [m.message_id for m in store.new_messages(numbers)] == [m.message_id for m in sent]
        assert store.send(sent) == ["duplicate"] * 1000

    def test_leases_are_given_back_together_and_those_of_others_are_left(self, store: Store) -> None:
        numbers = make_runs(store, 100)
        (free,) = make_runs(store, 1, engine=None)
        leases = [(no, 1) for no in numbers[1:]] + [(numbers[0], 7), (free, 1), (999, 1)]
        assert store.release("one", leases) == 99
        rows = {no: store.run_by_no(no) for no in numbers}
        assert [no for no, row in rows.items() if row is not None and row.engine is not None] == [numbers[0]]
        assert {row.token for row in rows.values() if row is not None} == {1}, "giving back is no takeover"
        assert store.release("one", []) == 0

    # --- signals that came early ---

    def settle(self, store: Store, no: int, seq: int, *outcomes: MessageOutcome, **other: Any) -> None:
        assert refusals(store, step(no, seq, outcomes=outcomes, **other)) == [None]

    def test_held_messages_come_in_order_of_arrival(self, store: Store) -> None:
        one, two = make_runs(store, 2)
        store.send([message(name, no) for name, no in (("z", one), ("y", two), ("a", one), ("new", one), ("b", one))])
        assert store.held_messages([one, two]) == []
        self.settle(store, one, 1, *(MessageOutcome(name, "held", None) for name in ("a", "z", "b")))
        self.settle(store, two, 1, MessageOutcome("y", "held", None))
        assert [m.message_id for m in store.held_messages([one])] == ["z", "a", "b"]
        assert [(m.message_id, m.status) for m in store.held_messages([two, one])][:2] == [("z", "held"), ("y", "held")]
        self.settle(store, one, 2, MessageOutcome("z", "consumed", b"{}"))
        assert [m.message_id for m in store.held_messages([one])] == ["a", "b"]
        assert store.held_messages([]) == []

    def test_a_message_that_is_given_back_is_new_again_in_its_place(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        store.send([message("first", no), message("second", no)])
        self.settle(store, no, 1, MessageOutcome("first", "consumed", b'{"outcome":"applied"}'))
        suspended = change(3, status="suspended", engine=None)
        self.settle(store, no, 2, MessageOutcome("first", "new", None), change=suspended)
        stored = store.message("first")
        assert stored is not None
        assert (stored.status, stored.outcome) == ("new", None)
        assert [m.message_id for m in store.new_messages()] == ["first", "second"]
        assert [m.message_id for m in store.new_messages([no])] == ["first", "second"]
        assert claimable(store) == [no]
        assert [row.run_no for row in store.claim("two", [no])] == [no]

    def test_what_a_finished_run_held_stays_held_and_wakes_nobody(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        store.send([message("early", no), message("unread", no)])
        self.settle(store, no, 1, MessageOutcome("early", "held", None))
        end = change(3, status="completed", engine=None, finished_at=9)
        assert refusals(store, step(no, 2, change=end, ends=True)) == [None]
        assert [m.message_id for m in store.held_messages([no])] == ["early"]
        assert (store.new_messages(), store.unowned_versions(), store.claim("two", [no])) == ([], [], [])
        assert store.close_inbox(no) == 0
        assert [m.message_id for m in store.held_messages([no])] == ["early"]
        assert store.suspects("message_of_end", no, no) == []
