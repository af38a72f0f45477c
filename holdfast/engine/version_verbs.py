"""Version verbs: what programs ask of an engine about versions and aliases.

Owns: the methods of `hf.Engine` for them; each is one request to the part that does it, or one view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.deployments import Deployments
from holdfast.engine.event_loop import on_its_loop
from holdfast.engine.migrating import Migrating
from holdfast.engine.runtime import Runtime
from holdfast.model import texts
from holdfast.model.errors import UsageError
from holdfast.model.rollouts import STABLE

if TYPE_CHECKING:
    from holdfast.authoring.workflows import Workflow


class VersionVerbs:
    """The part of an engine's public methods that is about versions."""

    runtime: Runtime
    deployments: Deployments
    migrating: Migrating
    loop: asyncio.AbstractEventLoop

    @on_its_loop
    async def deploy(self, *workflows: Workflow[..., Any]) -> list[dict[str, Any]]:
        """Make workflows available by name: each is a version, whose number its content decides. The same content has
        the same number, however often it is deployed; new content gets the next one. Deploying a retired version makes
        it active again. Nothing starts, and runs keep their version."""
        if not workflows:
            raise UsageError("engine.deploy: name the workflows to deploy")
        done = [await self.deployments.deploy(workflow.registered) for workflow in workflows]
        return [msgspec.structs.asdict(one) for one in done]

    @on_its_loop
    async def workflows(self) -> list[dict[str, Any]]:
        """Every workflow that was deployed, or of which a run was started: its versions, aliases and unfinished
        runs."""
        return await self.runtime.read(self.runtime.inspector.workflows)

    @on_its_loop
    async def versions(self, workflow: str) -> list[dict[str, Any]]:
        """The versions of a workflow, the first one first. Raises UnknownVersion."""
        return await self.runtime.read(self.runtime.inspector.versions, workflow)

    @on_its_loop
    async def diff_versions(self, workflow: str, one: int, other: int) -> dict[str, Any]:
        """What differs between two versions: nodes, their fields, the edges between them, and everything else that
        makes a version. Raises UnknownVersion."""
        return await self.runtime.read(self.runtime.inspector.diff_versions, workflow, one, other)

    @on_its_loop
    async def aliases(self, workflow: str | None = None) -> list[dict[str, Any]]:
        """The aliases of a workflow, or of all: where each points, since when, who moved it and why."""
        return await self.runtime.read(self.runtime.inspector.aliases, workflow)

    @on_its_loop
    async def alias_history(self, workflow: str, alias: str = STABLE) -> list[dict[str, Any]]:
        """Every move of an alias, the first one first. Raises UnknownVersion."""
        return await self.runtime.read(self.runtime.inspector.alias_history, workflow, alias)

    @on_its_loop
    async def set_alias(
        self,
        workflow: str,
        alias: str,
        version: int,
        *,
        weights: Mapping[int, float] | None = None,
        reason: str = "",
        actor: str = "",
    ) -> None:
        """Point an alias to a version: `engine.start("fulfil@canary", ...)` starts that one, and
        `engine.start("fulfil", ...)` the one of the alias `stable`. `weights={4: 10}` gives version 4 ten per cent of
        the starts, and `version` the rest: the same `rollout_key`, or else the same run id, always gets the same one,
        and raising a weight only moves keys towards its version. Raises UnknownVersion and VersionRetired."""
        who, why = texts.actor(actor, "engine.set_alias"), texts.reason(reason, "engine.set_alias")
        await self.deployments.set_alias(workflow, alias, version, weights or {}, why, who)

    @on_its_loop
    async def remove_alias(self, workflow: str, alias: str, *, reason: str = "", actor: str = "") -> None:
        """Remove an alias; its history stays. Raises UnknownVersion."""
        who, why = texts.actor(actor, "engine.remove_alias"), texts.reason(reason, "engine.remove_alias")
        await self.deployments.remove_alias(workflow, alias, why, who)

    @on_its_loop
    async def rollback(self, workflow: str, alias: str = STABLE, *, reason: str = "", actor: str = "") -> None:
        """Point an alias to where it pointed before its last move; runs keep their version. Rolling back twice goes
        back two moves. Raises Refused when it has never pointed elsewhere."""
        who, why = texts.actor(actor, "engine.rollback"), texts.reason(reason, "engine.rollback")
        await self.deployments.rollback(workflow, alias, why, who)

    @on_its_loop
    async def retire(self, workflow: str, version: int) -> None:
        """Let nothing of a version start any more, by name or by its Python object; it stays readable. Raises Refused
        while a run of it is unfinished, or an alias points to it. `deploy` makes it active again."""
        await self.deployments.retire(workflow, version)

    # --- moving runs -------------------------------------------------------------------------------------------------

    @on_its_loop
    async def plan_migration(self, run_id: str, to: int, *, drop: Sequence[str] = ()) -> dict[str, Any]:
        """What moving a run to another version would keep, run again and lose, or why it is impossible. Nothing is
        changed; `run.migrate` does it."""
        return msgspec.to_builtins(await self.migrating.plan(run_id, to, drop))  # type: ignore[no-any-return]

    @on_its_loop
    async def migrate(
        self,
        workflow: str,
        *,
        from_version: int,
        to: int,
        drop: Sequence[str] = (),
        dry_run: bool = False,
        actor: str = "",
    ) -> list[dict[str, Any]]:
        """Move every unfinished run of a version to another one, each in a commit of its own; what became of each. One
        that cannot be moved stays where it is. Asking again moves those that are left. `dry_run` only plans."""
        who = texts.actor(actor, "engine.migrate")
        done = await self.migrating.migrate_all(
            workflow, from_version, to, drop, who, dry_run=dry_run, drive=self.runtime.drives
        )
        return [msgspec.to_builtins(one) for one in done]

    @on_its_loop
    async def check_running(self, workflow: Workflow[..., Any]) -> list[dict[str, Any]]:
        """What moving the unfinished runs of all versions to this workflow would keep and lose, before it is
        deployed."""
        return [msgspec.to_builtins(one) for one in await self.migrating.check(workflow.registered)]
