"""Reference: what this disk can do, and a figure measured between two looks at it.

Owns: `ref` (raw commits per second), the fresh database of each measurement, and measuring again when the disk moved.
Why: the commit rate of one disk moves by a factor of two within minutes; a ratio to that of the same minute is
comparable.
"""

from __future__ import annotations

import gc
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from holdfast.cli.bench import places
from holdfast.cli.bench.places import Place

T = TypeVar("T")

DRIFT_MAX = 1.5
"""Two references further apart than this: the disk was not the same before and after."""

MEASURED_AGAIN_MAX = 3


@dataclass(frozen=True)
class Sizes:
    """How much of each work is done."""

    reference_seconds: float = 0.5
    chains: int = 5
    runs: int = 1_000
    more_runs: int = 10_000
    width: int = 1_000
    turns: int = 500
    long_steps: int = 50_000
    long_window: int = 1_000
    items: tuple[int, int] = (10_000, 100_000)
    starts: int = 5
    suspended: int = 100_000
    interrupted: int = 1_000
    past_events: int = 1_000_000
    waiting: int = 1_000_000
    questions: int = 10_000
    idle_seconds: float = 10.0
    timers: int = 100_000
    finished: tuple[int, int] = (1_000, 1_000_000)
    room: int = 100


FULL = Sizes()
QUICK = Sizes(0.03, chains=1, runs=20, more_runs=40, width=20, turns=10, long_steps=200, long_window=50,
              items=(100, 300), starts=1, suspended=200, interrupted=20, past_events=600,
              waiting=300, questions=20, idle_seconds=0.3, timers=200, finished=(10, 50), room=5)  # fmt: skip
"""Only shows that everything works."""


@dataclass
class Sample(Generic[T]):
    """One measurement and the commits per second before and after it."""

    value: T
    before: float
    after: float

    @property
    def ref(self) -> float:
        return (self.before + self.after) / 2

    @property
    def drift(self) -> float:
        return max(self.before, self.after) / min(self.before, self.after)


@dataclass
class Bench:
    """Where and how to measure."""

    directory: Path
    sizes: Sizes
    repeat: int | None
    say: Callable[[str], None]
    server: str | None = None
    """The address of the PostgreSQL that is measured; None: files are."""
    references: list[float] = field(default_factory=list)

    def repeats(self, usual: int) -> range:
        return range(usual if self.repeat is None else self.repeat)

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """A directory, gone afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place for one database, gone afterwards."""
        with self.fresh() as directory:
            if self.server is None:
                yield places.in_file(directory)
                return
            with places.on_server(self.server, directory) as place:
                yield place

    def reference(self) -> float:
        with self.fresh() as path:
            rate = commits_per_second(path, self.sizes.reference_seconds)
        self.references.append(rate)
        return rate

    def sample(self, work: Callable[[Place], T], *, disk: bool = True) -> Sample[T]:
        """Measure once in a fresh database. Where the disk counts, again while it moves meanwhile; the steadiest
        counts."""
        best: Sample[T] | None = None
        for _ in range(1 + (MEASURED_AGAIN_MAX if disk else 0)):
            before = self.reference()
            gc.collect()
            with self.place() as place:
                value = work(place)
            found = Sample(value, before, self.reference())
            if best is None or found.drift < best.drift:
                best = found
            if found.drift <= DRIFT_MAX or not disk:
                break
            self.say(f"  the disk went from {found.before:,.0f} to {found.after:,.0f} commits/s: measuring again")
        assert best is not None
        return best


def commits_per_second(directory: Path, seconds: float) -> float:
    """SQLite, WAL, synchronous=FULL, one small insert per commit: the rate of a program that waits for every commit."""
    connection = sqlite3.connect(directory / "reference.db", isolation_level=None)
    try:
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("create table t(id integer primary key, v text)")
        count, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            connection.execute("begin immediate")
            connection.execute("insert into t(v) values('x')")
            connection.execute("commit")
            count += 1
        return count / elapsed
    finally:
        connection.close()


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]
