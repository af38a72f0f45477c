"""Migrating: runs are moved to another version of their workflow.

Owns: asking for it, one run or all of a version; the plan of it, also for a version that is not deployed yet.
Never: decides what is kept (rules/migration.py), opens the branch (branching.py: a migration is a request for a branch
at the end of the run, which its owner carries out).
On crash: each run is moved in one commit, or not; asking for all again moves those that are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from holdfast.engine.branch_plans import plan_branch
from holdfast.engine.branching import Branching
from holdfast.engine.runtime import Runtime
from holdfast.model.errors import HoldfastError, Refused
from holdfast.model.handlers import RegisteredWorkflow
from holdfast.model.limits import MIGRATED_AT_ONCE_MAX, WAITING_READ_MAX
from holdfast.model.plans import Plan, compile_definition
from holdfast.model.statuses import NodeStatus, RunStatus
from holdfast.rules import migration
from holdfast.rules.branch_opening import Asked, Edits
from holdfast.rules.draft import Refusal
from holdfast.store.records.journal import History, Plans
from holdfast.store.records.run_records import find_run
from holdfast.store.records.version_records import find_version
from holdfast.store.row_types import RunRow

UNFINISHED = tuple(status.value for status in RunStatus if status not in ("completed", "failed", "cancelled"))


class Migration(msgspec.Struct, omit_defaults=True):
    """What moving a run to another version keeps and loses, or what became of it."""

    run_id: str
    from_version: int
    to_version: int
    outcome: str
    """`possible` (a plan), `migrated`, `unchanged` (it has the version already), `lost` (refused: see `lost`) or
    `impossible` (see `why`)."""
    kept: list[str] = []
    runs_again: list[str] = []
    lost: list[str] = []
    """Instances that have started and are not kept; they must be named to be dropped."""
    branch: int = 0
    why: str = ""

    @property
    def is_fine(self) -> bool:
        return self.outcome in ("possible", "migrated", "unchanged")


class Migrating:
    """Moves runs of one store to other versions."""

    def __init__(self, runtime: Runtime, branching: Branching) -> None:
        self._runtime = runtime
        self._branching = branching

    async def migrate(self, run_id: str, to: int, drop: Sequence[str], actor: str, *, drive: bool = True) -> Migration:
        """Move a run. Raises Refused, and UnknownVersion."""
        row = await self._checked(run_id, to)
        if row.version == to:
            return Migration(run_id, to, to, "unchanged")
        branch = await self._branching.ask(run_id, "fork", _asked(drop, actor), {"version": to}, drive=drive)
        return Migration(run_id, row.version, to, "migrated", branch=branch)

    async def plan(self, run_id: str, to: int, drop: Sequence[str] = ()) -> Migration:
        """What moving a run would keep and lose. Nothing is changed."""
        row = await self._checked(run_id, to)
        return await asyncio.to_thread(self._foresee, row, self._runtime.versions, to, drop)

    async def _checked(self, run_id: str, to: int) -> RunRow:
        runtime = self._runtime
        row = await runtime.read(find_run, runtime.store, run_id)
        await runtime.read(find_version, runtime.store, row.workflow, to)
        return row

    async def migrate_all(
        self, workflow: str, from_version: int, to: int, drop: Sequence[str], actor: str, *, dry_run: bool, drive: bool
    ) -> list[Migration]:
        """Move every unfinished run of a version, or plan it; one that cannot be moved keeps none of the others."""
        runtime = self._runtime
        for version in (from_version, to):
            await runtime.read(find_version, runtime.store, workflow, version)
        rows = [row async for row in self._unfinished(workflow) if row.version == from_version]
        limit = asyncio.Semaphore(MIGRATED_AT_ONCE_MAX)

        async def one(row: RunRow) -> Migration:
            async with limit:
                if dry_run:
                    return await self.plan(row.run_id, to, drop)
                try:
                    return await self.migrate(row.run_id, to, drop, actor, drive=drive)
                except HoldfastError as e:
                    outcome = "lost" if isinstance(e, Refused) and e.reason == "lost" else "impossible"
                    return Migration(row.run_id, row.version, to, outcome, why=e.message)

        return list(await asyncio.gather(*map(one, rows)))

    async def check(self, workflow: RegisteredWorkflow) -> list[Migration]:
        """What moving every unfinished run to a workflow that is not deployed yet would keep and lose."""
        runtime, definition = self._runtime, workflow.definition
        known = {row.hash: row.version for row in await runtime.read(runtime.store.versions, definition.name)}
        version = known.get(definition.content_hash(), max(known.values(), default=0) + 1)
        plans = _Candidate(runtime.store, compile_definition(definition, version))
        rows = [row async for row in self._unfinished(definition.name) if row.version != version]
        return [await asyncio.to_thread(self._foresee, row, plans, version, ()) for row in rows]

    async def _unfinished(self, workflow: str) -> AsyncIterator[RunRow]:
        """The unfinished runs of a workflow, newest first."""
        runtime, before = self._runtime, None

        def page() -> list[RunRow]:
            return runtime.store.runs(status=UNFINISHED, workflow=workflow, limit=WAITING_READ_MAX, before_no=before)

        while rows := await runtime.read(page):
            before = rows[-1].run_no
            for row in rows:
                yield row

    def _foresee(self, row: RunRow, plans: Plans, to: int, drop: Sequence[str]) -> Migration:
        found = Migration(row.run_id, row.version, to, "possible")
        if row.version == to:
            found.outcome = "unchanged"
            return found
        try:
            history = History(self._runtime.store, plans, row)
            head = history.state(row.branch)
            named = set(drop)
            found.lost = [text for text in migration.lost(head, history.plan(to)) if text not in named]
            asked = _asked((*drop, *found.lost), "")
            asked.edits = Edits(version=to)
            plan = plan_branch(history, "fork", asked)
            self._branching.check(plan, "fork")
            there = {ns.instance for ns in plan.base(row.run_no, row.run_id).changed}
            for ns in head.changed:
                is_cut_off = ns.status is NodeStatus.RUNNING and ns.plan.body is None
                if ns.instance in there and not is_cut_off:
                    found.kept.append(ns.text)
                elif ns.node in history.plan(to).scope_of(ns.path).nodes:
                    found.runs_again.append(ns.text)
            found.outcome = "lost" if found.lost else "possible"
        except Refusal as refusal:
            found.outcome, found.why = "impossible", refusal.why
        except HoldfastError as e:
            found.outcome, found.why = "impossible", e.message
        return found


class _Candidate(Plans):
    """The plans of a store, with one that is not deployed yet."""

    def __init__(self, store: Any, candidate: Plan) -> None:
        super().__init__(store)
        self._by_version[candidate.definition.name, candidate.version] = candidate


def _asked(drop: Sequence[str], actor: str) -> Asked:
    return Asked(migrates=True, drop=tuple(drop), actor=actor)
