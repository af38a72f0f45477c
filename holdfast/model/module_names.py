"""Module names: the name of a module in definitions and journals.

Owns: the lasting name of `__main__`, and the modules that have a lasting name in this process.
Rule: a file has one name, however it was loaded. A function or an exception class of `shop.py` is `shop.charge` or
`shop.Declined` also in a program that was started with `python shop.py`, so that every other process finds it.
Never: imports anything.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def module_name(thing: Any) -> str:
    """The module of a function or class; for `__main__` the name under which its file is loaded by others."""
    module: str = thing.__module__ or "__main__"
    return (_name_of_main() or module) if module == "__main__" else module


def modules_of(name: str) -> list[ModuleType]:
    """The loaded modules of this lasting name: `__main__`, and one that was imported. `python -m package` has both."""
    names = ("__main__", name) if name == _name_of_main() else (name,)
    return [sys.modules[each] for each in names if each in sys.modules]


def importable(file: Path) -> tuple[Path, str]:
    """The directory from which a file is imported, and its name there: `app.orders` for app/orders.py when app is a
    package, else its stem. A script in a package has the name that other processes import it by, so that its handlers
    are the same for all of them."""
    parts = [] if file.stem == "__init__" else [file.stem]
    directory = file.parent
    while (directory / "__init__.py").is_file() and directory.name.isidentifier():
        parts.insert(0, directory.name)
        directory = directory.parent
    return directory, ".".join(parts) or file.stem


def _name_of_main() -> str | None:
    """The lasting name of `__main__`; None where it has no file, as in a notebook."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return _name_of_file(file) if file else None


@functools.cache
def _name_of_file(file: str) -> str:
    """Asked for at every failure, and answered from the file system once."""
    return importable(Path(file).resolve())[1]
