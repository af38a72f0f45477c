"""Changes: runs whose body makes other calls than its journal records, because its code has changed.

Owns: continuing such a run when a person accepts the change, and a rehearsal that shows which calls agree with what is
recorded.
Never: fails a run for a change of its code; puts it on hold (ownership/custody.py); compares calls (worker/memory.py).
On crash: before the hold is written the run is taken over, and its next owner finds the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engine import missing
from holdfast.engine.branching import Branching
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.ports import Attempt, Done
from holdfast.engine.run.actor import RunActor
from holdfast.engine.run.bodies import Bodies, BodyPort
from holdfast.engine.runtime import Runtime
from holdfast.model import commands as cmd
from holdfast.model.errors import Refused, Suspended
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.rules import nodes
from holdfast.rules.branch_opening import Asked
from holdfast.store.records.state_rows import state_from_rows
from holdfast.store.row_types import RunRow

CODE_CHANGED = "code_changed"


class Rehearsal(msgspec.Struct):
    """What a changed body would make of what it remembers, up to the first call that is new or still open."""

    node: str
    reused: list[str] = []
    """Calls that agree with what is remembered."""
    new: list[str] = []
    """The calls at which the rehearsal ended: they would be made."""
    set_aside: list[str] = []
    """What is remembered and was not asked for by then."""


class _SilentPort(BodyPort):
    """A run as a rehearsed body sees it: it can be read, and nothing is submitted to it."""

    async def flushed(self) -> None:
        return

    def cannot_read(self, error: Exception) -> None:
        return

    def submit(self, command: Any, done: Done | None = None) -> None:
        return

    def body_exited(self, key: tuple[str, str], evicted: bool) -> None:
        return

    async def order_child(
        self, workflow: str, inputs: dict[str, Any], run_id: str | None, detached: bool
    ) -> cmd.NewChild:
        raise Suspended


async def accept(runtime: Runtime, branching: Branching, row: RunRow, actor: str) -> None:
    """Continue a run that is on hold because its code has changed, on a branch with the same idempotency keys."""
    _check_held(row)
    if runtime.drives and (error := await runtime.read(missing.error_for, runtime, row)) is not None:
        raise error
    await branching.ask(row.run_id, "fork", Asked(accepts_change=True, actor=actor), None)


async def rehearse(runtime: Runtime, custody: Custody, bodies: Bodies, row: RunRow) -> list[Rehearsal]:
    """Replay the open bodies of a run that is on hold, as far as their calls are remembered. Nothing is written, and no
    step runs. Raises MissingCode when the code is not loaded here."""
    _check_held(row)
    if (error := await runtime.read(missing.error_for, runtime, row)) is not None:
        raise error
    plan = runtime.versions.numbered(row.workflow, row.version)
    store = runtime.store
    rows = await runtime.read(lambda: (store.open_nodes([row.run_no]), store.open_waits([row.run_no])))
    state = state_from_rows(plan, row, rows[0], rows[1], ())
    found: list[Rehearsal] = []
    for ns in list(state.nodes.values()):
        handler = runtime.handler(ns.plan.definition.uses) if ns.plan.body is None else None
        if handler is None or not handler.takes_ctx or ns.settled or not ns.attempt:
            continue
        located = nodes.located_args(state, ns)
        memory = await bodies.replay_reader.recall(state, ns.node, ns.path, ns.memory_seq, located.values())
        order = Attempt(
            port=_SilentPort(RunActor(custody, plan, state, row.token, row), bodies),
            plan=plan,
            definition=ns.plan.definition,
            handler=handler,
            node=ns.node,
            path=ns.path,
            visit=ns.visit,
            attempt=ns.attempt,
            failures=ns.failures,
            memory_seq=ns.memory_seq,
            has_memory=True,
            args=located,
            captures=ns.plan.captures,
        )
        reused, new, set_aside = await runtime.executor.rehearse(order, memory)
        found.append(Rehearsal(instance_text(ns.node, ns.path, ns.visit), reused, new, set_aside))
    return found


def _check_held(row: RunRow) -> None:
    if row.status in RUN_TERMINAL or not (row.hold or "").startswith(CODE_CHANGED):
        stands = row.status if row.hold is None else f"on hold ({row.hold})"
        raise Refused(f"run {row.run_id} is not on hold because of a change of its code; it is {stands}", reason="hold")
