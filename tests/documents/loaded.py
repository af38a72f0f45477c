"""The examples, loaded for one test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from holdfast.authoring.workflows import Workflow
from holdfast.model.definition import Definition
from tests import registry

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def graphs_of(path: Path) -> list[Definition]:
    """The graphs of a file. Its names compete with those of no other file."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with registry.importing():
        spec.loader.exec_module(module)
        found = [value.definition for value in vars(module).values() if isinstance(value, Workflow)]
    return [definition for definition in found if definition.kind == "graph"]
