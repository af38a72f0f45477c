"""Previews: the effect of opening a branch, before it is opened.

Owns: which instances a request would reuse, run again and skip.
Never: chooses where it cuts (branch_cut.py), changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.expressions import holds, nodes_of
from holdfast.model.lineage import Branch, fold, inherited
from holdfast.model.naming import Instance, is_undo, parse_instance, paths_inside
from holdfast.model.plans import NodePlan, Plan, condition_left
from holdfast.model.references import evaluate_captured
from holdfast.model.state import NodeState, RunState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.rules.branch_opening import Edits, Opening, Preview


def preview(
    opening: Opening,
    branch: Branch,
    edits: Edits,
    line: Sequence[ev.Entry],
    head: RunState,
    begun: RunState,
    plan: Plan,
) -> Preview:
    """What opening this branch would reuse, run again and skip. `head` is the last state of the branch that is left,
    `begun` the first state of the new one."""
    base = fold(plan, head.run_no, head.run_id, inherited(line, branch, plan))
    at_cut = {ns.instance: ns for ns in base.changed}
    shown = Preview(branch.branch, opening.parent, opening.cutoff_seq, branch.key_epoch)
    shown.same_keys = branch.key_epoch == head.fold.key_epoch
    shown.given, shown.answered = list(edits.outputs), list(edits.answers)
    runs, skipped = _foreseen(begun)
    shown.skipped = [*opening.skipped, *skipped]
    given = [parse_instance(text) for text in edits.outputs]
    again = {*opening.reopened, *opening.dropped}
    for ns in head.changed:
        text = ns.text
        kept = at_cut.get(ns.instance)
        if any(_is_in(ns, instance) for instance in given):
            continue
        if kept is not None and any(base.waits[wait_id].kind == "basket" for wait_id in kept.waits):
            shown.pended.append(text)
        elif kept is not None and kept.status in NODE_SETTLED:
            if kept.status is NodeStatus.COMPLETED:
                shown.reused.append(text)
        elif is_undo(ns.node) and text not in again:
            continue
        elif ns.node in runs or (ns.node not in shown.skipped and ns.status is not NodeStatus.SKIPPED):
            shown.runs_again.append(text)
            if ns.plan.body is None and ns.started_at is not None:
                shown.repeats.append(text)
    return shown


def _foreseen(begun: RunState) -> tuple[set[str], list[str]]:
    """Top-level nodes that are pending and will run if nothing fails, and those that will be skipped, as far as their
    conditions read only what has settled."""
    root = begun.scopes["."]
    there = {ns.node: ns for ns in begun.nodes.values() if ns.scope is root}
    runs: set[str] = set()
    skipped: list[str] = []
    if begun.fold.closing:  # only compensations run
        return runs, skipped
    if begun.plan.definition.start:  # what follows is known when a route has answered
        return {unit for unit, _ in begun.fold.tokens.values()}, skipped
    for name, plan in root.plan.nodes.items():
        ns = there.get(name)
        if ns is not None and ns.settled:
            continue
        if ns is not None and ns.status is not NodeStatus.PENDING:
            runs.add(name)
            continue
        wanted = _wanted(begun, plan, there)
        absent = [n for n in plan.data_nodes if n in skipped or (n in there and there[n].status in _GONE)]
        if wanted is False or (absent and not plan.lazy):
            skipped.append(name)
        elif wanted and all(n in runs or n in there for n in plan.data_nodes if n in root.plan.nodes):
            runs.add(name)
    return runs, skipped


def _wanted(begun: RunState, plan: NodePlan, there: Mapping[str, NodeState]) -> bool | None:
    """Whether a node's condition is true; None: not known yet."""
    root = begun.scopes["."]
    when = condition_left(root.plan, plan, begun.fold.entered)
    if any(name not in there or not there[name].settled for name in nodes_of(when)):
        return None
    try:
        return when is None or holds(evaluate_captured(begun, root, when))
    except InvalidInput:
        return None


_GONE = frozenset({NodeStatus.SKIPPED, NodeStatus.FAILED, NodeStatus.CANCELLED})


def _is_in(ns: NodeState, instance: Instance) -> bool:
    """Whether this is the instance, or one inside it if it is a map or loop."""
    node, path, _ = instance
    return ns.instance == instance or ns.path.startswith(paths_inside(node, path))
