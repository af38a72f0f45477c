"""What the linter cannot see: lengths, detours around the layers, private names, file names, numbers, words, cycles.

The bounds at the top may only be lowered. A check that finds fewer cases than its bound allows says so as well, where
the cases are named one by one: a name on a list that is no longer needed would let the next one in.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypeGuard

import pytest

from holdfast.cli.main import COMMANDS
from tests import tidy_code
from tests.tidy_code import ROOT

# --- bounds: lower them when you can, never raise them --------------------------------------------------------------

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

LONG_FILES: set[str] = {
    "holdfast/inspect/doctor/legality.py",
    "holdfast/model/errors.py",
    "holdfast/model/events.py",
    "holdfast/model/evolve.py",
    "holdfast/testing/explorer/effects.py",
    "holdfast/testing/explorer/search.py",
    "tests/cli/test_forms.py",
    "tests/cli/test_waiting.py",
    "tests/crash/flows.py",
    "tests/doctor/test_audit.py",
    "tests/engine/test_api.py",
    "tests/engine/test_asking.py",
    "tests/engine/test_baskets.py",
    "tests/engine/test_bodies.py",
    "tests/engine/test_changed_code.py",
    "tests/engine/test_children.py",
    "tests/engine/test_durable_code.py",
    "tests/engine/test_end_of_a_body.py",
    "tests/engine/test_failure.py",
    "tests/engine/test_many_engines.py",
    "tests/engine/test_pausing.py",
    "tests/engine/test_race.py",
    "tests/engine/test_readers.py",
    "tests/engine/test_signals.py",
    "tests/engine/test_task_scopes.py",
    "tests/engine/test_tickets.py",
    "tests/engine/test_values.py",
    "tests/engine/test_waits_in_tasks.py",
    "tests/engine/test_waking.py",
    "tests/explorer/ablations.py",
    "tests/model/test_answers.py",
    "tests/model/test_validation.py",
    "tests/property/test_memory.py",
    "tests/rules/play.py",
    "tests/rules/test_failures.py",
    "tests/rules/test_pends.py",
    "tests/rules/test_questions.py",
    "tests/rules/test_readiness.py",
    "tests/rules/test_tickets.py",
    "tests/store/conformance/store.py",
    "tests/store/histories.py",
    "tests/store/postgres/test_lost_connections.py",
    "tests/store/postgres/test_postgres_statements.py",
    "tests/store/sqlite/test_sqlite_store.py",
    "tests/store/test_copy.py",
    "tests/worker/test_processes.py",
}
"""Files that are longer than FILE_LINES_MAX. Split one by its second idea, then remove its line here."""

LONG_FUNCTIONS: set[str] = {
    "holdfast/cli/commands/resuming_runs.py: resume",
    "holdfast/opening.py: open_engine",
    "holdfast/cli/commands/crashtest.py: crashtest",
    "holdfast/testing/explorer/search.py: explore",
    "tests/engine/test_durable_code.py: test_remembered_calls_are_not_made_again_when_the_body_runs_again",
    "tests/rules/play.py: __init__",
}
"""Functions that are longer than FUNCTION_LINES_MAX."""

UPWARD_NAMES: set[str] = set()
"""Modules that name a module of a higher layer in a string, to import it past the layer contract."""

QUARANTINE: set[str] = {
    "holdfast/engine/asyncio_internals.py",
    "holdfast/store/postgres/driver_internals.py",
    "holdfast/testing/simulation/python_internals.py",
}
"""Modules that may use the private names of another package: one for each package, with a self-test."""

PRIVATE_NAMES: set[str] = {
    "holdfast/cli/main.py",
}
"""Other modules that do."""

REPEATED_FILE_NAMES: set[str] = set()
"""File names that more than one package of holdfast has."""

NUMBERS_OUTSIDE_LIMITS: dict[str, int] = {
    "__main__": 1,
    "authoring": 1,
    "cli": 46,
    "engine": 33,
    "model": 7,
    "store": 42,
    "testing": 10,
}
"""How many numbers have a name at the top of a module other than holdfast/model/limits.py, by package; without those of
FORMAT_NUMBERS."""

FORMAT_NUMBERS: set[str] = {
    "holdfast/store/sqlite/open_files.py: _ANSWER_BYTES",
    "holdfast/store/sqlite/open_files.py: _CURRENT_FOLDER",
    "holdfast/store/sqlite/open_files.py: _INODE_ONLY",
    "holdfast/store/sqlite/open_files.py: _NO_SYNCHRONISATION",
    "holdfast/store/sqlite/open_files.py: COUNTER_AT",
    "holdfast/store/sqlite/open_files.py: COUNTER_SIZE",
    "holdfast/store/sqlite/open_files.py: INDEX_IN_USE",
    "holdfast/store/sqlite/open_files.py: PENDING_BYTE",
    "holdfast/store/sqlite/open_files.py: SHARED_SIZE",
    "holdfast/store/sqlite/open_files.py: _VALID_FOR_AT",
}
"""Numbers that Linux or SQLite has chosen (offsets, sizes, flags): they are no bounds of ours and stay where they are
used. A number that this project could choose differently does not belong here."""

VAGUE_WORDS_MAX = 26
"""How often nobody, somebody and whoever occur in holdfast/. The aim is 20."""

KNOTTED_MODULES_MAX = 0
"""How many modules are in an import cycle when imports under TYPE_CHECKING count."""

ENGINE_HOLDERS_MAX = 3
"""How many modules keep an Engine in an attribute. The aim is 3."""

# --- lengths ----------------------------------------------------------------------------------------------------------

CHECKED = ("holdfast", "tests", "examples", "benchmarks", "dev.py")


def test_no_file_is_longer_than_a_reader_keeps_in_mind() -> None:
    found = {name for name, source in tidy_code.sources(*CHECKED).items() if len(source.splitlines()) > FILE_LINES_MAX}
    _compare(
        found, LONG_FILES, "LONG_FILES",
        f"has more than {FILE_LINES_MAX} lines: a second idea has moved in; give it a module of its own",
    )  # fmt: skip


def test_no_function_is_longer_than_a_page() -> None:
    found = set()
    for name, tree in tidy_code.trees(*CHECKED).items():
        for function in tidy_code.functions(tree):
            if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX:
                found.add(f"{name}: {function.name}")
    _compare(
        found, LONG_FUNCTIONS, "LONG_FUNCTIONS",
        f"has more than {FUNCTION_LINES_MAX} lines: its middle wants a name",
    )  # fmt: skip


# --- the layers -------------------------------------------------------------------------------------------------------


def test_no_module_is_imported_by_name_from_a_lower_layer() -> None:
    """import-linter sees import statements only."""
    modules, layers = tidy_code.modules(), tidy_code.layers()
    found = set()
    for name, tree in tidy_code.trees("holdfast").items():
        here = tidy_code.package(name)
        for named in set(tidy_code.texts(tree)) & modules.keys():
            there = tidy_code.package(modules[named])
            if here in layers and there in layers and layers[there] < layers[here]:
                found.add(f"{name}: {named}")
    _compare(
        found, UPWARD_NAMES, "UPWARD_NAMES",
        "names a module of a higher layer: hand in what is needed, or move the smaller part down",
    )  # fmt: skip


def test_no_import_cycle_is_hidden_by_type_checking() -> None:
    knots = [knot for knot in tidy_code.components(tidy_code.imports()) if len(knot) > 1]
    count = sum(map(len, knots))
    assert count <= KNOTTED_MODULES_MAX, (
        f"{count} modules are in import cycles if imports under TYPE_CHECKING count, more than {KNOTTED_MODULES_MAX}: "
        f"let a module receive what it uses, or declare a protocol below both. {_listed(map(_listed, knots))}"
    )


def test_few_modules_keep_the_engine() -> None:
    holders = {name for name, tree in tidy_code.trees("holdfast").items() if tidy_code.keeps_engine(tree)}
    assert len(holders) <= ENGINE_HOLDERS_MAX, (
        f"{len(holders)} modules keep an Engine, more than {ENGINE_HOLDERS_MAX}: pass in the parts that are used "
        f"(store, committer, clock, ...) instead. {_listed(holders)}"
    )


# --- names and numbers ------------------------------------------------------------------------------------------------


def test_private_names_of_other_packages_are_used_in_quarantine_only() -> None:
    trees = tidy_code.trees("holdfast")
    ours = {name for tree in trees.values() for name in tidy_code.defined(tree)}
    using = {name: set(tidy_code.foreign_private(tree, ours)) for name, tree in trees.items()}
    found = {name for name, private in using.items() if private and name not in QUARANTINE}
    _compare(
        found, PRIVATE_NAMES, "PRIVATE_NAMES",
        "uses a private name of another package: move that into the package's quarantine module, which tests at start "
        f"that the name still works. {using}",
    )  # fmt: skip


def test_quarantine_modules_exist() -> None:
    assert {name for name in QUARANTINE if not (ROOT / name).exists()} == set(), "remove these from QUARANTINE"


def test_a_file_name_says_which_file_is_meant() -> None:
    names = Counter(path.name for path in (ROOT / "holdfast").rglob("*.py") if not path.name.startswith("__"))
    _compare(
        {name for name, count in names.items() if count > 1}, REPEATED_FILE_NAMES, "REPEATED_FILE_NAMES",
        "is the name of several files in holdfast/: name each for what it owns",
    )  # fmt: skip


def test_numbers_stand_in_limits() -> None:
    trees = tidy_code.trees("holdfast")
    named = {f"{name}: {number}" for name, tree in trees.items() for number in tidy_code.named_numbers(tree)}
    assert not FORMAT_NUMBERS - named, f"remove these from FORMAT_NUMBERS: {_listed(FORMAT_NUMBERS - named)}"
    found: dict[str, list[str]] = defaultdict(list)
    for number in named - FORMAT_NUMBERS:
        if not number.startswith("holdfast/model/limits.py: "):
            found[tidy_code.package(number.partition(":")[0])].append(number)
    for package, numbers in sorted(found.items()):
        bound = NUMBERS_OUTSIDE_LIMITS.get(package, 0)
        assert len(numbers) <= bound, (
            f"{package} has {len(numbers)} numbers at the top of its modules, more than {bound}: a bound belongs into "
            f"holdfast/model/limits.py, with a sentence that says why it is that number. {_listed(numbers)}"
        )


def test_sentences_name_who_acts() -> None:
    texts = [path.read_text() for suffix in ("py", "sql") for path in (ROOT / "holdfast").rglob(f"*.{suffix}")]
    count = sum(len(re.findall(r"\b(?:nobody|somebody|whoever)\b", text, re.IGNORECASE)) for text in texts)
    assert count <= VAGUE_WORDS_MAX, (
        f"nobody, somebody and whoever occur {count} times in holdfast/, more than {VAGUE_WORDS_MAX}: say who acts "
        "(the engine, the run, the body, the caller, the operator, the server)"
    )


def test_commands_are_spelled_in_one_place_below_the_command_line() -> None:
    """Errors and readers name a verb and its arguments; `command_line` makes the command of them."""
    spelled = re.compile(rf"holdfast (?:{'|'.join(COMMANDS)})\b")
    below = {name: tree for name, tree in tidy_code.trees("holdfast").items() if tidy_code.package(name) != "cli"}
    for name, tree in below.items():
        found = sorted(text for text in tidy_code.messages(tree) if spelled.search(text))
        assert not found, f"{name}: use command_line of holdfast/model/views.py instead: {found}"


def test_commands_named_below_the_command_line_exist() -> None:
    for name, tree in tidy_code.trees("holdfast").items():
        named = {call.args[0].value for call in tidy_code.calls(tree, "command_line") if _is_text(call.args[0])}
        assert named <= COMMANDS.keys(), f"{name} names commands that do not exist: {_listed(named - COMMANDS.keys())}"


# --- the checks themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import asyncio\nasyncio.tasks._leave_task(loop, task)", {"asyncio.tasks._leave_task"}),
        ("from asyncio import events\nevents._set_running_loop(loop)", {"events._set_running_loop"}),
        ("from asyncio.tasks import _leave_task", {"_leave_task"}),
        ("loop._selector.get_map()", {"loop._selector"}),
        ("getattr(loop, '_selector', None)", {"_selector"}),
        ("typer.BadParameter.__bases__[0]", {"typer.BadParameter.__bases__"}),
        ("import os\nos._exit(1)", set()),
        ("self._selector, cls._selector, one._ours, type(self).__name__", set()),
    ],
)
def test_a_private_name_of_another_package_is_recognised(source: str, private: set[str]) -> None:
    assert set(tidy_code.foreign_private(ast.parse(source), {"_ours"})) == private


@pytest.mark.parametrize(
    ("source", "keeps"),
    [
        ("class A:\n def __init__(self, engine: Engine): self._engine = engine", True),
        ("class A:\n def __init__(self, engine: 'Engine | None'): self.driver = engine", True),
        ("class A:\n engine: Engine", True),
        ("class A:\n def __init__(self, engine: Engine): self.store = engine.store", False),
        ("def read(engine: Engine):\n here = engine\n return here.store", False),
    ],
)
def test_a_module_that_keeps_the_engine_is_recognised(source: str, keeps: bool) -> None:
    assert tidy_code.keeps_engine(ast.parse(source)) is keeps


def test_cycles_are_recognised() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert sorted(map(sorted, tidy_code.components(graph))) == [["a", "b", "c"], ["d"], ["e"]]


def test_numbers_with_names_are_recognised() -> None:
    source = "A = 4\n_B: Final = 2 * 1024\nC = 'text'\nD = True\nlower = 3\nE = -0.5\nF = (1, 2)\nG = A"
    assert list(tidy_code.named_numbers(ast.parse(source))) == ["A", "_B", "E"]


def test_a_list_of_exceptions_may_only_shrink() -> None:
    _compare({"a"}, {"a"}, "NAMES", "is wrong")
    with pytest.raises(AssertionError, match="b is wrong"):
        _compare({"a", "b"}, {"a"}, "NAMES", "is wrong")
    with pytest.raises(AssertionError, match="remove these from NAMES"):
        _compare(set(), {"a"}, "NAMES", "is wrong")


def _compare(found: set[str], allowed: set[str], list_name: str, advice: str) -> None:
    new, stale = sorted(found - allowed), sorted(allowed - found)
    assert not new, "\n".join(f"{name} {advice}" for name in new)
    assert not stale, f"well done; remove these from {list_name} in tests/test_tidy.py: {_listed(stale)}"


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
