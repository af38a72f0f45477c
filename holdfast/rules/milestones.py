"""Milestones: times by which a run, or its stay in a basket, should have ended, and what happens when it has not.

Owns: when milestones are set and cleared, when each is due, what is requested when it is reached.
Never: carries out an action: a request is a message to the run itself, and follows the rules of such messages.
Rules: a path enters a basket when a unit pends there, and leaves it when that unit has ended otherwise, pends without
an error, or a person moves it; then what the entry had set is cleared, and what is set on the exit is set. A unit that
is resumed, runs again and fails into another basket has made no progress: the milestones of the first basket stay.
On crash: milestones are timers; those that are due fire when an engine drives the run again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from holdfast.model import events as ev
from holdfast.model.definition import Milestone
from holdfast.model.limits import SECOND
from holdfast.model.naming import derived
from holdfast.model.state import NodeState, WaitState
from holdfast.model.timers import MilestoneTimer, milestone_timer
from holdfast.rules.draft import Draft, ToRun

Held = tuple[str, str, int]


def begin(d: Draft, on: str) -> None:
    """Set the milestones of a run that starts, or that is reopened."""
    for milestone in d.state.plan.definition.milestones:
        if milestone.set_on == on:
            _set(d, milestone, "")


def settle(d: Draft) -> None:
    """Set and clear what follows from the baskets that paths are in at the end of a turn."""
    if d.state.fold.closing:
        return
    pended = {wait.path: wait for wait in d.state.waits.values() if wait.kind == "basket"}
    for path, held in list(d.state.fold.baskets.items()):
        if not _stays(d, held, path, pended.get(path)):
            _leave(d, path, held)
    for path, wait in pended.items():
        if path not in d.state.fold.baskets and wait.basket is not None:
            _enter(d, d.state.nodes[wait.node, path], wait.basket)


def _stays(d: Draft, held: Held, path: str, wait: WaitState | None) -> bool:
    """Whether the milestones of a basket that a path had entered stay as they are."""
    basket, node, visit = held
    ns = d.state.nodes.get((node, path))
    if ns is None or ns.visit != visit or ns.settled:
        return False
    if wait is None:  # it was resumed, and runs again
        return True
    return wait.basket == basket or (wait.about["mode"] == "error" and not _was_moved(d, wait))


def _was_moved(d: Draft, wait: WaitState) -> bool:
    """Whether a person has put a path into another basket in this turn."""
    return any(type(e.event) is ev.RunEdited and e.event.after.get("wait_id") == wait.wait_id for e in d.entries)


def _enter(d: Draft, ns: NodeState, basket: str) -> None:
    d.emit(ev.BasketEntered(basket), ns)
    for milestone in d.state.plan.definition.milestones:
        if milestone.set_on == "entry" and milestone.basket == basket:
            _set(d, milestone, ns.path)


def _leave(d: Draft, path: str, held: Held) -> None:
    basket, node, visit = held
    d.emit_at(ev.BasketLeft(basket), node, path, visit)
    of_basket = {m.name: m for m in d.state.plan.definition.milestones if m.basket == basket}
    for name in list(d.state.timers):
        timer = milestone_timer(name)
        milestone = of_basket.get(timer.milestone) if timer is not None and timer.path == path else None
        if milestone is not None and milestone.clears == "exit":
            d.cancel_timer(name)
    for milestone in of_basket.values():
        if milestone.set_on == "exit":
            _set(d, milestone, path)


# --- when it is due ----------------------------------------------------------------------------------------------


def _set(d: Draft, milestone: Milestone, path: str) -> None:
    """Set the timer of a milestone, unless it is set."""
    name = MilestoneTimer(milestone.name, path, 0).name
    if name in d.state.timers:
        return
    if milestone.at is not None:
        d.emit(ev.TimerSet(name, int(datetime.fromisoformat(milestone.at).timestamp() * SECOND)))
    elif milestone.from_next_day:
        d.emit(ev.TimerSet(name, _next_midnight(d.now, milestone.zone) + int((milestone.after or 0) * SECOND)))
    else:
        d.set_timer(name, int((milestone.after or 0) * SECOND))


def _next_midnight(now: int, zone: str) -> int:
    local = datetime.fromtimestamp(now / SECOND, UTC).astimezone(ZoneInfo(zone))
    midnight = datetime.combine(local.date() + timedelta(days=1), datetime.min.time(), ZoneInfo(zone))
    return int(midnight.timestamp() * SECOND)


def reach(d: Draft, timer: MilestoneTimer) -> None:
    """Record that a milestone was reached, request its action, and set the timer of what follows."""
    d.fire_timer(timer.name)
    found = [m for m in d.state.plan.definition.milestones if m.name == timer.milestone]
    if not found:  # of the version that the run had before
        return
    milestone = found[0]
    count = timer.times + 1
    d.emit(ev.MilestoneReached(milestone.name, milestone.action, milestone.basket, count, milestone.data))
    _request(d, milestone, timer.path, count)
    interval = _interval(milestone, count)
    if interval is not None:
        d.set_timer(MilestoneTimer(milestone.name, timer.path, count).name, int(interval * SECOND))


def _interval(milestone: Milestone, count: int) -> float | None:
    """Seconds until a milestone that was reached `count` times is reached again; None: never."""
    for further in milestone.further:
        if further.repeat < 0 or count <= further.repeat:
            return further.after + (further.offset if count == 1 else 0)
        count -= further.repeat
    return None


def _request(d: Draft, milestone: Milestone, path: str, count: int) -> None:
    """Send the run the message that the action stands for."""
    actor = f"milestone:{milestone.name}"
    wait = next((w for w in d.state.waits.values() if w.kind == "basket" and w.path == path), None) if path else None
    payload: dict[str, object]
    match milestone.action:
        case "notify":
            return
        case "move":
            if wait is None:  # the path is in no basket any more
                return
            kind, payload = "reassign", {"wait_id": wait.wait_id, "basket": milestone.to, "actor": actor}
        case "signal":
            kind, payload = "signal", {"name": milestone.to, "payload": milestone.data}
        case "resume":
            kind, payload = "resume", {"actor": actor, "wait": wait.wait_id if wait is not None else None}
        case "cancel":
            kind, payload = "cancel", {"reason": f"the milestone {milestone.name} was reached", "actor": actor}
        case "retry":
            kind, payload = "retry", {"actor": actor}
    message_id = derived("m_", d.state.run_id, "milestone", d.state.branch, milestone.name, path, d.state.seq, count)
    d.extra.messages.append(ToRun(d.state.run_id, message_id, kind, payload))
