"""Port: a run as its bodies see it.

Owns: what a body may read of its run, and what it asks of other runs. What it tells its run goes through `tell`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model import commands as cmd
from holdfast.model.state import RunState
from holdfast.model.statuses import NodeStatus

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


class BodyPort(ABC):
    """The side of an actor that bodies use; `RunActor` is one."""

    __slots__ = ()

    engine: Engine
    run_id: str
    run_no: int
    state: RunState

    @property
    def key_epoch(self) -> int:
        return self.state.fold.key_epoch

    @abstractmethod
    async def flushed(self) -> None:
        """Wait until nothing of the run is held back."""

    def load(self, located: Any) -> bytes:
        return self.engine.values.load(self.state, located)

    async def load_slowly(self, located: Any) -> bytes:
        await self.flushed()
        return await asyncio.to_thread(self.engine.values.load, self.state, located)

    def memory(self, node: str, path: str, since: int, args: Iterable[Any]) -> Awaitable[Sequence[tuple[str, bytes]]]:
        return self.engine.memories.recall(self.state, node, path, since, args)

    def now(self) -> int:
        return self.engine.clock.now()

    def is_suspended(self, node: str, path: str) -> bool:
        ns = self.state.nodes.get((node, path))
        return ns is not None and ns.status is NodeStatus.SUSPENDED

    def variable(self, name: str) -> bytes | None:
        seq = self.state.fold.vars.get(name)
        return None if seq is None else self.engine.values.variable(self.state, seq, name)

    async def order_child(
        self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        return await self.engine.starting.order_child(self, workflow, inputs, run_id, detached)

    def follow_child(self, run_id: str) -> None:
        self.engine.spawn(self.engine.inbox.report_end(run_id, self.run_no))

    def order_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        return self.engine.inbox.check_signal(run_id, name, payload, signal_id)
