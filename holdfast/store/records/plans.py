"""Plans: the definitions in a store, compiled once per version.

Owns: reading a version of a workflow and compiling it.
Never: registers a version, or says whether its code is loaded (engine/versions.py).
"""

from __future__ import annotations

from holdfast.model import definition as definitions
from holdfast.model.definition import Definition
from holdfast.model.errors import CorruptJournal
from holdfast.model.graph import Plan, compile_definition
from holdfast.store.contract import Store


class Plans:
    """The plans of one store that have been read so far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_version: dict[tuple[str, int], Plan] = {}

    def numbered(self, workflow: str, version: int, definition: Definition | None = None) -> Plan:
        """The plan of a version; `definition` saves reading it. Raises CorruptJournal when the store has no such
        version."""
        plan = self._by_version.get((workflow, version))
        if plan is None:
            if definition is None:
                row = self._store.version(workflow, version)
                if row is None:
                    raise CorruptJournal(f"version {version} of workflow {workflow} is not in the store")
                definition = definitions.decode(row.definition)
            plan = self._by_version[workflow, version] = compile_definition(definition, version)
        return plan
