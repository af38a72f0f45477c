"""Recovery: finding runs that nobody drives, and taking them over.

Owns: which runs are claimed, in which order they are read, and when one is put on hold instead.
Never: decides what a taken-over run does (rules/recovery.py).
Invariants: nobody reads a run in order to change it without having claimed it first.
On crash: a claim without a commit leaves a run that another engine finds in the same way.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engine import offers, supplies
from holdfast.engine.actor import RunActor
from holdfast.engine.inbox import deliver
from holdfast.engine.isolation import is_suspect
from holdfast.engine.leases import is_dead, remove_lock
from holdfast.engine.rows import child_of, held_signals, state_from_rows
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model import handlers
from holdfast.model.errors import CannotBeRepaired, CorruptJournal
from holdfast.model.graph import Plan
from holdfast.model.state import HeldSignal, RunState, code_hash
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.store.api import OPENS_BRANCH, MessageRow, NodeRow, RunRow, Store, TimerRow, WaitRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
DUE_AT_ONCE = 1_000
"""Timers whose runs are claimed together: a slow disk must not be waited for again and again."""
LOADED_AT_ONCE = 200
"""Runs that are read together; in between everybody else has a turn of the loop (a few milliseconds)."""
CLAIMED_AT_ONCE = 1_000
"""Runs that are claimed together."""
UNREADABLE = (CorruptJournal, KeyError, ValueError, AssertionError)
"""What a run whose rows or journal are damaged may lead to when it is read."""
LEFT_SECONDS = 5.0
"""How long a run is left to an engine that has the code it began with."""
REFILL_SHARE = 4
"""The part of an engine's places, one in this many, that must be free before it looks for more runs to fill them."""
LOOKING_SHARE = 0.05
"""How much of its time an engine looks through timers that are due and not for it, at most."""


class Recovery:
    """Takes over what others left."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.roots: set[int] | None = None
        """None: every run whose code is here. Else only these runs and their descendants."""
        self.accepted: set[int] = set()
        """Runs that a person resumed: changed code does not stop them again."""
        self._put_off = False
        """Something was to be claimed while a suspect had its turn."""
        self._looks_for_ended = False
        """Waits for children are still being looked through."""
        self._last_due: TimerRow | None = None
        """Where the next page of due timers begins, while there are more of them."""
        self._next_due_look = 0.0
        self.is_full = False
        """There was no room for all that could be claimed, as far as is known."""
        self.coming = 0
        """Runs that are being claimed or read: there must be room for them."""
        self._refilling = False
        self._due_comes_first = False
        self._left = 0
        """Runs that have ended or rest since the last look for more."""
        self._last_served = ""
        """The workflow whose turn came last."""
        self._turns = asyncio.Lock()
        """Who is served next is decided by one at a time."""
        self._left_to_others: dict[int, float] = {}
        """Runs that an engine with other code is to take, and until when we leave them alone."""

    async def sweep(self) -> int:
        """Claim everything that waits for an owner; the number of runs claimed."""
        await self.bury_dead()
        engine = self._engine
        for unknown in await engine.read(engine.store.unknown_owners):
            log.warning("engine %s holds runs and is not known any more; they are freed", unknown)
            await engine.committer.call(engine.store.remove_engine, unknown)
        await self._tell_of_ended()
        return await self.claim_claimable()

    async def _tell_of_ended(self) -> None:
        """Tell runs that nobody drives of children that ended, should a report have been lost. Of very many waits for
        children all but the first are looked through while everybody else goes on."""
        if self._looks_for_ended:
            return
        page = await self._tell_of_some(0)
        if page:
            self._looks_for_ended = True
            self._engine.spawn(self._tell_of_others(page))

    async def _tell_of_others(self, page: int) -> None:
        try:
            while page:
                await asyncio.sleep(0)
                page = await self._tell_of_some(page)
        finally:
            self._looks_for_ended = False

    async def _tell_of_some(self, page: int) -> int:
        found, page = await self._engine.read(self._engine.store.waits_for_ended, page)
        for run_no, child in found:
            await self._engine.inbox.report(child, run_no)
        return page

    async def bury_dead(self) -> None:
        """Free the runs of engines that are dead."""
        engine = self._engine
        buried = False
        for dead in await engine.read(engine.lease.dead_engines, engine.clock.now()):
            freed = await engine.committer.call(engine.store.remove_engine, dead.engine, dead.expires_at)
            if freed is None:
                continue  # it has renewed its lease since we looked
            remove_lock(dead)
            log.info("engine %s (pid %d) is gone; %d run(s) freed", dead.engine, dead.pid, freed)
            buried = buried or freed > 0
        if buried:
            await self.claim_claimable()

    async def claim_claimable(self) -> int:
        """Claim what wants an owner, page by page for as long as there is room; the number of runs claimed."""
        async with self._turns:
            return await self._claim_by_turns()

    async def _claim_by_turns(self) -> int:
        claimed = 0
        while won := await self.claim(await self._claimable_page()):
            claimed += won
        return claimed

    async def _claimable_page(self) -> list[int]:
        """Runs that want an owner and whose code is here: one of each workflow after the other, beginning behind the
        workflow that was served last."""
        engine, store = self._engine, self._engine.store
        room = engine.room()
        self.is_full = self.is_full or room == 0
        if engine.stopping or not engine.drives or room == 0 or self.roots == set():
            return []
        self._forget_left()
        unowned = await engine.read(store.unowned_versions)
        runnable = [version for version in unowned if await engine.read(engine.versions.runnable, *version)]
        versions = [version for version in runnable if engine.has_room_for(engine.versions.numbered(*version))]
        self.is_full = self.is_full or len(versions) < len(runnable)
        passed_over = len(self._left_to_others) + len(engine.isolation)  # they must not hide who stands behind them
        roots = None if self.roots is None else sorted(self.roots)
        limit = min(CLAIMED_AT_ONCE // max(1, len(versions)) + 1, room + passed_over)
        found = await engine.read(lambda: store.claimable(versions, queues=engine.queues, root_nos=roots, limit=limit))
        lines: dict[str, list[int]] = defaultdict(list)
        for run_no, workflow, _ in found:
            if not self._is_passed_over(run_no):
                lines[workflow].append(run_no)
        turns = sorted(lines, key=lambda workflow: (workflow <= self._last_served, workflow))
        page = [
            (run_no, workflow)
            for round_ in itertools.zip_longest(*(lines[workflow] for workflow in turns))
            for workflow, run_no in zip(turns, round_, strict=True)
            if run_no is not None
        ]
        if page:
            self._last_served = page[: min(room, len(page))][-1][1]
        return [run_no for run_no, _ in page]

    @property
    def more_is_due(self) -> bool:
        """Whether more timers are due than one look wakes, and there is room for more."""
        engine = self._engine
        return self._last_due is not None and engine.loop.time() >= self._next_due_look and engine.room() > 0

    async def wake_due(self) -> None:
        """A page of the timers that are due of runs that nobody owns."""
        engine = self._engine
        began = engine.loop.time()
        if engine.stopping or not engine.drives or began < self._next_due_look:
            return
        at_once = min(DUE_AT_ONCE, engine.room())
        if at_once == 0:
            self.is_full = True
            return
        roots = None if self.roots is None else sorted(self.roots)
        now, names, after = engine.clock.now(), handlers.workflow_names(), self._last_due
        due = await engine.read(
            lambda: engine.store.due_timers(now, at_once, names, roots, queues=engine.queues, after=after)
        )
        self._last_due = due[-1] if len(due) == at_once else None
        if not due or (not await self.claim(sorted({timer.run_no for timer in due})) and engine.room() > 0):
            took = engine.loop.time() - began  # for nothing: others have to drive those that are due
            self._next_due_look = began + took / LOOKING_SHARE

    async def claim(self, run_nos: Sequence[int], *, even_without_code: bool = False, alone: bool = False) -> int:
        """Take the lease of those of these runs that are free and that we may drive; then go on with them. `alone`: a
        suspect that has its turn, during which only a person's request lets us claim anything else. Whoever asked may
        give up: a run that is ours and that nobody reads would be lost to everybody."""
        return await self._engine.see_through(self._claim(run_nos, even_without_code, alone))

    async def _claim(self, run_nos: Sequence[int], even_without_code: bool, alone: bool) -> int:
        engine = self._engine
        chosen = alone or even_without_code
        free = [n for n in run_nos if n not in engine.actors and (chosen or not self._is_passed_over(n))]
        wanted = free if even_without_code else await self._drivable(free)
        if engine.isolation.turn_of is not None and not chosen:
            self._put_off = True
            return 0
        room = len(wanted) if chosen else engine.room()
        if len(wanted) >= room and not chosen:
            self.is_full = True
            wanted = wanted[:room]
        if not wanted:
            return 0
        self.coming += len(wanted)
        rows: Sequence[RunRow] = ()
        try:
            rows = await engine.committer.call(engine.store.claim, engine.lease.engine, wanted)
            for start in range(0, len(rows), LOADED_AT_ONCE):
                if start > 0:
                    await asyncio.sleep(0)
                await self._load(rows[start : start + LOADED_AT_ONCE], alone=alone)
        except Exception:
            unread = [(row.run_no, row.token) for row in rows if row.run_no not in engine.actors]
            if unread and not engine.stopping:  # nobody else could have them while they are ours
                engine.spawn(self._give_back(unread))
            raise
        finally:
            self.coming -= len(wanted)
        return len(rows)

    def room_left(self) -> None:
        """A run has ended or rests: others that found no room may come. Not one by one: that would be a look at the
        store for each. For a few the next patrol does."""
        engine = self._engine
        limit = engine.settings.concurrency
        if limit is None or not self.is_full or self._refilling or engine.stopping:
            return
        self._left += 1
        if self._left * REFILL_SHARE >= limit:
            self._refilling = True
            engine.spawn(self._refill())

    async def _refill(self) -> None:
        try:
            self._left = 0
            await self.fill_up()
        finally:
            self._refilling = False

    async def fill_up(self) -> None:
        """Claim what found no room before, if there is some now. By turns what is due comes first, or runs that are
        ready would take every place and never let it wake."""
        if not self._finds_room_again():
            return
        async with self._turns:
            if self._finds_room_again():  # nobody else has filled it meanwhile
                self.is_full = False
                self._due_comes_first = not self._due_comes_first
                if self._due_comes_first:
                    await self.wake_due()
                await self._claim_by_turns()

    def _finds_room_again(self) -> bool:
        return self.is_full and self._engine.room() > 0

    async def go_on_with(self, row: RunRow) -> None:
        """Somebody asked for something of this run: it is ours to drive, if its code is here."""
        if self.roots is not None:
            self.roots.add(row.root_no)
        await self.claim([row.run_no])

    async def catch_up(self) -> None:
        """A suspect's turn is over: claim what could not be claimed meanwhile."""
        if self._put_off:
            self._put_off = False
            await self._engine.inbox.look()
            await self.sweep()

    async def _drivable(self, run_nos: Sequence[int]) -> list[int]:
        """Those of these runs that are ours to drive, and whose code is here."""
        engine, roots = self._engine, self.roots
        found = await engine.read(engine.store.workflows_of, run_nos)
        versions = {(workflow, version) for _, _, workflow, version, _ in found}
        runnable = {version for version in versions if await engine.read(engine.versions.runnable, *version)}
        drivable = {
            run_no
            for run_no, root_no, workflow, version, queue in found
            if (roots is None or root_no in roots) and engine.serves(queue) and (workflow, version) in runnable
        }
        return [run_no for run_no in run_nos if run_no in drivable]

    async def reload(self, actor: RunActor) -> None:
        """Read a run again whose commit was refused although we hold its lease."""
        row = await self._engine.read(self._engine.store.run_by_no, actor.run_no)
        if row is not None and row.engine == self._engine.lease.engine:
            await self._load([row])

    async def regain(self, actor: RunActor) -> None:
        """A commit was refused. Usually the run is somebody else's now. If it is still ours, the database is behind
        what it had acknowledged (a replica that had not got everything took over, a backup was restored), and would
        wait for us for ever: take it over from where it stands."""
        engine = self._engine
        row = await engine.read(engine.store.run_by_no, actor.run_no)
        if row is None:
            log.error("run %s is not in the database any more: it was restored to an earlier state", actor.run_id)
        elif (row.engine, row.token) == (engine.lease.engine, actor.token):
            told = "run %s stands at event %d in the database, which had acknowledged event %d: it was restored to an "
            told += "earlier state. The run goes on from there; what it did since is done again, under the same keys"
            log.error(told, actor.run_id, row.last_seq, actor.expected_seq)
            await engine.committer.insist(engine.store.release, [(row.run_no, row.token)])
            await self.claim([row.run_no])

    async def _load(self, rows: Sequence[RunRow], *, alone: bool = False) -> None:
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
                engine.spawn(self._open_branch(row, asked[0]))
                continue
            if run_no in torn:
                engine.spawn(self._repair(row))
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
            try:
                changed = self._changed_code(actor, codes) if actor.runs_here() else ()
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
        await self.claim([row.run_no])
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
        await self.claim([row.run_no])

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

    def _changed_code(self, actor: RunActor, codes: dict[int, _Code]) -> tuple[tuple[str, str, str], ...]:
        """Handlers whose code is not the one that the run began with. `codes` is filled with what runs share."""
        now = codes.get(id(actor.plan))
        if now is None:
            now = codes[id(actor.plan)] = _Code.of(actor.plan)
        if not now.fingerprints or now.hash == actor.state.fold.code_hash:
            return ()
        created: Any = ev.decode(*self._engine.store.event_data(actor.run_no, [1])[1])
        was = created.fingerprints
        return tuple((n, was[n], fp) for n, fp in sorted(now.fingerprints.items()) if n in was and was[n] != fp)

    async def _leave_to_others(self, row: RunRow, plan: Plan) -> bool:
        """A run that must not go on with our code: whether a live engine has the code that it began with, and has it
        to itself now."""
        engine = self._engine
        now = engine.clock.now()
        created: Any = ev.decode(*(await engine.read(engine.store.event_data, row.run_no, [1]))[1])
        engines = await engine.read(engine.store.engines)
        others = [e for e in engines if e.engine != engine.lease.engine and not is_dead(e, now)]
        for offer in (offers.decode(other.can_run) for other in others):
            if offer.serves(row.queue) and not offer.missing(plan.handlers) and offer.has_code(created.fingerprints):
                self._left_to_others[row.run_no] = engine.loop.time() + LEFT_SECONDS
                await self._give_back([(row.run_no, row.token)])
                return True
        return False

    def _is_passed_over(self, run_no: int) -> bool:
        """Whether a run is not for us now: it waits for its turn alone, or for an engine with other code."""
        return run_no in self._engine.isolation or self._left_to_others.get(run_no, 0.0) > self._engine.loop.time()

    def _forget_left(self) -> None:
        """Those that nobody has taken may be ours; those that somebody has taken are nobody's concern any more."""
        now = self._engine.loop.time()
        self._left_to_others = {run_no: until for run_no, until in self._left_to_others.items() if until > now}

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
        await self._give_back([(row.run_no, row.token)])
        place = self._engine.starting.place_of(state.plan)
        self._engine.isolation.add(row.run_no, row.recoveries, place, row.priority)
        return True

    async def _hold_damaged(self, row: RunRow, error: Exception) -> None:
        await self._hold(row, f"corrupt: {type(error).__name__}: {error}")

    async def _hold(self, row: RunRow, why: str) -> None:
        log.error("run %s is put on hold: %s", row.run_id, why)
        await self._engine.put_on_hold(row.run_no, row.token, why, unused=True)

    async def _give_back(self, leases: list[tuple[int, int]]) -> None:
        """Runs that were claimed and are not for us: whoever drove them before is still the last who did."""
        await self._engine.committer.insist(self._engine.store.release, leases, True)


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
