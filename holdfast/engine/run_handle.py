"""Run: a handle on one run, wherever it is being driven.

Owns: what a program may ask of a run. Reading goes to the store, asking goes through the inbox; both work when another
process owns the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from holdfast.engine import changes
from holdfast.engine.branching import Branching
from holdfast.engine.event_loop import check_loop, on_its_loop
from holdfast.engine.migrating import Migrating
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.run_requests import RunRequests, resume_request, suspended
from holdfast.engine.runtime import Runtime
from holdfast.model import answers, handlers, texts
from holdfast.model import events as ev
from holdfast.model.errors import (
    HoldfastError,
    InvalidInput,
    RunCancelled,
    RunFailed,
    UnknownRun,
    UsageError,
)
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.model.values import encode, plain
from holdfast.model.views import EventView, Wait
from holdfast.rules.branch_opening import Asked
from holdfast.store.records.run_records import result_of, terminal_event
from holdfast.store.records.state_rows import about_of
from holdfast.store.row_types import RunRow

R = TypeVar("R")
_T = TypeVar("_T")
STANDS_SECONDS = 0.5
"""How long a message waits to learn where a run stands: a file says it at once, a server may be away."""


class RunParts(Protocol):
    """The parts of an engine that a handle uses."""

    runtime: Runtime
    custody: Custody
    requests: RunRequests
    branching: Branching
    migrating: Migrating


class Run(Generic[R]):
    """One run. `R` is the type of its result."""

    def __init__(self, engine: RunParts, run_id: str, run_no: int) -> None:
        self._engine = engine
        self._runtime = engine.runtime
        self._run_no = run_no
        self.loop = self._runtime.loop
        """The event loop of its engine, on which everything of it is awaited."""
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<run {self.run_id}>"

    @on_its_loop
    async def status(self) -> str:
        """`created`, `running`, `suspended`, `recovering`, `completed`, `failed` or `cancelled`."""
        return await self._read(self._runtime.inspector.status)

    @on_its_loop
    async def result(self, timeout: float | None = None) -> R:
        """Wait until the run has ended and return its result. Raises RunFailed or RunCancelled; TimeoutError, which
        says where the run stands, when it takes too long."""
        if timeout is not None:
            try:
                async with asyncio.timeout(timeout):
                    return await self.result()
            except TimeoutError:
                stands = await self._stands()
                raise TimeoutError(f"run {self.run_id} has not ended after {timeout:g} s{stands}") from None
        actor = self._engine.custody.actors.get(self._run_no)
        if actor is not None:
            await actor.until_detached()
            if actor.outcome is not None and getattr(actor.outcome, "located", None) is None:
                return self._outcome(actor.outcome, actor.plan.definition.name)
        row = await self._runtime.watch(self.run_id)
        terminal = await self._runtime.read(terminal_event, self._runtime.store, row)
        if isinstance(terminal, ev.RunCompleted) and terminal.located is not None:  # very many rows: read in a thread
            result = await asyncio.to_thread(result_of, self._runtime.store, row, terminal)
            terminal = ev.RunCompleted(msgspec.Raw(result))
        return self._outcome(terminal, row.workflow)

    async def _stands(self) -> str:
        """Where the run stands, to end a message with; empty when a server does not answer in time."""
        with suppress(TimeoutError, HoldfastError):
            async with asyncio.timeout(STANDS_SECONDS):
                return f": {await self.why()}"
        return ""

    def _outcome(self, terminal: Any, workflow: str) -> R:
        match terminal:
            case ev.RunCompleted():
                found = handlers.find_workflow(workflow)
                read = plain if found is None else found.read_result
                try:
                    return read(bytes(terminal.result))  # type: ignore[no-any-return]
                except InvalidInput as wrong:
                    what = f"the result of run {self.run_id} is not what workflow {workflow} is annotated with"
                    raise InvalidInput(f"{what}: {wrong.message}") from None
            case ev.RunCancelled():
                reason = terminal.reason or "no reason given"
                raise RunCancelled(f"run {self.run_id} was cancelled: {reason}", self.run_id, terminal.others)
        message = f"run {self.run_id} failed: {terminal.error.message}"
        raise RunFailed(message, terminal.error, self.run_id, terminal.others)

    @on_its_loop
    async def nodes(self) -> list[dict[str, Any]]:
        """Every instance of the run, as on the command line."""
        return await self._read(self._runtime.inspector.nodes)

    @on_its_loop
    async def events(self, after: int = 0, branch: int | None = None) -> list[EventView]:
        """The journal, from the event after `after` on: everything that happened, or the lineage of one
        branch."""
        if branch is None:
            return await self._runtime.read(self._runtime.inspector.events, self._run_no, after)
        return await self._look_back(lambda row: self._runtime.inspector.branch_events(row, branch, after))

    async def follow(self, after: int = 0) -> AsyncIterator[EventView]:
        """Committed events as they come, until the run has ended."""
        check_loop(self, "follow")
        moved = self._runtime.hub.listen(self._run_no)
        try:
            while True:
                await asyncio.sleep(0)  # reading a file does not suspend
                row, views = await self._runtime.read(self._row_and_events, after)
                for view in views:
                    after = view.seq
                    yield view
                if row.status in RUN_TERMINAL and after >= row.last_seq:
                    return
                self._runtime.check()
                await moved.wait()
                moved.clear()
        finally:
            self._runtime.hub.leave(self._run_no, moved)

    @on_its_loop
    async def show(self, branch: int | None = None) -> dict[str, Any]:
        """The run as JSON, with its nodes; as it is, or as one of its branches came to be."""
        if branch is None:
            return await self._read(self._runtime.inspector.run)
        return await self._look_back(lambda row: self._runtime.inspector.run(row, branch))

    @on_its_loop
    async def why(self) -> str:
        """One paragraph: what the run waits for, since when, what will wake it, and if nothing will, why."""
        return await self._read(self._runtime.inspector.why)

    @on_its_loop
    async def waits(self) -> list[Wait]:
        """What the run waits for."""
        return await self._read(self._runtime.inspector.waits)

    @on_its_loop
    async def respond(self, wait_id: str, value: Any, *, actor: str = "") -> None:
        """Answer a question. Raises InvalidInput when the answer does not fit its schema, and Refused when it was
        answered already (and by whom), has passed its deadline, or belongs to a run that was cancelled; the question
        stays as it is."""
        texts.name(wait_id, "run.respond: wait_id")
        texts.actor(actor, "run.respond")
        data = encode(value, what="the answer")
        for found in await self._runtime.read(self._runtime.store.wait, wait_id):
            if found.wait.wait_id == wait_id and found.run_id == self.run_id and found.wait.status == "open":
                wrong = answers.problems(about_of(found.wait).get("schema"), data)
                if wrong:
                    raise InvalidInput(f"this does not answer {wait_id}: {'; '.join(wrong)}")
        payload = {"wait_id": wait_id, "value": msgspec.Raw(data), "actor": actor}
        await self._engine.requests.request(self._run_no, "answer", payload)

    @on_its_loop
    async def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> None:
        """Send a signal, which `ctx.receive(name)` or `hf.receive(name)` gets, now or when it asks. With an `id` it is
        the same signal however often it is sent; with another payload under the same id Refused is raised. A signal
        that was refused (its payload does not fit) has not used up its id."""
        texts.name(name, "run.signal: name")
        if id is not None:
            texts.question(id, "run.signal: id")
        data = encode(payload, what=f"the payload of signal {name!r}")
        await self._engine.requests.signal(self._run_no, self.run_id, name, data, id)

    @on_its_loop
    async def pause(self, reason: str = "", *, actor: str = "") -> None:
        """Stop the run between its nodes: nothing new starts, bodies at work finish their node or are left at their
        next call on ctx. `resume` ends the pause. A second pause is a no-op."""
        asked = {"reason": texts.reason(reason, "run.pause"), "actor": texts.actor(actor, "run.pause")}
        await self._engine.requests.request(self._run_no, "pause", asked)

    @on_its_loop
    async def resume(
        self,
        *,
        wait: str | None = None,
        path: str | None = None,
        vars: dict[str, Any] | None = None,
        accept_change: bool = False,
        actor: str = "",
    ) -> list[str]:
        """Resume the run where it waits for a person: end its pause, take a node out of its basket, release a hold.
        `wait` or `path` say which; without them it is the pause, or else every hold and the basket of the deepest path
        (the oldest of several). `vars` sets variables first. The waits that ended with it.

        With `accept_change` a run that is on hold because a body makes other calls than it recorded continues with the
        code that is loaded here, on a branch with the same idempotency keys: calls that agree with what is remembered
        are not made again, what no call asks for is set aside, and all other calls are new."""
        asked = resume_request(wait, path, vars, actor)
        if accept_change:
            if wait is not None or path is not None or vars:
                raise UsageError("run.resume: accept_change goes by itself, without wait, path and vars")
            row = await self._runtime.read(self._row)
            await changes.accept(self._runtime, self._engine.branching, row, actor)
            return []
        return await self._engine.requests.resume(self._run_no, asked)

    @on_its_loop
    async def reassign(
        self, wait_id: str, *, assignee: str | None = None, basket: str | None = None, actor: str = ""
    ) -> None:
        """Reassign a question or a pended node to another assignee, or to another basket."""
        texts.name(wait_id, "run.reassign: wait_id")
        texts.actor(actor, "run.reassign")
        if assignee is None and basket is None:
            raise UsageError("run.reassign: say to whom: assignee='bob' or basket='managers'")
        for what, to in (("assignee", assignee), ("basket", basket)):
            if to is not None:
                texts.name(to, f"run.reassign: {what}")
        payload = {"wait_id": wait_id, "assignee": assignee, "basket": basket, "actor": actor}
        await self._engine.requests.request(self._run_no, "reassign", payload)

    @on_its_loop
    async def cancel(self, reason: str = "", *, actor: str = "", give_up_undo: bool = False) -> None:
        """Ask the run to stop, and return when its owner has taken the request. A second cancel is a no-op.

        With `give_up_undo` compensations whose code no engine has loaded are recorded as failed, and named in the run's
        error. A cancel of a run that is on hold while it compensates does so without being asked to, and gives up the
        compensation that the hold is about. `run.retry` runs them later, when there is code for them."""
        reason, actor = texts.reason(reason, "run.cancel"), texts.actor(actor, "run.cancel")
        await self._engine.requests.cancel(self._run_no, reason, actor, give_up_undo=give_up_undo)

    @on_its_loop
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
        """Continue from another point: after event `at` (a seq), before node `at` (which runs again with everything
        downstream of it), from `"start"`, or, without it, from the end of `branch`. What is kept never runs again. The
        run itself continues there, on a new branch; with `as_run` a new run of that id does, and this one stays as it
        is. `edits` changes `input` (a merge patch), `vars`, `outputs` or `version`, and `answers` brings answers to
        questions by their wait ids: they are not asked again."""
        asked = Asked(at, branch, keys=_keys(keys), actor=texts.actor(actor, "run.fork"))
        if as_run is not None and keys == "inherit":
            raise UsageError("a run of its own has its own idempotency keys; leave keys='inherit' out")
        if as_run is None:
            await self._engine.branching.ask(self.run_id, "fork", asked, edits)
            return self
        row = await self._engine.branching.fork_as_run(self.run_id, as_run, asked, edits)
        return Run(self._engine, row.run_id, row.run_no)

    @on_its_loop
    async def jump(
        self, to: str, *, edits: dict[str, Any] | None = None, keys: str = "renew", actor: str = ""
    ) -> Run[R]:
        """Continue at a node, back (it runs again, with everything downstream of it) or forward (what lies between is
        skipped). Also reopens a run that has ended."""
        asked = Asked(to, keys=_keys(keys), actor=texts.actor(actor, "run.jump"))
        await self._engine.branching.ask(self.run_id, "jump", asked, edits)
        return self

    @on_its_loop
    async def reopen(
        self, ticket: str, *, basket: str = "", vars: dict[str, Any] | None = None, actor: str = ""
    ) -> Run[R]:
        """Let a completed run continue where one of its tickets leads; with `basket`, after it was resumed there."""
        held = texts.name(basket, "the basket") if basket else ""
        asked = Asked(ticket, basket=held, actor=texts.actor(actor, "run.reopen"))
        await self._engine.branching.ask(self.run_id, "reopen", asked, {"vars": vars} if vars else None)
        return self

    @on_its_loop
    async def retry(self, node: str | None = None, *, edits: dict[str, Any] | None = None, actor: str = "") -> Run[R]:
        """Let what failed (or one node of it) try again, with the same idempotency keys and what it remembers."""
        asked = Asked(node, actor=texts.actor(actor, "run.retry"))
        await self._engine.branching.ask(self.run_id, "retry", asked, edits)
        return self

    @on_its_loop
    async def migrate(self, to: int, *, drop: Sequence[str] = (), actor: str = "") -> Run[R]:
        """Move the run to another version, with what that keeps, and its open questions, timers, signals and children.
        Raises Refused when something that has started is not kept, nor named in `drop`."""
        await self._engine.migrating.migrate(self.run_id, to, drop, texts.actor(actor, "run.migrate"))
        return self

    @on_its_loop
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

    @on_its_loop
    async def paths(self) -> dict[str, Any]:
        """The run as execution paths: where each one is, how its unit answered, which basket it lies in."""
        return await self._read(self._runtime.inspector.paths)

    @on_its_loop
    async def process_info(self) -> dict[str, Any]:
        """The run as the process document of path-based engines: its paths, its variables, its ticket."""
        return await self._read(self._runtime.inspector.process_info)

    @on_its_loop
    async def variables(self) -> dict[str, Any]:
        """The variables that are set, by name."""
        return await self._read(self._runtime.inspector.variables)

    @on_its_loop
    async def branches(self) -> list[dict[str, Any]]:
        """The branches of the run, the first one first."""
        return await self._look_back(self._runtime.inspector.branches)

    @on_its_loop
    async def diff(self, one: int, other: int) -> dict[str, Any]:
        """What two branches came to, and the instances whose status, output or error differs."""
        return await self._look_back(lambda row: self._runtime.inspector.diff(row, one, other))

    @on_its_loop
    async def until_quiet(self) -> RunRow:
        """Wait until the run has ended, or until nothing but the outside can move it (RunSuspended)."""
        moved = self._runtime.hub.listen(self._run_no)
        try:
            while True:
                row = await self.if_quiet()
                if row is not None:
                    return row
                await moved.wait()
                moved.clear()
        finally:
            self._runtime.hub.leave(self._run_no, moved)

    @on_its_loop
    async def if_quiet(self) -> RunRow | None:
        """The run if it has ended, None if it can move by itself; RunSuspended: only the outside can move it."""
        self._runtime.check()
        row, waits = await self._read(lambda row: (row, self._runtime.inspector.external_waits(row)))
        if waits and row.status not in RUN_TERMINAL:
            raise suspended(self.run_id, waits)
        return row if row.status in RUN_TERMINAL else None

    async def _read(self, view: Callable[[RunRow], _T]) -> _T:
        return await self._runtime.read(lambda: view(self._row()))

    async def _look_back(self, view: Callable[[RunRow], _T]) -> _T:
        """A view that folds the whole journal: in a thread, as that takes long."""
        return await asyncio.to_thread(lambda: view(self._row()))

    def _row_and_events(self, after: int) -> tuple[RunRow, list[EventView]]:
        return self._row(), self._runtime.inspector.events(self._run_no, after)

    def _row(self) -> RunRow:
        row = self._runtime.store.run_by_no(self._run_no)
        if row is None:
            raise UnknownRun(f"there is no run {self.run_id} in {self._runtime.store.url}")
        return row


def _keys(keys: str) -> str:
    if keys not in ("renew", "inherit"):
        raise UsageError(f"keys are 'renew' or 'inherit', not {keys!r}")
    return keys
