"""Inbox: the one way in. Whatever comes from outside a run is a row that its owner applies or refuses.

Owns: sending a message and waiting for its outcome; bringing new messages to their owners.
Never: decides what a message means (rules).
Invariants: success is told only when the row says `applied`. A wake-up can be lost, a row cannot: polling finds it.
On crash: before the insert nothing happened; after it some owner applies it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import signal_ids
from holdfast.engine.batching import Batch
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import NotYetApplied, Refused, UnknownRun
from holdfast.model.journal_format import is_newer, newer
from holdfast.model.naming import derived, unique
from holdfast.model.state import RunState
from holdfast.model.statuses import BRANCH_REQUESTS, RUN_TERMINAL, RunStatus
from holdfast.rules.draft import Draft, Outcome
from holdfast.rules.questions import how_it_ended
from holdfast.rules.runs import too_large_for_parent
from holdfast.store.contract import Store
from holdfast.store.records.run_records import closing_of, find_run, terminal_event
from holdfast.store.row_types import MessageRow, RunRow, Sent

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.engine.run.actor import RunActor

_encode = msgspec.json.Encoder().encode
ENDS_HOLD = BRANCH_REQUESTS | {"cancel", "resume"}
"""What a run that is on hold can still be asked for; everything else waits until somebody has looked at it."""
NAMES_A_WAIT = frozenset({"answer", "reassign", "resume"})


class _Naming(msgspec.Struct):
    wait_id: str | None = None
    wait: str | None = None


_naming = msgspec.json.Decoder(_Naming).decode


class Inbox:
    """Messages of the runs of one store, as one engine handles them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looking: asyncio.Event | None = None
        """Set when the look that is under way is over."""
        self._looks_soon = False
        """A look was ordered, and has not begun."""
        self._asked_looks = 0
        """How often somebody has asked for a look."""
        self._looked = 0
        """How many of those have had theirs."""
        self.looks = 0
        """How often the store was read for mail."""
        self._settled: set[str] = set()
        """Messages that were settled since the store began to be read for mail: it may have read them before that."""
        self._sending: Batch[MessageRow, Sent] = Batch(self._send, engine.spawn)
        self._asking: dict[str, dict[str, Any] | None] = {}
        """Messages whose senders wait here, and what became of those that were settled here."""

    async def request(
        self, run_no: int, kind: str, payload: Any, timeout: float = 10.0, *, message_id: str | None = None
    ) -> dict[str, Any]:
        """Send a message to a run and wait until its owner has applied it; what came of it. The same `message_id` is
        the same request, however often it is made."""
        engine = self._engine
        engine.runtime.check()
        row = await self._row(run_no)
        run_id = row.run_id
        if _is_done(row, kind):
            return {}
        is_too_late = row.status in RUN_TERMINAL and kind not in BRANCH_REQUESTS
        if is_too_late and (message_id is None or await engine.read(engine.store.message, message_id) is None):
            raise await engine.read(self._too_late, row, kind, _encode(payload))
        message_id = message_id or unique("m_")
        message = MessageRow(message_id, row.run_no, kind, _encode(payload), engine.clock.now())
        self._asking[message_id] = None
        moved = engine.hub.listen(row.run_no)
        try:
            sent = await self._sending.put(message)
            if sent == "finished":
                raise await engine.read(self._too_late, row, kind, message.payload)
            is_repeated = sent in ("duplicate", "conflict")
            if is_repeated and kind == "signal" and await engine.read(signal_ids.is_refused, engine.store, message_id):
                raise _IdIsFree
            if sent == "conflict" and not await engine.read(signal_ids.is_repeated, engine.store, message):
                raise Refused(f"run {run_id} was sent something else under this id already; nothing was changed")
            if not is_too_late:
                await self._apply_here(row, message)
            return await self._outcome(row, message, moved, timeout, is_known=is_repeated)
        finally:
            engine.hub.leave(row.run_no, moved)
            self._asking.pop(message_id, None)

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
        sent = signal_ids.payload(name, payload)
        if signal_id is None:
            await self.request(run_no, "signal", sent)
            return
        for number in itertools.count():
            try:
                await self.request(run_no, "signal", sent, message_id=signal_ids.message_id(run_id, signal_id, number))
            except _IdIsFree:
                continue
            return

    async def _row(self, run_no: int) -> RunRow:
        """The run's row; of one that is driven here as it was when that began: it has neither ended nor a hold."""
        engine = self._engine
        actor = engine.actors.get(run_no)
        if actor is not None and actor.row is not None:
            return actor.row
        row = await engine.read(engine.store.run_by_no, run_no)
        if row is None:
            raise UnknownRun(f"there is no run number {run_no} in {engine.store.url}")
        return row

    async def _send(self, messages: list[MessageRow]) -> list[Sent]:
        return await self._engine.committer.call(self._engine.store.send, messages)

    async def _apply_here(self, row: RunRow, message: MessageRow) -> None:
        """With no live owner we are the owner: no code is needed to apply a request."""
        await self.look()
        engine = self._engine
        is_settled = self._asking.get(message.message_id) is not None  # and its run has perhaps gone already
        if row.run_no not in engine.actors and not is_settled:
            await engine.claims.release_dead_engines()
            if is_newer(row.format):
                raise NotYetApplied(f"accepted, not yet applied: run {row.run_id} was {newer(row.format)}")
            if row.hold is not None:
                if message.kind not in ENDS_HOLD:
                    raise NotYetApplied(
                        f"accepted, not yet applied: run {row.run_id} is on hold ({row.hold}); it hears of it when "
                        "somebody resumes it"
                    )
                damage = None if message.kind == "recover" else await engine.catalogue.damage_of(row)
                if damage is not None:
                    raise NotYetApplied(f"accepted, not yet applied: run {row.run_id} stays on hold: {damage}")
                engine.loader.code_change_accepted.add(row.run_no)
                await engine.lift_hold(row)
            await engine.claims.claim([row.run_no], even_without_code=True)

    async def _outcome(
        self, row: RunRow, message: MessageRow, moved: asyncio.Event, timeout: float, *, is_known: bool
    ) -> dict[str, Any]:
        engine, kind = self._engine, message.kind
        deadline = engine.loop.time() + timeout
        while True:
            engine.runtime.check()
            told = self._asking.get(message.message_id)
            if told is not None:
                return await self._applied(row, message, told)
            if is_known:
                now, stored = await engine.read(self._run_and_message, row.run_no, message.message_id)
                if _is_done(now, kind):
                    return {}
                if stored.outcome is not None:
                    return await self._applied(row, message, msgspec.json.decode(stored.outcome))
                if now.status in RUN_TERMINAL and kind not in BRANCH_REQUESTS:
                    raise await engine.read(self._too_late, now, kind, message.payload)
                if engine.loop.time() >= deadline:
                    raise NotYetApplied(
                        f"accepted as {message.message_id}, not yet applied: run {row.run_id} is owned by "
                        f"{now.engine or 'nobody'}"
                    )
                if now.engine is None:  # its owner let it go before it came to the message
                    await self._apply_here(now, message)
                    if message.message_id in self._asking and self._asking[message.message_id] is not None:
                        continue
            is_known = True  # from now on the store is asked as well: another process may be the owner
            look_again = engine.loop.call_at(min(deadline, engine.loop.time() + 0.5), moved.set)
            try:
                await moved.wait()
            finally:
                look_again.cancel()
            moved.clear()

    def _run_and_message(self, run_no: int, message_id: str) -> tuple[RunRow, MessageRow]:
        """In this order: of a run that has ended by then the message says what became of it before."""
        run, message = self._engine.store.run_by_no(run_no), self._engine.store.message(message_id)
        assert run is not None
        assert message is not None
        return run, message

    async def _applied(self, row: RunRow, message: MessageRow, outcome: dict[str, Any]) -> dict[str, Any]:
        if outcome["outcome"] != "refused":
            return outcome
        if outcome["code"] == "finished":
            raise await self._engine.read(self._too_late, row, message.kind, message.payload)
        if message.kind == "resume" and row.hold is not None and outcome["code"] == "closing":
            return {}  # the hold has ended, and a run that is closing has nothing else to resume
        raise Refused(f"run {row.run_id}: {outcome['why']}", reason=outcome["code"])

    def _too_late(self, row: RunRow, kind: str, payload: bytes) -> Refused:
        """The run has ended; whoever wanted to answer something is told who did."""
        ended = _ended_by(self._engine.store, row.run_id, _named(payload)) if kind in NAMES_A_WAIT else None
        if ended is not None:
            return Refused(f"run {row.run_id}: {how_it_ended(*ended)}", reason="closed")
        now = self._engine.store.run_by_no(row.run_no) or row
        cannot = {"answer": "nothing it asks can be answered any more", "signal": "it receives no signals any more"}
        why = cannot.get(kind, f"it cannot be asked to {kind}")
        return Refused(f"run {row.run_id} has {now.status} already; {why}", reason="finished")

    def settled(self, outcomes: Iterable[Outcome]) -> None:
        """Messages were applied or refused here, durably: whoever waits for them need not ask the store."""
        if self._looking is not None:
            self._settled.update(outcome.message_id for outcome in outcomes)
        for outcome in outcomes:
            if outcome.message_id in self._asking:
                self._asking[outcome.message_id] = _verdict(outcome)

    def check_signal(self, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
        """Whether a signal can be sent to a run, or was sent to it already; the id of its message."""
        row = self._engine.store.run(run_id)
        if row is None:
            raise UnknownRun(f"there is no run {run_id} to be sent the signal {name!r}")
        message_id, earlier = signal_ids.last(self._engine.store, run_id, signal_id)
        if earlier is not None and not signal_ids.is_same(
            self._engine.store, earlier, _encode(signal_ids.payload(name, payload))
        ):
            raise Refused(f"run {run_id} was sent another signal under the id {signal_id!r} already")
        if earlier is None and row.status in RUN_TERMINAL:
            raise self._too_late(row, "signal", payload)
        return message_id

    async def report_end(self, run_id: str, to_run_no: int) -> None:
        """Tell a run when another one, which does not report to it by itself, has ended."""
        await self._engine.watch(run_id)
        await self.report(run_id, to_run_no)
        await self.look()

    async def report(self, run_id: str, to_run_no: int) -> None:
        """Tell a run that a child has ended; a second report is a no-op."""
        engine = self._engine
        message = await engine.read(report_of_end, engine.store, run_id, to_run_no, engine.clock.now())
        await engine.committer.insist(engine.store.send, [message])

    def look_soon(self) -> None:
        """A message was written by this process. Of many that say so in one turn of the loop one looks."""
        if not self._looks_soon:
            self._looks_soon = True
            self._engine.spawn(self._look_now())

    async def _look_now(self) -> None:
        self._looks_soon = False
        await self.look()

    async def look(self) -> None:
        """Bring new messages to the runs this engine owns, and claim those that nobody owns. What was written before
        this was called has been looked at when it returns; whoever asks in one turn of the loop shares one look."""
        self._asked_looks += 1
        mine = self._asked_looks
        while self._looked < mine:
            if self._looking is not None:
                await self._looking.wait()
                continue  # it may have read before what we know of was written, or its caller was cancelled
            self._looking = asyncio.Event()
            try:
                await asyncio.sleep(0)
                served = self._asked_looks
                await self._look()
                self._looked = served
            finally:
                self._looking.set()
                self._looking = None

    async def _look(self) -> None:
        engine = self._engine
        self.looks += 1
        if engine.actors:
            readers = dict(engine.actors)
            self._settled.clear()
            for message in await engine.read(engine.store.new_messages, list(readers)):
                actor = engine.actors.get(message.run_no)
                is_its_reader = actor is readers[message.run_no]  # or another one, which has read its mail since
                if actor is not None and is_its_reader and message.message_id not in self._settled:
                    deliver(actor, message)
        unowned = {m.run_no for m in await engine.read(engine.store.new_messages, None)}
        if unowned and not engine.stopping:
            await engine.claims.claim(sorted(unowned))


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
        case ev.RunCompleted(located=None):
            return {"result": event.result}
        case ev.RunCompleted():
            return {"status": "failed", "error": too_large_for_parent(row.run_id)}
        case ev.RunFailed():
            return {"error": event.error}
    return {"error": ev.ErrorInfo("run_cancelled", f"run {row.run_id} was cancelled: {event.reason}")}


def deliver(actor: RunActor, message: MessageRow) -> None:
    """Hand a message to its run, once."""
    if message.message_id in actor.delivered:
        return
    actor.delivered.add(message.message_id)
    if message.kind in BRANCH_REQUESTS:
        actor.engine.spawn(actor.engine.branching.apply_to(actor, message))
    else:
        actor.submit(cmd.Message(message.message_id, message.kind, message.payload, sent_at=message.created_at))


def _is_done(row: RunRow, kind: str) -> bool:
    """A second cancel is a no-op, also when the first one has been carried out."""
    return kind == "cancel" and row.status == RunStatus.CANCELLED


class _IdIsFree(Exception):
    """The message that has this id was refused: the id of the signal can be used again."""


def informed(store: Store, state: RunState, message: cmd.Message) -> cmd.Message:
    """A message that names a wait which is closed already: with how, and by whom."""
    wait_id = _named(message.payload) if message.kind in NAMES_A_WAIT else None
    ended = None if wait_id in state.waits else _ended_by(store, state.run_id, wait_id)
    return message if ended is None else msgspec.structs.replace(message, ended_by=ended[1:])


def _ended_by(store: Store, run_id: str, wait_id: str | None) -> tuple[str, str, str] | None:
    """A wait that is closed already: its id, how it has ended, and by whom."""
    for found in store.wait(wait_id) if wait_id is not None else ():
        if found.run_id == run_id and found.wait.wait_id == wait_id and found.wait.outcome is not None:
            return found.wait.wait_id, found.wait.outcome, found.wait.actor or ""
    return None


def _named(payload: bytes) -> str | None:
    try:
        named = _naming(payload)
    except msgspec.MsgspecError:
        return None  # the rules refuse it
    return named.wait_id or named.wait


def verdict(outcome: Outcome) -> bytes:
    """What became of a message, as its row says it."""
    return _encode(_verdict(outcome))


def _verdict(outcome: Outcome) -> dict[str, Any]:
    if outcome.code is not None:
        return {"outcome": "refused", "code": outcome.code, "why": outcome.why}
    return {"outcome": "applied", **outcome.detail}


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
