"""Isolated processes: where the bodies of suspects run, so that one that kills its process kills nothing else.

Owns: the spawned processes; isolated_child.py is their other end, isolated.py the engine's side of the body in one.
Never: forks, pickles, reads what a body says.
Invariants: a process runs one body at a time. It is used again only when nothing of that body is left in it, and for a
body that needs a process of its own never.
On crash: the pipes close with the engine, and each process kills itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import msgspec

from holdfast.engine.ports import settle
from holdfast.model.errors import BodyDied
from holdfast.model.limits import (
    ISOLATED_IDLE_SECONDS,
    ISOLATED_READY_SECONDS,
    ISOLATED_SPAWN_SECONDS,
)
from holdfast.worker import wire
from holdfast.worker.isolated import IsolatedActivation
from holdfast.worker.spawning import Spawned, read_frame, write_frame

log = logging.getLogger("holdfast.engine")


LIFE_FD = "HOLDFAST_LIFE_FD"
"""Names the pipe by whose end a process notices, without the GIL, that its engine is gone."""


class NotSpawned(Exception):
    """The system gave us no process."""


class IsolatedBodies:
    """The processes of an engine's suspects. How many there are is limited by the places that their bodies take."""

    def __init__(self) -> None:
        self._processes: set[IsolatedProcess] = set()
        self._idle: list[IsolatedProcess] = []

    async def run(self, body: IsolatedActivation, order: bytes) -> wire.Ended:
        """Run a body in a process; its last word. BodyDied when its process died first, CannotBeIsolated when its code
        cannot be imported there. When cancelled, the process is killed."""
        while True:
            process = self._take(fresh=body.attempt.own_process)
            body.send = process.send
            process.begin(body, order)
            try:
                ended = await asyncio.shield(body.over)
                await process.tidied()  # or the next body, which gets the place of this one, would need a new process
            except NotSpawned as e:
                log.warning("no process for a body of run %s, trying again: %s", body.port.run_id, e)
                body.expect_end()
                await asyncio.sleep(ISOLATED_SPAWN_SECONDS)
            else:
                return ended
            finally:
                body.send = None
                process.release(body)

    def _take(self, *, fresh: bool) -> IsolatedProcess:
        while self._idle and not fresh:
            process = self._idle.pop()
            if not process.is_over:
                return process
        process = IsolatedProcess(self._is_idle)
        self._processes.add(process)
        process.gone.add_done_callback(lambda _: self._processes.discard(process))
        return process

    def _is_idle(self, process: IsolatedProcess) -> None:
        """Nothing of its last body is left in a process."""
        self._idle.append(process)
        process.end_in(ISOLATED_IDLE_SECONDS)

    async def close(self) -> None:
        """Kill every process, and with it the body that it still runs, and wait until they are gone."""
        processes = list(self._processes)
        for process in processes:
            process.end()
        if processes:
            await asyncio.wait([process.gone for process in processes], timeout=5.0)


class IsolatedProcess(Spawned):
    """One spawned process; a thread here reads what it says, another one writes to it."""

    def __init__(self, on_idle: Callable[[IsolatedProcess], None]) -> None:
        self._to_send: SimpleQueue[bytes | None] = SimpleQueue()
        self._on_idle = on_idle
        self._body: IsolatedActivation | None = None
        """It may have reported its end while something of it is left in the process."""
        self._ending: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self.is_over = False
        super().__init__("holdfast.worker.isolated_child")

    def begin(self, body: IsolatedActivation, order: bytes) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._body = body
        self._idle.clear()
        self.send(order)

    def send(self, frame: bytes) -> None:
        self._to_send.put(frame)

    async def tidied(self) -> None:
        """Wait a moment until nothing of a body is left that has said its last word. It may take longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ISOLATED_READY_SECONDS):
                await self._idle.wait()

    def release(self, body: IsolatedActivation) -> None:
        """The engine has done with a body: the process ends unless it is ready for another one, or has it."""
        if self._body is body:
            self.end()

    def end_in(self, seconds: float) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = self._loop.call_later(seconds, self.end)

    def end(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.is_over = True
        super().end()
        self._to_send.put(None)

    def _heard(self, message: wire.FromProcess) -> None:
        if isinstance(message, wire.Idle):
            if not self.is_over:
                self._body = None
                self._idle.set()
                self._on_idle(self)
        elif self._body is not None:
            self._body.received(message)

    def _died(self, how: str, *, spawned: bool) -> None:
        self.is_over = True
        if self._body is not None:
            body = self._body
            name = f"the process of {body.attempt.handler.name}"
            settle(body.over, None, BodyDied(f"{name} {how}") if spawned else NotSpawned(f"{name} {how}"))

    # --- in its threads --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        error: Exception = EOFError()
        try:
            with self._alive() as process:
                assert process.stdout is not None
                threading.Thread(target=self._write, args=(process,), name="holdfast-child", daemon=True).start()
                while (frame := read_frame(process.stdout)) is not None:
                    self._tell(self._heard, wire.from_process(frame))
                how = self._cause(error)
        except (OSError, MemoryError, msgspec.DecodeError) as e:
            how = self._cause(e)
        self._to_send.put(None)
        self._tell(functools.partial(self._died, how, spawned=self._process is not None))

    @contextlib.contextmanager
    def _alive(self) -> Any:
        """The process, with a pipe open for as long as this engine serves it."""
        if not sys.platform.startswith("linux"):
            yield self._spawn()
            return
        theirs, ours = os.pipe()
        try:
            try:
                process = self._spawn(pass_fds=(theirs,), env={**os.environ, LIFE_FD: str(theirs)})
            finally:
                os.close(theirs)
            yield process
        finally:
            os.close(ours)

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died: its reader says so
            while (frame := self._to_send.get()) is not None:
                write_frame(process.stdin, frame)
