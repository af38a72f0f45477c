"""The status line: how far something long has come, on a terminal, in one line that is gone at the end."""

from __future__ import annotations

import sys
import time

from holdfast.cli import output

SECONDS = 0.5
"""Between two looks; what is over sooner says nothing."""


class StatusLine:
    """One line of stderr. Silent when told so, and where nobody looks."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent or not output.colours(sys.stderr)
        self._next = time.monotonic() + SECONDS
        self._shown = False

    def show(self, text: str) -> None:
        """Say this from now on; text of ours, or clean."""
        if self._silent or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS
        self._shown = True
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
