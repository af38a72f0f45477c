"""Operator: what the command line asks of an engine beyond its public API.

Owns: the few reaches into the engine that a command needs which drives named runs, shows them and stops in order. The
command line imports nothing of this package but `Engine`, `Run`, the doctor's repairs and this module.
Never: decides anything about a run; each function is one request to the part of the engine that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import changes
from holdfast.engine.changes import Rehearsal
from holdfast.engine.event_loop import run as run_to_end
from holdfast.engine.messages import last_signal_message
from holdfast.engine.recovering import Recovered
from holdfast.engine.run_handle import Run
from holdfast.model.naming import unique
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.model.views import Emitted
from holdfast.rules.branch_opening import Asked, Preview
from holdfast.store.contract import Store
from holdfast.store.row_types import MessageRow, RunRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

__all__ = ["Recovered", "Rehearsal", "run_to_end"]

Progress = dict[tuple[str, str], tuple[float, float | None, str]]
"""By node and path: done, total and the text of `ctx.progress`."""


def fail_when_full(engine: Engine) -> None:
    """Fail a command when the disk is full, instead of waiting for space as a service does."""
    engine.committer.wait_when_full = False


def engine_id(engine: Engine) -> str:
    return engine.lease.engine


def row_of(engine: Engine, run: Run[Any]) -> RunRow:
    """The row of a run that is known to exist."""
    row = engine.store.run(run.run_id)
    assert row is not None
    return row


def is_kept(store: Store, run_id: str, signal_id: str) -> bool:
    """Whether a signal that was sent waits for a call that receives it."""
    _, message = last_signal_message(store, run_id, signal_id)
    return message is not None and message.status == "held"


# --- driving named runs ---------------------------------------------------------------------------------------------


async def claim_all(engine: Engine, rows: Sequence[RunRow]) -> list[Run[Any]]:
    """Drive every run that this engine can run, and return the handles of `rows`: one sweep, not one for each run."""
    engine.claims.only_root_runs = None
    await engine.claims.sweep()
    return [Run(engine, row.run_id, row.run_no) for row in rows]


async def claim_released(engine: Engine, run_nos: Iterable[int]) -> None:
    """Claim those of the named runs that another engine has released or died with."""
    if any(number not in engine.actors for number in run_nos):
        await engine.claims.sweep()


async def resume(
    engine: Engine, run_id: str, *, accept_change: bool = False, actor: str = "", **options: Any
) -> tuple[Run[Any], list[str]]:
    """`engine.resume`, and the ids of the waits that ended with it."""
    if accept_change:
        return await engine.resume(run_id, accept_change=True, actor=actor), []
    return await engine.resume_and_report(run_id, actor=actor, **options)


async def rehearse(engine: Engine, row: RunRow) -> list[Rehearsal]:
    """Replay the open bodies of a run that is on hold, as far as their calls are recorded. Nothing is written."""
    return await changes.rehearse(engine.runtime, engine.custody, engine.bodies, row)


def drives_any(engine: Engine) -> bool:
    """True while at least one run is live in this engine."""
    return bool(engine.actors)


def runs_bodies_of(engine: Engine, run_no: int) -> bool:
    """True while a body of the run runs in this process."""
    if run_no not in engine.actors:
        return False
    return any(node.status == NodeStatus.RUNNING and node.scope is None for node in engine.store.open_nodes([run_no]))


def check(engine: Engine) -> None:
    """Raise what the engine has failed with, if it has."""
    engine.runtime.check()


@contextmanager
def changes_of(engine: Engine, run_nos: Sequence[int]) -> Iterator[asyncio.Event]:
    """Yield an event that is set when the run may have changed. Of several runs it is never set: poll them."""
    if len(run_nos) != 1:
        yield asyncio.Event()
        return
    changed = engine.hub.listen(run_nos[0])
    try:
        yield changed
    finally:
        engine.hub.leave(run_nos[0], changed)


def emitted_by(engine: Engine, run_no: int) -> list[Emitted]:
    """What the bodies of a run that run in this process have shown with `ctx.emit`, as far as it is kept."""
    report = getattr(engine.executor, "emitted", None)
    found: list[Emitted] = [] if report is None else report(run_no)
    return found


def progress_of(engine: Engine, run_no: int) -> Progress:
    """What the bodies of a run that run in this process have reported with `ctx.progress`."""
    report = getattr(engine.executor, "progress", None)
    return {} if report is None else report(run_no)


async def cancel_while_closing(engine: Engine, runs: Sequence[Run[Any]], reason: str, actor: str) -> None:
    """Send a cancellation to runs of an engine that is closing: it still applies messages to the runs that it owns,
    but its public methods already refuse."""
    payload = msgspec.json.encode({"reason": reason, "actor": actor})
    for run in runs:
        row = engine.store.run(run.run_id)
        if row is not None and row.status not in RUN_TERMINAL:
            message = MessageRow(unique("m_"), row.run_no, "cancel", payload, engine.clock.now())
            await engine.committer.call(engine.store.send, [message])
    await engine.inbox.deliver_new()


# --- branches -------------------------------------------------------------------------------------------------------


async def preview_branch(engine: Engine, run_id: str, kind: str, asked: Asked, edits: dict[str, Any]) -> Preview:
    """What a fork, jump or retry would reuse and run again. Nothing is changed."""
    return await engine.branching.preview(run_id, kind, asked, edits)


async def open_branch(
    engine: Engine, run_id: str, kind: str, asked: Asked, edits: dict[str, Any], *, as_run: str | None, drive: bool
) -> Run[Any]:
    """Open a branch of a run, or a run of its own (`as_run`), and drive it here if `drive` is set."""
    if as_run is None:
        await engine.branching.ask(run_id, kind, asked, edits, drive=drive)
        return engine.get(run_id)
    forked = await engine.branching.fork_as_run(run_id, as_run, asked, edits, drive=drive)
    return engine.get(forked.run_id)
