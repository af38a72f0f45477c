"""Actor: one live run. Commands in, commits out, then effects.

Owns: the run's state while this engine holds its lease; the mailbox; when a turn is taken, and whose commit is in
flight; leaving.
Never: decides (turns.py, by the rules), builds a commit (commits.py), writes it (committer), does what it orders
(effects.py), runs bodies (executor).
Invariants: at most one commit in flight; everything that arrives meanwhile is decided together into the next one.
Effects happen only after the commit that orders them, and follow from committed state: after a crash they are derived
again. (A `lazy` run may run bodies before its commit; nothing leaves it before.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import bodies, commits, effects, resting, turns
from holdfast.engine.alarms import Alarms
from holdfast.engine.futures import settle
from holdfast.engine.persistence import Persistence
from holdfast.engine.port import BodyPort
from holdfast.engine.protocols import Done
from holdfast.engine.turns import Mail, Reply
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import LeaseLost
from holdfast.model.graph import Plan
from holdfast.model.state import RunState
from holdfast.model.statuses import RunStatus
from holdfast.rules.draft import Draft
from holdfast.store.api import Commit, Landed, RunRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


WAKING_SECONDS = 10
"""How late the timer of a run in memory may be because everybody is busy."""


class NewRun(msgspec.Struct, gc=False):
    """What is known of a run before its first commit."""

    event: ev.RunCreated
    parent_no: int | None
    root_no: int


class RunActor(BodyPort):
    """A run that this engine owns."""

    __slots__ = (
        "_draft",
        "_replies",
        "_stopped_by",
        "_until_left",
        "alarms",
        "awaits_place",
        "children",
        "counted",
        "creating",
        "delivered",
        "engine",
        "expected_seq",
        "gone",
        "has_code",
        "held",
        "in_flight",
        "is_for_others",
        "mailbox",
        "outcome",
        "paused",
        "places",
        "plan",
        "queued",
        "queueing",
        "restarted_at",
        "resting",
        "row",
        "run_id",
        "run_no",
        "state",
        "token",
        "written",
    )

    def __init__(self, engine: Engine, plan: Plan, state: RunState, token: int, row: RunRow | None) -> None:
        self.engine = engine
        self.plan = plan
        self.state = state
        self.token = token
        self.run_id = state.run_id
        self.run_no = state.run_no
        self.row = row
        """The run's row as it was when it was claimed or created: what never changes about it."""
        self.creating: NewRun | None = None
        self.is_for_others = False
        """A new run that is only written here, or one whose timers are only fired here: with the next commit its lease
        is given back, and whoever serves its queue, and has room, takes it."""
        self.has_code = False
        """All of its code was found here; it stays."""
        self.outcome: ev.RunCompleted | ev.RunFailed | ev.RunCancelled | None = None

        self.mailbox: list[Mail] = []
        self.delivered: set[str] = set()
        """Messages that were put into the mailbox."""
        self.queued = False
        """It has its turn soon."""
        self.paused = 0
        """How many think about where the run goes on: meanwhile it decides nothing."""

        self.in_flight = False
        """A commit was handed over and has not landed; these are its draft, its replies and its children."""
        self._draft: Draft | None = None
        self._replies: Sequence[Reply] = ()
        self.children: list[RunActor] = []
        self.expected_seq = state.seq
        """The last event that is durable."""
        self.written: tuple[Any, ...] = ()
        """What the run's row was last given, of what seldom changes."""
        self.held = Persistence.of(state.fold.settings.persistence)
        """What is decided and not handed over yet."""

        self.counted = False
        """It counts against its workflow's concurrency."""
        self.awaits_place = False
        """It cannot go to work before another run of its workflow has left."""
        self.places: dict[tuple[str, str], tuple[str, ...]] = {}
        """What its bodies hold."""
        self.queueing: set[tuple[str, str]] = set()
        """Bodies that have their answer and wait for a place to run again."""
        self.restarted_at = 0
        """The event after which a body in a thread was last run again because its answer was there."""

        self.alarms: Alarms | None = None
        self.resting: asyncio.Handle | None = None
        """Lets go of it, when it has rested for long enough."""
        self.gone = False
        self._until_left: list[asyncio.Future[None]] = []
        """Those who wait until this engine does not drive the run any more."""
        self._stopped_by: BaseException | None = None
        """The bug that stopped it, if it was one."""

    # --- in ------------------------------------------------------------------------------------------------

    def tell(self, command: Any, done: Done | None = None) -> None:
        """Put a command into the mailbox; it is decided with everything else that arrives meanwhile."""
        if self.gone:
            if done is not None:
                done(None, LeaseLost(f"run {self.run_id} is not owned by this engine any more"))
            return
        self.mailbox.append((command, done))
        if not (self.queued or self.in_flight or self.paused):
            self.queued = True
            self.engine.pump_soon(self)

    def look_at_mail(self) -> None:
        """Decide what is in the mailbox soon, unless a commit is in flight: then when it has landed."""
        if self.mailbox and not (self.in_flight or self.queued or self.gone or self.paused):
            self.queued = True
            self.engine.pump_soon(self)

    def body_left(self, key: tuple[str, str], left: bool) -> None:
        place = self.places.pop(key, None)
        if place:
            self.engine.slots.free(place)
        if left and not self.gone and not self.engine.stopping:
            bodies.left(self, key)

    def awaken(self) -> None:
        """A suspended run was claimed: its timers run here now, and those that are due fire at once."""
        now = self.engine.clock.now()
        for timer in self.due_timers(now):
            self.tell(cmd.FireTimer(timer))
        if not self.mailbox:  # else after the turn that decides it
            effects.set_alarms(self, Draft(self.state, now))
            resting.rest(self)

    def due_timers(self, now: int) -> list[str]:
        return [timer for timer, due_at in self.state.timers.items() if due_at <= now]

    @property
    def is_at_work(self) -> bool:
        """Whether it takes room: it does not only wait, or what it has just been told may wake it."""
        if self.awaits_place or self.is_for_others:
            return False
        return self.state.status is not RunStatus.SUSPENDED or bool(self.mailbox)

    def wakes_at(self, now: int) -> bool:
        """Whether a timer of it fires at this moment, give or take: room is kept for it. One that is due for longer
        does not wake it, as when it is paused."""
        if self.awaits_place or self.is_for_others:
            return False
        return any(-WAKING_SECONDS * 1_000_000 < due_at - now < 100_000 for due_at in self.state.timers.values())

    def runs_here(self) -> bool:
        """Whether the run's code is here, all of it, and its queue is served: else requests are applied, and nothing of
        it runs."""
        if not self.has_code:
            is_here = self.engine.versions.is_loaded(self.plan)
            self.has_code = is_here and self.engine.serves(self.state.fold.settings.queue)
        return self.has_code

    # --- a turn ----------------------------------------------------------------------------------------------

    def pump(self, now: int) -> None:
        """Decide what is in the mailbox, and hand the commit over."""
        self.queued = False
        isolation = self.engine.isolation
        if self.in_flight or self.gone or self.paused or not self.mailbox:
            return
        if isolation.turn_of is not None and isolation.keeps_mail_of(self):
            return
        mailbox, self.mailbox = self.mailbox, []
        try:
            draft, replies = turns.take(self, mailbox, now)
            self._hand_over(draft, replies)
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others go on
            self.engine.stop_loudly(self, e, [done for _, done in mailbox if done is not None])

    def _hand_over(self, draft: Draft, replies: list[Reply]) -> None:
        if not draft.entries and not (draft.extras is not None and draft.extras.outcomes):
            self.is_for_others = False  # there is no commit that would give it back
            for done, answer, refusal in replies:
                done(answer, refusal)
            effects.follow_up(self, draft)
            return
        if (
            self.held.lazy
            and not self.is_for_others
            and self.creating is None
            and self.held.may_hold(draft, self.state)
        ):
            self.held.hold(draft, self.engine.values, self.run_no)
            self.engine.flush_later(self, self.held.interval_seconds)
            effects.perform(self, draft, replies)
            return
        self._draft, self._replies, self.in_flight = draft, replies, True
        commit = commits.of_turn(self, draft)
        if not commit.ends:
            draft.entries.clear()  # they are rows now: the next run's turn finds their memory warm
        self.engine.committer.submit(commit, self)

    def flush(self) -> None:
        """Commit what a lazy run holds back."""
        if self.held.entries and not self.in_flight and not self.gone:
            draft = Draft(self.state, self.engine.clock.now())
            self._draft, self.in_flight = draft, True
            self.engine.committer.submit(commits.of_turn(self, draft), self)
            self.engine.committer.flush()

    def first_commit(self) -> Commit:
        """The commit of a new run that lands inside its parent's, or that is for others to drive."""
        draft = turns.take_first(self)
        self._draft, self.in_flight = draft, True
        return commits.of_turn(self, draft)

    def landed(self, outcome: Landed) -> None:
        """The commit is durable, or was refused. What bodies that run through have said by then is decided at once,
        while everything of this run is in the processor's cache."""
        self.in_flight = False
        draft, replies, self._draft, self._replies = self._draft, self._replies, None, ()
        children = self.children
        if children:
            self.children = []
        assert draft is not None
        if outcome.refusal is not None:
            for child in children:
                child.leave(LeaseLost(f"its parent's commit was refused: {outcome.refusal}"))
            self.engine.refused(self, outcome, [done for done, _, _ in replies])
            return
        self.expected_seq = self.state.seq
        self.queued = True
        if self.creating is not None:  # only now the run's own settings are known
            self.creating = None
            self.held = Persistence.of(self.state.fold.settings.persistence)
        if self.held.lazy:
            self.engine.values.unpin(self.run_no)
        for child in children:
            if not child.is_for_others:
                self.engine.adopt(child)
                child.landed(outcome)
        try:
            effects.perform(self, draft, replies)
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others of the group go on
            self.engine.stop_loudly(self, e, [])
            return
        self.pump(self.engine.clock.now())

    # --- pausing -------------------------------------------------------------------------------------------

    async def flushed(self) -> None:
        """Wait until nothing of the run is held back."""
        while not self.gone and (self.held.entries or self.in_flight):
            self.flush()
            await asyncio.sleep(0 if self.engine.committer.idle else 0.001)

    async def pause(self) -> None:
        """Commit everything that was told so far, then decide nothing until `go_on`. Bodies go on."""
        await self.flushed()
        while self.mailbox and not self.gone:
            await asyncio.sleep(0.001)
            await self.flushed()
        self.paused += 1

    def go_on(self) -> None:
        """After `pause`: nothing came of it."""
        self.paused -= 1
        self.look_at_mail()

    # --- leaving -------------------------------------------------------------------------------------------

    def ended(self, terminal: ev.RunCompleted | ev.RunFailed | ev.RunCancelled | None) -> None:
        """The run has its terminal event."""
        self.outcome = terminal
        self.leave(None)
        self.engine.ended(self)

    def leave(self, error: BaseException | None) -> None:
        """This engine does not own the run any more (it ended, was evicted, or somebody else has it)."""
        self.gone = True
        if self.alarms is not None:
            self.alarms.clear()
        if self.resting is not None:
            self.resting.cancel()
        self.engine.values.unpin(self.run_no)
        if self.mailbox or self._replies:
            self._turn_away(error or LeaseLost(f"run {self.run_id} has ended"))
        self.engine.executor.unwind(self.run_no)
        if self.places:
            for key in list(self.places):
                self.body_left(key, left=False)
        self.engine.left(self)
        if error is not None and not isinstance(error, LeaseLost):
            self._stopped_by = error
        for waiter in self._until_left:
            settle(waiter, None, None)

    def _turn_away(self, error: BaseException) -> None:
        """Nothing comes of what it was told and has not decided, or of a commit in flight when the store itself has
        failed."""
        mailbox, self.mailbox = self.mailbox, []
        replies, self._replies = self._replies, ()
        for done in [*(done for _, done in mailbox), *(done for done, _, _ in replies)]:
            if done is not None:
                done(None, error)

    async def until_left(self) -> None:
        """Wait until the run has ended, or is not driven here any more. Raises what stopped it, if that was a bug."""
        if not self.gone:
            waiter = self.engine.loop.create_future()
            self._until_left.append(waiter)
            try:
                await waiter
            finally:
                self._until_left.remove(waiter)
            if self._stopped_by is not None:
                raise self._stopped_by
