"""Resuming: how a run continues after it was cut off, stopped, paused or pended.

Owns: the first turn after a takeover; what follows when the process of one body dies, or an engine stops a body in an
orderly way; an operator's pause; which waits a `resume` ends (a pause, a basket, a hold), and the variables it sets.
Rules of a takeover: nothing completed runs again; a started node is scheduled with attempt + 1 (or follows its
`on_crash`); a scheduled one keeps its attempt; a body that was stopped in an orderly way runs with the same attempt.
Rules of a resume: it may name a wait, or its path. Without a name it ends the pause; where there is
none, all holds and the basket of the pend path: the deepest path with a basket, the oldest of several.
While a run is paused nothing new starts: no node, no further attempt, no item or round. Running bodies finish their
node or are evicted at their next call on ctx; what waits stays suspended, also when its answer comes.
"""

from __future__ import annotations

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.naming import depth, is_undo, scope_path
from holdfast.model.state import NodeState, WaitState
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules import body_reports, journeys, nodes, questions, runs, scopes, waits
from holdfast.rules.draft import Draft, Refusal
from holdfast.rules.variables import set_by

RESUMABLE = ("pause", "hold", "basket")


# --- takeover ----------------------------------------------------------------------------------------------------


def take_over(d: Draft, c: cmd.TakeOver) -> None:
    """Begin as the new owner: schedule what was cut off, resume what was stopped, decide what can be decided."""
    state = d.state
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
            resume_instance(d, ns)
    elif state.status is RunStatus.CREATED:
        runs.begin(d)
    else:
        if not c.graceful:
            journeys.evaluate_routes_again(d)
        resume_all(d)


def body_died(d: Draft, c: cmd.BodyDied) -> None:
    """Treat one attempt as cut off: the process of its body died, and the engine lives."""
    _cut_off(d, body_reports.current(d, c, NodeStatus.RUNNING), c.how)


def _cut_off(d: Draft, ns: NodeState, died: str = "") -> None:
    if not is_undo(ns.node) and (d.state.fold.closing or scopes.scope_has_ended(ns.scope)):
        body_reports.record_cancelled(d, ns)
        return
    match ns.plan.definition.on_crash:
        case "rerun":
            d.emit(ev.NodeScheduled(ns.attempt + 1, died=died), ns)
            if waits.may_start(d, ns):
                d.scheduled.append(ns)
        case "fail":
            body_reports.fail_for_good(d, ns, _unknown(ns))
        case "ask":
            questions.ask_if_done(d, ns)


def _unknown(ns: NodeState) -> ev.ErrorInfo:
    return ev.ErrorInfo(
        "outcome_unknown",
        f"{ns.node} was running when its engine died; on_crash={ns.plan.definition.on_crash!r} forbids repeating it",
        kinds=("holdfast.model.errors.OutcomeUnknown",),
        retryable=False,
    )


def stop_node(d: Draft, c: cmd.StopNode) -> None:
    """Record that a body was evicted by an orderly stop or a pause; it runs again later with the same attempt."""
    ns = body_reports.current(d, c, NodeStatus.RUNNING)
    if c.changed:
        d.extra.hold = f"code_changed: {ns.text}: {c.changed}"
    pause_is_over = c.for_pause and not d.state.fold.paused
    if ns.waits:  # only a part of it waited: if it were suspended, it would not run before that part is answered
        d.emit(ev.NodeScheduled(ns.attempt), ns)
        if pause_is_over:
            d.scheduled.append(ns)
        return
    d.emit(ev.NodeSuspended((), None, "stop"), ns)
    if pause_is_over:
        d.emit(ev.NodeResumed("resume"), ns)
        nodes.restart_body(d, ns)


def resume_all(d: Draft) -> None:
    """Continue with everything that was held back: evicted bodies, starts, items and rounds, nodes to decide."""
    for ns in list(d.state.nodes.values()):
        resume_instance(d, ns)
    for owner in list(d.state.nodes.values()):
        if owner.plan.body is not None and owner.status is NodeStatus.RUNNING:
            _reopen(d, owner)
    d.extra.opened.extend(d.state.scopes.values())


def resume_instance(d: Draft, ns: NodeState) -> None:
    """Continue with an instance that waits for nothing else."""
    if d.state.fold.paused:
        return
    match ns.status:
        case NodeStatus.SUSPENDED if _was_evicted(d, ns) and not nodes.lacks_params(d, ns.scope):
            waits.wake_run(d, "takeover")
            d.emit(ev.NodeResumed("takeover"), ns)
            nodes.restart_body(d, ns)
        case NodeStatus.SCHEDULED if ns.start_timer not in d.state.timers and waits.may_start(d, ns):
            d.scheduled.append(ns)


def _was_evicted(d: Draft, ns: NodeState) -> bool:
    """Whether the body of a suspended instance was evicted by an orderly stop, perhaps while a part of it waited. (One
    that only waited is restarted for nothing: what it remembers has no effect again.)"""
    if not ns.waits:
        return True
    has_ended = any(d.state.waits[w].is_of_ended_body for w in ns.waits)
    return d.state.status is RunStatus.RUNNING and not has_ended


def _reopen(d: Draft, owner: NodeState) -> None:
    """Open the items of a map (or the round of a loop) that had begun, and those that may begin now."""
    counters = owner.counters
    assert counters is not None
    for key in range(counters.opened):
        if key not in counters.done:
            d.state.scope_at(scope_path(owner.node, owner.path, key))
    owner.next_key = counters.opened
    scopes.advance(d, owner)


# --- pause and resume --------------------------------------------------------------------------------------------


class Resume(msgspec.Struct):
    """The payload of `resume`."""

    actor: str = ""
    wait: str | None = None
    path: str | None = None
    vars: dict[str, msgspec.Raw] = {}


def pause(d: Draft, reason: str, actor: str) -> None:
    """Stop a run between its nodes, on request of an operator. A second pause does nothing."""
    if d.state.fold.closing:
        raise Refusal("closing", f"the run is {d.state.fold.closing}; it can no longer be paused")
    if d.state.fold.paused:
        return
    wait_id = d.new_wait_id()
    d.emit(ev.WaitOpened(wait_id, "pause", {}, None, {"reason": reason, "actor": actor}))
    d.extra.pauses = True


def resume(d: Draft, c: cmd.Message, asked: Resume) -> list[str]:
    """End the waits that a person resumes; their ids."""
    if d.state.fold.closing:
        raise Refusal("closing", f"the run is {d.state.fold.closing}; there is nothing to resume")
    chosen = _choose(d, c, asked)
    changed = set_by(d, asked.vars)
    if changed is not None:
        d.emit(msgspec.structs.replace(changed, actor=asked.actor))
    for wait in chosen:
        _end(d, wait, asked.actor)
    return [wait.wait_id for wait in chosen]


def _choose(d: Draft, c: cmd.Message, asked: Resume) -> list[WaitState]:
    open_waits = d.state.waits.values()
    if asked.wait is not None:
        wait = questions.find(d, asked.wait, c)
        if wait.kind not in RESUMABLE:
            how = {"input": "answer it with respond", "signal": "send its signal"}.get(wait.kind, "it ends by itself")
            raise Refusal("not_resumable", f"{wait.wait_id} is a wait of kind {wait.kind}: {how}")
        return [wait]
    resumable = [wait for wait in open_waits if wait.kind in RESUMABLE]
    if asked.path is not None:
        there = [wait for wait in resumable if wait.path == asked.path and wait.kind != "pause"]
        if not there:
            paths = ", ".join(sorted({wait.path for wait in resumable if wait.kind != "pause"})) or "nothing"
            raise Refusal("not_pended", f"nothing on path {asked.path} waits to be resumed; what does: {paths}")
        return there
    paused = [wait for wait in resumable if wait.kind == "pause"]
    if paused:
        return paused
    baskets = sorted((w for w in resumable if w.kind == "basket"), key=lambda w: pend_order(w.path, w.since))
    return [*(wait for wait in resumable if wait.kind == "hold"), *baskets[:1]]


def pend_order(path: str, since: int) -> tuple[int, int]:
    """Sort key of paths with baskets: the deepest is resumed first, the oldest of equally deep ones."""
    return -depth(path), since


def _end(d: Draft, wait: WaitState, actor: str) -> None:
    ns = d.state.nodes.get((wait.node, wait.path))
    if wait.kind == "basket":
        assert ns is not None
        _resume_pended(d, ns, wait, actor)
        return
    outcome = "resumed" if wait.kind == "pause" else "released"
    d.emit(ev.WaitClosed(wait.wait_id, outcome, actor=actor), ns)
    waits.wake_run(d, wait.kind)
    if wait.kind == "pause":
        resume_all(d)
    elif ns is not None and ns.status is NodeStatus.SUSPENDED:  # its attempt was cut off: this is another one
        waits.run_again(d, ns, wait.wait_id)


def _resume_pended(d: Draft, ns: NodeState, wait: WaitState, actor: str) -> None:
    """Resume a node from its basket."""
    d.emit(ev.WaitClosed(wait.wait_id, "resumed", actor=actor), ns)
    waits.wake_run(d, wait.kind)
    match wait.about["mode"]:
        case "next":
            d.emit(ev.NodeResumed(wait.wait_id), ns)
            _complete_pended(d, ns, wait)
        case "same":
            waits.run_again(d, ns, wait.wait_id, same_attempt=True)
        case "error":
            waits.run_again(d, ns, wait.wait_id)


def _complete_pended(d: Draft, ns: NodeState, wait: WaitState) -> None:
    """Complete a node whose body completed when it pended; what follows it runs, or what its ticket leads to."""
    completed = ev.NodeCompleted(ns.attempt, captured=ns.captured, pended_at=ns.output_seq)
    target = wait.about.get("target")
    raised = target is not None and d.state.fold.ticket is None
    if target is not None:
        d.emit(ev.TicketRaised(target, wait.about.get("ticket")), ns)
    d.emit(completed, ns)
    d.todo.append(ns)
    if raised:
        body_reports.stop_scopes(d, ns.node)
