"""Run requests: sending a message to a run and waiting until its owner has applied it.

Owns: the message of a request, its outcome for the caller, and applying it here when the run has no live owner.
Never: decides what a request means (rules), reads messages for other runs (messages.py).
Invariants: success is reported only when the message's row says `applied`.
On crash: before the insert nothing has happened; after it some owner applies the request.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec

from holdfast.engine import messages
from holdfast.engine.event_loop import Batch
from holdfast.engine.messages import Inbox
from holdfast.engine.ownership.claim import Claims
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.runtime import Runtime
from holdfast.model import texts
from holdfast.model.errors import NotYetApplied, Refused, RunSuspended, UnknownRun, UsageError
from holdfast.model.journal_format import is_newer, newer
from holdfast.model.limits import OUTCOME_POLL_SECONDS
from holdfast.model.naming import unique
from holdfast.model.statuses import BRANCH_REQUESTS, RUN_TERMINAL, RunStatus
from holdfast.model.values import encode
from holdfast.model.views import Wait, command_line, wait_ended_by, wait_place, wait_text
from holdfast.store.records.run_records import closing_of
from holdfast.store.row_types import MessageRow, RunRow, Sent

_encode = msgspec.json.Encoder().encode
ENDS_HOLD = BRANCH_REQUESTS | {"cancel", "resume"}
"""The requests that a run on hold accepts; every other one waits until an operator has resumed it."""


class _IdIsFree(Exception):
    """The message that has this id was refused: the id of the signal can be used again."""


class RunRequests:
    """Requests of one engine's callers to runs of its store."""

    def __init__(self, runtime: Runtime, custody: Custody, claims: Claims, inbox: Inbox) -> None:
        self._runtime = runtime
        self._custody = custody
        self._claims = claims
        self._inbox = inbox
        self._sending: Batch[MessageRow, Sent] = Batch(
            lambda messages: runtime.committer.call(runtime.store.send, messages), runtime.spawn
        )
        """Writes messages; those that are sent at the same time share a transaction."""

    async def request(
        self, run_no: int, kind: str, payload: Any, timeout: float = 10.0, *, message_id: str | None = None
    ) -> dict[str, Any]:
        """Send a message to a run and wait until its owner has applied it; return the outcome. The same `message_id` is
        the same request, however often it is made."""
        runtime, store = self._runtime, self._runtime.store
        runtime.check()
        row = await self._row(run_no)
        if _is_done(row, kind):
            return {}
        is_too_late = row.status in RUN_TERMINAL and kind not in BRANCH_REQUESTS
        if is_too_late and (message_id is None or await runtime.read(store.message, message_id) is None):
            raise await runtime.read(messages.too_late, store, row, kind, _encode(payload))
        message_id = message_id or unique("m_")
        message = MessageRow(message_id, run_no, kind, _encode(payload), runtime.clock.now())
        self._inbox.awaited[message_id] = None
        moved = runtime.hub.listen(run_no)
        try:
            sent = await self._sending.put(message)
            if sent == "finished":
                raise await runtime.read(messages.too_late, store, row, kind, message.payload)
            is_repeated = sent in ("duplicate", "conflict")
            if is_repeated and kind == "signal" and await runtime.read(messages.is_refused, store, message_id):
                raise _IdIsFree
            if sent == "conflict" and not await runtime.read(messages.is_repeated, store, message):
                raise Refused(f"run {row.run_id} was already sent something else under this id; nothing was changed")
            if not is_too_late:
                await self._apply_here(row, message)
            return await self._outcome(row, message, moved, timeout, is_known=is_repeated)
        finally:
            runtime.hub.leave(run_no, moved)
            self._inbox.awaited.pop(message_id, None)  # another request under the same id may have done so

    async def cancel(self, run_no: int, reason: str, actor: str, *, give_up_undo: bool) -> None:
        """Ask a run to stop. One that is on hold while it compensates gives up the compensations that cannot run."""
        row = await self._row(run_no)
        asked: dict[str, Any] = {"reason": reason, "actor": actor, "gives_up_undo": give_up_undo}
        if row.hold is not None and closing_of(row):
            asked |= {"gives_up_undo": True, "hold": row.hold}
        await self.request(run_no, "cancel", asked)

    async def signal(self, run_no: int, run_id: str, name: str, payload: bytes, signal_id: str | None) -> None:
        """Send a signal to a run. A signal that was refused has not used up its id: the next one under that id is
        another message, and the refused one stays on record."""
        sent = messages.signal_payload(name, payload)
        if signal_id is None:
            await self.request(run_no, "signal", sent)
            return
        for number in itertools.count():
            try:
                message_id = messages.signal_message_id(run_id, signal_id, number)
                await self.request(run_no, "signal", sent, message_id=message_id)
            except _IdIsFree:
                continue
            return

    async def resume(self, run_no: int, asked: dict[str, Any]) -> list[str]:
        """Ask a run to resume (`resume_request`); return the waits that ended."""
        outcome = await self.request(run_no, "resume", asked)
        resumed: list[str] = outcome.get("resumed", [])
        return resumed

    async def _row(self, run_no: int) -> RunRow:
        """The run's row. For a run that is driven here, the row it was claimed with: such a run has not ended and is
        not on hold."""
        actor = self._custody.actors.get(run_no)
        if actor is not None and actor.row is not None:
            return actor.row
        row = await self._runtime.read(self._runtime.store.run_by_no, run_no)
        if row is None:
            raise UnknownRun(f"there is no run number {run_no} in {self._runtime.store.url}")
        return row

    async def _apply_here(self, row: RunRow, message: MessageRow) -> None:
        """Deliver the message; claim the run first if it has no live owner. Applying a request needs no code."""
        await self._inbox.deliver_new()
        is_settled = self._inbox.awaited.get(message.message_id) is not None  # and its run is perhaps evicted already
        if row.run_no not in self._custody.actors and not is_settled:
            await self._claims.release_dead_engines()
            if is_newer(row.format):
                raise NotYetApplied(f"accepted but not applied: run {row.run_id} was {newer(row.format)}")
            if row.hold is not None:
                await self._end_hold(row, message.kind)
            await self._claims.claim([row.run_no], even_without_code=True)

    async def _end_hold(self, row: RunRow, kind: str) -> None:
        """Lift the hold of a run if the request allows it. Raises NotYetApplied when the run stays on hold."""
        if kind not in ENDS_HOLD:
            raise NotYetApplied(
                f"accepted but not applied: run {row.run_id} is on hold ({row.hold}). It will be applied when the run "
                "is resumed."
            )
        damage = None if kind == "recover" else await self._custody.damage_of(row)
        if damage is not None:
            raise NotYetApplied(f"accepted but not applied: run {row.run_id} stays on hold: {damage}")
        self._custody.code_change_accepted.add(row.run_no)
        await self._custody.lift_hold(row)

    async def _outcome(
        self, row: RunRow, message: MessageRow, moved: asyncio.Event, timeout: float, *, is_known: bool
    ) -> dict[str, Any]:
        """Wait for the outcome of a message: from this engine if it owns the run, else from the message's row."""
        runtime, loop, message_id = self._runtime, self._runtime.loop, message.message_id
        deadline = loop.time() + timeout
        while True:
            runtime.check()
            settled = self._inbox.awaited.get(message_id)
            if settled is not None:
                return await self._applied(row, message, settled)
            if is_known:
                now, stored = await runtime.read(self._run_and_message, row.run_no, message_id)
                if _is_done(now, message.kind):
                    return {}
                if stored.outcome is not None:
                    return await self._applied(row, message, msgspec.json.decode(stored.outcome))
                if now.status in RUN_TERMINAL and message.kind not in BRANCH_REQUESTS:
                    raise await runtime.read(messages.too_late, runtime.store, now, message.kind, message.payload)
                if loop.time() >= deadline:
                    owner = "has no owner" if now.engine is None else f"is owned by engine {now.engine}"
                    raise NotYetApplied(f"accepted as {message_id} but not applied yet: run {row.run_id} {owner}")
                if now.engine is None:  # its owner released it before it read the message
                    await self._apply_here(now, message)
                    if self._inbox.awaited.get(message_id) is not None:
                        continue
            is_known = True  # from now on the store is queried as well: another process may be the owner
            query_again = loop.call_at(min(deadline, loop.time() + OUTCOME_POLL_SECONDS), moved.set)
            try:
                await moved.wait()
            finally:
                query_again.cancel()
            moved.clear()

    def _run_and_message(self, run_no: int, message_id: str) -> tuple[RunRow, MessageRow]:
        """In this order: if the run has ended by then, the message's row says whether it was applied before."""
        run, message = self._runtime.store.run_by_no(run_no), self._runtime.store.message(message_id)
        assert run is not None
        assert message is not None
        return run, message

    async def _applied(self, row: RunRow, message: MessageRow, outcome: dict[str, Any]) -> dict[str, Any]:
        if outcome["outcome"] != "refused":
            return outcome
        if outcome["code"] == "finished":
            store = self._runtime.store
            raise await self._runtime.read(messages.too_late, store, row, message.kind, message.payload)
        if message.kind == "resume" and row.hold is not None and outcome["code"] == "closing":
            return {}  # the hold has ended, and a run that is closing has nothing else to resume
        raise Refused(f"run {row.run_id}: {outcome['why']}", reason=outcome["code"])


def _is_done(row: RunRow, kind: str) -> bool:
    """A second cancel is a no-op, also when the first one has been carried out."""
    return kind == "cancel" and row.status == RunStatus.CANCELLED


def resume_request(wait: str | None, path: str | None, vars: dict[str, Any] | None, actor: str) -> dict[str, Any]:
    """What `resume` asks of a run, checked."""
    if wait is not None:
        texts.name(wait, "resume: wait")
    if path is not None:
        texts.question(path, "resume: path")
    if vars is not None and not (isinstance(vars, dict) and all(isinstance(name, str) for name in vars)):
        raise UsageError(f"resume: vars are variables by their names, as {{'limit': 3}}, not {vars!r:.60}")
    given = {name: msgspec.Raw(encode(value, what=f"variable {name}")) for name, value in (vars or {}).items()}
    return {"actor": texts.actor(actor, "resume"), "wait": wait, "path": path, "vars": given}


def suspended(run_id: str, waits: list[Wait]) -> RunSuspended:
    """The error for a caller that waits for a run which only a request from outside can move."""
    more = f" (and {len(waits) - 1} more)" if len(waits) > 1 else ""
    command = command_line(*wait_ended_by(waits[0], alone=len(waits) == 1)).strip("`")
    message = f"run {run_id} is suspended: {wait_place(waits[0])}{wait_text(waits[0])}{more}. To continue: {command}"
    return RunSuspended(message, run_id, tuple(waits), command)
