"""Sizes: how much work each suite does, in full and as a quick check that every suite works."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.cli.measuring import Sizes


@dataclass(frozen=True)
class SuiteSizes(Sizes):
    """The sizes of the product's workloads, and those of the further suites."""

    more_runs: int = 10_000
    width: int = 1_000
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
    concurrency: int = 100
    """Runs that each of several engines may drive at once."""


FULL = SuiteSizes()
QUICK = SuiteSizes(
    reference_seconds=0.03, chains=1, runs=20, turns=10, more_runs=40, width=20, long_steps=200, long_window=50,
    items=(100, 300), starts=1, suspended=200, interrupted=20, past_events=600, waiting=300, questions=20,
    idle_seconds=0.3, timers=200, finished=(10, 50), concurrency=5,
)  # fmt: skip
