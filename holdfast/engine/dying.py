"""Dying: the process ends by SIGKILL at a named place. Only for tests of crashes.

`HOLDFAST_DIE_AT=commit.before:7` kills this process when the place `commit.before` is reached for the seventh time.
Places: `commit.before` and `commit.after` around the transaction of a group of commits, `body.before` and `body.after`
around a node's body (after: it returned, and nothing is recorded yet). Unset, `at` is None and nobody calls it.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable


def _from(setting: str) -> Callable[[str], None]:
    label, _, count = setting.partition(":")
    deadly = int(count or 1)
    passed = itertools.count(1)

    def at(here: str) -> None:
        if here == label and next(passed) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


_setting = os.environ.get("HOLDFAST_DIE_AT")
at: Callable[[str], None] | None = _from(_setting) if _setting else None
