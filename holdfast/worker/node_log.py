"""Node log: `ctx.log`, one line for each call.

Owns: escaping newlines and control characters in what a body logs. Text of users and of other services reaches the log
through it, and must not be able to forge a second line or to control a terminal.
Never: writes anything (logging does). A traceback that `exc_info` adds keeps its lines.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (a tab is one), other ends of lines, marks that reorder text, and halves of characters."""


class NodeLog(logging.LoggerAdapter[logging.Logger]):
    """A logger bound to run, node and attempt."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the line of the body, not this one
        safe = _escaped(msg, args)
        if safe is None:
            super().log(level, msg, *args, **kwargs)
        else:
            super().log(level, safe, **kwargs)


def _escaped(msg: object, args: tuple[Any, ...]) -> str | None:
    """The message with what is unsafe in it shown; None: nothing is, or it cannot be formatted, which logging says."""
    values: Any = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
    try:
        text = str(msg) % values if args else str(msg)
    except Exception:  # noqa: BLE001 - the __str__ of what a user logs may raise anything
        return None
    if _UNSAFE.search(text) is None:
        return None
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
