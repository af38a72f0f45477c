"""Inbox: the one way in. Whatever comes from outside a run is a row that its owner applies or refuses.

Owns: sending a message and waiting for its outcome; bringing new messages to their owners.
Never: decides what a message means (rules).
Invariants: success is told only when the row says `applied`. A wake-up can be lost, a row cannot: polling finds it.
On crash: before the insert nothing happened; after it some owner applies it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.reads import find_run, terminal_event
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import NotYetApplied, Refused, UnknownRun
from holdfast.model.ids import derived, unique
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.rules.draft import Draft
from holdfast.store.api import OPENS_BRANCH, MessageRow, RunRow, Store

if TYPE_CHECKING:
    from holdfast.engine.actor import RunActor
    from holdfast.engine.engine import Engine

_encode = msgspec.json.Encoder().encode


class Inbox:
    """Messages of the runs of one store, as one engine handles them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looking = False
        self._again = False

    async def request(
        self, run_id: str, kind: str, payload: Any, timeout: float = 10.0, *, message_id: str | None = None
    ) -> dict[str, Any]:
        """Send a message to a run and wait until its owner has applied it; what came of it. The same `message_id` is
        the same request, however often it is made."""
        engine = self._engine
        engine.check()
        row = engine.store.run(run_id)
        if row is None:
            raise UnknownRun(f"there is no run {run_id} in {engine.store.url}")
        if _is_done(row, kind):
            return {}
        if row.status in RUN_TERMINAL and kind not in OPENS_BRANCH:
            raise Refused(f"run {run_id} has {row.status} already; it cannot be asked to {kind}")
        message_id = message_id or unique("m_")
        message = MessageRow(message_id, row.run_no, kind, msgspec.json.encode(payload), engine.clock.now())
        if await engine.committer.call(engine.store.send, message) == "finished":
            raise Refused(f"run {run_id} has ended before it could be asked to {kind}")
        await self._apply_here(row)
        return await self._outcome(run_id, kind, message.message_id, timeout)

    async def _apply_here(self, row: RunRow) -> None:
        """With no live owner we are the owner: no code is needed to apply a request."""
        await self.look()
        engine = self._engine
        if row.run_no not in engine.actors:
            await engine.recovery.bury_dead()
            if row.hold is not None:  # a run that is on hold can still be asked to end
                engine.recovery.accepted.add(row.run_no)
                await engine.committer.call(engine.store.set_hold, row.run_no, row.token, None)
            await engine.recovery.claim([row.run_no], even_without_code=True)

    async def _outcome(self, run_id: str, kind: str, message_id: str, timeout: float) -> dict[str, Any]:
        engine = self._engine
        deadline = engine.loop.time() + timeout
        run_no = find_run(engine.store, run_id).run_no
        moved = engine.hub.listen(run_no)
        try:
            while True:
                engine.check()
                message = engine.store.message(message_id)
                assert message is not None
                row = engine.store.run_by_no(run_no)
                assert row is not None
                if _is_done(row, kind):
                    return {}
                if message.outcome is not None:
                    return _applied(run_id, msgspec.json.decode(message.outcome))
                if row.status in RUN_TERMINAL and kind not in OPENS_BRANCH:
                    raise Refused(f"run {run_id} has {row.status} before it could be asked")
                left = deadline - engine.loop.time()
                if left <= 0:
                    raise NotYetApplied(
                        f"accepted as {message_id}, not yet applied: run {run_id} is owned by {row.engine or 'nobody'}"
                    )
                if row.engine is None:  # its owner let it go before it came to the message
                    await self._apply_here(row)
                try:
                    async with asyncio.timeout(min(left, 0.5)):  # wait_for can lose a cancellation
                        await moved.wait()
                except TimeoutError:
                    continue
                moved.clear()
        finally:
            engine.hub.leave(run_no, moved)

    async def report_end(self, run_id: str, to_run_no: int) -> None:
        """Tell a run when another one, which does not report to it by itself, has ended."""
        await self._engine.watch(run_id)
        await self.report(run_id, to_run_no)
        await self.look()

    async def report(self, run_id: str, to_run_no: int) -> None:
        """Tell a run that a child has ended; a second report is a no-op."""
        engine = self._engine
        message = report_of_end(engine.store, run_id, to_run_no, engine.clock.now())
        await engine.committer.insist(engine.store.send, message)

    def look_soon(self) -> None:
        """A message was written by this process."""
        self._engine.spawn(self.look())

    async def look(self) -> None:
        """Bring new messages to the runs this engine owns, and claim those that nobody owns."""
        if self._looking:
            self._again = True
            return
        self._looking = True
        try:
            while True:
                self._again = False
                await self._look()
                if not self._again:
                    return
        finally:
            self._looking = False

    async def _look(self) -> None:
        engine = self._engine
        if engine.actors:
            for message in engine.store.new_messages(list(engine.actors)):
                actor = engine.actors.get(message.run_no)
                if actor is not None:
                    deliver(actor, message)
        unowned = {m.run_no for m in engine.store.new_messages(None)}
        if unowned and not engine.stopping:
            await engine.recovery.claim(sorted(unowned))


def report_of_end(store: Store, run_id: str, to_run_no: int, now: int) -> MessageRow:
    """What tells a run that a child has ended; for each wait once."""
    row = find_run(store, run_id)
    payload = {"child": run_id, "status": row.status, **ending(store, row)}
    waits = [w.wait_id for w in store.open_waits([to_run_no]) if msgspec.json.decode(w.data)["child"] == run_id]
    message_id = derived("m_", run_id, "ended", to_run_no, *waits)
    return MessageRow(message_id, to_run_no, "child_ended", _encode(payload), now)


def ending(store: Store, row: RunRow) -> dict[str, Any]:
    """The result or the error of a finished run, as a parent is told."""
    event = terminal_event(store, row)
    match event:
        case ev.RunCompleted():
            return {"result": event.result}
        case ev.RunFailed():
            return {"error": event.error}
    return {"error": ev.ErrorInfo("run_cancelled", f"run {row.run_id} was cancelled: {event.reason}")}


def deliver(actor: RunActor, message: MessageRow) -> None:
    """Hand a message to its run, once."""
    if message.message_id in actor.delivered:
        return
    actor.delivered.add(message.message_id)
    if message.kind in OPENS_BRANCH:
        actor.engine.spawn(actor.engine.branching.apply_to(actor, message))
    else:
        actor.tell(cmd.Message(message.message_id, message.kind, message.payload))


def _is_done(row: RunRow, kind: str) -> bool:
    """A second cancel is a no-op, also when the first one has been carried out."""
    return kind == "cancel" and row.status == RunStatus.CANCELLED


def _applied(run_id: str, outcome: dict[str, Any]) -> dict[str, Any]:
    if outcome["outcome"] == "refused":
        raise Refused(f"run {run_id}: {outcome['why']}")
    return outcome


def message_rows(store: Store, draft: Draft, born: dict[str, int]) -> list[MessageRow]:
    """The messages that a turn sends; `born` are the runs that its own commit creates. To nobody goes nothing."""
    found: list[MessageRow] = []
    for message in draft.extras.messages if draft.extras is not None else ():
        to = born.get(message.run_id)
        if to is None:
            target = store.run(message.run_id)
            to = None if target is None else target.run_no
        if to is not None:
            found.append(MessageRow(message.message_id, to, message.kind, _encode(message.payload), draft.now))
    return found
