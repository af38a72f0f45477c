"""Engine: what drives runs in one process.

Owns: its parts, their order at start and stop, the pump that makes groups of commits out of mailboxes, background work.
Never: decides what happens to a run (rules), or how bodies run (executor).
Invariants: every task it starts is in one set of its own and ends with it.
On crash: nothing to undo; another engine finds the runs (recovery.py).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine import bodies, offers, reads, resting, waits
from holdfast.engine.actor import RunActor
from holdfast.engine.alarms import Alarm
from holdfast.engine.allowances import Allowances
from holdfast.engine.batching import Batch
from holdfast.engine.branching import Branching
from holdfast.engine.catalogue import Catalogue, Recovered
from holdfast.engine.clock import Clock, clock_of
from holdfast.engine.committer import Committer
from holdfast.engine.hub import Hub
from holdfast.engine.inbox import Inbox
from holdfast.engine.isolation import Isolation
from holdfast.engine.leases import Lease, taken_away
from holdfast.engine.loading import Loading
from holdfast.engine.memories import Memories
from holdfast.engine.patrol import Patrol
from holdfast.engine.protocols import Done, Executor
from holdfast.engine.readers import LoopReader, Reader, ReaderThreads
from holdfast.engine.recovery import Recovery
from holdfast.engine.run import Run, resume_request
from holdfast.engine.settings import EngineSettings
from holdfast.engine.slots import Slots
from holdfast.engine.starting import Starting
from holdfast.engine.values import Values
from holdfast.engine.versions import Versions
from holdfast.engine.waits import Wait
from holdfast.engine.writers import TwoWriterThreads, Writer, WriterThread
from holdfast.model import handlers, texts
from holdfast.model.errors import HoldfastError, MissingCode, Refused, StoreError, UsageError
from holdfast.model.graph import Plan
from holdfast.model.handlers import Handler
from holdfast.model.policies import seconds
from holdfast.model.state import NodeState
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.rules.resuming import RESUMABLE
from holdfast.store.api import Landed, RunRow, Store

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

log = logging.getLogger("holdfast.engine")
R = TypeVar("R")
_T = TypeVar("_T")
DRAIN_SECONDS = 5.0
"""How long a closing engine waits for its last commits, however short the grace time is."""
GOODBYE_SECONDS = 2.0
"""How long a closing engine waits for its leases to be given back; it has the database to itself by then, or none."""


class Engine:
    """Everything that one process needs to drive runs. Made and opened by `holdfast.opening`."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        database: Path | None,
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
        self.lease = Lease(store, database, self.settings.lease_seconds, self.clock)
        self.values = Values(store)
        self.memories = Memories(self)
        self.versions = Versions(store, runs_code=drives)
        self.allowances = Allowances(self)
        self.slots = Slots(self.settings.threads, self.settings.processes, self.allowances.short_of)
        self.hub = Hub()
        self.actors: dict[int, RunActor] = {}
        self.stopping = False
        self.fatal: BaseException | None = None
        self._to_pump: list[RunActor] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handlers: dict[str, Handler | None] = {}
        self._flushing: set[int] = set()
        self.offer = offers.NOTHING
        """What it says it can run."""
        self.loop: asyncio.AbstractEventLoop
        self._reader: Reader
        self.committer: Committer
        self.starting: Starting
        self.inbox: Inbox
        self.branching: Branching
        self.catalogue: Catalogue
        self.recovery: Recovery
        self.loading: Loading
        self.patrol: Patrol
        self.isolation = Isolation(self)
        self._releasing: Batch[tuple[int, int], None] = Batch(self._release_all, self.spawn)

    # --- life ----------------------------------------------------------------------------------------------

    async def open(self, *, takes_over: bool = True) -> None:
        """Open the store and begin to live; nothing is claimed yet. Only an engine that `takes_over` what others left
        says what it can run: another one is asked to do nothing but its own."""
        if takes_over and self.drives:
            self.offer = offers.of_this_process(self.queues, self.settings.concurrency, self.settings.lease_seconds)
        self.loop = asyncio.get_running_loop()
        self.store.open()
        self._reader = self._make_reader()
        try:
            self.committer = Committer(self.store, self.loop, self._store_failed, self._writer(), self._is_narrow)
            self.starting = Starting(self)
            self.inbox = Inbox(self)
            self.branching = Branching(self)
            self.catalogue = Catalogue(self)
            self.recovery = Recovery(self)
            self.loading = Loading(self)
            self.patrol = Patrol(self)
            self.lease.take_lock()
            await self.committer.call(self.lease.register, self.offer.encode())
        except BaseException:
            self.store.close()
            self._reader.close()
            raise
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
        return len(self.actors) <= 1 and self.executor.has_one_strand()

    def _begin_background(self) -> None:
        """What happens by itself from now on; the testing kit has a clock of its own and does it by hand."""
        self.lease.start_renewing(self.committer, self.loop)
        self.patrol.begin()

    async def close(self) -> None:
        """Stop in order: bodies may end or are left, leases are given back. No attempt is lost. A server that is away
        is waited for as long as bodies may take; then our leases run out by themselves."""
        self.stopping = True
        patience = max(self.settings.patience_seconds, DRAIN_SECONDS)
        give_up_at = self.loop.time() + patience
        for actor in list(self.actors.values()):
            bodies.leave_queue(actor)
        if self.fatal is None:
            await self.executor.stop(self.settings.patience_seconds)
            await self._drain(give_up_at if self._is_away() else self.loop.time() + patience)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.lease.stop_renewing()
        for actor in list(self.actors.values()):
            actor.leave(None)
        if self.fatal is None:
            await self._say_goodbye(give_up_at)
        self.committer.close()
        self.lease.drop_lock()
        self.store.close()
        self._reader.close()

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
                while self._to_pump or not self.committer.idle:  # noqa: ASYNC110 - a few turns of the loop at the end
                    await asyncio.sleep(0.001)

    def _store_failed(self, error: BaseException) -> None:
        """The store is of no use any more: nobody is told that anything failed, everybody is told why we stop."""
        self.fatal = error
        log.error("the store cannot be used any more: %s", error)
        for actor in list(self.actors.values()):
            actor.leave(error)
        self.hub.anything()

    def check(self) -> None:
        """Raise when the engine cannot work any more."""
        if self.fatal is not None:
            raise self.fatal
        if self.stopping:
            raise StoreError("the engine is closed")

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Background work of the engine's own; it ends with the engine."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    async def see_through(self, work: Coroutine[Any, Any, _T]) -> _T:
        """What is done to its end for as long as the engine lives, though whoever waits for it gives up."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise StoreError("the engine is closed") from None
            task.add_done_callback(self._task_done)  # nobody else would hear that it failed
            raise

    async def read(self, function: Callable[..., _T], *args: Any) -> _T:
        """Read from the store. What others do meanwhile is not seen in what is read."""
        return await self._reader.read(function, *args)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    # --- what programs ask ---------------------------------------------------------------------------------

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
        if self.recovery.roots is not None and self.drives:
            self.recovery.roots.add(row.root_no)
            if row.run_no not in self.actors:
                await self.recovery.sweep()
        return Run(self, row.run_id, row.run_no)

    def get(self, run_id: str) -> Run[Any]:
        """A run by its id, or by a prefix that no other id has. Raises UnknownRun."""
        row = reads.find_run(self.store, run_id)
        return Run(self, row.run_id, row.run_no)

    async def list(
        self, *, status: str | None = None, workflow: str | None = None, limit: int = 100
    ) -> builtins.list[dict[str, Any]]:
        """Runs, newest first, without inputs, results and nodes."""
        if status is not None and status not in [*RunStatus]:
            raise UsageError(f"engine.list: {status!r} is no status of a run; there are {', '.join(RunStatus)}")
        statuses = None if status is None else [status]
        return await self.read(
            lambda: reads.runs_json(self.store, self.store.runs(status=statuses, workflow=workflow, limit=limit))
        )

    async def recover(self, run_id: str, *, reverify: bool = False, actor: str = "") -> Recovered:
        """Check a run whose rows and journal may not agree (after a restored backup, a hand edit, a foreign writer),
        repair it from its journal if need be, and go on with it. `reverify` lets the last node run again where a run
        only lacks its end. Raises Refused when another engine owns the run, CannotBeRepaired when nothing helps."""
        return await self.catalogue.recover(run_id, reverify=reverify, actor=texts.actor(actor, "engine.recover"))

    async def asked(
        self, *, basket: str | None = None, assignee: str | None = None, limit: int = 100
    ) -> builtins.list[Wait]:
        """What people are asked by all runs, and what lies in baskets, oldest first."""
        for what, name in (("basket", basket), ("assignee", assignee)):
            if name is not None:
                texts.name(name, f"engine.asked: {what}")
        return await self.read(lambda: waits.views(self.store.asked(basket=basket, assignee=assignee, limit=limit)))

    async def baskets(self) -> builtins.list[dict[str, Any]]:
        """The baskets in which something lies: how many questions, how many pended nodes, since when."""
        return await self.read(waits.baskets_json, self.store)

    async def resume(
        self,
        run_id: str,
        *,
        wait: str | None = None,
        path: str | None = None,
        vars: dict[str, Any] | None = None,
        actor: str = "",
    ) -> Run[Any]:
        """Go on with a run that nobody drives, or that waits for a person to let it: release a hold, end a pause, take
        a node out of its basket (`run.resume` says which, and what `vars` does), take over what a dead engine left.
        Harmless when it is being driven already. Raises MissingCode when its code is not loaded here."""
        run, _ = await self.go_on(run_id, wait=wait, path=path, vars=vars, actor=actor)
        return run

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
        run: Run[Any] = Run(self, row.run_id, row.run_no)
        if is_odd:
            await self.catalogue.recover(row.run_id, actor=actor)
            row = await self.read(reads.find_run, self.store, run_id)
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
        if not self.drives:  # whoever does hears of it
            return run, await run.resume(wait=wait, path=path, vars=vars, actor=actor) if asked else []
        if not await self.read(self.versions.runnable, row.workflow, row.version):
            lacks = ", ".join(await self.read(self.versions.missing, row.workflow, row.version))
            raise MissingCode(
                f"run {row.run_id} of workflow {row.workflow} needs {lacks or 'its code'}, which is not loaded here; "
                "import it, then resume"
            )
        if self.recovery.roots is not None:
            self.recovery.roots.add(row.root_no)
        self.loading.accepted.add(row.run_no)
        if row.hold is not None:
            await self.committer.call(self.store.set_hold, row.run_no, row.token, None)
        await self.recovery.bury_dead()
        ended = await run.resume(wait=wait, path=path, vars=vars, actor=actor) if asked else []
        await self.recovery.claim([row.run_no])
        await self.recovery.sweep()
        return run, ended

    # --- the pump ------------------------------------------------------------------------------------------

    def pump_soon(self, actor: RunActor) -> None:
        """All mailboxes that fill in one turn of the loop become one group of commits."""
        if not self._to_pump:
            self.loop.call_soon(self._pump)
        self._to_pump.append(actor)

    def _pump(self) -> None:
        actors, self._to_pump = self._to_pump, []
        now = self.clock.now()
        for actor in actors:
            actor.pump(now)
        self.committer.flush()

    def call_at(self, due_at: int, function: Callable[..., None], *args: Any) -> Alarm:
        """Call when the clock shows `due_at`; never early."""
        return Alarm(self.loop, self.clock, due_at, functools.partial(function, *args))

    def flush_later(self, actor: RunActor, seconds: float | None) -> None:
        """`interval` runs commit at least this often."""
        if seconds is not None and actor.run_no not in self._flushing:
            self._flushing.add(actor.run_no)
            self.loop.call_later(seconds, self._flush, actor)

    def _flush(self, actor: RunActor) -> None:
        self._flushing.discard(actor.run_no)
        actor.flush()

    # --- what actors ask -----------------------------------------------------------------------------------

    def handler(self, name: str) -> Handler | None:
        """The code of a node, if it is loaded here."""
        found = self._handlers.get(name)
        if found is None:
            found = self._handlers[name] = handlers.find(name)
        return found

    def place_for(self, ns: NodeState) -> tuple[str, ...] | None:
        """The pools in which a body needs a place; None when its code is not here."""
        handler = self.handler(ns.plan.definition.uses)
        if handler is None or self.stopping:
            return None
        concurrency = ns.plan.definition.concurrency
        if concurrency is None and handler.kind in ("async", "inline"):
            return ()
        return self.slots.place_for(handler, concurrency)

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
        return max(0, limit - at_work - self.recovery.coming)

    def has_room_for(self, plan: Plan) -> bool:
        """Whether a run could go to work here: not where others of its workflow wait for a place already."""
        if self.settings.concurrency is None:
            return not self.lease.has_run_out
        return self.room() > 0 and not self.starting.has_line(plan)

    def adopt(self, actor: RunActor) -> None:
        """A run that this engine drives from now on."""
        limit = self.settings.concurrency
        if limit is not None and len(self.actors) >= limit and not actor.is_for_others:
            resting.make_room(self)
        self.actors[actor.run_no] = actor

    def left(self, actor: RunActor) -> None:
        self.actors.pop(actor.run_no, None)
        self.starting.run_left(actor)
        self.recovery.room_left()
        self.hub.moved(actor.run_no)

    def ended(self, actor: RunActor) -> None:
        """A run has its terminal event."""
        self.values.forget(actor.run_no)

    def refused(self, actor: RunActor, outcome: Landed, replies: Sequence[Done]) -> None:
        """A commit did not land: forget what we thought, and read again if the run is still ours."""
        why = f"the commit was refused ({outcome.refusal} {outcome.detail})"
        error = taken_away(actor.run_id, actor.token, why)
        self.values.forget(actor.run_no)
        actor.leave(error)
        for done in replies:
            done(None, error)
        if outcome.refusal == "failed":
            self.spawn(self.put_on_hold(actor.run_no, actor.token, f"internal_error: {outcome.detail}"))
        elif outcome.refusal in ("run_exists", "fenced") and not self.stopping:
            read_again = self.recovery.reload if outcome.refusal == "run_exists" else self.recovery.regain
            lease = (actor.run_no, actor.token)
            self.spawn(self.loading.see_to(lease, read_again, actor, unused=False))

    def stop_loudly(self, actor: RunActor, error: BaseException, replies: Sequence[Done]) -> None:
        """A bug in our own rules: this run stops where it is, with its journal intact."""
        log.critical("run %s stops: %s", actor.run_id, error, exc_info=error)
        self.values.forget(actor.run_no)
        actor.leave(error)
        for done in replies:
            done(None, error)
        hold = f"internal_error: {type(error).__name__}: {error}"
        self.spawn(self.put_on_hold(actor.run_no, actor.token, hold))

    async def put_on_hold(self, run_no: int, token: int, hold: str, *, unused: bool = False) -> None:
        """No engine touches the run until somebody resumes it. `unused`: we have claimed it, and not driven it."""
        await self.committer.insist(self.store.set_hold, run_no, token, hold)
        await self.committer.insist(self.store.release, [(run_no, token)], unused)
        self.hub.moved(run_no)

    async def release(self, actor: RunActor) -> None:
        """Give a lease back."""
        await self._releasing.put((actor.run_no, actor.token))
        self.inbox.look_soon()  # whatever came in while we let go must find an owner

    async def _release_all(self, leases: builtins.list[tuple[int, int]]) -> builtins.list[None]:
        await self.committer.insist(self.store.release, leases)
        return [None] * len(leases)

    async def watch(self, run_id: str) -> RunRow:
        """Wait until a run, of whoever, has ended."""
        run_no = (await self.read(reads.find_run, self.store, run_id)).run_no
        moved = self.hub.listen(run_no)
        try:
            while True:
                self.check()
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
