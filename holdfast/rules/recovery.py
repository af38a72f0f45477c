"""Recovery: what a new owner does with a run that somebody else left.

Owns: the first turn after a takeover.
Rules: nothing completed runs again; a started node is scheduled with attempt + 1 (or follows its `on_crash`); a
scheduled one keeps its attempt; a body that was left in an orderly way goes on with the same attempt.
"""

from __future__ import annotations

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.state import NodeState, retry_timer
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules import nodes, runs, scopes, waits
from holdfast.rules.draft import Draft, Refusal


def take_over(d: Draft, c: cmd.TakeOver) -> None:
    """Schedule what was cut off, resume what was left, decide what can be decided."""
    state = d.state
    if runs.is_finished(state.status):
        raise Refusal("finished", f"the run has {state.status} already")
    d.emit(ev.RunTakenOver(c.engine, c.token, c.previous, c.graceful))
    for handler, was, now in c.changed_code:
        d.emit(ev.CodeChanged(handler, was, now))
    for ns in list(state.nodes.values()):
        _go_on(d, ns)
    if state.fold.closing:
        return
    if state.status is RunStatus.CREATED:
        runs.begin(d)
        return
    for ns in list(state.nodes.values()):
        if ns.plan.body is not None and ns.status is NodeStatus.RUNNING:
            _reopen(d, ns)
    d.extra.opened.extend(state.scopes.values())


def _go_on(d: Draft, ns: NodeState) -> None:
    match ns.status:
        case NodeStatus.RUNNING if ns.plan.body is None:
            # what a message in this very turn resumed was not running when the engine died
            if not any(resumed is ns for resumed, _ in d.started):
                _cut_off(d, ns)
        case NodeStatus.SUSPENDED if _was_left(d, ns) and not nodes.lacks_params(d, ns.scope):
            waits.wake_run(d, "takeover")
            d.emit(ev.NodeResumed("takeover"), ns)
            nodes.go_on(d, ns)
        case NodeStatus.SCHEDULED if retry_timer(ns) not in d.state.timers and waits.may_start(d, ns):
            d.scheduled.append(ns)


def _was_left(d: Draft, ns: NodeState) -> bool:
    """A body that was left in an orderly way, perhaps while a part of it waited. (One that only waited runs again for
    nothing: what it remembers costs no effect.)"""
    if not ns.waits:
        return True
    held = any(d.state.waits[wait_id].kind == "hold" for wait_id in ns.waits)
    return d.state.status is RunStatus.RUNNING and not held


def _cut_off(d: Draft, ns: NodeState) -> None:
    if not ns.node.endswith("~undo") and (d.state.fold.closing or scopes.is_dead(ns.scope)):
        nodes.drop(d, ns)
        return
    match ns.plan.definition.on_crash:
        case "rerun":
            d.emit(ev.NodeScheduled(ns.attempt + 1), ns)
            if waits.may_start(d, ns):
                d.scheduled.append(ns)
        case "fail":
            nodes.fail_for_good(d, ns, _unknown(ns))
        case "ask":
            waits.hold(d, ns, "outcome_unknown", _unknown(ns).message)


def _unknown(ns: NodeState) -> ev.ErrorInfo:
    return ev.ErrorInfo(
        "outcome_unknown",
        f"{ns.node} was running when its engine died; on_crash={ns.plan.definition.on_crash!r} forbids to repeat it",
        kinds=("holdfast.model.errors.OutcomeUnknown",),
        retryable=False,
    )


def _reopen(d: Draft, owner: NodeState) -> None:
    """Items that had begun, and those that may begin now."""
    counters = owner.counters
    assert counters is not None
    for key in range(counters.opened):
        if key not in counters.done:
            d.state.scope_at(f"{owner.path}{owner.node}.{key}.")
    owner.next_key = counters.opened
    scopes.advance(d, owner)
