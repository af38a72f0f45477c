"""Child processes of a test: none outlives its test, and none leaves a pipe open."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside the block; at its end the process is killed and reaped, and its pipes are closed."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def allow_interrupts() -> None:
    """Let SIGINT interrupt this process and those that it starts, also where it was started with SIGINT ignored.

    A shell starts `command &` in that way, and so do `nohup command &` and many CI systems. Python then leaves SIGINT
    ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
