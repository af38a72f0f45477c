"""Engine: what drives runs in one process.

Owns: its parts and what each of them receives, their order at start and stop, what a program asks of an engine.
Never: decides what happens to a run (rules, ownership/), or how bodies run (executor).
On crash: nothing to undo; another engine finds the runs (ownership/claim.py).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine import missing
from holdfast.engine.branching import Branching
from holdfast.engine.committer import Committer, TwoWriterThreads, Writer, WriterThread
from holdfast.engine.deployments import Deployments, Named
from holdfast.engine.engine_settings import EngineSettings
from holdfast.engine.event_loop import check_loop, on_its_loop
from holdfast.engine.messages import Inbox
from holdfast.engine.migrating import Migrating
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.ownership.lease import Lease
from holdfast.engine.ownership.load import Loader
from holdfast.engine.ownership.poll import PollLoop
from holdfast.engine.ports import Executor, MakeInspector
from holdfast.engine.recovering import Recovered, RunRecovery
from holdfast.engine.replay_reader import ReplayReader
from holdfast.engine.run.bodies import Bodies
from holdfast.engine.run.pump import Pump
from holdfast.engine.run_handle import Run
from holdfast.engine.run_requests import RunRequests, resume_request
from holdfast.engine.runtime import LoopReader, Reader, ReaderThreads, Runtime
from holdfast.engine.shared_slots import LostThreads, SharedSlots
from holdfast.engine.starting import Starting
from holdfast.engine.version_verbs import VersionVerbs
from holdfast.engine.versions import Versions, capabilities_here
from holdfast.model import texts
from holdfast.model.errors import HoldfastError, StoreError, UsageError
from holdfast.model.policies import seconds
from holdfast.model.statuses import RunStatus
from holdfast.model.views import Wait
from holdfast.store.clocks import Clock, clock_of
from holdfast.store.contents import refuse_closed
from holdfast.store.contract import Store
from holdfast.store.records.run_records import find_run

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

log = logging.getLogger("holdfast.engine")
R = TypeVar("R")
DRAIN_SECONDS = 5.0
"""How long a closing engine waits for its last commits, however short the grace time is."""
GOODBYE_SECONDS = 2.0
"""How long a closing engine waits until its leases are released; no other engine of this process uses the store."""
TELLING_SECONDS = 0.1
"""How long after its failure the engine's `hf.open` block is cancelled: callers inside it that wait for an outcome get
theirs first."""


class Engine(VersionVerbs):
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
        """Whether it runs anything. An engine that does not starts runs, asks and answers; other engines drive."""
        self.clock: Clock = clock or clock_of(store)
        self.inspector = inspector(store, self.clock)
        """How its runs are read."""
        self.lease = self._make_lease()
        self.runtime = Runtime(
            store,
            executor,
            self.settings,
            self.clock,
            self.inspector,
            self.lease,
            self._make_versions(),
            queues=self.queues,
            drives=drives,
        )
        self.values, self.slots, self.hub = self.runtime.values, self.runtime.slots, self.runtime.hub
        self.lost_threads = LostThreads(self.runtime)
        self.custody = Custody(self.runtime, self.lost_threads)
        self.deployments = Deployments(self.runtime)
        self.actors = self.custody.actors
        self.on_failure: Callable[[], object] | None = None
        """Called after the store has failed for good."""
        self.loop: asyncio.AbstractEventLoop
        """The event loop on which everything of the engine is awaited."""
        self.committer: Committer
        self.shared_slots: SharedSlots
        self.inbox: Inbox
        self.starting: Starting
        self.pump: Pump
        self.loader: Loader
        self.claims: Claims
        self.requests: RunRequests
        self.recovery: RunRecovery
        self.branching: Branching
        self.migrating: Migrating
        self.bodies: Bodies
        self.poll_loop: PollLoop

    @property
    def store_id(self) -> str:
        return self.runtime.store_id

    @property
    def fatal(self) -> BaseException | None:
        """The error after which the engine cannot use its store."""
        return self.runtime.fatal

    # --- life ----------------------------------------------------------------------------------------------

    async def open(self, *, takes_over: bool = True) -> None:
        """Open the store and register this engine; nothing is claimed yet. Only an engine that `takes_over` runs of
        other engines offers its capabilities: any other one drives only the runs that were started or resumed there."""
        runtime = self.runtime
        if takes_over and self.drives:
            offer = capabilities_here(self.queues, self.settings.concurrency, self.settings.lease_seconds)
            runtime.offer = offer
        self.store.open()
        self.loop = asyncio.get_running_loop()
        runtime.open(self.loop, self._make_reader())
        try:
            runtime.store_id = await runtime.read(self.store.store_id)
            refuse_closed(await runtime.read(self.store.standing), self.store.url)
            runtime.committer = Committer(self.store, self.loop, self._store_failed, self._writer())
            self.committer = runtime.committer
            self._make_parts()
            self.lease.open(self.loop)
            await self.committer.call(self.lease.register, runtime.offer.encode())
        except BaseException:
            self.store.close()
            runtime.close()
            raise
        self.executor.open(self.loop, self.lost_threads.changed)
        self._begin_background()

    def _make_parts(self) -> None:
        """Make the parts that drive runs, each with what it uses; those made later are handed to earlier ones as single
        functions."""
        runtime, custody = self.runtime, self.custody
        self.shared_slots = SharedSlots(runtime)
        self.inbox = inbox = Inbox(runtime, custody.actors)
        self.starting = starting = Starting(runtime, custody, inbox)
        self.bodies = Bodies(runtime, custody, ReplayReader(runtime), starting, inbox)
        self.pump = Pump(runtime, custody, starting, inbox, self.bodies)
        self.loader = Loader(runtime, custody, inbox, self.pump)
        self.claims = claims = Claims(runtime, custody, self.loader, inbox)
        self.requests = RunRequests(runtime, custody, claims, inbox)
        self.recovery = RunRecovery(runtime, custody, claims, self.requests)
        self.branching = Branching(runtime, custody, starting, claims, inbox, self.requests, self.recovery)
        self.migrating = Migrating(runtime, self.branching)
        self.poll_loop = PollLoop(runtime, custody, claims, inbox, self.shared_slots, self.lost_threads)
        custody.turns, custody.deliver_soon = self.pump, inbox.deliver_soon
        custody.refill, custody.reclaim = claims.on_room_freed, claims.reclaim
        starting.first_commit = self.pump.first_commit
        inbox.claim, inbox.open_branch = claims.claim, self.branching.apply_to
        self.loader.before_loading = self.branching
        self.lost_threads.has_room_again = self.poll_loop.hint

    def _make_lease(self) -> Lease:
        return Lease(self.store, self.settings.lease_seconds, self.clock)

    def _make_versions(self) -> Versions:
        return Versions(self.store, runs_code=self.drives)

    def _make_reader(self) -> Reader:
        return ReaderThreads() if self.store.is_shared else LoopReader()

    def _writer(self) -> Writer:
        return TwoWriterThreads() if self.store.is_shared else WriterThread()

    def _begin_background(self) -> None:
        """Start what happens by itself; the testing kit has a clock of its own and does it by hand."""
        self.lease.start_renewing(self.committer, self.loop)
        self.poll_loop.start()

    async def close(self) -> None:
        """Drain and stop: bodies may end or are stopped, leases are released. No attempt is lost. An unreachable server
        is waited for as long as bodies may take; after that this engine's leases expire by themselves."""
        check_loop(self, "close")
        self.runtime.stopping = True
        patience = max(self.settings.patience_seconds, DRAIN_SECONDS)
        give_up_at = self.loop.time() + patience
        for actor in list(self.actors.values()):
            self.bodies.stop_resuming(actor)
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
        """Release all leases. When the server does not answer, the store is closed while the writer waits for it: what
        was not committed by then is done again by the engines that take the runs over."""
        patience = 0.0 if self._is_away() and self.loop.time() >= give_up_at else GOODBYE_SECONDS
        try:
            async with asyncio.timeout(patience):
                await self.committer.call(self.store.remove_engine, self.lease.engine)
        except TimeoutError:
            if self._is_away():
                self.store.close()
        except HoldfastError as e:
            log.debug("could not release the leases: %s", e)

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
        """The store cannot be used any longer. Callers get the reason why the engine stops, not a failed run; its lease
        ends, so that another engine takes its runs over; and the `hf.open` block is cancelled."""
        self.runtime.fatal = error
        log.error("the store can no longer be used, and this engine stops: %s", error, extra={"is_fatal": True})
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
        workflow: Workflow[..., R] | str,
        /,
        *,
        run_id: str | None = None,
        priority: int | None = None,
        timeout: float | str | timedelta | None = None,
        persistence: str | None = None,
        queue: str | None = None,
        rollout_key: str | None = None,
        **inputs: Any,
    ) -> Run[R]:
        """Start a run; returns once it is committed. The same `run_id` with the same input is the same run; with
        another input it is RunExists, and nothing is changed. Raises InvalidInput when an input does not fit.

        A Python object is started as it is. By name, `"fulfil"`, `"fulfil@canary"` or `"fulfil@3"`, the database
        decides: that alias or version, else the alias `stable` if it exists, else the latest version. Of an alias with
        weights the `rollout_key` chooses, else the run id. The code need not be loaded here: an engine that has it
        drives the run."""
        chosen = {"priority": priority, "timeout": timeout, "persistence": persistence, "queue": queue}
        settings = {name: value for name, value in chosen.items() if value is not None}
        if timeout is not None:
            settings["timeout"] = seconds(timeout)
        if isinstance(workflow, str):
            row = await self.starting.start_named(Named.of(workflow, rollout_key), inputs, run_id, settings)
        else:
            row = await self.starting.start(workflow.registered, inputs, run_id, settings)
        if self.claims.only_root_runs is not None and self.drives:
            self.claims.only_root_runs.add(row.root_no)
            if row.run_no not in self.actors:
                await self.claims.sweep()
                await self._refuse_if_stuck(row.run_id)
        return Run(self, row.run_id, row.run_no)

    async def _refuse_if_stuck(self, run_id: str) -> None:
        """MissingCode for a run that exists, that nothing but this engine could drive, and whose code it lacks."""
        row = await self.runtime.read(self.store.run, run_id)
        if (
            row is not None
            and (error := await self.runtime.read(missing.error_if_stuck, self.runtime, row)) is not None
        ):
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
            raise UsageError(f"engine.list: {status!r} is not a status of a run; there are {', '.join(RunStatus)}")
        statuses = None if status is None else [status]
        return await self.runtime.read(
            lambda: self.inspector.runs(self.store.runs(status=statuses, workflow=workflow, limit=limit))
        )

    @on_its_loop
    async def recover(self, run_id: str, *, reverify: bool = False, force: bool = False, actor: str = "") -> Recovered:
        """Check a run whose rows and journal may not agree (after a restored backup, a hand edit, a foreign writer),
        repair it from its journal if need be, and resume it. `reverify` lets the last node run again where a run
        only lacks its end. `force` lets a run that has completed be decided again under the version that it began with,
        where the one that it completed under is not in the store. Raises Refused when another engine owns the run,
        CannotBeRepaired when nothing helps."""
        who = texts.actor(actor, "engine.recover")
        return await self.recovery.recover(run_id, reverify=reverify, force=force, actor=who)

    @on_its_loop
    async def asked(
        self, *, basket: str | None = None, assignee: str | None = None, limit: int = 100
    ) -> builtins.list[Wait]:
        """The open questions of all runs and the contents of all baskets, oldest first."""
        for what, name in (("basket", basket), ("assignee", assignee)):
            if name is not None:
                texts.name(name, f"engine.asked: {what}")
        return await self.runtime.read(self.inspector.asked, basket, assignee, limit)

    @on_its_loop
    async def baskets(self) -> builtins.list[dict[str, Any]]:
        """The baskets that are not empty: how many questions, how many pended nodes, since when."""
        return await self.runtime.read(self.inspector.baskets)

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
        """Resume a run that no engine drives, or that waits for a person: lift its hold, end its pause, take a node out
        of its basket (`run.resume` says which, and what `vars` and `accept_change` do), take over the run of a dead
        engine. Harmless when it is being driven already. Raises MissingCode when its code is not loaded here."""
        if accept_change:
            held = self.get(run_id)
            await held.resume(wait=wait, path=path, vars=vars, accept_change=True, actor=actor)
            return held
        run, _ = await self.resume_and_report(run_id, wait=wait, path=path, vars=vars, actor=actor)
        return run

    @on_its_loop
    async def resume_and_report(
        self,
        run_id: str,
        *,
        wait: str | None = None,
        path: str | None = None,
        vars: dict[str, Any] | None = None,
        actor: str = "",
    ) -> tuple[Run[Any], builtins.list[str]]:
        """`resume`, and the waits that ended with it."""
        row, ended = await self.recovery.resume(run_id, resume_request(wait, path, vars, actor))
        return Run(self, row.run_id, row.run_no), ended


def _queue_names(queues: Sequence[str]) -> tuple[str, ...]:
    """The names of queues, each of which a run can have. One text is a sequence, too, but not of names."""
    if isinstance(queues, str) or not queues:
        raise UsageError(f"queues are a list of names, not {queues!r}; leave it out to serve all")
    return tuple(texts.name(queue, "the queue") for queue in queues)
