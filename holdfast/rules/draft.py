"""Draft: what one turn of a run decides, before it is committed.

Owns: the events of the turn, and notes of what is to be done once they are durable.
Never: does any of it.

The state is folded while events are drafted, so that each decision sees the ones before it. If the commit is refused,
the owner discards state and draft together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from holdfast.model import commands as cmd
from holdfast.model.events import Entry, ErrorInfo, NodeScheduled, TimerCancelled, TimerFired, TimerSet
from holdfast.model.evolve import evolve
from holdfast.model.limits import RETRY_IN_MEMORY_SECONDS, SECOND
from holdfast.model.naming import derived
from holdfast.model.state import NodeState, OpenScope, RunState, WaitState
from holdfast.model.timers import Elapsed, due


class Refusal(Exception):
    """A command that does not apply. What a message led to before it was refused (a deadline that had passed) stays
    drafted; for any other command nothing was drafted."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class Answer(NamedTuple):
    """A wait that was closed, and what the body that waits gets."""

    instance: NodeState
    wait: WaitState
    outcome: str
    value: bytes


class ToRun(NamedTuple):
    """A message that this turn sends to another run."""

    run_id: str
    message_id: str
    kind: str
    payload: dict[str, Any]


class Outcome(NamedTuple):
    """What became of a message."""

    message_id: str
    status: Literal["held", "consumed", "dead"]
    code: str | None = None
    """Why it was refused; None: it was applied."""
    why: str = ""
    detail: Mapping[str, Any] = MappingProxyType({})
    """What the sender learns besides that it was applied."""


class ChildToCreate(NamedTuple):
    """A child run that this turn creates."""

    run_id: str
    spec: cmd.NewChild
    parent: dict[str, Any] | None
    depth: int


class Extras:
    """What few turns lead to. There are thousands of other turns a second, and each list would cost them."""

    __slots__ = (
        "answers",
        "cancels",
        "children",
        "failing",
        "hold",
        "messages",
        "opened",
        "outcomes",
        "outputs_wanted",
        "params_wanted",
        "pauses",
    )

    def __init__(self) -> None:
        self.opened: list[OpenScope] = []
        """Scopes that were opened and whose nodes are not decided yet."""
        self.failing: list[tuple[NodeState, ErrorInfo]] = []
        """Instances that fail for good, before consequences are propagated."""
        self.cancels: list[NodeState] = []
        """Bodies to cancel."""
        self.answers: list[Answer] = []
        self.children: list[ChildToCreate] = []
        self.messages: list[ToRun] = []
        self.outcomes: list[Outcome] = []
        self.pauses = False
        """Bodies are to be evicted: the run is paused."""
        self.hold = ""
        """Why the run is to be put on hold."""
        self.params_wanted: list[OpenScope] = []
        self.outputs_wanted: list[NodeState] = []
        """Maps whose items have all ended and that complete once the engine has provided their output."""


class Draft:
    """One turn. What is below `entries` are effects: to be done after the commit, derived again after a crash."""

    __slots__ = (
        "at",
        "defers_bodies",
        "elapsed",
        "entries",
        "extras",
        "finish",
        "now",
        "scheduled",
        "since",
        "started",
        "state",
        "todo",
        "undo_wanted",
    )

    def __init__(self, state: RunState, now: int, elapsed: Elapsed | None = None) -> None:
        self.state = state
        self.now = now
        self.elapsed = elapsed
        """The same moment in elapsed time, by which durations are measured, where that is not `now`."""
        self.at = now if now > state.last_at else state.last_at
        """The time of its events."""
        self.since = state.seq + 1
        """The seq of its first event."""
        self.entries: list[Entry] = []
        self.todo: list[NodeState] = []
        """Instances that settled in this turn and whose consequences are not propagated yet."""
        self.scheduled: list[NodeState] = []
        """Instances that want a slot to run."""
        self.started: list[tuple[NodeState, dict[str, Any]]] = []
        """Bodies to start (or to run again after a wait), each with its located arguments."""
        self.defers_bodies = False
        """Bodies whose answer has arrived run again when another engine claims the run: here it is only decided."""
        self.undo_wanted = False
        self.finish = False
        """Every node has settled: the result is wanted."""
        self.extras: Extras | None = None

    @property
    def extra(self) -> Extras:
        """For adding something; code that only reads checks `extras` first."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    def emit(self, event: Any, ns: NodeState | None = None) -> int:
        """Draft an event and fold it; its seq."""
        state = self.state
        seq = state.seq + 1
        if ns is None:
            entry = Entry(seq, self.at, event, branch=state.branch)
        else:
            entry = Entry(seq, self.at, event, ns.node, ns.path, ns.visit, state.branch)
        self.entries.append(entry)
        evolve(state, entry, ns)
        return seq

    def emit_at(self, event: Any, node: str, path: str, visit: int) -> int:
        """Draft an event about an instance that need not exist yet, without creating it."""
        seq = self.state.seq + 1
        self.entries.append(Entry(seq, self.at, event, node, path, visit, self.state.branch))
        evolve(self.state, self.entries[-1])
        return seq

    def schedule(self, ns: NodeState, attempt: int, start_at: int | None) -> None:
        """Schedule an attempt, now or at a time. For a late one a timer is set, so that the run can be suspended."""
        self.emit(NodeScheduled(attempt, start_at), ns)
        if start_at is not None and start_at - self.now > RETRY_IN_MEMORY_SECONDS * SECOND:
            self.set_timer(ns.start_timer, start_at - self.now)
        self.scheduled.append(ns)

    def set_timer(self, timer: str, lasts: int, due_at: int | None = None) -> None:
        """Set a timer by a duration, in microseconds."""
        due_at = self.now + lasts if due_at is None else due_at
        if self.elapsed is None:
            self.emit(TimerSet(timer, due_at))
        else:
            self.emit(TimerSet(timer, due_at, self.elapsed.boot, self.elapsed.micros + lasts))

    def cancel_timer(self, timer: str) -> None:
        """Cancel a timer, if it is set."""
        if timer in self.state.timers:
            self.emit(TimerCancelled(timer))

    def fire_timer(self, timer: str) -> None:
        """Record that a timer that is set has fired."""
        lasting, elapsed = self.state.lasting.get(timer), self.elapsed
        is_counted = lasting is not None and elapsed is not None and lasting.boot == elapsed.boot
        self.emit(TimerFired(timer, elapsed.micros if is_counted and elapsed is not None else 0))

    def is_too_late(self, wait: WaitState, sent_at: int) -> bool:
        """Whether a message was sent after the deadline of a wait."""
        if wait.until is None:
            return False
        return sent_at >= due(wait.until, self.state.lasting.get(wait.wait_id), self.now, self.elapsed)

    def new_wait_id(self) -> str:
        """The id of the wait that the next event opens."""
        return derived("w_", self.state.run_id, self.state.seq + 1, size=8)

    def switch_branch(self, base: RunState, branch: int) -> None:
        """Draft everything that follows in this turn on another branch, which begins with the state `base`."""
        base.seq, base.head_hash, base.branch = self.state.seq, self.state.head_hash, branch
        self.state = base
