"""Version records: what the rows of versions and aliases say, and the errors for those that are not there.

Owns: the form of `VersionRow.code`.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import UnknownVersion
from holdfast.model.handlers import CodeLocation
from holdfast.model.views import command_line
from holdfast.store.contract import Store
from holdfast.store.version_contract import VersionRow


class VersionCode(msgspec.Struct, omit_defaults=True):
    """Where the code of a version was, and what it did, when it was registered or last deployed."""

    location: CodeLocation = CodeLocation(kind="process")
    fingerprints: dict[str, str] = {}


_code = msgspec.json.Decoder(VersionCode).decode


def version_code(row: VersionRow) -> VersionCode:
    """What is stored about the code of a version."""
    return _code(row.code) if row.code else VersionCode()


def find_version(store: Store, workflow: str, version: int) -> VersionRow:
    """Find a version, retired or not. Raises UnknownVersion."""
    row = store.version(workflow, version)
    if row is None:
        raise unknown_version(store, workflow, version)
    return row


def unknown_version(store: Store, workflow: str, version: int | None = None) -> UnknownVersion:
    """The error for a name, or a version of it, that the store does not have or that cannot be started."""
    rows = store.versions(workflow)
    if version is not None and rows:
        there = ", ".join(str(row.version) for row in rows)
        return UnknownVersion(f"workflow {workflow} has no version {version}; it has {there}")
    what = f"every version of workflow {workflow} is retired" if rows else f"no workflow {workflow} was deployed here"
    return UnknownVersion(f"{what}; {command_line('deploy', 'FILE.py')} deploys one")


def unknown_alias(store: Store, workflow: str, alias: str) -> UnknownVersion:
    """The error for an alias that does not exist."""
    if store.latest_version(workflow) is None:
        return unknown_version(store, workflow)
    there = [move.alias for move in store.aliases(workflow) if move.target is not None]
    return UnknownVersion(f"workflow {workflow} has no alias {alias}; it has {', '.join(there) or 'none'}")
