"""Loading: importing the code that the user names.

Owns: importing a file or module so that its handlers and workflows are registered under the names that journals hold.
Never: decides when to load; a server runs only what it was given. What a database records is imported by trust.py.
Invariants: a file is executed once per process, under the name by which others import it, also when it is `__main__`;
    every failure is one UsageError that says what to do.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from holdfast.model import handlers
from holdfast.model.errors import UsageError
from holdfast.model.handlers import CodeLocation
from holdfast.model.module_names import importable
from holdfast.model.views import command_line

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STDLIB = os.path.dirname(os.__file__) + os.sep
_importing: ContextVar[bool] = ContextVar("holdfast_importing", default=False)
_ONLY_AS_SCRIPT = 'Put what should only happen when it is run as a script under `if __name__ == "__main__":`'


class StartedWhileImporting(UsageError):
    """A file starts runs while it is imported. What stands above that line in it is defined."""


def load_target(target: str) -> tuple[ModuleType, Any]:
    """The module and the workflow that `FILE.py:NAME` or `package.module:NAME` names; NAME may be left out when there
    is only one. UsageError when there is no such file, module or workflow, or when it cannot be imported."""
    place, name = _split(target)
    module = load_place(place)
    return module, _named(module, name, place) if name else _only(module, place)


def load_place(place: str) -> ModuleType:
    """The module that `FILE.py` or `package.module` names. UsageError when it is not there or cannot be imported."""
    return load_file(place) if _looks_like_file(place) else load_module(place, os.getcwd())


def load_file(path: str | Path, name: str | None = None) -> ModuleType:
    """Import a .py file under the name by which other code imports it (or `name`): `app.orders` for app/orders.py in a
    package, else its stem. The directory from which that works is first on sys.path.

    A file that is loaded already, as `__main__` too, is not executed again. UsageError when it is missing, when another
    module has that name, or when importing it fails."""
    file = _existing(path)
    root, own_name = importable(file)
    name = name or own_name
    module = loaded_as(file, name)
    if module is not None:
        return module
    if "." in name:
        _put_last(str(file.parent))  # where its neighbours are, should it be a script that imports them by their stem
        return load_module(name, str(root))
    put_first(str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(_not_python(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with import_errors(str(file)):
            spec.loader.exec_module(module)
    except StartedWhileImporting:
        raise
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return sys.modules.get(name, module)


def loaded_as(file: Path, name: str) -> ModuleType | None:
    """The module of this name, if it was loaded from this file, as `__main__` too. UsageError: the name is taken."""
    for known in ("__main__", name):
        module = sys.modules.get(known)
        if module is not None and _file_of(module) == file:
            sys.modules[name] = module
            return module
    if name in sys.modules:
        taken_by = _file_of(sys.modules[name]) or "a built-in module"
        raise UsageError(f"{file} cannot be loaded: its name {name!r} is taken by {taken_by}. Rename the file")
    return None


def load_module(name: str, sys_path: str = "") -> ModuleType:
    """Import a module by its dotted name, with `sys_path` first on sys.path. UsageError when that fails."""
    if sys_path:
        put_first(sys_path)
    try:
        with import_errors(name):
            return importlib.import_module(name)
    except UsageError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name and f"{name}.".startswith(f"{missing.name}."):
            raise UsageError(
                f"there is no module {missing.name!r} here (looked in {sys_path or 'sys.path'} and in the installed "
                f"packages). A file is given with its ending: {name.replace('.', '/')}.py"
            ) from None
        raise


def load_code(code: CodeLocation) -> ModuleType:
    """Import the code at a location, under the module name that its handlers have. UsageError when that fails."""
    if code.kind == "module" or "." in code.module:  # a file of a package was run as `python -m package.module`
        return load_module(code.module, code.sys_path)
    return load_file(code.file, code.module or None)


def load_given(place: str, recorded: Sequence[CodeLocation]) -> ModuleType:
    """Import the code that the caller names, `FILE.py` or `package.module`, for runs that recorded where theirs was.

    Journals call functions by the module they were in. So a file of a package is imported as part of it, and a file
    that has another name now is loaded under the one that it had."""
    if not _looks_like_file(place):
        return load_module(place, os.getcwd())
    file = _existing(place)
    were = {code.module: code for code in recorded if code.kind != "process" and code.module}
    if len(were) != 1:
        return load_file(file)
    ((name, was),) = were.items()
    inside = Path(*name.split(".")).with_suffix(".py")
    if "." in name:
        if file.parts[-len(inside.parts) :] == inside.parts:
            return load_module(name, str(Path(*file.parts[: -len(inside.parts)])))
        return load_file(file)
    is_elsewhere = os.path.isfile(was.file) and Path(was.file).resolve() != file
    is_renamed = not is_elsewhere and not (file.parent / inside).exists()
    return load_file(file, name if is_renamed or file.stem == name else None)


def refuse_while_importing(what: str) -> None:
    """Code is loaded to resume, draw or check a workflow, and by every process that runs `process=True` bodies. If that
    started runs, each of these would start another one, and each process another process. Raises UsageError."""
    if _importing.get():
        raise StartedWhileImporting(f"{what} is called while the file is imported. {_ONLY_AS_SCRIPT}")


def user_frames(traceback: TracebackType | None) -> tuple[str, ...]:
    """The user's own frames of a traceback, `file:line in function: source line`, outermost first, without locals.

    Frames of libraries are left out, unless there are no others; Holdfast's own always are."""
    frames: list[tuple[bool, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = code.co_filename
        if not file.startswith((_PACKAGE, "<frozen ")):
            line = linecache.getline(file, traceback.tb_lineno).strip()
            library = file.startswith(_STDLIB) or f"{os.sep}site-packages{os.sep}" in file
            frames.append((library, f"{file}:{traceback.tb_lineno} in {code.co_name}" + (f": {line}" if line else "")))
        traceback = traceback.tb_next
    own = tuple(frame for library, frame in frames if not library)
    return own or tuple(frame for _, frame in frames)


# --- finding the workflow ----------------------------------------------------------------------------------------


def source_files(module: ModuleType) -> set[str]:
    """The file of a module, and those of the workflows that it has imported from elsewhere."""
    homes = {_home(value) for value in vars(module).values() if _is_workflow(value)} | {module.__name__}
    files = {_file_of(sys.modules[name]) for name in homes if name in sys.modules}
    return {str(file) for file in files if file is not None}


def workflows_in(module: ModuleType) -> dict[str, Any]:
    """The workflows at the top level of a module, by the names they have there; its own ones if it has any, else the
    ones it imported."""
    found = {key: value for key, value in vars(module).items() if _is_workflow(value)}
    own = {key: value for key, value in found.items() if _home(value) in (module.__name__, "__main__")}
    return own or found


def _named(module: ModuleType, name: str, place: str) -> Any:
    found = attribute_of(module, name)
    if found is not None and _is_workflow(found):
        return found
    known = workflows_in(module)
    for workflow in known.values():
        if workflow.name == name:
            return workflow
    names = ", ".join(known) or "none"
    if found is not None:
        raise UsageError(
            f"{name!r} in {place} is not a workflow but a {type(found).__name__}. Workflows there: {names}. "
            "A workflow is a function with @hf.workflow"
        )
    close = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise UsageError(f"{place} has no workflow {name!r}.{hint} Workflows there: {names}")


def _only(module: ModuleType, place: str) -> Any:
    known = workflows_in(module)
    if len({workflow.name for workflow in known.values()}) == 1:  # `flow.named(...)` is the same one
        return next(iter(known.values()))
    if not known:
        raise UsageError(f"{place} has no workflow: put @hf.workflow on a function at its top level")
    raise UsageError(f"{place} has several workflows, so name one: " + ", ".join(f"{place}:{name}" for name in known))


def _is_workflow(value: Any) -> bool:
    """Workflows are recognised by what they are registered as: the authoring API is not known here."""
    if isinstance(value, type | ModuleType) or not callable(value):
        return False
    try:
        name = value.name
    except Exception:  # noqa: BLE001 - any object of the user's module, with any __getattr__
        return False
    return isinstance(name, str) and name in handlers.workflow_names()


def _home(workflow: Any) -> str:
    """The module whose code a workflow is."""
    return str(getattr(getattr(workflow, "fn", workflow), "__module__", ""))


def attribute_of(module: ModuleType, name: str) -> Any:
    """What a dotted name means in a module; None when there is no such thing."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


# --- files -------------------------------------------------------------------------------------------------------


def _split(target: str) -> tuple[str, str]:
    if target.endswith(".py"):  # also C:\flow.py
        return target, ""
    place, colon, name = target.rpartition(":")
    place, name = (place, name) if colon else (target, "")
    if not place:
        raise UsageError(f"{target!r} does not say where the workflow is: use FILE.py:NAME or package.module:NAME")
    return place, name


def _looks_like_file(place: str) -> bool:
    return place.endswith((".py", ".json")) or not all(part.isidentifier() for part in place.split("."))


def _existing(path: str | Path) -> Path:
    file = Path(path).expanduser().resolve()
    if file.is_file():
        return file
    if file.is_dir():
        raise UsageError(f"{path} is a directory: name a file, as in {path}/FILE.py:NAME")
    siblings = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
    close = difflib.get_close_matches(file.name, siblings, n=3)
    hint = f" Did you mean {' or '.join(str(file.parent / name) for name in close)}?" if close else ""
    raise UsageError(f"there is no file {file}.{hint}")


def _not_python(file: Path) -> str:
    if file.suffix != ".json":
        return f"{file} is not a Python file: its name must end in .py"
    return (
        f"{file} is not a Python file. A definition has no code to run: name the workflow that it was made from, as "
        f"FILE.py:NAME. {command_line('validate')} and {command_line('graph')} take definitions"
    )


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def put_first(directory: str) -> None:
    """Import from this directory before all others."""
    if sys.path[:1] != [directory]:
        sys.path[:] = [directory, *(entry for entry in sys.path if entry != directory)]


def _put_last(directory: str) -> None:
    if directory not in sys.path:
        sys.path.append(directory)


@contextmanager
def import_errors(what: str) -> Iterator[None]:
    """Turn whatever an import raises into one UsageError that shows the user's line."""
    token = _importing.set(True)
    try:
        yield
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else what
        line = f"\n  {error.text.strip()}" if error.text else ""
        raise UsageError(f"{what} cannot be imported: {place}: {type(error).__name__}: {error.msg}{line}") from error
    except StartedWhileImporting as error:
        raise StartedWhileImporting(f"{what} cannot be imported: {error.message}{_where(error)}") from error
    except SystemExit as error:
        raise UsageError(f"{what} cannot be imported: it exits by itself{_where(error)}\n{_ONLY_AS_SCRIPT}") from error
    except Exception as error:  # the user's module may raise anything
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = "\nA file of a package without __init__.py is given as package.module:NAME"
        raise UsageError(f"{what} cannot be imported: {type(error).__name__}: {error}{_where(error)}{hint}") from error
    finally:
        _importing.reset(token)


def _where(error: BaseException) -> str:
    frames = user_frames(error.__traceback__)
    return f"\n  {frames[-1]}" if frames else ""
