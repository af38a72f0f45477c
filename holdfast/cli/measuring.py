"""Measuring: figures of the engine, each compared with the raw commits of the same disk in the same minute.

Owns: `ref` (raw commits per second), the new database of each measurement, measuring again while the disk is unsteady.
Never: decides what is measured (workloads.py, and in a checkout benchmarks/) or shows anything (commands/bench.py).
Why: the commit rate of one disk changes by a factor of two within minutes; a ratio to the rate of the same minute is
comparable.
Invariant: no schema of a server and no file is changed that was not made here.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import os
import platform
import secrets
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import apsw

import holdfast
from holdfast.cli import output
from holdfast.cli.process_setup import tune
from holdfast.store.urls import database_file, is_postgres

T = TypeVar("T")
S = TypeVar("S", bound="Sizes")
Figures = dict[str, Any]
Execute = Callable[..., list[Any]]
"""Executes a statement and returns its rows. Its values are `$1`, `$2`, ... on SQLite and on PostgreSQL."""

DRIFT_MAX = 1.5
"""If the commit rates before and after a measurement differ by more than this factor, the disk was unsteady."""
MEASURED_AGAIN_MAX = 3


# --- where a measurement has its database ---------------------------------------------------------------------------


class Place(NamedTuple):
    """The database of one measurement."""

    url: str
    directory: Path
    """For other files of the measurement."""


def in_file(directory: Path) -> Place:
    return Place(f"sqlite:///{directory / 'bench.db'}", directory)


@contextmanager
def on_server(url: str, directory: Path) -> Iterator[Place]:
    """Yield a new schema of the database at `url`; drop it at the end."""
    schema = f"holdfast_bench_{secrets.token_hex(6)}"
    parts = urlsplit(url)
    options = {**dict(parse_qsl(parts.query)), "schema": schema}
    own = urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
    try:
        yield Place(own, directory)
    finally:
        with connected(own) as execute:
            execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@contextmanager
def connected(url: str) -> Iterator[Execute]:
    """Yield a function that executes SQL on the tables of a database."""
    if not is_postgres(url):
        with closing(sqlite3.connect(str(database_file(url)), isolation_level=None)) as file:
            yield lambda text, *values: file.execute(text, {str(n): v for n, v in enumerate(values, 1)}).fetchall()
        return
    import asyncpg

    from holdfast.store.postgres.postgres_address import address

    where = address(url)

    async def connect() -> Any:
        return await asyncpg.connect(where.dsn, server_settings={"search_path": where.schema}, command_timeout=600)

    with asyncio.Runner() as runner:
        connection = runner.run(connect())
        try:
            yield lambda text, *values: [tuple(row) for row in runner.run(connection.fetch(text, *values))]
        finally:
            runner.run(connection.close())


# --- one measurement ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """How much work each workload does."""

    reference_seconds: float = 0.5
    chains: int = 5
    runs: int = 1_000
    turns: int = 500


@dataclass
class Sample(Generic[T]):
    """One measurement, and the raw commits per second before and after it."""

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
class Bench(Generic[S]):
    """Where and how to measure."""

    directory: Path
    sizes: S
    repeat: int | None = None
    server: str | None = None
    """The URL of the PostgreSQL database to measure; None: SQLite files."""
    say: Callable[[str], None] = output.note
    references: list[float] = field(default_factory=list)

    def repeats(self, usual: int) -> range:
        return range(usual if self.repeat is None else self.repeat)

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """Yield a new directory; remove it at the end."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Yield a place for one new database; remove it at the end."""
        with self.fresh() as directory:
            if self.server is None:
                yield in_file(directory)
                return
            with on_server(self.server, directory) as place:
                yield place

    def reference(self) -> float:
        with self.fresh() as path:
            rate = commits_per_second(path, self.sizes.reference_seconds)
        self.references.append(rate)
        return rate

    def sample(self, work: Callable[[Place], T], *, disk: bool = True) -> Sample[T]:
        """Measure once in a new database. With `disk`, repeat while the disk is unsteady and return the steadiest."""
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
    with closing(sqlite3.connect(directory / "reference.db", isolation_level=None)) as connection:
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


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def with_reference(figures: Figures, samples: Sequence[Sample[Any]], *, disk: bool = True) -> Figures:
    """Add what a suite reports about its reference; `drift` only where the disk counts."""
    figures["ref"] = median([s.ref for s in samples])
    figures["repetitions"] = len(samples)
    if disk:
        figures["drift"] = max(s.drift for s in samples)
    return figures


def rounded(value: Any) -> Any:
    """Round every number to the digits that are not noise."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 1) if abs(value) >= 1000 else float(f"{value:.4g}")
    return value


@contextmanager
def tuned() -> Iterator[None]:
    """Tune this process as those that drive runs are tuned; restore its settings at the end."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    tune()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


# --- the machine -----------------------------------------------------------------------------------------------------


def describe(directory: Path, server: str | None) -> dict[str, Any]:
    """Describe the machine, its disk and the measured server: what a reader needs to compare two reports."""
    version = None
    if server is not None:
        with connected(server) as execute:
            version = str(execute("SELECT split_part(version(), ' on ', 1)")[0][0])
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "server": version,
        "system": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "filesystem": filesystem(directory),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def filesystem(directory: Path) -> str | None:
    """The type of the file system that holds a directory; None where the system does not say."""
    mounts = Path("/proc/self/mounts")
    resolved = directory.resolve()
    longest, found = "", None
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, where, kind, *_ = line.split()
        where = where.replace("\\040", " ")
        if resolved.is_relative_to(where) and len(where) >= len(longest):
            longest, found = where, kind
    return found


def _cpu() -> str:
    about = Path("/proc/cpuinfo")
    for line in about.read_text().splitlines() if about.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
