"""Bodies: how the bodies of a run get a slot, start and stop here, and what they ask of their run.

Owns: reserving slots for bodies, orders to the executor, bodies that have their answer and wait for a slot, and
`BodyPort`, the run as its bodies see it.
Never: decides that a body starts or ends (rules), counts slots (slots.py), executes anything (executor).
On crash: slots go with the engine's lease; the next owner starts the bodies again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine import missing
from holdfast.engine.ownership import quarantine
from holdfast.engine.ports import Attempt, Done, settle
from holdfast.engine.slots import Place, Rank
from holdfast.engine.step_places import Granted, StepPlace
from holdfast.model import commands as cmd
from holdfast.model.errors import Suspended
from holdfast.model.handlers import Handler
from holdfast.model.state import NodeState
from holdfast.model.statuses import NodeStatus
from holdfast.rules import nodes
from holdfast.store.records.journal import CANNOT_BE_READ

if TYPE_CHECKING:
    from holdfast.engine.run.actor import RunActor

log = logging.getLogger("holdfast.engine")


# --- slots ----------------------------------------------------------------------------------------------------------


def reserve_slot(actor: RunActor, ns: NodeState) -> bool:
    """Reserve a slot for a scheduled body; True: it may start now. If only a slot is missing, the body starts when
    there is one."""
    if actor.state.fold.paused or actor.release_after_commit:
        return False  # it is scheduled again when the pause ends, or by the engine that claims the run
    if actor.body_slots and ns.key in actor.body_slots:
        return True  # it was kept for this body
    has_code = actor.has_code or actor.runs_here()
    slot = actor.engine.place_for(ns, isolated=actor.is_suspect) if has_code else None
    if slot is None:
        if has_code:
            _hold_if_missing(actor, ns)
        return False  # its code is not here
    return not slot or _reserve_limited(actor, ns, slot)


def _reserve_limited(actor: RunActor, ns: NodeState, slot: Place) -> bool:
    """The same where bodies of its kind are limited."""
    slots, key = actor.engine.slots, ns.key
    if not slots.take(slot):
        slots.wait(slot, _rank(actor, ns), lambda: start_if_wanted(actor, *key))
        return False
    actor.body_slots[key] = slot
    return True


def start_if_wanted(actor: RunActor, node: str, path: str) -> bool:
    """Start a body that is still scheduled and for which there is a slot: one has become free, or the body's delay is
    over."""
    ns = actor.state.nodes.get((node, path))
    if actor.is_detached or ns is None or ns.status is not NodeStatus.SCHEDULED or not reserve_slot(actor, ns):
        return False
    actor.submit(cmd.StartNode(node, path))
    return True


def _rank(actor: RunActor, ns: NodeState) -> Rank:
    return actor.state.fold.settings.priority, ns.plan.definition.priority


# --- bodies that run again because their answer is there ------------------------------------------------------------


def reserve_slot_again(actor: RunActor, ns: NodeState) -> bool:
    """Reserve a slot for a body that was left while it waited and has its answer. Where there is none, the body runs
    when there is."""
    node, path = key = ns.key
    slot = actor.engine.place_for(ns, isolated=actor.is_suspect)
    if key in actor.body_slots or not slot:
        return True
    if actor.engine.slots.take(slot):
        actor.body_slots[key] = slot
        return True
    actor.resuming_bodies.add(key)
    actor.engine.slots.wait(slot, _rank(actor, ns), lambda: _resume_if_wanted(actor, node, path))
    return False


def _resume_if_wanted(actor: RunActor, node: str, path: str) -> bool:
    """A slot has become free for a body that has its answer, if it still wants it."""
    ns = actor.state.nodes.get((node, path))
    if actor.is_detached or ns is None or ns.key not in actor.resuming_bodies:
        return False
    actor.resuming_bodies.discard(ns.key)
    return ns.status is NodeStatus.RUNNING and _run_again(actor, ns)


def _run_again(actor: RunActor, ns: NodeState) -> bool:
    if not reserve_slot_again(actor, ns):
        return False
    start(actor, ns, nodes.located_args(actor.state, ns), actor.state.seq + 1)
    return True


def _restart_if_running(actor: RunActor, key: tuple[str, str]) -> None:
    """A body was evicted without reporting. If its node is still RUNNING, the answer arrived while its thread was being
    released: start it again."""
    ns = actor.state.nodes.get(key)
    if ns is None or ns.status is not NodeStatus.RUNNING or ns.cancelling:
        return
    if actor.restarted_at == actor.state.seq:  # no answer: what it waits for is known to another owner only
        actor.engine.spawn(actor.engine.poll_loop.detach_lost_runs())
        return
    actor.restarted_at = actor.state.seq
    _run_again(actor, ns)


def stop_resuming(actor: RunActor) -> None:
    """The engine stops: bodies that have their answer and no slot yet run later, with the same attempt."""
    for node, path in actor.resuming_bodies:
        ns = actor.state.nodes.get((node, path))
        if ns is not None and ns.status is NodeStatus.RUNNING:
            actor.submit(cmd.StopNode(node, path, ns.attempt, visit=ns.visit))
    actor.resuming_bodies.clear()


# --- orders to the executor -----------------------------------------------------------------------------------------


def start(actor: RunActor, ns: NodeState, args: dict[str, Any], since: int) -> None:
    """Run a body. Its remembered calls, if it has any, are in events before `since`."""
    engine = actor.engine
    handler = engine.handler(ns.plan.definition.uses)
    if handler is None:
        if actor.runs_here():
            _hold_if_missing(actor, ns)
        return
    if not engine.lease.may_begin:
        engine.lease.defer(functools.partial(_start_if_still_wanted, actor, ns, ns.attempt, args, since))
        return
    attempt = Attempt(
        port=BodyPort(actor),
        plan=actor.plan,
        definition=ns.plan.definition,
        handler=handler,
        node=ns.node,
        path=ns.path,
        visit=ns.visit,
        attempt=ns.attempt,
        failures=ns.failures,
        memory_seq=ns.memory_seq,
        has_memory=ns.memory_seq < since,
        args=args,
        captures=ns.plan.captures,
    )
    if actor.is_suspect and handler.kind != "process":  # the executor finds out by itself when its process dies
        if handler.code.kind == "process" and actor.run_no not in engine.loader.code_change_accepted:
            actor.hold(_cannot_be_isolated(actor, handler))
            return
        attempt.isolated = handler.code.kind != "process"
        attempt.own_process = quarantine.needs_own_process(actor.state.recoveries, actor.max_recoveries)
    engine.executor.start(attempt)


def _hold_if_missing(actor: RunActor, ns: NodeState) -> None:
    """Put a run on hold whose workflow is loaded here and the compensation of a step is not: claims do not ask for it,
    because only the journal names it."""
    uses = ns.plan.definition.uses
    if actor.engine.handler(uses) is None:
        actor.hold(missing.hold_for(actor.run_id, uses))


def _start_if_still_wanted(actor: RunActor, ns: NodeState, attempt: int, args: dict[str, Any], since: int) -> None:
    """The lease is held again: start a body, unless another engine owns its run or the run has gone on without it."""
    is_wanted = ns.status is NodeStatus.RUNNING and ns.attempt == attempt and actor.state.nodes.get(ns.key) is ns
    if is_wanted and not actor.is_detached and not actor.engine.executor.is_live(actor.run_no, ns.node, ns.path):
        start(actor, ns, args, since)


def _cannot_be_isolated(actor: RunActor, handler: Handler) -> str:
    return (
        f"crash_loop: {actor.state.recoveries} engines in a row died while this run made no progress, and "
        f"{handler.name} cannot be tried in a process of its own: it is defined in a notebook, a prompt or inside a "
        f"function. Move it to the top level of a file, or call `await engine.resume({actor.run_id!r})` where it is "
        "defined, which lets it run inside the engine once more"
    )


def cancel(actor: RunActor, ns: NodeState) -> None:
    """Ask a body to stop."""
    engine = actor.engine
    if engine.executor.is_live(actor.run_no, ns.node, ns.path):
        engine.executor.cancel(actor.run_no, ns.node, ns.path, engine.settings.grace_seconds)
    elif ns.status is NodeStatus.RUNNING:  # it does not run (its code is not here): there is nothing to wait for
        actor.submit(cmd.DropNode(ns.node, ns.path, ns.attempt, visit=ns.visit))


def supersede(actor: RunActor, ns: NodeState) -> None:
    """Cancel a body that waits and whose end is recorded already."""
    slot = actor.body_slots.pop(ns.key, None)
    actor.engine.executor.supersede(actor.run_no, ns.node, ns.path)
    current = actor.state.nodes.get(ns.key)
    if slot and current is not None and current.status is NodeStatus.RUNNING:
        actor.body_slots[ns.key] = slot  # the next visit has reserved it in this turn
    elif slot:
        actor.engine.slots.free(slot)


# --- a run as its bodies see it -------------------------------------------------------------------------------------


class BodyPort:
    """`ports.RunPort` for the bodies that execute in the engine's process."""

    __slots__ = ("actor", "run_id", "run_no")

    def __init__(self, actor: RunActor) -> None:
        self.actor = actor
        self.run_id = actor.run_id
        self.run_no = actor.run_no

    # --- what a body reports

    def submit(self, command: Any, done: Done | None = None) -> None:
        self.actor.submit(command, done)

    def body_exited(self, key: tuple[str, str], evicted: bool) -> None:
        actor = self.actor
        slot = actor.body_slots.pop(key, None)
        if slot:
            actor.engine.slots.free(slot)
        if evicted and not actor.is_detached and not actor.engine.stopping:
            _restart_if_running(actor, key)

    def body_died(self, command: cmd.BodyDied) -> None:
        actor = self.actor
        if quarantine.is_guilty(actor.state.recoveries, actor.max_recoveries):
            actor.hold(
                f"crash_loop: attempt {command.attempt} of {command.node} brought its process down, after "
                f"{actor.state.recoveries} recoveries without progress: {command.how}"
            )
        else:
            where = (self.run_id, command.attempt, command.node)
            log.warning("run %s: attempt %d of %s brought its process down: %s", *where, command.how)
            actor.submit(command)

    def hold(self, why: str) -> None:
        self.actor.hold(why)

    def cannot_read(self, error: Exception) -> None:
        self.actor.cannot_read(error)

    # --- what a body reads

    @property
    def store_id(self) -> str:
        return self.actor.engine.store_id

    @property
    def key_epoch(self) -> int:
        return self.actor.state.fold.key_epoch

    @property
    def compensates(self) -> bool:
        return self.actor.state.fold.settings.on_failure == "compensate"

    def now(self) -> int:
        return self.actor.engine.clock.now()

    def is_suspended(self, node: str, path: str) -> bool:
        ns = self.actor.state.nodes.get((node, path))
        return ns is not None and ns.status is NodeStatus.SUSPENDED

    async def flushed(self) -> None:
        await self.actor.flushed()

    def load(self, located: Any) -> bytes:
        try:
            return self.actor.engine.values.load(self.actor.state, located)
        except CANNOT_BE_READ as e:
            self.cannot_read(e)
            raise

    async def load_slowly(self, located: Any) -> bytes:
        await self.flushed()
        try:
            return await asyncio.to_thread(self.actor.engine.values.load, self.actor.state, located)
        except CANNOT_BE_READ as e:
            self.cannot_read(e)
            raise

    async def memory(self, node: str, path: str, since: int, args: Iterable[Any]) -> Sequence[tuple[str, bytes]]:
        try:
            return await self.actor.engine.replay_reader.recall(self.actor.state, node, path, since, args)
        except CANNOT_BE_READ as e:
            self.cannot_read(e)
            raise

    def variable(self, name: str) -> bytes | None:
        actor = self.actor
        seq = actor.state.fold.vars.get(name)
        if seq is None:
            return None
        try:
            return actor.engine.values.variable(actor.state, seq, name)
        except CANNOT_BE_READ as e:
            self._cannot_read_in_body(e)
            raise Suspended from e

    def _cannot_read_in_body(self, error: Exception) -> None:
        """The same for a body that executes, whose thread waits until it has been left."""
        loop = self.actor.engine.loop
        try:
            is_loop = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_loop = False
        if is_loop:
            self.cannot_read(error)
        else:
            asyncio.run_coroutine_threadsafe(self._cannot_read_soon(error), loop).result()

    async def _cannot_read_soon(self, error: Exception) -> None:
        self.cannot_read(error)

    # --- what a body asks for

    @property
    def may_begin(self) -> bool:
        return self.actor.engine.lease.may_begin

    async def until_it_may_begin(self) -> None:
        engine = self.actor.engine
        while not self.may_begin:
            returned = engine.loop.create_future()
            engine.lease.defer(functools.partial(settle, returned, None, None))
            await returned

    def step_place(
        self, handler: str, concurrency: int, priority: int, inside: Sequence[str], granted: Granted
    ) -> StepPlace:
        engine = self.actor.engine
        engine.nesting.check(inside, handler)
        rank = (self.actor.state.fold.settings.priority, priority)
        return StepPlace(engine.slots, engine.slots.place_of_step(handler, concurrency), rank, granted)

    async def order_child(
        self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        depth = self.actor.state.fold.depth + 1
        return await self.actor.engine.starting.order_child(depth, workflow, inputs, run_id, detached)

    def follow_child(self, run_id: str) -> None:
        engine = self.actor.engine
        engine.spawn(engine.inbox.report_end(run_id, self.run_no))

    async def order_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        return self.actor.engine.inbox.check_signal(run_id, name, payload, signal_id)
