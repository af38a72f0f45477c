"""Crash points: the process kills itself by SIGKILL at a named place. Only for tests of crashes.

`HOLDFAST_DIE_AT=commit.before:7` kills this process when the place `commit.before` is reached for the seventh time.
Places: `commit.before` and `commit.after` around the transaction of a group of commits; `write.before` and
`write.after` around every other write (an engine's row, claiming and releasing runs, messages, versions);
`body.before` and `body.after` around a node's body (after: it returned, and nothing is recorded yet). Unset, `hit` is
None and is never called.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable

PLACES = ("commit.before", "commit.after", "write.before", "write.after", "body.before", "body.after")

hit: Callable[[str], None] | None = None


def die_at(setting: str | None) -> None:
    """Arrange the process's end: `label:n`, or nothing."""
    global hit
    hit = None if not setting else _killer(setting)


def _killer(setting: str) -> Callable[[str], None]:
    label, _, count = setting.partition(":")
    deadly = int(count or 1)
    passed = itertools.count(1)

    def hit(here: str) -> None:
        if here == label and next(passed) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    return hit


die_at(os.environ.get("HOLDFAST_DIE_AT"))
