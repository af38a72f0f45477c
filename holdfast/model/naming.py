"""Naming: ids that are generated, and the texts that name a place in a run.

Owns: run and engine ids (a timestamp, then random bits, so that they sort roughly by age) and ids derived from facts
(waits, children, idempotency keys); instances as text (`node`, `node@.path.`, `node@.path.#visit`); paths; the names
and paths of compensations.
Never: gives order; `seq` does.

A path names the scope that an instance belongs to: `.` is the workflow, `.pick.3.` is item 3 of the map `pick`. Names
and keys alternate; a lane of a parallel route is such a pair as well (`.route_1.eu.`), although it is not a scope. No
name contains `.`, `@`, `#` or `~`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from typing import Final

from holdfast.model.errors import InvalidInput

Instance = tuple[str, str, int]
"""(node, path, visit)"""

ROOT: Final = "."
UNDO: Final = "~undo"


def unique(prefix: str) -> str:
    """A fresh id such as `run_0199a8c4e1f0...`: 48 bits of milliseconds, 64 random bits, in 28 characters."""
    milliseconds = time.time_ns() // 1_000_000
    return prefix + (milliseconds.to_bytes(6, "big") + os.urandom(8)).hex()


def derived(prefix: str, *facts: object, size: int = 10) -> str:
    """An id that is a hash of these facts: the same facts give the same id in every process."""
    text = "\x1f".join(str(f) for f in facts)
    raw = hashlib.blake2b(text.encode(), digest_size=size).digest()
    return prefix + base64.b32hexencode(raw).decode().rstrip("=").lower()


# --- instances -------------------------------------------------------------------------------------------------


def instance_text(node: str, path: str = ROOT, visit: int = 1) -> str:
    """The shortest text that names an instance."""
    if visit != 1:
        return f"{node}@{path}#{visit}"
    return node if path == ROOT else f"{node}@{path}"


def parse_instance(text: str) -> Instance:
    """Read (node, path, visit) from a text; the defaults are the root path and the first visit. Raises InvalidInput."""
    node, visit = text, 1
    if "#" in node:
        node, _, number = node.rpartition("#")
        if not number.isdigit() or int(number) < 1:
            raise InvalidInput(f"{text!r} is not an instance: after # comes the number of the visit, from 1")
        visit = int(number)
    node, _, path = node.partition("@")
    path = path or ROOT
    if not node or not path.startswith(".") or not path.endswith("."):
        raise InvalidInput(f"{text!r} is not an instance: write node, node@.path. or node@.path.#visit")
    return node, path, visit


# --- paths -----------------------------------------------------------------------------------------------------


def paths_inside(node: str, path: str) -> str:
    """The prefix of every path inside the map or loop `node` at `path`."""
    return f"{path}{node}."


def scope_path(node: str, path: str, key: int | str) -> str:
    """The path of one item or round of the map or loop `node` at `path`."""
    return f"{path}{node}.{key}."


def key_of(path: str, prefix: str) -> int:
    """The item or round that a path belongs to, of the map or loop whose `paths_inside` is `prefix`."""
    return int(path[len(prefix) :].split(".", 1)[0])


def segments(path: str) -> list[tuple[str, str, str]]:
    """(name, key, path up to and including them) for each level of a path, outermost first."""
    parts = path.split(".")[1:-1]
    found: list[tuple[str, str, str]] = []
    here = ROOT
    for name, key in zip(parts[::2], parts[1::2], strict=True):
        here = scope_path(name, here, key)
        found.append((name, key, here))
    return found


def depth(path: str) -> int:
    """The depth of a path; only comparable with other depths."""
    return path.count(".")


# --- compensations ---------------------------------------------------------------------------------------------


def undo_of(node: str) -> str:
    """The node that compensates a node."""
    return f"{node}{UNDO}"


def is_undo(node: str) -> bool:
    """Whether a node is the compensation of another one."""
    return node.endswith(UNDO)


def undone_by(node: str) -> str:
    """The node that a compensation undoes."""
    return node.removesuffix(UNDO)


def undoes_step(path: str) -> bool:
    """Whether the instance at a path undoes a step of a body (see `step_path`)."""
    return "~" in path


def step_path(path: str, node: str, place: str) -> str:
    """The path of the compensation of a step: below the body that made the step."""
    return f"{path}{node}.~{place}."


def undone_instance(node: str, path: str, visit: int) -> Instance:
    """What a compensation undoes: its node, or the body whose step it undoes."""
    return (*body_of(path), visit) if undoes_step(path) else (undone_by(node), path, visit)


def body_of(path: str) -> tuple[str, str]:
    """(node, path) of the body whose step is undone at a path."""
    around, node, _ = path.rstrip(".").rsplit(".", 2)
    return node, f"{around}."
