"""Logs: what bodies and the engine log while the command line drives them, on stderr.

A user's own logging configuration wins: when the root logger has handlers, nothing is added.
"""

from __future__ import annotations

import logging
import os
import sys

from holdfast.cli import output


class _Handler(logging.Handler):
    """Writes to whatever stderr is now: a live view puts its own in place."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("the store cannot be used any more"):
            return  # the command itself fails with it, and says so
        node = getattr(record, "node", None)
        place = f"{node}: " if node else ""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = output.clean(f"{place}{level}{record.getMessage()}")
        if record.exc_info and (output.debug or record.name == "holdfast.node"):
            text += "\n" + output.clean(logging.Formatter().formatException(record.exc_info))
        print(text, file=sys.stderr, flush=True)


def show_logs() -> None:
    """Show what `ctx.log` says from INFO on, and warnings of the engine; HOLDFAST_LOG_LEVEL changes that."""
    if logging.getLogger().handlers:
        return
    root = logging.getLogger("holdfast")
    root.addHandler(_Handler())
    root.propagate = False
    level = os.environ.get("HOLDFAST_LOG_LEVEL", "").upper()
    known = logging.getLevelNamesMapping().get(level)
    root.setLevel(logging.WARNING if known is None else known)
    logging.getLogger("holdfast.node").setLevel(logging.INFO if known is None else known)
