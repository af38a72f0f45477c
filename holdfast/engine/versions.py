"""Versions: the definitions that this process has loaded, as versions of the store, and the other way round.

Owns: which version a definition is (registered when it is new), a version of the store as a workflow that can be
started, whether the code of a version is loaded here, and the capabilities that this process therefore offers
(model/capabilities.py has the form).
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from holdfast.engine.committer import Committer
from holdfast.model import handlers
from holdfast.model.capabilities import EngineCapabilities
from holdfast.model.definition import Definition, handlers_of
from holdfast.model.errors import CorruptJournal, HoldfastError
from holdfast.model.handlers import CodeLocation, Parameter, RegisteredWorkflow
from holdfast.model.plans import Plan
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans
from holdfast.store.records.version_records import VersionCode, version_code
from holdfast.store.version_contract import VersionRow

log = logging.getLogger("holdfast.engine")


class Versions(Plans):
    """Plans of all workflows this engine has read. One that does not run code has none loaded, whatever it imported."""

    def __init__(self, store: Store, *, runs_code: bool = True) -> None:
        super().__init__(store)
        self._runs_code = runs_code
        self._loaded: dict[int, Plan] = {}
        self._by_identity: dict[int, tuple[Definition, Plan]] = {}

    async def of(self, workflow: RegisteredWorkflow, committer: Committer, now: int) -> Plan:
        """The plan of a workflow that is loaded here; its version is registered when it is new."""
        definition = workflow.definition
        known = self._by_identity.get(id(definition))
        if known is None:
            content_hash, data = self._content(definition)
            latest = self._store.latest_version(definition.name)
            if latest is not None and latest.hash == content_hash:
                version = latest.version
            else:
                row = (definition.name, content_hash, data, now, code_of(workflow))
                version = await committer.call(self._store.register_version, *row)
            known = self._by_identity[id(definition)] = definition, self.numbered(definition.name, version, definition)
        return known[1]

    def _content(self, definition: Definition) -> tuple[str, bytes]:
        return definition.content_hash(), definition.encode()

    async def deploy(
        self, workflow: RegisteredWorkflow, committer: Committer, now: int, code: CodeLocation | None = None
    ) -> int:
        """Register a workflow, new or not, and make its version active; its number."""
        content_hash, data = self._content(workflow.definition)
        row = (workflow.definition.name, content_hash, data, now, code_of(workflow, code), True)
        return await committer.call(self._store.register_version, *row)

    def stored(self, row: VersionRow) -> RegisteredWorkflow:
        """A version as a workflow that can be started: the one that is loaded here if that is this version, else what
        the store knows of it. Its inputs are then checked against their JSON Schema alone."""
        try:
            loaded = handlers.find_workflow(row.workflow)
        except HoldfastError:  # what is loaded under this name cannot be traced; it is not this version
            loaded = None
        if loaded is not None and self._content(loaded.definition)[0] == row.hash:
            return loaded
        definition = self.numbered(row.workflow, row.version).definition
        params = tuple(Parameter(p.name, Any, p.required) for p in definition.params)
        code = version_code(row).location
        return RegisteredWorkflow(definition=definition, code=code, params=params, returns=Any)

    def runnable(self, workflow: str, version: int) -> bool:
        """Whether every handler of a version is loaded here."""
        try:
            plan = self.numbered(workflow, version)
        except CorruptJournal:
            return False
        return self.is_loaded(plan)

    def needed(self, workflow: str, version: int) -> list[str]:
        """The handlers of a version; none when its definition cannot be read."""
        try:
            return sorted(self.numbered(workflow, version).handlers)
        except CorruptJournal:
            return []

    def missing(self, workflow: str, version: int) -> list[str]:
        """The handlers of a version that are not loaded here."""
        return handlers.missing(self.needed(workflow, version))

    def is_loaded(self, plan: Plan) -> bool:
        """Whether every handler of a plan is loaded here; once true it stays true."""
        if id(plan) not in self._loaded:
            if not self._runs_code or handlers.missing(plan.handlers):
                return False
            self._loaded[id(plan)] = plan
        return True


def code_of(workflow: RegisteredWorkflow, code: CodeLocation | None = None) -> bytes:
    """What is stored about the code of a workflow that is loaded here; `code`: where it was loaded from instead."""
    fingerprints = handlers.fingerprints(sorted(handlers_of(workflow.definition.nodes)))
    return msgspec.json.encode(VersionCode(code or workflow.code, fingerprints))


def capabilities_here(
    queues: tuple[str, ...] | None, concurrency: int | None, lease_seconds: float
) -> EngineCapabilities:
    """What the code that is loaded here can do."""
    return EngineCapabilities(
        handlers=frozenset(handlers.names()),
        fingerprints=_strict_fingerprints(),
        queues=queues,
        concurrency=concurrency,
        lease_seconds=lease_seconds,
        threaded=frozenset(handlers.sync_names()),
    )


def _strict_fingerprints() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in handlers.strict_workflow_names():
        try:
            workflow = handlers.find_workflow(name)
            assert workflow is not None
            used = [handlers.find(uses) for uses in handlers_of(workflow.definition.nodes)]
        except Exception as e:  # noqa: BLE001 - tracing runs the author's code; a caller that starts the workflow gets the error
            log.warning("workflow %s cannot be offered: %s", name, e)
            continue
        found.update((handler.name, handler.fingerprint) for handler in used if handler is not None)
    return found
