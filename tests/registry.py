"""A registry of workflows and handlers for each test.

Holdfast finds a workflow by its name, in one registry for the process, and all test modules are imported into one
process. So that a test module may call its workflow `chain` although another one has a `chain` as well:

- while a test module is imported, no name counts as used by another workflow;
- while a test runs, the names of its own module, and of the modules that this one imports, mean their own workflows;
- what a test defines is forgotten when it ends.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from holdfast.authoring import rivals, workflows
from holdfast.model import handlers

OURS = ("tests.", "examples.")
"""Modules that are imported once for all tests. What a test imports from a folder of its own ends with it."""

Registered = workflows.Workflow[..., Any]

_defined: dict[str, dict[str, Registered]] = defaultdict(dict)
"""Which workflows each module defines at its top level."""


@contextmanager
def importing() -> Iterator[None]:
    """While a test module is imported: its names compete with nothing that was imported before."""
    rivals._claimed.clear()
    yield
    _note_defined()


@contextmanager
def registry_of(module: ModuleType) -> Iterator[None]:
    """While a test of this module runs: a registry of its own, which starts with what the module can see."""
    kept = dict(handlers._handlers), dict(handlers._workflows), set(handlers._strict), dict(rivals._claimed)
    for seen in _seen_by(module):
        for workflow in _defined.get(seen, {}).values():
            _register(workflow)
    try:
        yield
    finally:
        _note_defined()
        registries = (handlers._handlers, handlers._workflows, handlers._strict, rivals._claimed)
        for registry, before in zip(registries, kept, strict=True):
            registry.clear()
            registry.update(before)  # type: ignore[arg-type]  # each with its own
        for found in _defined.values():
            for name, workflow in found.items():
                if name not in handlers._workflows:  # of a module that a test has imported
                    _register(workflow)


def _register(workflow: Registered) -> None:
    is_strict = workflow.settings.on_code_change == "fail"
    handlers.register_workflow(workflow.name, lambda: workflow.registered, is_strict=is_strict)
    rivals._claimed[workflow.name] = workflow


def _note_defined() -> None:
    """Remember what was defined at the top of test modules, also of those that a test has imported just now."""
    for name, workflow in rivals._claimed.items():
        module = workflow.fn.__module__
        if "<" not in workflow.fn.__qualname__ and module.startswith(OURS):
            _defined[module].setdefault(name, workflow)


def _seen_by(module: ModuleType) -> list[str]:
    """The modules that a test module uses, directly or not, and itself as the last one."""
    parts = module.__name__.split(".")
    conftests = [".".join([*parts[:depth], "conftest"]) for depth in range(1, len(parts))]
    found: dict[str, None] = {}
    ahead = [*conftests, module.__name__]
    while ahead:
        name = ahead.pop()
        if name in found or name not in sys.modules:
            continue
        found[name] = None
        for value in vars(sys.modules[name]).values():
            other = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(other, str) and other.startswith(OURS):
                ahead.append(other)
    return [*(name for name in found if name != module.__name__), module.__name__]
