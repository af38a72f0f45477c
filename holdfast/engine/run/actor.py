"""Actor: one live run. Commands in, commits out, then effects.

Owns: the run's state while this engine holds its lease; its mailbox; its life, from the first command until the engine
drives it no longer; pausing it, and detaching it from the engine; whether it is suspected of killing its engines.
Never: decides, commits or performs effects (turn.py), starts bodies (bodies.py).
Invariants: at most one commit in flight; everything that arrives meanwhile is decided together into the next one. A
transition that is not in LIFE_TRANSITIONS raises.
On crash: nothing of an actor is stored; the next owner reads the run's rows, whose `recoveries` name the suspects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from holdfast.engine.alarms import Alarms
from holdfast.engine.persistence import UNBUFFERED, Persistence
from holdfast.engine.ports import Done, settle
from holdfast.engine.runtime import Runtime
from holdfast.model import events as ev
from holdfast.model.errors import IllegalTransition, LeaseLost
from holdfast.model.limits import SUSPECT_RECOVERIES
from holdfast.model.plans import Plan
from holdfast.model.state import RunState
from holdfast.model.statuses import RunStatus
from holdfast.store.row_types import RunRow

WAKING_SECONDS = 10
"""How late the timer of a run in memory may be because the engine is busy."""

Mail = tuple[Any, Done | None]
"""A command, and the callback that gets its outcome."""
Reply = tuple[Done, Any, BaseException | None]
"""A callback, and what it gets once the turn is durable: the rule's answer, or why the command was refused."""


class Life(StrEnum):
    """Where a live run stands between two commands."""

    IDLE = "idle"
    """Nothing is in its mailbox."""
    QUEUED = "queued"
    """It has mail, and takes a turn in this turn of the event loop."""
    DECIDING = "deciding"
    """It takes a turn: the rules decide its mail."""
    COMMITTING = "committing"
    """A commit was handed over and has not landed."""
    APPLYING = "applying"
    """Its commit is durable, and what that orders is done. Mail that arrives meanwhile is decided right afterwards."""
    PAUSED = "paused"
    """It decides nothing: a request that may change where the run continues is being prepared."""
    DETACHING = "detaching"
    """The engine drives it no longer; its last commit has not landed."""
    DETACHED = "detached"
    """The engine drives it no longer."""

    __hash__ = str.__hash__  # Enum's own is a Python function, and the table is read several times a turn


LIFE_TRANSITIONS: Final[dict[Life, frozenset[Life]]] = {
    Life.IDLE: frozenset({Life.QUEUED, Life.COMMITTING, Life.PAUSED, Life.DETACHED}),
    Life.QUEUED: frozenset({Life.DECIDING, Life.COMMITTING, Life.PAUSED, Life.DETACHED}),
    Life.DECIDING: frozenset({Life.IDLE, Life.QUEUED, Life.COMMITTING, Life.PAUSED, Life.DETACHED}),
    Life.COMMITTING: frozenset({Life.APPLYING, Life.DETACHING}),
    Life.APPLYING: frozenset({Life.IDLE, Life.DECIDING, Life.PAUSED, Life.DETACHED}),
    Life.PAUSED: frozenset({Life.IDLE, Life.QUEUED, Life.COMMITTING, Life.DETACHED}),
    Life.DETACHING: frozenset({Life.DETACHED}),
    Life.DETACHED: frozenset(),
}
"""idle → committing is the first commit of a child, inside its parent's; it and queued → committing and paused →
committing are also the commit of what a `lazy` run has buffered."""


class WorkflowSlot(StrEnum):
    """How a run stands to the `concurrency` of its workflow."""

    NONE = "none"
    """Its workflow has no limit, or the run is suspended and needs no slot."""
    WAITING = "waiting"
    """It starts when another run of its workflow has returned its slot."""
    HELD = "held"


class NewRun(msgspec.Struct, gc=False):
    """What is known of a run before its first commit."""

    event: ev.RunCreated
    parent_no: int | None
    root_no: int
    create_unowned: bool
    """The run is only written here; an engine that serves its queue, and has room, claims it."""


class TurnQueue(Protocol):
    """Where a run asks for a turn (pump.py)."""

    def queue(self, actor: RunActor) -> None:
        """Take a turn for the run in this turn of the event loop."""
        ...

    def flush(self, actor: RunActor) -> None:
        """Commit what a lazy run has buffered."""
        ...


class Keeper(Protocol):
    """Where a run of this engine is kept, and what it reports there (ownership/custody.py)."""

    runtime: Runtime
    turns: TurnQueue

    def detached(self, actor: RunActor) -> None:
        """The run is driven no longer."""
        ...

    def cannot_read(self, actor: RunActor, error: Exception) -> None:
        """Something of the run that is needed now cannot be read."""
        ...

    def stop_loudly(self, actor: RunActor, error: BaseException) -> None:
        """What the run needs failed by a bug of the engine."""
        ...

    def hold_after_commits(self, actor: RunActor, why: str) -> None:
        """Put the run on hold once everything that was submitted so far is durable."""
        ...


class RunActor:
    """A run that this engine owns; it is not driven before its keeper has adopted it."""

    __slots__ = (
        "_detach_waiters",
        "_keeper",
        "_stopped_by",
        "_turns",
        "alarms",
        "body_slots",
        "creating",
        "delivered",
        "eviction",
        "expected_seq",
        "flush_timer",
        "has_code",
        "life",
        "mailbox",
        "outcome",
        "pausers",
        "plan",
        "release_after_commit",
        "replies",
        "restarted_at",
        "resuming_bodies",
        "row",
        "run_id",
        "run_no",
        "runtime",
        "state",
        "token",
        "workflow_slot",
        "write_buffer",
        "written",
    )

    def __init__(self, keeper: Keeper, plan: Plan, state: RunState, token: int, row: RunRow | None) -> None:
        self.runtime = keeper.runtime
        self._turns = keeper.turns
        self._keeper = keeper
        self.plan = plan
        self.state = state
        self.token = token
        self.run_id = state.run_id
        self.run_no = state.run_no
        self.row = row
        """The run's row as it was when it was claimed or created: what never changes about it."""
        self.creating: NewRun | None = None
        self.release_after_commit = False
        """Only its timers are fired here: the next commit releases its lease, and an engine with room claims it."""
        self.has_code = False
        """All of its code was found here; that stays so."""
        self.outcome: ev.RunCompleted | ev.RunFailed | ev.RunCancelled | None = None

        self.life = Life.IDLE
        self.mailbox: list[Mail] = []
        self.delivered: set[str] = set()
        """Messages that were put into the mailbox."""
        self.pausers = 0
        """How many requests keep it paused, now or once the commit in flight is applied."""

        self.replies: Sequence[Reply] = ()
        """Those of the commit in flight."""
        self.expected_seq = state.seq
        """The last event that is durable."""
        self.written: tuple[Any, ...] = ()
        """What the run's row was last given, of what seldom changes."""
        mode = state.fold.settings.persistence
        self.write_buffer = UNBUFFERED if mode == "aggressive" else Persistence(mode)
        """What is decided and not handed over yet."""
        self.flush_timer: asyncio.TimerHandle | None = None

        self.workflow_slot = WorkflowSlot.NONE
        self.body_slots: dict[tuple[str, str], tuple[str, ...]] = {}
        """The slots that its bodies hold."""
        self.resuming_bodies: set[tuple[str, str]] = set()
        """Bodies that have their answer and wait for a slot to run again."""
        self.restarted_at = 0
        """The event after which a body in a thread was last run again because its answer was there."""

        self.alarms: Alarms | None = None
        self.eviction: asyncio.Handle | None = None
        """The call that evicts it from memory, while it is suspended or its code is not here."""
        self._detach_waiters: list[asyncio.Future[None]] = []
        self._stopped_by: BaseException | None = None
        """The bug that stopped it, if one did."""

    # --- its life ------------------------------------------------------------------------------------------

    def move(self, to: Life) -> None:
        """Move to another state of its life, or raise IllegalTransition."""
        if to not in LIFE_TRANSITIONS[self.life]:
            raise IllegalTransition(f"the actor of run {self.run_id}: {self.life} -> {to} is not a transition")
        self.life = to

    @property
    def is_detached(self) -> bool:
        """Whether this engine drives the run no longer."""
        return self.life is _DETACHED or self.life is _DETACHING

    @property
    def has_work(self) -> bool:
        """Whether something was submitted that is not decided, or decided that is not durable or not applied."""
        return bool(self.mailbox) or not (self.life is _IDLE or self.life is Life.PAUSED)

    def submit(self, command: Any, done: Done | None = None) -> None:
        """Put a command into the mailbox; it is decided with everything else that arrives meanwhile."""
        life = self.life
        if life is _DETACHED or life is _DETACHING:
            if done is not None:
                done(None, LeaseLost(f"run {self.run_id} is no longer owned by this engine"))
            return
        self.mailbox.append((command, done))
        if life is _IDLE or life is _DECIDING:
            self.move(_QUEUED)
            self._turns.queue(self)

    async def flushed(self) -> None:
        """Wait until everything that was decided is durable."""
        while not self.is_detached and (self.write_buffer.entries or self.life is Life.COMMITTING):
            self._turns.flush(self)
            await asyncio.sleep(0 if self.runtime.committer.idle else 0.001)

    async def pause(self) -> None:
        """Commit everything that was submitted so far, then decide nothing until `unpause`. Bodies continue."""
        await self.flushed()
        while self.mailbox and not self.is_detached:
            await asyncio.sleep(0.001)
            await self.flushed()
        self.pause_now()

    def pause_now(self) -> None:
        """Decide nothing more until `unpause`, not even what is in the mailbox. A commit in flight is applied first."""
        self.pausers += 1
        if not (self.is_detached or self.life in (Life.PAUSED, Life.COMMITTING)):
            self.move(Life.PAUSED)

    def unpause(self) -> None:
        """Decide again what is in the mailbox, unless another request keeps the run paused."""
        self.pausers -= 1
        if self.life is Life.PAUSED and not self.pausers:
            self.move(_QUEUED if self.mailbox else _IDLE)
            if self.mailbox:
                self._turns.queue(self)

    # --- what the engine asks of it --------------------------------------------------------------------------

    def due_timers(self, now: int) -> list[str]:
        state, elapsed = self.state, self.runtime.clock.elapsed()
        return [timer for timer in state.timers if state.due_at(timer, now, elapsed) <= now]

    @property
    def is_at_work(self) -> bool:
        """Whether it takes room: it is not suspended, or what it was just sent may resume it."""
        if self.workflow_slot is WorkflowSlot.WAITING or self.release_after_commit:
            return False
        return self.state.status is not RunStatus.SUSPENDED or bool(self.mailbox)

    def wakes_at(self, now: int) -> bool:
        """Whether one of its timers fires at about this moment: room is kept for it. A timer that has been due for
        longer does not wake it, as when it is paused."""
        if self.workflow_slot is WorkflowSlot.WAITING or self.release_after_commit:
            return False
        state, elapsed = self.state, self.runtime.clock.elapsed()
        left = (state.due_at(timer, now, elapsed) - now for timer in state.timers)
        return any(-WAKING_SECONDS * 1_000_000 < micros < 100_000 for micros in left)

    def runs_here(self) -> bool:
        """Whether all of the run's code is here and its queue is served. Otherwise requests are applied and nothing of
        it runs."""
        if not self.has_code:
            queues = self.runtime.queues
            is_served = queues is None or self.state.fold.settings.queue in queues
            self.has_code = self.runtime.drives and is_served and self.runtime.versions.is_loaded(self.plan)
        return self.has_code

    @property
    def max_recoveries(self) -> int:
        limit = self.state.fold.settings.max_recoveries
        return self.runtime.settings.max_recoveries if limit is None else limit

    # --- quarantine of a run that may have killed its engines ------------------------------------------------

    @property
    def is_suspect(self) -> bool:
        """Whether its bodies execute in spawned processes, so that the death of an engine says nothing about the run.
        With a limit below the usual threshold, from the last recovery on that the limit allows."""
        recoveries = self.state.recoveries
        return recoveries > 0 and recoveries >= min(SUSPECT_RECOVERIES, self.max_recoveries)

    @property
    def is_guilty(self) -> bool:
        """Whether a suspect whose body's process has just died, while the engine lives, is put on hold."""
        return self.state.recoveries >= self.max_recoveries

    @property
    def needs_own_process(self) -> bool:
        """Whether a suspect's body needs a process that has run nothing else: the process of one of its bodies died
        before, or one more death puts the run on hold."""
        return self.state.recoveries > SUSPECT_RECOVERIES or self.is_guilty

    # --- when it cannot continue -----------------------------------------------------------------------------

    def cannot_read(self, error: Exception) -> None:
        """Detach it: something of the run that is needed now cannot be read. No event is appended."""
        self._keeper.cannot_read(self, error)

    def stop_loudly(self, error: Exception) -> None:
        """Detach it and put the run on hold: the engine has a bug, and cannot do what the run needs."""
        self._keeper.stop_loudly(self, error)

    def hold(self, why: str) -> None:
        """Put the run on hold once everything that was submitted so far is durable."""
        self._keeper.hold_after_commits(self, why)

    # --- its end in this engine ------------------------------------------------------------------------------

    def detach(self, error: BaseException | None) -> None:
        """Stop driving the run: it has ended, is evicted, or another engine owns it. Commands that were not decided are
        refused with `error`; bodies are left without a report, and their slots are free."""
        if self.is_detached:
            return
        self.move(Life.DETACHING if self.life is Life.COMMITTING else _DETACHED)
        for handle in (self.alarms, self.eviction, self.flush_timer):
            if handle is not None:
                handle.cancel()
        if self.write_buffer.lazy:
            self.runtime.values.unpin(self.run_no)
        if self.mailbox or self.replies:
            self._refuse_all(error or LeaseLost(f"run {self.run_id} has ended"))
        self.runtime.executor.unwind(self.run_no)
        if self.body_slots:
            for key in list(self.body_slots):
                self.runtime.slots.free(self.body_slots.pop(key))
        self._keeper.detached(self)
        if error is not None and not isinstance(error, LeaseLost):
            self._stopped_by = error
        for waiter in self._detach_waiters:
            settle(waiter, None, None)

    def _refuse_all(self, error: BaseException) -> None:
        """Refuse what is in the mailbox, and what is in flight where the store itself has failed."""
        mailbox, self.mailbox = self.mailbox, []
        replies, self.replies = self.replies, ()
        callbacks: list[Callable[..., None] | None] = [done for _, done in mailbox]
        for done in [*callbacks, *(done for done, _, _ in replies)]:
            if done is not None:
                done(None, error)

    async def until_detached(self) -> None:
        """Wait until the run has ended, or this engine drives it no longer. Raises what stopped it if that was a
        bug."""
        if not self.is_detached:
            waiter = self.runtime.loop.create_future()
            self._detach_waiters.append(waiter)
            try:
                await waiter
            finally:
                self._detach_waiters.remove(waiter)
            if self._stopped_by is not None:
                raise self._stopped_by


_IDLE, _QUEUED, _DECIDING, _DETACHING, _DETACHED = (
    Life.IDLE, Life.QUEUED, Life.DECIDING, Life.DETACHING, Life.DETACHED,
)  # fmt: skip
"""Members that every command is compared with: looking one up in its Enum takes as long as a call."""
