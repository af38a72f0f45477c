"""Turn: what one run does with its mailbox, from the first command to the last effect, in this order on one page.

Owns: the order of a turn. The mailbox is decided into one draft; starts that have a slot, and the result if it is in
memory, are added; the commit is built; once it is durable, callers and bodies are answered, bodies are started and
stopped, other parts are notified, alarms are set, and the run ends or is scheduled for eviction.
Never: decides by itself (rules), says when a turn is taken (pump.py), writes (committer.py), knows columns (store).
Invariants: everything that a turn changes is in one commit; once that is built, it counts as written.
On crash: nothing of a commit has happened, or all of it; what it orders is derived again from committed state. (A
`lazy` run performs the effects that stay inside it before its commit.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine import rule_inputs
from holdfast.engine.messages import Inbox, informed, message_rows, verdict
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.persistence import UNBUFFERED, Persistence
from holdfast.engine.run.actor import LIFE_TRANSITIONS, Life, Mail, Reply, RunActor
from holdfast.engine.run.bodies import Bodies
from holdfast.engine.runtime import Runtime
from holdfast.engine.starting import Starting
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import HoldfastError, LeaseLost
from holdfast.model.references import locate
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus, RunStatus
from holdfast.model.timers import Elapsed
from holdfast.rules import decide, nodes
from holdfast.rules.draft import Draft, Extras, Refusal
from holdfast.store.records import state_rows
from holdfast.store.records.journal import CANNOT_BE_READ
from holdfast.store.row_types import Commit, CommitResult, MessageOutcome, RunChange, RunRow, RunStep

_SCHEDULED, _RUNNING, _RUN_SUSPENDED = NodeStatus.SCHEDULED, NodeStatus.RUNNING, RunStatus.SUSPENDED
_DECIDING, _COMMITTING, _APPLYING = Life.DECIDING, Life.COMMITTING, Life.APPLYING
"""Members that every step is compared with: looking one up in its Enum takes as long as a call."""
_MESSAGE, _SUSPEND, _NODE_COMPLETED = cmd.Message, cmd.SuspendNode, ev.NodeCompleted
_PARKING = frozenset({cmd.OpenWait, cmd.SuspendNode})
"""What a body submits when a part of it waits."""


@dataclass(slots=True)
class TurnParts:
    """The parts of an engine that a turn uses; `flush_in` is the pump's."""

    runtime: Runtime
    custody: Custody
    starting: Starting
    inbox: Inbox
    bodies: Bodies
    flush_in: Callable[[RunActor, float | None], None]


class Turn:
    """One turn of one run."""

    __slots__ = ("_parts", "actor", "children", "draft", "replies")

    def __init__(self, parts: TurnParts, actor: RunActor, now: int, elapsed: Elapsed | None) -> None:
        self._parts = parts
        self.actor = actor
        self.draft = Draft(actor.state, now, elapsed)
        self.replies: list[Reply] = []
        self.children: Sequence[Turn] = ()
        """The first turns of the runs that this turn creates."""

    @classmethod
    def of_new_run(cls, parts: TurnParts, actor: RunActor) -> Turn:
        """The first turn of a new run that is created by its parent, or without an owner."""
        clock = parts.runtime.clock
        turn = cls(parts, actor, clock.now(), clock.elapsed())
        turn._decide_creation()
        return turn

    def take(self) -> None:
        """Decide what is in the run's mailbox, and hand the commit over."""
        actor = self.actor
        self._move(_DECIDING)
        mailbox, actor.mailbox = actor.mailbox, []
        try:
            self.decide(mailbox)
            self.fill()
            self.hand_over()
        except CANNOT_BE_READ as e:
            self._parts.custody.cannot_read(actor, e, [done for _, done in mailbox if done is not None])
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others continue
            self._parts.custody.stop_loudly(actor, e, [done for _, done in mailbox if done is not None])
        if actor.life is _DECIDING:
            self._move(Life.IDLE)

    def _move(self, to: Life) -> None:
        """`RunActor.move`, on this page: every turn makes four of them."""
        if to not in LIFE_TRANSITIONS[self.actor.life]:
            self.actor.move(to)  # which raises
        self.actor.life = to

    # --- 1. decide ---------------------------------------------------------------------------------------------------

    def decide(self, mailbox: Sequence[Mail]) -> None:
        """Decide all commands of the mailbox into one draft."""
        actor, draft = self.actor, self.draft
        if actor.release_after_commit:
            draft.defers_bodies = True
        if actor.creating is not None:
            draft.emit(actor.creating.event)
        waiting: tuple[cmd.OpenWait | cmd.SuspendNode, ...] = ()
        for command, done in mailbox:
            kind = type(command)
            if kind in _PARKING:
                waiting = (*waiting, command)
            if kind is _MESSAGE:
                command = informed(actor.runtime.store, actor.state, command)
            try:
                answer = None if kind is _SUSPEND else decide.apply(draft, command)
            except Refusal as refusal:  # also when it ended earlier in this turn
                if done is not None:
                    self.replies.append((done, None, refusal))
            else:
                if done is not None:
                    self.replies.append((done, answer, None))
        if waiting:
            self._suspend_waiting(waiting)

    def _suspend_waiting(self, waiting: Sequence[cmd.OpenWait | cmd.SuspendNode]) -> None:
        """Suspend the nodes whose bodies only wait after this turn."""
        draft, actor = self.draft, self.actor
        answered = () if draft.extras is None else [answer.instance.key for answer in draft.extras.answers]
        for key, c in {(c.node, c.path): c for c in waiting}.items():
            if key not in answered and actor.runtime.executor.all_parked(actor.run_no, *key):
                with contextlib.suppress(Refusal):  # it ended earlier in this turn
                    decide.apply(draft, cmd.SuspendNode(c.node, c.path, c.attempt, visit=c.visit))

    def _decide_creation(self) -> None:
        """Decide the first events of a new run, and start what there is a slot for if it is driven here."""
        actor, draft, new = self.actor, self.draft, self.actor.creating
        assert new is not None
        draft.emit(new.event)
        if not new.create_unowned and self._parts.custody.admit(actor, cmd.Begin()):
            decide.apply(draft, cmd.Begin())
        self._start_bodies()

    # --- 2. what belongs into the same commit ------------------------------------------------------------------------

    def fill(self) -> None:
        """Add what belongs into the same commit: starts that have a slot, and the result if it is in memory."""
        actor, draft = self.actor, self.draft
        for entry in draft.entries:
            event = entry.event
            if type(event) is not _NODE_COMPLETED or event.virtual or event.pended_at is not None:
                continue
            if entry.path == "." or rule_inputs.has_readers(actor.plan, entry):
                actor.runtime.values.put(actor.run_no, entry.seq, bytes(event.output))
        self._start_bodies()
        if draft.started and (draft.defers_bodies or not (actor.has_code or actor.runs_here())):
            self._leave_bodies()
        if draft.finish and actor.state.status not in RUN_TERMINAL:
            located = locate(actor.state, actor.state.scopes["."], actor.plan.root.result)
            if actor.runtime.values.in_memory(actor.run_no, located):
                self._finish(located)

    def _start_bodies(self) -> None:
        actor, draft, reserve_slot = self.actor, self.draft, self._parts.bodies.reserve_slot
        for ns in draft.scheduled:
            is_due = ns.status is _SCHEDULED and (not ns.not_before or nodes.is_time(draft, ns))
            if is_due and reserve_slot(actor, ns):
                nodes.start(draft, ns)

    def _leave_bodies(self) -> None:
        """Stop bodies that were answered where their code is not: they run elsewhere with the same attempt."""
        draft, started, self.draft.started = self.draft, self.draft.started, []
        for ns, _ in started:
            if ns.status is _RUNNING:
                decide.apply(draft, cmd.StopNode(ns.node, ns.path, ns.attempt, visit=ns.visit))

    def _finish(self, located: Any) -> None:
        finishing: cmd.FinishRun | cmd.FailRun
        try:
            finishing = rule_inputs.result(self.actor.runtime.values.load(self.actor.state, located), located)
        except CANNOT_BE_READ:
            raise
        except HoldfastError as e:
            finishing = rule_inputs.no_result(e)
        decide.apply(self.draft, finishing)
        self.draft.finish = False

    # --- 3. the commit -----------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Hand the commit over. A turn that changes nothing has none, and that of a lazy run may be buffered."""
        actor, draft = self.actor, self.draft
        if not draft.entries and not (draft.extras is not None and draft.extras.outcomes):
            actor.release_after_commit = False  # there is no commit that would release it
            self._answer()
            self._follow_up()
            return
        buffer = actor.write_buffer
        is_lazy = buffer.lazy and not actor.release_after_commit and actor.creating is None
        if is_lazy and buffer.may_hold(draft, actor.state):
            buffer.hold(draft, actor.runtime.values, actor.run_no)
            self._parts.flush_in(actor, buffer.interval_seconds)
            self.apply()
            return
        commit = self.commit()
        if not commit.ends:
            draft.entries.clear()  # they are rows now: the next run's turn finds their memory warm
        actor.runtime.committer.submit(commit, self)

    def commit(self) -> Commit:
        """The commit of this turn and of what was buffered before it: events, changed instances, the run's row, waits
        and timers, outcomes of messages, messages to other runs, and new children. Once built it is in flight."""
        actor, state, draft = self.actor, self.actor.state, self.draft
        entries = actor.write_buffer.take() + draft.entries if actor.write_buffer.entries else draft.entries
        expected_hash = state.head_hash
        events, has_waits_or_timers = state_rows.event_rows(state, entries, actor.token)
        changed = state_rows.changed_nodes(state)
        ends = state.status in RUN_TERMINAL
        create, change = self._run_row(ends)
        commit = Commit(actor.run_no, actor.token, actor.expected_seq, change, create, changed, events, ends=ends)
        commit.expected_hash = expected_hash
        if has_waits_or_timers:
            commit.waits = state_rows.wait_rows(state, entries)
            commit.timers = state_rows.timer_rows(state, entries)
        extras = draft.extras
        if extras is not None:
            commit.outcomes = [MessageOutcome(o.message_id, o.status, verdict(o)) for o in extras.outcomes]
            if extras.children:
                children = self._parts.starting.children(actor, extras.children)
                self.children = [Turn.of_new_run(self._parts, child) for child in children]
                commit.children = [child.commit() for child in self.children]
            born = {child.actor.run_id: child.actor.run_no for child in self.children}  # they are not in the store yet
            commit.messages = message_rows(actor.runtime.store, draft, born)
        actor.replies = self.replies
        self._move(_COMMITTING)  # last: a run whose commit could not be built must not wait for it to land
        return commit

    def _run_row(self, ends: bool) -> tuple[RunRow | None, RunChange | RunStep | None]:
        """The run's own row: created, changed, or only moved to the next event."""
        actor, state, new = self.actor, self.actor.state, self.actor.creating
        is_released = ends or actor.release_after_commit or (new is not None and new.create_unowned)
        owner = None if is_released else actor.runtime.lease.engine
        written = (state.status, owner, state.branch, state.started_at, state.format)
        change: RunChange | RunStep | None = None
        if new is not None:
            actor.row = state_rows.run_row(state, actor.token, owner, new.event.input_hash, new.parent_no, new.root_no)
        elif state.fold_changed or actor.written != written:
            change = state_rows.run_change(state, owner)
        else:
            change = RunStep(state.seq, state.head_hash, state.recoveries)
        actor.written = written
        if state.fold_changed:
            state.fold_changed = False
        return None if new is None else actor.row, change

    # --- 4. once the commit is durable -------------------------------------------------------------------------------

    def landed(self, outcome: CommitResult) -> None:
        """The commit is durable, or was refused."""
        actor, custody = self.actor, self._parts.custody
        actor.replies = ()
        if actor.life is Life.DETACHING:  # something of the run could not be read meanwhile; its children continue
            self._move(Life.DETACHED)
            self._land_children(outcome)
            return
        self._move(_APPLYING)
        if outcome.refusal is not None:
            self._refused(outcome)
            return
        actor.expected_seq = actor.state.seq
        if actor.creating is not None:  # only now the run's own settings are known
            actor.creating = None
            mode = actor.state.fold.settings.persistence
            actor.write_buffer = UNBUFFERED if mode == "aggressive" else Persistence(mode)
        if actor.write_buffer.lazy:
            actor.runtime.values.unpin(actor.run_no)
        self._land_children(outcome)
        try:
            self.apply()
        except CANNOT_BE_READ as e:
            custody.cannot_read(actor, e)
        except Exception as e:  # noqa: BLE001 - a bug of ours: this run stops loudly, the others of the group continue
            custody.stop_loudly(actor, e, [])
        if actor.life is _APPLYING:
            if actor.pausers:
                self._move(Life.PAUSED)
            elif actor.mailbox:  # decide it at once, while everything of this run is in the processor's cache
                clock = actor.runtime.clock
                Turn(self._parts, actor, clock.now(), clock.elapsed()).take()
            else:
                self._move(Life.IDLE)

    def _refused(self, outcome: CommitResult) -> None:
        self._parts.starting.note_refusal(outcome, [self.actor, *(child.actor for child in self.children)])
        for child in self.children:
            child.actor.detach(LeaseLost(f"its parent's commit was refused: {outcome.refusal}"))
        if outcome.refusal == "replaced":  # what was asked for is done; what follows from it is the next owner's
            self._answer()
            self.replies = []
        self._parts.custody.refused(self.actor, outcome, [done for done, _, _ in self.replies])

    def _land_children(self, outcome: CommitResult) -> None:
        for child in self.children:
            creating = child.actor.creating
            if outcome.refusal is None and creating is not None and not creating.create_unowned:
                self._parts.custody.adopt(child.actor)
                child.landed(outcome)

    def apply(self) -> None:
        """Do what the events of this turn order."""
        actor, draft, bodies = self.actor, self.draft, self._parts.bodies
        self._answer()
        extras = draft.extras
        if extras is not None:
            self._answer_and_supersede(extras)
        for ns, args in draft.started:
            if ns.status is not _RUNNING or actor.runtime.executor.is_live(actor.run_no, ns.node, ns.path):
                continue
            if ns.memory_seq >= draft.since or bodies.reserve_slot_again(actor, ns):
                bodies.start(actor, ns, args, draft.since)
        if extras is not None:
            self._cancel_and_notify(extras)
        has_changed = actor.state.seq >= draft.since or (extras is not None and extras.outcomes)  # or kept a signal
        if has_changed and actor.run_no in actor.runtime.hub.listeners:
            actor.runtime.hub.notify(actor.run_no)
        self._follow_up()

    def _answer(self) -> None:
        for done, answer, refusal in self.replies:
            done(answer, refusal)

    def _answer_and_supersede(self, extras: Extras) -> None:
        """Before anything starts: what is superseded may be an earlier visit of the same node."""
        executor, run_no = self.actor.runtime.executor, self.actor.run_no
        for answer in extras.answers:
            ns, wait = answer.instance, answer.wait
            executor.answer(run_no, ns.node, ns.path, wait.wait_id, answer.outcome, answer.value)
        for ns in extras.cancels:
            if ns.settled:
                self._parts.bodies.supersede(self.actor, ns)

    def _cancel_and_notify(self, extras: Extras) -> None:
        actor, inbox = self.actor, self._parts.inbox
        for ns in extras.cancels:
            if not ns.settled:
                self._parts.bodies.cancel(actor, ns)
        if extras.messages:
            inbox.deliver_soon()
        if extras.outcomes:
            inbox.settled(extras.outcomes)
            actor.delivered.difference_update(outcome.message_id for outcome in extras.outcomes)
        if extras.pauses:
            actor.runtime.executor.pause(actor.run_no)
        if extras.hold:
            self._parts.custody.hold_at_once(actor, extras.hold)

    def _follow_up(self) -> None:
        """Do what also follows from a turn without an event: end, release, provide values, set alarms, evict."""
        actor, draft, custody = self.actor, self.draft, self._parts.custody
        state = actor.state
        if state.status in RUN_TERMINAL:
            actor.outcome = _end(draft)
            actor.detach(None)
            actor.runtime.values.forget(actor.run_no)
            return
        if actor.release_after_commit:
            actor.detach(None)
            custody.has_unclaimed_runs = True  # an engine that has room claims it, perhaps this one
            self._parts.inbox.deliver_soon()  # messages that arrived since need an owner
            return
        if draft.extras is not None:
            rule_inputs.provide_wanted(actor, draft.extras)
        if draft.undo_wanted:
            rule_inputs.provide_undo(actor)
        if draft.finish:
            rule_inputs.provide_result(actor)
        if state.timers or actor.alarms is not None or _has_late_starts(draft):
            self._parts.bodies.set_alarms(actor, draft)
        if actor.eviction is not None or not actor.has_code or state.status is _RUN_SUSPENDED:
            custody.schedule_eviction(actor)


def _end(draft: Draft) -> ev.RunCompleted | ev.RunFailed | ev.RunCancelled | None:
    """How the run has ended, if it did in this turn."""
    for entry in reversed(draft.entries):
        if isinstance(entry.event, ev.RunCompleted | ev.RunFailed | ev.RunCancelled):
            return entry.event
    return None


def _has_late_starts(draft: Draft) -> bool:
    for ns in draft.scheduled:  # noqa: SIM110 - of every step: the loop takes a third of what `any` does
        if ns.not_before:
            return True
    return False
