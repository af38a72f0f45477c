"""Messages: the rows through which requests from outside reach a run, and their delivery to the runs of this engine.

Owns: delivering new messages to the runs that this engine drives, and claiming the runs without an owner that have
some; the rows that a turn sends to other runs, and the report of a child's end; which message a signal id means.
Never: decides what a message means (rules), waits for an outcome (run_requests.py).
Invariants: a wake-up can be lost, a row cannot: polling finds it. A message is submitted to a live run once.
On crash: a message that was not applied is still `new`, and the next owner applies it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine.run.actor import RunActor
from holdfast.engine.runtime import Runtime
from holdfast.model import canonical
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import Refused, UnknownRun
from holdfast.model.naming import derived
from holdfast.model.state import HeldSignal, RunState
from holdfast.model.statuses import BRANCH_REQUESTS, RUN_TERMINAL
from holdfast.rules.decide import Signal
from holdfast.rules.draft import Draft, Outcome
from holdfast.rules.questions import how_it_ended
from holdfast.rules.runs import too_large_for_parent
from holdfast.store.contract import Store
from holdfast.store.records.run_records import find_run, terminal_event
from holdfast.store.row_types import MessageRow, RunRow

_encode = msgspec.json.Encoder().encode
_signal = msgspec.json.Decoder(Signal).decode
NAMES_A_WAIT = frozenset({"answer", "reassign", "resume"})


class Inbox:
    """New messages of all runs, as one engine delivers them."""

    claim: Callable[[Sequence[int]], Awaitable[int]]
    """Claims runs that have messages and no owner (ownership/claim.py)."""
    open_branch: Callable[[RunActor, MessageRow], Coroutine[Any, Any, None]]
    """Carries out a request that opens a branch of a live run (branching.py)."""

    def __init__(self, runtime: Runtime, actors: dict[int, RunActor]) -> None:
        self._runtime = runtime
        self._actors = actors
        self._delivering: asyncio.Event | None = None
        """Set when the delivery in progress is over."""
        self._is_ordered = False
        """A delivery was ordered and has not begun."""
        self._asked = 0
        """How many calls of `deliver_new` there were."""
        self._served = 0
        """How many of those are done."""
        self.reads = 0
        """How often the store was read for new messages."""
        self._settled: set[str] = set()
        """Messages that were settled since that read began: it may have seen them as new."""
        self.awaited: dict[str, dict[str, Any] | None] = {}
        """Messages whose senders wait here (run_requests.py), with the outcome of those that were settled here."""

    # --- ends of other runs ------------------------------------------------------------------------------------------

    async def report_end(self, run_id: str, to_run_no: int) -> None:
        """Report the end of a run to another one that it does not report to by itself, once it has ended."""
        await self._runtime.watch(run_id)
        await self.report(run_id, to_run_no)
        await self.deliver_new()

    async def report(self, run_id: str, to_run_no: int) -> None:
        """Report to a run that its child has ended; a second report is a no-op."""
        runtime = self._runtime
        message = await runtime.read(report_of_end, runtime.store, run_id, to_run_no, runtime.clock.now())
        await runtime.committer.insist(runtime.store.send, [message])

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def settled(self, outcomes: Iterable[Outcome]) -> None:
        """Messages were durably applied or refused here: their senders need not query the store."""
        if self._delivering is not None:
            self._settled.update(outcome.message_id for outcome in outcomes)
        for outcome in outcomes:
            if outcome.message_id in self.awaited:
                self.awaited[outcome.message_id] = _verdict(outcome)

    # --- delivery ----------------------------------------------------------------------------------------------------

    def deliver_soon(self) -> None:
        """This process has written a message. All calls of one turn of the loop share one delivery."""
        if not self._is_ordered:
            self._is_ordered = True
            self._runtime.spawn(self._deliver_now())

    async def _deliver_now(self) -> None:
        self._is_ordered = False
        await self.deliver_new()

    async def deliver_new(self) -> None:
        """Deliver new messages to the runs that this engine owns, and claim those without an owner. Messages written
        before the call are delivered when it returns; calls of one turn of the loop share one delivery."""
        self._asked += 1
        mine = self._asked
        while self._served < mine:
            if self._delivering is not None:
                await self._delivering.wait()
                continue  # it may have read before our message was written, or its caller was cancelled
            self._delivering = asyncio.Event()
            try:
                await asyncio.sleep(0)
                served = self._asked
                await self._deliver()
                self._served = served
            finally:
                self._delivering.set()
                self._delivering = None

    async def _deliver(self) -> None:
        runtime, store, actors = self._runtime, self._runtime.store, self._actors
        self.reads += 1
        if actors:
            readers = dict(actors)
            self._settled.clear()
            for message in await runtime.read(store.new_messages, list(readers)):
                actor = actors.get(message.run_no)
                is_same_actor = actor is readers[message.run_no]  # a later one has read its messages itself
                if actor is not None and is_same_actor and message.message_id not in self._settled:
                    self.deliver(actor, message)
        unowned = {m.run_no for m in await runtime.read(store.new_messages, None)}
        if unowned and not runtime.stopping:
            await self.claim(sorted(unowned))

    def deliver(self, actor: RunActor, message: MessageRow) -> None:
        """Hand a message to its run, once."""
        if message.message_id in actor.delivered:
            return
        actor.delivered.add(message.message_id)
        if message.kind in BRANCH_REQUESTS:
            self._runtime.spawn(self.open_branch(actor, message))
        else:
            actor.submit(cmd.Message(message.message_id, message.kind, message.payload, sent_at=message.created_at))


# --- messages that a turn sends or decides --------------------------------------------------------------------------


def message_rows(store: Store, draft: Draft, born: dict[str, int]) -> list[MessageRow]:
    """The messages that a turn sends; `born` are the runs that its own commit creates. A message to a run that does not
    exist is dropped."""
    found: list[MessageRow] = []
    for message in draft.extras.messages if draft.extras is not None else ():
        to = born.get(message.run_id)
        if to is None:
            target = store.run(message.run_id)
            to = None if target is None else target.run_no
        if to is not None:
            found.append(MessageRow(message.message_id, to, message.kind, _encode(message.payload), draft.now))
    return found


def report_of_end(store: Store, run_id: str, to_run_no: int, now: int) -> MessageRow:
    """The message by which a parent learns that its child has ended; one per wait."""
    row = find_run(store, run_id)
    payload = {"child": run_id, "status": row.status, **ending(store, row)}
    waits = [w.wait_id for w in store.open_waits([to_run_no]) if msgspec.json.decode(w.data)["child"] == run_id]
    message_id = derived("m_", run_id, "ended", to_run_no, *waits)
    return MessageRow(message_id, to_run_no, "child_ended", _encode(payload), now)


def ending(store: Store, row: RunRow) -> dict[str, Any]:
    """The result or the error of a finished run, as its parent receives it."""
    event = terminal_event(store, row)
    match event:
        case ev.RunCompleted(located=None):
            return {"result": event.result}
        case ev.RunCompleted():
            return {"status": "failed", "error": too_large_for_parent(row.run_id)}
        case ev.RunFailed():
            return {"error": event.error}
    return {"error": ev.ErrorInfo("run_cancelled", f"run {row.run_id} was cancelled: {event.reason}")}


def informed(store: Store, state: RunState, message: cmd.Message) -> cmd.Message:
    """Add to a message that names a closed wait how, and by which actor, it was closed."""
    wait_id = _named(message.payload) if message.kind in NAMES_A_WAIT else None
    closed = None if wait_id in state.waits else _closed_wait(store, state.run_id, wait_id)
    return message if closed is None else msgspec.structs.replace(message, ended_by=closed[1:])


def verdict(outcome: Outcome) -> bytes:
    """The outcome of a message, as its row stores it."""
    return _encode(_verdict(outcome))


def _verdict(outcome: Outcome) -> dict[str, Any]:
    if outcome.code is not None:
        return {"outcome": "refused", "code": outcome.code, "why": outcome.why}
    return {"outcome": "applied", **outcome.detail}


def too_late(store: Store, row: RunRow, kind: str, payload: bytes) -> Refused:
    """The error for a message to a run that has ended. An answer to a closed wait names the actor that closed it."""
    closed = _closed_wait(store, row.run_id, _named(payload)) if kind in NAMES_A_WAIT else None
    if closed is not None:
        return Refused(f"run {row.run_id}: {how_it_ended(*closed)}", reason="closed")
    now = store.run_by_no(row.run_no) or row
    cannot = {"answer": "its questions can no longer be answered", "signal": "it no longer receives signals"}
    why = cannot.get(kind, f"it cannot be asked to {kind}")
    return Refused(f"run {row.run_id} is already {now.status}; {why}", reason="finished")


def _closed_wait(store: Store, run_id: str, wait_id: str | None) -> tuple[str, str, str] | None:
    """A wait that is closed: its id, its outcome, and the actor that closed it."""
    for found in store.wait(wait_id) if wait_id is not None else ():
        if found.run_id == run_id and found.wait.wait_id == wait_id and found.wait.outcome is not None:
            return found.wait.wait_id, found.wait.outcome, found.wait.actor or ""
    return None


class _Naming(msgspec.Struct):
    wait_id: str | None = None
    wait: str | None = None


_naming = msgspec.json.Decoder(_Naming).decode


def _named(payload: bytes) -> str | None:
    try:
        named = _naming(payload)
    except msgspec.MsgspecError:
        return None  # the rules refuse it
    return named.wait_id or named.wait


# --- which message a signal id means --------------------------------------------------------------------------------


def signal_payload(name: str, value: bytes) -> dict[str, Any]:
    """The payload of the message of a signal."""
    return {"name": name, "payload": msgspec.Raw(value)}


def signal_message_id(run_id: str, signal_id: str, refusals: int = 0) -> str:
    """The message id of a signal: its sender's id, once per run, and how many signals were refused under that id."""
    return derived("m_", run_id, "signal", signal_id, *([refusals] if refusals else []))


def check_signal(store: Store, run_id: str, name: str, payload: bytes, signal_id: str) -> str:
    """Check that a signal can be sent to a run, or was sent to it already; return the id of its message."""
    row = store.run(run_id)
    if row is None:
        raise UnknownRun(f"there is no run {run_id} to send the signal {name!r} to")
    message_id, earlier = last_signal_message(store, run_id, signal_id)
    if earlier is not None and not is_same_signal(store, earlier, _encode(signal_payload(name, payload))):
        raise Refused(f"run {run_id} was already sent another signal under the id {signal_id!r}")
    if earlier is None and row.status in RUN_TERMINAL:
        raise too_late(store, row, "signal", payload)
    return message_id


def last_signal_message(store: Store, run_id: str, signal_id: str) -> tuple[str, MessageRow | None]:
    """The message of a signal that was not refused, or the id that the next one gets."""
    for refusals in itertools.count():
        found = signal_message_id(run_id, signal_id, refusals)
        message = store.message(found)
        if message is None or not _was_refused(message):
            return found, message
    raise AssertionError


def is_refused(store: Store, message_id: str) -> bool:
    message = store.message(message_id)
    return message is not None and _was_refused(message)


def _was_refused(message: MessageRow) -> bool:
    """Whether the run refused a message. One that came too late is not refused: a branch delivers it again."""
    if message.status != "dead" or message.outcome is None:
        return False
    return bool(msgspec.json.decode(message.outcome).get("code") != "finished")


def is_repeated(store: Store, message: MessageRow) -> bool:
    """Whether a message is a signal that was sent before, perhaps serialised differently."""
    earlier = store.message(message.message_id) if message.kind == "signal" else None
    return earlier is not None and is_same_signal(store, earlier, message.payload)


def is_same_signal(store: Store, earlier: MessageRow, payload: bytes) -> bool:
    """Whether this is the payload of an earlier signal: a webhook may be redelivered with other spaces and another
    order of keys. The schema is that of the call that asks for the signal, once there was one."""
    if earlier.payload == payload:
        return True
    was, now = _signal(earlier.payload), _signal(payload)
    if was.name != now.name:
        return False
    asked = [msgspec.json.decode(row.data).get("about") for row in store.events(earlier.run_no, types=("WaitOpened",))]
    schemas = [about.get("schema") for about in asked if isinstance(about, dict) and about.get("name") == now.name]
    return any(canonical.same(schema, bytes(was.payload), bytes(now.payload)) for schema in (None, *schemas[-1:]))


def held_signals(messages: Iterable[MessageRow]) -> dict[int, list[HeldSignal]]:
    """The signals among these messages, by run, in order of arrival."""
    found: dict[int, list[HeldSignal]] = defaultdict(list)
    for message in messages:
        if message.kind == "signal":
            signal = _signal(message.payload)
            found[message.run_no].append(HeldSignal(message.message_id, signal.name, bytes(signal.payload)))
    return found
