"""Scopes: maps and loops.

Owns: how many items there are, which may begin, when a map or loop has ended and how.
Never: holds a list; a map is counters and a few open items (model/evolve.py closes items and rounds when they settle).
Never: decides a node; scopes that were opened and nodes that failed are left in the draft for nodes.py.
"""

from __future__ import annotations

from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.expressions import Expr
from holdfast.model.references import choose_first, judge
from holdfast.model.state import NodeState, OpenScope, RoundEnd, retry_timer
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.rules.draft import Draft


def open_first(d: Draft, ns: NodeState) -> None:
    """A map or loop may begin."""
    if ns.plan.definition.kind == "loop":
        d.emit(ev.ScopeOpened(), ns)
        _begin(d, ns, 0)
        return
    try:
        count = _count(d, ns.scope, ns.plan.definition.over)
    except InvalidInput as e:
        d.failing.append((ns, ev.ErrorInfo(e.code, e.message)))
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
    size = judge(d.state, scope, ["count", over])
    if not isinstance(size, int):
        raise InvalidInput("a map needs a list to run over, and this is not one")
    return size


def advance(d: Draft, owner: NodeState) -> None:
    """Begin the next items or the next round, or end."""
    counters, definition = owner.counters, owner.plan.definition
    if owner.status is not NodeStatus.RUNNING or d.state.fold.closing or is_dead(owner.scope):
        return
    if any(ns is owner for ns, _ in d.failing):
        return
    assert counters is not None
    if definition.kind == "map":
        assert counters.count is not None
        done = len(counters.done)
        if done == counters.count:
            _complete(d, owner, {"#": counters.count, "@": counters.count} if owner.plan.captures else {})
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
        if f"{owner.path}{owner.node}.{rounds}." not in d.state.scopes:  # else it is under way (after a takeover)
            _begin(d, owner, rounds)
    elif definition.at_limit == "take":
        _complete(d, owner, end.captured)
    else:
        _fail(d, owner, "loop_limit", f"the loop ran {rounds} rounds and `until` was never true")


def advance_around(d: Draft, scope: OpenScope) -> None:
    """Something in a scope settled, and with it the scope; or it was the last of what was abandoned around it."""
    here = scope
    while here.owner is not None:
        owner = here.owner
        if owner.status not in NODE_SETTLED and not is_dead(owner.scope):
            if d.state.scopes.get(here.path) is not here:
                advance(d, owner)
            return
        withdraw(d, owner, "sibling failed")  # inside something that failed: it ends with the last body in it
        if owner.status not in NODE_SETTLED:
            return
        here = owner.scope


def _begin(d: Draft, owner: NodeState, key: int) -> None:
    """Open an item or a round."""
    d.opened.append(d.state.open_scope(owner, key))


def _complete(d: Draft, owner: NodeState, captured: dict[str, object]) -> None:
    d.emit(ev.ScopeClosed(), owner)
    d.emit(ev.NodeCompleted(owner.attempt, captured=captured, virtual=True), owner)
    d.todo.append(owner)


def _fail(d: Draft, owner: NodeState, code: str, why: str) -> None:
    d.emit(ev.ScopeClosed("failed"), owner)
    d.failing.append((owner, ev.ErrorInfo(code, why)))


def collector_of(scope: OpenScope) -> NodeState | None:
    """The nearest enclosing map that collects its items' errors."""
    here: OpenScope | None = scope
    while here is not None and here.owner is not None:
        definition = here.owner.plan.definition
        if definition.kind == "map" and definition.errors == "collect":
            return here.owner
        here = here.parent
    return None


def is_dead(scope: OpenScope) -> bool:
    """Whether the map or loop around it has ended without it."""
    here: OpenScope | None = scope
    while here is not None and here.owner is not None:
        if here.owner.status in NODE_SETTLED:
            return True
        here = here.parent
    return False


def abandon(d: Draft, owner: NodeState) -> None:
    """A map or loop fails with items under way: nothing new begins in them, and what runs is cancelled."""
    prefix = f"{owner.path}{owner.node}."
    for ns in list(d.state.nodes.values()):
        if ns.path.startswith(prefix):
            withdraw(d, ns, "sibling failed")
    d.emit(ev.ScopeClosed("failed"), owner)


def withdraw(d: Draft, ns: NodeState, reason: str) -> None:
    """Take an instance back: at once if it is not running, else by cancelling its body."""
    match ns.status:
        case NodeStatus.SCHEDULED:
            if retry_timer(ns) in d.state.timers:
                d.emit(ev.TimerCancelled(retry_timer(ns)))
            # an attempt that was neither reported as failed nor is the next one was cut off: it may have happened
            cut_off = bool(ns.waits) or ns.attempt - 1 > ns.failures
            close_waits(d, ns)
            d.emit(ev.NodeCancelled(reason, "unknown" if cut_off else None), ns)
        case NodeStatus.SUSPENDED:
            close_waits(d, ns)
            d.emit(ev.NodeCancelled(reason, "unknown"), ns)
            d.cancels.append(ns)
        case NodeStatus.RUNNING if ns.plan.body is None:
            if not ns.cancelling:
                ns.cancelling = True
                d.cancels.append(ns)
        case NodeStatus.RUNNING:
            if not any(s.owner is ns and _alive(d, s) for s in d.state.scopes.values()):
                d.emit(ev.NodeCancelled(reason), ns)


def _alive(d: Draft, scope: OpenScope) -> bool:
    return any(not ns.settled for ns in d.state.nodes.values() if ns.scope is scope or ns.path.startswith(scope.path))


def close_waits(d: Draft, ns: NodeState) -> None:
    """An instance ends: nobody waits for what it still waited for."""
    for wait_id in ns.waits:
        close_silently(d, wait_id, ns)


def close_silently(d: Draft, wait_id: str, ns: NodeState | None = None) -> None:
    """Close a wait that nobody will be told about."""
    if wait_id in d.state.timers:
        d.emit(ev.TimerCancelled(wait_id))
    d.emit(ev.WaitClosed(wait_id, "cancelled"), ns)
