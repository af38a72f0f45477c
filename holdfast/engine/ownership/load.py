"""Load: reading claimed runs, and driving them, holding them or yielding them to another engine.

Owns: in which order claimed runs are read, which of them are put on hold or yielded instead of driven, and the first
commands of a driven one.
Never: decides what a taken-over run does (rules/resuming.py), claims anything (claim.py).
Invariants: no run is read in order to change it unless it was claimed first.
On crash: a claim without a commit leaves a run that another engine finds in the same way.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.engine import rule_inputs
from holdfast.engine.messages import Inbox, held_signals
from holdfast.engine.ownership.custody import Custody
from holdfast.engine.run.actor import RunActor
from holdfast.engine.run.pump import Pump
from holdfast.engine.runtime import Runtime
from holdfast.model import capabilities, handlers
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model.errors import StoreDamaged
from holdfast.model.plans import Plan
from holdfast.model.state import code_hash
from holdfast.model.statuses import BRANCH_REQUESTS, NodeStatus, RunStatus
from holdfast.store.contract import Store
from holdfast.store.liveness import is_dead
from holdfast.store.records.journal import CANNOT_BE_READ, hold_reason
from holdfast.store.records.run_records import creation_of
from holdfast.store.records.state_rows import UNREADABLE, child_of, state_from_rows
from holdfast.store.row_types import MessageRow, NodeRow, RunRow, TimerRow, WaitRow

log = logging.getLogger("holdfast.engine")
KNOWN_TYPES = tuple(ev.TYPES)
LEFT_SECONDS = 5.0
"""How long a run is yielded to an engine that has the code it began with."""


class BeforeLoading(Protocol):
    """Work on a claimed run that comes before anything of it is driven (branching.py). Both release the run."""

    async def open_branch(self, row: RunRow, message: MessageRow) -> None:
        """Carry out a request that opens a branch."""
        ...

    async def repair(self, row: RunRow, wish: MessageRow | None) -> None:
        """Recover a run whose rows and journal do not end at the same event. `wish`: the operator's request."""
        ...


class Loader:
    """Loads the runs that this engine has claimed."""

    before_loading: BeforeLoading

    def __init__(self, runtime: Runtime, custody: Custody, inbox: Inbox, pump: Pump) -> None:
        self._runtime = runtime
        self._custody = custody
        self._inbox = inbox
        self._pump = pump
        self._yielded: dict[int, float] = {}
        """Runs that an engine with matching code is to claim, and until when this engine does not claim them."""

    def is_yielded(self, run_no: int) -> bool:
        return self._yielded.get(run_no, 0.0) > self._runtime.loop.time()

    def count_yielded(self) -> int:
        """How many runs are yielded to engines with matching code now."""
        now = self._runtime.loop.time()
        self._yielded = {run_no: until for run_no, until in self._yielded.items() if until > now}
        return len(self._yielded)

    async def load(self, rows: Sequence[RunRow], *, fire_only: bool = False) -> None:
        """Drive these claimed runs, or hold or yield them. `fire_only`: suspended runs whose timers are due only have
        them fired, after their messages, and are released."""
        runtime, reads = self._runtime, self._inbox.reads
        try:
            found = await runtime.read(_read_runs, runtime.store, [row.run_no for row in rows])
        except StoreDamaged as e:
            if len(rows) == 1:
                await self._hold(rows[0], hold_reason(e))
            for row in rows if len(rows) > 1 else ():  # the others may be readable
                await self.load([row], fire_only=fire_only)
            return
        if runtime.stopping or rows[0].engine != runtime.lease.engine:
            return  # closing releases them; or this engine was declared dead, and they are free
        codes: dict[int, _Code] = {}
        for row in rows:
            if not self._is_diverted(row, found):
                await self._load_one(row, found, codes, fire_only=fire_only)
        if self._inbox.reads != reads:  # messages were read meanwhile, by a delivery that did not know these runs
            self._inbox.deliver_soon()

    def _is_diverted(self, row: RunRow, found: _Runs) -> bool:
        """Whether other work comes before the run is driven: it is repaired, or a branch of it is opened."""
        messages = found.messages.get(row.run_no, [])
        if row.run_no in found.torn:
            wish = next((message for message in messages if message.kind == "recover"), None)
            self._spawn(row, self.before_loading.repair, row, wish)
        elif messages and messages[0].kind in BRANCH_REQUESTS:  # a later one is applied after those before it
            self._spawn(row, self.before_loading.open_branch, row, messages[0])
        else:
            return False
        return True

    def _spawn(self, row: RunRow, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._runtime.spawn(self._custody.with_claim((row.run_no, row.token), work, *args))

    async def _load_one(self, row: RunRow, found: _Runs, codes: dict[int, _Code], *, fire_only: bool) -> None:
        refused: tuple[tuple[str, str, str], ...] = ()
        try:
            actor = self._actor(row, found)
            if fire_only and actor.state.status is RunStatus.SUSPENDED and not _opens_branch(row, found):
                actor.release_after_commit = bool(actor.due_timers(self._runtime.clock.now()))
            changed = self._changed_code(row, actor, codes) if actor.runs_here() else ()
            if changed and self._must_not_change(actor):
                refused = changed
                if await self._yield_to_matching_engine(row, actor.plan):
                    return
        except UNREADABLE as e:
            await self._hold(row, hold_reason(e))
            return
        if refused:
            names = ", ".join(name for name, _, _ in refused)
            await self._hold(row, f"code_changed: {names} changed since the run began; on_code_change is 'fail'")
            return
        self._custody.adopt(actor)
        for child in found.strangers.get(row.run_no, ()):
            self._runtime.spawn(self._inbox.report_end(child, row.run_no))
        try:
            self._begin(actor, row, found, changed)
        except CANNOT_BE_READ as e:
            actor.cannot_read(e)

    def _actor(self, row: RunRow, found: _Runs) -> RunActor:
        run_no = row.run_no
        plan = self._runtime.versions.numbered(row.workflow, row.version)
        waits, timers = found.waits.get(run_no, ()), found.timers.get(run_no, ())
        state = state_from_rows(plan, row, found.nodes[run_no], waits, timers)
        for signal in held_signals(found.kept.get(run_no, ())).get(run_no, ()):
            state.hold_signal(signal)
        return RunActor(self._custody, plan, state, row.token, row)

    def _begin(self, actor: RunActor, row: RunRow, found: _Runs, changed: tuple[tuple[str, str, str], ...]) -> None:
        """Submit the first commands of a driven run."""
        is_undoing = actor.state.fold.closing == "compensating"
        is_suspended = row.status == RunStatus.SUSPENDED
        if is_undoing and is_suspended:  # an answer may resume a compensation, which must know what it undoes
            self._provide_undo(actor)
        # requests first: a cancel must see what was cut off as it was, not as it would be tried again
        for message in found.messages.get(row.run_no, ()):
            self._inbox.deliver(actor, message)
        if is_suspended:
            self._pump.awaken(actor)
            return
        if is_undoing:  # what a cut-off compensation undoes must be known first
            self._provide_undo(actor)
        command: cmd.Begin | cmd.TakeOver
        if row.status == RunStatus.CREATED:  # it was only written, or never had a slot
            command = cmd.Begin()
        else:
            command = cmd.TakeOver(
                self._runtime.lease.engine,
                row.token,
                row.last_engine,
                graceful=not _cut_off(found.nodes[row.run_no]),
                changed_code=changed,
                isolated=actor.is_suspect,
            )
        if self._custody.admit(actor, command):
            actor.submit(command)

    def _provide_undo(self, actor: RunActor) -> None:
        try:
            actor.submit(rule_inputs.what_to_undo(self._runtime, actor.state, runs_here=actor.runs_here()))
        except CANNOT_BE_READ as e:
            actor.cannot_read(e)

    # --- changed code ------------------------------------------------------------------------------------------------

    def _must_not_change(self, actor: RunActor) -> bool:
        """Whether a run must not continue with other code than it began with."""
        is_strict = actor.state.fold.settings.on_code_change == "fail"
        return is_strict and actor.run_no not in self._custody.code_change_accepted

    def _changed_code(self, row: RunRow, actor: RunActor, codes: dict[int, _Code]) -> tuple[tuple[str, str, str], ...]:
        """Handlers whose code is not the one that the run began with. `codes` is filled with what runs share."""
        now = codes.get(id(actor.plan))
        if now is None:
            now = codes[id(actor.plan)] = _Code.of(actor.plan)
        if not now.fingerprints or now.hash == actor.state.fold.code_hash:
            return ()
        was = creation_of(self._runtime.store, row).fingerprints
        return tuple((n, was[n], fp) for n, fp in sorted(now.fingerprints.items()) if n in was and was[n] != fp)

    async def _yield_to_matching_engine(self, row: RunRow, plan: Plan) -> bool:
        """Release a run that must not continue with the code loaded here if a live engine has the code that it began
        with; True: it was released to that engine."""
        runtime = self._runtime
        now = runtime.clock.now()
        created = await runtime.read(creation_of, runtime.store, row)
        engines = await runtime.read(runtime.store.engines)
        others = [e for e in engines if e.engine != runtime.lease.engine and not is_dead(e, now, runtime.lease.locks)]
        for offer in (capabilities.decode(other.can_run) for other in others):
            if offer.serves(row.queue) and not offer.missing(plan.handlers) and offer.has_code(created.fingerprints):
                self._yielded[row.run_no] = runtime.loop.time() + LEFT_SECONDS
                await self._custody.give_back([(row.run_no, row.token)])
                return True
        return False

    async def _hold(self, row: RunRow, why: str) -> None:
        log.error("run %s is put on hold: %s", row.run_id, why)
        await self._custody.put_on_hold(row.run_no, row.token, why, unused=True)


class _Runs(NamedTuple):
    """Everything that is needed to drive some runs, by their numbers."""

    nodes: dict[int, list[NodeRow]]
    waits: dict[int, list[WaitRow]]
    timers: dict[int, list[TimerRow]]
    messages: dict[int, list[MessageRow]]
    kept: dict[int, list[MessageRow]]
    """Messages that they hold for a later call."""
    torn: set[int]
    """Those whose rows and journal do not end at the same event, or end with one that is not known here."""
    strangers: dict[int, list[str]]
    """Children of other parents that they wait for: this engine has to watch for their end."""


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
        found = handlers.fingerprints(plan.handlers)
        return cls(found, code_hash(found))


def _opens_branch(row: RunRow, found: _Runs) -> bool:
    return any(message.kind in BRANCH_REQUESTS for message in found.messages.get(row.run_no, ()))


def _cut_off(nodes: list[NodeRow]) -> bool:
    """Whether a body was running when the engine died; one that was stopped in order does not count."""
    return any(node.status == NodeStatus.RUNNING and node.scope is None for node in nodes)
