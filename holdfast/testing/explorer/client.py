"""Client: the caller that starts the run, and the people whom the run asks.

Owns: what is requested from the engines and when (the start, a pause or a cancel, signals, answers, resumes), repeating
requests without a response, and what must be true of everything that was acknowledged.
Never: changes anything by itself. Each request goes through an engine, like that of any program, so that its writes are
boundaries.
On crash: a client is not part of any process. It remembers what was acknowledged, and repeats what was not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.messages import signal_message_id as id_of_signal
from holdfast.inspect.wait_views import wait_view
from holdfast.model import answers as schemas
from holdfast.model import journal_format
from holdfast.model.errors import InvalidInput, Refused
from holdfast.model.limits import SECOND
from holdfast.model.policies import seconds
from holdfast.model.values import encode
from holdfast.model.views import Wait
from holdfast.store.row_types import AskedRow
from holdfast.testing.explorer.oracle import Broken
from holdfast.testing.simulation.database import WorldDatabase
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.requests import Request

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow

RUN_ID = "explored"
ACTOR = "explorer"
PEOPLE_TAKE = "10s"
"""Long enough that a waiting run is evicted meanwhile, so that it resumes from what is stored."""
RESUMES_MAX = 20
"""How often a run is taken out of its baskets; one that returns each time stays there in the end."""
_ASKED = ("input", "basket", "pause")
_CLOSED = "SELECT data FROM run_events WHERE type = 'WaitClosed' ORDER BY run_no, seq"
_PAUSED = "SELECT 1 FROM run_waits WHERE kind = 'pause' LIMIT 1"
_SIGNALS = """
SELECT m.no, m.run_no, m.payload, m.message_id, m.status, r.status
FROM run_inbox_messages AS m JOIN run_state AS r ON r.run_no = m.run_no
WHERE m.kind = 'signal' ORDER BY m.no"""
_RECEIVED = "SELECT run_no, seq, data FROM run_events WHERE type = 'MessageConsumed' ORDER BY run_no, seq"


class Outside(msgspec.Struct, frozen=True):
    """What comes from outside while a workflow is explored."""

    answers: Mapping[str, Any] | Callable[[Wait], Any] = {}
    """By question, or by a function of the wait; a LookupError means that there is no answer."""
    signals: Sequence[tuple[str, Any]] = ()
    """(name, payload), in this order."""
    resumes: bool | Mapping[str, Mapping[str, Any]] = True
    """Whether pauses end and baskets are emptied; by basket the variables that are set then."""
    people_take: float = seconds(PEOPLE_TAKE)
    """Seconds from a question to its answer, from the start of the run to its signals."""
    cancel_after: str | None = None
    pause_after: str | None = None

    def answer(self, wait: Wait) -> Any:
        """The answer to a question. Raises LookupError if there is none."""
        if callable(self.answers):
            return self.answers(wait)
        return self.answers[wait.question or ""]


class Client:
    """One client of one exploration; `begin` starts another schedule."""

    def __init__(
        self, store: WorldDatabase, workflow: Workflow[..., Any], inputs: dict[str, Any], outside: Outside
    ) -> None:
        self._store = store
        self._workflow = workflow
        self._inputs = inputs
        self._outside = outside
        self._delay = int(outside.people_take * SECOND)
        self.begin()

    def begin(self) -> None:
        self.started_at: int | None = None
        """When the run was acknowledged."""
        self._signalled: list[str] = []
        """The messages of signals that were acknowledged."""
        self._done_with: dict[str, str] = {}
        """Waits that were answered or resumed, or have no answer, and the response that the client got."""
        self._given: dict[str, bytes] = {}
        """Answers that were acknowledged."""
        self._resumes = 0
        self._paused = False
        self.unfit: str | None = None
        """Why an answer that was given to the explorer does not fit its question."""

    def digest(self, now: int) -> tuple[Any, ...]:
        """What it knows, to distinguish two states."""
        told = tuple(sorted(self._done_with.items()))
        due_at = self.due_at(now)
        waits_for = None if due_at is None else due_at - now
        return (self.started_at is None, len(self._signalled), told, self._resumes, self._paused, waits_for)

    # --- for the world -------------------------------------------------------------------------------------------

    @property
    def served(self) -> bool:
        """True if it has at least what it wants: a run."""
        return self.started_at is not None

    def wants(self, now: int) -> Request | None:
        """The request that it makes now."""
        if self.started_at is None:
            return self._start
        for at, request in self._requests():
            if at <= now:
                return request
        return None

    def due_at(self, now: int) -> int | None:
        """When it makes its next request, if nothing else happens."""
        later = [at for at, _ in self._requests() if at > now] if self.started_at is not None else []
        return min(later, default=None)

    def _requests(self) -> Iterator[tuple[int, Request]]:
        """The requests that are left, and when each is due."""
        assert self.started_at is not None
        if len(self._signalled) < len(self._outside.signals) and not self._store.is_finished():
            yield self.started_at + self._delay, self._signal
        for asked in self._store.asked(kinds=_ASKED, limit=1_000):
            request = self._reaction(asked)
            if request is not None:
                yield asked.wait.since + self._delay, request

    def _reaction(self, asked: AskedRow) -> Request | None:
        wait = wait_view(*asked)
        assert wait.wait_id is not None
        if wait.wait_id in self._done_with:
            return None
        if wait.kind != "input":
            may = self._outside.resumes is not False and self._resumes < RESUMES_MAX
            return functools.partial(self._resume, wait) if may else None
        try:
            value = self._outside.answer(wait)
        except LookupError:
            return None
        return functools.partial(self._respond, wait, value)

    # --- requests ------------------------------------------------------------------------------------------------

    async def _start(self, process: Process) -> None:
        run = await process.engine.start(self._workflow, run_id=RUN_ID, **self._inputs)
        if self.started_at is None:
            self.started_at = process.world.clock.now()
        process.store.contacts += 1
        stop, pause = self._outside.cancel_after, self._outside.pause_after
        if stop is None and pause is None:
            return
        async for event in run.follow():
            if event.type == "NodeCompleted" and event.node == stop:
                with contextlib.suppress(Refused):
                    await run.cancel("the explorer asked for it")
                return
            if event.type == "NodeCompleted" and event.node == pause:
                with contextlib.suppress(Refused):
                    await run.pause("the explorer asked for it", actor=ACTOR)
                    self._paused = True
                    process.store.contacts += 1
                return

    async def _signal(self, process: Process) -> None:
        number = len(self._signalled)
        name, payload = self._outside.signals[number]
        signal_id = f"{ACTOR}-{number}"
        await process.engine.get(RUN_ID).signal(name, payload, id=signal_id)
        if number == len(self._signalled):  # else a zombie is told of what was acknowledged to another one
            self._signalled.append(id_of_signal(RUN_ID, signal_id))
        process.store.contacts += 1

    async def _respond(self, wait: Wait, value: Any, process: Process) -> None:
        assert wait.wait_id is not None
        try:
            await process.engine.get(wait.run_id).respond(wait.wait_id, value, actor=ACTOR)
        except InvalidInput as wrong:
            self.unfit = f"the answer to {wait.question!r}: {wrong.message}"
            self._done_with[wait.wait_id] = "unfit"
        except Refused as refused:  # the answer to an earlier request was lost, or the deadline or a cancel was first
            self._done_with.setdefault(wait.wait_id, refused.reason)
        else:
            self._done_with[wait.wait_id] = "answered"
            self._given[wait.wait_id] = schemas.completed(wait.schema, encode(value, what="the answer"))
        process.store.contacts += 1

    async def _resume(self, wait: Wait, process: Process) -> None:
        assert wait.wait_id is not None
        given = self._outside.resumes
        values = given.get(wait.basket or "", {}) if isinstance(given, Mapping) else {}
        self._resumes += 1
        try:
            await process.engine.get(wait.run_id).resume(wait=wait.wait_id, vars=dict(values), actor=ACTOR)
        except Refused as refused:
            self._done_with.setdefault(wait.wait_id, refused.reason)
        else:
            self._done_with[wait.wait_id] = "resumed"
        process.store.contacts += 1

    # --- at the end ----------------------------------------------------------------------------------------------

    def unanswered(self) -> list[str]:
        """Questions without an answer, and baskets that are not emptied."""
        waits = [wait_view(*asked) for asked in self._store.asked(kinds=_ASKED, limit=1_000)]
        return [
            f"there is no answer to {w.question!r}" if w.kind == "input" else f"{w.node} is not resumed" for w in waits
        ]

    def broken_promises(self) -> Iterator[Broken]:
        """What was acknowledged and has not happened, or more than once, or out of order."""
        closed: dict[str, list[Any]] = {}
        for (data,) in self._store.ask(_CLOSED):
            event: Any = journal_format.decode("WaitClosed", data)
            closed.setdefault(event.wait_id, []).append(event)
        for wait_id, told in self._done_with.items():
            yield from self._of_wait(wait_id, told, closed.get(wait_id, []))
        if self._paused and not self._store.ask(_PAUSED):
            yield Broken("I26", "a pause was acknowledged and is not there")
        yield from self._of_signals()

    def _of_wait(self, wait_id: str, told: str, closed: list[Any]) -> Iterator[Broken]:
        if told in ("closed", "answered", "resumed") and not closed:
            yield Broken("I26", f"the client was told that {wait_id} is {told}, and it is open")
        elif told == "resumed" and closed[0].outcome != "resumed":
            yield Broken("I26", f"a resume of {wait_id} was acknowledged, and it ended as {closed[0].outcome}")
        elif told == "answered":
            won = closed[0]
            if (won.outcome, won.actor, bytes(won.value)) != ("answered", ACTOR, self._given[wait_id]):
                what = f"{bytes(won.value).decode()} by {won.actor or 'no actor'} ({won.outcome})"
                yield Broken("I26", f"an answer to {wait_id} was acknowledged, and what counts is {what}")

    def _received(self) -> dict[tuple[int, str], list[int]]:
        """Where journals record that a message was received."""
        found: dict[tuple[int, str], list[int]] = {}
        for run_no, seq, data in self._store.ask(_RECEIVED):
            event: Any = journal_format.decode("MessageConsumed", data)
            found.setdefault((run_no, event.message_id), []).append(seq)
        return found

    def _of_signals(self) -> Iterator[Broken]:
        latest: dict[tuple[int, str], int] = {}
        kept: set[tuple[int, str]] = set()
        rows = self._store.ask(_SIGNALS)
        received = self._received() if rows else {}
        for no, run_no, payload, message_id, status, run_status in rows:
            name = msgspec.json.decode(payload)["name"]
            ended = run_status in ("completed", "failed", "cancelled")
            seqs = received.get((run_no, message_id), [])
            times = len(seqs)
            if times > 1:
                yield Broken("I24", f"signal {message_id} was received {times} times")
            if status == "consumed" and not times:
                yield Broken("I24", f"signal {message_id} counts as received, and nothing tells of it")
            if status not in ("consumed", "held") and message_id in self._signalled and not ended:
                yield Broken("I26", f"signal {message_id} was acknowledged, and is neither received nor kept")
            if status == "held":
                kept.add((run_no, name))
            if times:
                if latest.get((run_no, name), 0) > seqs[0] or (run_no, name) in kept:
                    yield Broken("I27", f"signal {name!r} number {no} was not received in its order")
                latest[run_no, name] = seqs[0]
        missing = set(self._signalled) - {row[3] for row in rows}
        if missing:
            yield Broken("I26", f"{len(missing)} acknowledged signal(s) are not there any more")
