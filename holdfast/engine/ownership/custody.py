"""Custody: the runs that this engine drives, whether there is room for another, and how it stops driving one.

Owns: the live runs by number; adopting one; room (the engine's `concurrency` and that of each workflow); evicting
suspended runs; releasing a lease, holding a run and lifting its hold; what follows when a commit is refused or rows
cannot be read.
Never: finds or claims runs (claim.py), reads claimed ones (load.py), decides anything for a run (rules).
Invariants: a run that this engine owns is driven, being loaded, or on its way back: what cannot be released or held
stops the whole engine, as the run would otherwise be owned and idle for ever.
On crash: nothing to undo; the lease goes with the process, and another engine claims the runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.engine.event_loop import Batch
from holdfast.engine.ownership.lease import taken_away
from holdfast.engine.ports import Done
from holdfast.engine.run.actor import Life, RunActor, TurnQueue, WorkflowSlot
from holdfast.engine.run_inputs import setting
from holdfast.engine.runtime import Runtime
from holdfast.engine.shared_slots import LostThreads
from holdfast.engine.slots import Place
from holdfast.model.errors import HoldfastError, LeaseLost, NewerFormat, StoreDamaged, StoreError, VersionRetired
from holdfast.model.plans import Plan
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.model.views import command_line
from holdfast.store.records.journal import DAMAGE, History, hold_reason
from holdfast.store.records.run_records import find_run
from holdfast.store.row_types import CommitResult, RunRow

log = logging.getLogger("holdfast.engine")
BUSY_SECONDS = 0.1
"""How soon the eviction of a suspended run is tried again in which a body has resumed by itself."""


class NumberTaken(LeaseLost):
    """Another run has the number that a new one was given."""


class Custody:
    """The live runs of one engine."""

    turns: TurnQueue
    """Where a run asks for a turn (run/pump.py)."""
    deliver_soon: Callable[[], None]
    """Delivers new messages: those that arrived while a run was released need an owner (messages.py)."""
    refill: Callable[[], None]
    """Claims more runs where some found no room before (claim.py)."""
    reclaim: Callable[[RunActor, bool], Awaitable[None]]
    """Reads a run again whose commit was refused; True: its lease may be another engine's (claim.py)."""

    def __init__(self, runtime: Runtime, lost_threads: LostThreads) -> None:
        self.runtime = runtime
        self._lost_threads = lost_threads
        self.actors: dict[int, RunActor] = {}
        """The runs that this engine drives, by number."""
        self.claims_in_progress = 0
        """Runs that are being claimed or loaded: there must be room for them."""
        self.has_unclaimed_runs = False
        """As far as is known, some runs were not claimed although they could be: there was no room."""
        self.code_change_accepted: set[int] = set()
        """Runs that a person resumed: changed code does not stop them again."""
        self._releasing: Batch[tuple[int, int], None] = Batch(self._release_all, runtime.spawn)

    # --- driving -----------------------------------------------------------------------------------------------------

    def adopt(self, actor: RunActor) -> None:
        """Drive a run from now on."""
        limit = self.runtime.settings.concurrency
        if limit is not None and len(self.actors) >= limit and not actor.release_after_commit:
            self._evict_one()
        self.actors[actor.run_no] = actor

    def detached(self, actor: RunActor) -> None:
        """A run is driven no longer: its room is free."""
        self.actors.pop(actor.run_no, None)
        if actor.workflow_slot is WorkflowSlot.HELD:
            self.free_workflow_slot(actor)
        if self.has_unclaimed_runs:
            self.refill()
        if actor.run_no in self.runtime.hub.listeners:
            self.runtime.hub.notify(actor.run_no)

    # --- room --------------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more runs may be at work here; 0 while this engine's lease has run out: another engine may have
        declared it dead."""
        limit = self.runtime.settings.concurrency
        if self.runtime.lease.has_run_out:
            return 0
        if limit is None:
            return sys.maxsize
        now = self.runtime.clock.now()
        at_work = sum(actor.is_at_work or actor.wakes_at(now) for actor in self.actors.values())
        return max(0, limit - at_work - self.claims_in_progress)

    def has_room_for(self, plan: Plan) -> bool:
        """Whether a run of this version could go to work here. Not where other runs of its workflow already wait."""
        if self._lost_threads.too_many and self._lost_threads.keep_from(plan):
            return False
        if self.runtime.settings.concurrency is None:
            return not self.runtime.lease.has_run_out
        place = self._workflow_place(plan)
        return self.room() > 0 and not (place and self.runtime.slots.is_waited_for(place[0]))

    def admit(self, actor: RunActor, command: Any) -> bool:
        """Whether a run may go to work now; if not, `command` is submitted to it when its workflow has a free slot."""
        if actor.plan.definition.settings.concurrency is None:
            return True
        place, slots = self._workflow_place(actor.plan), self.runtime.slots
        if not slots.take(place):
            actor.workflow_slot = WorkflowSlot.WAITING
            slots.wait(place, (_priority(actor), 0), lambda: self._admit_now(actor, command))
            return False
        actor.workflow_slot = WorkflowSlot.HELD
        return True

    def _admit_now(self, actor: RunActor, command: Any) -> bool:
        """A slot is free for a run that waited for one; True: the run takes it."""
        runtime = self.runtime
        if actor.is_detached or runtime.stopping or not runtime.slots.take(self._workflow_place(actor.plan)):
            return False
        actor.workflow_slot = WorkflowSlot.HELD
        actor.submit(command)
        return True

    def free_workflow_slot(self, actor: RunActor) -> None:
        """A run has ended or is suspended: another run of its workflow may go to work."""
        actor.workflow_slot = WorkflowSlot.NONE
        self.runtime.slots.free(self._workflow_place(actor.plan))

    def _workflow_place(self, plan: Plan) -> Place:
        """The pool in which a run of this version needs a slot to be at work; none without a limit."""
        limit = plan.definition.settings.concurrency
        return () if limit is None else self.runtime.slots.place_of_run(plan.definition.name, limit)

    # --- eviction ----------------------------------------------------------------------------------------------------

    def schedule_eviction(self, actor: RunActor) -> None:
        """Evict a run after a while if it is suspended, or at once if nothing of it can run here; keep any other."""
        runtime = self.runtime
        if actor.eviction is not None:
            actor.eviction.cancel()
            actor.eviction = None
        if actor.state.status is RunStatus.SUSPENDED:
            limit = runtime.settings.concurrency
            is_one_too_many = limit is not None and len(self.actors) > limit
            seconds = 0 if is_one_too_many else runtime.settings.idle_seconds
            actor.eviction = runtime.loop.call_later(seconds, self.evict, actor)
            if actor.workflow_slot is WorkflowSlot.HELD:
                self.free_workflow_slot(actor)
            if self.has_unclaimed_runs:
                self.refill()
        elif not (actor.mailbox or actor.write_buffer.entries or actor.runs_here()):
            actor.eviction = runtime.loop.call_soon(self.evict, actor)

    def _evict_one(self) -> None:
        """Evict one suspended run: any of those in memory may wake, and then all of them are at work. A run whose
        suspension is not applied yet is evicted when it is (`schedule_eviction`)."""
        for actor in self.actors.values():
            is_suspended = actor.state.status is RunStatus.SUSPENDED and actor.eviction is not None
            if is_suspended and actor.life is Life.IDLE and self.runtime.executor.is_idle(actor.run_no):
                assert actor.eviction is not None
                actor.eviction.cancel()
                self.evict(actor)
                return

    def evict(self, actor: RunActor) -> None:
        """Stop driving a run that has nothing to do, and release it; one whose body has resumed is tried again."""
        runtime = self.runtime
        actor.eviction = None
        if actor.has_work:
            return
        is_busy = actor.life is Life.PAUSED or not runtime.executor.is_idle(actor.run_no)
        if actor.state.status is RunStatus.SUSPENDED and is_busy:
            later = max(runtime.settings.idle_seconds, BUSY_SECONDS)
            actor.eviction = runtime.loop.call_later(later, self.evict, actor)
        else:
            actor.detach(None)
            runtime.spawn(self.release(actor))

    def release_waiting_for_threads(self) -> None:
        """Release the runs that only wait for a thread, of which this engine has lost too many: another engine may run
        them."""
        for actor in list(self.actors.values()):
            if self._only_waits_for_thread(actor):
                actor.detach(None)
                self.runtime.spawn(self.release(actor))

    def _only_waits_for_thread(self, actor: RunActor) -> bool:
        if actor.life is not Life.IDLE or actor.write_buffer.entries:
            return False
        scheduled = [ns for ns in actor.state.nodes.values() if ns.status is NodeStatus.SCHEDULED]
        isolated = actor.is_suspect
        handlers = [self.runtime.handler(ns.plan.definition.uses) for ns in scheduled]
        waits = not isolated and any(handler is not None and handler.kind == "sync" for handler in handlers)
        return waits and not actor.body_slots and self.runtime.executor.is_idle(actor.run_no)

    # --- when something fails ----------------------------------------------------------------------------------------

    def refused(self, actor: RunActor, outcome: CommitResult, replies: Sequence[Done]) -> None:
        """A commit did not land, or landed for another owner: discard the run's state, and read it again if the run is
        still this engine's."""
        runtime, is_new = self.runtime, actor.creating is not None
        error: HoldfastError
        if is_new and outcome.refusal == "number_taken":  # the caller that starts it gets another number
            error = NumberTaken(outcome.detail)
        elif is_new and outcome.refusal == "retired":
            error = VersionRetired(outcome.detail)
        elif outcome.refusal == "damaged":
            error = StoreDamaged(f"run {actor.run_id}: {outcome.detail}")
            log.error("%s", error)
        else:
            why = f"the commit was refused ({outcome.refusal} {outcome.detail})"
            error = taken_away(actor.run_id, actor.token, why)
        self._discard(actor, error, replies)
        if outcome.refusal in ("failed", "damaged"):
            code = "internal_error" if outcome.refusal == "failed" else "corrupt"
            runtime.spawn(self.let_go(actor, f"{code}: {outcome.detail}"))
        elif outcome.refusal == "replaced":
            return  # it has another owner
        elif not runtime.stopping and not (is_new and outcome.refusal in ("number_taken", "retired")):
            lease, is_fenced = (actor.run_no, actor.token), outcome.refusal == "fenced"
            runtime.spawn(self.with_claim(lease, self.reclaim, actor, is_fenced, unused=False))

    def stop_loudly(self, actor: RunActor, error: BaseException, replies: Sequence[Done] = ()) -> None:
        """A bug in our own code: this run stops where it is, with its journal intact, and is put on hold."""
        log.critical("run %s stops: %s", actor.run_id, error, exc_info=error)
        self._discard(actor, error, replies)
        self.runtime.spawn(self.let_go(actor, f"internal_error: {type(error).__name__}: {error}"))

    def cannot_read(self, actor: RunActor, error: Exception, replies: Sequence[Done] = ()) -> None:
        """Rows or events of a run that is driven here cannot be read. Where they are damaged, or of a newer Holdfast,
        the run is put on hold; otherwise the database cannot be read now, and the next owner tries again. Either way
        no event is appended, nothing fails, and other runs continue."""
        if actor.is_detached:
            return
        is_damaged = isinstance(error, DAMAGE)
        what = "is put on hold" if is_damaged else "is released, as it cannot be read now"
        log.error("run %s %s: %s", actor.run_id, what, error)
        self._discard(actor, LeaseLost(f"run {actor.run_id} {what}: {error}"), replies)
        self.runtime.spawn(self.let_go(actor, hold_reason(error) if is_damaged else None))

    def _discard(self, actor: RunActor, error: BaseException, replies: Sequence[Done]) -> None:
        self.runtime.values.forget(actor.run_no)
        actor.detach(error)
        for done in replies:
            done(None, error)

    async def with_claim(
        self, lease: tuple[int, int], work: Callable[..., Awaitable[None]], *args: Any, unused: bool = True
    ) -> None:
        """Do `work` for a run that this engine has claimed and does not drive yet. On failure release the lease, so
        that another engine can claim the run. `unused`: it was not driven under this lease."""
        try:
            await work(*args)
        except Exception:
            if lease[0] not in self.actors and not self.runtime.stopping:
                await self.give_back([lease], unused=unused)
            raise

    async def detach_lost_runs(self) -> None:
        """Detach the runs that other engines own now, so that their bodies stop even if they report nothing."""
        runtime = self.runtime
        for actor in list(self.actors.values()):
            row = await runtime.read(runtime.store.run_by_no, actor.run_no)
            if row is None or actor.is_detached:
                continue  # not written yet, or no longer here
            if row.token != actor.token or row.engine != runtime.lease.engine:
                runtime.values.forget(actor.run_no)
                actor.detach(taken_away(actor.run_id, actor.token, "another engine has taken it over"))

    # --- releasing and holding ---------------------------------------------------------------------------------------

    async def release(self, actor: RunActor) -> None:
        """Release the lease of a run; runs that are released at the same time share a transaction."""
        await self._releasing.put((actor.run_no, actor.token))
        self.deliver_soon()  # messages that arrived meanwhile need an owner

    async def _release_all(self, leases: list[tuple[int, int]]) -> list[None]:
        await self.give_back(leases, unused=False)
        return [None] * len(leases)

    async def give_back(self, leases: list[tuple[int, int]], *, unused: bool = True) -> None:
        """Release leases at once. `unused`: the runs were claimed and not driven; their last driver stays the last."""
        runtime = self.runtime
        await runtime.committer.insist(runtime.store.release, runtime.lease.engine, leases, unused)

    async def let_go(self, actor: RunActor, hold: str | None) -> None:
        """Release a detached run, or put it on hold, after the commit that was in flight. If that cannot be written,
        the whole engine stops: a run that it owns and does not drive would wait for ever."""
        while actor.life is Life.DETACHING:  # noqa: ASYNC110 - a few turns of the loop, and seldom
            await asyncio.sleep(0.001)
        try:
            if hold is None:
                await self.release(actor)
            else:
                await self.put_on_hold(actor.run_no, actor.token, hold)
        except StoreError as error:
            if not self.runtime.stopping:
                self.runtime.committer.give_up(error)

    async def put_on_hold(self, run_no: int, token: int, hold: str, *, unused: bool = False) -> None:
        """Keep every engine from driving the run until an operator resumes it."""
        runtime = self.runtime
        await runtime.committer.insist(runtime.store.set_hold, run_no, token, runtime.lease.engine, hold)
        await self.give_back([(run_no, token)], unused=unused)
        runtime.hub.notify(run_no)

    def hold_after_commits(self, actor: RunActor, why: str) -> None:
        """Put a live run on hold once everything that was submitted to it so far is durable."""
        self.runtime.spawn(self._hold(actor, why))

    async def _hold(self, actor: RunActor, why: str) -> None:
        await actor.pause()
        if not actor.is_detached:
            log.error("run %s is put on hold: %s", actor.run_id, why)
            self._discard(actor, LeaseLost(f"run {actor.run_id} has ended"), ())
            await self.put_on_hold(actor.run_no, actor.token, why)

    def hold_at_once(self, actor: RunActor, why: str) -> None:
        """Put a live run on hold that must decide nothing more: a body makes other calls than its journal records."""
        actor.pause_now()
        self.runtime.spawn(self._hold_at_once(actor, why))

    async def _hold_at_once(self, actor: RunActor, why: str) -> None:
        await actor.flushed()
        if not actor.is_detached:  # else its next owner finds the same
            log.error("run %s is put on hold: %s", actor.run_id, why)
            self._discard(actor, LeaseLost(f"run {actor.run_id} is put on hold: {why}"), ())
            await self.let_go(actor, why)

    async def lift_hold(self, row: RunRow) -> None:
        """End a run's hold. The row is read again when its lease has moved since: the engine that put the run on hold
        releases it in a second transaction."""
        runtime = self.runtime
        while row.hold is not None and not await runtime.committer.call(
            runtime.store.set_hold, row.run_no, row.token, row.engine, None
        ):
            row = await runtime.read(find_run, runtime.store, row.run_id)

    async def damage_of(self, row: RunRow) -> str | None:
        """Why a run that was put on hold because it could not be read still cannot be read, and the ways out; None when
        it can, and for every other hold."""
        code = (row.hold or "").partition(": ")[0]
        if code not in ("corrupt", NewerFormat.code):
            return None
        store, versions = self.runtime.store, self.runtime.versions
        try:
            await asyncio.to_thread(lambda: History(store, versions, row).state(row.branch))
        except NewerFormat as e:
            return f"{e.message}. Nothing was changed; resume it with a Holdfast that knows it."
        except DAMAGE as e:
            doctor, fork = ("doctor", row.run_id, "--deep"), ("fork", row.run_id, "--at", "SEQ", "--as-run", "ID")
            return (
                f"{e.message}. Nothing was changed. {command_line(*doctor)} shows what is damaged; restore a backup "
                f"({command_line('db', 'restore')}), then resume it; or continue from before the damage with "
                f"{command_line(*fork)}."
            )
        return None


def _priority(actor: RunActor) -> int:
    if actor.creating is None:
        return actor.state.fold.settings.priority
    priority: int = setting(actor.creating.event, actor.plan, "priority")
    return priority
