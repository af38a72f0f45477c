"""Recovery: what a new owner does with a run that somebody else left.

Owns: the first turn after a takeover, and what follows when the process of one body dies.
Rules: nothing completed runs again; a started node is scheduled with attempt + 1 (or follows its `on_crash`); a
scheduled one keeps its attempt; a body that was left in an orderly way goes on with the same attempt.
"""

from __future__ import annotations

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.naming import is_undo
from holdfast.model.state import NodeState
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules import nodes, questions, resuming, runs, scopes, waits
from holdfast.rules.draft import Draft, Refusal


def take_over(d: Draft, c: cmd.TakeOver) -> None:
    """Schedule what was cut off, resume what was left, decide what can be decided."""
    state = d.state
    if runs.is_finished(state.status):
        raise Refusal("finished", f"the run has {state.status} already")
    d.emit(ev.RunTakenOver(c.engine, c.token, c.previous, c.graceful, c.isolated))
    for handler, was, now in c.changed_code:
        d.emit(ev.CodeChanged(handler, was, now))
    for ns in list(state.nodes.values()):
        # what a message in this very turn resumed was not running when the engine died
        if (
            ns.status is NodeStatus.RUNNING
            and ns.plan.body is None
            and not any(resumed is ns for resumed, _ in d.started)
        ):
            _cut_off(d, ns)
    if state.fold.closing:
        for ns in list(state.nodes.values()):
            resuming.go_on(d, ns)
        return
    if state.status is RunStatus.CREATED:
        runs.begin(d)
        return
    resuming.pick_up(d)


def body_died(d: Draft, c: cmd.BodyDied) -> None:
    """The process of one body died and the engine lives: that attempt alone was cut off."""
    _cut_off(d, nodes.current(d, c, NodeStatus.RUNNING), c.how)


def _cut_off(d: Draft, ns: NodeState, died: str = "") -> None:
    if not is_undo(ns.node) and (d.state.fold.closing or scopes.is_dead(ns.scope)):
        nodes.drop(d, ns)
        return
    match ns.plan.definition.on_crash:
        case "rerun":
            d.emit(ev.NodeScheduled(ns.attempt + 1, died=died), ns)
            if waits.may_start(d, ns):
                d.scheduled.append(ns)
        case "fail":
            nodes.fail_for_good(d, ns, _unknown(ns))
        case "ask":
            questions.ask_verdict(d, ns)


def _unknown(ns: NodeState) -> ev.ErrorInfo:
    return ev.ErrorInfo(
        "outcome_unknown",
        f"{ns.node} was running when its engine died; on_crash={ns.plan.definition.on_crash!r} forbids to repeat it",
        kinds=("holdfast.model.errors.OutcomeUnknown",),
        retryable=False,
    )
