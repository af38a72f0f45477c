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
from typing import Any

from holdfast.engine import messages, missing
from holdfast.engine.alarms import Alarms
from holdfast.engine.messages import Inbox
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.ports import Attempt, Done, settle
from holdfast.engine.replay_reader import ReplayReader
from holdfast.engine.run.actor import RunActor
from holdfast.engine.runtime import Runtime
from holdfast.engine.slots import Granted, Place, Rank, StepPlace
from holdfast.engine.starting import Starting
from holdfast.model import commands as cmd
from holdfast.model.errors import HoldfastError, Suspended
from holdfast.model.handlers import Handler
from holdfast.model.state import NodeState
from holdfast.model.statuses import NodeStatus
from holdfast.rules import nodes
from holdfast.rules.draft import Draft
from holdfast.store.records.journal import CANNOT_BE_READ

log = logging.getLogger("holdfast.engine")


class Bodies:
    """The bodies of the runs of one engine."""

    def __init__(
        self, runtime: Runtime, custody: Custody, replay_reader: ReplayReader, starting: Starting, inbox: Inbox
    ) -> None:
        self._runtime = runtime
        self._custody = custody
        self.replay_reader = replay_reader
        self.starting = starting
        self.inbox = inbox

    # --- slots -------------------------------------------------------------------------------------------------------

    def reserve_slot(self, actor: RunActor, ns: NodeState) -> bool:
        """Reserve a slot for a scheduled body; True: it may start now. If only a slot is missing, the body starts when
        there is one."""
        if actor.state.fold.paused or actor.release_after_commit:
            return False  # it is scheduled again when the pause ends, or by the engine that claims the run
        if actor.body_slots and ns.key in actor.body_slots:
            return True  # it was kept for this body
        has_code = actor.has_code or actor.runs_here()
        slot = self._slot_for(actor, ns) if has_code else None
        if slot is None:
            if has_code:
                self._hold_if_missing(actor, ns)
            return False  # its code is not here
        return not slot or self._reserve_limited(actor, ns, slot)

    def _slot_for(self, actor: RunActor, ns: NodeState) -> Place | None:
        """The pools in which a body needs a slot; None when its code is not here, or the engine stops. The body of a
        crash suspect executes in a spawned process."""
        runtime, definition = self._runtime, ns.plan.definition
        handler = runtime.handlers.get(definition.uses) or runtime.handler(definition.uses)
        if handler is None or runtime.stopping:
            return None
        isolated = actor.is_suspect
        if definition.concurrency is None and handler.kind in ("async", "inline") and not isolated:
            return ()
        return runtime.slots.place_for(handler, definition.concurrency, isolated=isolated)

    def _reserve_limited(self, actor: RunActor, ns: NodeState, slot: Place) -> bool:
        """The same where bodies of its kind are limited."""
        slots, key = self._runtime.slots, ns.key
        if not slots.take(slot):
            slots.wait(slot, self._rank(actor, ns), lambda: self.start_if_wanted(actor, *key))
            return False
        actor.body_slots[key] = slot
        return True

    def start_if_wanted(self, actor: RunActor, node: str, path: str) -> bool:
        """Start a body that is still scheduled and has a slot: one has become free, or the body's delay is over."""
        ns = actor.state.nodes.get((node, path))
        if actor.is_detached or ns is None or ns.status is not NodeStatus.SCHEDULED or not self.reserve_slot(actor, ns):
            return False
        actor.submit(cmd.StartNode(node, path))
        return True

    def set_alarms(self, actor: RunActor, draft: Draft) -> None:
        """Bring the run's alarms in line with its timers, and with starts that this turn delayed."""
        if actor.alarms is None:
            actor.alarms = Alarms(
                self._runtime.loop,
                self._runtime.clock,
                fire=lambda timer: actor.submit(cmd.FireTimer(timer)),
                start=functools.partial(self.start_if_wanted, actor),
            )
        actor.alarms.set(actor.state, draft)

    def _rank(self, actor: RunActor, ns: NodeState) -> Rank:
        return actor.state.fold.settings.priority, ns.plan.definition.priority

    # --- bodies that run again because their answer is there ---------------------------------------------------------

    def reserve_slot_again(self, actor: RunActor, ns: NodeState) -> bool:
        """Reserve a slot for a body that was evicted while it waited and has its answer. If there is none, the body
        runs when there is."""
        node, path = key = ns.key
        slot = self._slot_for(actor, ns)
        if key in actor.body_slots or not slot:
            return True
        if self._runtime.slots.take(slot):
            actor.body_slots[key] = slot
            return True
        actor.resuming_bodies.add(key)
        self._runtime.slots.wait(slot, self._rank(actor, ns), lambda: self._resume_if_wanted(actor, node, path))
        return False

    def _resume_if_wanted(self, actor: RunActor, node: str, path: str) -> bool:
        """A slot has become free for a body that has its answer, if it still wants it."""
        ns = actor.state.nodes.get((node, path))
        if actor.is_detached or ns is None or ns.key not in actor.resuming_bodies:
            return False
        actor.resuming_bodies.discard(ns.key)
        return ns.status is NodeStatus.RUNNING and self._run_again(actor, ns)

    def _run_again(self, actor: RunActor, ns: NodeState) -> bool:
        if not self.reserve_slot_again(actor, ns):
            return False
        self.start(actor, ns, nodes.located_args(actor.state, ns), actor.state.seq + 1)
        return True

    def restart_if_running(self, actor: RunActor, key: tuple[str, str]) -> None:
        """A body was evicted without reporting. If its node is still RUNNING, the answer arrived while its thread was
        being released: start it again."""
        ns = actor.state.nodes.get(key)
        if ns is None or ns.status is not NodeStatus.RUNNING or ns.cancelling:
            return
        if actor.restarted_at == actor.state.seq:  # no answer: what it waits for is known to another owner only
            self._runtime.spawn(self._custody.detach_lost_runs())
            return
        actor.restarted_at = actor.state.seq
        self._run_again(actor, ns)

    def stop_resuming(self, actor: RunActor) -> None:
        """The engine stops: bodies that have their answer and no slot yet run later, with the same attempt."""
        for node, path in actor.resuming_bodies:
            ns = actor.state.nodes.get((node, path))
            if ns is not None and ns.status is NodeStatus.RUNNING:
                actor.submit(cmd.StopNode(node, path, ns.attempt, visit=ns.visit))
        actor.resuming_bodies.clear()

    # --- orders to the executor --------------------------------------------------------------------------------------

    def start(self, actor: RunActor, ns: NodeState, args: dict[str, Any], since: int) -> None:
        """Run a body. Its remembered calls, if it has any, are in events before `since`."""
        runtime = self._runtime
        handler = runtime.handlers.get(ns.plan.definition.uses) or runtime.handler(ns.plan.definition.uses)
        if handler is None:
            if actor.runs_here():
                self._hold_if_missing(actor, ns)
            return
        if not runtime.lease.may_begin:
            runtime.lease.defer(functools.partial(self._start_if_still_wanted, actor, ns, ns.attempt, args, since))
            return
        attempt = Attempt(
            port=BodyPort(actor, self),
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
            if handler.code.kind == "process" and actor.run_no not in self._custody.code_change_accepted:
                actor.hold(self._cannot_be_isolated(actor, handler))
                return
            attempt.isolated = handler.code.kind != "process"
            attempt.own_process = actor.needs_own_process
        runtime.executor.start(attempt)

    def _hold_if_missing(self, actor: RunActor, ns: NodeState) -> None:
        """Put a run on hold whose workflow is loaded here while the compensation of a step is not: claims do not check
        it, because only the journal names it."""
        uses = ns.plan.definition.uses
        if self._runtime.handler(uses) is None:
            actor.hold(missing.hold_for(actor.run_id, uses))

    def _start_if_still_wanted(
        self, actor: RunActor, ns: NodeState, attempt: int, args: dict[str, Any], since: int
    ) -> None:
        """The lease is held again: start a body, unless another engine owns its run or the run no longer waits for
        it."""
        is_wanted = ns.status is NodeStatus.RUNNING and ns.attempt == attempt and actor.state.nodes.get(ns.key) is ns
        if is_wanted and not actor.is_detached and not self._runtime.executor.is_live(actor.run_no, ns.node, ns.path):
            self.start(actor, ns, args, since)

    def _cannot_be_isolated(self, actor: RunActor, handler: Handler) -> str:
        return (
            f"crash_loop: {actor.state.recoveries} engines in a row died while this run made no progress, and "
            f"{handler.name} cannot be tried in a process of its own: it is defined in a notebook, a prompt or inside "
            f"a function. Move it to the top level of a file, or call `await engine.resume({actor.run_id!r})` where it "
            "is defined, which lets it run inside the engine once more"
        )

    def cancel(self, actor: RunActor, ns: NodeState) -> None:
        """Ask a body to stop."""
        runtime = self._runtime
        if runtime.executor.is_live(actor.run_no, ns.node, ns.path):
            runtime.executor.cancel(actor.run_no, ns.node, ns.path, runtime.settings.grace_seconds)
        elif ns.status is NodeStatus.RUNNING:  # it does not run (its code is not here): there is nothing to wait for
            actor.submit(cmd.DropNode(ns.node, ns.path, ns.attempt, visit=ns.visit))

    def supersede(self, actor: RunActor, ns: NodeState) -> None:
        """Cancel a body that waits and whose end is recorded already."""
        slot = actor.body_slots.pop(ns.key, None)
        self._runtime.executor.supersede(actor.run_no, ns.node, ns.path)
        current = actor.state.nodes.get(ns.key)
        if slot and current is not None and current.status is NodeStatus.RUNNING:
            actor.body_slots[ns.key] = slot  # the next visit has reserved it in this turn
        elif slot:
            self._runtime.slots.free(slot)


# --- a run as its bodies see it -------------------------------------------------------------------------------------


class BodyPort:
    """`ports.RunPort` for the bodies that execute in the engine's process."""

    __slots__ = ("_bodies", "_runtime", "actor", "run_id", "run_no")

    def __init__(self, actor: RunActor, bodies: Bodies) -> None:
        self.actor = actor
        self._bodies = bodies
        self._runtime = actor.runtime
        self.run_id = actor.run_id
        self.run_no = actor.run_no

    # --- what a body reports

    def submit(self, command: Any, done: Done | None = None) -> None:
        self.actor.submit(command, done)

    def body_exited(self, key: tuple[str, str], evicted: bool) -> None:
        actor = self.actor
        slot = actor.body_slots.pop(key, None)
        if slot:
            self._runtime.slots.free(slot)
        if evicted and not actor.is_detached and not self._runtime.stopping:
            self._bodies.restart_if_running(actor, key)

    def body_died(self, command: cmd.BodyDied) -> None:
        actor = self.actor
        if actor.is_guilty:
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
        return self._runtime.store_id

    @property
    def key_epoch(self) -> int:
        return self.actor.state.fold.key_epoch

    @property
    def compensates(self) -> bool:
        return self.actor.state.fold.settings.on_failure == "compensate"

    def now(self) -> int:
        return self._runtime.clock.now()

    def is_suspended(self, node: str, path: str) -> bool:
        ns = self.actor.state.nodes.get((node, path))
        return ns is not None and ns.status is NodeStatus.SUSPENDED

    async def flushed(self) -> None:
        await self.actor.flushed()

    def load(self, located: Any) -> bytes:
        try:
            return self._runtime.values.load(self.actor.state, located)
        except Exception as e:
            self._not_loaded(e)
            raise

    async def load_slowly(self, located: Any) -> bytes:
        await self.flushed()
        try:
            return await asyncio.to_thread(self._runtime.values.load, self.actor.state, located)
        except Exception as e:
            self._not_loaded(e)
            raise

    async def memory(self, node: str, path: str, since: int, args: Iterable[Any]) -> Sequence[tuple[str, bytes]]:
        try:
            return await self._bodies.replay_reader.recall(self.actor.state, node, path, since, args)
        except Exception as e:
            self._not_loaded(e)
            raise

    def _not_loaded(self, error: Exception) -> None:
        """What a body needs before it begins was not read. An expression that has no value fails the body; anything
        else is no fault of the run, which is released or put on hold."""
        if isinstance(error, CANNOT_BE_READ):
            self.cannot_read(error)
        elif not (isinstance(error, HoldfastError) or self.actor.is_detached):
            self.actor.stop_loudly(error)

    def variable(self, name: str) -> bytes | None:
        actor = self.actor
        seq = actor.state.fold.vars.get(name)
        if seq is None:
            return None
        try:
            return self._runtime.values.variable(actor.state, seq, name)
        except CANNOT_BE_READ as e:
            self._cannot_read_in_body(e)
            raise Suspended from e

    def _cannot_read_in_body(self, error: Exception) -> None:
        """The same for a body that executes, whose thread waits until it has been left."""
        loop = self._runtime.loop
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
        return self._runtime.lease.may_begin

    async def until_it_may_begin(self) -> None:
        runtime = self._runtime
        while not self.may_begin:
            returned = runtime.loop.create_future()
            runtime.lease.defer(functools.partial(settle, returned, None, None))
            await returned

    def step_place(
        self, handler: str, concurrency: int, priority: int, inside: Sequence[str], granted: Granted
    ) -> StepPlace:
        runtime = self._runtime
        runtime.nesting.check(inside, handler)
        rank = (self.actor.state.fold.settings.priority, priority)
        return StepPlace(runtime.slots, runtime.slots.place_of_step(handler, concurrency), rank, granted)

    async def order_child(
        self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        depth = self.actor.state.fold.depth + 1
        return await self._bodies.starting.order_child(depth, workflow, inputs, run_id, detached)

    def follow_child(self, run_id: str) -> None:
        self._runtime.spawn(self._bodies.inbox.report_end(run_id, self.run_no))

    async def order_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        return messages.check_signal(self._runtime.store, run_id, name, payload, signal_id)
