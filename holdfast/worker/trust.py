"""Trust: which recorded code a store may have imported.

A run records where its code is, so that `holdfast resume` needs nothing but the database. A database can come from
anywhere (a colleague, a ticket, a repository), so what it records is a wish, not a right: a file is imported only when
the user has allowed it for this very store.

Owns: the pairs (store id, file) that the user has allowed, in the user's own state directory, and importing a recorded
    file by them.
Never: believes a module name or a search path from a database; both follow from the file that was allowed. Never runs
    in engines, workers or servers, which have only the code that they were given.
Invariants: the bytes that are executed are those of the file that was examined: it is opened once.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.machinery
import importlib.util
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType

import msgspec

from holdfast.model import handlers
from holdfast.model.errors import MissingCode, UsageError
from holdfast.model.handlers import CodeLocation
from holdfast.model.limits import TRUSTED_FILES_MAX
from holdfast.model.views import command_line
from holdfast.worker.loading import attribute_of, import_errors, loaded_as, put_first

Pair = tuple[str, str]
"""The id of a store, and the real path of a file."""


# --- what the user has allowed -----------------------------------------------------------------------------------


def remember(store_id: str, files: Iterable[str | Path]) -> bool:
    """Allow a store to have these files imported. False: there is no state directory that could remember it."""
    wanted = [(store_id, os.path.realpath(file)) for file in files]
    try:
        with _list() as fd:
            data = _data(fd)
            if fresh := [pair for pair in wanted if _line(pair) not in data]:
                _write(fd, [*_pairs(data), *fresh][-TRUSTED_FILES_MAX:])
    except OSError:
        return False
    return True


def forget(store_id: str, file: str | Path) -> bool:
    """Take back what was allowed; False: it was not."""
    pair = (store_id, os.path.realpath(file))
    try:
        with _list() as fd:
            known = _pairs(_data(fd))
            if pair in known:
                _write(fd, [other for other in known if other != pair])
            return pair in known
    except OSError:
        return False


def files_of(store_id: str) -> list[str]:
    """The files that a store may have imported."""
    try:
        with _list() as fd:
            return [file for store, file in _pairs(_data(fd)) if store == store_id]
    except OSError:
        return []


@contextmanager
def _list() -> Iterator[int]:
    """The list of pairs, locked against other processes. OSError when it cannot be had, or others may write it."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "holdfast"
    except RuntimeError as error:  # a user without a home
        raise OSError(str(error)) from None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "trusted.jsonl", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if reason := others_may_write(os.fstat(fd), str(folder)) or others_may_write(os.stat(folder), str(folder)):
            raise PermissionError(reason)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _data(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _line(pair: Pair) -> bytes:
    return msgspec.json.encode(pair) + b"\n"


def _pairs(data: bytes) -> list[Pair]:
    pairs: list[Pair] = []
    for line in data.splitlines():
        try:
            pairs.append(msgspec.json.decode(line, type=Pair))
        except msgspec.MsgspecError:
            continue  # a process died while it wrote this line: what it says was never remembered
    return pairs


def _write(fd: int, pairs: list[Pair]) -> None:
    data = b"".join(_line(pair) for pair in pairs)
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


# --- importing what a run recorded -------------------------------------------------------------------------------


def load_recorded(code: CodeLocation, store_id: str) -> ModuleType:
    """Import the code that a run recorded. MissingCode says why it is not imported, and how to name it by hand."""
    name = code.name or "the workflow"
    if code.kind == "process":
        raise MissingCode(
            f"{name} was defined in a notebook, a prompt or inside a function, where no other process can find it. "
            "Move it to the top level of a file and name that with --code FILE.py, or resume it where it is defined"
        )
    file = os.path.realpath(code.file) if code.file else ""
    if not os.path.isfile(file):
        raise MissingCode(
            f"the code of {name} is gone: it was in {code.file or code.module or 'a place that was not recorded'}. "
            "If it was moved, name the file with --code FILE.py; with --no-run a worker that has the code runs it"
        )
    if file not in files_of(store_id):
        raise _not_loaded(file, "you have not allowed this database to have it imported", allow=True)
    module = _load(Path(file), code.module or Path(file).stem)
    if code.name and attribute_of(module, code.name) is None and code.name not in handlers.workflow_names():
        raise MissingCode(f"{file} no longer has {code.name}. If it was moved, name its file with --code FILE.py")
    return module


def _load(file: Path, name: str) -> ModuleType:
    """Execute a file that the user has allowed as the module of this name, whose handlers journals name."""
    root = _root_of(file, name)
    for directory in {root, file.parent}:
        if reason := others_may_write(directory.stat(), str(directory)):
            raise _not_loaded(str(file), reason)
    with open(file, "rb") as opened:
        if reason := others_may_write(os.fstat(opened.fileno()), str(file)):
            raise _not_loaded(str(file), reason)
        source = opened.read()
    if (module := loaded_as(file, name)) is not None:
        return module
    put_first(str(root))
    package = name.rpartition(".")[0]
    with import_errors(str(file)):
        if package:
            importlib.import_module(package)
        loader = _Source(name, str(file), source)
        places = [str(file.parent)] if file.stem == "__init__" else None
        spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=places)
        if spec is None:
            raise UsageError(f"{file} is not a Python file: its name must end in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    if package:
        setattr(sys.modules[package], name.rpartition(".")[2], module)
    return sys.modules.get(name, module)


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles the bytes that were examined: neither the file as it is a moment later, nor a cached byte code."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        compiled: CodeType = self.source_to_code(self._source, self.path)
        return compiled


def _root_of(file: Path, name: str) -> Path:
    """The directory from which `import name` finds this file. The name must be the file's own: a database that names
    another one would put the file in the place of a module that other code imports."""
    place = file.parent if file.stem == "__init__" else file.with_suffix("")
    if name == place.name:
        return place.parent
    parts = name.split(".")
    if list(place.parts[-len(parts) :]) != parts:
        raise _not_loaded(str(file), f"the database calls it {name}, which is not what it would be imported as")
    return Path(*place.parts[: -len(parts)])


def _not_loaded(file: str, reason: str, *, allow: bool = False) -> MissingCode:
    always = f"Allow it once and for all with {command_line('trust', file)}, or for this command"
    once = always if allow else "If you trust it"
    return MissingCode(
        f"{file} is not imported, because {reason}. {once}: --code {file}; with --no-run a worker that has the code "
        "runs it"
    )


def others_may_write(status: os.stat_result, what: str) -> str:
    """Why another user could have written a file or directory; empty when none could."""
    if status.st_uid != os.getuid():
        return f"{what} belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return f"{what} can be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid):
        return f"{what} can be written by its group"
    return ""


def _is_private(gid: int) -> bool:
    """Whether a group has no member but the calling user: many systems give each user one, and umask 002 with it."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
