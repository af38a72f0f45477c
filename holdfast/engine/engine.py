"""Engine: what drives runs in one process.

Owns: its parts, their order at start and stop, the pump that makes groups of commits out of mailboxes, background work.
Never: decides what happens to a run (rules), or how bodies run (executor).
Invariants: every task it starts is in one set of its own and ends with it.
On crash: nothing to undo; another engine finds the runs (ownership/claim.py).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine import missing, offers
from holdfast.engine.batching import Batch
from holdfast.engine.branching import Branching
from holdfast.engine.callers import check_loop, on_its_loop
from holdfast.engine.catalogue import Catalogue, Recovered
from holdfast.engine.committer import Committer
from holdfast.engine.hub import Hub
from holdfast.engine.inbox import Inbox
from holdfast.engine.inspection import MakeInspector
from holdfast.engine.lost_threads import LostThreads
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.ownership.lease import Lease, taken_away
from holdfast.engine.ownership.load import Loader
from holdfast.engine.ownership.poll import PollLoop
from holdfast.engine.ports import Done, Executor
from holdfast.engine.readers import LoopReader, Reader, ReaderThreads
from holdfast.engine.replay_reader import ReplayReader
from holdfast.engine.run import bodies
from holdfast.engine.run.actor import Life, RunActor
from holdfast.engine.run.pump import Pump
from holdfast.engine.run_handle import Run, resume_request
from holdfast.engine.runtime import Runtime
from holdfast.engine.settings import EngineSettings
from holdfast.engine.shared_slots import SharedSlots
from holdfast.engine.slots import Slots
from holdfast.engine.starting import NumberTaken, Starting
from holdfast.engine.step_places import Nesting
from holdfast.engine.versions import Versions
from holdfast.engine.writers import TwoWriterThreads, Writer, WriterThread
from holdfast.model import capabilities, handlers, texts
from holdfast.model.errors import HoldfastError, LeaseLost, Refused, StoreDamaged, StoreError, UsageError
from holdfast.model.handlers import Handler
from holdfast.model.plans import Plan
from holdfast.model.policies import seconds
from holdfast.model.state import NodeState
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.views import Wait
from holdfast.rules.resuming import RESUMABLE
from holdfast.store.clocks import Clock, clock_of
from holdfast.store.contents import refuse_closed
from holdfast.store.contract import Store
from holdfast.store.records.journal import DAMAGE, hold_reason, refuse_newer
from holdfast.store.records.run_records import find_run
from holdfast.store.records.stored_values import Values
from holdfast.store.row_types import CommitResult, RunRow

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

log = logging.getLogger("holdfast.engine")
R = TypeVar("R")
_T = TypeVar("_T")
DRAIN_SECONDS = 5.0
"""How long a closing engine waits for its last commits, however short the grace time is."""
GOODBYE_SECONDS = 2.0
"""How long a closing engine waits for its leases to be given back; it has the database to itself by then, or none."""

TELLING_SECONDS = 0.1
"""How long after its failure the engine's `hf.open` block is cancelled: callers that wait in it for an outcome hear of
theirs first."""


class Engine:
    """Everything that one process needs to drive runs. Made and opened by `holdfast.opening`."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        inspector: MakeInspector,
        *,
        settings: EngineSettings | None = None,
        clock: Clock | None = None,
        queues: Sequence[str] | None = None,
        drives: bool = True,
    ) -> None:
        self.store = store
        self.executor = executor
        self.settings = settings or EngineSettings()
        self.queues = None if queues is None else _queue_names(queues)
        """The queues that it serves; None: all."""
        self.drives = drives
        """Whether it runs anything: one that does not starts runs, and asks and answers, and others do the work."""
        self.clock: Clock = clock or clock_of(store)
        self.inspector = inspector(store, self.clock)
        """How its runs are read."""
        self.lease = Lease(store, self.settings.lease_seconds, self.clock)
        self.values = Values(store)
        self.versions = Versions(store, runs_code=drives)
        self.nesting = Nesting()
        self.slots = Slots(self.settings.threads, self.settings.processes)
        self.hub = Hub()
        self.actors: dict[int, RunActor] = {}
        self.runtime = Runtime(executor)
        self.read = self.runtime.read
        self.spawn = self.runtime.spawn
        self.on_failure: Callable[[], object] | None = None
        """Called when that happens."""
        self._handlers: dict[str, Handler | None] = {}
        self.pump = Pump(self)
        self.offer = capabilities.NOTHING
        """What it says it can run."""
        self.store_id: str
        self.store_epoch: int
        self.committer: Committer
        self.replay_reader: ReplayReader
        self.shared_slots: SharedSlots
        self.lost_threads: LostThreads
        self.starting: Starting
        self.inbox: Inbox
        self.branching: Branching
        self.catalogue: Catalogue
        self.claims: Claims
        self.loader: Loader
        self.poll_loop: PollLoop
        self._releasing: Batch[tuple[int, int], None] = Batch(self._release_all, self.spawn)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which everything of the engine is awaited."""
        return self.runtime.loop

    @property
    def fatal(self) -> BaseException | None:
        """The error after which the engine cannot use its store any more."""
        return self.runtime.fatal

    @property
    def stopping(self) -> bool:
        return self.runtime.stopping

    # --- life ----------------------------------------------------------------------------------------------

    async def open(self, *, takes_over: bool = True) -> None:
        """Open the store and begin to live; nothing is claimed yet. Only an engine that `takes_over` what others left
        says what it can run: another one is asked to do nothing but its own."""
        if takes_over and self.drives:
            self.offer = offers.of_this_process(self.queues, self.settings.concurrency, self.settings.lease_seconds)
        self.store.open()
        self.runtime.open(asyncio.get_running_loop(), self._make_reader())
        try:
            self.store_id = await self.read(self.store.store_id)
            standing = await self.read(self.store.standing)
            refuse_closed(standing, self.store.url)
            self.store_epoch = standing.epoch
            self.committer = Committer(self.store, self.loop, self._store_failed, self._writer(), self._is_narrow)
            self.replay_reader = ReplayReader(self.runtime, self.store, self.values)
            self.shared_slots = SharedSlots(self.runtime, self.store, self.committer, self.lease, self.slots)
            self.lost_threads = LostThreads(self)
            self.starting = Starting(self)
            self.inbox = Inbox(self)
            self.branching = Branching(self)
            self.catalogue = Catalogue(self)
            self.claims = Claims(self)
            self.loader = Loader(self)
            self.poll_loop = PollLoop(self)
            self.lease.open(self.loop)
            await self.committer.call(self.lease.register, self.offer.encode())
        except BaseException:
            self.store.close()
            self.runtime.close()
            raise
        self.executor.open(self.loop, self.lost_threads.changed)
        self._begin_background()

    def _make_reader(self) -> Reader:
        return ReaderThreads() if self.store.is_shared else LoopReader()

    def _writer(self) -> Writer:
        return TwoWriterThreads() if self.store.is_shared else WriterThread()

    def _is_narrow(self) -> bool:
        """Whether a loop that writes keeps nobody from going on: one run at most is live, and of that one body at most.
        Else others work while the writer's thread writes, and what they bring meanwhile shares the next commit."""
        if self.stopping:  # perhaps because of Ctrl-C, and the second one breaks into what the loop does
            return False
        return len(self.actors) <= 1 and self.executor.runs_one_task()

    def _begin_background(self) -> None:
        """What happens by itself from now on; the testing kit has a clock of its own and does it by hand."""
        self.lease.start_renewing(self.committer, self.loop)
        self.poll_loop.start()

    async def close(self) -> None:
        """Stop in order: bodies may end or are left, leases are given back. No attempt is lost. A server that is away
        is waited for as long as bodies may take; then our leases run out by themselves."""
        check_loop(self, "close")
        self.runtime.stopping = True
        patience = max(self.settings.patience_seconds, DRAIN_SECONDS)
        give_up_at = self.loop.time() + patience
        for actor in list(self.actors.values()):
            bodies.stop_resuming(actor)
        if self.fatal is None:
            await self.executor.stop(self.settings.patience_seconds)
            await self._drain(give_up_at if self._is_away() else self.loop.time() + patience)
        await self.runtime.cancel_tasks()
        self.lease.stop_renewing()
        for actor in list(self.actors.values()):
            actor.detach(None)
        if self.fatal is None:
            await self._say_goodbye(give_up_at)
        self.committer.close()
        self.lease.drop_lock()
        self.store.close()
        self.runtime.close()

    async def _say_goodbye(self, give_up_at: float) -> None:
        """Give all leases back. When the server does not answer, the store is closed under the writer, who waits for
        it: what was not committed by now is done again by whoever takes the runs over."""
        patience = 0.0 if self._is_away() and self.loop.time() >= give_up_at else GOODBYE_SECONDS
        try:
            async with asyncio.timeout(patience):
                await self.committer.call(self.store.remove_engine, self.lease.engine)
        except TimeoutError:
            if self._is_away():
                self.store.close()
        except HoldfastError as e:
            log.debug("could not give the leases back: %s", e)

    def _is_away(self) -> bool:
        """Whether the database cannot be reached now, and may be in a while."""
        try:
            return self.store.changed() is None
        except StoreError:
            return False  # it is closed: there is nothing to wait for

    async def _drain(self, give_up_at: float) -> None:
        """Wait until what the bodies reported is committed; a disk that stays full is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(give_up_at):
                for actor in list(self.actors.values()):
                    await actor.flushed()
                while self.pump.queued or not self.committer.idle:  # noqa: ASYNC110 - a few turns of the loop at the end
                    await asyncio.sleep(0.001)

    def _store_failed(self, error: BaseException) -> None:
        """The store is of no use any more. Callers are not told that anything failed, but why the engine stops; its
        lease ends, so that another engine takes its runs over; and the `hf.open` block is left."""
        self.runtime.fatal = error
        log.error("the store cannot be used any more, and this engine stops: %s", error)
        self.lease.give_up()
        for actor in list(self.actors.values()):
            actor.detach(error)
        self.hub.notify_all()
        if self.on_failure is not None:
            self.loop.call_later(TELLING_SECONDS, self.on_failure)

    # --- what programs ask ---------------------------------------------------------------------------------

    @on_its_loop
    async def start(
        self,
        workflow: Workflow[..., R],
        /,
        *,
        run_id: str | None = None,
        priority: int | None = None,
        timeout: float | str | timedelta | None = None,
        persistence: str | None = None,
        queue: str | None = None,
        **inputs: Any,
    ) -> Run[R]:
        """Start a run; returns once it is committed. The same `run_id` with the same input is the same run; with
        another input it is RunExists, and nothing is changed. Raises InvalidInput when an input does not fit."""
        settings: dict[str, Any] = {}
        if priority is not None:
            settings["priority"] = priority
        if timeout is not None:
            settings["timeout"] = seconds(timeout)
        if persistence is not None:
            settings["persistence"] = persistence
        if queue is not None:
            settings["queue"] = queue
        row = await self.starting.start(workflow.registered, inputs, run_id, settings)
        if self.claims.only_root_runs is not None and self.drives:
            self.claims.only_root_runs.add(row.root_no)
            if row.run_no not in self.actors:
                await self.claims.sweep()
                await self._refuse_if_stuck(row.run_id)
        return Run(self, row.run_id, row.run_no)

    async def _refuse_if_stuck(self, run_id: str) -> None:
        """MissingCode for a run that exists, that nothing but this engine could drive, and whose code it lacks."""
        row = await self.read(self.store.run, run_id)
        if row is not None and (error := await self.read(missing.error_if_stuck, self, row)) is not None:
            raise error

    def get(self, run_id: str) -> Run[Any]:
        """A run by its whole id. Raises UnknownRun."""
        row = find_run(self.store, run_id)
        return Run(self, row.run_id, row.run_no)

    @on_its_loop
    async def list(
        self, *, status: str | None = None, workflow: str | None = None, limit: int = 100
    ) -> builtins.list[dict[str, Any]]:
        """Runs, newest first, without inputs, results and nodes."""
        if status is not None and status not in [*RunStatus]:
            raise UsageError(f"engine.list: {status!r} is no status of a run; there are {', '.join(RunStatus)}")
        statuses = None if status is None else [status]
        return await self.read(
            lambda: self.inspector.runs(self.store.runs(status=statuses, workflow=workflow, limit=limit))
        )

    @on_its_loop
    async def recover(self, run_id: str, *, reverify: bool = False, force: bool = False, actor: str = "") -> Recovered:
        """Check a run whose rows and journal may not agree (after a restored backup, a hand edit, a foreign writer),
        repair it from its journal if need be, and go on with it. `reverify` lets the last node run again where a run
        only lacks its end. `force` lets a run that has completed be decided again under the version that it began with,
        where the one that it completed under is not in the store. Raises Refused when another engine owns the run,
        CannotBeRepaired when nothing helps."""
        who = texts.actor(actor, "engine.recover")
        return await self.catalogue.recover(run_id, reverify=reverify, force=force, actor=who)

    @on_its_loop
    async def asked(
        self, *, basket: str | None = None, assignee: str | None = None, limit: int = 100
    ) -> builtins.list[Wait]:
        """What people are asked by all runs, and what lies in baskets, oldest first."""
        for what, name in (("basket", basket), ("assignee", assignee)):
            if name is not None:
                texts.name(name, f"engine.asked: {what}")
        return await self.read(self.inspector.asked, basket, assignee, limit)

    @on_its_loop
    async def baskets(self) -> builtins.list[dict[str, Any]]:
        """The baskets in which something lies: how many questions, how many pended nodes, since when."""
        return await self.read(self.inspector.baskets)

    @on_its_loop
    async def resume(
        self,
        run_id: str,
        *,
        wait: str | None = None,
        path: str | None = None,
        vars: dict[str, Any] | None = None,
        accept_change: bool = False,
        actor: str = "",
    ) -> Run[Any]:
        """Go on with a run that nobody drives, or that waits for a person to let it: release a hold, end a pause, take
        a node out of its basket (`run.resume` says which, and what `vars` and `accept_change` do), take over what a
        dead engine left. Harmless when it is being driven already. Raises MissingCode when its code is not loaded
        here."""
        if accept_change:
            held = self.get(run_id)
            await held.resume(wait=wait, path=path, vars=vars, accept_change=True, actor=actor)
            return held
        run, _ = await self.go_on(run_id, wait=wait, path=path, vars=vars, actor=actor)
        return run

    @on_its_loop
    async def go_on(
        self,
        run_id: str,
        *,
        wait: str | None = None,
        path: str | None = None,
        vars: dict[str, Any] | None = None,
        actor: str = "",
    ) -> tuple[Run[Any], builtins.list[str]]:
        """`resume`, and the waits that ended with it."""
        resume_request(wait, path, vars, actor)  # what cannot be asked for releases no hold either
        row, is_odd = await self.read(self.catalogue.look_at, run_id)
        if row.engine is None and row.status not in RUN_TERMINAL:
            refuse_newer(row)
        run: Run[Any] = Run(self, row.run_id, row.run_no)
        if is_odd:
            await self.catalogue.recover(row.run_id, actor=actor)
            row = await self.read(find_run, self.store, run_id)
        named = wait is not None or path is not None or bool(vars)
        if row.status in RUN_TERMINAL:  # of what is named somebody hears that it is too late, and why
            return run, await run.resume(wait=wait, path=path, vars=vars, actor=actor) if named else []
        asked = named or any(w.kind in RESUMABLE for w in await self.read(self.store.open_waits, [row.run_no]))
        if row.run_no in self.actors and not asked:
            return run, []
        if row.hold is not None and not self.drives:
            raise Refused(
                f"run {row.run_id} is on hold ({row.hold}); only an engine that drives it can let it go on: "
                f"`holdfast resume {row.run_id}`",
                reason="hold",
            )
        damage = None if row.hold is None else await self.catalogue.damage_of(row)
        if damage is not None:
            raise Refused(f"run {row.run_id} stays on hold: {damage}", reason="hold")
        if not self.drives:  # whoever does hears of it
            return run, await run.resume(wait=wait, path=path, vars=vars, actor=actor) if asked else []
        if (error := await self.read(missing.error_for, self, row)) is not None:
            raise error
        if self.claims.only_root_runs is not None:
            self.claims.only_root_runs.add(row.root_no)
        self.loader.code_change_accepted.add(row.run_no)
        if row.hold is not None:
            await self.lift_hold(row)
        await self.claims.release_dead_engines()
        ended = await run.resume(wait=wait, path=path, vars=vars, actor=actor) if asked else []
        await self.claims.claim([row.run_no])
        await self.claims.sweep()
        return run, ended

    # --- what actors ask -----------------------------------------------------------------------------------

    def handler(self, name: str) -> Handler | None:
        """The code of a node, if it is loaded here."""
        found = self._handlers.get(name)
        if found is None:
            found = self._handlers[name] = handlers.find(name)
        return found

    def place_for(self, ns: NodeState, *, isolated: bool) -> tuple[str, ...] | None:
        """The pools in which a body needs a place; None when its code is not here. `isolated`: the body of a suspect,
        which executes in a spawned process."""
        handler = self.handler(ns.plan.definition.uses)
        if handler is None or self.stopping:
            return None
        concurrency = ns.plan.definition.concurrency
        if concurrency is None and handler.kind in ("async", "inline") and not isolated:
            return ()
        return self.slots.place_for(handler, concurrency, isolated=isolated)

    def serves(self, queue: str) -> bool:
        """Whether runs of this queue are driven here."""
        return self.drives and (self.queues is None or queue in self.queues)

    def room(self) -> int:
        """How many more runs may be at work here; none while it is not known whether we are alive in others' eyes."""
        limit = self.settings.concurrency
        if self.lease.has_run_out:
            return 0
        if limit is None:
            return sys.maxsize
        now = self.clock.now()
        at_work = sum(actor.is_at_work or actor.wakes_at(now) for actor in self.actors.values())
        return max(0, limit - at_work - self.claims.claims_in_progress)

    def has_room_for(self, plan: Plan) -> bool:
        """Whether a run could go to work here: not where others of its workflow wait for a place already."""
        if self.lost_threads.keep_from(plan):
            return False
        if self.settings.concurrency is None:
            return not self.lease.has_run_out
        return self.room() > 0 and not self.starting.has_line(plan)

    def adopt(self, actor: RunActor) -> None:
        """A run that this engine drives from now on."""
        limit = self.settings.concurrency
        if limit is not None and len(self.actors) >= limit and not actor.release_after_commit:
            self.pump.evict_one()
        self.actors[actor.run_no] = actor

    def left(self, actor: RunActor) -> None:
        self.actors.pop(actor.run_no, None)
        self.starting.free_workflow_slot(actor)
        self.claims.on_room_freed()
        self.hub.notify(actor.run_no)

    def refused(self, actor: RunActor, outcome: CommitResult, replies: Sequence[Done]) -> None:
        """A commit did not land, or landed for another owner: forget what we thought, and read again if the run is
        still ours."""
        is_new = actor.creating is not None
        error: HoldfastError
        if is_new and outcome.refusal == "number_taken":  # whoever starts it takes another one
            error = NumberTaken(outcome.detail)
        elif outcome.refusal == "damaged":
            error = StoreDamaged(f"run {actor.run_id}: {outcome.detail}")
            log.error("%s", error)
        else:
            why = f"the commit was refused ({outcome.refusal} {outcome.detail})"
            error = taken_away(actor.run_id, actor.token, why)
        self.values.forget(actor.run_no)
        actor.detach(error)
        for done in replies:
            done(None, error)
        if outcome.refusal in ("failed", "damaged"):
            code = "internal_error" if outcome.refusal == "failed" else "corrupt"
            self.spawn(self.let_go(actor, f"{code}: {outcome.detail}"))
        elif outcome.refusal == "replaced":
            return  # it has another owner
        elif not self.stopping and not (is_new and outcome.refusal == "number_taken"):
            read_again = self.claims.regain if outcome.refusal == "fenced" else self.claims.reload
            lease = (actor.run_no, actor.token)
            self.spawn(self.loader.with_claim(lease, read_again, actor, unused=False))

    def stop_loudly(self, actor: RunActor, error: BaseException, replies: Sequence[Done]) -> None:
        """A bug in our own rules: this run stops where it is, with its journal intact."""
        log.critical("run %s stops: %s", actor.run_id, error, exc_info=error)
        self.values.forget(actor.run_no)
        actor.detach(error)
        for done in replies:
            done(None, error)
        self.spawn(self.let_go(actor, f"internal_error: {type(error).__name__}: {error}"))

    def cannot_read(self, actor: RunActor, error: Exception, replies: Sequence[Done] = ()) -> None:
        """Rows or events of a run that is driven here cannot be read. Where they are damaged, or of a newer Holdfast,
        the run is put on hold; else the database cannot be read now, and the next owner tries again. Either way no
        event is appended, nothing fails, and other runs go on."""
        if actor.is_detached:
            return
        is_damaged = isinstance(error, DAMAGE)
        what = "is put on hold" if is_damaged else "is given back, as it cannot be read now"
        log.error("run %s %s: %s", actor.run_id, what, error)
        self.values.forget(actor.run_no)
        left = LeaseLost(f"run {actor.run_id} {what}: {error}")
        actor.detach(left)
        for done in replies:
            done(None, left)
        self.spawn(self.let_go(actor, hold_reason(error) if is_damaged else None))

    async def let_go(self, actor: RunActor, hold: str | None) -> None:
        """Put a run on hold that was left, or give it back, behind the commit that was in flight. When that cannot be
        written, the whole engine stops: a run that it owns and does not drive would wait for ever."""
        while actor.life is Life.DETACHING:  # noqa: ASYNC110 - a few turns of the loop, and seldom
            await asyncio.sleep(0.001)
        try:
            if hold is None:
                await self.release(actor)
            else:
                await self.put_on_hold(actor.run_no, actor.token, hold)
        except StoreError as error:
            if not self.stopping:
                self.committer.give_up(error)

    async def put_on_hold(self, run_no: int, token: int, hold: str, *, unused: bool = False) -> None:
        """No engine touches the run until somebody resumes it. `unused`: we have claimed it, and not driven it."""
        engine = self.lease.engine
        await self.committer.insist(self.store.set_hold, run_no, token, engine, hold)
        await self.committer.insist(self.store.release, engine, [(run_no, token)], unused)
        self.hub.notify(run_no)

    async def lift_hold(self, row: RunRow) -> None:
        """End a run's hold. The row is read again when its lease has moved since: the engine that put the run on hold
        gives its lease back in a second transaction."""
        while row.hold is not None and not await self.committer.call(
            self.store.set_hold, row.run_no, row.token, row.engine, None
        ):
            row = await self.read(find_run, self.store, row.run_id)

    async def release(self, actor: RunActor) -> None:
        """Give a lease back."""
        await self._releasing.put((actor.run_no, actor.token))
        self.inbox.look_soon()  # whatever came in while we let go must find an owner

    async def _release_all(self, leases: builtins.list[tuple[int, int]]) -> builtins.list[None]:
        await self.committer.insist(self.store.release, self.lease.engine, leases)
        return [None] * len(leases)

    async def watch(self, run_id: str) -> RunRow:
        """Wait until a run, of whoever, has ended."""
        run_no = (await self.read(find_run, self.store, run_id)).run_no
        moved = self.hub.listen(run_no)
        try:
            while True:
                self.runtime.check()
                row = await self.read(self.store.run_by_no, run_no)
                assert row is not None
                if row.status in RUN_TERMINAL:
                    return row
                await moved.wait()
                moved.clear()
        finally:
            self.hub.leave(run_no, moved)


def _queue_names(queues: Sequence[str]) -> tuple[str, ...]:
    """The names of queues, each of which a run can have. One text is a sequence, too, but not of names."""
    if isinstance(queues, str) or not queues:
        raise UsageError(f"queues are a list of names, not {queues!r}; leave it out to serve all")
    return tuple(texts.name(queue, "the queue") for queue in queues)
