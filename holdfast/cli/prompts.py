"""Prompts: a line that somebody types on the terminal.

Owns: showing the prompt, and waiting for the line or for whoever leaves.
Invariant: a Ctrl-C is noticed whenever it is typed. `input()` misses one that comes between its prompt and its read:
the signal is noted, the read blocks, and nothing happens until another key is typed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_READ_BYTES = 4096
"""The longest line that a terminal hands over."""


def ask(prompt: str) -> str:
    """Show a prompt; the line that is typed, without its end. Only for a terminal, which hands over one line at a time.

    Raises EOFError at Ctrl-D, or when the terminal is gone, and KeyboardInterrupt at Ctrl-C.
    """
    keyboard = sys.stdin.fileno()
    typed = b""
    with _signals() as signals:
        print(prompt, end="", flush=True)
        while not typed.endswith(b"\n"):
            ready, _, _ = select.select([keyboard, signals], [], [])
            if signals in ready:  # Python's handler has run by now: this one was for somebody else
                signals.recv(_READ_BYTES)
            elif read := _read(keyboard):
                typed += read
            elif typed:
                break
            else:
                raise EOFError
    return typed.decode(sys.stdin.encoding, "surrogateescape").rstrip("\n")


def _read(keyboard: int) -> bytes:
    try:
        return os.read(keyboard, _READ_BYTES)
    except OSError:  # nobody is at the other end any more
        return b""


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Something that can be read as soon as a signal was caught, also when that was before anybody waited for it."""
    ours, handler = socket.socketpair()
    with ours, handler:
        handler.setblocking(False)
        before = signal.set_wakeup_fd(handler.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)
