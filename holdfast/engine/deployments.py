"""Deployments: versions and aliases of the workflows of one store.

Owns: which version a start by name gets, deploying, moving and rolling back aliases, retiring versions, and what each
of these is refused with.
Never: starts a run (starting.py), moves a run to another version (migrating.py), shows anything (inspect).
On crash: each of them is one write; it has happened or it has not, and asking again is harmless. Only a rollback that
is asked for again goes back one move further: the history of the alias shows both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.engine.runtime import Runtime
from holdfast.model import rollouts
from holdfast.model.errors import Refused, UsageError, VersionRetired
from holdfast.model.handlers import CodeLocation, RegisteredWorkflow
from holdfast.model.rollouts import LATEST, STABLE, Target, target_of
from holdfast.model.views import command_line
from holdfast.store.contract import Store
from holdfast.store.records.version_records import unknown_alias, unknown_version
from holdfast.store.version_contract import AliasMove


class Named(NamedTuple):
    """A start by name: which version it gets."""

    workflow: str
    at: str | int | None
    """An alias, a version, or None: the alias `stable` if there is one, else the latest version."""
    key: str | None = None
    """What decides between the versions of an alias; None: the id of the run."""

    @classmethod
    def of(cls, reference: str, key: str | None = None) -> Named:
        """Read `fulfil`, `fulfil@canary` or `fulfil@3`. Raises UsageError."""
        if key is not None and (not isinstance(key, str) or not key):
            raise UsageError(f"rollout_key is a text that is not empty, not {key!r}")
        return cls(*rollouts.split(reference), key)

    def choose(self, store: Store, run_id: str) -> int:
        """The version of a new run. Raises UnknownVersion, and VersionRetired for one that was named."""
        if isinstance(self.at, int):
            row = store.version(self.workflow, self.at)
            if row is None:
                raise unknown_version(store, self.workflow, self.at)
            if row.retired_at is not None:
                raise VersionRetired(f"version {self.at} of workflow {self.workflow} is retired: nothing of it starts")
            return self.at
        if self.at != LATEST:
            alias = self.at or STABLE
            move = store.alias(self.workflow, alias)
            target = None if move is None else target_of(move.target)
            if target is not None:
                return target.at(rollouts.bucket_of(self.workflow, alias, self.key or run_id))
            if self.at is not None:
                raise unknown_alias(store, self.workflow, self.at)
        latest = store.latest_active(self.workflow)
        if latest is None:
            raise unknown_version(store, self.workflow)
        return latest


class Deployed(msgspec.Struct):
    """What became of one workflow that was deployed."""

    workflow: str
    version: int
    is_new: bool
    """This content has not been deployed, and no run of it was started, before."""
    was_retired: bool
    """It had been retired, and is active again."""


class Deployments:
    """Versions and aliases of one store, as programs and operators change them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def deploy(self, workflow: RegisteredWorkflow, code: CodeLocation | None = None) -> Deployed:
        """Make a workflow a version that can be started by name."""
        runtime, name = self._runtime, workflow.definition.name
        known = {row.hash: row for row in await runtime.read(runtime.store.versions, name)}
        version = await runtime.versions.deploy(workflow, runtime.committer, runtime.clock.now(), code)
        before = known.get(workflow.definition.content_hash())
        return Deployed(name, version, before is None, before is not None and before.retired_at is not None)

    # --- aliases -----------------------------------------------------------------------------------------------------

    async def set_alias(
        self, workflow: str, alias: str, version: int, weights: Mapping[int, float], reason: str, actor: str
    ) -> Target:
        """Point an alias to a version, with shares of starts for others. The last of several callers wins."""
        runtime = self._runtime
        rollouts.check_alias(alias)
        while True:
            last = await runtime.read(runtime.store.alias, workflow, alias)
            before = None if last is None else target_of(last.target)
            target = rollouts.new_target(version, weights, before)
            if target == before or await self._move(workflow, alias, last, target, reason, actor):
                return target

    async def remove_alias(self, workflow: str, alias: str, reason: str, actor: str) -> None:
        runtime = self._runtime
        while True:
            last = await runtime.read(runtime.store.alias, workflow, alias)
            if last is None or last.target is None:
                raise await runtime.read(unknown_alias, runtime.store, workflow, alias)
            if await self._move(workflow, alias, last, None, reason, actor):
                return

    async def rollback(self, workflow: str, alias: str, reason: str, actor: str) -> Target:
        """Point an alias to where it pointed before its last move. Rolling back twice goes back two moves."""
        runtime = self._runtime
        moves = await runtime.read(runtime.store.alias_moves, workflow, alias)
        if not moves:
            raise await runtime.read(unknown_alias, runtime.store, workflow, alias)
        target = previous(moves)
        if target is None:
            raise Refused(
                f"alias {alias} of workflow {workflow} has never pointed elsewhere; "
                f"{command_line('alias', 'set', workflow, alias, 'VERSION')} moves it",
                "no_earlier_target",
            )
        if not await self._move(workflow, alias, moves[-1], target, reason or "rolled back", actor):
            raise Refused(
                f"alias {alias} of workflow {workflow} was moved by another caller at the same moment; "
                f"{command_line('alias', 'show', workflow, alias)} says where it points now",
                "moved",
            )
        return target

    async def _move(
        self, workflow: str, alias: str, last: AliasMove | None, target: Target | None, reason: str, actor: str
    ) -> bool:
        """Store the next move. False: another caller was first. Raises UnknownVersion and VersionRetired."""
        runtime = self._runtime
        versions = () if target is None else target.versions
        encoded = None if target is None else target.encode()
        number = 1 if last is None else last.no + 1
        move = AliasMove(workflow, alias, number, encoded, runtime.clock.now(), actor, reason)
        moved = await runtime.committer.call(runtime.store.move_alias, move, versions)
        if moved in ("unknown_version", "retired"):
            for version in versions:
                row = await runtime.read(runtime.store.version, workflow, version)
                if row is None:
                    raise await runtime.read(unknown_version, runtime.store, workflow, version)
                if row.retired_at is not None:
                    raise VersionRetired(f"version {version} of workflow {workflow} is retired: no alias points to it")
        return moved == "moved"

    # --- the end of a version ----------------------------------------------------------------------------------------

    async def retire(self, workflow: str, version: int) -> None:
        """Let nothing of a version start any more. Refused while a run of it is unfinished, or an alias points to
        it."""
        runtime = self._runtime
        done = await runtime.committer.call(runtime.store.retire_version, workflow, version, runtime.clock.now())
        what = f"version {version} of workflow {workflow}"
        match done.refusal:
            case "unknown_version":
                raise await runtime.read(unknown_version, runtime.store, workflow, version)
            case "unfinished":
                runs = "1 run of it is" if done.unfinished == 1 else f"{done.unfinished:,} runs of it are"
                of_it = ("--workflow", workflow, "--from-version", str(version), "--to", "VERSION")
                move = command_line("migrate", *of_it)
                raise Refused(f"{what} is not retired: {runs} unfinished. {move} moves them", "unfinished")
            case "aliased":
                names = ", ".join(done.aliases)
                raise Refused(f"{what} is not retired: the alias {names} names it. Move it first", "aliased")


def previous(moves: Sequence[AliasMove]) -> Target | None:
    """Where an alias pointed before; a move that only takes the one before it back counts as not made."""
    line: list[bytes | None] = []
    for move in moves:
        if len(line) > 1 and line[-2] == move.target:
            line.pop()
        elif not line or line[-1] != move.target:
            line.append(move.target)
    return next((target_of(target) for target in reversed(line[:-1]) if target is not None), None)
