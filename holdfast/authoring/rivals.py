"""Rivals: two workflows of one name in one process.

Owns: which workflow has a name, and whether another one that has it too may exist beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.authoring import functions
from holdfast.model.definition import Definition
from holdfast.model.errors import DefinitionError


class Named(Protocol):
    """What is needed of a workflow here."""

    name: str
    handler_name: str
    fn: Callable[..., Any]

    @property
    def definition(self) -> Definition: ...


_lock = threading.Lock()
_claimed: dict[str, Any] = {}


def claim(workflow: Named) -> Named | None:
    """Claim the name; the workflow that had it before, if that is another one that exists beside this one.

    The same function again (a notebook cell, a reloaded module) replaces the former, and so does a function inside
    another function, which cannot know of earlier uses of the name.
    """
    with _lock:
        former: Named | None = _claimed.get(workflow.name)
        _claimed[workflow.name] = workflow
    if former is None or former.handler_name == workflow.handler_name:
        return None
    here, there = workflow.handler_name.rpartition(".")[0], former.handler_name.rpartition(".")[0]
    if "<locals>" in here + there and here != there:
        return None
    return former


def check(workflow: Named, ours: Definition, rival: Named | None) -> None:
    """Refuse a workflow whose name another one has with other content."""
    if rival is None:
        return
    try:
        theirs = rival.definition
    except Exception:  # noqa: BLE001 - tracing runs the other author's function; its errors are for those who use it
        return
    if theirs.content_hash() != ours.content_hash():
        raise DefinitionError(
            f"two workflows are called {workflow.name!r}: {rival.handler_name} ({functions.describe(rival.fn)}) and "
            f"{workflow.handler_name} ({functions.describe(workflow.fn)}); give one of them @hf.workflow(name=...)"
        )
