"""A command on a terminal of its own, and somebody who reads what it shows and types."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CTRL_C, CTRL_D = "\x03", "\x04"
SECONDS = 60.0

# The terminal becomes the one whose Ctrl-C reaches the command, also when the tests were told to ignore theirs, as
# everything is that a script starts in the background.
_TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """What a command shows, and its keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self._process = process
        self._end = end
        self._read = b""
        self._seen = 0

    @property
    def shown(self) -> str:
        return self._read.decode(errors="replace").replace("\r\n", "\n")

    def see(self, text: str) -> None:
        """Wait until this is shown, after what was seen before."""
        while text not in self.shown[self._seen :]:
            assert self._more(), f"ended without showing {text!r}: {self.shown!r}"
        self._seen = self.shown.index(text, self._seen) + len(text)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode(errors="surrogateescape"))

    def end(self) -> int:
        """Wait for the end of the command; its exit code."""
        while self._more():
            pass
        return self._process.wait(SECONDS)

    def _more(self) -> bool:
        assert select.select([self._end], [], [], SECONDS)[0], f"nothing more was shown after {self.shown!r}"
        try:
            self._read += os.read(self._end, 4096)
        except OSError:  # the command has closed its end
            return False
        return True


@contextmanager
def on_terminal(
    command: Sequence[str], directory: Path, env: Mapping[str, str] = os.environ, *, term: str = "dumb"
) -> Iterator[Terminal]:
    """Run a command whose input and output are a terminal (without colours, unless another `term` has them); it does
    not outlive the block."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *command],
        cwd=directory, env={**env, "TERM": term}, stdin=its, stdout=its, stderr=its, start_new_session=True,
    )  # fmt: skip
    os.close(its)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
