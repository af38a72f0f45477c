"""Versions: the definitions that this process has loaded, as versions of the store.

Owns: which version a definition is (registered when it is new), whether the code of a version is loaded here, and the
capabilities that this process therefore offers (model/capabilities.py has the form).
"""

from __future__ import annotations

import logging

from holdfast.engine.committer import Committer
from holdfast.model import handlers
from holdfast.model.capabilities import EngineCapabilities
from holdfast.model.definition import Definition, handlers_of
from holdfast.model.errors import CorruptJournal
from holdfast.model.plans import Plan
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans

log = logging.getLogger("holdfast.engine")


class Versions(Plans):
    """Plans of all workflows this engine has read. One that does not run code has none loaded, whatever it imported."""

    def __init__(self, store: Store, *, runs_code: bool = True) -> None:
        super().__init__(store)
        self._runs_code = runs_code
        self._loaded: dict[int, Plan] = {}
        self._by_identity: dict[int, tuple[Definition, Plan]] = {}

    async def of(self, definition: Definition, committer: Committer, now: int) -> Plan:
        """The plan of a definition that is loaded here; its version is registered when it is new."""
        known = self._by_identity.get(id(definition))
        if known is None:
            content_hash, data = self._content(definition)
            latest = self._store.latest_version(definition.name)
            if latest is not None and latest.hash == content_hash:
                version = latest.version
            else:
                version = await committer.call(self._store.register_version, definition.name, content_hash, data, now)
            known = self._by_identity[id(definition)] = definition, self.numbered(definition.name, version, definition)
        return known[1]

    def _content(self, definition: Definition) -> tuple[str, bytes]:
        return definition.content_hash(), definition.encode()

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
