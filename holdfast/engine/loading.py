"""Loading: reading runs that were claimed, and going on with them.

Owns: in which order they are read, which of them are put on hold or left to others instead, and that no run stays with
an engine that does not drive it.
Never: decides what a taken-over run does (rules/recovery.py), claims anything (recovery.py).
Invariants: nobody reads a run in order to change it without having claimed it first.
On crash: a claim without a commit leaves a run that another engine finds in the same way.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engine import offers, supplies
from holdfast.engine.actor import RunActor
from holdfast.engine.inbox import deliver
from holdfast.engine.isolation import is_suspect
from holdfast.engine.leases import is_dead
from holdfast.engine.reads import creation_of
from holdfast.engine.rows import UNREADABLE, child_of, held_signals, state_from_rows
from holdfast.model import commands as cmd
from holdfast.model import handlers
from holdfast.model.errors import CannotBeRepaired, CorruptJournal
from holdfast.model.graph import Plan
from holdfast.model.state import HeldSignal, RunState, code_hash
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.store.api import OPENS_BRANCH, MessageRow, NodeRow, RunRow, Store, TimerRow, WaitRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
LEFT_SECONDS = 5.0
"""How long a run is left to an engine that has the code it began with."""


class Loading:
    """Goes on with runs that this engine has claimed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.accepted: set[int] = set()
        """Runs that a person resumed: changed code does not stop them again."""
        self._left_to_others: dict[int, float] = {}
        """Runs that an engine with other code is to take, and until when we leave them alone."""

    async def see_to(
        self, lease: tuple[int, int], work: Callable[..., Awaitable[None]], *args: Any, unused: bool = True
    ) -> None:
        """Do something with a run that is ours and that nobody drives yet. Where that fails the run is given back, or
        nobody else could ever have it."""
        try:
            await work(*args)
        except Exception:
            if lease[0] not in self._engine.actors and not self._engine.stopping:
                await self.give_back([lease], unused=unused)
            raise

    async def give_back(self, leases: list[tuple[int, int]], *, unused: bool = True) -> None:
        """Runs that were claimed and are not for us. `unused`: whoever drove them before is still the last who did."""
        await self._engine.committer.insist(self._engine.store.release, leases, unused)

    def is_left_to_others(self, run_no: int) -> bool:
        return self._left_to_others.get(run_no, 0.0) > self._engine.loop.time()

    def count_left_to_others(self) -> int:
        """How many runs are left to engines with other code. Those that nobody has taken may be ours by now; those that
        somebody has taken are nobody's concern any more."""
        now = self._engine.loop.time()
        self._left_to_others = {run_no: until for run_no, until in self._left_to_others.items() if until > now}
        return len(self._left_to_others)

    async def load(self, rows: Sequence[RunRow], *, alone: bool = False, in_passing: bool = False) -> None:
        """Go on with these runs. `alone`: a suspect that has its turn. `in_passing`: those that wait and whose timers
        are due only have them fired, behind their mail."""
        engine = self._engine
        looks = engine.inbox.looks
        nodes, waits, timers, messages, signals, torn, strangers = await engine.read(
            _read_runs, engine.store, [row.run_no for row in rows]
        )
        if engine.stopping or rows[0].engine != engine.lease.engine:
            return  # they are given back with everything else; or we were declared dead, and they are free
        codes: dict[int, _Code] = {}
        for row in rows:
            run_no = row.run_no
            asked = messages.get(run_no, [])
            if asked and asked[0].kind in OPENS_BRANCH:  # else it has its turn when the others had theirs
                engine.spawn(self.see_to((run_no, row.token), self._open_branch, row, asked[0]))
                continue
            if run_no in torn:
                engine.spawn(self.see_to((run_no, row.token), self._repair, row))
                continue
            try:
                plan = engine.versions.numbered(row.workflow, row.version)
                state = state_from_rows(plan, row, nodes[run_no], waits.get(run_no, ()), timers.get(run_no, ()))
                for signal in signals.get(run_no, ()):
                    state.hold_signal(signal)
            except UNREADABLE as e:
                await self._hold_damaged(row, e)
                continue
            cancelled = asked and any(message.kind == "cancel" for message in asked)
            is_at_work = state.status is not RunStatus.SUSPENDED  # else nothing of it was cut off
            if is_at_work and not cancelled and await self._set_aside(row, state, nodes[run_no], alone):
                continue
            actor = RunActor(engine, plan, state, row.token, row)
            if in_passing and not is_at_work and not any(message.kind in OPENS_BRANCH for message in asked):
                actor.is_for_others = bool(actor.due_timers(engine.clock.now()))
            try:
                changed = self._changed_code(row, actor, codes) if actor.runs_here() else ()
            except UNREADABLE as e:
                await self._hold_damaged(row, e)
                continue
            if changed and state.fold.settings.on_code_change == "fail" and run_no not in self.accepted:
                if not await self._leave_to_others(row, plan):
                    names = ", ".join(name for name, _, _ in changed)
                    why = f"code_changed: {names} changed since the run began; on_code_change is 'fail'"
                    await self._hold(row, why)
                continue
            engine.adopt(actor)
            for child in strangers.get(run_no, ()):
                actor.follow_child(child)
            self._go_on(actor, row, nodes[run_no], asked, changed, alone)
        if engine.inbox.looks != looks:  # somebody looked for mail since it was read, and did not know of these runs
            engine.inbox.look_soon()

    async def _open_branch(self, row: RunRow, message: MessageRow) -> None:
        """A run that nobody drives is to go on from elsewhere: nothing of it starts before that."""
        await self._engine.branching.apply(row, message)
        await self._engine.recovery.claim([row.run_no])
        await self._engine.inbox.look()

    async def _repair(self, row: RunRow) -> None:
        """A run whose rows and journal do not end at the same event is of the catalogue, or beyond help."""
        try:
            commit = await self._engine.read(self._engine.catalogue.commit, row, None)
        except CannotBeRepaired as e:
            await self._hold(row, f"corrupt: {e.message}")
            return
        if commit is None:
            await self._hold(
                row, "corrupt: its rows are not what its journal tells; `holdfast doctor` can rebuild them"
            )
            return
        await self._engine.branching.land(commit)
        await self._engine.recovery.claim([row.run_no])

    def _go_on(
        self,
        actor: RunActor,
        row: RunRow,
        nodes: list[NodeRow],
        messages: list[MessageRow],
        changed: tuple[tuple[str, str, str], ...],
        alone: bool,
    ) -> None:
        is_undoing = actor.state.fold.closing == "compensating"
        is_suspended = row.status == RunStatus.SUSPENDED
        if is_undoing and is_suspended:  # an answer lets a compensation go on, which must know what it undoes
            self._bring_undo(actor)
        # requests first: a cancel must see what was cut off as it was, not as it would be tried again
        for message in messages:
            deliver(actor, message)
        if is_suspended:
            actor.awaken()
            return
        if is_undoing:  # what a cut-off compensation undoes must be known first
            self._bring_undo(actor)
        command: cmd.Begin | cmd.TakeOver
        if row.status == RunStatus.CREATED:  # it was only written down, or never had a place
            command = cmd.Begin()
        else:
            command = cmd.TakeOver(self._engine.lease.engine, row.token, row.last_engine, not _cut_off(nodes), changed)
        if self._engine.starting.admit(actor, command, has_place=alone):
            actor.tell(command)

    def _bring_undo(self, actor: RunActor) -> None:
        actor.tell(supplies.undo(actor.plan, self._engine.store.nodes(actor.run_no)))

    def _changed_code(self, row: RunRow, actor: RunActor, codes: dict[int, _Code]) -> tuple[tuple[str, str, str], ...]:
        """Handlers whose code is not the one that the run began with. `codes` is filled with what runs share."""
        now = codes.get(id(actor.plan))
        if now is None:
            now = codes[id(actor.plan)] = _Code.of(actor.plan)
        if not now.fingerprints or now.hash == actor.state.fold.code_hash:
            return ()
        was = creation_of(self._engine.store, row).fingerprints
        return tuple((n, was[n], fp) for n, fp in sorted(now.fingerprints.items()) if n in was and was[n] != fp)

    async def _leave_to_others(self, row: RunRow, plan: Plan) -> bool:
        """A run that must not go on with our code: whether a live engine has the code that it began with, and has it
        to itself now."""
        engine = self._engine
        now = engine.clock.now()
        created = await engine.read(creation_of, engine.store, row)
        engines = await engine.read(engine.store.engines)
        others = [e for e in engines if e.engine != engine.lease.engine and not is_dead(e, now)]
        for offer in (offers.decode(other.can_run) for other in others):
            if offer.serves(row.queue) and not offer.missing(plan.handlers) and offer.has_code(created.fingerprints):
                self._left_to_others[row.run_no] = engine.loop.time() + LEFT_SECONDS
                await self.give_back([(row.run_no, row.token)])
                return True
        return False

    async def _set_aside(self, row: RunRow, state: RunState, nodes: list[NodeRow], alone: bool) -> bool:
        """Whether a run does not go on now: it has killed too many engines, or it may be the one that kills them."""
        limit = state.fold.settings.max_recoveries
        limit = self._engine.settings.max_recoveries if limit is None else limit
        cut_off = _cut_off(nodes)
        if cut_off and row.recoveries >= limit and row.run_no not in self.accepted:
            await self._hold(row, f"crash_loop: {row.recoveries} engines died in a row while this run made no progress")
            return True
        if alone or not is_suspect(row.recoveries, cut_off, limit):
            return False
        await self.give_back([(row.run_no, row.token)])
        place = self._engine.starting.place_of(state.plan)
        self._engine.isolation.add(row.run_no, row.recoveries, place, row.priority)
        return True

    async def _hold_damaged(self, row: RunRow, error: Exception) -> None:
        why = str(error) if isinstance(error, CorruptJournal) else f"{type(error).__name__}: {error}"
        await self._hold(row, f"corrupt: {why}")

    async def _hold(self, row: RunRow, why: str) -> None:
        log.error("run %s is put on hold: %s", row.run_id, why)
        await self._engine.put_on_hold(row.run_no, row.token, why, unused=True)


class _Runs(NamedTuple):
    """Everything about some runs, by their numbers, that is needed to go on with them."""

    nodes: dict[int, list[NodeRow]]
    waits: dict[int, list[WaitRow]]
    timers: dict[int, list[TimerRow]]
    messages: dict[int, list[MessageRow]]
    signals: dict[int, list[HeldSignal]]
    torn: set[int]
    """Those whose rows and journal do not end at the same event."""
    strangers: dict[int, list[str]]
    """Children that report to somebody else: who waits for them must look by himself, also after a takeover."""


def _read_runs(store: Store, numbers: list[int]) -> _Runs:
    found = _Runs(
        nodes=defaultdict(list),
        waits=defaultdict(list),
        timers=defaultdict(list),
        messages=defaultdict(list),
        signals=held_signals(store.held_messages(numbers)),
        torn=set(store.differing_heads(numbers)),
        strangers=defaultdict(list),
    )
    for node in store.open_nodes(numbers):
        found.nodes[node.run_no].append(node)
    for timer in store.set_timers(numbers):
        found.timers[timer.run_no].append(timer)
    for message in store.new_messages(numbers):
        found.messages[message.run_no].append(message)
    for wait in store.open_waits(numbers):
        found.waits[wait.run_no].append(wait)
        child = child_of(wait)
        row = None if child is None else store.run(child)
        if row is not None and row.parent_no != wait.run_no:
            found.strangers[wait.run_no].append(row.run_id)
    return found


class _Code(NamedTuple):
    """The code of a plan, as far as it is loaded here."""

    fingerprints: dict[str, str]
    hash: str

    @classmethod
    def of(cls, plan: Plan) -> _Code:
        found = {name: handler.fingerprint for name in plan.handlers if (handler := handlers.find(name)) is not None}
        return cls(found, code_hash(found))


def _cut_off(nodes: list[NodeRow]) -> bool:
    """Whether a body was running when the engine died; one that was left in an orderly way does not count."""
    return any(node.status == NodeStatus.RUNNING and node.scope is None for node in nodes)
