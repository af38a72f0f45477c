"""Run: a handle on one run, wherever it is being driven.

Owns: what a program may ask of a run. Reading goes to the store, asking goes through the inbox; both work when another
process owns the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.engine import reads
from holdfast.model import events as ev
from holdfast.model import handlers
from holdfast.model.errors import RunCancelled, RunFailed, RunSuspended, UnknownRun
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.values import decoder
from holdfast.store.api import RunRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

R = TypeVar("R")


class Run(Generic[R]):
    """One run. `R` is the type of its result."""

    def __init__(self, engine: Engine, run_id: str, run_no: int) -> None:
        self._engine = engine
        self._run_no = run_no
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<run {self.run_id}>"

    async def status(self) -> str:
        """`created`, `running`, `suspended`, `recovering`, `completed`, `failed` or `cancelled`."""
        return reads.shown_status(self._row())

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the run's end. Raises RunFailed or RunCancelled; TimeoutError when it takes too long."""
        if timeout is None:
            return await self._result()
        async with asyncio.timeout(timeout):
            return await self._result()

    async def _result(self) -> R:
        actor = self._engine.actors.get(self._run_no)
        if actor is not None:
            await actor.until_left()
            if actor.outcome is not None:
                return self._outcome(actor.outcome, actor.plan.definition.name)
        row = await self._engine.watch(self.run_id)
        return self._outcome(reads.terminal_event(self._engine.store, row), row.workflow)

    def _outcome(self, terminal: Any, workflow: str) -> R:
        match terminal:
            case ev.RunCompleted():
                found = handlers.find_workflow(workflow)
                decode = decoder(Any if found is None else found.returns)
                return decode(bytes(terminal.result))  # type: ignore[no-any-return]
            case ev.RunCancelled():
                raise RunCancelled(
                    f"run {self.run_id} was cancelled: {terminal.reason or 'no reason given'}", self.run_id
                )
        raise RunFailed(f"run {self.run_id} failed: {terminal.error.message}", terminal.error, self.run_id)

    async def nodes(self) -> list[dict[str, Any]]:
        """Every instance of the run, as on the command line."""
        return reads.nodes_json(self._engine.store, self._row())

    async def events(self, after: int = 0) -> list[reads.EventView]:
        """The journal, from the event after `after` on."""
        return reads.event_views(self._engine.store, self._run_no, after)

    async def follow(self, after: int = 0) -> AsyncIterator[reads.EventView]:
        """Committed events as they come, until the run has ended."""
        moved = self._engine.hub.listen(self._run_no)
        try:
            while True:
                row = self._row()
                for view in reads.event_views(self._engine.store, self._run_no, after):
                    after = view.seq
                    yield view
                if row.status in RUN_TERMINAL and after >= row.last_seq:
                    return
                self._engine.check()
                await moved.wait()
                moved.clear()
        finally:
            self._engine.hub.leave(self._run_no, moved)

    async def show(self) -> dict[str, Any]:
        """The run as JSON, with its nodes."""
        return reads.run_json(self._engine.store, self._row(), full=True)

    async def waits(self) -> list[dict[str, Any]]:
        """What the run waits for."""
        return reads.waits_json(self._engine.store, self._row())

    async def cancel(self, reason: str = "", *, actor: str = "") -> None:
        """Ask the run to stop, and return when its owner has taken the request. A second cancel is a no-op."""
        await self._engine.inbox.request(self.run_id, "cancel", {"reason": reason, "actor": actor})

    async def until_quiet(self) -> RunRow:
        """Wait until the run has ended, or until nothing but the outside can move it (RunSuspended)."""
        moved = self._engine.hub.listen(self._run_no)
        try:
            while True:
                self._engine.check()
                row = self._row()
                if row.status in RUN_TERMINAL:
                    return row
                waits = self._engine.store.open_waits([self._run_no])
                if row.hold is not None or (row.status == RunStatus.SUSPENDED and any(w.kind == "hold" for w in waits)):
                    shown = tuple(reads.waits_json(self._engine.store, row))
                    why = row.hold or "; ".join(str(w["question"]) for w in shown if w["kind"] == "hold")
                    raise RunSuspended(f"run {self.run_id} is on hold: {why}", self.run_id, shown)
                await moved.wait()
                moved.clear()
        finally:
            self._engine.hub.leave(self._run_no, moved)

    def _row(self) -> RunRow:
        row = self._engine.store.run_by_no(self._run_no)
        if row is None:
            raise UnknownRun(f"there is no run {self.run_id} in {self._engine.store.url}")
        return row
