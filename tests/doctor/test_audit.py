"""The auditor: what is wrong with a journal, whoever wrote it.

Journals of real runs are changed by hand. Where `relink` was called the forger knew how the hash chain works, so only
what the events say can give him away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.engine.versions import Versions
from holdfast.inspect.doctor.audit import Audit
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.violations import Violation
from holdfast.store.row_types import EventRow, Evidence
from tests.doctor.ward import event, examine, harm, journal, opened, relink, repair, told

Rows = list[EventRow]


def audit_of(path: Path, run_id: str) -> Audit:
    with opened(path) as store:
        row = store.run(run_id)
        assert row is not None
        return Audit(Versions(store).numbered(row.workflow, row.version), row.run_no, run_id)


def evidence_of(path: Path, run_id: str) -> Evidence:
    with opened(path) as store:
        row = store.run(run_id)
        assert row is not None
        return store.evidence(row.run_no)


def judge(path: Path, run_id: str, rows: Rows) -> list[Violation]:
    return audit_of(path, run_id).feed(rows)


def where(rows: Rows, kind: str, node: str | None = None, path: str = ".") -> int:
    """The index of the last event of a kind (of a node)."""
    return max(i for i, r in enumerate(rows) if r.type == kind and (node is None or (r.node, r.path) == (node, path)))


RUNS = ("done", "asleep", "parent", "retrying", "forked", "failed", "cancelled")


@pytest.mark.parametrize("run_id", RUNS)
def test_a_journal_as_it_was_written_is_in_order(ward: Path, run_id: str) -> None:
    evidence = evidence_of(ward, run_id)
    audit = audit_of(ward, run_id)
    assert audit.feed(evidence.events) + audit.compare(evidence) == []


@pytest.mark.parametrize("run_id", RUNS)
def test_a_journal_is_judged_the_same_in_whatever_portions_it_is_fed(ward: Path, run_id: str) -> None:
    evidence = evidence_of(ward, run_id)
    audit = audit_of(ward, run_id)
    for row in evidence.events:
        assert audit.feed([row]) == []
    assert audit.compare(evidence) == []


@pytest.mark.parametrize("run_id", RUNS)
def test_a_copy_goes_on_by_itself_and_leaves_the_original_alone(ward: Path, run_id: str) -> None:
    evidence = evidence_of(ward, run_id)
    original = audit_of(ward, run_id)
    for i, row in enumerate(evidence.events):
        copied = original.copy()
        assert copied.feed(evidence.events[i:]) + copied.compare(evidence) == []
        assert original.feed([row]) == []
    assert original.compare(evidence) == []


# --- order, chain, content -----------------------------------------------------------------------------------------


def test_a_missing_event_is_a_gap_at_its_place(ward: Path) -> None:
    rows = journal(ward, "done")
    found = judge(ward, "done", rows[:9] + rows[11:])
    assert (found[0].code, found[0].seq) == ("I1", 12)
    assert "events 10 to 11 are missing" in found[0].what


def test_an_event_that_is_there_twice_is_told(ward: Path) -> None:
    rows = journal(ward, "done")
    assert judge(ward, "done", rows[:9] + rows[8:])[0].code == "I2"


@pytest.mark.parametrize("column", ["data", "at", "node", "path", "type", "token", "visit", "branch"])
def test_a_changed_event_is_told_with_its_number_whatever_was_changed(ward: Path, column: str) -> None:
    changed = {
        "data": b'{"attempt":1,"output":1000000}',
        "at": 1,
        "node": "ward_sum",
        "path": ".x.",
        "type": "NodeFailed",
        "token": 7,
        "visit": 2,
        "branch": 3,
    }
    rows = journal(ward, "done")
    at = where(rows, "NodeCompleted", "last")
    rows[at] = rows[at]._replace(**{column: changed[column]})
    first = judge(ward, "done", rows)[0]
    assert (first.code, first.run_id, first.seq) == ("I3", "done", rows[at].seq)


def test_one_changed_event_is_one_broken_link(ward: Path) -> None:
    rows = journal(ward, "done")
    rows[10] = rows[10]._replace(data=b'{"attempt":1,"output":1000000}')
    assert [(v.code, v.seq) for v in judge(ward, "done", rows)] == [("I3", 11)]


def test_rows_are_not_held_against_a_journal_that_was_tampered_with(ward: Path) -> None:
    evidence = evidence_of(ward, "done")
    rows = list(evidence.events)
    rows[10] = rows[10]._replace(data=b'{"attempt":1,"output":1000000}')
    audit = audit_of(ward, "done")
    audit.feed(rows)
    assert audit.compare(evidence) == []
    assert not audit.trusted


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("NodeCompleted", b"{"),
        ("NodeCompleted", b'{"attempt":"one"}'),
        ("NodeCompleted", b'{"output":1}'),
        ("NodeCompleted", b'{"attempt":1,"output":14,"secret":1}'),
        ("NodeCompleted", b'{"attempt": 1,"output":14}'),
        ("NodeExploded", b'{"attempt":1}'),
    ],
)
def test_an_event_that_cannot_be_read_as_it_was_written_is_told(ward: Path, kind: str, data: bytes) -> None:
    rows = journal(ward, "done")
    at = where(rows, "NodeCompleted", "last")
    rows[at] = rows[at]._replace(type=kind, data=data)
    found = judge(ward, "done", relink(rows, "done"))
    assert ("I6", at + 1) in [(v.code, v.seq) for v in found]


def test_a_token_that_goes_back_is_a_zombie(ward: Path) -> None:
    rows = [row._replace(token=2 if row.seq < 10 else 1) for row in journal(ward, "done")]
    found = judge(ward, "done", relink(rows, "done"))
    assert (found[0].code, found[0].seq) == ("I4", 10)


# --- what events may rely on ---------------------------------------------------------------------------------------


def first_is_missing(rows: Rows) -> Rows:
    return rows[1:]


def created_twice(rows: Rows) -> Rows:
    return [rows[0], *rows]


def goes_on_after_its_end(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.PhaseStarted("x"))]


def ends_twice(rows: Rows) -> Rows:
    return [*rows, rows[-1]]


def completes_twice(rows: Rows) -> Rows:
    at = where(rows, "NodeCompleted", "last")
    return [*rows[: at + 1], *rows[at:]]


def an_item_runs_again(rows: Rows) -> Rows:
    """The item has left the state, so that nothing but memory of what was tells."""
    item = [r for r in rows if r.path == ".ward_add_2.0."]
    at = where(rows, "NodeCompleted", "ward_add_2", ".ward_add_2.1.")
    return [*rows[:at], *item, *rows[at:]]


def completes_without_a_start(rows: Rows) -> Rows:
    at = where(rows, "NodeStarted", "last")
    return [*rows[:at], *rows[at + 1 :]]


def skips_an_attempt(rows: Rows) -> Rows:
    at = where(rows, "NodeScheduled", "last")
    return [*rows[:at], event(rows[at], ev.NodeScheduled(3)), *rows[at + 1 :]]


def completes_another_attempt(rows: Rows) -> Rows:
    at = where(rows, "NodeCompleted", "last")
    return [*rows[:at], rows[at]._replace(data=b'{"attempt":2,"output":14}'), *rows[at + 1 :]]


def gives_up_an_attempt_for_nothing(rows: Rows) -> Rows:
    at = where(rows, "NodeStarted", "last")
    again = [event(rows[at], ev.NodeScheduled(2)), event(rows[at], ev.NodeStarted(2))]
    end = rows[at + 1]._replace(data=b'{"attempt":2,"output":14}')
    return [*rows[: at + 1], *again, end, *rows[at + 2 :]]


def tries_more_often_than_it_may(rows: Rows) -> Rows:
    at = where(rows, "NodeFailed", "ward_break")
    failed = event(rows[at], ev.NodeFailed(2, ev.ErrorInfo("error", "no"), retryable=True))
    more = [failed, event(failed, ev.NodeScheduled(3)), event(failed, ev.NodeStarted(3))]
    last = event(failed, ev.NodeFailed(3, ev.ErrorInfo("error", "no"), closes=True))
    return [*rows[:at], *more, last, *rows[at + 1 :]]


def begins_before_what_it_waits_for(rows: Rows) -> Rows:
    """The sum of a map's items begins before the last item has ended."""
    at = where(rows, "NodeScheduled", "ward_sum")
    early = where(rows, "NodeCompleted", "ward_add_2", ".ward_add_2.2.")
    return [*rows[:early], rows[at], *rows[early:at], *rows[at + 1 :]]


def a_map_ends_before_its_items(rows: Rows) -> Rows:
    gone = {"ward_add_2"}
    return [r for r in rows if not (r.node in gone and r.path == ".ward_add_2.2.")]


def a_node_is_left_out(rows: Rows) -> Rows:
    return [r for r in rows if r.node != "last"]


def reads_from_the_future(rows: Rows) -> Rows:
    at = where(rows, "NodeStarted", "last")
    return [*rows[:at], event(rows[at], ev.NodeStarted(1, (("n", 4000, ""),))), *rows[at + 1 :]]


def of_a_node_that_does_not_exist(rows: Rows) -> Rows:
    at = where(rows, "NodeScheduled", "last")
    return [*rows[:at], rows[at]._replace(node="nobody"), *rows[at + 1 :]]


def on_a_branch_that_is_not_current(rows: Rows) -> Rows:
    return [*rows[:-1], rows[-1]._replace(branch=2)]


def records_a_step_twice(rows: Rows) -> Rows:
    at = where(rows, "StepCompleted")
    return [*rows[: at + 1], *rows[at:]]


def records_a_step_of_a_body_that_does_not_run(rows: Rows) -> Rows:
    at = where(rows, "StepCompleted")
    return [*rows, rows[at]]


def opens_a_wait_twice(rows: Rows) -> Rows:
    at = where(rows, "WaitOpened")
    return [*rows[: at + 1], *rows[at:]]


def closes_a_wait_twice(rows: Rows) -> Rows:
    at = where(rows, "WaitClosed")
    return [*rows[: at + 1], *rows[at:]]


def closes_a_wait_that_was_never_opened(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.WaitClosed("w_never", "fired"), node="ward_asleep", path=".")]


def sets_a_timer_twice(rows: Rows) -> Rows:
    at = where(rows, "TimerSet")
    return [*rows[: at + 1], *rows[at:]]


def fires_a_timer_that_was_never_set(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.TimerFired("w_never"))]


def fires_a_timer_too_early(rows: Rows) -> Rows:
    timer = journal_format.decode("TimerSet", rows[where(rows, "TimerSet")].data).timer
    return [*rows, event(rows[-1], ev.TimerFired(timer))]


def takes_a_message_twice(rows: Rows) -> Rows:
    at = where(rows, "MessageConsumed")
    return [*rows[: at + 1], *rows[at:]]


def suspends_with_nothing_to_wait_for(rows: Rows) -> Rows:
    return [r for r in rows if r.type not in ("WaitOpened", "TimerSet", "NodeSuspended")]


def ends_with_a_wait(rows: Rows) -> Rows:
    return [r for r in rows if r.type != "WaitClosed"]


def ends_with_a_timer(rows: Rows) -> Rows:
    return [r for r in rows if r.type != "TimerCancelled"]


def ends_with_a_node_under_way(rows: Rows) -> Rows:
    return [r for r in rows if r.type != "NodeCancelled"]


def starts_something_after_the_cancel(rows: Rows) -> Rows:
    at = where(rows, "RunCancelRequested")
    again = event(rows[at], ev.NodeScheduled(2), node="ward_cancelled", path=".")
    return [*rows[: at + 1], again, *rows[at + 1 :]]


def starts_a_child_for_no_wait(rows: Rows) -> Rows:
    return [r for r in rows if r.type != "WaitOpened"]


def starts_a_child_twice(rows: Rows) -> Rows:
    at = where(rows, "ChildStarted")
    return [*rows[: at + 1], *rows[at:]]


def hears_of_a_child_that_nobody_waits_for(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.ChildEnded("run_other", "completed"), node="ward_parent", path=".")]


def undoes_in_the_wrong_order(rows: Rows) -> Rows:
    first = [r for r in rows if r.node == "pay_again~undo"]
    second = [r for r in rows if r.node == "ward_pay~undo"]
    at = rows.index(first[0])
    return [*rows[:at], *second, *first, *rows[at + len(first) + len(second) :]]


def fails_another_attempt(rows: Rows) -> Rows:
    at = where(rows, "NodeFailed", "ward_break")
    failure = journal_format.decode("NodeFailed", rows[at].data)
    return [*rows[:at], event(rows[at], ev.NodeFailed(7, failure.error, closes=True)), *rows[at + 1 :]]


def opens_a_loop_before_its_start_is_known(rows: Rows) -> Rows:
    at = where(rows, "ScopeOpened", "ward_add_3")
    early = where(rows, "NodeCompleted", "ward_add")
    return [*rows[:early], rows[at], *rows[early:at], *rows[at + 1 :]]


def _about_an_ended_item(rows: Rows, content: object) -> Rows:
    at = where(rows, "NodeCompleted", "ward_add_2", ".ward_add_2.0.")
    return [*rows[: at + 1], event(rows[at], content), *rows[at + 1 :]]


def cancels_an_item_that_had_ended(rows: Rows) -> Rows:
    return _about_an_ended_item(rows, ev.NodeCancelled("late"))


def skips_an_item_that_had_ended(rows: Rows) -> Rows:
    return _about_an_ended_item(rows, ev.NodeSkipped("late"))


def _from_a_body_that_has_ended(rows: Rows, content: object) -> Rows:
    at = where(rows, "NodeCompleted", "last")
    return [*rows[: at + 1], event(rows[at], content), *rows[at + 1 :]]


def starts_a_step_after_its_body(rows: Rows) -> Rows:
    return _from_a_body_that_has_ended(rows, ev.StepStarted("", 0, "step", "x", "d"))


def fails_a_step_after_its_body(rows: Rows) -> Rows:
    return _from_a_body_that_has_ended(rows, ev.StepFailed("", 0, "step", "x", "d", ev.ErrorInfo("error", "no")))


def checkpoints_after_its_body(rows: Rows) -> Rows:
    return _from_a_body_that_has_ended(rows, ev.NodeCheckpointed(msgspec.Raw(b"1")))


def cancels_a_timer_that_was_never_set(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.TimerCancelled("w_never"))]


def refuses_a_message_that_it_took(rows: Rows) -> Rows:
    at = where(rows, "MessageConsumed")
    taken = journal_format.decode("MessageConsumed", rows[at].data)
    return [*rows[: at + 1], event(rows[at], ev.MessageRefused(taken.message_id, "cancel")), *rows[at + 1 :]]


def _other_branch(rows: Rows, **fields: int) -> Rows:
    at = where(rows, "BranchOpened")
    opened = msgspec.structs.replace(journal_format.decode("BranchOpened", rows[at].data), **fields)
    return [*rows[:at], event(rows[at], opened), *rows[at + 1 :]]


def opens_a_branch_that_there_is(rows: Rows) -> Rows:
    return _other_branch(rows, branch=1)


def goes_on_from_a_branch_that_there_is_not(rows: Rows) -> Rows:
    return _other_branch(rows, parent=9)


def is_cut_off_in_the_future(rows: Rows) -> Rows:
    return _other_branch(rows, cutoff_seq=4000)


def goes_on_after_a_fork(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.ForkRequested("x", 2)), event(rows[-1], ev.PhaseStarted("x"))]


def goes_on_after_a_jump(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.JumpRequested("x", 2)), event(rows[-1], ev.PhaseStarted("x"))]


def goes_on_after_a_retry(rows: Rows) -> Rows:
    return [*rows, event(rows[-1], ev.RetryRequested("x", 2)), event(rows[-1], ev.PhaseStarted("x"))]


def resumes_what_is_not_suspended(rows: Rows) -> Rows:
    return [*rows[:-1], event(rows[-1], ev.RunResumed("nobody")), rows[-1]]


FORGERIES: list[tuple[str, Callable[[Rows], Rows], str]] = [
    ("done", first_is_missing, "I7"),
    ("done", created_twice, "I7"),
    ("done", goes_on_after_its_end, "I7"),
    ("done", ends_twice, "I7"),
    ("done", completes_twice, "I8"),
    ("done", an_item_runs_again, "I11"),
    ("done", completes_without_a_start, "I8"),
    ("done", skips_an_attempt, "I12"),
    ("done", completes_another_attempt, "I12"),
    ("done", gives_up_an_attempt_for_nothing, "I12"),
    ("failed", tries_more_often_than_it_may, "I12"),
    ("done", begins_before_what_it_waits_for, "I36"),
    ("done", a_map_ends_before_its_items, "I36"),
    ("done", a_node_is_left_out, "I36"),
    ("done", reads_from_the_future, "I31"),
    ("done", of_a_node_that_does_not_exist, "I41"),
    ("done", on_a_branch_that_is_not_current, "I35"),
    ("done", resumes_what_is_not_suspended, "I8"),
    ("asleep", records_a_step_twice, "I11"),
    ("asleep", records_a_step_of_a_body_that_does_not_run, "I12"),
    ("asleep", opens_a_wait_twice, "I33"),
    ("cancelled", closes_a_wait_twice, "I33"),
    ("asleep", closes_a_wait_that_was_never_opened, "I31"),
    ("asleep", sets_a_timer_twice, "I30"),
    ("asleep", fires_a_timer_that_was_never_set, "I31"),
    ("asleep", fires_a_timer_too_early, "I30"),
    ("asleep", suspends_with_nothing_to_wait_for, "I20"),
    ("cancelled", takes_a_message_twice, "I24"),
    ("cancelled", ends_with_a_wait, "I22"),
    ("cancelled", ends_with_a_timer, "I22"),
    ("cancelled", ends_with_a_node_under_way, "I22"),
    ("cancelled", starts_something_after_the_cancel, "I39"),
    ("parent", starts_a_child_for_no_wait, "I31"),
    ("parent", starts_a_child_twice, "I38"),
    ("parent", hears_of_a_child_that_nobody_waits_for, "I38"),
    ("failed", undoes_in_the_wrong_order, "I39"),
    ("failed", goes_on_after_its_end, "I7"),
    ("failed", fails_another_attempt, "I12"),
    ("done", opens_a_loop_before_its_start_is_known, "I36"),
    ("done", cancels_an_item_that_had_ended, "I11"),
    ("done", skips_an_item_that_had_ended, "I11"),
    ("done", starts_a_step_after_its_body, "I12"),
    ("done", fails_a_step_after_its_body, "I12"),
    ("done", checkpoints_after_its_body, "I12"),
    ("asleep", cancels_a_timer_that_was_never_set, "I31"),
    ("cancelled", refuses_a_message_that_it_took, "I24"),
    ("forked", opens_a_branch_that_there_is, "I35"),
    ("forked", goes_on_from_a_branch_that_there_is_not, "I35"),
    ("forked", is_cut_off_in_the_future, "I35"),
    ("asleep", goes_on_after_a_fork, "I7"),
    ("asleep", goes_on_after_a_jump, "I7"),
    ("asleep", goes_on_after_a_retry, "I7"),
]


@pytest.mark.parametrize(("run_id", "forge", "code"), FORGERIES, ids=[f"{f[0]} {f[1].__name__}" for f in FORGERIES])
def test_a_forged_journal_gives_itself_away(ward: Path, run_id: str, forge: Callable[[Rows], Rows], code: str) -> None:
    rows = journal(ward, run_id)
    found = judge(ward, run_id, relink(forge(rows), run_id))
    assert code in [v.code for v in found], [(v.code, v.what) for v in found]
    named = next(v for v in found if v.code == code)
    assert named.run_id == run_id
    assert named.seq is not None


def test_a_takeover_explains_why_an_attempt_was_given_up(ward: Path) -> None:
    rows = journal(ward, "done")
    at = where(rows, "NodeStarted", "last")
    owned = [row._replace(token=2) for row in gives_up_an_attempt_for_nothing(rows)[at + 1 :]]
    taken = event(rows[at], ev.RunTakenOver("eng_2", 2), node=None, path=None, token=2)
    assert judge(ward, "done", relink([*rows[: at + 1], taken, *owned], "done")) == []
    lying = event(rows[at], ev.RunTakenOver("eng_2", 3), node=None, path=None, token=2)
    found = judge(ward, "done", relink([*rows[: at + 1], lying, *owned], "done"))
    assert [v.code for v in found] == ["I13"]


def test_a_clock_that_was_set_back_a_little_is_no_early_timer(ward: Path) -> None:
    rows = journal(ward, "asleep")
    set_at = where(rows, "TimerSet")
    timer = journal_format.decode("TimerSet", rows[set_at].data)
    fired = event(rows[-1], ev.TimerFired(timer.timer), at=timer.due_at - 500_000)
    linked = relink([*rows, fired], "asleep")
    assert "I30" in [v.code for v in audit_of(ward, "asleep").feed(linked)]
    with opened(ward) as store:
        row = store.run("asleep")
        assert row is not None
        plan = Versions(store).numbered(row.workflow, row.version)
    assert Audit(plan, row.run_no, "asleep", early_micros=1_000_000).feed(linked) == []


# --- rows against the fold -----------------------------------------------------------------------------------------

ROWS = {
    "a status": ("asleep", "UPDATE run_state SET status = 'running' WHERE run_no = {asleep}"),
    "a count of recoveries": ("asleep", "UPDATE run_state SET recoveries = 3 WHERE run_no = {asleep}"),
    "a beginning": ("done", "UPDATE run_state SET started_at = 5 WHERE run_no = {done}"),
    "an end": ("done", "UPDATE run_state SET finished_at = 5 WHERE run_no = {done}"),
    "a fold": ("failed", "UPDATE run_state SET fold = CAST('{}' AS BLOB) WHERE run_no = {failed}"),
    "a fold that cannot be read": ("failed", "UPDATE run_state SET fold = CAST('{' AS BLOB) WHERE run_no = {failed}"),
    "a node's status": (
        "done",
        "UPDATE run_node_state SET status = 'skipped' WHERE run_no = {done} AND node = 'last'",
    ),
    "a node's attempt": ("done", "UPDATE run_node_state SET attempt = 2 WHERE run_no = {done} AND node = 'last'"),
    "a node's output": ("done", "UPDATE run_node_state SET output_seq = 2 WHERE run_no = {done} AND node = 'last'"),
    "a closed item": (
        "done",
        "UPDATE run_node_state SET failures = 2 WHERE run_no = {done} AND path = '.ward_add_2.1.'",
    ),
    "a map's counters": (
        "done",
        "UPDATE run_node_state SET scope = CAST('{\"count\":9}' AS BLOB) WHERE run_no = {done} AND node = 'ward_add_2' "
        "AND path = '.'",
    ),
    "a row that is missing": ("done", "DELETE FROM run_node_state WHERE run_no = {done} AND node = 'last'"),
    "a row too many": (
        "done",
        "INSERT INTO run_node_state SELECT run_no, 'extra', path, visit, status, attempt, failures, output_seq, "
        "memory_seq, not_before, captured, scope, is_open, started_at, finished_at FROM run_node_state "
        "WHERE run_no = {done} AND node = 'last'",
    ),
    "a wait that is missing": ("asleep", "DELETE FROM run_waits WHERE run_no = {asleep}"),
    "a wait that was closed": ("asleep", "UPDATE run_waits SET status = 'closed' WHERE run_no = {asleep}"),
    "a wait for something else": ("asleep", "UPDATE run_waits SET kind = 'input' WHERE run_no = {asleep}"),
    "a wait in a basket": ("asleep", "UPDATE run_waits SET basket = 'tax' WHERE run_no = {asleep}"),
    "a wait of somebody": ("asleep", "UPDATE run_waits SET assignee = 'ann' WHERE run_no = {asleep}"),
    "a wait that ended otherwise": (
        "cancelled",
        "UPDATE run_waits SET outcome = 'answered' WHERE run_no = {cancelled}",
    ),
    "a wait that somebody ended": ("cancelled", "UPDATE run_waits SET actor = 'ann' WHERE run_no = {cancelled}"),
    "a wait too many": (
        "asleep",
        "INSERT INTO run_waits (run_no, wait_id, kind, visit, branch, status, since, data) "
        "SELECT run_no, 'w_extra', kind, visit, branch, 'closed', since, data FROM run_waits WHERE run_no = {asleep}",
    ),
    "a timer that is due at another time": ("asleep", "UPDATE run_timers SET due_at = 9 WHERE run_no = {asleep}"),
    "a timer that is missing": ("asleep", "DELETE FROM run_timers WHERE run_no = {asleep}"),
    "a timer too many": ("asleep", "INSERT INTO run_timers VALUES ({asleep}, 'extra', 1, 1, 'cancelled', '', 0)"),
}


@pytest.mark.parametrize("damage", ROWS)
def test_a_row_that_is_not_the_fold_of_its_events_is_told_and_rebuilt(ward: Path, damage: str) -> None:
    run_id, statement = ROWS[damage]
    harm(ward, statement)
    report = examine(ward, deep=True)
    assert ("I5", run_id) in told(report.violations)
    assert {v.run_id for v in report.violations} == {run_id}
    repaired = repair(ward, deep=True)
    assert repaired.violations == []
    assert examine(ward, deep=True).violations == []


def test_a_consumed_message_without_an_event_and_the_reverse_are_told(ward: Path) -> None:
    harm(
        ward,
        "UPDATE run_inbox_messages SET status = 'dead' WHERE run_no = {cancelled}",
        "INSERT INTO run_inbox_messages (message_id, run_no, kind, payload, created_at, status) "
        "VALUES ('m1', {done}, 'cancel', CAST('{}' AS BLOB), 1, 'consumed')",
    )
    assert set(told(examine(ward, deep=True).violations)) == {("I24", "cancelled"), ("I24", "done")}
