"""Actor: one live run. Commands in, commits out, then effects.

Owns: the run's state while this engine holds its lease; the mailbox; what is done after a commit has landed.
Never: decides (rules), writes (committer), runs bodies (executor).
Invariants: at most one commit in flight; everything that arrives meanwhile is decided together into the next one.
Effects happen only after the commit that orders them, and follow from committed state: after a crash they are derived
again. (A `lazy` run may run bodies before its commit; nothing leaves it before.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine import rows, supplies
from holdfast.engine.alarms import Alarms
from holdfast.engine.inbox import informed, message_rows, verdict
from holdfast.engine.persistence import Persistence
from holdfast.engine.port import BodyPort
from holdfast.engine.protocols import Attempt, Done
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError, LeaseLost, RunExists
from holdfast.model.graph import Plan
from holdfast.model.state import NodeState, OpenScope, RunState
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.rules import decide, nodes
from holdfast.rules.draft import ChildToCreate, Draft, Extras, Refusal
from holdfast.store.api import Commit, Landed, MessageOutcome, RunRow, RunStep

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

TERMINAL_EVENTS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
Reply = tuple[Done, Any, BaseException | None]
_SCHEDULED, _RUNNING, _RUN_SUSPENDED = NodeStatus.SCHEDULED, NodeStatus.RUNNING, RunStatus.SUSPENDED
"""Members that every step is compared with: to look one up in its Enum takes as long as a call."""
_MESSAGE, _SUSPEND = cmd.Message, cmd.SuspendNode
_PARKING = frozenset({cmd.OpenWait, cmd.SuspendNode})
"""What a body says when a part of it waits."""
BUSY_SECONDS = 0.1
"""How soon a suspended run is looked at again in which a body has gone on by itself, and must not be left now."""


class RunActor(BodyPort):
    """A run that this engine owns."""

    __slots__ = (
        "_alarms",
        "_children",
        "_draft",
        "_has_code",
        "_held",
        "_idle",
        "_left",
        "_queueing",
        "_replies",
        "_restarted_at",
        "_stopped_by",
        "_written",
        "awaits_place",
        "counted",
        "creating",
        "delivered",
        "engine",
        "expected_seq",
        "gone",
        "in_flight",
        "is_for_others",
        "mailbox",
        "outcome",
        "paused",
        "places",
        "plan",
        "queued",
        "row",
        "run_id",
        "run_no",
        "state",
        "token",
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
        self.expected_seq = state.seq
        self.mailbox: list[tuple[Any, Done | None]] = []
        self.queued = False
        self.in_flight = False
        self.gone = False
        self.paused = 0
        """How many think about where the run goes on: meanwhile it decides nothing."""
        self.places: dict[tuple[str, str], tuple[str, ...]] = {}
        self.delivered: set[str] = set()
        """Messages that were put into the mailbox."""
        self.counted = False
        """It counts against its workflow's concurrency."""
        self.awaits_place = False
        """It cannot go to work before another run of its workflow has left."""
        self.is_for_others = False
        """A new run that is only written here: whoever serves its queue, and has room, takes it."""
        self._left: asyncio.Event | None = None
        """Set when this engine does not drive the run any more; made when somebody waits for it."""
        self._stopped_by: BaseException | None = None
        """The bug that stopped it, if it was one."""
        self.outcome: ev.RunCompleted | ev.RunFailed | ev.RunCancelled | None = None
        self._written: tuple[Any, ...] = ()
        """What the run's row was last given, of what seldom changes."""
        self._held = Persistence.of(state.fold.settings.persistence)
        self._alarms: Alarms | None = None
        self._idle: asyncio.Handle | None = None
        self._has_code = False
        """All of its code was found here; it stays."""
        self._queueing: set[tuple[str, str]] = set()
        """Bodies that have their answer and wait for a place to run again."""
        self._restarted_at = 0
        """The event after which a body in a thread was last run again because its answer was there."""
        self._draft: Draft | None = None
        self._replies: Sequence[Reply] = ()
        self._children: list[RunActor] = []
        self.creating: dict[str, Any] | None = None
        """For a new run: input hash, parent number, root number."""

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

    def pump(self, now: int) -> None:
        """Decide what is in the mailbox, and hand the commit over."""
        self.queued = False
        if self.in_flight or self.gone or self.paused:
            return
        mailbox, self.mailbox = self.mailbox, []
        draft = Draft(self.state, now)
        replies: list[Reply] = []
        try:
            if self.creating is not None:
                draft.emit(self.creating["event"])
            waiting: tuple[cmd.OpenWait | cmd.SuspendNode, ...] = ()
            for command, done in mailbox:
                self._decide(draft, command, done, replies)
                if type(command) in _PARKING:
                    waiting = (*waiting, command)
            if waiting:
                self._suspend_parked(draft, waiting)
            self._complete_turn(draft)
            self._hand_over(draft, replies)
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others go on
            self.engine.stop_loudly(self, e, [done for _, done in mailbox if done is not None])

    def _decide(self, draft: Draft, command: Any, done: Done | None, replies: list[Reply]) -> None:
        kind = type(command)
        if kind is _MESSAGE:
            command = informed(self.engine.store, self.state, command)
        try:
            answer = None if kind is _SUSPEND else decide.apply(draft, command)
        except Refusal as refusal:  # also when it ended earlier in this turn
            if done is not None:
                replies.append((done, None, refusal))
            return
        if done is not None:
            replies.append((done, answer, None))

    def _suspend_parked(self, draft: Draft, waiting: Sequence[cmd.OpenWait | cmd.SuspendNode]) -> None:
        """Bodies that said that they wait, and of which nothing goes on after this turn, are suspended in it."""
        answered = () if draft.extras is None else [answer.instance.key for answer in draft.extras.answers]
        for key, c in {(c.node, c.path): c for c in waiting}.items():
            if key not in answered and self.engine.executor.all_parked(self.run_no, *key):
                with contextlib.suppress(Refusal):  # it ended earlier in this turn
                    decide.apply(draft, cmd.SuspendNode(c.node, c.path, c.attempt, visit=c.visit))

    def _complete_turn(self, draft: Draft) -> None:
        """What belongs into the same commit: starts for which there is a place, and the result if it is at hand."""
        for entry in draft.entries:
            event = entry.event
            if type(event) is not ev.NodeCompleted or event.virtual or event.pended_at is not None:
                continue
            if entry.path == "." or self._has_readers(entry):
                self.engine.values.put(self.run_no, entry.seq, bytes(event.output))
        for ns in draft.scheduled:
            if ns.status is _SCHEDULED and ns.not_before <= draft.now and self._take_place(ns):
                nodes.start(draft, ns)
        if draft.started and not (self._has_code or self.runs_here()):
            self._leave_bodies(draft)
        if draft.finish and self.state.status not in RUN_TERMINAL:
            located = supplies.located_result(self.state)
            if self.engine.values.in_memory(self.run_no, located):
                self._finish(draft, located)

    @staticmethod
    def _leave_bodies(draft: Draft) -> None:
        """What was answered where its code is not goes on elsewhere, with the same attempt: nobody was cut off."""
        started, draft.started = draft.started, []
        for ns, _ in started:
            if ns.status is _RUNNING:
                decide.apply(draft, cmd.StopNode(ns.node, ns.path, ns.attempt, visit=ns.visit))

    def _has_readers(self, entry: ev.Entry) -> bool:
        """Whether somebody will soon read an output by itself. The last node of an item has none: a map's output is
        read as a whole, from its rows, and 100,000 items must not fill the cache."""
        if entry.node is None or entry.path is None:
            return True
        scope = self.plan.scope_of(entry.path)
        if scope.parent is None or scope.parent.nodes[scope.owner].definition.kind != "map":
            return True
        return bool(scope.nodes[entry.node.removesuffix("~undo")].dependents)

    def _finish(self, draft: Draft, located: Any) -> None:
        try:
            finishing = supplies.result(self.engine.values.load(self.state, located))
        except HoldfastError as e:
            finishing = supplies.no_result(e)
        decide.apply(draft, finishing)
        draft.finish = False

    def _take_place(self, ns: NodeState) -> bool:
        node, path = key = (ns.node, ns.path)
        if self.state.fold.paused:
            return False  # it is scheduled again when the pause ends
        if key in self.places:
            return True  # it was kept for this body
        place = self.engine.place_for(ns) if self._has_code or self.runs_here() else None
        if place is None:
            return False  # its code is not here
        isolation = self.engine.isolation
        if isolation.closed and not isolation.admits(self.run_no, lambda: self._place_free(node, path)):
            return False
        if place and not self.engine.slots.take(place):
            self.engine.slots.wait(place, self._priority(ns), lambda: self._place_free(node, path))
            return False
        if place:
            self.places[key] = place
        return True

    def _take_place_again(self, ns: NodeState) -> bool:
        """A body that was left has its answer and runs again: where bodies of its kind are limited it needs a place
        like any other, and runs when there is one."""
        node, path = key = ns.key
        place = self.engine.place_for(ns)
        if key in self.places or not place:
            return True
        if self.engine.slots.take(place):
            self.places[key] = place
            return True
        self._queueing.add(key)
        self.engine.slots.wait(place, self._priority(ns), lambda: self._run_again(node, path))
        return False

    def _run_again(self, node: str, path: str) -> bool:
        """A place has become free for a body that has its answer, if it still wants it."""
        ns = self.state.nodes.get((node, path))
        if self.gone or ns is None or ns.key not in self._queueing:
            return False
        self._queueing.discard(ns.key)
        if ns.status is not _RUNNING or not self._take_place_again(ns):
            return False
        self._start_body(ns, nodes.located_args(self.state, ns), self.state.seq + 1)
        return True

    def leave_queue(self) -> None:
        """The engine stops: bodies that have their answer and no place yet go on later, with the same attempt."""
        for node, path in self._queueing:
            ns = self.state.nodes.get((node, path))
            if ns is not None and ns.status is _RUNNING:
                self.tell(cmd.StopNode(node, path, ns.attempt, visit=ns.visit))
        self._queueing.clear()

    def _priority(self, ns: NodeState) -> int:
        return self.state.fold.settings.priority * 1000 + ns.plan.definition.priority

    def _place_free(self, node: str, path: str) -> bool:
        """Take a place that has become free, if the body still wants one."""
        ns = self.state.nodes.get((node, path))
        if self.gone or ns is None or ns.status is not NodeStatus.SCHEDULED or not self._take_place(ns):
            return False
        self.tell(cmd.StartNode(node, path))
        return True

    # --- out -----------------------------------------------------------------------------------------------

    def _hand_over(self, draft: Draft, replies: list[Reply]) -> None:
        if not draft.entries and not (draft.extras is not None and draft.extras.outcomes):
            for done, answer, refusal in replies:
                done(answer, refusal)
            self._follow_up(draft)
            return
        if self._held.lazy and self.creating is None and self._held.may_hold(draft, self.state):
            self._held.hold(draft, self.engine.values, self.run_no)
            self.engine.flush_later(self, self._held.interval_seconds)
            self._act(draft, replies)
            return
        self._draft, self._replies = draft, replies
        self.in_flight = True
        commit = self._commit(draft)
        if not commit.ends:
            draft.entries.clear()  # they are rows now: the next run's turn finds their memory warm
        self.engine.committer.submit(commit, self)

    def flush(self) -> None:
        """Commit what a lazy run holds back."""
        if self._held.entries and not self.in_flight and not self.gone:
            self._draft, self._replies = Draft(self.state, self.engine.clock.now()), []
            self.in_flight = True
            self.engine.committer.submit(self._commit(self._draft), self)
            self.engine.committer.flush()

    def _commit(self, draft: Draft) -> Commit:
        state = self.state
        entries = self._held.take() + draft.entries if self._held.entries else draft.entries
        events, aside = rows.event_rows(state, entries, self.token)
        changed = rows.changed_nodes(state)
        ends = state.status in RUN_TERMINAL
        owner = None if ends or self.is_for_others else self.engine.lease.engine
        written = (state.status, owner, state.branch, state.started_at)
        commit = Commit(self.run_no, self.token, self.expected_seq, nodes=changed, events=events)
        if self.creating is not None:
            made = self.creating
            self.row = rows.run_row(state, self.token, owner, made["input_hash"], made["parent_no"], made["root_no"])
            commit.create = self.row
        elif state.fold_changed or self._written != written:
            commit.change = rows.run_change(state, owner)
        else:
            commit.change = RunStep(state.seq, state.head_hash, state.recoveries)
        self._written = written
        state.fold_changed = False
        if aside:
            commit.waits = rows.wait_rows(state, entries)
            commit.timers = rows.timer_rows(state, entries)
        extras = draft.extras
        if extras is not None:
            commit.outcomes = [MessageOutcome(o.message_id, o.status, verdict(o)) for o in extras.outcomes]
            commit.children = [self._child(spec) for spec in extras.children if not self._is_there(spec)]
            born = {child.run_id: child.run_no for child in self._children}  # they are not in the store yet
            commit.messages = message_rows(self.engine.store, draft, born)
        commit.ends = ends
        return commit

    def _is_there(self, spec: ChildToCreate) -> bool:
        """A branch that inherits its idempotency keys asks for the same children again, and so does a run whose journal
        has lost its end: they are waited for. A run of its first owner cannot meet them."""
        is_first_life = self.token == 1 and not self.state.fold.ancestors
        existing = None if is_first_life else self.engine.store.run(spec.run_id)
        if existing is None:
            return False
        if (existing.workflow, existing.input_hash) != (spec.spec.workflow, spec.spec.input_hash):
            raise RunExists(f"child {spec.run_id} of run {self.run_id} exists with another input")
        if not spec.spec.detached:
            self.engine.spawn(self._follow_when_committed(spec.run_id))
        return True

    async def _follow_when_committed(self, run_id: str) -> None:
        await self.flushed()
        if not self.gone:
            self.follow_child(run_id)

    def _child(self, spec: ChildToCreate) -> Commit:
        child = self.engine.starting.child(self, spec)
        self._children.append(child)
        return child.first_commit()

    def first_commit(self) -> Commit:
        """The commit of a new run that lands inside its parent's, or that is for others to drive."""
        draft = Draft(self.state, self.engine.clock.now())
        assert self.creating is not None
        draft.emit(self.creating["event"])
        if not self.is_for_others and self.engine.starting.admit(self, cmd.Begin()):
            decide.apply(draft, cmd.Begin())
        for ns in draft.scheduled:
            if ns.not_before <= draft.now and self._take_place(ns):
                nodes.start(draft, ns)
        self._draft, self._replies = draft, []
        self.in_flight = True
        return self._commit(draft)

    def landed(self, outcome: Landed) -> None:
        """The commit is durable, or was refused."""
        self.in_flight = False
        draft, replies, self._draft, self._replies = self._draft, self._replies, None, ()
        children = self._children
        if children:
            self._children = []
        assert draft is not None
        if outcome.refusal is not None:
            for child in children:
                child.leave(LeaseLost(f"its parent's commit was refused: {outcome.refusal}"))
            self.engine.refused(self, outcome, [done for done, _, _ in replies])
            return
        self.expected_seq = self.state.seq
        if self.creating is not None:  # only now the run's own settings are known
            self.creating = None
            self._held = Persistence.of(self.state.fold.settings.persistence)
        if self._held.lazy:
            self.engine.values.unpin(self.run_no)
        for child in children:
            if not child.is_for_others:
                self.engine.adopt(child)
                child.landed(outcome)
        try:
            self._act(draft, replies)
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others of the group go on
            self.engine.stop_loudly(self, e, [])
            return
        if self.mailbox:
            self.look_at_mail()

    def _act(self, draft: Draft, replies: Sequence[Reply]) -> None:
        """Effects: what the committed events order."""
        for done, answer, refusal in replies:
            done(answer, refusal)
        extras = draft.extras
        if extras is not None:
            self._answer_and_supersede(extras)
        for ns, args in draft.started:
            if ns.status is not _RUNNING or self.engine.executor.is_live(self.run_no, ns.node, ns.path):
                continue
            if ns.memory_seq >= draft.since or self._take_place_again(ns):
                self._start_body(ns, args, draft.since)
        if extras is not None:
            for ns in extras.cancels:
                if not ns.settled:
                    self._cancel_body(ns)
            if extras.messages:
                self.engine.inbox.look_soon()
            if extras.outcomes:
                self.engine.inbox.settled(extras.outcomes)
                self.delivered.difference_update(outcome.message_id for outcome in extras.outcomes)
            if extras.pauses:
                self.engine.executor.pause(self.run_no)
        if self.state.seq >= draft.since or (extras is not None and extras.outcomes):  # a kept signal has no event
            self.engine.hub.moved(self.run_no)
        self._follow_up(draft)

    def _answer_and_supersede(self, extras: Extras) -> None:
        """Before anything starts: what is superseded may be an earlier visit of the same node."""
        for answer in extras.answers:
            ns, wait = answer.instance, answer.wait
            self.engine.executor.answer(self.run_no, ns.node, ns.path, wait.wait_id, answer.outcome, answer.value)
        for ns in extras.cancels:
            if ns.settled:
                self._supersede_body(ns)

    def _follow_up(self, draft: Draft) -> None:
        """Effects that wait for something: values, timers, idleness, the end."""
        state = self.state
        if state.status in RUN_TERMINAL:
            ends = [e.event for e in draft.entries if isinstance(e.event, TERMINAL_EVENTS)]
            self._ended(ends[-1] if ends else None)
            return
        if draft.extras is not None:
            for scope in draft.extras.params_wanted:
                self._provide_params(scope)
        if draft.undo_wanted:
            self.engine.spawn(self._provide_undo())
        if draft.finish:
            self.engine.spawn(self._provide_result())
        if state.timers or self._alarms is not None or _has_late_starts(draft):
            self._set_alarms(draft)
        if self._idle is not None or not self._has_code or state.status is _RUN_SUSPENDED:
            self._rest()

    @property
    def is_at_work(self) -> bool:
        """Whether it takes room: it does not only wait, or what it has just been told may wake it."""
        return not self.awaits_place and (self.state.status is not _RUN_SUSPENDED or bool(self.mailbox))

    def _rest(self) -> None:
        """A run that waits, or whose code is not here, does not stay for long."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self.state.status is RunStatus.SUSPENDED:
            self._idle = self.engine.loop.call_later(self.engine.settings.idle_seconds, self._evict)
            if self.counted:  # it rests: another run of its workflow may go to work
                self.engine.starting.run_left(self)
            self.engine.recovery.room_left()
        elif not (self.mailbox or self._held.entries or self.runs_here()):
            self._idle = self.engine.loop.call_soon(self._evict)

    def runs_here(self) -> bool:
        """Whether the run's code is here, all of it, and its queue is served: else requests are applied, and nothing of
        it runs."""
        if not self._has_code:
            is_here = self.engine.versions.is_loaded(self.plan)
            self._has_code = is_here and self.engine.serves(self.state.fold.settings.queue)
        return self._has_code

    def _start_body(self, ns: NodeState, args: dict[str, Any], since: int) -> None:
        handler = self.engine.handler(ns.plan.definition.uses)
        if handler is None:
            return
        attempt = Attempt(
            port=self,
            plan=self.plan,
            definition=ns.plan.definition,
            handler=handler,
            node=ns.node,
            path=ns.path,
            visit=ns.visit,
            attempt=ns.attempt,
            failures=ns.failures,
            memory_seq=ns.memory_seq,
            has_memory=ns.memory_seq < since,
            args=args,
            captures=ns.plan.captures,
        )
        self.engine.executor.start(attempt)

    def body_left(self, key: tuple[str, str], left: bool) -> None:
        place = self.places.pop(key, None)
        if place:
            self.engine.slots.free(place)
        ns = self.state.nodes.get(key) if left and not self.gone and not self.engine.stopping else None
        if ns is not None and ns.status is NodeStatus.RUNNING and not ns.cancelling:
            # a thread was given back because its body waits, and the answer came before it had gone
            if self._restarted_at == self.state.seq:  # it did not: what it waits for is known to another owner only
                self.engine.spawn(self.engine.patrol.leave_lost())
                return
            self._restarted_at = self.state.seq
            if self._take_place_again(ns):
                self._start_body(ns, nodes.located_args(self.state, ns), self.state.seq + 1)

    def _supersede_body(self, ns: NodeState) -> None:
        """A body that waited is not wanted any more: its end is recorded already."""
        place = self.places.pop(ns.key, None)
        self.engine.executor.supersede(self.run_no, ns.node, ns.path)
        current = self.state.nodes.get(ns.key)
        if place and current is not None and current.status is NodeStatus.RUNNING:
            self.places[ns.key] = place  # the next visit has taken it in this turn
        elif place:
            self.engine.slots.free(place)

    def _cancel_body(self, ns: NodeState) -> None:
        if self.engine.executor.is_live(self.run_no, ns.node, ns.path):
            self.engine.executor.cancel(self.run_no, ns.node, ns.path, self.engine.settings.grace_seconds)
        elif ns.status is NodeStatus.RUNNING:  # nobody runs it (its code is not here): there is nothing to wait for
            self.tell(cmd.DropNode(ns.node, ns.path, ns.attempt, visit=ns.visit))

    def _provide_params(self, scope: OpenScope) -> None:
        if self._held.entries:  # a map's output is read from its rows
            self.engine.spawn(self._provide_params_later(scope))
        else:
            self.tell(supplies.params(self.engine.values, self.state, scope))

    async def _provide_params_later(self, scope: OpenScope) -> None:
        await self.flushed()
        if not self.gone:
            self._provide_params(scope)

    async def _provide_undo(self) -> None:
        await self.flushed()
        self.tell(supplies.undo(self.plan, await asyncio.to_thread(self.engine.store.nodes, self.run_no)))

    async def _provide_result(self) -> None:
        try:
            result = await self.load_slowly(supplies.located_result(self.state))
        except HoldfastError as e:
            self.tell(supplies.no_result(e))
            return
        self.tell(supplies.result(result))

    def _set_alarms(self, draft: Draft) -> None:
        if self._alarms is None:
            self._alarms = Alarms(self.engine, lambda timer: self.tell(cmd.FireTimer(timer)), self._place_free)
        self._alarms.set(self.state, draft)

    def awaken(self) -> None:
        """A suspended run was claimed: its timers run here now, and those that are due fire at once."""
        now = self.engine.clock.now()
        for timer, due_at in self.state.timers.items():
            if due_at <= now:
                self.tell(cmd.FireTimer(timer))
        if not self.mailbox:  # else after the turn that decides it
            self._set_alarms(Draft(self.state, now))
            self._rest()

    # --- leaving -------------------------------------------------------------------------------------------

    def _ended(self, terminal: Any) -> None:
        self.outcome = terminal
        self.leave(None)
        self.engine.ended(self)

    def leave(self, error: BaseException | None) -> None:
        """This engine does not own the run any more (it ended, was evicted, or somebody else has it)."""
        self.gone = True
        if self._alarms is not None:
            self._alarms.clear()
        if self._idle is not None:
            self._idle.cancel()
        self.engine.values.unpin(self.run_no)
        mailbox, self.mailbox = self.mailbox, []
        replies, self._replies = self._replies, ()  # of a commit in flight, when the store itself has failed
        for done in [*(done for _, done in mailbox), *(done for done, _, _ in replies)]:
            if done is not None:
                done(None, error or LeaseLost(f"run {self.run_id} has ended"))
        self.engine.executor.unwind(self.run_no)
        for key in list(self.places):
            self.body_left(key, left=False)
        self.engine.left(self)
        if error is not None and not isinstance(error, LeaseLost):
            self._stopped_by = error
        if self._left is not None:
            self._left.set()

    async def until_left(self) -> None:
        """Wait until the run has ended, or is not driven here any more. Raises what stopped it, if that was a bug."""
        if not self.gone:
            if self._left is None:
                self._left = asyncio.Event()
            await self._left.wait()
            if self._stopped_by is not None:
                raise self._stopped_by

    def _evict(self) -> None:
        """A suspended run costs a row, not memory."""
        self._idle = None
        if self.gone or self.in_flight or self.mailbox:
            return
        if self.state.status is RunStatus.SUSPENDED and not self.engine.executor.is_idle(self.run_no):
            later = max(self.engine.settings.idle_seconds, BUSY_SECONDS)
            self._idle = self.engine.loop.call_later(later, self._evict)
        else:
            self.leave(None)
            self.engine.spawn(self.engine.release(self))

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

    async def flushed(self) -> None:
        """Wait until nothing of the run is held back."""
        while not self.gone and (self._held.entries or self.in_flight):
            self.flush()
            await asyncio.sleep(0 if self.engine.committer.idle else 0.001)


def _has_late_starts(draft: Draft) -> bool:
    for ns in draft.scheduled:  # noqa: SIM110 - of every step: the loop takes a third of what `any` does
        if ns.not_before:
            return True
    return False
