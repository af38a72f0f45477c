"""Leases: who may act on a run right now.

Owns: this engine's row and its renewal, the OS lock that shows that the process lives, and who of the others is dead.
Never: decides what happens to work that was lost (recovery.py). Never trusts that the lease is held: every commit says
its token, and the store refuses an old one.
Invariants: at most one live lease per run; tokens only grow. One row is renewed however many runs are owned.
On crash: the OS drops the lock with the process; across hosts the lease runs out by itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Literal

from holdfast.engine.clock import Clock
from holdfast.engine.committer import Committer
from holdfast.model.errors import LeaseLost, OutcomeUnknown
from holdfast.model.ids import unique
from holdfast.model.limits import LOOP_STALL_SECONDS
from holdfast.store.api import EngineRow, Store

log = logging.getLogger("holdfast.engine")
RENEWALS = 3
"""How often a lease is renewed in its time: two may fail before anybody else acts."""
HASTE = 4
"""How much sooner than that a renewal that failed is tried again."""
STOP_SECONDS = 1.0
"""How long a closing engine waits for a renewal that is under way; one that comes too late changes nothing."""


class Lease:
    """This engine's right to act, and its sign of life."""

    def __init__(self, store: Store, database: Path | None, lease_seconds: float, clock: Clock) -> None:
        self.engine = unique("eng_")
        self._store = store
        self._clock = clock
        self._seconds = lease_seconds
        self._folder = None if database is None else database.with_name(database.name + "-engines")
        self._lock_fd: int | None = None
        self._lock_file = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._registered = ""
        """The engine whose row is there to be renewed: not yet our name while that is being changed."""
        self._expires_at = 0
        self._ticked_at = time.monotonic()
        self._is_late = False
        """The last renewal failed."""
        self._declared_dead = ""
        """The engine whose row has gone: perhaps no longer our name when a renewal finds out."""

    @property
    def lost(self) -> bool:
        """Whether somebody has declared this engine dead, and it is not known under another name yet."""
        return self._declared_dead == self.engine or self._registered not in ("", self.engine)

    @property
    def has_run_out(self) -> bool:
        """Whether its time is over, as far as is known here: others may have declared this engine dead, and what
        belonged to the lease may be theirs."""
        return self._clock.now() > self._expires_at

    def row(self, can_run: bytes) -> EngineRow:
        now = self._clock.now()
        return EngineRow(
            self.engine, socket.gethostname(), os.getpid(), self._lock_file, now, self._expiry(now), can_run
        )

    def register(self, can_run: bytes) -> None:
        """Say that we are alive for the first time, in the writer's turn."""
        row = self.row(can_run)
        self._store.register_engine(row)
        self._registered = row.engine
        self._expires_at = row.expires_at

    def _expiry(self, now: int) -> int:
        return now + int(self._seconds * 1_000_000)

    def take_lock(self) -> None:
        """Hold a lock on a small file beside the database for as long as the process lives."""
        if self._folder is None:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{self.engine}.lock"
        self._lock_fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock_file = str(path)

    def renew_identity(self) -> None:
        """Become another engine: a new id, and a lock of its own. `register` makes it known."""
        self.drop_lock()
        self.engine = unique("eng_")
        self.take_lock()

    def start_renewing(self, committer: Committer, loop: asyncio.AbstractEventLoop) -> None:
        """Renew in a thread of its own, so that a busy event loop does not lose its runs."""
        self._thread = threading.Thread(target=self._renew, args=(committer, loop), name="holdfast-lease", daemon=True)
        self._thread.start()

    def _renew(self, committer: Committer, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.wait(self._seconds / RENEWALS / (HASTE if self._is_late else 1)):
            if self._stands_still(loop):
                log.error("the event loop has not moved for %g s: not renewing the lease", LOOP_STALL_SECONDS)
            elif self._store.is_shared:
                self.renew_once()  # beside the writer, whom many commits or a server that is away may keep busy
            else:
                committer.call_from_thread(self.renew_once)

    def _stands_still(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the loop has not had a turn for long: a process that is stuck must not keep its runs."""
        try:
            loop.call_soon_threadsafe(self._tick)
        except RuntimeError:
            return True  # it was closed, and the engine was not
        return time.monotonic() - self._ticked_at > LOOP_STALL_SECONDS

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()

    def renew_once(self) -> None:
        """Say that we are alive. A renewal that fails is tried again soon, also one of which nobody knows whether it
        happened: it makes the same row live longer, and a row that has gone stays gone."""
        engine = self.engine
        if self._stop.is_set() or engine != self._registered:
            return
        try:
            self._clock.synchronise()
            expires_at = self._expiry(self._clock.now())
            alive = self._store.renew_engine(engine, expires_at)
        except OutcomeUnknown:
            raise
        except Exception as e:  # noqa: BLE001 - whatever it is, the next renewal may succeed
            if not self._is_late:
                log.warning("could not renew the lease, trying again: %s", e)
            self._is_late = True
            return
        self._is_late = False
        if alive:
            self._expires_at = expires_at
        else:
            self._declared_dead = engine

    def stop_renewing(self) -> None:
        """Renew no more. What is under way is waited for, but not for long: the row may be gone before it ends."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def drop_lock(self) -> None:
        """Take the file away, then the lock: nobody can mistake us for alive."""
        if self._lock_fd is not None:
            Path(self._lock_file).unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = None
            try:
                assert self._folder is not None
                self._folder.rmdir()
            except OSError:
                pass  # another engine's lock is in it

    def dead_engines(self, now: int) -> list[EngineRow]:
        """Engines whose process has gone, or that have been silent for longer than their lease."""
        return [row for row in self._store.engines() if row.engine != self.engine and is_dead(row, now)]


def taken_away(run_id: str, token: int, why: str) -> LeaseLost:
    """A run is somebody else's now: what those who wait for it here are told, and one line in the log."""
    error = LeaseLost(f"run {run_id}: {why}")
    log.warning("%s run=%s token=%d: %s", error.code, run_id, token, why)
    return error


def remove_lock(dead: EngineRow) -> None:
    """Take a dead engine's lock file away, if it lies on this host."""
    if dead.lock_file and dead.host == socket.gethostname():
        Path(dead.lock_file).unlink(missing_ok=True)


def is_dead(row: EngineRow, now: int) -> bool:
    """Whether an engine's process has gone, or it has been silent for longer than its lease."""
    if row.expires_at < now:
        return True
    if row.host != socket.gethostname() or not row.lock_file:
        return False
    return lock_is_free(row.lock_file)


def life_of(row: EngineRow, now: int) -> Literal["alive", "late", "dead"]:
    """How an engine is, as far as can be seen from here: on its own host the lock of its process tells, and one that
    lives may be late with its lease; elsewhere only the lease can tell."""
    is_late = row.expires_at < now
    if row.lock_file and row.host == socket.gethostname():
        return "dead" if lock_is_free(row.lock_file) else "late" if is_late else "alive"
    return "dead" if is_late else "alive"


def lock_is_free(path: str) -> bool:
    """Whether the process that held this lock has gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # somebody else's file: only the lease can tell
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
