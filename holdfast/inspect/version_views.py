"""Version views: workflows, their versions and aliases as JSON, and what differs between two versions.

Owns: the JSON forms, and a difference as structure: nodes that were added, removed or changed (field by field), edges,
and what else makes a version. Nodes inside maps and loops are named `map.node`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model import definition as definitions
from holdfast.model.definition import Definition
from holdfast.model.plans import ScopePlan, compile_definition
from holdfast.model.rollouts import target_of
from holdfast.model.views import iso_or_none
from holdfast.store.contract import Store
from holdfast.store.records.version_records import find_version, unknown_alias, unknown_version, version_code
from holdfast.store.version_contract import AliasMove, VersionRow


def workflows_json(store: Store) -> list[dict[str, Any]]:
    """Every workflow of a store, by name."""
    found: dict[str, dict[str, Any]] = {}
    for row in store.versions():
        about = found.setdefault(row.workflow, {"workflow": row.workflow, "latest": None, "versions": 0, "retired": 0})
        about["versions"] += 1
        if row.retired_at is None:
            about["latest"] = row.version
        else:
            about["retired"] += 1
    for name, about in found.items():
        about["unfinished"] = sum(store.unfinished_by_version(name).values())
        about["aliases"] = {}
    for move in store.aliases():
        target = target_of(move.target)
        if target is not None and move.workflow in found:
            found[move.workflow]["aliases"][move.alias] = _target_json(move.target)
    return [found[name] for name in sorted(found)]


def versions_json(store: Store, workflow: str) -> list[dict[str, Any]]:
    """The versions of a workflow. Raises UnknownVersion."""
    rows = store.versions(workflow)
    if not rows:
        raise unknown_version(store, workflow)
    unfinished = store.unfinished_by_version(workflow)
    named: dict[int, list[str]] = {}
    for move in store.aliases(workflow):
        target = target_of(move.target)
        for version in () if target is None else target.versions:
            named.setdefault(version, []).append(move.alias)
    return [_version_json(row, unfinished.get(row.version, 0), named.get(row.version, [])) for row in rows]


def _version_json(row: VersionRow, unfinished: int, aliases: list[str]) -> dict[str, Any]:
    definition = definitions.decode(row.definition)
    location = version_code(row).location
    return {
        "workflow": row.workflow,
        "version": row.version,
        "hash": row.hash,
        "kind": definition.kind,
        "nodes": len(definition.nodes),
        "created_at": iso_or_none(row.created_at),
        "retired_at": iso_or_none(row.retired_at),
        "unfinished": unfinished,
        "aliases": aliases,
        "code": location.file or location.module or None,
        "description": definition.doc,
    }


def aliases_json(store: Store, workflow: str | None = None) -> list[dict[str, Any]]:
    """Where the aliases of a workflow, or of all, point."""
    return [_alias_json(move) for move in store.aliases(workflow) if move.target is not None]


def history_json(store: Store, workflow: str, alias: str) -> list[dict[str, Any]]:
    """Every move of an alias. Raises UnknownVersion."""
    moves = store.alias_moves(workflow, alias)
    if not moves:
        raise unknown_alias(store, workflow, alias)
    before: list[AliasMove | None] = [None, *moves[:-1]]
    return [
        {**_alias_json(move), "before": None if last is None else _target_json(last.target)}
        for last, move in zip(before, moves, strict=True)
    ]


def _alias_json(move: AliasMove) -> dict[str, Any]:
    about = {"workflow": move.workflow, "alias": move.alias, "target": _target_json(move.target)}
    return {**about, "at": iso_or_none(move.at), "actor": move.actor, "reason": move.reason}


def _target_json(data: bytes | None) -> dict[str, Any] | None:
    target = target_of(data)
    return None if target is None else {"version": target.version, "weights": target.weights}


# --- what differs ----------------------------------------------------------------------------------------------------


def diff_json(store: Store, workflow: str, one: int, other: int) -> dict[str, Any]:
    """What differs between two versions of a workflow. Raises UnknownVersion."""
    before, after = (definitions.decode(find_version(store, workflow, version).definition) for version in (one, other))
    return {"workflow": workflow, "from": one, "to": other, **definition_diff(before, after)}


def definition_diff(before: Definition, after: Definition) -> dict[str, Any]:
    """What differs between two definitions. `nodes.changed` and `other` give each field as [before, after]."""
    old, new = (dict(_nodes(compile_definition(one, 0).root)) for one in (before, after))
    changed = [
        {"node": name, "fields": fields} for name in new if name in old and (fields := _fields(old[name], new[name]))
    ]
    edges = [set(_edges(compile_definition(one, 0).root)) for one in (before, after)]
    return {
        "nodes": {
            "added": [name for name in new if name not in old],
            "removed": [name for name in old if name not in new],
            "changed": changed,
        },
        "edges": {
            "added": sorted(map(list, edges[1] - edges[0])),
            "removed": sorted(map(list, edges[0] - edges[1])),
        },
        "other": _fields(_around(before), _around(after)),
    }


def _nodes(scope: ScopePlan, inside: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The nodes of a scope and of those inside it, by name."""
    for name, plan in scope.nodes.items():
        about = msgspec.to_builtins(plan.definition)
        body = about.pop("body", None)
        if body is not None:
            about["result"] = body.get("result")
        del about["id"]
        yield inside + name, about
        if plan.body is not None:
            yield from _nodes(plan.body, f"{inside}{name}.")


def _edges(scope: ScopePlan, inside: str = "") -> Iterator[tuple[str, str]]:
    """(before, after): which node waits for which, by data, condition or order."""
    for name, plan in scope.nodes.items():
        for waits_for in plan.waits_for:
            yield inside + waits_for, inside + name
        if plan.body is not None:
            yield from _edges(plan.body, f"{inside}{name}.")


def _around(definition: Definition) -> dict[str, Any]:
    """What makes a version beside its nodes: settings, inputs, variables and the like, one entry each."""
    about = msgspec.to_builtins(definition)
    for name in ("nodes", "doc", "name"):
        about.pop(name, None)
    params = {f"input {p['name']}": p for p in about.pop("params", [])}
    settings = {f"setting {name}": value for name, value in about.pop("settings", {}).items()}
    variables = {f"variable {name}": schema for name, schema in about.pop("variables", {}).items()}
    tickets = {f"ticket {name}": node for name, node in about.pop("tickets", {}).items()}
    return {**params, **settings, **variables, **tickets, **about}


def _fields(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    names = dict.fromkeys([*before, *after])
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}
