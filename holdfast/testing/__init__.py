"""Testing: tools for users' tests. Of Holdfast itself only the command line (`crashtest`) imports it.

`context` calls a node's function by itself, `harness` runs a workflow with a clock that the test controls, `explore`
runs it under every crash, `corrupt` makes the inconsistent states of the recovery catalogue. All but the first are
loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.worker.bare_context import context

if TYPE_CHECKING:
    from holdfast.testing.corrupting import corrupt
    from holdfast.testing.explorer.report import Report
    from holdfast.testing.explorer.search import explore
    from holdfast.testing.harnessing import Harness, harness

__all__ = ["Harness", "Report", "context", "corrupt", "explore", "harness"]

_PLACES = {
    "Harness": "holdfast.testing.harnessing",
    "Report": "holdfast.testing.explorer.report",
    "corrupt": "holdfast.testing.corrupting",
    "explore": "holdfast.testing.explorer.search",
    "harness": "holdfast.testing.harnessing",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
