"""Monkey: what is done to workers and server, and when. Everything is drawn from one seed.

Every second a worker dies by kill -9 and another one sits down in its seat; the server dies by kill -9 and is started
again; a worker is stopped (SIGSTOP) until its leases are lost, and comes back as a zombie that does not know it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass

from tests.chaos.workers import Crew, Worker
from tests.servers import PostgresServer
from tests.store.postgres_kit import sql

KILL_SECONDS = 1.0
FROZEN_LEASES = 3
EARLY = 0.4
"""The part of the time between two great events in which the first of them comes: a zombie has to be back before the
second one."""
AT_WORK_SECONDS = 15.0
"""How long is waited for a worker that drives runs."""
PATIENCE_SECONDS = 60.0
"""How long is waited for what must happen; it never decides whether something is quick enough."""


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    seconds: float
    runs: int
    seats: tuple[tuple[str, ...], ...]
    """The queues that each worker serves; none: all of them."""
    server_kills: int
    freezes: int
    lease_seconds: float


class Monkey:
    """Does it, and counts what it has done."""

    def __init__(self, scale: Scale, url: str, server: PostgresServer, crew: Crew, chance: random.Random) -> None:
        self._scale = scale
        self._url = url
        self._server = server
        self._crew = crew
        self._chance = chance
        self._frozen: list[Worker] = []
        self.kills = 0
        self.server_kills = 0
        self.zombies = 0
        """Workers that came back, and became another engine."""

    def play(self) -> None:
        """Everything, in the time that there is for it."""
        began = time.monotonic()
        for moment, act in self._plan():
            time.sleep(max(0.0, began + moment - time.monotonic()))  # the moment itself is the point
            act()
            self._crew.look_after()

    def _plan(self) -> list[tuple[float, Callable[[], None]]]:
        scale, chance = self._scale, self._chance
        plan: list[tuple[float, Callable[[], None]]] = []
        for second in range(int(scale.seconds / KILL_SECONDS)):
            plan.append(((second + chance.random()) * KILL_SECONDS, self._kill_a_worker))
        great = [self._kill_the_server] * scale.server_kills + [self._freeze_a_worker] * scale.freezes
        chance.shuffle(great)
        part = scale.seconds / max(1, len(great))
        for n, act in enumerate(great):
            moment = (n + EARLY * chance.random()) * part
            plan.append((moment, act))
            if act == self._freeze_a_worker:
                plan.append((moment + FROZEN_LEASES * scale.lease_seconds, self._thaw_it))
        return sorted(plan, key=lambda entry: entry[0])

    def _kill_a_worker(self) -> None:
        self._crew.replace(self._somebody())
        self.kills += 1

    def _kill_the_server(self) -> None:
        self._server.kill()
        time.sleep(self._chance.uniform(0, 2 * self._scale.lease_seconds))
        self._server.start()
        self.server_kills += 1

    def _freeze_a_worker(self) -> None:
        """One that has something to lose, unless for long nobody has."""
        with suppress(AssertionError):
            self._until(self._at_work, "nobody is at work", AT_WORK_SECONDS)
        worker = self._somebody(among=self._at_work())
        worker.freeze()
        self._frozen.append(worker)

    def _thaw_it(self) -> None:
        """When its leases are lost: after so many of them, unless just then nobody else was there to see it."""
        worker = self._frozen.pop(0)
        dead = f"nobody has declared the stopped process {worker.pid} dead"
        self._until(lambda: worker.pid not in self._engines(), dead)
        worker.thaw()
        self._until(lambda: worker.pid in self._engines(), f"process {worker.pid} did not become an engine again")
        self.zombies += 1

    def _engines(self) -> set[int]:
        """The processes whose engines are known."""
        return {pid for (pid,) in sql(self._url, "SELECT pid FROM holdfast.engines")}

    def _at_work(self) -> set[int]:
        """The processes that drive runs."""
        query = "SELECT pid FROM holdfast.engines JOIN holdfast.run_state USING (engine) WHERE status = 'running'"
        return {pid for (pid,) in sql(self._url, query)}

    def _somebody(self, among: Container[int] = ()) -> Worker:
        """A worker that works, one of these processes if possible."""
        self._until(self._crew.working, "no worker has come up")
        working = self._crew.working()
        return self._chance.choice([worker for worker in working if worker.pid in among] or working)

    def _until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for something, and meanwhile seat others for those that came while the server was away."""

        def holds() -> object:
            self._crew.look_after()
            return condition()

        until(holds, what, seconds)


def until(condition: Callable[[], object], what: str | Callable[[], str], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something that must happen; `what` says what did not."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, what if isinstance(what, str) else what()
        time.sleep(0.05)
