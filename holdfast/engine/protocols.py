"""Protocols: what the engine asks of those who run bodies, and what it offers them.

Owns: `Attempt` (an order to run a body), `Executor` (who carries it out), `RunPort` (how a body speaks to its run).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.model.commands import NewChild
from holdfast.model.definition import NodeDef
from holdfast.model.graph import Capture, Plan
from holdfast.model.handlers import Handler

Done = Callable[[Any, BaseException | None], None]
"""Called on the loop when the command is durable (with the rule's answer), or refused."""


class RunPort(Protocol):
    """A run, as its bodies see it."""

    run_id: str
    run_no: int

    @property
    def key_epoch(self) -> int: ...

    def tell(self, command: Any, done: Done | None = None) -> None:
        """Hand a command to the run's owner. `done` hears of it once it is durable."""
        ...

    def body_left(self, key: tuple[str, str], left: bool) -> None:
        """The body of (node, path) has gone: its place is free. `left`: it was left and said nothing."""
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

    def memory(self, node: str, path: str, since: int, args: Iterable[Any]) -> Awaitable[Sequence[tuple[str, bytes]]]:
        """Type and data of the events that an instance's remembered calls are read from, from seq `since` on. Loading
        these located arguments is quick afterwards."""
        ...

    def is_suspended(self, node: str, path: str) -> bool: ...
    def variable(self, name: str) -> bytes | None: ...
    def now(self) -> int: ...
    async def order_child(self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool) -> NewChild:
        """Check a child's input; what comes back goes into the wait that starts it."""
        ...

    def order_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        """Check that a signal can be sent to a run; the id of its message. Raises UnknownRun or Refused."""
        ...

    def follow_child(self, run_id: str) -> None:
        """Tell the run when another run, that does not know of it, has ended."""
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


class Executor(Protocol):
    """Who runs bodies."""

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

    def has_one_strand(self) -> bool:
        """Whether at most one thing moves here: one body at most, and nothing in it beside itself."""
        ...

    def cancel(self, run_no: int, node: str, path: str, grace_seconds: float) -> None:
        """Ask a body to stop; it reports DropNode (or its result) within the grace time."""
        ...

    def supersede(self, run_no: int, node: str, path: str) -> None:
        """Cancel a body that waits and that the run has gone on without: nothing it still says is heard."""
        ...

    def pause(self, run_no: int) -> None:
        """Leave the bodies of a run at their next call on ctx, in an orderly way; those that make none finish."""
        ...

    def unwind(self, run_no: int) -> None:
        """Leave all bodies of a run without ending them: it is evicted, or its lease is lost. They report nothing."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """The engine stops: leave every body, let each say that it was left."""
        ...
