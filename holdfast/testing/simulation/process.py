"""Process: one operating system process with an engine in it, as the world simulates it.

Owns: combining the real engine with a virtual loop, and what it means to die, to hang and to come back.
Never: decides when any of that happens (world.py).
Invariants: a dead process changes nothing, whatever of its code is still unwound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from holdfast.engine.committer import Writer
from holdfast.engine.engine import Engine
from holdfast.engine.engine_settings import EngineSettings
from holdfast.engine.ownership.lease import Lease
from holdfast.engine.runtime import LoopReader, Reader
from holdfast.engine.versions import Versions
from holdfast.inspect.inspector import Inspector
from holdfast.model.definition import Definition
from holdfast.model.plans import Plan
from holdfast.store.row_types import EngineRow
from holdfast.testing.simulation.database import WorldDatabase
from holdfast.testing.simulation.faults import Until
from holdfast.testing.simulation.python_internals import discard
from holdfast.testing.simulation.sandbox import WAY_OUT, Unsuitable
from holdfast.testing.simulation.store import Acts, ProcessStore
from holdfast.testing.simulation.virtual_loop import VirtualClock, VirtualLoop
from holdfast.testing.simulation.watched_bodies import WatchedExecutor, Watcher

T = TypeVar("T")


class Surroundings(Protocol):
    """What a process needs from its world."""

    clock: VirtualClock
    settings: EngineSettings
    watcher: Watcher | None
    shared: WorldDatabase

    @property
    def acts(self) -> Acts: ...

    def is_gone(self, engine: str) -> bool:
        """True if the operating system knows that the process of this engine has ended."""
        ...

    def unsuitable(self, why: str) -> None: ...


class Process:
    """A process that can be killed, or hang and come back."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.hangs_until: Until | None = None
        self.resumed: list[Any] | None = None
        """What the write at which it hung returns when its callback is repeated; empty: it happens only then."""
        self.executor = WatchedExecutor(self, world.watcher, world.settings.grace_seconds)
        self.loop = VirtualLoop(  # type: ignore[abstract]  # what it has not is refused, by a loop over the names
            world.clock, self._refuse, self.executor.blocking.run_in_executor
        )
        self.executor.blocking.loop = self.loop
        self.store = ProcessStore(world.shared, self, world.acts, world.clock)
        self.engine = SimulatedEngine(self)
        self.thawed: asyncio.Future[None] | None = None
        self.fresh = False
        """It has claimed runs and written nothing since, and owned no others before."""
        self.renewed_at = world.clock.now()
        self.seen = -1
        """The world's age when its engine last polled."""

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    @property
    def rests(self) -> bool:
        """True if it has nothing in memory that a new process would not have."""
        engine, loop = self.engine, self.loop
        idle = not (loop.ready or engine.actors or self.hangs_until or self.store.is_closed)
        return idle and engine.writer.idle and loop.next_time() is None

    @property
    def runs(self) -> bool:
        """True if it is alive and does not hang."""
        return self.alive and self.hangs_until is None

    def cut(self) -> None:
        """Kill the process, in the middle of whatever it does."""
        self.alive = False
        self.hangs_until = None
        self.loop.cut()
        self.store.revoke("the process is dead")

    def freeze(self, until: Until) -> None:
        """Run nothing of it until it comes back."""
        self.hangs_until = until
        self.thawed = self.loop.create_future()

    def thaw(self) -> None:
        self.hangs_until = None
        thawed, self.thawed = self.thawed, None
        if thawed is not None and not thawed.done():
            thawed.set_result(None)

    def dispose(self) -> None:
        """End the schedule. Coroutines are closed now, so that no `finally` of theirs runs later, and reference cycles
        are broken, so that memory is freed soon."""
        self.cut()
        for task in self.loop.tasks:
            discard(task)
        self.executor.dispose()
        for part in [*vars(self.engine).values()]:
            if type(part).__module__.startswith("holdfast.engine") and hasattr(part, "__dict__"):
                vars(part).clear()
        vars(self.engine).clear()

    def _refuse(self, what: str) -> Exception:
        self.world.unsuitable(what)
        return Unsuitable(f"{what}; {WAY_OUT}")


class SimulatedEngine(Engine):
    """The real engine, whose writer is the loop and whose background work the world does."""

    lease: SimulatedLease

    def __init__(self, process: Process) -> None:
        world = process.world
        self._process = process
        super().__init__(
            process.store,
            process.executor,
            Inspector,
            settings=world.settings,
            clock=world.clock,
        )
        self.writer = LoopWriter(process.loop)

    def _make_lease(self) -> SimulatedLease:
        return SimulatedLease(self._process)

    def _make_versions(self) -> Versions:
        return SharedVersions(self.store)

    def _make_reader(self) -> Reader:
        return LateReader() if self.store.is_shared else LoopReader()

    def _writer(self) -> Writer:
        return self.writer

    def _begin_background(self) -> None:
        pass


class SharedVersions(Versions):
    """The real versions; the same definition is compiled once for all engines of all schedules."""

    _compiled: ClassVar[dict[tuple[str, int], Plan]] = {}
    _encoded: ClassVar[dict[int, tuple[Definition, str, bytes]]] = {}

    def _content(self, definition: Definition) -> tuple[str, bytes]:
        known = self._encoded.get(id(definition))
        if known is None or known[0] is not definition:
            known = self._encoded[id(definition)] = (definition, *super()._content(definition))
        return known[1:]

    def numbered(self, workflow: str, version: int, definition: Definition | None = None) -> Plan:
        plan = self._by_version.get((workflow, version))
        if plan is None:
            row = self._store.version(workflow, version)
            known = None if row is None else self._compiled.get((row.hash, version))
            if known is None:
                known = super().numbered(workflow, version, definition)
                if row is not None:
                    self._compiled[row.hash, version] = known
            plan = self._by_version[workflow, version] = known
        return plan


class LateReader(LoopReader):
    """Reads at once and returns in the next turn of the loop, so that other things happen in between, as they do while
    a thread reads."""

    async def read(self, function: Callable[..., T], *args: Any) -> T:
        found = function(*args)
        await asyncio.sleep(0)
        return found


class LoopWriter:
    """Does one write per turn of the loop, so that other things happen while it is in progress."""

    groups_max: ClassVar[int] = 1

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._jobs: deque[Callable[[], None]] = deque()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._loop.call_soon(self._work)

    put_group = put

    def _work(self) -> None:
        self._jobs[0]()  # it stays in its place until it is done: a process that hangs runs this again
        self._jobs.popleft()
        if self._jobs:
            self._loop.call_soon(self._work)

    @property
    def idle(self) -> bool:
        return not self._jobs

    def close(self) -> None:
        while self._jobs:
            self._jobs.popleft()()


class SimulatedLease(Lease):
    """The real lease, with names that are the same in every replay; the world says which process has ended."""

    def __init__(self, process: Process) -> None:
        world = process.world
        super().__init__(process.store, world.settings.lease_seconds, world.clock)
        self._process = process
        self._lives = 1
        self.engine = process.name
        self.past: set[str] = set()
        """The names it had before it was declared dead."""

    def row(self, can_run: bytes) -> EngineRow:
        return super().row(b"[]")._replace(host="simulated", pid=1)

    def renew_identity(self) -> None:
        self._lives += 1
        self.past.add(self.engine)
        self.former = self.former or self.engine
        self.engine = f"{self._process.name}-{self._lives}"

    def dead_engines(self, now: int) -> list[EngineRow]:
        """On a shared store no engine knows which process has ended: there the lease alone decides."""
        gone = self._process.world.is_gone
        return [
            row
            for row in self._store.engines()
            if row.engine != self.engine and (row.expires_at < now or (gone(row.engine) and not self._store.is_shared))
        ]
