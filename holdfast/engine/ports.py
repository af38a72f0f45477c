"""Ports: the protocols between the engine, the executor of bodies and the package that reads runs.

Owns: `Attempt` (an order to run a body), `Executor` (carries it out), `RunPort` (how a body speaks to its run), `Done`,
the callback of a command, with `settle`, which is one for a future; and `RunInspector`: the engine and `inspect` are
siblings, and the composition (`opening.py`) hands the engine an inspector of its store, made with its clock.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.model.captures import Capture
from holdfast.model.commands import BodyDied, NewChild
from holdfast.model.definition import NodeDef
from holdfast.model.handlers import Handler
from holdfast.model.plans import Plan
from holdfast.model.views import EventView, Wait
from holdfast.store.clocks import Clock
from holdfast.store.contract import Store
from holdfast.store.records.expected_rows import JournalAudit
from holdfast.store.row_types import RunRow

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
"""Called on the loop when the command is durable (with the rule's answer), or refused."""


class Releasable(Protocol):
    """A slot that a step holds or waits for."""

    def release(self) -> None:
        """Return it, or stop waiting for it."""
        ...


class RunPort(Protocol):
    """A run, as its bodies see it."""

    run_id: str
    run_no: int

    @property
    def store_id(self) -> str:
        """The id of the store that the run is in."""
        ...

    @property
    def key_epoch(self) -> int: ...

    @property
    def compensates(self) -> bool:
        """Whether the run undoes what it did when it does not end well."""
        ...

    def submit(self, command: Any, done: Done | None = None) -> None:
        """Hand a command to the run's owner. `done` is called once it is durable, or refused."""
        ...

    def body_exited(self, key: tuple[str, str], evicted: bool) -> None:
        """The body of (node, path) runs no longer: its slot is free. `evicted`: it did not report."""
        ...

    def load(self, located: Any) -> bytes:
        """The value of a located expression, from memory or from the store."""
        ...

    async def load_slowly(self, located: Any) -> bytes:
        """The same where it may mean reading very many rows: beside the loop, after everything held back is durable."""
        ...

    async def flushed(self) -> None:
        """Wait until nothing of the run is held back."""
        ...

    def cannot_read(self, error: Exception) -> None:
        """What the body needs of its run cannot be read: the run is released, or put on hold if damaged. Called on the
        loop; afterwards reports of the run's bodies are ignored."""
        ...

    def memory(self, node: str, path: str, since: int, args: Iterable[Any]) -> Awaitable[Sequence[tuple[str, bytes]]]:
        """Type and data of the events that an instance's remembered calls are read from, from seq `since` on. Loading
        these located arguments is quick afterwards."""
        ...

    @property
    def may_begin(self) -> bool:
        """Whether a step may begin: this engine's lease has not run out."""
        ...

    async def until_it_may_begin(self) -> None:
        """Wait until the lease is renewed. A body whose run another engine owns by then is stopped."""
        ...

    def is_suspended(self, node: str, path: str) -> bool: ...
    def variable(self, name: str) -> bytes | None: ...
    def now(self) -> int: ...
    async def order_child(self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool) -> NewChild:
        """Check a child's input; what comes back goes into the wait that starts it."""
        ...

    async def order_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        """Check that a signal can be sent to a run; the id of its message. Raises UnknownRun or Refused."""
        ...

    def step_place(
        self, handler: str, concurrency: int, priority: int, inside: Sequence[str], granted: Callable[[Any], None]
    ) -> Releasable:
        """Wait for a place of a node that is called as a step: `granted` is called with None when there is one, or
        with a UsageError. `inside`: the handlers of limited bodies and steps around the call."""
        ...

    def follow_child(self, run_id: str) -> None:
        """Report to the run when another run, which does not report to it by itself, has ended."""
        ...


class OwnedRun(RunPort, Protocol):
    """The same, as an executor in the engine's own process sees it."""

    def body_died(self, command: BodyDied) -> None:
        """The process that ran a suspect's body died: the attempt was cut off, or the run is put on hold."""
        ...

    def hold(self, why: str) -> None:
        """Put the run on hold: no engine drives it before an operator resumes it."""
        ...


class Attempt(msgspec.Struct, gc=False):
    """An order to run a body."""

    port: RunPort
    plan: Plan
    definition: NodeDef
    handler: Handler
    node: str
    path: str
    visit: int
    attempt: int
    failures: int
    memory_seq: int
    has_memory: bool
    """Whether there can be remembered calls to read (a body that runs again)."""
    args: dict[str, Any]
    """Located expressions by parameter."""
    captures: tuple[Capture, ...]
    isolated: bool = False
    """The run is a suspect: its body executes in a spawned process."""
    own_process: bool = False
    """That process must not have run anything else."""


class Executor(Protocol):
    """Runs bodies."""

    def open(self, loop: AbstractEventLoop, threads_lost: Callable[[int], None]) -> None:
        """The engine opens on this loop: every body will run on it, or report to it. `threads_lost` is called with the
        number of threads that are lost to functions that did not stop, when that changes."""
        ...

    def task(self, work: Coroutine[Any, Any, T]) -> Task[T]:
        """A task of ours. It begins in a turn of its own, also on a loop whose tasks begin when they are created."""
        ...

    def start(self, attempt: Attempt) -> None:
        """Run a body; its end arrives as a command at `attempt.port`."""
        ...

    def answer(self, run_no: int, node: str, path: str, wait_id: str, outcome: str, value: bytes) -> bool:
        """Hand a parked body its answer. False: the body is not in memory."""
        ...

    def is_live(self, run_no: int, node: str, path: str) -> bool: ...
    def all_parked(self, run_no: int, node: str, path: str) -> bool:
        """Whether a body does nothing but wait in calls on its ctx."""
        ...

    def is_idle(self, run_no: int) -> bool:
        """Whether every body of a run that is in memory does nothing but wait."""
        ...

    def cancel(self, run_no: int, node: str, path: str, grace_seconds: float) -> None:
        """Ask a body to stop; it reports DropNode (or its result) within the grace time."""
        ...

    def supersede(self, run_no: int, node: str, path: str) -> None:
        """Cancel a body that waits and whose end is recorded already: its reports are ignored."""
        ...

    def pause(self, run_no: int) -> None:
        """Stop the bodies of a run at their next call on ctx; those that make none finish."""
        ...

    def unwind(self, run_no: int) -> None:
        """Stop all bodies of a run without a report: the run is evicted, or its lease is lost."""
        ...

    async def rehearse(
        self, attempt: Attempt, memory: Sequence[tuple[str, bytes]]
    ) -> tuple[list[str], list[str], list[str]]:
        """Replay a body as far as its calls are remembered, without acting: the calls that are, those at which it
        ended, and what is remembered and was not asked for."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """The engine stops: stop every body, and let each report that it was stopped."""
        ...


def settle(future: Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the result or the error of a future, unless its waiter has cancelled it."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


# --- reading runs ---------------------------------------------------------------------------------------------------


class RunInspector(Protocol):
    """Views of the runs of one store. Every method only reads, and may be called from any thread that may read."""

    def status(self, row: RunRow) -> str:
        """The status of a run as callers see it."""
        ...

    def run(self, row: RunRow, branch: int | None = None) -> dict[str, Any]:
        """A run with its input, result and nodes: as it is, or as one of its branches came to be."""
        ...

    def runs(self, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
        """Runs without inputs, results and nodes."""
        ...

    def nodes(self, row: RunRow) -> list[dict[str, Any]]:
        """Every instance of a run."""
        ...

    def events(self, run_no: int, after: int = 0) -> list[EventView]:
        """The journal of a run, from the event after `after` on."""
        ...

    def branch_events(self, row: RunRow, branch: int, after: int = 0) -> list[EventView]:
        """The events of a branch's lineage."""
        ...

    def waits(self, row: RunRow) -> list[Wait]:
        """What a run waits for."""
        ...

    def external_waits(self, row: RunRow) -> list[Wait] | None:
        """The waits of a run that only a request from outside can end; None when it can move by itself."""
        ...

    def why(self, row: RunRow) -> str:
        """Where a run stands, as one paragraph."""
        ...

    def paths(self, row: RunRow) -> dict[str, Any]:
        """A run as execution paths."""
        ...

    def process_info(self, row: RunRow) -> dict[str, Any]:
        """A run as the process document of path-based engines."""
        ...

    def variables(self, row: RunRow) -> dict[str, Any]:
        """The variables of a run that are set."""
        ...

    def branches(self, row: RunRow) -> list[dict[str, Any]]:
        """The branches of a run, in the order in which they were opened."""
        ...

    def diff(self, row: RunRow, one: int, other: int) -> dict[str, Any]:
        """What differs between two branches of a run."""
        ...

    def asked(self, basket: str | None, assignee: str | None, limit: int) -> list[Wait]:
        """Open questions and pended nodes of all runs, oldest first."""
        ...

    def baskets(self) -> list[dict[str, Any]]:
        """The baskets that are not empty."""
        ...

    def workflows(self) -> list[dict[str, Any]]:
        """Every workflow of the store, with its versions and aliases."""
        ...

    def versions(self, workflow: str) -> list[dict[str, Any]]:
        """The versions of a workflow."""
        ...

    def diff_versions(self, workflow: str, one: int, other: int) -> dict[str, Any]:
        """What differs between two versions of a workflow."""
        ...

    def aliases(self, workflow: str | None = None) -> list[dict[str, Any]]:
        """Where aliases point."""
        ...

    def alias_history(self, workflow: str, alias: str) -> list[dict[str, Any]]:
        """Every move of an alias."""
        ...

    def audit(self, row: RunRow) -> JournalAudit:
        """The rows that a run must have by its journal, and whether it has them."""
        ...


MakeInspector = Callable[[Store, Clock], RunInspector]
