"""Holdfast: durable workflows for Python. A run survives the crash of its process and resumes where it was.

    import holdfast as hf

What `holdfast/api.py` exports is the promise; everything else may move. It is loaded at the first use of a name, so
that a short command does not pay for the engine.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api import *  # noqa: F403 - type checkers see the names as they are

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    exported = vars(importlib.import_module("holdfast.api"))
    if name != "__all__" and name not in exported["__all__"]:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals().update({known: exported[known] for known in exported["__all__"]})
    return exported[name]


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]
