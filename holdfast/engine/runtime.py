"""Runtime: what all parts of one engine share, and none of which knows what a run is about.

Owns: the event loop, the background tasks, the place where reads happen, whether the engine still works; the services
that every part uses (store, clock, committer, lease, values, versions, slots, wake-ups); what this engine can run.
Never: reaches a run, or a part that drives runs: those receive the runtime.
Invariants: every background task is in one set and ends with the engine. An engine that has failed stays failed. What
was read beside the loop may be old by the time it is used: its user checks again what only the loop knows (which engine
drives a run, whether the engine is closing); what only the store knows is decided by the conditions of the next write.
On crash: nothing to undo.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from holdfast.engine.committer import Committer, Job, work_off
from holdfast.engine.engine_settings import EngineSettings
from holdfast.engine.event_loop import Hub
from holdfast.engine.ownership.lease import Lease
from holdfast.engine.ports import Executor, RunInspector, settle
from holdfast.engine.slots import Nesting, Slots
from holdfast.engine.versions import Versions
from holdfast.model import capabilities, handlers
from holdfast.model.errors import StoreError
from holdfast.model.handlers import Handler
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.clocks import Clock
from holdfast.store.contract import Store
from holdfast.store.records.run_records import find_run
from holdfast.store.records.stored_values import Values
from holdfast.store.row_types import RunRow

T = TypeVar("T")
log = logging.getLogger("holdfast.engine")
READERS = 4
"""Reads at once. They have threads of their own: bodies may keep asyncio's busy for as long as they like."""


class Runtime:
    """The event loop of one engine, what runs on it in the background, and the services of its parts."""

    loop: asyncio.AbstractEventLoop
    """The event loop on which everything of the engine is awaited."""
    committer: Committer
    read: Read
    """Reads from the store: awaits the function that it is given, with its arguments. Writes of other engines after the
    read began are not in its result."""
    store_id: str

    def __init__(
        self,
        store: Store,
        executor: Executor,
        settings: EngineSettings,
        clock: Clock,
        inspector: RunInspector,
        lease: Lease,
        versions: Versions,
        *,
        queues: tuple[str, ...] | None,
        drives: bool,
    ) -> None:
        self.store = store
        self.executor = executor
        self.settings = settings
        self.clock = clock
        self.inspector = inspector
        self.lease = lease
        self.versions = versions
        self.queues = queues
        self.drives = drives
        self.offer = capabilities.NOTHING
        """What this engine says it can run."""
        self.values = Values(store)
        self.slots = Slots(settings.threads, settings.processes)
        self.nesting = Nesting()
        self.hub = Hub()
        self.stopping = False
        """The engine is being closed, or is closed: nothing new begins."""
        self.fatal: BaseException | None = None
        """The error after which the engine cannot use its store."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reader: Reader
        self.handlers: dict[str, Handler | None] = {}
        """The code of nodes that was found here, by name."""

    def open(self, loop: asyncio.AbstractEventLoop, reader: Reader) -> None:
        """Run on this loop, and read through this reader."""
        self.loop = loop
        self._reader = reader
        self.read = reader.read

    def check(self) -> None:
        """Raise when the engine has failed or is closed."""
        if self.fatal is not None:
            raise self.fatal
        if self.stopping:
            raise StoreError("the engine is closed")

    # --- reads and background work ---------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background, until it ends or the engine is closed. A failure is logged."""
        task = self.executor.task(work)
        self._tasks.add(task)
        task.add_done_callback(self._report_failure)
        return task

    async def run_to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end even if the caller is cancelled; only closing the engine cancels it."""
        task = self.executor.task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller is not None and caller.cancelling()):
                raise StoreError("the engine is closed") from None
            task.add_done_callback(self._report_failure)  # the caller does not learn that it failed
            raise

    def _report_failure(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def cancel_tasks(self) -> None:
        """Cancel all background work and wait until it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def watch(self, run_id: str) -> RunRow:
        """Wait until a run, whichever engine drives it, has ended."""
        run_no = (await self.read(find_run, self.store, run_id)).run_no
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

    def close(self) -> None:
        self._reader.close()

    # --- what this engine can run ----------------------------------------------------------------------------

    def handler(self, name: str) -> Handler | None:
        """The code of a node, if it is loaded here."""
        found = self.handlers.get(name)
        if found is None:
            found = self.handlers[name] = handlers.find(name)
        return found

    def serves(self, queue: str) -> bool:
        """Whether runs of this queue are driven here."""
        return self.drives and (self.queues is None or queue in self.queues)


# --- where the store is read ----------------------------------------------------------------------------------------


class Read(Protocol):
    """Reads from the store."""

    async def __call__(self, function: Callable[..., T], *args: Any) -> T: ...


class Reader(Protocol):
    """How to read."""

    async def read(self, function: Callable[..., T], *args: Any) -> T: ...

    def close(self) -> None:
        """Accept no more reads. A read that waits for a server ends when the store is closed."""
        ...


class LoopReader:
    """Reads at once: a file answers sooner than a thread could be asked."""

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)

    def close(self) -> None:
        pass


class ReaderThreads:
    """Reads beside the loop: a server may become unreachable in the middle of a read, which then waits in a thread,
    while bodies, other runs and closing the engine continue. No process waits for these threads when it ends."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_closed = False
        for number in range(READERS):
            name = f"holdfast-reader-{number}"
            threading.Thread(target=work_off, args=(self._jobs,), name=name, daemon=True).start()

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        if self._is_closed:  # and so is the store, which says it
            return function(*args)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            found: Any = None
            error: BaseException | None = None
            try:
                found = function(*args)
            except Exception as e:  # noqa: BLE001 - it is raised again where the caller waits
                error = e
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the caller
                loop.call_soon_threadsafe(settle, answer, found, error)

        self._jobs.put(job)
        return await answer

    def close(self) -> None:
        self._is_closed = True
        for _ in range(READERS):
            self._jobs.put(None)
