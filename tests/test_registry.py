"""Each test has a registry of its own: see tests/registry.py."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

import pytest

import holdfast as hf
from holdfast.model import handlers
from tests import registry


def module(name: str, code: str) -> ModuleType:
    """A test module, imported as pytest imports one."""
    made = sys.modules[name] = ModuleType(name)
    with registry.importing():
        exec(textwrap.dedent(code), made.__dict__)  # noqa: S102
    return made


@pytest.fixture
def two_modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """Two modules, each with a workflow `chain` of its own."""
    code = """
    import holdfast as hf

    @hf.node
    def up(x: int) -> int:
        return x

    @hf.workflow
    def chain(x: int):
        return {body}
    """
    names = ("tests.one_of_two", "tests.other_of_two")
    yield tuple(module(name, code.format(body=body)) for name, body in zip(names, ("up(x)", "up(up(x))"), strict=True))  # type: ignore[misc]
    for name in names:
        del sys.modules[name], registry._defined[name]


def nodes_of(name: str) -> int:
    found = handlers.find_workflow(name)
    assert found is not None
    return len(found.definition.nodes)


def test_a_name_means_the_workflow_of_the_module_whose_test_runs(two_modules: tuple[ModuleType, ModuleType]) -> None:
    for made, count in [*zip(two_modules, (1, 2), strict=True)] * 2:
        with registry.registry_of(made):
            assert nodes_of("chain") == count


def test_workflows_of_modules_that_a_module_imports_are_its_own_too(two_modules: tuple[ModuleType, ModuleType]) -> None:
    user = ModuleType("tests.user_of_one")
    user.one = two_modules[0]  # type: ignore[attr-defined]
    sys.modules[user.__name__] = user
    try:
        with registry.registry_of(user):
            assert nodes_of("chain") == 1
    finally:
        del sys.modules[user.__name__]


def test_what_a_test_defines_is_forgotten_when_it_ends(two_modules: tuple[ModuleType, ModuleType]) -> None:
    with registry.registry_of(two_modules[0]):

        @hf.workflow
        def chain(x: int):
            return [x, x]

        @hf.workflow
        def only_here(x: int):
            return x

        assert nodes_of("chain") == 0
        assert "only_here" in handlers.workflow_names()
    with registry.registry_of(two_modules[0]):
        assert nodes_of("chain") == 1
        assert "only_here" not in handlers.workflow_names()
