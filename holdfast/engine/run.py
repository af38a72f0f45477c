"""Run: a handle on one run, wherever it is being driven.

Owns: what a program may ask of a run. Reading goes to the store, asking goes through the inbox; both work when another
process owns the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from holdfast.engine import pasts, reads
from holdfast.engine.history import History
from holdfast.engine.paths import execution_paths
from holdfast.engine.why import why
from holdfast.model import events as ev
from holdfast.model import handlers
from holdfast.model.errors import RunCancelled, RunFailed, RunSuspended, UnknownRun, UsageError
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.values import decoder
from holdfast.rules.branches import Asked
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

    async def events(self, after: int = 0, branch: int | None = None) -> list[reads.EventView]:
        """The journal, from the event after `after` on: everything that happened, or the line of history of one
        branch."""
        if branch is None:
            return reads.event_views(self._engine.store, self._run_no, after)
        return await asyncio.to_thread(lambda: pasts.event_views(self._engine.store, self._history(), branch, after))

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

    async def show(self, branch: int | None = None) -> dict[str, Any]:
        """The run as JSON, with its nodes; as it is, or as one of its branches came to be."""
        if branch is None:
            return reads.run_json(self._engine.store, self._row(), full=True)
        return await asyncio.to_thread(lambda: pasts.branch_json(self._engine.store, self._history(), branch))

    async def why(self) -> str:
        """One paragraph: what the run waits for, since when, what will wake it, and if nothing will, why."""
        return why(self._engine.store, self._row(), self._engine.clock.now()).why

    async def waits(self) -> list[dict[str, Any]]:
        """What the run waits for."""
        return reads.waits_json(self._engine.store, self._row())

    async def cancel(self, reason: str = "", *, actor: str = "") -> None:
        """Ask the run to stop, and return when its owner has taken the request. A second cancel is a no-op."""
        await self._engine.inbox.request(self.run_id, "cancel", {"reason": reason, "actor": actor})

    async def fork(
        self,
        at: str | int | None = None,
        *,
        edits: dict[str, Any] | None = None,
        as_run: str | None = None,
        branch: int | None = None,
        keys: str = "renew",
        actor: str = "",
    ) -> Run[R]:
        """Go on from elsewhere: behind event `at` (a seq), before node `at` (which runs again with everything
        downstream of it), from `"start"`, or, without it, from the end of `branch`. What is kept never runs again. The
        run itself goes on from there, on a new branch; with `as_run` a new run of that id does, and this one is left
        alone. `edits` changes `input` (a merge patch), `vars`, `outputs` or `version`."""
        asked = Asked(at, branch, keys=_keys(keys), actor=actor)
        if as_run is not None and keys == "inherit":
            raise UsageError("a run of its own has its own idempotency keys; leave keys='inherit' out")
        if as_run is None:
            await self._engine.branching.ask(self.run_id, "fork", asked, edits)
            return self
        row = await self._engine.branching.fork_as_run(self.run_id, as_run, asked, edits)
        return Run(self._engine, row.run_id, row.run_no)

    async def jump(
        self, to: str, *, edits: dict[str, Any] | None = None, keys: str = "renew", actor: str = ""
    ) -> Run[R]:
        """Go on at a node, back (it runs again, with everything downstream of it) or forward (what lies between is
        skipped). Also reopens a run that has ended."""
        asked = Asked(to, keys=_keys(keys), actor=actor)
        await self._engine.branching.ask(self.run_id, "jump", asked, edits)
        return self

    async def retry(self, node: str | None = None, *, edits: dict[str, Any] | None = None, actor: str = "") -> Run[R]:
        """Let what failed (or one node of it) try again, with the same idempotency keys and what it remembers."""
        await self._engine.branching.ask(self.run_id, "retry", Asked(node, actor=actor), edits)
        return self

    async def preview(
        self,
        kind: Literal["fork", "jump", "retry"],
        target: str | int | None = None,
        *,
        edits: dict[str, Any] | None = None,
        branch: int | None = None,
        keys: str = "renew",
    ) -> dict[str, Any]:
        """What fork, jump or retry would reuse, run again and repeat. Nothing is changed."""
        found = await self._engine.branching.preview(self.run_id, kind, Asked(target, branch, keys=_keys(keys)), edits)
        return msgspec.structs.asdict(found)

    async def paths(self) -> dict[str, Any]:
        """The run as execution paths: where each one is, how its unit answered, which basket it lies in."""
        return execution_paths(self._engine.store, self._row()).as_json()

    async def branches(self) -> list[dict[str, Any]]:
        """The lines of history of the run, the first one first."""
        return await asyncio.to_thread(lambda: pasts.branches_json(self._engine.store, self._history()))

    async def diff(self, one: int, other: int) -> dict[str, Any]:
        """What two branches came to, and the instances whose status, output or error differs."""
        return await asyncio.to_thread(lambda: pasts.diff_json(self._engine.store, self._history(), one, other))

    def _history(self) -> History:
        return History(self._engine.store, self._engine.versions, self._row())

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


def _keys(keys: str) -> str:
    if keys not in ("renew", "inherit"):
        raise UsageError(f"keys are 'renew' or 'inherit', not {keys!r}")
    return keys
