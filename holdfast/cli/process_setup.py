"""Process setup: logging and the interpreter of a process that the command line starts to drive runs.

Owns: which log records reach stderr, and settings of the garbage collector and of thread switching.
Never: overrides a user's own logging configuration: if the root logger has handlers, none is added.
"""

from __future__ import annotations

import gc
import logging
import os
import sys

from holdfast.cli import output

GC_THRESHOLDS = (200_000, 20, 50)
"""Steps leave hardly a cycle, and with 10,000 runs at once some 400,000 objects come and go together: a collection
every 50,000 objects costs 17 µs a step, at this threshold 6, and with 1,000 runs nothing."""

SWITCH_SECONDS = 0.0005
"""With Python's default of 5 ms a body that computes delays every step by four or five switches."""


def prepare_to_drive() -> None:
    """Show logs on stderr and tune the interpreter."""
    show_logs()
    tune()


def tune() -> None:
    """Collect garbage less often, and switch between the loop and its threads sooner."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)


def show_logs() -> None:
    """Show `ctx.log` from INFO on, and warnings of the engine; HOLDFAST_LOG_LEVEL changes both."""
    if logging.getLogger().handlers:
        return
    root = logging.getLogger("holdfast")
    root.addHandler(_Handler())
    root.propagate = False
    level = os.environ.get("HOLDFAST_LOG_LEVEL", "").upper()
    known = logging.getLevelNamesMapping().get(level)
    root.setLevel(logging.WARNING if known is None else known)
    logging.getLogger("holdfast.node").setLevel(logging.INFO if known is None else known)


class _Handler(logging.Handler):
    """Writes to the stderr of the moment: a live view replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "is_fatal", False):
            return  # the command itself fails with the same error
        node = getattr(record, "node", None)
        place = f"{node}: " if node else ""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = output.clean(f"{place}{level}{record.getMessage()}")
        if record.exc_info and (output.debug or record.name == "holdfast.node"):
            text += "\n" + output.clean(logging.Formatter().formatException(record.exc_info))
        print(text, file=sys.stderr, flush=True)
