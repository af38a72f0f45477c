"""Loading code that the user names: under the right module name, once, and with clear mistakes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.model import handlers
from holdfast.model.errors import UsageError
from holdfast.worker.loading import load_code, load_file, load_target, source_files, workflows_in

WORKFLOW = """
from holdfast.model import handlers

class Workflow:
    def __init__(self, fn, name):
        self.fn = fn
        self.name = name
        handlers.register_workflow(name, lambda: None)

    def __call__(self):
        return self.fn()

def workflow(fn):
    return Workflow(fn, fn.__name__)
"""

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _fresh_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test loads is gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(handlers, "_workflows", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if not name.startswith("holdfast"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of the user's, with the decorator that a workflow needs."""

    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(WORKFLOW + textwrap.dedent(text))
        file.chmod(0o600)
        return file

    return write


ONE = """
@workflow
def fulfil():
    return 1
"""

TWO = (
    ONE
    + """
@workflow
def refund():
    return 2

def charge():
    pass
"""
)


# --- by the user's word ----------------------------------------------------------------------------------------


def test_file_and_name(write: Write) -> None:
    file = write("hf_shop.py", TWO)
    module, workflow = load_target(f"{file}:refund")
    assert (module.__name__, workflow.name, sys.path[0]) == ("hf_shop", "refund", str(file.parent))
    assert sys.modules["hf_shop"] is module


def test_relative_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("hf_shop.py", ONE)
    monkeypatch.chdir(file.parent)
    assert load_target("hf_shop.py:fulfil")[0].__file__ == str(file)


def test_the_only_workflow_needs_no_name(write: Write) -> None:
    assert load_target(str(write("hf_shop.py", ONE)))[1].name == "fulfil"


def test_a_file_is_executed_once(write: Write) -> None:
    file = write("hf_shop.py", ONE)
    assert load_file(file) is load_file(str(file)) is load_target(f"{file}:fulfil")[0]


def test_neighbours_can_be_imported_and_their_workflows_do_not_count(write: Write) -> None:
    write("hf_child.py", "@workflow\ndef pack(): pass\n")
    file = write("hf_shop.py", "from hf_child import pack\n" + ONE)
    module, workflow = load_target(str(file))
    assert workflow.name == "fulfil"
    assert list(workflows_in(module)) == ["fulfil"]
    assert load_target(f"{file}:pack")[1].name == "pack"


def test_several_workflows_and_no_name_lists_them(write: Write) -> None:
    file = write("hf_shop.py", TWO)
    with pytest.raises(UsageError, match=f"several workflows, so name one: {file}:fulfil, {file}:refund"):
        load_target(str(file))


def test_no_workflow_at_all(write: Write) -> None:
    with pytest.raises(UsageError, match=r"has no workflow: put @hf\.workflow on a function"):
        load_target(str(write("hf_shop.py", "")))


def test_wrong_name_gets_close_matches(write: Write) -> None:
    with pytest.raises(
        UsageError, match=r"no workflow 'fulfill'\. Did you mean fulfil\? Workflows there: fulfil, refund"
    ):
        load_target(f"{write('hf_shop.py', TWO)}:fulfill")


def test_name_of_something_else(write: Write) -> None:
    with pytest.raises(
        UsageError, match=r"'charge' in .* is not a workflow but a function\. Workflows there: fulfil, refund"
    ):
        load_target(f"{write('hf_shop.py', TWO)}:charge")


def test_things_that_happen_to_have_the_name_of_a_workflow_are_none(write: Write) -> None:
    file = write("hf_shop.py", ONE + "import logging\nlog = logging.getLogger('fulfil')\n")
    assert load_target(str(file))[1].name == "fulfil"


def test_missing_file_names_its_neighbour(write: Write, tmp_path: Path) -> None:
    write("hf_shop.py", ONE)
    with pytest.raises(UsageError, match=f"there is no file {tmp_path}/hf_shp.py. Did you mean {tmp_path}/hf_shop.py?"):
        load_target(f"{tmp_path}/hf_shp.py:fulfil")


def test_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        load_target(f"{tmp_path}:fulfil")


def test_no_place(write: Write) -> None:
    with pytest.raises(UsageError, match="does not say where"):
        load_target(":fulfil")


def test_not_a_python_file(tmp_path: Path) -> None:
    (tmp_path / "hf_shop.yaml").write_text("a: b")
    with pytest.raises(UsageError, match=r"must end in \.py"):
        load_target(f"{tmp_path}/hf_shop.yaml:fulfil")


@pytest.mark.parametrize("target", ["fulfil.json", "./fulfil.json", "fulfil.json:fulfil"])
def test_a_definition_is_no_code_and_is_told_where_it_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "fulfil.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    says = r"fulfil\.json is not a Python file.* FILE\.py:NAME.*`holdfast validate` and `holdfast graph`"
    with pytest.raises(UsageError, match=says):
        load_target(target)


def test_syntax_error_shows_the_line(write: Write) -> None:
    file = write("hf_shop.py", "\ndef broken(:\n")
    line = file.read_text().splitlines().index("def broken(:") + 1
    with pytest.raises(UsageError, match=rf"{file}:{line}: SyntaxError: .*\n  def broken\(:"):
        load_file(file)


def test_exception_on_import_shows_the_users_innermost_line(write: Write) -> None:
    write("hf_child.py", "def divide(n):\n    return n / 0\n")
    file = write("hf_shop.py", "from hf_child import divide\ndivide(1)\n")
    with pytest.raises(
        UsageError, match=r"ZeroDivisionError: division by zero\n  .*hf_child.py:\d+ in divide: return n / 0"
    ):
        load_file(file)
    assert "hf_shop" not in sys.modules


def test_a_file_that_failed_can_be_loaded_after_it_was_repaired(write: Write) -> None:
    file = write("hf_shop.py", "1 / 0\n")
    with pytest.raises(UsageError):
        load_file(file)
    file.write_text(WORKFLOW + ONE + "# repaired\n")
    assert load_target(str(file))[1].name == "fulfil"


def test_a_script_that_exits_says_how_not_to(write: Write) -> None:
    with pytest.raises(UsageError, match=r"(?s)exits by itself.*__main__"):
        load_file(write("hf_shop.py", "raise SystemExit(0)\n"))


def test_a_relative_import_says_how_to_name_the_module(write: Write) -> None:
    with pytest.raises(UsageError, match=r"given as package\.module:NAME"):
        load_file(write("hf_pack/hf_shop.py", "from . import other\n"))


def test_a_file_in_a_package_has_the_name_that_others_import_it_by(write: Write, tmp_path: Path) -> None:
    write("hf_app/__init__.py", "")
    write("hf_app/flows/__init__.py", "")
    write("hf_app/flows/hf_steps.py", "")
    file = write("hf_app/flows/hf_shop.py", "from .hf_steps import handlers as _\n" + ONE)
    module = load_file(file)
    assert module.__name__ == "hf_app.flows.hf_shop"
    assert sys.path[0] == str(tmp_path)
    assert load_file(file) is module is load_target("hf_app.flows.hf_shop")[0]


def test_a_script_in_a_package_still_finds_its_neighbours(write: Write) -> None:
    write("hf_app/__init__.py", "")
    write("hf_app/hf_neighbour.py", "")
    assert load_file(write("hf_app/hf_shop.py", "import hf_neighbour\n" + ONE)).__name__ == "hf_app.hf_shop"


def test_the_files_of_a_module_are_its_own_and_those_of_the_workflows_it_imports(write: Write) -> None:
    flows = write("hf_flows.py", ONE)
    write("hf_unrelated.py", "")
    main = write("hf_main.py", "import hf_unrelated\nfrom hf_flows import fulfil\n")
    assert source_files(load_file(main)) == {str(main), str(flows)}


def test_a_taken_name_is_not_replaced(write: Write) -> None:
    with pytest.raises(UsageError, match=r"its name 'textwrap' is taken by .*textwrap\.py\. Rename the file"):
        load_file(write("textwrap.py", ONE))
    assert sys.modules["textwrap"] is textwrap


def test_module_and_name(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("hf_pack/__init__.py", "")
    file = write("hf_pack/hf_shop.py", ONE)
    monkeypatch.chdir(file.parent.parent)
    module, workflow = load_target("hf_pack.hf_shop:fulfil")
    assert (module.__name__, workflow.name) == ("hf_pack.hf_shop", "fulfil")


def test_missing_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no module 'hf_nowhere' here .* hf_nowhere/shop\.py"):
        load_target("hf_nowhere.shop:fulfil")


def test_module_that_misses_another_module_says_so(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("hf_shop.py", "import hf_not_installed\n").parent)
    with pytest.raises(
        UsageError, match=r"(?s)No module named 'hf_not_installed'.*in <module>: import hf_not_installed"
    ):
        load_target("hf_shop:fulfil")


def test_a_real_workflow_is_found_and_its_nodes_are_not_taken_for_one(tmp_path: Path) -> None:
    file = tmp_path / "hf_real.py"
    file.write_text("""
from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import workflow

@node
def charge(n: int) -> int:
    return n

@workflow
def hf_real_fulfil(n: int) -> int:
    return charge(n)

same = hf_real_fulfil.named("other_id")
""")
    workflow = load_target(str(file))[1]
    assert workflow.name == "hf_real_fulfil"
    registered = handlers.find_workflow("hf_real_fulfil")
    assert registered is not None
    assert handlers.find("hf_real.charge") is not None
    assert load_code(registered.code) is sys.modules["hf_real"]


def test_main_is_registered_under_its_stem_instead_of_running_again(write: Write) -> None:
    file = write(
        "hf_shop.py",
        ONE
        + """
print("executed as", __name__)
if __name__ == "__main__":
    import sys
    from holdfast.worker.loading import load_file, load_target
    module, workflow = load_target(__file__)
    assert module is sys.modules["__main__"] is sys.modules["hf_shop"] is load_file(__file__)
    assert workflow is fulfil
    import hf_shop
    assert hf_shop.fulfil is fulfil
""",
    )
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "executed as __main__\n", "")


SCRIPT = """
import asyncio
import holdfast as hf

@hf.node(process=True)
def double(n: int) -> int:
    return 2 * n

@hf.workflow
def doubled(n: int):
    return double(n)

async def main():
    async with hf.open("sqlite://") as engine:
        print(await (await engine.start(doubled, n=1)).result())

"""


@pytest.mark.parametrize("start", ["hf.run(doubled, n=1)", "asyncio.run(main())"])
def test_a_file_that_starts_runs_while_it_is_imported_is_refused(tmp_path: Path, start: str) -> None:
    file = tmp_path / "unguarded.py"
    file.write_text(SCRIPT + start)
    with pytest.raises(UsageError, match=r'while the file is imported.*if __name__ == "__main__":') as refused:
        load_file(file)
    assert "unguarded.py:" in str(refused.value)
    assert not (tmp_path / "holdfast.db").exists()


def test_a_script_without_a_main_guard_starts_one_run_and_no_chain_of_processes(tmp_path: Path) -> None:
    """Every process for `process=True` bodies imports the script: it must not start a run of its own."""
    file = tmp_path / "unguarded.py"
    file.write_text(SCRIPT + "hf.run(doubled, n=1, db='sqlite:///runs.db')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert 'if __name__ == "__main__":' in ended.stderr
    with contextlib.closing(apsw.Connection(str(tmp_path / "runs.db"))) as connection:
        assert connection.execute("SELECT count(*) FROM run_state").get == 1
