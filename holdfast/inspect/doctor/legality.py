"""Legality: what an event may rely on, given those before it.

Owns: one small check per event: attempts, waits, timers, messages, children, the end of a run, the order of undoing.
Never: folds (model/evolve.py); a status that may not follow another is refused there.

`check` is asked before the event is folded and sees the state as it was; what it returns is called afterwards.
These are not the rules that made the events, but what has to be true whatever rules made them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.inspect.doctor.facts import AuditFacts
from holdfast.model import events as ev
from holdfast.model.naming import instance_text, is_undo, step_path, undoes_step, undone_by
from holdfast.model.policies import NO_RETRY
from holdfast.model.references import PENDING, availability, lookup
from holdfast.model.state import NodeState
from holdfast.model.statuses import NodeStatus
from holdfast.model.violations import Repair

Afterwards = Callable[["AuditFacts", ev.Entry], None]

TERMINAL = frozenset({ev.RunCompleted, ev.RunFailed, ev.RunCancelled})
REQUESTS = frozenset({ev.ForkRequested, ev.JumpRequested, ev.RetryRequested})
AFTER_END = frozenset({ev.MessageConsumed, ev.MessageRefused, ev.BranchOpened}) | REQUESTS
"""What may stand behind a terminal event: the request that brought it about, or one that opens another branch."""


def check(audit: AuditFacts, entry: ev.Entry) -> Afterwards | None:
    """Note what is wrong with the next event."""
    kind = type(entry.event)
    first = audit.shared_until + 1
    if (entry.seq == first) != (kind is ev.RunCreated):
        what = "the first event is not RunCreated" if entry.seq == first else f"event {entry.seq} creates the run again"
        audit.report("I7", what, entry)
    if audit.ended is not None and kind not in AFTER_END:
        what = f"event {entry.seq} ({_kind(entry)}) comes after {audit.ended}, which is the last of its branch"
        audit.report("I7", what, entry)
    if entry.branch != audit.branch and kind is not ev.BranchOpened and kind is not ev.RunCreated:
        audit.report(
            "I35", f"event {entry.seq} is of branch {entry.branch}, and branch {audit.branch} is current", entry
        )
    checks = _CHECKS.get(kind)
    return None if checks is None else checks(audit, entry, entry.event)


# --- runs ------------------------------------------------------------------------------------------------------


def _taken_over(audit: AuditFacts, entry: ev.Entry, e: ev.RunTakenOver) -> None:
    audit.taken_over_at = entry.seq
    if e.token != audit.token:
        audit.report(
            "I13", f"event {entry.seq}: the engine took over with token {e.token} and wrote {audit.token}", entry
        )


def _requested(audit: AuditFacts, entry: ev.Entry, e: Any) -> None:
    audit.ended = _kind(entry)


def _ended(audit: AuditFacts, entry: ev.Entry, e: Any) -> None:
    audit.ended = _kind(entry)
    state = audit.state
    for left, names in (("wait", state.waits), ("timer", state.timers)):
        if names:
            audit.report("I22", f"the run ended with an open {left} ({', '.join(sorted(names)[:3])})", entry)
    unsettled = sorted(f"{ns.node}@{ns.path}" for ns in state.nodes.values() if not ns.settled)
    if unsettled:
        audit.report("I22", f"the run ended while {', '.join(unsettled[:3])} had not", entry)
    if type(e) is ev.RunCompleted and state.scopes["."].unsettled:
        never = ", ".join(sorted(state.scopes["."].unsettled)[:3])
        audit.report("I36", f"the run completed, and {never} never ran and was not skipped", entry)


def _suspended(audit: AuditFacts, entry: ev.Entry, e: ev.RunSuspended) -> None:
    if not audit.state.waits and not audit.state.timers:
        audit.report("I20", "the run was suspended, and there is nothing that could wake it", entry)


def _branch_opened(audit: AuditFacts, entry: ev.Entry, e: ev.BranchOpened) -> None:
    if e.branch != entry.branch or e.branch in audit.branches:
        audit.report("I35", f"event {entry.seq} opens branch {e.branch}, which is not a new one", entry, Repair.HOLD)
    if e.parent not in audit.branches:
        audit.report("I35", f"branch {e.branch} continues branch {e.parent}, which does not exist", entry, Repair.HOLD)
    if not 0 < e.cutoff_seq < entry.seq:
        what = f"branch {e.branch} is cut off at event {e.cutoff_seq}, which is not there yet"
        audit.report("I35", what, entry, Repair.HOLD)


# --- attempts ----------------------------------------------------------------------------------------------------


def _instance(audit: AuditFacts, entry: ev.Entry) -> NodeState | None:
    """The instance as it was before the event, after checking whether it may still have events."""
    assert entry.node is not None
    assert entry.path is not None
    key = (entry.node, entry.path, entry.visit)
    ns = audit.state.nodes.get(key[:2])
    if ns is not None and ns.visit == entry.visit:
        return ns
    if key not in audit.instances:
        audit.instances[key] = None
        return None
    audit.note_closed()
    if audit.instances[key] is not None:
        audit.report(
            "I11", f"{_name(entry)} had ended for good, and event {entry.seq} ({_kind(entry)}) continues it", entry
        )
    return None


def _scheduled(audit: AuditFacts, entry: ev.Entry, e: ev.NodeScheduled) -> Afterwards | None:
    ns = _instance(audit, entry)
    _not_after_closing(audit, entry)
    if ns is None:
        if e.attempt != 1:
            audit.report("I12", f"{_name(entry)} begins with attempt {e.attempt} instead of 1", entry)
        return _undo_in_order if entry.node is not None and is_undo(entry.node) else _ready
    mode, _ = audit.pended.pop(_key(entry), ("", 0))
    if mode == "next":
        audit.report("I11", f"{_name(entry)} had completed and was in a basket, and is to run again", entry)
    if e.attempt not in ((ns.attempt, ns.attempt + 1) if _may_repeat(ns, mode) else (ns.attempt + 1,)):
        audit.report("I12", f"attempt {e.attempt} of {_name(entry)} follows attempt {ns.attempt}", entry)
    if ns.status is NodeStatus.FAILED:
        allowed = (ns.plan.definition.retry or NO_RETRY).attempts
        if ns.failures >= allowed:
            audit.report("I12", f"{_name(entry)} is tried again after {ns.failures} of {allowed} failures", entry)
    if ns.status is NodeStatus.RUNNING and e.attempt > ns.attempt and ns.plan.body is None and mode != "error":
        began = audit.started.get((ns.node, ns.path, ns.visit), 0)
        if audit.taken_over_at < began and not e.died:
            audit.report("I12", f"attempt {ns.attempt} of {_name(entry)} was given up though nothing cut it off", entry)
    return None


def _may_repeat(ns: NodeState, mode: str) -> bool:
    """Whether an instance may be scheduled with the attempt that it had: it has not begun, it was left in an orderly
    way while a part of it waited, or it ended with the wish to run again."""
    return ns.status is NodeStatus.SCHEDULED or bool(ns.waits) or mode == "same"


def _started(audit: AuditFacts, entry: ev.Entry, e: ev.NodeStarted) -> None:
    ns = _instance(audit, entry)
    _not_after_closing(audit, entry)
    if audit.state.fold.paused:
        audit.report("I20", f"{_name(entry)} was begun by event {entry.seq} while the run was paused", entry)
    _same_attempt(audit, entry, ns, e.attempt)
    for param, seq, _ in e.inputs:
        if not 0 <= seq < entry.seq:
            audit.report("I31", f"{_name(entry)} was given {param} from event {seq}, which comes later", entry)
    audit.started[_key(entry)] = entry.seq


def _completed(audit: AuditFacts, entry: ev.Entry, e: ev.NodeCompleted) -> None:
    ns = _instance(audit, entry)
    _same_attempt(audit, entry, ns, e.attempt)
    pended = audit.pended.get(_key(entry))
    if e.pended_at is not None and pended != ("next", e.pended_at):
        what = f"{_name(entry)} completed with what event {e.pended_at} holds, and did not end there"
        audit.report("I31", what, entry)
    elif e.pended_at is None and pended is not None:
        what = f"{_name(entry)} had ended and was in a basket, and event {entry.seq} ends it once more"
        audit.report("I11", what, entry)
    _forget_attempt(audit, entry)
    counters = None if ns is None else ns.counters
    if counters is not None and counters.count is not None and len(counters.done) != counters.count:
        audit.report("I36", f"{_name(entry)} completed with {len(counters.done)} of {counters.count} items", entry)


def _failed(audit: AuditFacts, entry: ev.Entry, e: ev.NodeFailed) -> None:
    ns = _instance(audit, entry)
    _same_attempt(audit, entry, ns, e.attempt)
    if not e.retryable:
        _forget_attempt(audit, entry)


def _node_suspended(audit: AuditFacts, entry: ev.Entry, e: ev.NodeSuspended) -> None:
    ns = _instance(audit, entry)
    waits = [audit.state.waits.get(wait_id) for wait_id in e.waits]
    if None in waits:
        audit.report("I31", f"{_name(entry)} is suspended with a wait that is not open", entry)
    if (ns is not None and ns.status is NodeStatus.FAILED) != (e.mode == "error"):
        what = (
            f"{_name(entry)} failed, and is suspended" if e.mode != "error" else f"{_name(entry)} did not fail, and is"
        )
        audit.report("I12", f"{what} as {e.mode or 'waiting'!r} by event {entry.seq}", entry)
    if e.mode in ("next", "same", "error"):
        if not any(wait is not None and wait.kind == "basket" and wait.basket == e.basket for wait in waits):
            audit.report("I20", f"{_name(entry)} ended into basket {e.basket!r}, where no reader could find it", entry)
        audit.pended[_key(entry)] = (e.mode, entry.seq)
    elif not e.waits and e.mode != "stop":
        audit.report("I20", f"{_name(entry)} is suspended, and waits for nothing", entry)
    if e.forgets:
        audit.steps.pop(_key(entry), None)


def _over(audit: AuditFacts, entry: ev.Entry, e: Any) -> None:
    _instance(audit, entry)
    _forget_attempt(audit, entry)


def _edited(audit: AuditFacts, entry: ev.Entry, e: ev.OutputEdited) -> None:
    _instance(audit, entry)


def _scope_opened(audit: AuditFacts, entry: ev.Entry, e: ev.ScopeOpened) -> Afterwards | None:
    ns = _instance(audit, entry)
    _not_after_closing(audit, entry)
    return _ready if ns is None else None


def _same_attempt(audit: AuditFacts, entry: ev.Entry, ns: NodeState | None, attempt: int) -> None:
    known = 0 if ns is None else ns.attempt
    if attempt != known:
        audit.report(
            "I12", f"event {entry.seq} ({_kind(entry)}) is of attempt {attempt} of {_name(entry)}, {known} is", entry
        )


def _forget_attempt(audit: AuditFacts, entry: ev.Entry) -> None:
    audit.started.pop(_key(entry), None)
    audit.steps.pop(_key(entry), None)
    audit.pended.pop(_key(entry), None)


def _not_after_closing(audit: AuditFacts, entry: ev.Entry) -> None:
    closing = audit.state.fold.closing
    if closing and entry.node is not None and not is_undo(entry.node):
        audit.report("I39", f"{_name(entry)} was begun by event {entry.seq} while the run was {closing}", entry)


def _ready(audit: AuditFacts, entry: ev.Entry) -> None:
    """Nothing begins before what it waits for has settled, or without its data."""
    assert entry.node is not None
    assert entry.path is not None
    ns = audit.state.nodes.get((entry.node, entry.path))
    if ns is None or ns.visit != 1 or _was_jumped_to(audit, entry):  # a later visit was sent there
        return
    state, scope, plan = audit.state, ns.scope, ns.plan
    missing = {name for name in plan.waits_for if not _is_settled(lookup(state, scope, name))}
    if plan.lazy:
        data = [*plan.definition.args.values(), plan.definition.over, plan.definition.start]
        early = missing & plan.settles_after
        if not early and any(availability(state, scope, expr)[0] is PENDING for expr in data):
            early = missing
    else:
        early = missing
    if early:
        audit.report("I36", f"{_name(entry)} was begun before {', '.join(sorted(early)[:3])} had settled", entry)


def _was_jumped_to(audit: AuditFacts, entry: ev.Entry) -> bool:
    """Whether a jump sent the run to this instance, which was skipped before: it waits for nothing."""
    branch = audit.branches.get(entry.branch)
    if branch is None or branch.reason != "jump":
        return False
    assert entry.node is not None
    assert entry.path is not None
    return instance_text(entry.node, entry.path) in branch.dropped


def _is_settled(ns: NodeState | None) -> bool:
    return ns is not None and ns.settled


def _undo_in_order(audit: AuditFacts, entry: ev.Entry) -> None:
    """Compensations run in reverse order of completion; what may have happened comes before what did."""
    assert entry.node is not None
    assert entry.path is not None
    undone = undone_by(entry.node)
    ns = audit.state.nodes.get((undone, entry.path))
    if undoes_step(entry.path):
        seq = audit.undoable.get((entry.path, entry.visit), 0)
        completed = seq > 0
    elif ns is not None and ns.visit == entry.visit:
        completed, seq = ns.status is NodeStatus.COMPLETED, ns.output_seq
    else:
        audit.note_closed()
        closed = audit.instances.get((undone, entry.path, entry.visit))
        completed = closed is not None and closed.status == NodeStatus.COMPLETED
        seq = 0 if closed is None else closed.output_seq
    if audit.undone is not None and (not completed or seq >= audit.undone):
        audit.report("I39", f"{undone} is undone out of turn: what completed last is undone first", entry)
    if completed:
        audit.undone = seq


# --- inside bodies -----------------------------------------------------------------------------------------------


def _step(audit: AuditFacts, entry: ev.Entry, e: ev.StepCompleted) -> None:
    _inside_body(audit, entry, e)
    known = audit.steps.setdefault(_key(entry), set())
    call = (e.scope, e.position, e.digest)
    if call in known:
        audit.report("I11", f"step {e.name} of {_name(entry)} was recorded a second time by event {entry.seq}", entry)
    known.add(call)
    if e.undo and entry.node is not None and entry.path is not None:
        audit.undoable[step_path(entry.path, entry.node, e.undo), entry.visit] = entry.seq


def _inside_body(audit: AuditFacts, entry: ev.Entry, e: Any) -> None:
    ns = _instance(audit, entry)
    if ns is None or ns.status is not NodeStatus.RUNNING:
        found = "has never begun" if ns is None else f"is {ns.status}"
        audit.report(
            "I12", f"event {entry.seq} ({_kind(entry)}) comes from the body of {_name(entry)}, which {found}", entry
        )


# --- waits, timers, messages, children ---------------------------------------------------------------------------


def _wait_opened(audit: AuditFacts, entry: ev.Entry, e: ev.WaitOpened) -> None:
    if (entry.node is None) != (e.kind == "pause"):
        whose = "belongs to no node" if entry.node is None else f"belongs to {_name(entry)}"
        audit.report("I31", f"wait {e.wait_id} is a {e.kind} and {whose}", entry)
    elif e.call:
        _inside_body(audit, entry, e)
    elif entry.node is not None:
        _instance(audit, entry)
    if e.kind == "pause" and audit.state.fold.paused:
        audit.report("I33", f"the run is paused a second time by event {entry.seq}", entry)
    if e.wait_id in audit.register.opened:
        audit.report("I33", f"wait {e.wait_id} is opened a second time by event {entry.seq}", entry)
    audit.register.note(entry)


def _wait_closed(audit: AuditFacts, entry: ev.Entry, e: ev.WaitClosed) -> None:
    if e.wait_id not in audit.state.waits:
        if e.wait_id in audit.register.opened:
            audit.report("I33", f"wait {e.wait_id} is closed a second time by event {entry.seq}", entry)
        else:
            audit.report("I31", f"event {entry.seq} closes wait {e.wait_id}, which was never opened", entry)
    audit.register.note(entry)


def _run_edited(audit: AuditFacts, entry: ev.Entry, e: ev.RunEdited) -> None:
    wait_id = e.after.get("wait_id") if isinstance(e.after, dict) else None
    if wait_id is not None and wait_id not in audit.state.waits:
        audit.report("I31", f"event {entry.seq} changes wait {wait_id}, which is not open", entry)


def _timer_set(audit: AuditFacts, entry: ev.Entry, e: ev.TimerSet) -> None:
    if e.timer in audit.state.timers:
        audit.report("I30", f"timer {e.timer} is set a second time by event {entry.seq}", entry)
    audit.register.note(entry)


def _timer_fired(audit: AuditFacts, entry: ev.Entry, e: ev.TimerFired) -> None:
    lasting = audit.state.lasting.get(e.timer)
    due_at = _timer_over(audit, entry, e.timer)
    if e.elapsed:  # judged by the time that has passed in the boot in which it was set
        if lasting is None or e.elapsed + audit.early_micros < lasting.micros:
            audit.report("I30", f"timer {e.timer} fired before its duration was over", entry)
    elif due_at is not None and entry.at + audit.early_micros < due_at:
        early = (due_at - entry.at) / 1_000_000
        audit.report("I30", f"timer {e.timer} fired {early:g} s before it was due", entry)


def _timer_cancelled(audit: AuditFacts, entry: ev.Entry, e: ev.TimerCancelled) -> None:
    _timer_over(audit, entry, e.timer)


def _timer_over(audit: AuditFacts, entry: ev.Entry, timer: str) -> int | None:
    due_at = audit.state.timers.get(timer)
    if due_at is None:
        if timer in audit.register.timers:
            audit.report("I30", f"timer {timer} ends a second time with event {entry.seq}", entry)
        else:
            audit.report("I31", f"event {entry.seq} ends timer {timer}, which was never set", entry)
    audit.register.note(entry)
    return due_at


def _message(audit: AuditFacts, entry: ev.Entry, e: Any) -> None:
    if e.message_id in audit.messages:
        audit.report("I24", f"message {e.message_id} is taken a second time by event {entry.seq}", entry)
    if type(e) is ev.MessageConsumed and e.kind == "signal" and entry.node is None:
        audit.report("I24", f"signal {e.message_id} is consumed by event {entry.seq}, and no call received it", entry)
    if entry.seq > audit.shared_until:
        audit.messages[e.message_id] = audit.settled[e.message_id] = _kind(entry)


def _child_started(audit: AuditFacts, entry: ev.Entry, e: ev.ChildStarted) -> None:
    if e.wait_id not in audit.state.waits:
        audit.report("I31", f"event {entry.seq} starts child {e.child} for wait {e.wait_id}, which is not open", entry)
    if e.child in audit.state.fold.children:
        audit.report("I38", f"child {e.child} is started a second time by event {entry.seq}", entry)


def _child_ended(audit: AuditFacts, entry: ev.Entry, e: ev.ChildEnded) -> None:
    if e.child not in audit.state.fold.children:
        audit.report(
            "I38", f"event {entry.seq} reports the end of child {e.child}, which the run does not wait for", entry
        )


def _kind(entry: ev.Entry) -> str:
    return type(entry.event).__name__


def _key(entry: ev.Entry) -> tuple[str, str, int]:
    return entry.node or "", entry.path or "", entry.visit


def _name(entry: ev.Entry) -> str:
    visit = f"#{entry.visit}" if entry.visit != 1 else ""
    return f"{entry.node}@{entry.path}{visit}" if entry.path != "." or visit else str(entry.node)


_CHECKS: dict[type[Any], Callable[[AuditFacts, ev.Entry, Any], Afterwards | None]] = {
    ev.BranchOpened: _branch_opened,
    ev.ForkRequested: _requested,
    ev.JumpRequested: _requested,
    ev.RetryRequested: _requested,
    ev.RunTakenOver: _taken_over,
    ev.RunSuspended: _suspended,
    ev.RunEdited: _run_edited,
    ev.RunCompleted: _ended,
    ev.RunFailed: _ended,
    ev.RunCancelled: _ended,
    ev.NodeScheduled: _scheduled,
    ev.NodeStarted: _started,
    ev.NodeSuspended: _node_suspended,
    ev.NodeCompleted: _completed,
    ev.NodeFailed: _failed,
    ev.NodeSkipped: _over,
    ev.NodeCancelled: _over,
    ev.NodeCheckpointed: _inside_body,
    ev.OutputEdited: _edited,
    ev.ScopeOpened: _scope_opened,
    ev.StepStarted: _inside_body,
    ev.StepCompleted: _step,
    ev.StepFailed: _inside_body,
    ev.WaitOpened: _wait_opened,
    ev.WaitClosed: _wait_closed,
    ev.TimerSet: _timer_set,
    ev.TimerFired: _timer_fired,
    ev.TimerCancelled: _timer_cancelled,
    ev.MessageConsumed: _message,
    ev.MessageRefused: _message,
    ev.ChildStarted: _child_started,
    ev.ChildEnded: _child_ended,
}
