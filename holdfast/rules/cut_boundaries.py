"""Cut boundaries: between which events of a branch it may be cut.

Owns: which events of one commit belong together, so that a cut moves after the last of them.
Never: chooses what is dropped (branch_cut.py).

Never cut between events of one commit if the second half could not be derived again: the end of a round and the end of
its loop, a failure and that of the maps and loops around it, an end and its ticket, a wait and the timer that ends it,
a node and the basket or question that it ended in, a resume and what its node does next, a signal and its receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.model import events as ev
from holdfast.model.lineage import fold
from holdfast.model.naming import ROOT, paths_inside
from holdfast.model.plans import Plan
from holdfast.model.state import Key, NodeState, RunState
from holdfast.model.statuses import NodeStatus
from holdfast.rules.branch_opening import REQUESTS
from holdfast.rules.questions import DEADLINE

TERMINAL = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)

_NEXT = (ev.NodeScheduled, ev.NodeCompleted, ev.NodeFailed)
_ON_THE_WAY = (ev.NodeResumed, ev.TicketRaised)
"""Events between the end of a wait and what its instance does next."""


def whole(plan: Plan, run_no: int, run_id: str, line: Sequence[ev.Entry], index: int) -> tuple[int, RunState]:
    """The index of the event to cut after in order to keep the event at `index`, and the state there."""
    while True:
        base = fold(plan, run_no, run_id, line[: index + 1])
        last = max([index, *_unfinished(line, index, base)])
        if last == index:
            return index, base
        index = last  # the last event may itself be followed by events that belong to it


def _unfinished(line: Sequence[ev.Entry], index: int, base: RunState) -> Iterable[int]:
    yield from _ends_of_loops(line, index, base)
    yield from (i for i in range(index + 1, len(line)) if _sets_the_timer_of_a_wait(line[i].event, base))
    e = line[index].event
    if type(e) is ev.NodeFailed and not e.retryable and not e.closes:
        yield from _failed_around(line, index)
    if index + 1 < len(line) and type(line[index + 1].event) is ev.TicketRaised:
        yield index + 1
    yield from _into_baskets(line, index, base)
    yield from _out_of_baskets(line, index, base)
    yield from _received(line, index)


def _ends_of_loops(line: Sequence[ev.Entry], index: int, base: RunState) -> Iterable[int]:
    for ns in base.nodes.values():
        between = ns.counters is not None and len(ns.counters.done) == ns.counters.opened
        if ns.plan.definition.kind == "loop" and ns.status is NodeStatus.RUNNING and between:
            inside = paths_inside(ns.node, ns.path)
            about = (e for e in line[index + 1 :] if (e.path or "").startswith(inside) or (e.node, e.path) == ns.key)
            following = next(about, None)
            if following is not None and following.node == ns.node:  # its end, not another round
                yield from _next(line, index, ns, (ev.NodeCompleted, ev.NodeFailed))


def _sets_the_timer_of_a_wait(e: ev.Event, base: RunState) -> bool:
    return type(e) is ev.TimerSet and e.timer in base.waits and e.timer not in base.timers


def _failed_around(line: Sequence[ev.Entry], index: int) -> Iterable[int]:
    for i in range(index + 1, len(line)):
        match line[i].event:
            case ev.ScopeClosed(outcome="failed") | ev.NodeCancelled(reason="sibling failed"):
                pass
            case ev.TimerCancelled() | ev.WaitClosed(outcome="cancelled"):
                pass
            case ev.NodeFailed(retryable=False) if _is_around(line[i], line[index]):
                yield i
            case _:
                return


def _is_around(owner: ev.Entry, inside: ev.Entry) -> bool:
    return (inside.path or "").startswith(paths_inside(owner.node or "", owner.path or ROOT))


def _into_baskets(line: Sequence[ev.Entry], index: int, base: RunState) -> Iterable[int]:
    """A failure, the basket that it leads to, and the suspension of its node; a body that was cut off, and the question
    whether it was done."""
    for ns in base.nodes.values():
        if ns.status is NodeStatus.FAILED and ns.finished_at is None:
            i = next((i for i in range(index + 1, len(line)) if (line[i].node, line[i].path) == ns.key), None)
            if i is not None and type(line[i].event) is ev.WaitOpened:
                yield i
    for wait in base.waits.values():
        ns_waiting = base.nodes.get((wait.node, wait.path))
        if wait.is_of_ended_body and ns_waiting is not None and ns_waiting.status is not NodeStatus.SUSPENDED:
            yield from _next(line, index, ns_waiting, (ev.NodeSuspended,))


def _out_of_baskets(line: Sequence[ev.Entry], index: int, base: RunState) -> Iterable[int]:
    """A resume of a node whose body had ended, and its completion or its next attempt."""
    bodies = {ns.key: ns for ns in base.nodes.values() if ns.status in (NodeStatus.SUSPENDED, NodeStatus.RUNNING)}
    opened = {e.event.wait_id: e.event for e in line[: index + 1] if type(e.event) is ev.WaitOpened}
    for i in range(index, -1, -1):
        if not bodies:
            return
        entry = line[i]
        ns = bodies.get((entry.node or "", entry.path or ""))
        if ns is None or type(entry.event) in _ON_THE_WAY:
            continue
        del bodies[ns.key]  # the last thing that happened to it
        e = entry.event
        if type(e) is ev.WaitClosed and e.outcome not in ev.UNANSWERED and not opened[e.wait_id].call:
            yield from _next(line, index, ns, _NEXT)


def _received(line: Sequence[ev.Entry], index: int) -> Iterable[int]:
    """The end of a wait by a signal, and the receipt of that signal."""
    ended: Counter[Key] = Counter()
    for entry in line[: index + 1]:
        match entry.event:
            case ev.WaitClosed(outcome="received", actor=actor) if actor != DEADLINE:
                ended[entry.node or "", entry.path or ""] += 1
            case ev.MessageConsumed(kind="signal"):
                ended[entry.node or "", entry.path or ""] -= 1
    for key, missing in ended.items():
        if missing > 0:
            following = (i for i in range(index + 1, len(line)) if _is_receipt(line[i], key))
            yield from list(following)[:1]


def _is_receipt(entry: ev.Entry, key: Key) -> bool:
    e = entry.event
    return type(e) is ev.MessageConsumed and e.kind == "signal" and (entry.node, entry.path) == key


def _next(line: Sequence[ev.Entry], index: int, ns: NodeState, kinds: tuple[type[ev.Event], ...]) -> Iterable[int]:
    """The next event of these kinds that is about an instance, if there is one."""
    for i in range(index + 1, len(line)):
        if type(line[i].event) in kinds and (line[i].node, line[i].path) == ns.key:
            yield i
            return


# --- the end of a branch -----------------------------------------------------------------------------------------


def end_of(line: Sequence[ev.Entry]) -> int:
    """The index of the event to cut after: the last one before the end of the run or of the branch, or the last one."""
    last = len(line) - 1
    for i in range(last, -1, -1):
        if isinstance(line[i].event, TERMINAL):
            return i - 1
        if type(line[i].event) is ev.BranchOpened:
            break
    if type(line[last].event) in REQUESTS.values():
        last -= 1
        while _leaves(line[last].event):
            last -= 1
    return last


def _leaves(e: ev.Event) -> bool:
    """Whether an event closes what the next branch did not inherit."""
    return type(e) is ev.TimerCancelled or (type(e) is ev.WaitClosed and e.outcome == "superseded")
