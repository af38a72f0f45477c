"""Lease: the right of this engine to drive the runs it owns, and which other engines are dead.

Owns: this engine's row and lock file, the renewal of the row, and what waits until the lease is renewed.
Never: decides what happens to the runs of a dead engine (claim.py), or reads lock files itself (store/liveness.py). No
part relies on holding the lease: every commit carries its token, and the store refuses an old one.
Invariants: at most one live lease per run; tokens only grow. One row is renewed however many runs are owned.
On crash: the kernel drops the lock with the process; other hosts wait until the lease has expired.

Engines on one kernel: a free lock means a dead engine, at once. A held lock means a live engine as long as it renewed
its lease within `lease_seconds` of monotonic time, which does not advance while the machine sleeps and which no
administrator sets. Engines on other hosts: only the lease decides, by the clock that all engines of the store share.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from holdfast.engine.committer import Committer
from holdfast.model.errors import LeaseLost, OutcomeUnknown
from holdfast.model.limits import LOOP_STALL_SECONDS
from holdfast.model.naming import unique
from holdfast.store.clocks import Clock
from holdfast.store.contract import Store
from holdfast.store.liveness import NO_LOCK, LockFile, Locks, is_dead
from holdfast.store.row_types import EngineRow

log = logging.getLogger("holdfast.engine")
RENEWALS = 3
"""Renewals per lease time: two may fail before another engine acts."""
HASTE = 4
"""By which factor a failed renewal is retried sooner."""
STOP_SECONDS = 1.0
"""How long a closing engine waits for a renewal in progress; one that ends later changes nothing."""


class Lease:
    """The lease of this engine."""

    def __init__(self, store: Store, lease_seconds: float, clock: Clock) -> None:
        self.engine = unique("eng_")
        """The id of this engine; a new one after it was declared dead."""
        self._store = store
        self._clock = clock
        self._seconds = lease_seconds
        self._lock: LockFile | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._registered = ""
        """The engine id whose row can be renewed; differs from `engine` while the id is being changed."""
        self._runs_out_at = 0
        """When the lease expires, in `clock.lease_time`."""
        self._came_back_at: int | None = None
        """When an expired lease was last renewed."""
        self._ticked_at = time.monotonic()
        self._is_late = False
        """The last renewal failed."""
        self._declared_dead = ""
        """The engine id whose row a renewal did not find; perhaps an earlier id of this engine."""
        self.former: str | None = None
        """The id under which this engine was declared dead, until the runs it owned under it are detached."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deferred: list[Callable[[], object]] = []
        """What begins when the lease is held again."""

    @functools.cached_property
    def locks(self) -> Locks:
        """The lock files beside the database, which must be open."""
        return Locks.of(self._store)

    # --- is it held? ---------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether another engine has declared this one dead, and it has not registered under a new id yet."""
        return self._declared_dead == self.engine or self._registered not in ("", self.engine)

    @property
    def has_run_out(self) -> bool:
        """Whether the lease has expired as far as this engine knows: another engine may have declared it dead and own
        its runs."""
        return self._clock.lease_time() > self._runs_out_at

    @property
    def may_begin(self) -> bool:
        """Whether a body or a step may begin: not while another engine may own the runs of this one."""
        is_known = self._registered == self.engine and self._declared_dead != self.engine
        return is_known and self.former is None and self._clock.lease_time() <= self._runs_out_at

    def defer(self, begin: Callable[[], object]) -> None:
        """Call `begin` when the lease is held again: until then another engine may own the run."""
        self._deferred.append(begin)

    def _returned(self) -> None:
        """The lease is held again. Called in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._begin_deferred)

    def _begin_deferred(self) -> None:
        if self.may_begin:
            deferred, self._deferred = self._deferred, []
            for begin in deferred:
                begin()

    # --- the engine's row ----------------------------------------------------------------------------------

    def row(self, can_run: bytes) -> EngineRow:
        now = self._clock.now()
        mark = NO_LOCK if self._lock is None else self._lock.mark
        return EngineRow(
            engine=self.engine,
            host=socket.gethostname(),
            pid=os.getpid(),
            lock_file=mark.name,
            started_at=now,
            expires_at=now + self._micros,
            can_run=can_run,
            boot=mark.boot,
            lock_inode=mark.inode,
            awake_until=self._clock.lease_time() + self._micros,
        )

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lock a file beside the database for as long as the process lives; call what is deferred on this loop."""
        self._loop = loop
        self.take_lock()

    def take_lock(self) -> None:
        self._lock = self.locks.take(self.engine)

    def register(self, can_run: bytes) -> None:
        """Insert this engine's row. Called by the writer."""
        row = self.row(can_run)
        self._store.register_engine(row)
        self._registered = row.engine
        self._runs_out_at = row.awake_until

    @property
    def _micros(self) -> int:
        return int(self._seconds * 1_000_000)

    def renew_identity(self) -> None:
        """Become another engine, with a new id and lock file, after being declared dead. `register` inserts its row;
        `settle` ends its former life."""
        self.former = self.former or self.engine
        self.drop_lock()
        self.engine = unique("eng_")
        self.take_lock()

    def settle(self) -> None:
        """All runs that were owned under the former id are detached."""
        self.former = None
        self._returned()

    def drop_lock(self) -> None:
        """Show every other engine on this machine that this one has ended."""
        if self._lock is not None:
            self._lock.drop()
            self._lock = None

    def give_up(self) -> None:
        """Let the lease expire and drop the lock: the engine stops, and another one is to take over its runs."""
        self._stop.set()
        self._runs_out_at = -1
        self.drop_lock()

    # --- renewal -------------------------------------------------------------------------------------------

    def start_renewing(self, committer: Committer, loop: asyncio.AbstractEventLoop) -> None:
        """Renew in a thread of its own, so that a busy event loop does not lose its runs."""
        self._thread = threading.Thread(target=self._renew, args=(committer, loop), name="holdfast-lease", daemon=True)
        self._thread.start()

    def _renew(self, committer: Committer, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.wait(self._seconds / RENEWALS / (HASTE if self._is_late else 1)):
            if self._is_stalled(loop):
                log.error("the event loop has not moved for %g s: not renewing the lease", LOOP_STALL_SECONDS)
            elif self._store.is_shared:
                self.renew_once()  # beside the writer, which many commits or an unreachable server may keep busy
            else:
                committer.call_from_thread(self.renew_once)

    def _is_stalled(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the loop has not had a turn for long: a process that is stuck must not keep its runs."""
        try:
            loop.call_soon_threadsafe(self._tick)
        except RuntimeError:
            return True  # it was closed, and the engine was not
        return time.monotonic() - self._ticked_at > LOOP_STALL_SECONDS

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()

    def renew_once(self) -> None:
        """Extend the expiry of this engine's row. A renewal that fails is retried soon, also one of unknown outcome: it
        only extends the same row, and a row that was removed stays removed."""
        engine = self.engine
        if self._stop.is_set() or engine != self._registered:
            return
        try:
            self._clock.synchronise()
            began_at = self._clock.lease_time()
            runs_out_at = began_at + self._micros
            alive = self._store.renew_engine(engine, self._clock.now() + self._micros, runs_out_at)
        except OutcomeUnknown:
            raise
        except Exception as e:  # noqa: BLE001 - whatever it is, the next renewal may succeed
            if not self._is_late:
                log.warning("could not renew the lease, trying again: %s", e)
            self._is_late = True
            return
        self._is_late = False
        if not alive:
            self._declared_dead = engine
            return
        had_run_out, self._runs_out_at = began_at > self._runs_out_at, runs_out_at
        if had_run_out:
            self._came_back_at = began_at
            self._returned()

    def stop_renewing(self) -> None:
        """Renew no more. A renewal in progress is waited for, but not for long: the row may be removed before it
        ends."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    # --- other engines -------------------------------------------------------------------------------------

    def dead_engines(self, now: int) -> list[EngineRow]:
        """Engines whose process has ended, or that have not renewed their lease in time."""
        others = [row for row in self._store.engines() if row.engine != self.engine]
        if self._was_away:
            return [row for row in others if self.locks.sight(row) == "free"]
        return [row for row in others if is_dead(row, now, self.locks)]

    @property
    def _was_away(self) -> bool:
        """Whether this engine itself did not run for a part of the last lease time: what stopped it (a frozen
        container, a disk that did not answer) may have stopped other engines too. They need a lease time to renew
        theirs before their silence means anything."""
        came_back_at = self._came_back_at
        if came_back_at is None:
            return self.has_run_out
        return self.has_run_out or self._clock.lease_time() < came_back_at + self._micros


def taken_away(run_id: str, token: int, why: str) -> LeaseLost:
    """The error for callers that wait for a run which another engine owns now; also logged."""
    error = LeaseLost(f"run {run_id}: {why}")
    log.warning("%s run=%s token=%d: %s", error.code, run_id, token, why)
    return error
