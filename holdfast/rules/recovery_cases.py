"""Recovery cases: states in which a run's rows and its journal do not agree, and where each is cut.

Owns: distinguishing the cases A1 to E2, and for each the last stable event, from which the run continues.
Never: repairs anything (engine/recovering.py opens the branch), reads the store.
Rule: the journal is right. A run that was only interrupted is none of these cases: it is resumed without a new branch.

| case | in the rows | in the journal | it continues |
|---|---|---|---|
| A1 | suspended | nothing is waited for | behind the last completion or answer |
| A2 | running | the run waits | before the node that waits had asked; it is started again and asks again |
| A3 | running | every node has settled, the run has no end | behind the last completion; only its end is written |
| A4 | running | a node failed and nothing followed | with another attempt if its policy has one, else the run fails |
| A5 | completed | the run has no end | as A3 |
| D2 | on the old branch | a jump was asked for, no branch was opened | before the request; it can be asked again |
| E2 | a version that is not in the store | | under the version that the run began with; a completed run if forced |
| R1 | what was true at an earlier event | the run is further on, or has ended | where its journal ends, no branch |

R1 is found elsewhere (engine/undriven_commits.py): no other case applies, and the rows differ from the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model.naming import instance_text
from holdfast.model.state import NodeState, RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.timers import only_watches
from holdfast.rules import cut_boundaries
from holdfast.rules.branch_opening import REQUESTS, Opening
from holdfast.rules.cut_boundaries import TERMINAL
from holdfast.rules.questions import DEADLINE


class Finding(msgspec.Struct):
    """The case of a run, and how it continues."""

    case: str
    what: str
    opening: Opening
    failed: tuple[str, str, ev.ErrorInfo] | None = None
    """A4: the node, its path and the error that the run fails with."""
    ended: Any = None
    """D2, E2: the terminal event of a run that had ended; it ends so again."""


class NothingStable(Exception):
    """The journal has no stable event from which the run could continue."""


def diagnose(status: str, line: Sequence[ev.Entry], truth: RunState, *, reverify: bool = False) -> Finding | None:
    """The case that a run is, or None when its rows' status and its journal agree. `truth` is the fold of `line`."""
    request = line[-1].event
    if type(request) in REQUESTS.values():
        return _unopened(request, line)
    if status in RUN_TERMINAL:
        return None if truth.status in RUN_TERMINAL else _unended("A5", status, line, truth, reverify)
    if truth.status in RUN_TERMINAL:
        return None  # the rows are behind, and nothing is left to do: they are rebuilt
    torn = _torn_failure(line, truth)
    if torn is not None:
        return _failed(torn, line)
    if status == RunStatus.SUSPENDED:
        if truth.waits or not all(map(only_watches, truth.timers)):
            return None  # B1, B2: it waits
        if _is_done(truth):
            return _unended("A1", status, line, truth, reverify=False)
        return _stale("A1", "it is shown as waiting, and nothing is waited for", line, truth)
    if _is_done(truth):
        return None if _was_recovered(line) else _unended("A3", status, line, truth, reverify)
    if status == RunStatus.RUNNING and truth.status is RunStatus.SUSPENDED and truth.waits:
        return _asking(line, truth)
    return None  # C1, C2: it was interrupted, which is what resuming is for


def _was_recovered(line: Sequence[ev.Entry]) -> bool:
    """Whether the last completion is before a branch that recovery opened: then the run only has to be resumed."""
    for entry in reversed(line):
        if type(entry.event) is ev.NodeCompleted:
            return False
        if type(entry.event) is ev.RunRecovered:
            return True
    return False


def _is_done(truth: RunState) -> bool:
    if truth.fold.closing or truth.scopes["."].unsettled:
        return False
    return all(ns.settled for ns in truth.nodes.values())


def _stale(case: str, what: str, line: Sequence[ev.Entry], truth: RunState) -> Finding:
    """Cut after the later of the last completion and the last answer: no person is asked twice."""
    for i in range(len(line) - 1, -1, -1):
        e = line[i].event
        if type(e) is ev.NodeCompleted:
            return Finding(case, what, _cut(line[i]))
        if type(e) is ev.WaitClosed and e.outcome not in ev.UNANSWERED:
            index, _ = cut_boundaries.whole(truth.plan, truth.run_no, truth.run_id, line, i)
            if index == i and _needs_more(line, e):
                index -= 1
            return Finding(case, what, _cut(line[index]))
    raise NothingStable


def _needs_more(line: Sequence[ev.Entry], e: ev.WaitClosed) -> bool:
    """Whether the end of a wait is incomplete alone: a node whose body had ended was resumed, and did not continue (it
    stays in its basket); a signal was received, and is not consumed (it will be delivered again)."""
    if e.outcome == "received":
        return e.actor != DEADLINE
    return any(type(o.event) is ev.WaitOpened and o.event.wait_id == e.wait_id and not o.event.call for o in line)


def _asking(line: Sequence[ev.Entry], truth: RunState) -> Finding:
    """Cut before the question of the node that waits; it is started again, and remembered calls are not repeated. What
    other nodes completed meanwhile stays. A run that is paused, or whose bodies have all ended, stays as it is: no body
    would ask again."""
    asking = [wait for wait in truth.waits.values() if not wait.is_of_ended_body]
    if truth.fold.paused or not asking:
        return Finding("A2", "it is shown as running, and waits until it is resumed", _cut(line[-1]))
    wait = max(asking, key=lambda w: w.since)
    of_node = [i for i, e in enumerate(line) if (e.node, e.path) == (wait.node, wait.path)]
    asked = next(i for i in of_node if getattr(line[i].event, "wait_id", None) in truth.waits)
    index = max(i for i in of_node if i < asked)
    what = f"it is shown as running, and {instance_text(wait.node, wait.path)} waits for an answer"
    others = [e for e in line[index + 1 :] if type(e.event) is ev.NodeCompleted]
    if not others:
        return Finding("A2", what, _cut(line[index]))
    opening = _cut(line[-1])
    opening.dropped = (instance_text(wait.node, wait.path, wait.visit),)
    return Finding("A2", what, opening)


def _unended(case: str, status: str, line: Sequence[ev.Entry], truth: RunState, reverify: bool) -> Finding:
    """Behind the last completion: no effect happens again, only what is missing is written."""
    completed = [entry for entry in line if type(entry.event) is ev.NodeCompleted and entry.node is not None]
    if not completed:
        raise NothingStable
    last = completed[-1]
    opening = _cut(last)
    what = f"it is shown as {status}, and its journal has no end"
    if _is_done(truth):
        what = f"it is shown as {status}, every node has settled, and its journal has no end"
    if reverify:
        assert last.node is not None
        opening.dropped = (instance_text(last.node, last.path or ".", last.visit),)
    return Finding(case, what, opening)


def _torn_failure(line: Sequence[ev.Entry], truth: RunState) -> NodeState | None:
    """A node that failed, and what its failure leads to was not written."""
    last = line[-1]
    if type(last.event) is not ev.NodeFailed or last.node is None or last.path is None:
        return None
    ns = truth.nodes.get((last.node, last.path))
    if last.event.retryable:
        return ns
    # while others run, or are being stopped, nothing more has to follow
    at_work = any(not other.settled and other.plan.body is None for other in truth.nodes.values())
    return None if at_work else ns


def _failed(ns: NodeState, line: Sequence[ev.Entry]) -> Finding:
    failure = line[-1].event
    text = instance_text(ns.node, ns.path)
    if failure.retryable:
        return Finding("A4", f"{text} failed and was to be tried again, and nothing followed", _cut(line[-1]))
    if len(line) < 2:
        raise NothingStable
    found = Finding("A4", f"{text} failed for good, and the run did not follow", _cut(line[-2]))
    found.failed = (ns.node, ns.path, failure.error)
    return found


def _unopened(request: ev.ForkRequested | ev.JumpRequested | ev.RetryRequested, line: Sequence[ev.Entry]) -> Finding:
    asked = type(request).__name__.removesuffix("Requested").lower()
    if len(line) < 2:
        raise NothingStable
    what = f"a {asked} to {request.target} was asked for, and branch {request.new_branch} was never opened"
    return Finding("D2", what, _cut(line[-2]), ended=_end_of(line[-2]))


def other_version(line: Sequence[ev.Entry], version: int) -> Finding:
    """E2: the run continues under the version that it began with."""
    what = f"its version {version} is not in the store; it continues under the one that it began with"
    return Finding("E2", what, _cut(line[-1]), ended=_end_of(line[-1]))


def _end_of(entry: ev.Entry) -> Any:
    """The event, if it ended the run: then nothing is left to do, and nothing is decided again."""
    return entry.event if isinstance(entry.event, TERMINAL) else None


def _cut(entry: ev.Entry) -> Opening:
    return Opening(entry.branch, entry.seq, "recovery", str(entry.seq))


def looks_odd(row_status: str, state: RunState, last_type: str) -> bool:
    """Whether a run's rows, and the type of its last event, are a reason to read its whole journal."""
    if last_type in {t.__name__ for t in REQUESTS.values()}:
        return True
    if row_status in RUN_TERMINAL:
        return last_type not in ("RunCompleted", "RunFailed", "RunCancelled")
    if last_type == "NodeFailed":
        return True
    if row_status == RunStatus.SUSPENDED:
        return not state.waits and all(map(only_watches, state.timers))
    return row_status == RunStatus.RUNNING and _all_wait(state)


def _all_wait(state: RunState) -> bool:
    bodies = [ns for ns in state.nodes.values() if not ns.settled and ns.plan.body is None]
    return bool(bodies) and all(ns.status is NodeStatus.SUSPENDED and ns.waits for ns in bodies)
