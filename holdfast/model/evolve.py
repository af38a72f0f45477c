"""Evolve: what each event does to a run's state.

Owns: `evolve`, the only function that changes what events fold to, with one small function per event.
Never: decides (rules), does I/O, reads a clock.
Invariants: folding the journal of the current branch gives the state; a status changes only along its TRANSITIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model import references
from holdfast.model.captures import reading
from holdfast.model.definition import END, Settings
from holdfast.model.errors import IllegalTransition, InvalidInput
from holdfast.model.expressions import holds
from holdfast.model.fold import Counters, GivenAnswer, Ticket
from holdfast.model.naming import ROOT, instance_text, is_undo, parse_instance, paths_inside, segments, undone_by
from holdfast.model.plans import step_undo_plan
from holdfast.model.state import NodeState, OpenScope, RoundEnd, RunState, WaitState
from holdfast.model.statuses import NODE_SETTLED, NODE_TRANSITIONS, RUN_TRANSITIONS, NodeStatus, RunStatus
from holdfast.model.timers import RUN_TIMEOUT, Elapsed

_SCHEDULED, _RUNNING, _COMPLETED = NodeStatus.SCHEDULED, NodeStatus.RUNNING, NodeStatus.COMPLETED
_CREATED = RunStatus.CREATED
"""Members that every step moves to: looking one up in its Enum takes as long as a call."""

# A field that seldom changes is read first and set only if it does: setting a field of a Struct takes three times as
# long as reading it.


def evolve(state: RunState, entry: ev.Entry, ns: NodeState | None = None) -> None:
    """Apply one event; `ns` is the instance it is about, if the caller has it. The order of events is the order of
    `seq`: along a lineage (lineage.py) it only grows, over all branches it has no gap."""
    assert entry.seq > state.seq, f"run {state.run_id}: event {entry.seq} after {state.seq}"
    state.seq = entry.seq
    if entry.at > state.last_at:
        state.last_at = entry.at
    event = entry.event
    kind = type(event)
    on_node = _NODE_EVENTS.get(kind)
    if on_node is not None:
        if ns is None:
            assert entry.node is not None
            assert entry.path is not None
            ns = state.instance(entry.node, entry.path, entry.visit)
        if not ns.changed:
            ns.changed = True
            state.changed.append(ns)
        on_node(state, entry, event, ns)
        return
    on_run = _RUN_EVENTS.get(kind)
    if on_run is not None:
        on_run(state, entry, event)


def _move(ns: NodeState, to: NodeStatus) -> None:
    if to not in NODE_TRANSITIONS[ns.status]:
        raise IllegalTransition(f"node {ns.node}@{ns.path}: {ns.status} -> {to} is not a transition of its machine")
    ns.status = to


def _move_run(state: RunState, to: RunStatus) -> None:
    if to not in RUN_TRANSITIONS[state.status]:
        raise IllegalTransition(f"run {state.run_id}: {state.status} -> {to} is not a transition of the run machine")
    state.status = to


def _run_created(state: RunState, entry: ev.Entry, e: ev.RunCreated) -> None:
    fold = state.fold
    fold.settings = state.plan.definition.settings
    if e.settings:
        overridden = {**msgspec.to_builtins(fold.settings), **e.settings}
        fold.settings = msgspec.convert(overridden, Settings)
    fold.parent, fold.depth, fold.code_hash = e.parent, e.depth, e.code_hash
    fold.input_captured, fold.input_seq = e.captured, entry.seq
    state.fold_changed = True


def _run_taken_over(state: RunState, entry: ev.Entry, e: ev.RunTakenOver) -> None:
    if not (e.graceful or e.isolated):
        state.recoveries += 1


def _run_moved(to: RunStatus) -> Callable[[RunState, ev.Entry, Any], None]:
    return lambda state, entry, e: _move_run(state, to)


def _run_ended(to: RunStatus) -> Callable[[RunState, ev.Entry, Any], None]:
    def end(state: RunState, entry: ev.Entry, e: Any) -> None:
        _move_run(state, to)
        state.finished_at = entry.at

    return end


def _run_cancel_requested(state: RunState, entry: ev.Entry, e: ev.RunCancelRequested) -> None:
    if not state.fold.closing:
        state.fold.closing = "cancelling"
        state.fold.cancel_reason, state.fold.cancel_actor = e.reason, e.actor
        state.fold_changed = True
    if e.gives_up_undo:
        state.fold.gives_up_undo, state.fold_changed = True, True


def _branch_opened(state: RunState, entry: ev.Entry, e: ev.BranchOpened) -> None:
    """Begin a branch; the state is what it inherits (lineage.py), and has not ended."""
    fold = state.fold
    fold.ancestors = [*fold.ancestors, (e.parent, e.cutoff_seq)]
    state.branch, fold.key_epoch = e.branch, e.key_epoch
    state.status = RunStatus.RUNNING if state.started_at is not None else RunStatus.CREATED
    state.finished_at = None
    state.recoveries = 0
    fold.gives_up_undo = False
    if not any(is_undo(parse_instance(text)[0]) for text in (*e.reopened, *e.dropped)):
        _clear_end(state, e)  # else it ends as it did: only compensations that failed run again
    for text in e.reopened:
        node, path, _ = parse_instance(text)
        ns = state.nodes.get((node, path))
        if ns is not None:  # the lineage is without its last failure or cancellation, which counts as a failure
            _reset_failures(state, ns, ns.failures + 1)
            state.touch(ns)
    there = {ns.node for ns in state.nodes.values() if ns.scope.owner is None}
    fold.entered = [name for name in fold.entered if name in there]
    if e.enters and state.plan.definition.start:
        _lead_to(state, e.enters)
    else:
        _enter(state, e.enters)
    fold.phases = _phases(state)
    state.fold_changed = True


def _enter(state: RunState, target: str) -> None:
    """Continue at a node whatever its condition is; the condition counts as true for what follows."""
    plan = state.plan.root.nodes.get(target)
    if plan is not None and plan.definition.when is not None:
        state.fold.entered = [*state.fold.entered, target]


def _clear_end(state: RunState, e: ev.BranchOpened) -> None:
    """Forget that and why the run was ending."""
    fold = state.fold
    fold.closing, fold.cancel_reason, fold.cancel_actor, fold.others = "", None, "", []
    fold.ticket = None if e.reason == "jump" else fold.ticket
    fold.error = fold.error if fold.failed else None
    fold.outcome_unknown = [
        (node, path, visit)
        for node, path, visit in fold.outcome_unknown
        if (ns := state.nodes.get((node, path))) is not None and (ns.settled or visit < ns.visit)
    ]


def _phases(state: RunState) -> dict[str, str]:
    return {name: word for name, nodes in state.plan.phases.items() if (word := _phase_word(state, nodes))}


def _phase_word(state: RunState, nodes: frozenset[str]) -> str:
    """The progress of a phase: `started` with its first node that was entered, `completed` with its last."""
    if not nodes & state.scopes["."].unsettled:
        return "completed"
    entered = any(ns.node in nodes and ns.scope.owner is None for ns in state.nodes.values())
    return "started" if entered else ""


def _input_edited(state: RunState, entry: ev.Entry, e: ev.InputEdited) -> None:
    state.fold.input_seq, state.fold.input_captured = entry.seq, e.captured
    state.fold_changed = True


def _output_edited(state: RunState, entry: ev.Entry, e: ev.OutputEdited, ns: NodeState) -> None:
    ns.output_seq, ns.captured, ns.virtual, ns.counters = entry.seq, e.captured, False, None
    if ns.status is not NodeStatus.COMPLETED:  # a person completes a node that was skipped or has not run
        ns.status, ns.finished_at = NodeStatus.COMPLETED, entry.at
        _settle(state, ns)


def _answer_edited(state: RunState, entry: ev.Entry, e: ev.AnswerEdited) -> None:
    if not e.call or e.wait_id in state.waits:
        return  # the next event closes the wait with it
    given = GivenAnswer(e.wait_id, entry.node or "", entry.path or ".", entry.visit, e.call, e.value, e.actor)
    state.fold.answers = [*state.fold.answers, given]
    state.fold_changed = True


def _variables_set(state: RunState, entry: ev.Entry, e: ev.VariablesSet) -> None:
    _set_vars(state, entry, e.vars, e.captured_vars)


def _ticket_raised(state: RunState, entry: ev.Entry, e: ev.TicketRaised) -> None:
    if state.fold.ticket is None and not state.fold.closing:
        state.fold.ticket = Ticket(e.target, entry.node or "", entry.path or ".", e.ticket)
        state.fold_changed = True


def _target_entered(state: RunState, entry: ev.Entry, e: ev.TargetEntered) -> None:
    """Make the target and everything downstream of it pending again, as the next visit."""
    fold, root = state.fold, state.scopes["."]
    if state.plan.definition.start:
        fold.ticket = None
        _lead_to(state, e.target)
        return
    for ns in [ns for ns in state.nodes.values() if ns.scope is not root]:
        state.close(ns)  # instances inside maps and loops that were stopped, or failed
    state.scopes = {".": root}
    again = root.plan.downstream(e.target) if e.target in root.plan.nodes else set()  # it may be of another version
    for plan in root.plan.nodes.values():
        key = (plan.id, "." + plan.lane)
        if plan.id in again:
            state.missing.pop(key, None)
            if key in state.nodes:
                fold.visits = {**fold.visits, plan.id: state.nodes[key].visit + 1}
                state.close(state.nodes[key])
                root.unsettled.add(plan.id)
    fold.ticket = None
    fold.entered = [name for name in fold.entered if name not in again]
    _enter(state, e.target)
    fold.phases = _phases(state)
    _recount_failures(state)
    state.fold_changed = True


def _lead_to(state: RunState, unit: str) -> None:
    """Let a journey continue at a unit, on the path of the run alone."""
    ns = state.nodes.get((unit, ROOT))
    state.fold.tokens, state.fold.open_paths = {ROOT: (unit, ns.visit + 1 if ns else 1)}, {}
    state.scopes[ROOT].unsettled = {END}
    state.fold_changed = True


def _reach(state: RunState, ns: NodeState) -> None:
    """Note the unit that a path of a journey has reached."""
    before = state.fold.tokens.get(ns.path)
    if before == (ns.node, ns.visit):
        return
    state.fold.tokens = {**state.fold.tokens, ns.path: (ns.node, ns.visit)}
    if before is not None:
        left = paths_inside(before[0], ns.path)
        state.fold.open_paths = {key: names for key, names in state.fold.open_paths.items() if key != left}
    state.fold_changed = True


def _paths_opened(state: RunState, entry: ev.Entry, e: ev.PathsOpened, ns: NodeState) -> None:
    state.fold.open_paths = {**state.fold.open_paths, paths_inside(ns.node, ns.path): list(e.names)}
    state.fold_changed = True


def _path_ended(state: RunState, entry: ev.Entry, e: ev.PathEnded) -> None:
    fold = state.fold
    fold.tokens = {path: reached for path, reached in fold.tokens.items() if path != e.path}
    state.fold_changed = True
    if e.path == ROOT:
        state.scopes[ROOT].unsettled = set()
        return
    _, name, _ = segments(e.path)[-1]
    prefix = e.path.removesuffix(f"{name}.")
    fold.open_paths = {**fold.open_paths, prefix: [n for n in fold.open_paths.get(prefix, ()) if n != name]}


def _basket_entered(state: RunState, entry: ev.Entry, e: ev.BasketEntered, ns: NodeState) -> None:
    state.fold.baskets = {**state.fold.baskets, ns.path: (e.basket, ns.node, ns.visit)}
    state.fold_changed = True


def _basket_left(state: RunState, entry: ev.Entry, e: ev.BasketLeft) -> None:
    state.fold.baskets = {path: held for path, held in state.fold.baskets.items() if path != entry.path}
    state.fold_changed = True


def _recount_failures(state: RunState) -> None:
    """Count failures of the latest visits only: under `continue` the run ends by these."""
    fold, failed = state.fold, [ns for ns in state.nodes.values() if ns.status is NodeStatus.FAILED]
    fold.failed = len(failed)
    if fold.error is None or any(_is_of(fold.error, ns) for ns in failed):
        return
    fold.error = None
    if failed:  # the first error belongs to an earlier visit, and the other errors are not in the state
        first = min(failed, key=lambda ns: ns.output_seq)
        fold.error = ev.ErrorInfo("failed", f"{first.node} failed", node=first.node, path=first.path)


def _is_of(error: ev.ErrorInfo, ns: NodeState) -> bool:
    """Whether an error is that of a top-level node or of something inside it."""
    return (error.node, error.path) == ns.key or (error.path or "").startswith(paths_inside(*ns.key))


def _node_scheduled(state: RunState, entry: ev.Entry, e: ev.NodeScheduled, ns: NodeState) -> None:
    _move(ns, _SCHEDULED)
    ns.attempt = e.attempt
    if ns.plan.definition.unit:
        _reach(state, ns)
    if e.undo is not None:
        ns.plan = step_undo_plan(ns.node, ns.scope.plan, e.undo)
        key = instance_text(ns.node, ns.path, ns.visit)
        state.fold.undoing, state.fold_changed = {**state.fold.undoing, key: e.undo}, True
    if e.not_before or ns.not_before:
        ns.not_before = e.not_before or 0
    if e.died:
        state.recoveries += 1
    if state.started_at is None:
        _run_started(state, entry)


def _node_started(state: RunState, entry: ev.Entry, e: ev.NodeStarted, ns: NodeState) -> None:
    _move(ns, _RUNNING)
    if ns.not_before:
        ns.not_before = 0
    ns.started_at = entry.at
    if ns.memory_seq == 0:
        ns.memory_seq = entry.seq


def _node_checkpointed(state: RunState, entry: ev.Entry, e: ev.NodeCheckpointed, ns: NodeState) -> None:
    ns.memory_seq = entry.seq
    state.recoveries = 0
    _set_vars(state, entry, e.vars, e.captured_vars)


def _node_suspended(state: RunState, entry: ev.Entry, e: ev.NodeSuspended, ns: NodeState) -> None:
    _move(ns, NodeStatus.SUSPENDED)
    if e.mode == "next":
        ns.output_seq, ns.captured = entry.seq, e.captured
    if e.forgets:
        ns.memory_seq = 0
    if e.mode == "error":  # after a resume its retry policy counts from 0
        _reset_failures(state, ns, ns.failures)
    if e.vars:
        _set_vars(state, entry, e.vars, e.captured_vars)


def _reset_failures(state: RunState, ns: NodeState, failures: int) -> None:
    """Let the retry policy of an instance count from 0, because a person lets it try again."""
    key = instance_text(ns.node, ns.path)
    before = state.fold.failures_before_retry
    state.fold.failures_before_retry = {**before, key: before.get(key, 0) + failures}
    state.fold_changed = True
    ns.failures = 0


def _node_resumed(state: RunState, entry: ev.Entry, e: ev.NodeResumed, ns: NodeState) -> None:
    _move(ns, _RUNNING)


def _node_completed(state: RunState, entry: ev.Entry, e: ev.NodeCompleted, ns: NodeState) -> None:
    _move(ns, _COMPLETED)
    ns.output_seq = e.pended_at or entry.seq
    ns.finished_at = entry.at
    if e.virtual or ns.virtual:
        ns.virtual = e.virtual
    if e.captured:
        ns.captured = e.captured
    if state.recoveries:
        state.recoveries = 0
    if e.vars:
        _set_vars(state, entry, e.vars, e.captured_vars)
    _settle(state, ns)


def _set_vars(state: RunState, entry: ev.Entry, values: dict[str, Any], captured: dict[str, Any]) -> None:
    for name in values:
        state.fold.vars = {**state.fold.vars, name: entry.seq}
    state.fold.vars_captured = {**state.fold.vars_captured, **captured}
    state.fold_changed = state.fold_changed or bool(values)


def _node_failed(state: RunState, entry: ev.Entry, e: ev.NodeFailed, ns: NodeState) -> None:
    _move(ns, NodeStatus.FAILED)
    ns.failures += 1
    ns.output_seq = entry.seq
    if e.retryable:
        return  # NodeScheduled of the next attempt follows in the same commit
    ns.finished_at = entry.at
    if e.closes and not state.fold.closing:
        state.fold.closing = "failing"
    if e.closes and state.fold.error is None:
        state.fold.error = e.error
    if not e.closes and e.counts:
        state.fold.failed += 1
        state.fold.error = state.fold.error or e.error
    if is_undo(ns.node):
        state.fold.others = [*state.fold.others, e.error]
    elif e.error.code == "outcome_unknown":  # cut off, and must not be repeated: it may have to be undone
        state.fold.outcome_unknown = [*state.fold.outcome_unknown, (ns.node, ns.path, ns.visit)]
    state.fold_changed = True
    _settle(state, ns)


def _node_skipped(state: RunState, entry: ev.Entry, e: ev.NodeSkipped, ns: NodeState) -> None:
    _move(ns, NodeStatus.SKIPPED)
    ns.finished_at = entry.at
    _settle(state, ns)


def _node_cancelled(state: RunState, entry: ev.Entry, e: ev.NodeCancelled, ns: NodeState) -> None:
    _move(ns, NodeStatus.CANCELLED)
    ns.finished_at = entry.at
    if e.outcome == "unknown":
        state.fold.outcome_unknown = [*state.fold.outcome_unknown, (ns.node, ns.path, ns.visit)]
        state.fold_changed = True
    _settle(state, ns)


def _scope_opened(state: RunState, entry: ev.Entry, e: ev.ScopeOpened, ns: NodeState) -> None:
    if ns.status is not NodeStatus.SCHEDULED:
        _move(ns, _SCHEDULED)
    _move(ns, _RUNNING)
    ns.attempt = max(ns.attempt, 1)
    ns.started_at = entry.at
    ns.counters = Counters(count=e.count)
    if state.started_at is None:
        _run_started(state, entry)


def _run_started(state: RunState, entry: ev.Entry) -> None:
    if state.status is _CREATED:  # else it was paused before it began
        state.status = RunStatus.RUNNING
    state.started_at = entry.at


def _settle(state: RunState, ns: NodeState) -> None:
    """Settle an instance that has its final status, and close scopes that have ended with it."""
    if ns.waits:
        ns.waits = ()
    if state.undo is not None and is_undo(ns.node):
        undone = (undone_by(ns.node), ns.path, ns.visit)
        state.undo.left = [left for left in state.undo.left if left.instance != undone]
    if state.fold.undoing and is_undo(ns.node):
        key = instance_text(ns.node, ns.path, ns.visit)
        state.fold.undoing = {k: undo for k, undo in state.fold.undoing.items() if k != key}
        state.fold_changed = True
    scope = ns.scope
    scope.unsettled.discard(ns.node)
    while scope.owner is not None and state.scopes.get(scope.path) is scope:
        # of a map or loop that failed, scopes may never be complete: they are closed with the one around it
        abandoned = scope.owner.status in NODE_SETTLED
        if not scope.unsettled and not _is_busy_below(state, scope):
            _close_scope(state, scope)
        elif not abandoned:
            return
        if not abandoned:
            return
        scope = scope.owner.scope


def _is_busy_below(state: RunState, scope: OpenScope) -> bool:
    """Whether a map or loop in this scope failed and bodies inside it are still being stopped."""
    return any(
        not ns.settled and ns.scope is not scope and ns.path.startswith(scope.path)
        for owner in _abandoned_in(state, scope)
        for ns in state.nodes.values()
        if ns is not owner
    )


def _abandoned_in(state: RunState, scope: OpenScope) -> list[NodeState]:
    found: list[NodeState] = []
    for plan in scope.plan.nodes.values():
        if plan.body is not None:
            ns = state.nodes.get((plan.id, scope.path + plan.lane))
            if ns is not None and ns.status in (NodeStatus.FAILED, NodeStatus.CANCELLED):
                found.append(ns)
    return found


def _close_scope(state: RunState, scope: OpenScope) -> None:
    """Count an item or a round that has ended, and remove it with everything that was cancelled inside it."""
    owner = scope.owner
    assert owner is not None
    assert owner.counters is not None
    if owner.plan.definition.kind == "loop":
        _end_round(state, scope, owner.counters)
    owner.counters.done.add(scope.key)
    state.touch(owner)
    gone = [(plan.id, scope.path + plan.lane) for plan in scope.plan.nodes.values()]
    if _abandoned_in(state, scope):
        for path in [p for p in state.scopes if p.startswith(scope.path) and p != scope.path]:
            gone += [(plan.id, path + plan.lane) for plan in state.scopes.pop(path).plan.nodes.values()]
    del state.scopes[scope.path]
    for key in gone:
        state.missing.pop(key, None)
        ns = state.nodes.get(key)
        if ns is not None:
            state.close(ns)


def _end_round(state: RunState, scope: OpenScope, counters: Counters) -> None:
    owner = scope.owner
    assert owner is not None
    result, until = scope.plan.result, owner.plan.until
    carry = references.locate(state, scope, result)
    owner.round_end = end = RoundEnd()
    try:
        end.captured = {
            name: references.evaluate_captured(state, scope, reading(result, keys, wanted))
            for name, keys, wanted in owner.plan.captures
        }
        end.stop = holds(references.evaluate_captured(state, scope, until))
    except InvalidInput as e:
        end.problem = e.message
    except references.ParamsUnknown:  # a fold of the journal: the next events record what was decided
        owner.round_end = None
    counters.carry = carry


def _wait_opened(state: RunState, entry: ev.Entry, e: ev.WaitOpened) -> None:
    node, path = entry.node or "", entry.path or "."
    about = wait_about(e.about)
    wait = WaitState(
        e.wait_id, e.kind, node, path, entry.visit, e.call, entry.at, e.until, None, about,
        about.get("basket"), about.get("assignee"),
    )  # fmt: skip
    state.waits[e.wait_id] = wait
    ns = state.nodes.get((node, path))
    if ns is not None:
        ns.waits = (*ns.waits, e.wait_id)
    if e.kind == "pause":
        state.fold.paused, state.fold_changed = e.wait_id, True
    elif state.fold.answers:
        left = [given for given in state.fold.answers if not given.is_for(node, path, entry.visit, e.call)]
        state.fold.answers, state.fold_changed = left, True


def wait_about(about: Any) -> dict[str, Any]:
    """What rules read of what a wait is about; what is shown to a person stays in the journal and in the row."""
    return {key: value for key, value in about.items() if key != "about"} if isinstance(about, dict) else {}


def _run_edited(state: RunState, entry: ev.Entry, e: ev.RunEdited) -> None:
    after = e.after if isinstance(e.after, dict) else {}
    wait = state.waits.get(after.get("wait_id", ""))
    if wait is not None:
        wait.basket, wait.assignee = after.get("basket", wait.basket), after.get("assignee", wait.assignee)


def _wait_closed(state: RunState, entry: ev.Entry, e: ev.WaitClosed) -> None:
    wait = state.waits.pop(e.wait_id)
    ns = state.nodes.get((wait.node, wait.path))
    if ns is not None:
        ns.waits = tuple(w for w in ns.waits if w != e.wait_id)
    if e.outcome == "superseded" and wait.child is not None:
        state.fold.children = {c: w for c, w in state.fold.children.items() if c != wait.child}
        state.fold_changed = True
    if wait.kind == "pause":
        state.fold.paused, state.fold_changed = "", True
    if wait.kind == "basket" and wait.basket is not None:
        state.fold.left_baskets = {**state.fold.left_baskets, wait.path: wait.basket}
        state.fold_changed = True
    if e.outcome not in ev.UNANSWERED:
        state.recoveries = 0


def _step_completed(state: RunState, entry: ev.Entry, e: ev.StepCompleted) -> None:
    state.recoveries = 0


def _step_started(state: RunState, entry: ev.Entry, e: ev.StepStarted) -> None:
    if e.undo is not None and not state.fold.undoes_steps:
        state.fold.undoes_steps, state.fold_changed = True, True


def _timer_set(state: RunState, entry: ev.Entry, e: ev.TimerSet) -> None:
    state.timers[e.timer] = e.due_at
    if e.boot:
        state.lasting[e.timer] = Elapsed(e.boot, e.elapsed)


def _timer_fired(state: RunState, entry: ev.Entry, e: ev.TimerFired) -> None:
    state.timers.pop(e.timer)
    state.lasting.pop(e.timer, None)
    if e.timer == RUN_TIMEOUT and not state.fold.closing:
        limit = state.fold.settings.timeout
        state.fold.closing = "failing"
        state.fold.error = ev.ErrorInfo("run_timeout", f"the run took longer than its timeout of {limit:g} s")
        state.fold_changed = True


def _timer_cancelled(state: RunState, entry: ev.Entry, e: ev.TimerCancelled) -> None:
    state.timers.pop(e.timer)
    state.lasting.pop(e.timer, None)


def _child_started(state: RunState, entry: ev.Entry, e: ev.ChildStarted) -> None:
    if not e.detached:
        state.fold.children = {**state.fold.children, e.child: e.wait_id}
        state.fold_changed = True
        state.waits[e.wait_id].child = e.child


def _child_ended(state: RunState, entry: ev.Entry, e: ev.ChildEnded) -> None:
    state.fold.children = {c: w for c, w in state.fold.children.items() if c != e.child}
    state.fold_changed = True


def _phase(word: str) -> Callable[[RunState, ev.Entry, Any], None]:
    def mark(state: RunState, entry: ev.Entry, e: Any) -> None:
        state.fold.phases = {**state.fold.phases, e.phase: word}
        state.fold_changed = True

    return mark


def _scope_closed(state: RunState, entry: ev.Entry, e: ev.ScopeClosed) -> None:
    if entry.node is None:  # the run's own scope
        state.fold.closing = e.outcome
        state.fold.error = e.error or state.fold.error
        state.fold_changed = True


def _run_failed(state: RunState, entry: ev.Entry, e: ev.RunFailed) -> None:
    _run_ended(RunStatus.FAILED)(state, entry, e)
    state.fold.error = e.error
    state.fold.others = list(e.others)
    state.fold_changed = True


_NODE_EVENTS: dict[type[Any], Callable[[RunState, ev.Entry, Any, NodeState], None]] = {
    ev.NodeScheduled: _node_scheduled,
    ev.NodeStarted: _node_started,
    ev.NodeCheckpointed: _node_checkpointed,
    ev.NodeSuspended: _node_suspended,
    ev.NodeResumed: _node_resumed,
    ev.NodeCompleted: _node_completed,
    ev.NodeFailed: _node_failed,
    ev.NodeSkipped: _node_skipped,
    ev.NodeCancelled: _node_cancelled,
    ev.ScopeOpened: _scope_opened,
    ev.OutputEdited: _output_edited,
    ev.PathsOpened: _paths_opened,
    ev.BasketEntered: _basket_entered,
}

_RUN_EVENTS: dict[type[Any], Callable[[RunState, ev.Entry, Any], None]] = {
    ev.RunCreated: _run_created,
    ev.RunTakenOver: _run_taken_over,
    ev.RunSuspended: _run_moved(RunStatus.SUSPENDED),
    ev.RunResumed: _run_moved(RunStatus.RUNNING),
    ev.RunCancelRequested: _run_cancel_requested,
    ev.RunCompleted: _run_ended(RunStatus.COMPLETED),
    ev.RunFailed: _run_failed,
    ev.RunCancelled: _run_ended(RunStatus.CANCELLED),
    ev.BranchOpened: _branch_opened,
    ev.InputEdited: _input_edited,
    ev.AnswerEdited: _answer_edited,
    ev.RunEdited: _run_edited,
    ev.VariablesSet: _variables_set,
    ev.TicketRaised: _ticket_raised,
    ev.TargetEntered: _target_entered,
    ev.PathEnded: _path_ended,
    ev.BasketLeft: _basket_left,
    ev.ScopeClosed: _scope_closed,
    ev.StepCompleted: _step_completed,
    ev.StepStarted: _step_started,
    ev.WaitOpened: _wait_opened,
    ev.WaitClosed: _wait_closed,
    ev.TimerSet: _timer_set,
    ev.TimerFired: _timer_fired,
    ev.TimerCancelled: _timer_cancelled,
    ev.ChildStarted: _child_started,
    ev.ChildEnded: _child_ended,
    ev.PhaseStarted: _phase("started"),
    ev.PhaseCompleted: _phase("completed"),
}
