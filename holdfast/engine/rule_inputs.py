"""Rule inputs: what rules cannot know by themselves and ask the engine for.

Owns: captured parameters of a scope, the output of a map that stores it, what there is to compensate, and the result of
a run, each as the command that brings it. All of them are pure functions of committed values, so after a crash they are
asked for again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine import missing
from holdfast.engine.run.actor import RunActor
from holdfast.engine.runtime import Runtime
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.captures import reading
from holdfast.model.commands import Undoable
from holdfast.model.errors import HoldfastError, ValueTooLarge
from holdfast.model.expressions import part_of
from holdfast.model.limits import INLINE_LIMIT_BYTES, UNDO_PORTION
from holdfast.model.naming import Instance, is_undo, step_path, undone_by
from holdfast.model.plans import Plan
from holdfast.model.references import locate
from holdfast.model.state import NodeState, OpenScope, RunState
from holdfast.model.statuses import NODE_SETTLED, NodeStatus
from holdfast.rules import scopes, undoing
from holdfast.rules.draft import Extras
from holdfast.store.contract import Store
from holdfast.store.records.journal import CANNOT_BE_READ, History, Plans, event_of
from holdfast.store.records.stored_values import PORTION, Values
from holdfast.store.row_types import NodeRow

Journal = Callable[..., Iterable[ev.Entry]]
"""The events of the current branch of a run that have one of these types, in order of seq."""


def params(values: Values, state: RunState, scope: OpenScope) -> cmd.ProvideParams | cmd.FailNode:
    """What conditions inside an item or a round read of its parameters."""
    captured: dict[str, Any] = {}
    try:
        for param, (name, keys, wanted) in scope.plan.param_captures:
            chained = reading(["param", scope.plan.owner, param], keys, "")
            value = msgspec.json.decode(values.load(state, locate(state, scope, chained)))
            captured[f"{param}:{name}"] = part_of(value, wanted)
    except CANNOT_BE_READ:
        raise
    except HoldfastError as e:
        owner = scope.owner
        assert owner is not None
        error = ev.ErrorInfo(e.code, f"its parameters: {e.message}")
        return cmd.FailNode(owner.node, owner.path, owner.attempt, error, visit=owner.visit)
    return cmd.ProvideParams(scope.path, captured)


def output(owner: NodeState, data: bytes) -> cmd.ProvideOutput | cmd.FailNode:
    """The output of a map completes it; one that is too large to be stored fails it."""
    if len(data) <= INLINE_LIMIT_BYTES:
        return cmd.ProvideOutput(owner.node, owner.path, owner.visit, data)
    why = (
        f"it has {len(data):,} bytes as JSON; at most {INLINE_LIMIT_BYTES:,} are stored, and it is stored because the "
        f"items of {owner.node} return a variable, or what a loop around it carries: pass that through a node"
    )
    return no_output(owner, ValueTooLarge(why))


def no_output(owner: NodeState, error: HoldfastError) -> cmd.FailNode:
    """The output of a map cannot be made."""
    info = ev.ErrorInfo(error.code, f"its output: {error.message}")
    return cmd.FailNode(owner.node, owner.path, owner.attempt, info, visit=owner.visit)


def what_to_undo(runtime: Runtime, state: RunState, *, runs_here: bool) -> cmd.ProvideUndo:
    """What is left to compensate, and which compensations cannot run because their code is missing. `runs_here`: the
    engine has the code of the run and drives it."""
    found = read_undo(runtime.store, runtime.versions, state)
    wanted = undoing.handlers_of(state, found)
    lacking = missing.compensations_without_code(runtime, state, wanted, runs_here=runs_here)
    return msgspec.structs.replace(found, lacking=lacking)


def read_undo(store: Store, plans: Plans, state: RunState) -> cmd.ProvideUndo:
    """What is left to compensate, from the store. A run that has branches is read as its current one tells it."""

    def journal(*types: str) -> Iterable[ev.Entry]:
        if state.fold.ancestors:
            run = store.run_by_no(state.run_no)
            assert run is not None
            line = History(store, plans, run).line(state.branch)
            yield from (entry for entry in line if type(entry.event).__name__ in types)
            return
        after = 0
        while page := store.events(state.run_no, after, PORTION, types=types):
            linked = store.event_data(state.run_no, [row.seq for row in page])
            for row in page:
                yield ev.Entry(row.seq, row.at, event_of(linked[row.seq]), row.node, row.path, row.visit, row.branch)
            after = page[-1].seq

    return undo(state, store.nodes(state.run_no), journal)


def undo(state: RunState, rows: Sequence[NodeRow], journal: Journal) -> cmd.ProvideUndo:
    """What is left to compensate, from all rows and the journal of a run, last completed first."""
    undone = {(undone_by(r.node), r.path, r.visit) for r in rows if is_undo(r.node) and r.status in NODE_SETTLED}
    done = [row for row in rows if row.status == NodeStatus.COMPLETED and _is_undoable(state.plan, row)]
    starts = _starts(journal) if any(_takes_inputs(state.plan, row) for row in rows) else {}
    left = [
        Undoable(*instance, row.output_seq, _args_before(starts.get(instance, ()), row.output_seq))
        for row in done
        if (instance := (row.node, row.path, row.visit)) not in undone
    ]
    unknown = {
        instance: _args_before(starts.get(instance, ()), state.seq + 1) for instance in state.fold.outcome_unknown
    }
    steps = _Steps(undone)
    if state.fold.undoes_steps:
        steps.read(journal("StepStarted", "StepCompleted", "StepFailed"))
    left = [*(one for one in left if one.output_seq >= steps.since), *steps.completed]
    left.sort(key=lambda one: -one.output_seq)
    return cmd.ProvideUndo(
        tuple(left), tuple(sorted(undone)), unknown, *steps.of_unknown_outcome(), more=steps.since > 0
    )


class _Steps:
    """The steps of a run that have a compensation, in order of their completion; of very many the last ones."""

    def __init__(self, undone: set[Instance]) -> None:
        self._undone = undone
        self._started: dict[tuple[Instance, str], tuple[int, ev.StepUndo]] = {}
        self._places: dict[tuple[Instance, str, int], str] = {}
        self._completed: dict[Instance, Undoable] = {}
        self.since = 0
        """What completed before this event is left for later; 0: nothing."""

    def read(self, journal: Iterable[ev.Entry]) -> None:
        for entry in journal:
            body, e = (entry.node or "", entry.path or ".", entry.visit), entry.event
            call = (body, e.scope, e.position)
            match e:
                case ev.StepStarted(undo=ev.StepUndo() as undo):
                    self._places[call] = undo.place
                    self._started[body, undo.place] = entry.seq, undo
                case ev.StepCompleted(undo=place) if place:
                    self._places.pop(call, None)
                    self._complete(body, place, entry.seq)
                case ev.StepFailed():
                    self._started.pop((body, self._places.pop(call, "")), None)

    def _complete(self, body: Instance, place: str, seq: int) -> None:
        started = self._started.pop((body, place), None)
        if started is None:
            return
        found = _undoable(body, *started, output_seq=seq)
        if found.instance in self._undone:
            return
        self._completed.pop(found.instance, None)  # a body that began anew has done it once more, with the same key
        self._completed[found.instance] = found
        if len(self._completed) > UNDO_PORTION:
            del self._completed[next(iter(self._completed))]
            self.since = next(iter(self._completed.values())).output_seq

    @property
    def completed(self) -> Iterable[Undoable]:
        return self._completed.values()

    def of_unknown_outcome(self) -> tuple[tuple[Undoable, ...], tuple[Instance, ...]]:
        """Steps that were started and whose outcome is unknown: those that can be undone without their output, last
        started first, and the others."""
        found = [(_undoable(body, *started), started[1]) for (body, _), started in self._started.items()]
        found.reverse()
        can = tuple(one for one, undo in found if undo.accepts_none and one.instance not in self._undone)
        return can, tuple(one.instance for one, undo in found if not undo.accepts_none)


def _undoable(body: Instance, started_at: int, undo: ev.StepUndo, output_seq: int = 0) -> Undoable:
    node, path, visit = body
    args = {name: ["at", started_at, name] for name in undo.inputs}
    bare = msgspec.structs.replace(undo, inputs={})
    return Undoable(undo.node, step_path(path, node, undo.place), visit, output_seq, args, bare)


def _is_undoable(plan: Plan, row: NodeRow) -> bool:
    node = plan.scope_of(row.path).nodes.get(row.node)
    return node is not None and node.undo is not None


def _takes_inputs(plan: Plan, row: NodeRow) -> bool:
    node = plan.scope_of(row.path).nodes.get(row.node)
    return node is not None and bool(node.definition.compensate_inputs)


def _starts(journal: Journal) -> dict[Instance, list[tuple[int, dict[str, Any]]]]:
    """Where the inputs of instances are that their compensations take, by the seq of their starts, oldest first."""
    found: dict[Instance, list[tuple[int, dict[str, Any]]]] = {}
    for entry in journal("NodeStarted"):
        instance = (entry.node or "", entry.path or ".", entry.visit)
        found.setdefault(instance, []).append((entry.seq, entry.event.undo_args))
    return found


def _args_before(starts: Sequence[tuple[int, dict[str, Any]]], seq: int) -> dict[str, Any]:
    return next((args for started, args in reversed(starts) if started < seq), {})


def has_readers(plan: Plan, entry: ev.Entry) -> bool:
    """Whether an output will soon be read by itself. The last node of an item has no readers: the output of a map is
    read as a whole, from its rows, and 100,000 items must not fill the cache."""
    if entry.node is None or entry.path is None:
        return True
    scope = plan.scope_of(entry.path)
    if scope.parent is None or scope.parent.nodes[scope.owner].definition.kind != "map":
        return True
    node = scope.nodes.get(undone_by(entry.node))
    return node is not None and bool(node.dependents)


def located_result(state: RunState) -> Any:
    """The result of a run, by the events that hold it."""
    return locate(state, state.scopes["."], state.plan.root.result)


def result(data: bytes, located: Any) -> cmd.FinishRun:
    """The result ends the run. One that is too large for an event is not stored a second time: the journal holds what
    it is made of."""
    return cmd.FinishRun(data) if len(data) <= INLINE_LIMIT_BYTES else cmd.FinishRun(b"null", located)


def no_result(error: HoldfastError) -> cmd.FailRun:
    """The result cannot be made."""
    return cmd.FailRun(ev.ErrorInfo(error.code, f"its result: {error.message}"))


# --- handing them to a live run -------------------------------------------------------------------------------------


def provide_wanted(actor: RunActor, extras: Extras) -> None:
    """Provide what rules wanted in a turn: parameters of scopes, and outputs of maps that store them."""
    for scope in extras.params_wanted:
        _provide_params(actor, scope)
    for owner in extras.outputs_wanted:
        actor.runtime.spawn(_reading(actor, functools.partial(_provide_output, actor, owner)))


def _provide_params(actor: RunActor, scope: OpenScope) -> None:
    """Submit the parameters of a scope; for a run that has not written everything yet, once it has: the output of a map
    is read from its rows."""
    if actor.write_buffer.entries:
        actor.runtime.spawn(_reading(actor, functools.partial(_provide_params_later, actor, scope)))
    else:
        actor.submit(params(actor.runtime.values, actor.state, scope))


def provide_undo(actor: RunActor) -> None:
    """Read what there is to compensate beside the loop, and submit it."""
    actor.runtime.spawn(_reading(actor, functools.partial(_provide_undo, actor)))


def provide_result(actor: RunActor) -> None:
    """Read the result beside the loop, and submit it."""
    actor.runtime.spawn(_reading(actor, functools.partial(_provide_result, actor)))


async def _reading(actor: RunActor, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do `work`, which reads from the store. A read that fails does not fail the run: the actor is detached. Where the
    engine closes before this task has begun, the coroutine of `work` is not made."""
    try:
        await work()
    except CANNOT_BE_READ as e:
        actor.cannot_read(e)
    except Exception as e:  # a bug of ours: without what it has asked for, the run would wait for ever
        if actor.is_detached:
            raise
        actor.stop_loudly(e)


async def _provide_params_later(actor: RunActor, scope: OpenScope) -> None:
    await actor.flushed()
    if not actor.is_detached:
        _provide_params(actor, scope)


async def _provide_output(actor: RunActor, owner: NodeState) -> None:
    """Read the items of a map beside the loop, and submit its output."""
    await actor.flushed()
    if actor.is_detached or not scopes.awaits_output(owner):
        return
    try:
        data = await asyncio.to_thread(actor.runtime.values.items_of, actor.state, owner)
    except CANNOT_BE_READ:
        raise
    except HoldfastError as e:
        actor.submit(no_output(owner, e))
        return
    actor.submit(output(owner, data))


async def _provide_undo(actor: RunActor) -> None:
    await actor.flushed()
    actor.submit(await asyncio.to_thread(what_to_undo, actor.runtime, actor.state, runs_here=actor.runs_here()))


async def _provide_result(actor: RunActor) -> None:
    located = located_result(actor.state)
    await actor.flushed()
    try:
        data = await asyncio.to_thread(actor.runtime.values.load, actor.state, located)
    except CANNOT_BE_READ:
        raise
    except HoldfastError as e:
        actor.submit(no_result(e))
        return
    actor.submit(result(data, located))
