"""Journeys: how execution paths move from unit to unit.

Owns: what follows a unit of a journey (`Definition.start`): the next unit, the branch that a route chose, the paths of
a parallel unit and their join, the end. A unit that is reached again on the same path is entered as its next visit.
Never: runs a unit or decides how it ended (nodes.py, body_reports.py); graphs, whose nodes wait for data (nodes.py).
Invariant: the state says for each path which unit it has reached (`Fold.tokens`), and of each parallel unit which paths
have not arrived (`Fold.open_paths`). What follows is derived from these alone, whenever the run continues.
On crash: a path whose unit has completed moves on when the run is taken over. A route that has answered is evaluated
again then, if the unit that it chose has not begun.
"""

from __future__ import annotations

from holdfast.model import events as ev
from holdfast.model.definition import END
from holdfast.model.journey_shape import names_in
from holdfast.model.naming import ROOT, paths_inside, segments
from holdfast.model.state import NodeState
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules import nodes, scopes
from holdfast.rules.draft import Draft

EVALUATED_AGAIN = "route evaluated again"
"""Why a unit was cancelled: the run was cut off between the answer of a route and the start of the unit it chose."""


def begin(d: Draft) -> None:
    """Enter the first unit."""
    if not d.state.fold.paused and not d.state.fold.tokens:
        _enter(d, d.state.plan.definition.start, ROOT)


def move_all(d: Draft) -> None:
    """Move every path that can move; called at the end of every turn."""
    fold = d.state.fold
    if fold.closing or fold.ticket is not None or fold.paused:
        return
    if not fold.tokens and d.state.scopes[ROOT].unsettled and d.state.status is not RunStatus.CREATED:
        _enter(d, d.state.plan.definition.start, ROOT)  # it was paused before it began
    for path in list(fold.tokens):
        _move(d, path)
    for prefix, names in list(fold.open_paths.items()):
        for name in list(names):
            if f"{prefix}{name}." not in fold.tokens:
                _enter_branch(d, prefix, name)


def _move(d: Draft, path: str) -> None:
    """Move a path: into the unit that it has reached, or behind it if the unit has completed."""
    reached = d.state.fold.tokens.get(path)
    if reached is None:  # it has ended meanwhile
        return
    unit, visit = reached
    ns = d.state.nodes.get((unit, path))
    if ns is None or ns.visit < visit:
        _enter(d, unit, path)
    elif ns.visit == visit and ns.status is NodeStatus.COMPLETED:
        _follow(d, ns)


def evaluate_routes_again(d: Draft) -> None:
    """Enter again each route that had answered when the run was cut off, where the unit that it chose has not begun."""
    for path, (unit, visit) in list(d.state.fold.tokens.items()):
        chosen = d.state.nodes.get((unit, path))
        if chosen is None or chosen.visit != visit or chosen.status is not NodeStatus.SCHEDULED:
            continue
        if chosen.started_at is not None:  # it has begun: it pended, and was resumed, or is tried again
            continue
        done = [ns for ns in d.state.nodes.values() if ns.path == path and ns.status is NodeStatus.COMPLETED]
        last = max(done, key=lambda ns: ns.output_seq, default=None)
        if last is not None and last.plan.definition.unit == "route":
            scopes.cancel_instance(d, chosen, EVALUATED_AGAIN)
            _enter(d, last.node, path)


def _follow(d: Draft, ns: NodeState) -> None:
    """Continue behind a unit that has completed."""
    unit = ns.plan.definition
    match unit.unit:
        case "route":
            _go(d, unit.branches[_names(ns)[0]], ns.path)
        case "parallel":
            prefix = paths_inside(ns.node, ns.path)
            waiting = d.state.fold.open_paths.get(prefix)
            if waiting is None:
                waiting = _names(ns)
                d.emit(ev.PathsOpened(tuple(waiting)), ns)
                for name in waiting:
                    _enter_branch(d, prefix, name)
            if not waiting:
                _go(d, d.state.plan.root.nodes[unit.join].definition.next, ns.path)
        case _:
            _go(d, unit.next, ns.path)


def _names(ns: NodeState) -> list[str]:
    """The branches that a route has chosen; its answer was checked when it completed."""
    names = names_in(ns.captured[""])
    assert names is not None
    return names


def _enter_branch(d: Draft, prefix: str, name: str) -> None:
    """Begin one path of a parallel unit."""
    route, _, _ = segments(f"{prefix}{name}.")[-1]
    unit = d.state.plan.root.nodes[route].definition
    _go(d, unit.branches[name] if unit.branches else unit.next, f"{prefix}{name}.")


def _go(d: Draft, unit: str, path: str) -> None:
    """Let a path continue with a unit: enter it, or end the path at the join or at the end."""
    if unit != END and d.state.plan.root.nodes[unit].definition.unit != "join":
        _enter(d, unit, path)
        return
    d.emit(ev.PathEnded(path))
    if path != ROOT:
        *around, _ = [ROOT, *(here for _, _, here in segments(path))]
        _move(d, around[-1])


def _enter(d: Draft, unit: str, path: str) -> None:
    """Enter a unit on a path, as its next visit if it was there before."""
    nodes.enter_node(d, d.state.next_visit(d.state.plan.root.nodes[unit], path))
