"""Scopes: maps and loops, and how what is inside one is cancelled.

Owns: how many items there are, which may begin, when a map or loop has ended and how; cancelling instances and closing
waits that nothing waits for.
Never: holds a list; a map is counters and a few open items (model/evolve.py closes items and rounds when they settle).
Never: decides a node; scopes that were opened and nodes that failed are left in the draft for nodes.py.
"""

from __future__ import annotations

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.expressions import Expr
from holdfast.model.naming import derived, instance_text, paths_inside, scope_path
from holdfast.model.references import choose_first, evaluate_captured
from holdfast.model.state import NodeState, OpenScope, RoundEnd, WaitState, timers_of
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.rules.draft import Draft, Refusal, ToRun


def open_first(d: Draft, ns: NodeState) -> None:
    """Begin a map or loop."""
    if ns.plan.definition.kind == "loop":
        d.emit(ev.ScopeOpened(), ns)
        _begin(d, ns, 0)
        return
    try:
        count = _count(d, ns.scope, ns.plan.definition.over)
    except InvalidInput as e:
        d.extra.failing.append((ns, ev.ErrorInfo(e.code, e.message)))
        return
    d.emit(ev.ScopeOpened(count), ns)
    advance(d, ns)


def _count(d: Draft, scope: OpenScope, over: Expr) -> int:
    if isinstance(over, list):
        match over[0]:
            case "list":
                return len(over) - 1
            case "const" if isinstance(over[1], list):
                return len(over[1])
            case "first":
                chosen = choose_first(d.state, scope, over)
                return 0 if chosen is None else _count(d, scope, chosen[0])
    size = evaluate_captured(d.state, scope, ["count", over])
    if not isinstance(size, int):
        raise InvalidInput("a map needs a list to run over, and this is not one")
    return size


def advance(d: Draft, owner: NodeState) -> None:
    """Begin the next items or the next round, or end. (While the run is paused nothing inside them is decided.)"""
    counters, definition = owner.counters, owner.plan.definition
    if owner.status is not NodeStatus.RUNNING or d.state.fold.closing or scope_has_ended(owner.scope):
        return
    if d.extras is not None and any(ns is owner for ns, _ in d.extras.failing):
        return
    assert counters is not None
    if definition.kind == "map":
        assert counters.count is not None
        done = len(counters.done)
        if awaits_output(owner):
            if not any(ns is owner for ns in d.extra.outputs_wanted):
                d.extra.outputs_wanted.append(owner)
            return
        if done == counters.count:
            _complete(d, owner, _sizes(owner))
            return
        owner.next_key = max(owner.next_key, counters.opened)
        while owner.next_key < counters.count and owner.next_key - done < definition.limit:
            owner.next_key += 1
            _begin(d, owner, owner.next_key - 1)
        return
    rounds, end = len(counters.done), owner.round_end or RoundEnd()
    if end.problem is not None:
        _fail(d, owner, "invalid_input", f"its `until`: {end.problem}")
    elif end.stop:
        _complete(d, owner, end.captured)
    elif rounds < definition.max_visits:
        if scope_path(owner.node, owner.path, rounds) not in d.state.scopes:  # else it is open (after a takeover)
            _begin(d, owner, rounds)
    elif definition.at_limit == "take":
        _complete(d, owner, end.captured)
    else:
        _fail(d, owner, "loop_limit", f"the loop ran {rounds} rounds and `until` was never true")


def advance_around(d: Draft, scope: OpenScope) -> None:
    """Advance the map or loop around a scope in which an instance settled: the scope has ended with it, or it was the
    last running instance inside a map or loop that failed."""
    here = scope
    while here.owner is not None:
        owner = here.owner
        if owner.status not in NODE_SETTLED and not scope_has_ended(owner.scope):
            if d.state.scopes.get(here.path) is not here:
                advance(d, owner)
            return
        cancel_instance(d, owner, "sibling failed")  # inside a scope that failed: it ends with the last body in it
        if owner.status not in NODE_SETTLED:
            return
        here = owner.scope


def _begin(d: Draft, owner: NodeState, key: int) -> None:
    """Open an item or a round."""
    d.extra.opened.append(d.state.open_scope(owner, key))


def awaits_output(ns: NodeState) -> bool:
    """Whether an instance is a map that completes once the engine has provided its output."""
    counters = ns.counters
    if not ns.plan.stores_output or ns.status is not NodeStatus.RUNNING or counters is None:
        return False
    return len(counters.done) == counters.count


def provide_output(d: Draft, c: cmd.ProvideOutput) -> None:
    """Complete a map with its output."""
    ns = d.state.nodes.get((c.node, c.path))
    is_wanted = ns is not None and ns.visit == c.visit and awaits_output(ns) and not scope_has_ended(ns.scope)
    if ns is None or not is_wanted or d.state.fold.closing:
        raise Refusal("stale", f"{instance_text(c.node, c.path, c.visit)} no longer waits for its output")
    _complete(d, ns, _sizes(ns), c.output)


def _sizes(owner: NodeState) -> dict[str, object]:
    """What rules read of a map's output."""
    assert owner.counters is not None
    return {"#": owner.counters.count, "@": owner.counters.count} if owner.plan.captures else {}


def _complete(d: Draft, owner: NodeState, captured: dict[str, object], output: bytes | None = None) -> None:
    d.emit(ev.ScopeClosed(), owner)
    if output is None:
        d.emit(ev.NodeCompleted(owner.attempt, captured=captured, virtual=True), owner)
    else:
        d.emit(ev.NodeCompleted(owner.attempt, msgspec.Raw(output), captured), owner)
    d.todo.append(owner)


def _fail(d: Draft, owner: NodeState, code: str, why: str) -> None:
    d.emit(ev.ScopeClosed("failed"), owner)
    d.extra.failing.append((owner, ev.ErrorInfo(code, why)))


def collector_of(scope: OpenScope) -> NodeState | None:
    """The nearest enclosing map that collects its items' errors."""
    here: OpenScope | None = scope
    while here is not None and here.owner is not None:
        definition = here.owner.plan.definition
        if definition.kind == "map" and definition.errors == "collect":
            return here.owner
        here = here.parent
    return None


def scope_has_ended(scope: OpenScope) -> bool:
    """Whether a map or loop around a scope has ended, although the scope is still open."""
    here: OpenScope | None = scope
    while here is not None and here.owner is not None:
        if here.owner.status in NODE_SETTLED:
            return True
        here = here.parent
    return False


def fail_scope(d: Draft, owner: NodeState) -> None:
    """Fail a map or loop with open items: nothing new begins in them, and what runs in them is cancelled."""
    prefix = paths_inside(owner.node, owner.path)
    for ns in list(d.state.nodes.values()):
        if ns.path.startswith(prefix):
            cancel_instance(d, ns, "sibling failed")
    d.emit(ev.ScopeClosed("failed"), owner)


# --- cancelling --------------------------------------------------------------------------------------------------


def cancel_instance(
    d: Draft, ns: NodeState, reason: str, *, waits_are: str = "cancelled", cause: str | None = None
) -> None:
    """Cancel an instance: at once if it is not running, else by cancelling its body."""
    match ns.status:
        case NodeStatus.SCHEDULED:
            d.cancel_timer(ns.start_timer)
            unknown = "unknown" if was_cut_off(ns) else None
            close_waits(d, ns, waits_are)
            d.emit(ev.NodeCancelled(reason, unknown, cause), ns)
        case NodeStatus.SUSPENDED:
            has_completed = waits_are == "cancelled" and any(has_pended(d.state.waits[w]) for w in ns.waits)
            close_waits(d, ns, waits_are)
            if has_completed:  # its body had completed when it pended: there is something to compensate
                d.emit(ev.NodeCompleted(ns.attempt, captured=ns.captured, pended_at=ns.output_seq), ns)
                return
            d.emit(ev.NodeCancelled(reason, "unknown", cause), ns)
            d.extra.cancels.append(ns)
        case NodeStatus.RUNNING if ns.plan.body is None:
            if not ns.cancelling:
                ns.cancelling = True
                d.extra.cancels.append(ns)
        case NodeStatus.RUNNING:
            if not any(s.owner is ns and _is_busy(d, s) for s in d.state.scopes.values()):
                d.emit(ev.NodeCancelled(reason, cause=cause), ns)


def was_cut_off(ns: NodeState) -> bool:
    """Whether an earlier attempt of a scheduled instance was cut off: it neither failed nor ended, and may have had its
    effect."""
    return bool(ns.waits) or ns.attempt - 1 > ns.failures


def has_pended(wait: WaitState) -> bool:
    """Whether a wait is the basket of a node whose body has completed."""
    return wait.kind == "basket" and wait.about["mode"] == "next"


def _is_busy(d: Draft, scope: OpenScope) -> bool:
    return any(not ns.settled for ns in d.state.nodes.values() if ns.scope is scope or ns.path.startswith(scope.path))


def close_waits(d: Draft, ns: NodeState, outcome: str = "cancelled") -> None:
    """Close the waits of an instance that ends."""
    for wait_id in ns.waits:
        close_unanswered(d, wait_id, ns, outcome)


def close_unanswered(
    d: Draft,
    wait_id: str,
    ns: NodeState | None = None,
    outcome: str = "cancelled",
    *,
    spare_child: bool = False,
    actor: str = "",
) -> None:
    """Close a wait without an answer for its body. `superseded`: the run continues without the call that waited, so a
    child that it waited for is cancelled; unless the child will be asked for again, under the same id."""
    state = d.state
    for timer in timers_of(state, state.waits[wait_id]):
        d.emit(ev.TimerCancelled(timer))
    child = state.waits[wait_id].child
    if outcome == "superseded" and child is not None and child in state.fold.children and not spare_child:
        reason = f"its parent {state.run_id} continues from elsewhere"
        message_id = derived("m_", state.run_id, "superseded", wait_id)
        d.extra.messages.append(ToRun(child, message_id, "cancel", {"reason": reason, "actor": "parent"}))
    actor = state.fold.cancel_actor if outcome == "cancelled" else actor
    d.emit(ev.WaitClosed(wait_id, outcome, actor=actor), ns)
