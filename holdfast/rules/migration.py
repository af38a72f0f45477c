"""Migration: what a run keeps when it is moved to another version.

Owns: when a run can be moved, what is kept, and what would be lost. An instance is kept when its node exists in the
other version, has the same handler, and everything upstream of it is kept (branch_cut.not_kept).
Never: computes what conditions of the other version read of values (engine/branch_plans.py), writes an event.
Invariants: what has started and is not kept is dropped only if it was named. What is kept does not run again, and what
it waits for stays open under its id, unless its body was running: that is repeated with its idempotency keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model import events as ev
from holdfast.model.limits import INSTANCES_LISTED_MAX
from holdfast.model.naming import instance_text, parse_instance
from holdfast.model.plans import Plan, ScopePlan
from holdfast.model.state import NodeState, RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.rules.branch_cut import not_kept
from holdfast.rules.branch_opening import Asked, Opening
from holdfast.rules.cut_boundaries import end_of
from holdfast.rules.draft import Refusal

_STARTED = frozenset(
    {NodeStatus.RUNNING, NodeStatus.SUSPENDED, NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.CANCELLED}
)


def choose(asked: Asked, line: Sequence[ev.Entry], head: RunState, plan: Plan) -> Opening:
    """The branch on which a run continues under another version. Raises Refusal."""
    _refuse_impossible(head, plan)
    dropped = _dropped(head, plan)
    named = {parse_instance(text)[:2] for text in asked.drop}
    lost = [text for text in _started(head, dropped) if parse_instance(text)[:2] not in named]
    if lost:
        shown, more = lost[:INSTANCES_LISTED_MAX], len(lost) - INSTANCES_LISTED_MAX
        names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        raise Refusal(
            "lost",
            f"version {plan.version} does not keep {names}, which has started: its node is not there, has another "
            "handler, or depends on one that is not kept. Name it to drop it, or stay with the version",
        )
    entry = line[end_of(line)]
    return Opening(entry.branch, entry.seq, "migrated", "end", dropped=tuple(dropped))


def lost(head: RunState, plan: Plan) -> list[str]:
    """The instances that have started and that another version does not keep."""
    return _started(head, _dropped(head, plan))


def _refuse_impossible(head: RunState, plan: Plan) -> None:
    if head.status in RUN_TERMINAL:
        raise Refusal("finished", f"the run has ended ({head.status}): fork or retry it under the version instead")
    if head.fold.closing:
        raise Refusal("ending", f"the run is {head.fold.closing}, and ends under the version that it has")
    if head.plan.version == plan.version:
        raise Refusal("same_version", f"the run follows version {plan.version} already")
    if head.plan.definition.start or plan.definition.start:
        raise Refusal("journey", "a journey cannot be migrated: its paths are those of its version")
    ticket = head.fold.ticket
    if ticket is not None and ticket.target not in plan.root.nodes:
        raise Refusal("ticket", f"a ticket leads to {ticket.target}, which version {plan.version} does not have")
    for ns in head.nodes.values():
        if ns.status is NodeStatus.RUNNING and ns.plan.body is None and ns.plan.definition.on_crash != "rerun":
            raise Refusal(
                "running",
                f"{ns.text} is running, and may not be repeated (its on_crash is {ns.plan.definition.on_crash}): "
                "migrate the run when it has ended",
            )


def _dropped(head: RunState, plan: Plan) -> list[str]:
    """The top-level instances that are not kept, and every map or loop that is under way and of which the other version
    reads something else: what it has captured so far would not be enough."""
    found = dict.fromkeys(not_kept(head, plan))
    for ns in head.nodes.values():
        if ns.scope.owner is None and ns.plan.body is not None and not ns.settled:
            other = plan.root.nodes.get(ns.node)
            if other is None or other.body is None or _read(ns.plan.body) != _read(other.body):
                found[instance_text(ns.node, ns.path)] = None
    return list(found)


def _read(scope: ScopePlan) -> list[object]:
    """What rules capture inside a map or loop."""
    inner = [(name, node.captures, [] if node.body is None else _read(node.body)) for name, node in scope.nodes.items()]
    return [set(scope.param_captures), inner]


def _started(head: RunState, dropped: Sequence[str]) -> list[str]:
    wanted = {parse_instance(text)[:2] for text in dropped}
    return [_text(ns) for ns in head.changed if (ns.node, ns.path) in wanted and ns.status in _STARTED]


def _text(ns: NodeState) -> str:
    return instance_text(ns.node, ns.path)
