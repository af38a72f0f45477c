"""Recovery: finding runs that nobody drives, and taking them over.

Owns: which runs are claimed, in which order they are read, and when one is put on hold instead.
Never: decides what a taken-over run does (rules/recovery.py).
Invariants: nobody reads a run in order to change it without having claimed it first.
On crash: a claim without a commit leaves a run that another engine finds in the same way.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine import supplies
from holdfast.engine.actor import RunActor
from holdfast.engine.inbox import deliver
from holdfast.engine.leases import remove_lock
from holdfast.engine.rows import state_from_rows
from holdfast.model import commands as cmd
from holdfast.model import events as ev
from holdfast.model import handlers
from holdfast.model.errors import CorruptJournal
from holdfast.model.state import RunState, code_hash
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.store.api import MessageRow, NodeRow, RunRow, TimerRow, WaitRow

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

log = logging.getLogger("holdfast.engine")
DUE_AT_ONCE = 500
"""Timers woken in one look, so that a thousand due at once do not starve everything else."""


class Recovery:
    """Takes over what others left."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.roots: set[int] | None = None
        """None: every run whose code is here. Else only these runs and their descendants."""
        self.accepted: set[int] = set()
        """Runs that a person resumed: changed code does not stop them again."""

    async def sweep(self) -> int:
        """Claim everything that waits for an owner; the number of runs claimed."""
        await self.bury_dead()
        for run_no, child in self._engine.store.waits_for_ended():
            await self._engine.inbox.report(child, run_no)
        return await self._claim_claimable()

    async def bury_dead(self) -> None:
        """Free the runs of engines that are dead."""
        engine = self._engine
        buried = False
        for dead in engine.lease.dead_engines(engine.clock.now()):
            freed = await engine.committer.call(engine.store.remove_engine, dead.engine)
            remove_lock(dead)
            log.info("engine %s (pid %d) is gone; %d run(s) freed", dead.engine, dead.pid, freed)
            buried = buried or freed > 0
        if buried:
            await self._claim_claimable()

    async def _claim_claimable(self) -> int:
        engine = self._engine
        if engine.stopping:
            return 0
        if self.roots is None:
            rows = engine.store.claimable()
        else:
            rows = [row for root in sorted(self.roots) for row in engine.store.claimable(root_no=root)]
        return await self.claim([run_no for run_no, workflow, version in rows])

    async def wake_due(self) -> None:
        """Timers of runs that nobody owns."""
        engine = self._engine
        due_at = engine.store.next_timer()
        if due_at is None or due_at > engine.clock.now() or engine.stopping:
            return
        roots = None if self.roots is None else sorted(self.roots)
        due = engine.store.due_timers(engine.clock.now(), DUE_AT_ONCE, handlers.workflow_names(), roots)
        await self.claim(sorted({timer.run_no for timer in due}))

    async def claim(self, run_nos: Sequence[int], *, even_without_code: bool = False) -> int:
        """Take the lease of those of these runs that are free and that we may drive; then go on with them."""
        engine = self._engine
        wanted = [n for n in run_nos if n not in engine.actors and (even_without_code or self._may_drive(n))]
        if not wanted:
            return 0
        rows = await engine.committer.call(engine.store.claim, engine.lease.engine, wanted)
        if rows:
            await self._load(rows)
        return len(rows)

    def _may_drive(self, run_no: int) -> bool:
        row = self._engine.store.run_by_no(run_no)
        if row is None or (self.roots is not None and row.root_no not in self.roots):
            return False
        return self._engine.versions.runnable(row.workflow, row.version)

    async def reload(self, actor: RunActor) -> None:
        """Read a run again whose commit was refused although we hold its lease."""
        row = self._engine.store.run_by_no(actor.run_no)
        if row is not None and row.engine == self._engine.lease.engine:
            await self._load([row])

    async def _load(self, rows: Sequence[RunRow]) -> None:
        engine, store = self._engine, self._engine.store
        numbers = [row.run_no for row in rows]
        nodes: dict[int, list[NodeRow]] = defaultdict(list)
        for node in store.open_nodes(numbers):
            nodes[node.run_no].append(node)
        waits: dict[int, list[WaitRow]] = defaultdict(list)
        timers: dict[int, list[TimerRow]] = defaultdict(list)
        messages: dict[int, list[MessageRow]] = defaultdict(list)
        for wait in store.open_waits(numbers):
            waits[wait.run_no].append(wait)
        for timer in store.set_timers(numbers):
            timers[timer.run_no].append(timer)
        for message in store.new_messages(numbers):
            messages[message.run_no].append(message)
        for row in rows:
            try:
                plan = engine.versions.numbered(row.workflow, row.version)
                state = state_from_rows(plan, row, nodes[row.run_no], waits[row.run_no], timers[row.run_no])
            except (CorruptJournal, KeyError, ValueError, AssertionError) as e:
                await self._hold(row, f"corrupt: {type(e).__name__}: {e}")
                continue
            asked = bool(messages[row.run_no])  # a person's cancel or resume is always heard
            if not asked and await self._is_crash_loop(row, state, nodes[row.run_no]):
                continue
            actor = RunActor(engine, plan, state, row.token, row)
            changed = self._changed_code(actor)
            if changed and state.fold.settings.on_code_change == "fail" and row.run_no not in self.accepted:
                names = ", ".join(name for name, _, _ in changed)
                await self._hold(row, f"code_changed: {names} changed since the run began; on_code_change is 'fail'")
                continue
            engine.adopt(actor)
            self._go_on(actor, row, nodes[row.run_no], messages[row.run_no], changed)

    def _go_on(
        self,
        actor: RunActor,
        row: RunRow,
        nodes: list[NodeRow],
        messages: list[MessageRow],
        changed: tuple[tuple[str, str, str], ...],
    ) -> None:
        for wait in actor.state.waits.values():
            self._follow_again(actor, wait.child)
        # requests first: a cancel must see what was cut off as it was, not as it would be tried again
        for message in messages:
            deliver(actor, message)
        if row.status == RunStatus.SUSPENDED:
            actor.awaken()
            return
        if actor.state.fold.closing == "compensating":  # what a cut-off compensation undoes must be known first
            actor.tell(supplies.undo(actor.plan, self._engine.store.nodes(row.run_no)))
        graceful = not any(_was_cut_off(node) for node in nodes)
        command = cmd.TakeOver(self._engine.lease.engine, row.token, None, graceful, changed)
        if self._engine.starting.admit(actor, command):
            actor.tell(command)

    def _follow_again(self, actor: RunActor, child: str | None) -> None:
        """A child that reports to somebody else: who waits for it must look by himself, also after a takeover."""
        row = None if child is None else self._engine.store.run(child)
        if row is not None and row.parent_no != actor.run_no:
            actor.follow_child(row.run_id)

    def _changed_code(self, actor: RunActor) -> tuple[tuple[str, str, str], ...]:
        """Handlers whose code is not the one that the run began with."""
        now = {n: h.fingerprint for n in actor.plan.handlers if (h := handlers.find(n)) is not None}
        if not now or code_hash(now) == actor.state.fold.code_hash:
            return ()
        created: Any = ev.decode(*self._engine.store.event_data(actor.run_no, [1])[1])
        was = created.fingerprints
        return tuple((n, was[n], fp) for n, fp in sorted(now.items()) if n in was and was[n] != fp)

    async def _is_crash_loop(self, row: RunRow, state: RunState, nodes: list[NodeRow]) -> bool:
        limit = state.fold.settings.max_recoveries
        limit = self._engine.settings.max_recoveries if limit is None else limit
        if row.recoveries < limit or not any(_was_cut_off(n) for n in nodes) or row.run_no in self.accepted:
            return False
        await self._hold(row, f"crash_loop: {row.recoveries} engines died in a row while this run made no progress")
        return True

    async def _hold(self, row: RunRow, why: str) -> None:
        log.error("run %s is put on hold: %s", row.run_id, why)
        engine = self._engine
        await engine.put_on_hold(row.run_no, row.token, why)


def _was_cut_off(node: NodeRow) -> bool:
    return node.status == NodeStatus.RUNNING and node.scope is None
