"""Spawning: a Python process of ours, its pipes and its end.

Owns: starting an interpreter that serves an engine over pipes, killing it with everything it started, reaping it, and
saying how it died; the frames that go through the pipes.
Never: forks, pickles, knows what the process is asked for (processes.py, isolated.py).
On crash: the pipes close with the engine, and the process kills itself (process_child.py).

A thread for each process does the blocking calls: that works on every platform and event loop, and a process costs far
more than a thread anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.engine.ports import settle
from holdfast.model.limits import FRAME_BYTES_MAX, PROCESS_END_SECONDS

_ROOT = str(Path(__file__).resolve().parents[2])


class Spawned:
    """One process, served by a thread here. `serve` of a subclass is what that thread does."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Set when the process was reaped."""
        self._lock = threading.Lock()  # over `_process` and its reaping: a reaped pid may be in use again
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        threading.Thread(target=self._run, name="holdfast-child", daemon=True).start()

    def end(self) -> None:
        """Kill the process, with everything that its body started. `gone` is set when it is reaped."""
        with self._lock:
            self._ended = True
            self._kill()

    def _kill(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

    # --- in the process's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        self._serve()
        self._reap()
        self._tell(settle, self.gone, None, None)

    def _serve(self) -> None:
        raise NotImplementedError

    def _spawn(self, **options: Any) -> subprocess.Popen[bytes]:
        # -P: whatever lies in the working directory is not imported by accident. Not -m: holdfast may be on the
        # engine's sys.path alone.
        path = f"sys.path.insert(0, {_ROOT!r})"
        start = f"import sys; del sys.argv[0]; {path}; from {self._module} import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", start, *sys.argv],  # code may read its options from sys.argv, also on import
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a group of its own to kill, and no Ctrl-C that is meant for the engine
            **options,
        )
        with self._lock:
            self._process = process
            if self._ended:
                self._kill()
        return process

    def _reap(self) -> int | None:
        """End what is left, and the exit status; None when no process was started."""
        with self._lock:
            self._ended = True
            if self._process is None:
                return None
            self._kill()  # also what the body started and left behind; a status that is there already stays
            status = self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            return status

    def _cause(self, error: Exception) -> str:
        """How the process died, which was noticed by this error."""
        lives_on = isinstance(error, EOFError) and self._lives_on()
        status = self._reap()
        if status is None:
            return f"could not be started: {error}"
        if isinstance(error, msgspec.DecodeError):
            return f"answered with something that is not an answer ({error}), and was killed"
        if lives_on:
            return "closed its pipe to the engine (code that closes all file handles?), and was killed"
        if status >= 0:
            return f"ended with exit status {status} before the body did; what it wrote to stderr may say why"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = "; the usual reason is that the machine ran out of memory" if name == "SIGKILL" else ""
        return f"was ended by {name} before the body was done{hint}"

    def _lives_on(self) -> bool:
        """Whether a process whose pipe has ended does not end itself. False also where the system does not tell without
        reaping it (see `_lock`)."""
        if self._process is None or not hasattr(os, "waitid"):
            return False
        give_up = time.monotonic() + PROCESS_END_SECONDS
        while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > give_up:
                return not self._ended
            time.sleep(0.01)
        return False

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the engine's loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the result has no receiver
            self._loop.call_soon_threadsafe(function, *args)


def absolute_sys_path() -> tuple[str, ...]:
    """Where a process finds the modules that this one has found."""
    return tuple(os.path.abspath(entry) for entry in sys.path)


# --- what goes through the pipes -----------------------------------------------------------------------------------

_LENGTH = struct.Struct(">Q")


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next frame; None when the other side is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    if size > FRAME_BYTES_MAX:
        raise msgspec.DecodeError(f"a frame of {size:,} bytes")
    data = pipe.read(size)
    return data if len(data) == size else None
