"""Load: reading runs that were claimed, and going on with them.

Owns: in which order they are read, which of them are put on hold or left to others instead, and that no run stays with
an engine that does not drive it.
Never: decides what a taken-over run does (rules/resuming.py), claims anything (claim.py).
Invariants: nobody reads a run in order to change it without having claimed it first.
On crash: a claim without a commit leaves a run that another engine finds in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engine import rule_inputs
from holdfast.engine.catalogue import Recovered
from holdfast.engine.inbox import deliver
from holdfast.engine.ownership.quarantine import is_suspect
from holdfast.engine.rebuilding import LowToken
from holdfast.engine.run.actor import RunActor
from holdfast.engine.signal_ids import held_signals
from holdfast.model import capabilities, handlers
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import CannotBeRepaired, StoreDamaged
from holdfast.model.plans import Plan
from holdfast.model.state import code_hash
from holdfast.model.statuses import BRANCH_REQUESTS, NodeStatus, RunStatus
from holdfast.store.contract import Store
from holdfast.store.liveness import is_dead
from holdfast.store.records.journal import CANNOT_BE_READ, DAMAGE, hold_reason
from holdfast.store.records.run_records import creation_of
from holdfast.store.records.state_rows import UNREADABLE, child_of, state_from_rows
from holdfast.store.row_types import MessageRow, NodeRow, RunRow, TimerRow, WaitRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
KNOWN_TYPES = tuple(ev.TYPES)
LEFT_SECONDS = 5.0
"""How long a run is left to an engine that has the code it began with."""


class Loader:
    """Goes on with runs that this engine has claimed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.code_change_accepted: set[int] = set()
        """Runs that a person resumed: changed code does not stop them again."""
        self._yielded: dict[int, float] = {}
        """Runs that an engine with other code is to take, and until when we leave them alone."""

    async def with_claim(
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
        engine = self._engine
        await engine.committer.insist(engine.store.release, engine.lease.engine, leases, unused)

    def is_yielded(self, run_no: int) -> bool:
        return self._yielded.get(run_no, 0.0) > self._engine.loop.time()

    def count_yielded(self) -> int:
        """How many runs are left to engines with other code. Those that nobody has taken may be ours by now; those that
        somebody has taken are nobody's concern any more."""
        now = self._engine.loop.time()
        self._yielded = {run_no: until for run_no, until in self._yielded.items() if until > now}
        return len(self._yielded)

    async def load(self, rows: Sequence[RunRow], *, fire_only: bool = False) -> None:
        """Go on with these runs. `fire_only`: those that wait and whose timers are due only have them fired, behind
        their mail."""
        engine = self._engine
        looks = engine.inbox.looks
        try:
            nodes, waits, timers, messages, kept, torn, strangers = await engine.read(
                _read_runs, engine.store, [row.run_no for row in rows]
            )
        except StoreDamaged as e:
            if len(rows) == 1:
                await self._hold_damaged(rows[0], e)
            for row in rows if len(rows) > 1 else ():  # the others can be read
                await self.load([row], fire_only=fire_only)
            return
        if engine.stopping or rows[0].engine != engine.lease.engine:
            return  # they are given back with everything else; or we were declared dead, and they are free
        codes: dict[int, _Code] = {}
        for row in rows:
            run_no = row.run_no
            asked = messages.get(run_no, [])
            if run_no in torn:
                wish = next((message for message in asked if message.kind == "recover"), None)
                engine.spawn(self.with_claim((run_no, row.token), self._repair, row, wish))
                continue
            if asked and asked[0].kind in BRANCH_REQUESTS:  # else it has its turn when the others had theirs
                engine.spawn(self.with_claim((run_no, row.token), self._open_branch, row, asked[0]))
                continue
            try:
                plan = engine.versions.numbered(row.workflow, row.version)
                state = state_from_rows(plan, row, nodes[run_no], waits.get(run_no, ()), timers.get(run_no, ()))
                for signal in held_signals(kept.get(run_no, ())).get(run_no, ()):
                    state.hold_signal(signal)
            except UNREADABLE as e:
                await self._hold_damaged(row, e)
                continue
            actor = RunActor(engine, plan, state, row.token, row)
            is_suspended = state.status is RunStatus.SUSPENDED
            if fire_only and is_suspended and not any(message.kind in BRANCH_REQUESTS for message in asked):
                actor.release_after_commit = bool(actor.due_timers(engine.clock.now()))
            try:
                changed = self._changed_code(row, actor, codes) if actor.runs_here() else ()
                must_not = (
                    changed and state.fold.settings.on_code_change == "fail" and run_no not in self.code_change_accepted
                )
                if must_not and await self._yield_to_matching_engine(row, plan):
                    continue
            except UNREADABLE as e:
                await self._hold_damaged(row, e)
                continue
            if must_not:
                names = ", ".join(name for name, _, _ in changed)
                why = f"code_changed: {names} changed since the run began; on_code_change is 'fail'"
                await self._hold(row, why)
                continue
            engine.adopt(actor)
            for child in strangers.get(run_no, ()):
                engine.spawn(engine.inbox.report_end(child, run_no))
            try:
                self._go_on(actor, row, nodes[run_no], asked, changed)
            except CANNOT_BE_READ as e:
                actor.cannot_read(e)
        if engine.inbox.looks != looks:  # somebody looked for mail since it was read, and did not know of these runs
            engine.inbox.look_soon()

    async def _open_branch(self, row: RunRow, message: MessageRow) -> None:
        """A run that nobody drives is to go on from elsewhere: nothing of it starts before that."""
        await self._engine.branching.apply(row, message)
        await self._engine.claims.claim([row.run_no])
        await self._engine.inbox.look()

    async def _repair(self, row: RunRow, wish: MessageRow | None) -> None:
        """Recover a run whose rows and journal do not end at the same event, or put it on hold. `wish` is the message
        of an operator who asked for it, and who is answered with the repair."""
        engine = self._engine
        try:
            commit = await asyncio.to_thread(engine.catalogue.commit, row, wish)
            if isinstance(commit, LowToken):
                await self._raise_token(row, commit.raised)
                return
            if isinstance(commit, Recovered):  # the doctor compares more than we do, and has to be asked
                raise CannotBeRepaired(commit.what)
        except (CannotBeRepaired, *DAMAGE) as e:
            await self._hold_damaged(row, e)
            if wish is not None:
                await engine.branching.refuse(row, wish, e)
            return
        await engine.branching.land(commit)
        await engine.claims.claim([row.run_no])
        if wish is not None:
            await engine.inbox.look()

    async def _raise_token(self, row: RunRow, token: int) -> None:
        """Give a run whose row fell behind its journal a token above those of its events, and claim it again: what it
        needs beside that is done by its next owner, whoever that is."""
        engine = self._engine
        await engine.committer.insist(engine.store.raise_token, row.run_no, row.token, engine.lease.engine, token)
        await engine.claims.claim([row.run_no])
        await engine.inbox.look()

    def _go_on(
        self,
        actor: RunActor,
        row: RunRow,
        nodes: list[NodeRow],
        messages: list[MessageRow],
        changed: tuple[tuple[str, str, str], ...],
    ) -> None:
        is_undoing = actor.state.fold.closing == "compensating"
        is_suspended = row.status == RunStatus.SUSPENDED
        if is_undoing and is_suspended:  # an answer lets a compensation go on, which must know what it undoes
            self._bring_undo(actor)
        # requests first: a cancel must see what was cut off as it was, not as it would be tried again
        for message in messages:
            deliver(actor, message)
        if is_suspended:
            self._engine.pump.awaken(actor)
            return
        if is_undoing:  # what a cut-off compensation undoes must be known first
            self._bring_undo(actor)
        command: cmd.Begin | cmd.TakeOver
        if row.status == RunStatus.CREATED:  # it was only written down, or never had a place
            command = cmd.Begin()
        else:
            command = cmd.TakeOver(
                self._engine.lease.engine,
                row.token,
                row.last_engine,
                graceful=not _cut_off(nodes),
                changed_code=changed,
                isolated=is_suspect(row.recoveries, actor.max_recoveries),
            )
        if self._engine.starting.admit(actor, command):
            actor.submit(command)

    def _bring_undo(self, actor: RunActor) -> None:
        try:
            actor.submit(rule_inputs.what_to_undo(self._engine, actor.state, runs_here=actor.runs_here()))
        except CANNOT_BE_READ as e:
            actor.cannot_read(e)

    def _changed_code(self, row: RunRow, actor: RunActor, codes: dict[int, _Code]) -> tuple[tuple[str, str, str], ...]:
        """Handlers whose code is not the one that the run began with. `codes` is filled with what runs share."""
        now = codes.get(id(actor.plan))
        if now is None:
            now = codes[id(actor.plan)] = _Code.of(actor.plan)
        if not now.fingerprints or now.hash == actor.state.fold.code_hash:
            return ()
        was = creation_of(self._engine.store, row).fingerprints
        return tuple((n, was[n], fp) for n, fp in sorted(now.fingerprints.items()) if n in was and was[n] != fp)

    async def _yield_to_matching_engine(self, row: RunRow, plan: Plan) -> bool:
        """A run that must not go on with our code: whether a live engine has the code that it began with, and has it
        to itself now."""
        engine = self._engine
        now = engine.clock.now()
        created = await engine.read(creation_of, engine.store, row)
        engines = await engine.read(engine.store.engines)
        others = [e for e in engines if e.engine != engine.lease.engine and not is_dead(e, now, engine.lease.locks)]
        for offer in (capabilities.decode(other.can_run) for other in others):
            if offer.serves(row.queue) and not offer.missing(plan.handlers) and offer.has_code(created.fingerprints):
                self._yielded[row.run_no] = engine.loop.time() + LEFT_SECONDS
                await self.give_back([(row.run_no, row.token)])
                return True
        return False

    async def _hold_damaged(self, row: RunRow, error: Exception) -> None:
        await self._hold(row, hold_reason(error))

    async def _hold(self, row: RunRow, why: str) -> None:
        log.error("run %s is put on hold: %s", row.run_id, why)
        await self._engine.put_on_hold(row.run_no, row.token, why, unused=True)


class _Runs(NamedTuple):
    """Everything about some runs, by their numbers, that is needed to go on with them."""

    nodes: dict[int, list[NodeRow]]
    waits: dict[int, list[WaitRow]]
    timers: dict[int, list[TimerRow]]
    messages: dict[int, list[MessageRow]]
    kept: dict[int, list[MessageRow]]
    """Mail that they have taken note of and not used yet."""
    torn: set[int]
    """Those whose rows and journal do not end at the same event, or end with one that is not known here."""
    strangers: dict[int, list[str]]
    """Children that report to somebody else: who waits for them must look by himself, also after a takeover."""


def _read_runs(store: Store, numbers: list[int]) -> _Runs:
    found = _Runs(
        nodes=defaultdict(list),
        waits=defaultdict(list),
        timers=defaultdict(list),
        messages=defaultdict(list),
        kept=defaultdict(list),
        torn=set(store.differing_heads(numbers, KNOWN_TYPES)),
        strangers=defaultdict(list),
    )
    for held in store.held_messages(numbers):
        found.kept[held.run_no].append(held)
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
