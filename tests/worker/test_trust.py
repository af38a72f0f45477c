"""Recorded code: a database has a file imported only when the user has allowed that, and never another file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model import handlers, limits
from holdfast.model.errors import MissingCode
from holdfast.model.handlers import CodeLocation
from holdfast.worker import trust
from holdfast.worker.trust import load_recorded

STORE = "s1"
Write = Callable[[str, str], Path]

FLOW = """
from holdfast.model import handlers
handlers.register_workflow("fulfil", lambda: None)
def fulfil(): ...
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of the test's own; what a test loads is gone after it."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(handlers, "_workflows", {})
    before = set(sys.modules)
    yield folder / "holdfast" / "trusted.jsonl"
    for name in set(sys.modules) - before:
        if not name.startswith("holdfast"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    code = tmp_path / "code"
    code.mkdir(mode=0o700)

    def write(name: str, text: str) -> Path:
        file = code / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(textwrap.dedent(text))
        file.chmod(0o600)
        return file

    return write


def recorded(file: Path, **other: str) -> CodeLocation:
    facts = {"kind": "file", "file": str(file), "module": file.stem, "name": "fulfil", "sys_path": str(file.parent)}
    return CodeLocation(**{**facts, **other})  # type: ignore[arg-type]  # kind is a literal


def allowed(file: Path) -> Path:
    assert trust.remember(STORE, [file])
    return file


def test_a_file_that_was_allowed_is_imported(write: Write) -> None:
    module = load_recorded(recorded(allowed(write("hf_shop.py", FLOW))), STORE)
    assert module is sys.modules["hf_shop"]
    assert load_recorded(recorded(Path(str(module.__file__))), STORE) is module


def test_a_file_that_was_not_allowed_names_both_ways_and_is_not_executed(write: Write) -> None:
    file = write("hf_shop.py", "raise AssertionError('executed')")
    with pytest.raises(MissingCode, match=rf"have not allowed.*`holdfast trust {file}`.*--code {file}"):
        load_recorded(recorded(file), STORE)


def test_a_file_is_allowed_for_one_store_only(write: Write) -> None:
    file = allowed(write("hf_shop.py", FLOW))
    with pytest.raises(MissingCode, match="have not allowed"):
        load_recorded(recorded(file), "s2")


def test_a_way_round_to_an_allowed_file_is_that_file(write: Write, tmp_path: Path) -> None:
    file = allowed(write("hf_shop.py", FLOW))
    link = tmp_path / "link.py"
    link.symlink_to(file)
    assert load_recorded(recorded(link, module="hf_shop"), STORE).__file__ == str(file)


def test_the_working_directory_of_the_process_is_no_way_round(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("hf_notes.txt", "")
    write("hf_payload.py", "raise AssertionError('executed')")
    monkeypatch.chdir(file.parent)
    foreign = CodeLocation(
        kind="module", file="/proc/self/cwd/hf_notes.txt", module="hf_payload", name="w", sys_path="/proc/self/cwd"
    )
    with pytest.raises(MissingCode):
        load_recorded(foreign, STORE)


def test_what_is_imported_is_the_allowed_file_whatever_the_module_and_the_path_say(write: Write) -> None:
    file = allowed(write("hf_shop.py", FLOW))
    elsewhere = write("other/hf_shop.py", "raise AssertionError('executed')")
    code = recorded(file, kind="module", sys_path=str(elsewhere.parent))
    assert load_recorded(code, STORE).__file__ == str(file)
    with pytest.raises(MissingCode, match=r"the database calls it os\.hf_shop"):
        load_recorded(recorded(file, module="os.hf_shop"), STORE)
    with pytest.raises(MissingCode, match="calls it antigravity, which is not what it would be imported as"):
        load_recorded(recorded(file, module="antigravity"), STORE)
    assert "antigravity" not in sys.modules


def test_a_file_of_a_package_is_imported_as_a_part_of_it(write: Write) -> None:
    write("hf_pack/__init__.py", "")
    write("hf_pack/hf_other.py", "")
    file = allowed(write("hf_pack/hf_flow.py", "from . import hf_other\n" + FLOW))
    module = load_recorded(recorded(file, kind="module", module="hf_pack.hf_flow"), STORE)
    assert module.__name__ == "hf_pack.hf_flow"
    assert sys.modules["hf_pack"].hf_flow is module


def test_the_bytes_that_were_examined_are_executed_and_no_cached_byte_code(write: Write) -> None:
    file = allowed(write("hf_shop.py", FLOW + "WHICH = 'first'\n"))
    subprocess.run([sys.executable, "-m", "py_compile", file], check=True)
    seen = file.stat()
    file.write_text(FLOW + "WHICH = 'other'\n")  # as long as before
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert load_recorded(recorded(file), STORE).WHICH == "other"


def test_code_of_a_notebook_says_how_to_move_it() -> None:
    with pytest.raises(MissingCode, match=r"fulfil was defined in a notebook.*top level of a file.*--code FILE"):
        load_recorded(CodeLocation(kind="process", module="__main__", name="fulfil"), STORE)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingCode, match=rf"fulfil is gone: it was in {tmp_path}/hf_shop\.py.*--code FILE"):
        load_recorded(recorded(tmp_path / "hf_shop.py"), STORE)


def test_a_workflow_that_is_gone_from_its_file_is_named(write: Write) -> None:
    with pytest.raises(MissingCode, match=r"hf_shop\.py no longer has fulfil.*--code FILE"):
        load_recorded(recorded(allowed(write("hf_shop.py", ""))), STORE)


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_everybody_may_write_is_not_imported(write: Write, what: str) -> None:
    file = allowed(write("hf_shop.py", FLOW))
    target = {"file": file, "directory": file.parent}[what]
    target.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IWOTH)
    with pytest.raises(MissingCode, match=f"{target} can be written by everybody.*--code {file}"):
        load_recorded(recorded(file), STORE)
    assert "hf_shop" not in sys.modules


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_another_user_or_a_group_of_several_owns_is_not_imported(write: Write) -> None:
    file = allowed(write("hf_shop.py", FLOW))
    os.chown(file, -1, 65534)
    file.chmod(0o660)
    with pytest.raises(MissingCode, match=f"{file} can be written by its group"):
        load_recorded(recorded(file), STORE)
    os.chown(file, 65534, -1)
    with pytest.raises(MissingCode, match=f"{file} belongs to another user"):
        load_recorded(recorded(file), STORE)


def test_a_list_that_others_may_write_allows_nothing(write: Write, state: Path) -> None:
    file = allowed(write("hf_shop.py", FLOW))
    state.chmod(0o666)
    assert trust.files_of(STORE) == []
    with pytest.raises(MissingCode, match="have not allowed"):
        load_recorded(recorded(file), STORE)


def test_without_a_state_directory_nothing_is_remembered_and_nothing_breaks(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    assert not trust.remember(STORE, [write("hf_shop.py", FLOW)])
    assert trust.files_of(STORE) == []


def test_the_list_is_private_survives_a_torn_line_and_forgets_the_oldest(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "TRUSTED_FILES_MAX", 3)
    assert limits.TRUSTED_FILES_MAX > 3
    for number in range(4):
        trust.remember(STORE, [tmp_path / f"{number}.py"])
        trust.remember(STORE, [tmp_path / f"{number}.py"])
        with state.open("ab") as file:
            file.write(b'["s1", "/torn')
    assert trust.files_of(STORE) == [str(tmp_path / f"{number}.py") for number in (1, 2, 3)]
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert trust.forget(STORE, tmp_path / "2.py")
    assert not trust.forget(STORE, tmp_path / "2.py")
    assert trust.files_of(STORE) == [str(tmp_path / f"{number}.py") for number in (1, 3)]
