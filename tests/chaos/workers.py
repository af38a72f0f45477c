"""Workers: real `holdfast worker` processes, each in a seat in which another one sits down when it was killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos import outside

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "holdfast")
STOP_SECONDS = 60.0
CONCURRENCY = 40
CAME_IN_VAIN = '"code":"store_error"'
"""What a worker says that finds no server when it is started, or loses it before it is an engine."""


class Worker:
    """One process, from its start to its end. What it says goes into a file, so that it never waits for a reader."""

    def __init__(self, log: Path, options: Sequence[str], environment: dict[str, str]) -> None:
        self.log = log
        self.is_frozen = False
        command = [*COMMAND, "worker", "tests.chaos.flows", "--json", *options]
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_working(self) -> bool:
        """Whether its engine lives and is not stopped."""
        return not self.is_frozen and self._process.poll() is None and self.engine is not None

    @property
    def engine(self) -> str | None:
        """The name that its engine had at first; None: it has none yet."""
        for line in self.log.read_text().splitlines(keepends=True):
            if line.startswith('{"engine"') and line.endswith("\n"):
                return str(json.loads(line)["engine"])
        return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def ended_by_itself(self) -> int | None:
        """Its exit code, if it has ended although nobody killed it."""
        return self._process.poll()

    def stop(self) -> int:
        """Let it stop in order; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()


class Crew:
    """As many workers as there are seats; each seat serves queues of its own."""

    def __init__(self, url: str, folder: Path, seats: Sequence[Sequence[str]], lease_seconds: float) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._common = ["--db", url, "--concurrency", str(CONCURRENCY), "--lease-seconds", f"{lease_seconds:g}"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.outside = outside.Outside(folder / "outside")
        self._environment = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "HOLDFAST_IDLE_SECONDS": "0.3",  # runs that wait leave memory, and wake in whichever engine
            outside.VARIABLE: str(self.outside.file),
        }
        self._options = [[part for queue in queues for part in ("--queue", queue)] for queues in seats]
        self.past: list[Worker] = []
        """Those that have left their seats."""
        self.seats: list[Worker] = [self._worker(number) for number in range(len(seats))]

    def working(self) -> list[Worker]:
        """Those that are engines now."""
        return [worker for worker in self.seats if worker.is_working]

    def replace(self, worker: Worker) -> None:
        """Kill a worker, and let another one sit down."""
        worker.kill()
        self._seat_another(worker)

    def look_after(self) -> None:
        """Nobody ends without having been killed, but those that came while the server was away: they are started
        again, as whoever runs services does."""
        for worker in list(self.seats):
            code = worker.ended_by_itself()
            if code is not None:
                came_in_vain = worker.engine is None and CAME_IN_VAIN in worker.log.read_text()
                assert came_in_vain, f"a worker has ended with exit code {code}:\n{worker.log.read_text()}"
                self._seat_another(worker)

    def _seat_another(self, worker: Worker) -> None:
        seat = self.seats.index(worker)
        self.past.append(worker)
        self.seats[seat] = self._worker(seat)

    def is_alone(self) -> bool:
        """Whether everybody works, and all who were killed are buried."""
        return len(self.working()) == len(self.seats) == len(self.json("engines"))

    def stop(self) -> None:
        """Let all of them stop in order."""
        for worker in self.seats:
            code = worker.stop()
            assert code == 0, f"a worker has stopped with exit code {code}:\n{worker.log.read_text()}"

    def close(self) -> None:
        for worker in self.seats:
            worker.end()

    def logs(self) -> dict[Path, str]:
        return {worker.log: worker.log.read_text() for worker in (*self.past, *self.seats)}

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command on the same database."""
        command = [*COMMAND, *arguments, *self._common[:2]]
        return subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)

    def json(self, *arguments: str) -> Any:
        done = self.cli(*arguments, "--json")
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return json.loads(done.stdout)

    def _worker(self, seat: int) -> Worker:
        log = self._folder / f"worker-{next(self._numbers)}.log"
        return Worker(log, [*self._common, *self._options[seat]], self._environment)
