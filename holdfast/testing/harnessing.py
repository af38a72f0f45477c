"""Harness: a workflow in a test, in memory, with a clock that only the test advances.

Owns: `harness()`, which runs the real engine in a simulated process inside the test's event loop, and the handles that
it returns.
Rule: everything that can happen without time passing has happened when a call returns. Nothing else happens by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model.errors import UsageError
from holdfast.model.limits import SECOND
from holdfast.testing.explorer import substitutes
from holdfast.testing.simulation.database import MemoryStore
from holdfast.testing.simulation.world import World

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

T = TypeVar("T")
R = TypeVar("R")


@contextlib.asynccontextmanager
async def harness(*, fakes: dict[Any, Any] | None = None) -> AsyncIterator[Harness]:
    """A workflow in a test: real engine, SQLite in memory, and a clock that only the test advances.

        async def test_reminder_after_a_day():
            async with harness() as h:
                run = await h.start(onboarding, case=case)
                await h.advance(days=1)
                assert (await run.status()) == "completed"

    Sync and `process=True` bodies run on the event loop. A body that needs a socket or a child process is refused: give
    `fakes={"module:name": fake}`.
    """
    with contextlib.ExitStack() as stack:
        for what, fake in (fakes or {}).items():
            stack.enter_context(substitutes.put(substitutes.find(what)[1], fake))
        found = Harness()
        try:
            yield found
        finally:
            found.close()


class Harness:
    """One engine at a time, on one database, with a virtual clock."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._world = World(self._store)
        self._process = self._world.boot()
        self._world.settle()

    @property
    def engine(self) -> Engine:
        """The current engine. Await its calls through `h.wait(...)`."""
        return self._process.engine

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return datetime.fromtimestamp(self._world.clock.now() / SECOND, UTC)

    async def start(self, workflow: Workflow[..., R], /, **options_and_inputs: Any) -> HarnessRun[R]:
        """Start a run, and do everything that needs no time."""
        run = await self.wait(self.engine.start(workflow, **options_and_inputs))
        return HarnessRun(self, run.run_id)

    async def advance(
        self,
        delta: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Advance the clock, and do everything that happens meanwhile, in its order."""
        passed = (delta or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if passed < timedelta():
            raise UsageError("time only goes forward")
        self._world.pass_time(int(passed.total_seconds() * SECOND))

    async def crash(self) -> None:
        """Kill the process where it is, and start another one."""
        self._world.kill(self._process)
        self._process = self._world.boot()
        self._world.settle()

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a call of the engine. Raises UsageError if only time, or a request from outside, could finish it."""
        task = self._process.loop.create_task(work)
        self._world.settle()
        if not task.done():
            task.cancel()
            self._world.settle()
            raise UsageError(
                "this waits for time to pass, or for a request from outside: advance the clock, or make the request"
            )
        return task.result()  # type: ignore[no-any-return]

    def get(self, run_id: str) -> HarnessRun[Any]:
        """A run by its id."""
        return HarnessRun(self, run_id)

    def close(self) -> None:
        self._world.dispose()
        self._store.close()


class HarnessRun(Run[R]):
    """One run: all methods of `Run`, complete when the call returns."""

    def __init__(self, harness: Harness, run_id: str) -> None:
        self._harness = harness
        self.run_id = run_id

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "run_id" or not callable(getattr(Run, name, None)):
            return super().__getattribute__(name)
        harness: Harness = self._harness
        method: Callable[..., Any] = getattr(harness.engine.get(self.run_id), name)
        if name == "follow":
            return lambda after=0: _committed(harness, method, after)
        return lambda *args, **kwargs: harness.wait(method(*args, **kwargs))


async def _committed(harness: Harness, follow: Callable[..., AsyncIterator[Any]], after: int) -> AsyncIterator[Any]:
    """The events that are there; the test knows when there can be more."""
    events = follow(after)
    while True:
        try:
            yield await harness.wait(events.__anext__())  # type: ignore[arg-type]
        except (StopAsyncIteration, UsageError):
            return
