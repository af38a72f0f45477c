"""Undoing: compensations of a run that failed or was cancelled.

Owns: whether there is anything to undo, which compensation runs next, and which effects the end of the run reports
as not undone.
Rules: one compensation at a time, in reverse order of completion; what may have happened comes before what did, if its
compensation accepts None. A compensation that fails does not stop the others. Where an operator has given up those that
cannot run (`RunCancelRequested.gives_up_undo`), one whose code no engine has loaded fails when its turn comes.
On crash: what is left to undo is derived from rows and journal, and provided again by the next owner.
"""

from __future__ import annotations

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.commands import Undoable
from holdfast.model.definition import NodeDef
from holdfast.model.naming import Instance, is_undo, undo_of
from holdfast.model.state import NodeState, RunState, UndoWork
from holdfast.model.statuses import NodeStatus
from holdfast.rules import body_reports
from holdfast.rules.draft import Draft, Refusal


def is_wanted(state: RunState) -> bool:
    """Whether the run undoes what it did when it fails or is cancelled."""
    if state.fold.settings.on_failure != "compensate":
        return False
    return state.fold.undoes_steps or _has_compensations(state)


def _has_compensations(state: RunState) -> bool:
    stack = [state.plan.root]
    while stack:
        scope = stack.pop()
        for plan in scope.nodes.values():
            if plan.undo is not None:
                return True
            if plan.body is not None:
                stack.append(plan.body)
    return False


def run_next(d: Draft) -> bool:
    """Schedule the next compensation, if it is not scheduled already. False: everything is undone."""
    state = d.state
    _give_up_lacking(d)
    work = state.undo
    if work is None or (not work.left and work.more):
        state.undo = None
        d.undo_wanted = True
        return True
    if not work.left:
        return False
    first = work.left[0]
    if work.current is not None and work.current.instance == first.instance:
        return True
    work.current = first
    ns = _instance(state, first)
    if ns.status is NodeStatus.PENDING:
        d.emit(ev.NodeScheduled(1, undo=first.step), ns)
        d.scheduled.append(ns)
    elif ns.status is NodeStatus.SCHEDULED and ns.start_timer not in state.timers:
        d.scheduled.append(ns)  # another owner had scheduled it, or it failed and a person lets it try again
    return True


def provide(d: Draft, c: cmd.ProvideUndo) -> None:
    """Accept what the engine has read: what there is to undo. Instances of unknown outcome come first, if they can be
    undone."""
    state = d.state
    if state.undo is not None:  # it was asked for twice: by a request, and by the takeover behind it
        raise Refusal("stale", "what there is to undo is known already")
    left = [*_unknown(state, c), *c.steps, *c.instances]
    left = [undoable for undoable in left if not _is_settled(state, undoable)]
    state.undo = UndoWork(left, more=c.more, in_doubt=c.in_doubt, lacking=c.lacking)


def handlers_of(state: RunState, c: cmd.ProvideUndo) -> frozenset[str]:
    """The handlers of all compensations that these are undone by."""
    return frozenset(handler_of(state, undoable) for undoable in [*_unknown(state, c), *c.steps, *c.instances])


def _unknown(state: RunState, c: cmd.ProvideUndo) -> list[Undoable]:
    """Instances of unknown outcome that can be undone and are not."""
    return [
        Undoable(*instance, 0, c.unknown_args.get(instance, {}))
        for instance in state.fold.outcome_unknown
        if (definition := _undone(state, instance)).compensate
        and definition.compensate_accepts_none
        and instance not in c.undone
    ]


def handler_of(state: RunState, undoable: Undoable) -> str:
    """The handler of the compensation that undoes this."""
    return undoable.step.uses if undoable.step is not None else _undone(state, undoable.instance).compensate or ""


def _is_settled(state: RunState, undoable: Undoable) -> bool:
    """Whether its compensation has ended since what there is to undo was read: a request has given it up."""
    ns = state.nodes.get((undo_of(undoable.node), undoable.path))
    return ns is not None and ns.visit == undoable.visit and ns.settled


def _instance(state: RunState, undoable: Undoable) -> NodeState:
    """The instance of the compensation that undoes this."""
    return state.instance(undo_of(undoable.node), undoable.path, undoable.visit)


# --- compensations that cannot run ----------------------------------------------------------------------------------


def give_up_open(d: Draft, why: str) -> None:
    """Record that the compensation which has begun is not done: the run was on hold because of it."""
    for ns in [ns for ns in d.state.nodes.values() if is_undo(ns.node) and not ns.settled]:
        _give_up(d, ns, why)


def _give_up_lacking(d: Draft) -> None:
    """Record that the next compensations are not done, if no engine has loaded their code and the run gives them up."""
    state = d.state
    while state.fold.gives_up_undo and (work := state.undo) is not None and work.left:
        first = work.left[0]
        uses = handler_of(state, first)
        if uses not in work.lacking:
            return
        ns = _instance(state, first)
        if ns.status is NodeStatus.PENDING:  # so that it can be retried, when there is code for it again
            d.emit(ev.NodeScheduled(1, undo=first.step), ns)
        _give_up(d, ns, f"no engine has loaded its compensation {uses}")


def _give_up(d: Draft, ns: NodeState, why: str) -> None:
    d.cancel_timer(ns.start_timer)
    body_reports.fail_for_good(d, ns, ev.ErrorInfo("not_undone", f"not undone, given up by a cancel: {why}"))


# --- the end --------------------------------------------------------------------------------------------------------


def not_undone(state: RunState) -> list[ev.ErrorInfo]:
    """Compensations that failed, and effects of unknown outcome that nothing could undo."""
    unknown = [i for i in state.fold.outcome_unknown if _cannot_be_undone(_undone(state, i))]
    unknown += state.undo.in_doubt if state.undo is not None else ()
    return state.fold.others + [
        ev.ErrorInfo("outcome_unknown", f"{node} was cut off and may have happened", node=node, path=path)
        for node, path, _ in unknown
    ]


def _cannot_be_undone(definition: NodeDef) -> bool:
    return bool(definition.compensate) and not definition.compensate_accepts_none


def _undone(state: RunState, instance: Instance) -> NodeDef:
    node, path, _ = instance
    return state.plan.scope_of(path).nodes[node].definition
