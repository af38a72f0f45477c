"""Runs again: what failed or was stopped in a run, and so runs again on a new branch.

Owns: which instances failed for good, which were cancelled or skipped because of them.
Never: chooses where a branch is cut (branch_cut.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model import events as ev
from holdfast.model.expressions import nodes_of
from holdfast.model.lineage import Dropped, instance_named, owners_of
from holdfast.model.naming import Instance, depth, instance_text, is_undo, parse_instance
from holdfast.model.plans import Plan
from holdfast.model.state import RunState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.rules.body_reports import TICKET
from holdfast.rules.branch_opening import Opening


def failed(line: Sequence[ev.Entry], head: RunState) -> list[Instance]:
    """Instances that failed for good and because of which the run cannot complete."""
    status = {ns.instance: ns.status for ns in head.changed}
    found: dict[Instance, None] = {}
    for entry in line:
        e = entry.event
        if type(e) is not ev.NodeFailed or e.retryable or not e.counts or not entry.node or not entry.path:
            continue
        if status.get((entry.node, entry.path, entry.visit)) is NodeStatus.FAILED:
            found[entry.node, entry.path, entry.visit] = None
    return list(found)


def reopen(opening: Opening, found: Sequence[Instance], line: Sequence[ev.Entry], head: RunState) -> None:
    """Reopen what failed and what was cancelled because of it; drop what was skipped because of it."""
    skipped = [instance_text(*key) for key in _skipped_because_of(found, line, head.plan)]
    opening.dropped = tuple(dict.fromkeys((*opening.dropped, *skipped)))
    gone = Dropped(head.plan, [parse_instance(text) for text in opening.dropped], line)
    goes_on = [key for key in (*found, *_cancelled(found, line, head)) if not gone.has(key[0], key[1], line[-1].seq)]
    opening.reopened = tuple(instance_text(*key) for key in dict.fromkeys(goes_on))


def _cancelled(found: Sequence[Instance], line: Sequence[ev.Entry], head: RunState) -> list[Instance]:
    """Instances that were cancelled, except those inside a map or loop that stays as it ended, and those that a ticket
    cancelled. One that had pended pends again, also if it was counted as completed: it was not resumed."""
    pended = _pended_when_cancelled(line)
    reasons = {(e.node, e.path, e.visit): e.event.reason for e in line if type(e.event) is ev.NodeCancelled}
    status = {ns.instance: ns.status for ns in head.changed}
    alive = dict.fromkeys(found)
    for ns in sorted(head.changed, key=lambda ns: depth(ns.path)):  # maps and loops before what is in them
        key = ns.instance
        was_stopped = ns.status is NodeStatus.CANCELLED or (ns.status is NodeStatus.COMPLETED and key in pended)
        if not was_stopped or is_undo(ns.node) or reasons.get(key) == TICKET:
            continue
        if all(owner in alive or status.get(owner) not in NODE_SETTLED for owner in owners_of(head.plan, key)):
            alive[key] = None
    return list(alive)[len(found) :]


def _pended_when_cancelled(line: Sequence[ev.Entry]) -> set[Instance]:
    """Nodes whose bodies had completed and that were in a basket when everything was cancelled."""
    how: dict[Instance, str] = {}
    found: set[Instance] = set()
    for entry in line:
        e, key = entry.event, (entry.node or "", entry.path or "", entry.visit)
        if type(e) is ev.WaitClosed:
            how[key] = e.outcome
        elif type(e) is ev.NodeCompleted and e.pended_at is not None and how.get(key) == "cancelled":
            found.add(key)
    return found


def _skipped_because_of(found: Sequence[Instance], line: Sequence[ev.Entry], plan: Plan) -> list[Instance]:
    """Instances that were skipped because one of these did not complete, or because of such a one."""
    blamed = {(node, path) for node, path, _ in found}
    skipped: list[Instance] = []
    for entry in line:
        e = entry.event
        if type(e) is not ev.NodeSkipped or not entry.node or not entry.path:
            continue
        names = [e.cause] if e.reason == "absent" and e.cause else []
        if e.reason == "condition":
            names = nodes_of(plan.scope_of(entry.path).nodes[entry.node].definition.when)
        if any(instance_named(plan, entry.path, name) in blamed for name in names):
            blamed.add((entry.node, entry.path))
            skipped.append((entry.node, entry.path, entry.visit))
    return skipped
