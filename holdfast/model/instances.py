"""Instances as text: `node`, `node@.path.`, `node@.path.#visit`.

Owns: how people and events write one occurrence of a node, and reading it back.
"""

from __future__ import annotations

from holdfast.model.errors import InvalidInput

ROOT = "."


def instance_text(node: str, path: str = ROOT, visit: int = 1) -> str:
    """The shortest text that names an instance."""
    if visit != 1:
        return f"{node}@{path}#{visit}"
    return node if path == ROOT else f"{node}@{path}"


def parse_instance(text: str) -> tuple[str, str, int]:
    """(node, path, visit); what is not said is the root path and the first visit."""
    node, visit = text, 1
    if "#" in node:
        node, _, number = node.rpartition("#")
        if not number.isdigit() or int(number) < 1:
            raise InvalidInput(f"{text!r} is not an instance: behind # stands the number of the visit, from 1")
        visit = int(number)
    node, _, path = node.partition("@")
    path = path or ROOT
    if not node or not path.startswith(".") or not path.endswith("."):
        raise InvalidInput(f"{text!r} is not an instance: write node, node@.path. or node@.path.#visit")
    return node, path, visit
