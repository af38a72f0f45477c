"""Versions: definitions as the store numbers them, compiled once.

Owns: which version a definition is, and the compiled plan of a version.
"""

from __future__ import annotations

import asyncio

from holdfast.engine.committer import Committer
from holdfast.model import definition as definitions
from holdfast.model import handlers
from holdfast.model.definition import Definition
from holdfast.model.errors import CorruptJournal
from holdfast.model.graph import Plan, compile_definition
from holdfast.store.api import Store


class Versions:
    """Plans of all workflows this engine has met. One that does not run code has none loaded, whatever it imported."""

    def __init__(self, store: Store, *, runs_code: bool = True) -> None:
        self._store = store
        self._runs_code = runs_code
        self._by_version: dict[tuple[str, int], Plan] = {}
        self._loaded: dict[int, Plan] = {}
        self._by_identity: dict[int, tuple[Definition, Plan]] = {}
        self._numbering: dict[int, asyncio.Event] = {}
        """Definitions whose number is being asked for: of 1,000 runs that start at once the first one asks."""

    async def of(self, definition: Definition, committer: Committer, now: int) -> Plan:
        """The plan of a definition that is loaded here; its version is made when it is new."""
        while (known := self._by_identity.get(id(definition))) is None:
            asked = self._numbering.get(id(definition))
            if asked is not None:
                await asked.wait()
                continue
            asked = self._numbering[id(definition)] = asyncio.Event()
            try:
                await self._number(definition, committer, now)
            finally:
                del self._numbering[id(definition)]
                asked.set()
        return known[1]

    async def _number(self, definition: Definition, committer: Committer, now: int) -> None:
        content_hash, data = self._content(definition)
        latest = self._store.latest_version(definition.name)
        if latest is not None and latest.hash == content_hash:
            version = latest.version
        else:
            version = await committer.call(self._store.register_version, definition.name, content_hash, data, now)
        plan = self.numbered(definition.name, version, definition)
        self._by_identity[id(definition)] = (definition, plan)

    def _content(self, definition: Definition) -> tuple[str, bytes]:
        return definition.content_hash(), definition.encode()

    def numbered(self, workflow: str, version: int, definition: Definition | None = None) -> Plan:
        """The plan of a version in the store."""
        plan = self._by_version.get((workflow, version))
        if plan is None:
            if definition is None:
                row = self._store.version(workflow, version)
                if row is None:
                    raise CorruptJournal(f"version {version} of workflow {workflow} is not in the store")
                definition = definitions.decode(row.definition)
            plan = self._by_version[workflow, version] = compile_definition(definition, version)
        return plan

    def runnable(self, workflow: str, version: int) -> bool:
        """Whether every handler of a version is loaded here."""
        try:
            plan = self.numbered(workflow, version)
        except CorruptJournal:
            return False
        return self.is_loaded(plan)

    def missing(self, workflow: str, version: int) -> list[str]:
        """The handlers of a version that are not loaded here."""
        try:
            plan = self.numbered(workflow, version)
        except CorruptJournal:
            return []
        return sorted(name for name in plan.handlers if handlers.find(name) is None)

    def is_loaded(self, plan: Plan) -> bool:
        """Whether every handler of a plan is loaded here; once true it stays true."""
        if id(plan) not in self._loaded:
            if not self._runs_code or any(handlers.find(name) is None for name in plan.handlers):
                return False
            self._loaded[id(plan)] = plan
        return True
