"""How many random examples the tests draw.

For each commit a third of them, always the same ones, so that a failure is caused by the change under test. With
HOLDFAST_EXPLORE=n, n times all of them, at random: `make soak` does so.
"""

from __future__ import annotations

import os

import pytest

EXPLORE = int(os.environ.get("HOLDFAST_EXPLORE") or 0)


def examples(whole: int) -> int:
    """How many of this many examples a property is tried with."""
    return whole * EXPLORE if EXPLORE else -(-whole // 3)


def soaked(*cases: object) -> list[object]:
    """Cases of a test that only `make soak` tries."""
    return [pytest.param(case, marks=pytest.mark.soak) for case in cases]


def seeds(whole: int) -> list[object]:
    """Seeds for a test that draws by itself: those of each commit, then those that only `make soak` tries."""
    per_commit = -(-whole // 3)
    more = range(per_commit, whole * max(1, EXPLORE))
    return [*range(per_commit), *soaked(*more)]
