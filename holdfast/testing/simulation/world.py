"""World: processes that share one database and one clock, and the choices that make up a schedule.

Owns: which process runs next, when time advances, which process is dead, hangs or comes back, and when nothing is left
to do.
Never: judges what happened (explorer/oracle.py), or chooses the faults (a tape does, boundaries.py).
Invariants: the same tape and the same seed give the same schedule. Time advances only when nothing can happen without
it.

A process that dies is cut off in the middle of a callback. One that hangs keeps its memory, and the write at which it
stopped happens when it comes back (or has happened already): that is a zombie.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Literal, Protocol

from holdfast.engine.engine_settings import EngineSettings
from holdfast.model.limits import SECOND
from holdfast.store.row_types import RunRow
from holdfast.testing.simulation.boundaries import Boundaries, Boundary
from holdfast.testing.simulation.database import WorldDatabase, write_as_newer_version
from holdfast.testing.simulation.faults import Postponed, PowerCut, Until
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.python_internals import outside_running_loop, set_running_loop
from holdfast.testing.simulation.requests import Client, Requests
from holdfast.testing.simulation.virtual_loop import VirtualClock
from holdfast.testing.simulation.watched_bodies import Watcher

Newer = Literal["marked", "unmarked"]
"""How a newer Holdfast that writes to the runs of a dead process leaves them: with their format raised, or not."""
TURNS_MAX = 20_000
"""Turns of a schedule; one that takes more is a livelock."""
POLLS_MAX = 60
"""How often time is advanced by a second because an engine should find the work that is left."""

SETTINGS = EngineSettings(
    lease_seconds=3.0, grace_seconds=2.0, idle_seconds=1.0, sweep_seconds=5.0, threads=64, processes=4
)
"""Shorter than in production, so that waiting for a lease or a poll takes few steps."""


class Observer(Protocol):
    """Checks the database after every write, and at the end."""

    def wrote(self, process: Process, verb: str, about: Any, result: Any) -> None: ...


class World:
    """A few processes around one database."""

    def __init__(
        self,
        shared: WorldDatabase,
        *,
        tape: Callable[[int], int] = lambda number: 0,
        seed: int = 0,
        watcher: Watcher | None = None,
        observer: Observer | None = None,
        settings: EngineSettings = SETTINGS,
        clock: VirtualClock | None = None,
        client: Client | None = None,
        standby: bool = False,
        newer: Newer | None = None,
    ) -> None:
        self.shared = shared
        self.clock = clock or VirtualClock()
        self.settings = settings
        self.watcher = watcher
        self.observer = observer
        self.acts = Boundaries(tape, self.clock, self)
        self.processes: list[Process] = []
        self.unsuitable_because: list[str] = []
        self.over = False
        """The schedule has ended: whatever is still unwound has no effect."""
        self.livelock = False
        self.alike = False
        """This state was reached before: the schedule need not be run to its end."""
        self._is_known: Callable[[str], bool] | None = None
        self._first: Process | None = None
        """The process that has just come back: it runs until it is idle, so that what it was about to do happens
        now."""
        self._unwatched: tuple[str, Process] | None = None
        self._standby = standby
        self._newer = newer
        self.rewritten: dict[int, RunRow] = {}
        """Runs that a newer Holdfast has written to, as it left them."""
        self.rewritten_at = 0
        """How many boundaries had been reached then."""
        self._random = random.Random(seed) if seed else None
        self.requests = Requests(client)
        self._age = 0
        """Writes so far: a process that has polled at this age has seen everything."""
        self._awake = 0
        """Grows whenever a process dies, hangs or comes back."""
        self._turns = 0
        self._polls = 0
        self._poll_failed = False

    # --- a schedule ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run one schedule to its end."""
        with outside_running_loop():
            self.boot()
            while not (self.livelock or self.alike):
                if self._take_turns() or self._wake_due() or self._supervise():
                    continue
                if self._is_over():
                    if not self._come_back():
                        return
                elif not (self._poll_all() or self._come_back() or self._move_time()):
                    return

    def settle(self) -> None:
        """Do everything that needs no time."""
        self._turns = 0
        with outside_running_loop():
            while not self.livelock:
                if not (self._take_turns() or self._wake_due() or self._supervise() or self._poll_all()):
                    return

    def pass_time(self, micros: int) -> None:
        """Advance time, and do everything that happens meanwhile, in its order."""
        until = self.clock.now() + micros
        self.settle()
        while (instant := min(self._instants(), default=until)) < until:
            self._advance(instant)
            self.settle()
        self._advance(until)
        self.settle()

    def watch_states(self, is_known: Callable[[str], bool]) -> None:
        """Ask `is_known`, whenever the future depends on the database alone, whether this state was reached before; if
        so the schedule ends there. That is so after a death, and when an engine has just claimed runs or advanced them,
        provided that no other process has anything in memory."""
        self._is_known = is_known

    def dispose(self) -> None:
        """Discard the processes; nothing of them runs any more."""
        self.over = True
        with outside_running_loop():
            for process in self.processes:
                set_running_loop(process.loop)
                process.dispose()

    def boot(self) -> Process:
        """Start a process; it opens the database and takes over runs without an owner."""
        process = Process(self, chr(ord("A") + len(self.processes)))
        self.processes.append(process)
        self._call(process, self._open(process))
        return process

    async def _open(self, process: Process) -> None:
        try:
            await process.engine.open()
            await process.engine.claims.sweep()
        except Exception:  # noqa: BLE001 - a process that cannot start ends, and its supervisor starts another
            self.kill(process)

    @staticmethod
    def _call(process: Process, work: Any) -> asyncio.Task[Any]:
        return process.loop.create_task(work)

    # --- turns -----------------------------------------------------------------------------------------------------

    def _take_turns(self) -> bool:
        """Give one turn to every process that is ready; False if none is."""
        ready = [p for p in self.processes if p.loop.ready and p.hangs_until is None]
        if not ready:
            return False
        if self._random is not None:
            ready = [self._random.choice(ready)]
        elif self._first is not None:
            if self._first in ready:
                ready = [self._first]
            else:
                self._first = None
                self._check_state(*self._unwatched or ("", ready[0]))
                if self.alike:
                    return False
        if len(ready) == 1:  # no other process can become ready unless it comes back or is started
            process, age = ready[0], self._awake
            while process.loop.ready and self._awake == age:
                self._turn(process)
            return True
        for process in ready:
            self._turn(process)
        return True

    def _turn(self, process: Process) -> None:
        """Run what is ready now, as an event loop does; what becomes ready meanwhile waits for the next turn."""
        self._turns += 1
        if self._turns > TURNS_MAX:
            self.livelock = True
            self._awake += 1
            return
        ready, age = process.loop.ready, self._awake
        set_running_loop(process.loop)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except Postponed:
                ready.appendleft(handle)
            except PowerCut:
                pass
            if self._awake != age and not process.runs:
                return

    def _supervise(self) -> bool:
        """Start a process if none is running, and let the client repeat a request without a response."""
        for process in self.processes:
            if process.alive and process.engine.fatal is not None:
                self.kill(process)  # a supervisor ends an engine that cannot use its store any more
                return True
        running = [p for p in self.processes if p.runs]
        if not running:
            self.boot()
            return True
        # ask the newest process: where several live, it is seldom the one that drives the run
        served = self.requests.serve(running[-1], self.clock.now())
        self.livelock = self.livelock or self.requests.stuck
        return served

    def _poll_all(self) -> bool:
        """Let every engine poll that has not seen the latest write."""
        looked = False
        for process in self.processes:
            if process.runs and process.seen != self._age:
                process.seen = self._age
                looked = True
                self._call(process, self._poll(process))
        return looked

    async def _poll(self, process: Process) -> None:
        try:
            await process.engine.poll_loop.poll_once()
        except Exception:  # noqa: BLE001 - the engine's own loop logs it, and polls again a second later
            self._poll_failed = True

    def _is_over(self) -> bool:
        """True if the client was answered and every run has ended, so that whatever still happens comes too late."""
        return self.requests.done and self.shared.is_finished()

    def _come_back(self) -> bool:
        """Let a hanging process come back, if the other processes have nothing left to do."""
        for process in self.processes:
            if process.hangs_until is not None and (self.shared.is_finished() or not self._lease_lives(process)):
                self._thaw(process)
                return True
        return False

    def _lease_lives(self, process: Process) -> bool:
        return any(row.engine == process.engine.lease.engine for row in self.shared.engines())

    # --- time ----------------------------------------------------------------------------------------------------

    def _move_time(self) -> bool:
        """Advance to the next instant at which something can happen; False if there is none."""
        now, timer = self.clock.now(), self.shared.next_timer()
        instants = self._instants()
        standing = {p.engine.lease.engine for p in self.processes if p.hangs_until is not None}
        expiring = [row.expires_at + 1 for row in self.shared.engines() if row.engine in standing]
        expiring = [instant for instant in expiring if instant > now]
        instants += expiring
        asked_at = self.requests.due_at(now)
        if asked_at is not None:
            instants.append(asked_at)
        if not expiring and self._should_poll_again(overdue=timer is not None and timer <= now):
            instants.append(now + SECOND)
        if not instants:
            return False
        self._advance(min(instants))
        if self._standby and len(self.processes) == 1:
            self.boot()  # two engines share the database while a run waits
        return True

    def _instants(self) -> list[int]:
        """When timers are due, in memory and in the database."""
        now = self.clock.now()
        instants = []
        for process in self.processes:
            due = process.loop.next_time() if process.runs else None
            if due is not None:
                instants.append(max(self.clock.instant(due), now + 1))
        timer = self.shared.next_timer()
        if timer is not None and timer > now:
            instants.append(timer)
        return instants

    def _should_poll_again(self, overdue: bool) -> bool:
        """True if an engine that polls again should find something; not for ever, or a stuck run would go unnoticed."""
        failed, self._poll_failed = self._poll_failed, False
        if not (failed or overdue) and self.shared.is_at_rest():
            self._polls = 0
            return False
        self._polls += 1
        return self._polls < POLLS_MAX

    def _wake_due(self) -> bool:
        """Make due timers ready."""
        return bool([process for process in self.processes if process.runs and process.loop.wake_due()])

    def _advance(self, instant: int) -> None:
        self.clock.move_to(instant)
        self._age += 1
        for process in self.processes:
            if process.runs:
                if instant - process.renewed_at >= self.settings.lease_seconds * SECOND / 3:
                    self._renew(process)  # as its own thread would have done all the while
                process.loop.wake_due()

    # --- what was written ----------------------------------------------------------------------------------------

    def wrote(self, process: Process, verb: str, about: Any, result: Any) -> None:
        """Record a write, and inform every process and the observer."""
        if verb == "take_slots" and not result:
            return  # it has not
        self._age += 1
        for other in self.processes:
            if other is not process:
                other.store.others_wrote()
        self._wake_zombies(process, verb, result)
        if self.observer is not None:
            self.observer.wrote(process, verb, about, result)
        if verb == "claim" and result and not process.engine.actors:
            process.fresh = True
            self._check_state(verb, process)
        elif verb == "commit" and process.fresh:
            process.fresh = False
            self._check_state(verb, process)

    def _check_state(self, label: str, process: Process) -> None:
        """Called when the future of this process depends on the database alone: check whether that of the world
        does."""
        self._unwatched = None
        if not label or self._is_known is None or self._random is not None:
            return
        if any(p.alive and p is not process and not p.rests for p in self.processes):
            self._unwatched = (label, process)
        elif self._is_known(label):
            self.alike = True
            self._awake += 1

    def _wake_zombies(self, actor: Process, verb: str, result: Any) -> None:
        for process in self.processes:
            until = process.hangs_until
            if until is None or process is actor or not actor.alive:
                continue
            freed = until is Until.FREED and verb == "remove_engine" and result is not None
            claimed = until is Until.CLAIMED and verb == "claim" and result
            taken_over = until is Until.TAKEN_OVER and verb == "commit"
            if freed or claimed or taken_over:
                self._thaw(process)

    # --- dying, standing still, coming back ------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Kill a process. On one host the other processes see that at once."""
        process.cut()
        self._age += 1
        self._awake += 1
        if self._newer is not None:
            engine, now = process.engine.lease.engine, self.clock.now()
            self.rewritten |= write_as_newer_version(self.shared, engine, now, marked=self._newer == "marked")
            self.rewritten_at = self.rewritten_at or len(self.boundaries)
        self._check_state("death", process)

    def freeze(self, process: Process, until: Until) -> None:
        process.freeze(until)
        self._age += 1
        self._awake += 1

    def _thaw(self, process: Process) -> None:
        process.thaw()
        self._age += 1
        self._awake += 1
        self._first = process
        process.loop.wake_due()
        self._renew(process)  # its thread was due long ago

    def _renew(self, process: Process) -> None:
        process.renewed_at = self.clock.now()
        process.engine.committer.call_from_thread(process.engine.lease.renew_once)

    @property
    def boundaries(self) -> list[Boundary]:
        """The boundaries that were reached so far."""
        return self.acts.met

    def is_gone(self, engine: str) -> bool:
        return not any(p.alive and p.engine.lease.engine == engine for p in self.processes)

    def unsuitable(self, why: str) -> None:
        self.unsuitable_because.append(why)
