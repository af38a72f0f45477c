"""Statuses: the state machines of runs and nodes.

Owns: the status names and the one table of allowed transitions for each machine. (`recovering` is shown for a run that
a new owner has claimed and whose takeover is not committed yet: views derive it, no run has it stored.)
Never: changes a status (see evolve.py, the only place that does).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class _Status(StrEnum):
    __hash__ = str.__hash__  # Enum's own is a Python function, and statuses are looked up several times an event


class RunStatus(_Status):
    CREATED = "created"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeStatus(_Status):
    PENDING = "pending"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


R, N = RunStatus, NodeStatus

RUN_TRANSITIONS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    R.CREATED: frozenset({R.RUNNING, R.SUSPENDED, R.COMPLETED, R.FAILED, R.CANCELLED}),
    R.RUNNING: frozenset({R.SUSPENDED, R.COMPLETED, R.FAILED, R.CANCELLED}),
    R.SUSPENDED: frozenset({R.RUNNING, R.COMPLETED, R.FAILED, R.CANCELLED}),
    R.COMPLETED: frozenset(),
    R.FAILED: frozenset(),
    R.CANCELLED: frozenset(),
}
"""A terminal status is final on its branch; another branch has its own status."""

NODE_TRANSITIONS: Final[dict[NodeStatus, frozenset[NodeStatus]]] = {
    N.PENDING: frozenset({N.SCHEDULED, N.SKIPPED, N.FAILED, N.CANCELLED}),
    N.SCHEDULED: frozenset({N.SCHEDULED, N.RUNNING, N.FAILED, N.CANCELLED}),
    N.RUNNING: frozenset({N.SCHEDULED, N.SUSPENDED, N.COMPLETED, N.FAILED, N.CANCELLED}),
    N.SUSPENDED: frozenset({N.RUNNING, N.COMPLETED, N.FAILED, N.CANCELLED}),
    N.COMPLETED: frozenset(),
    N.FAILED: frozenset({N.SCHEDULED, N.SUSPENDED}),
    N.SKIPPED: frozenset(),
    N.CANCELLED: frozenset(),
}
"""running → scheduled is a takeover (attempt + 1); failed → scheduled is a retry by policy, failed → suspended a basket
of errors, both in the same commit."""

RUN_TERMINAL: Final = frozenset({R.COMPLETED, R.FAILED, R.CANCELLED})
NODE_SETTLED: Final = frozenset({N.COMPLETED, N.FAILED, N.SKIPPED, N.CANCELLED})
BRANCH_REQUESTS: Final = frozenset({"fork", "jump", "reopen", "retry", "recover"})
"""Kinds of messages that ask for a new branch. A run accepts these even after it has ended, and no other kinds."""


def accepts(status: str, message_kind: str) -> bool:
    """Whether a run of this status accepts messages of this kind."""
    return status not in RUN_TERMINAL or message_kind in BRANCH_REQUESTS


def ended_text(status: str) -> str:
    """How a run ended, behind its name: `has completed`, `has failed`, `was cancelled`."""
    return "was cancelled" if status == RunStatus.CANCELLED else f"has {status}"
