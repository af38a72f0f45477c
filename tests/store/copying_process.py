"""A copy that dies, for test_copy.py.

    python copying_process.py FROM TO WHAT TABLE

Is killed as `kill -9` does when it has done the first rows of WHAT (`copying`, `verifying`) with TABLE.
"""

from __future__ import annotations

import os
import signal
import sys

from holdfast.store import copying

copying.BATCH_ROWS = 2  # type: ignore[misc]  # so that there is a middle


def main(source: str, target: str, fatal_what: str, fatal_table: str) -> None:
    def progress(what: str, table: str, done: int, total: int) -> None:
        if (what, table) == (fatal_what, fatal_table) and done:
            os.kill(os.getpid(), signal.SIGKILL)

    copying.copy(source, target, is_dead=lambda side, row, now: False, progress=progress)


main(*sys.argv[1:])
