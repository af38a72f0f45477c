"""Rows of waits, timers and signals: from the latest events, from a whole journal, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine.messages import held_signals
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.evolve import evolve
from holdfast.model.state import HeldSignal, RunState
from holdfast.store.records.expected_rows import WaitAndTimerHistory
from holdfast.store.records.state_rows import event_rows, wait_rows
from holdfast.store.row_types import MessageRow
from tests.rules.play import Play, call, ref

ABOUT = {"question": "may we?", "about": {"sum": 5}, "basket": "tax", "assignee": "ann"}


def folded(*events: Any, branch: int = 1) -> tuple[RunState, list[ev.Entry]]:
    """A run with a body under way, and what these events of its node made of it."""
    state = Play(call("a"), result=ref("a")).state
    entries = []
    for event in events:
        entries.append(ev.Entry(state.seq + 1, 100 + state.seq, event, "a", ".", 1, branch))
        evolve(state, entries[-1])
    return state, entries


def handed_on(wait_id: str, **after: Any) -> ev.RunEdited:
    return ev.RunEdited("bob", {"wait_id": wait_id}, {"wait_id": wait_id, **after})


def test_the_rows_of_a_commit_are_linked_as_whoever_checks_a_journal_links_them() -> None:
    state = Play(call("a"), result=ref("a")).state
    state.head_hash = head = b"h" * 16
    events: list[tuple[Any, str | None, str | None, int, int, int]] = [
        (ev.NodeStarted(1, ()), "a", ".", 1, 100, 1),
        (ev.NodeSkipped("absent", None), "b", ".m.3.", 1, 100, 1),
        (ev.NodeStarted(1, ()), "a", ".", 2, 100, 1),
        (ev.NodeStarted(2, ()), "a", ".", 2, 101, 2),
        (ev.PhaseStarted("p"), None, None, 1, 101, 2),
    ]
    entries = [ev.Entry(7 + i, at, e, *where, branch) for i, (e, *where, at, branch) in enumerate(events)]
    rows, _ = event_rows(state, entries, 3)
    for _, seq, branch, type_name, node, path, visit, at, token, hashed, data in rows:
        head = journal_format.link(head, state.run_id, seq, branch, type_name, node, path, visit, at, token, data)
        assert hashed == head
    assert state.head_hash == head


def test_a_new_question_is_a_row_with_all_that_it_is_about() -> None:
    state, entries = folded(ev.WaitOpened("w_1", "input", {"step_key": "k"}, 900, ABOUT))
    (row,) = wait_rows(state, entries)
    assert (row.wait_id, row.kind, row.node, row.status, row.until) == ("w_1", "input", "a", "open", 900)
    assert (row.basket, row.assignee, row.outcome, row.actor) == ("tax", "ann", None, None)
    assert msgspec.json.decode(row.data) == {"call": {"step_key": "k"}, "about": ABOUT, "child": None}


def test_a_question_that_is_asked_and_handed_on_in_one_turn_is_one_row() -> None:
    state, entries = folded(ev.WaitOpened("w_1", "input", {}, None, ABOUT), handed_on("w_1", basket="law"))
    (row,) = wait_rows(state, entries)
    assert (row.kind, row.status, row.basket, row.assignee) == ("input", "open", "law", "ann")


def test_a_question_that_is_handed_on_later_says_where_it_is_now_and_nothing_of_what_it_is_about() -> None:
    state, entries = folded(ev.WaitOpened("w_1", "input", {}, None, ABOUT), handed_on("w_1", assignee="eve"))
    (row,) = wait_rows(state, entries[1:])
    assert (row.status, row.basket, row.assignee) == ("open", "tax", "eve")
    assert (row.kind, row.data) == ("", b"{}")


def test_a_question_that_is_handed_on_and_answered_in_one_turn_is_one_closed_row() -> None:
    answered = ev.WaitClosed("w_1", "answered", msgspec.Raw(b"1"), "ann")
    state, entries = folded(ev.WaitOpened("w_1", "input", {}, None, ABOUT), handed_on("w_1", basket="law"), answered)
    (row,) = wait_rows(state, entries[1:])
    assert (row.status, row.outcome, row.actor) == ("closed", "answered", "ann")
    (row,) = wait_rows(state, entries)
    assert (row.kind, row.status, row.outcome, row.actor) == ("input", "closed", "answered", "ann")


def test_an_edit_that_is_about_no_wait_makes_no_row() -> None:
    state, entries = folded(ev.RunEdited("bob", {"priority": 0}, {"priority": 5}), handed_on("w_gone", basket="law"))
    assert wait_rows(state, entries) == []


def test_held_signals_are_told_by_run_in_their_order_with_the_bytes_that_were_sent() -> None:
    def message(message_id: str, run_no: int, kind: str, payload: bytes) -> MessageRow:
        return MessageRow(message_id, run_no, kind, payload, 5, "held")

    found = held_signals(
        [
            message("m_2", 1, "signal", b'{"name":"paid","payload":{"sum": 1.50},"actor":"ann"}'),
            message("m_1", 2, "signal", b'{"name":"paid"}'),
            message("m_3", 1, "resume", b'{"reason":""}'),
            message("m_0", 1, "signal", b'{"name":"sent","payload":[ 1 ]}'),
        ]
    )
    assert found == {
        1: [HeldSignal("m_2", "paid", b'{"sum": 1.50}'), HeldSignal("m_0", "sent", b"[ 1 ]")],
        2: [HeldSignal("m_1", "paid", b"null")],
    }


# --- from a whole journal ------------------------------------------------------------------------------------------

JOURNAL = (
    ev.WaitOpened("w_1", "input", {}, None, ABOUT),
    ev.TimerSet("w_1", 900),
    ev.WaitClosed("w_1", "answered", msgspec.Raw(b"1"), "ann"),
    ev.TimerCancelled("w_1"),
    ev.TimerSet("retry:a@.", 300),
    ev.TimerFired("retry:a@."),
    ev.TimerSet("retry:a@.", 500),
    ev.WaitOpened("w_2", "basket", {}, None, {"basket": "tax"}),
    handed_on("w_2", basket="law"),
)


@pytest.mark.parametrize("again", [1, -1])
def test_a_register_knows_how_everything_stands_however_often_and_in_whatever_order_it_was_told(again: int) -> None:
    state, entries = folded(*JOURNAL)
    entries.append(ev.Entry(state.seq + 1, 200, ev.WaitClosed("w_1", "superseded"), "a", ".", 1, 2))  # by a branch
    register = WaitAndTimerHistory([*entries, *entries[::again]])
    waits = register.wait_rows(state)
    assert [(w.status, w.outcome, w.actor, w.basket) for w in waits.values()] == [
        ("closed", "superseded", None, "tax"),
        ("open", None, None, "law"),
    ]
    assert {t.timer: (t.due_at, t.status) for t in register.timer_rows(state).values()} == {
        "w_1": (900, "cancelled"),
        "retry:a@.": (500, "set"),
    }


def test_what_a_branch_left_behind_is_over() -> None:
    _, entries = folded(*JOURNAL)
    elsewhere, _ = folded()
    register = WaitAndTimerHistory(entries)
    waits, timers = register.wait_rows(elsewhere), register.timer_rows(elsewhere)
    assert [(w.status, w.outcome) for w in waits.values()] == [("closed", "answered"), ("closed", "superseded")]
    assert [t.status for t in timers.values()] == ["cancelled", "cancelled"]


def test_what_a_run_shares_with_its_origin_is_not_in_its_rows() -> None:
    state, entries = folded(*JOURNAL)
    register = WaitAndTimerHistory(entries)
    cut = entries[5].seq
    assert list(register.wait_rows(state, cut)) == ["w_2"]
    assert list(register.timer_rows(state, cut)) == ["retry:a@."]


def test_the_copy_of_a_register_goes_on_by_itself() -> None:
    state, entries = folded(*JOURNAL)
    first = WaitAndTimerHistory(entries[:4])
    second = first.copy()
    for entry in entries[4:]:
        second.note(entry)
    assert list(first.wait_rows(state)) == ["w_1"]
    assert list(second.wait_rows(state)) == ["w_1", "w_2"]
