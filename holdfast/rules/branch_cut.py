"""Branch cut: where a new branch leaves the old one.

Owns: what fork, jump and retry mean: which events are kept, which instances run again, what is refused.
Never: writes an event (branch_opening.py), previews the result (previews.py), reads the journal (it is passed in).
Invariants: what has completed and is not downstream of something dropped stays completed, whenever it completed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.model import events as ev
from holdfast.model.limits import INSTANCES_LISTED_MAX
from holdfast.model.lineage import is_collected, scopes_around
from holdfast.model.naming import (
    Instance,
    instance_text,
    is_undo,
    parse_instance,
    paths_inside,
    undoes_step,
    undone_by,
    undone_instance,
)
from holdfast.model.plans import Plan
from holdfast.model.problems import choices
from holdfast.model.state import RunState
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules.branch_opening import REOPEN, Asked, Edits, Opening
from holdfast.rules.cut_boundaries import end_of, whole
from holdfast.rules.cut_reopened import failed, reopen
from holdfast.rules.draft import Refusal

START = "start"


def choose(kind: str, asked: Asked, line: Sequence[ev.Entry], head: RunState, plan: Plan) -> Opening:
    """Where a request cuts a lineage, of which `head` is the fold, and what it drops. `plan` is the version that the
    branch will run under. Raises Refusal if the request does not apply to this run."""
    match kind:
        case "retry":
            opening = _retry(asked.target, line, head)
        case "jump":
            opening = _jump(asked.target, asked.edits, line, head, plan)
        case "reopen":
            opening = _reopen_ended(asked, line, head, plan)
        case _:
            opening = _fork(asked, line, head, plan)
    of_undos = any(is_undo(parse_instance(text)[0]) for text in (*opening.reopened, *opening.dropped))
    if plan is not head.plan and of_undos:
        raise Refusal("compensation", "compensations run under the version of their run: leave `version` out")
    if plan is not head.plan:
        opening.dropped = tuple(dict.fromkeys((*opening.dropped, *not_kept(head, plan))))
    return opening


# --- fork --------------------------------------------------------------------------------------------------------


def _fork(asked: Asked, line: Sequence[ev.Entry], head: RunState, plan: Plan) -> Opening:
    target, accepts_change = asked.target, asked.accepts_change
    if target is None:
        if accepts_change and head.fold.closing:
            raise Refusal(
                "compensated",
                f"the run is {head.fold.closing}, and a change of a compensation cannot be accepted: bring the old "
                "code back and resume the run, or let the new code ask ctx.patched('...') before it does otherwise",
            )
        _refuse_undone(head)
        opening = _cut("accept_change" if accepts_change else "fork", "end", line, end_of(line))
        opening.accepts_change = accepts_change
        reopen(opening, failed(line, head), line, head)
        return opening
    if target == START:
        return _cut("fork", START, line, 0)
    if isinstance(target, int):
        return _fork_at(target, line, head)
    found = find(target, head, plan)
    _refuse_undo(found, head)
    if not _has_begun(found, head):
        raise Refusal(
            "not_begun",
            f"{target} has not begun on this branch: fork at its end (name no place), or jump to {target}",
        )
    opening = _back("fork", found, line, head)
    if found[0] in head.fold.entered and _is_conditional(found[0], plan):
        opening.enter = found[0]  # its condition is still false, as it was when the run entered it
    return opening


def _is_conditional(node: str, plan: Plan) -> bool:
    return node in plan.root.nodes and plan.root.nodes[node].definition.when is not None


def _fork_at(seq: int, line: Sequence[ev.Entry], head: RunState) -> Opening:
    """Cut after one event. Bodies that were running then run again, however they ended later."""
    index = next((i for i, entry in enumerate(line) if entry.seq == seq), None)
    if index is None:
        raise Refusal("unknown_event", f"event {seq} is not on this branch; the journal of the run lists its events")
    index, base = whole(head.plan, head.run_no, head.run_id, line, min(index, end_of(line)))
    if base.fold.closing:
        raise Refusal(
            "ending", f"the run was already ending at event {seq}; fork before its failure or cancellation, or retry it"
        )
    opening = _cut("fork", str(seq), line, index)
    opening.reruns_all = True
    return opening


# --- jump --------------------------------------------------------------------------------------------------------


def _jump(target: str | int | None, edits: Edits, line: Sequence[ev.Entry], head: RunState, plan: Plan) -> Opening:
    if not isinstance(target, str):
        raise Refusal("no_target", "name the node to jump to")
    found = find(target, head, plan)
    _refuse_undo(found, head)
    node, path, _ = found
    if _has_begun(found, head):
        opening = _back("jump", found, line, head)
        skipped = any(ns.instance == found and ns.status is NodeStatus.SKIPPED for ns in head.changed)
        if skipped or _is_conditional(node, plan):  # it was named, so it runs, whatever its condition is
            opening.enter = node if len(scopes_around(plan, path)) == 1 else ""
        return opening
    if node not in plan.root.nodes or path != "." + plan.root.nodes[node].lane:
        raise Refusal("inside", f"{target} has not begun, and only nodes outside maps and loops can be jumped to")
    return _forward(node, edits, line, head, plan)


def _reopen_ended(asked: Asked, line: Sequence[ev.Entry], head: RunState, plan: Plan) -> Opening:
    """Let a run that has completed continue where one of its tickets leads."""
    if head.status is not RunStatus.COMPLETED:
        raise Refusal("not_completed", f"only a run that has completed is reopened, and this one is {head.status}")
    target = plan.definition.tickets.get(str(asked.target))
    if target is None:
        raise Refusal(
            "unknown_ticket",
            f"there is no ticket {asked.target!r}: {choices(str(asked.target), plan.definition.tickets, 'tickets')}",
        )
    in_journey = plan.definition.start
    opening = (_forward if in_journey else _jump)(target, asked.edits, line, head, plan)
    opening.reason, opening.target, opening.basket = REOPEN, str(asked.target), asked.basket
    return opening


def _forward(node: str, edits: Edits, line: Sequence[ev.Entry], head: RunState, plan: Plan) -> Opening:
    """Skip everything that the target waits for and that has not completed; everything else continues."""
    _refuse_undone(head)
    if plan.definition.start:  # every path ends where it is, and the run continues with the target alone
        ends = (head.nodes.get((unit, path)) for path, (unit, _) in head.fold.tokens.items())
        dropped = tuple(ns.text for ns in ends if ns is not None and ns.status is not NodeStatus.COMPLETED)
        return Opening(line[-1].branch, line[end_of(line)].seq, "jump", node, dropped, enter=node)
    there = {ns.node: ns for ns in head.nodes.values() if ns.scope.owner is None}
    given = {parse_instance(text)[0] for text in edits.outputs}
    passed = [
        name
        for name in plan.root.upstream(node)
        if name not in there or there[name].status not in (NodeStatus.COMPLETED, NodeStatus.SKIPPED)
    ]
    opening = _cut("jump", node, line, end_of(line))
    opening.enter = node
    opening.skipped = tuple(name for name in passed if name not in given)
    opening.dropped = tuple(there[name].text for name in passed if name in there)
    reopen(opening, failed(line, head), line, head)
    return opening


def _back(kind: str, target: Instance, line: Sequence[ev.Entry], head: RunState) -> Opening:
    """Drop the target and everything downstream of it, and what was undone; the rest stays completed, and what failed
    or was cancelled elsewhere runs again."""
    opening = _cut(kind, instance_text(*target), line, end_of(line))
    undone = [instance_text(*undone_instance(*ns.instance)) for ns in head.changed if is_undo(ns.node)]
    opening.dropped = (opening.target, *undone)
    reopen(opening, failed(line, head), line, head)
    return opening


# --- retry -------------------------------------------------------------------------------------------------------


def _retry(target: str | int | None, line: Sequence[ev.Entry], head: RunState) -> Opening:
    """Reopen what failed and what was cancelled because of it; drop what was skipped because of it. Of a run whose
    compensations have run: reopen those of them that failed, and nothing else."""
    same_name = [key for key in _failed_undos(head) if key[0] == target]
    if same_name:  # a bare name means those that failed, however many others there are
        return _retry_undos(same_name, line, head)
    phase = head.plan.phases.get(str(target)) if target not in head.plan.root.nodes else None
    wanted = None if target is None or phase is not None else find(str(target), head, head.plan)
    if wanted is not None and is_undo(wanted[0]):
        return _retry_undos([wanted], line, head)
    if any(is_undo(ns.node) for ns in head.changed):
        if wanted is not None or not _failed_undos(head):
            _refuse_undone(head)
        return _retry_undos(_failed_undos(head), line, head)
    found = failed(line, head)
    if phase is not None:
        found = [key for key in found if key[0] in phase or any(key[1].startswith(f".{name}.") for name in phase)]
        if not found:
            raise Refusal("not_failed", f"nothing of the phase {target} has failed")
    if wanted is not None:
        found = _failed_with(wanted, head, found)
    elif not found and head.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        hint = _to_resume(head) or f"; it has the status {head.status}"
        raise Refusal("nothing_failed", f"nothing of the run has failed{hint}")
    opening = _cut("retry", ", ".join(instance_text(*key) for key in found) or "its end", line, end_of(line))
    reopen(opening, found, line, head)
    return opening


def _failed_with(wanted: Instance, head: RunState, known: Sequence[Instance]) -> list[Instance]:
    """One instance that failed, the maps and loops that failed with it, and what failed inside it. Also an item of a
    map that collects its errors, when it is named."""
    everything = [ns.instance for ns in head.changed if ns.status is NodeStatus.FAILED and not is_undo(ns.node)]
    if wanted not in everything:
        names = ", ".join(instance_text(*key) for key in known) or "nothing"
        hint = _to_resume(head, wanted) or f"; failed: {names}"
        raise Refusal("not_failed", f"{instance_text(*wanted)} has not failed{hint}")
    node, path, _ = wanted
    around = [f for f in everything if path.startswith(paths_inside(f[0], f[1]))]
    inside = [f for f in everything if f[1].startswith(paths_inside(node, path))]
    inside = [f for f in inside if not is_collected(head.plan, f, wanted)]
    return [wanted, *around, *inside]


def _to_resume(head: RunState, wanted: Instance | None = None) -> str:
    """A hint that what failed into a basket is resumed, not retried."""
    for wait in head.waits.values():
        of_it = wanted is None or (wait.node, wait.path, wait.visit) == wanted
        if of_it and wait.kind == "basket" and wait.about["mode"] == "error":
            where = instance_text(wait.node, wait.path, wait.visit)
            return f" for good: {where} waits in the basket {wait.basket!r}; resume {wait.wait_id} to run it again"
    return ""


def _retry_undos(wanted: Sequence[Instance], line: Sequence[ev.Entry], head: RunState) -> Opening:
    """Compensations that failed try again, with the idempotency keys that they had; the run ends as it did."""
    if head.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise Refusal("ending", "the run has not ended: its compensations are under way. Retry them when it has ended")
    there = _failed_undos(head)
    for instance in wanted:
        if instance not in there:
            names = ", ".join(instance_text(*key) for key in there) or "none"
            raise Refusal(
                "not_failed", f"{instance_text(*instance)} has not failed; compensations that failed: {names}"
            )
    opening = _cut("retry", ", ".join(instance_text(*key) for key in wanted), line, end_of(line))
    visits = Counter((ns.node, ns.path) for ns in head.changed if is_undo(ns.node))
    opening.reopened = tuple(instance_text(*key) for key in wanted if visits[key[:2]] == 1)
    # of several visits the state holds the one that was undone last: any other begins from its start
    opening.dropped = tuple(instance_text(*key) for key in wanted if visits[key[:2]] > 1)
    return opening


def _failed_undos(head: RunState) -> list[Instance]:
    return [ns.instance for ns in head.changed if is_undo(ns.node) and ns.status is NodeStatus.FAILED]


def _refuse_undo(found: Instance, head: RunState) -> None:
    """Refuse a compensation as a place to continue from: it undoes a node when its run ends."""
    if is_undo(found[0]):
        of_step = undoes_step(found[1])
        node = instance_text(*undone_instance(*found)) if of_step else undone_by(found[0])
        way = f"retry {instance_text(*found)} to repeat it alone, or " if found in _failed_undos(head) else ""
        raise Refusal(
            "compensation",
            f"{instance_text(*found)} is the compensation of {'a step of ' if of_step else ''}{node}, and a run cannot "
            f"continue from there: {way}fork at {node} to do {node} and what follows again, under new idempotency keys",
        )


def _refuse_undone(head: RunState) -> None:
    if any(is_undo(ns.node) for ns in head.changed):
        there = ", ".join(instance_text(*key) for key in _failed_undos(head)[:INSTANCES_LISTED_MAX])
        retried = f"; compensations that failed can be retried: {there}" if there else ""
        raise Refusal(
            "compensated",
            "its compensations have run, so what completed before is undone: jump to a node that ran before, or fork "
            f"at one or at `start`{retried}",
        )


# --- another version ---------------------------------------------------------------------------------------------


def not_kept(head: RunState, plan: Plan) -> list[str]:
    """Top-level nodes that another version does not inherit: removed, with another handler, or downstream of such a
    node. A map or loop is inherited if its body is the same."""
    kept: set[str] = set()
    for name, node in plan.root.nodes.items():
        before = head.plan.root.nodes.get(name)
        new = node.definition
        same = before is not None and (
            (before.lane, before.definition.kind, before.definition.uses, before.definition.body)
            == (node.lane, new.kind, new.uses, new.body)
        )
        if same and all(n in kept for n in plan.root.upstream(name)):
            kept.add(name)
    return [
        instance_text(ns.node, ns.path)
        for ns in head.changed
        if ns.scope.owner is None and not is_undo(ns.node) and ns.node not in kept
    ]


# --- places ------------------------------------------------------------------------------------------------------


def _cut(kind: str, target: str, line: Sequence[ev.Entry], index: int) -> Opening:
    entry = line[index]
    return Opening(entry.branch, entry.seq, kind, target)


def _has_begun(key: Instance, head: RunState) -> bool:
    return any(ns.instance == key for ns in head.changed)


def find(text: str, head: RunState, plan: Plan) -> Instance:
    """The instance that a text names. A bare name is the top-level node of that name, else its only instance; if there
    are several, the refusal lists them. The name of a phase means its first node."""
    node, path, visit = parse_instance(text)
    if node not in plan.root.nodes and node in plan.phases:
        node = text = next(name for name in plan.root.nodes if name in plan.phases[node])
    if "@" in text or "#" in text:
        if not _has_begun((node, path, visit), head):
            raise Refusal("unknown_instance", f"{text} has not begun on this branch")
        return node, path, visit
    found = [ns.instance for ns in head.changed if ns.node == node]
    found = [key for key in found if len(scopes_around(plan, key[1])) == 1] or found
    if len(found) > 1:
        # a bare name would mean all of them again
        names = [
            f"{node}#{visit}" if path == "." else instance_text(*(node, path, visit))
            for _, path, visit in sorted(found)
        ]
        shown, more = names[:INSTANCES_LISTED_MAX], len(names) - INSTANCES_LISTED_MAX
        listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        raise Refusal("ambiguous", f"{node} has {len(found)} instances, name one of them: {listed}")
    if found:
        return found[0]
    if node in plan.root.nodes:
        return node, "." + plan.root.nodes[node].lane, 1
    if is_undo(node):
        ran = ", ".join(ns.text for ns in head.changed if is_undo(ns.node)) or "none"
        raise Refusal("unknown_node", f"the compensation {node} has not run; compensations that have: {ran}")
    there = ", ".join(list(plan.root.nodes)[:INSTANCES_LISTED_MAX])
    raise Refusal("unknown_node", f"there is no node {node} in workflow {plan.definition.name}; it has {there}")
