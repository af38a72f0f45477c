"""Outcome: how a schedule ended, in the terms in which two schedules must agree.

Owns: which rows count (how runs and instances ended, and with which values) and which do not (attempts, times, tokens).
A value that differs between two runs without a fault, with other randomness and another time, is volatile: it is not
compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from holdfast.engine.changes import CODE_CHANGED
from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.testing.simulation.database import WorldDatabase

_NODES = """
SELECT r.run_id, n.node, n.path, n.visit, n.status, e.type, e.data
FROM run_node_state AS n JOIN run_state AS r ON r.run_no = n.run_no
    LEFT JOIN run_events AS e ON e.run_no = n.run_no AND e.seq = n.output_seq
ORDER BY r.run_id, n.node, n.path, n.visit"""
_RUNS = """
SELECT r.run_id, r.workflow, r.status, r.hold, e.type, e.data
FROM run_state AS r LEFT JOIN run_events AS e ON e.run_no = r.run_no AND e.seq = (
    SELECT max(t.seq) FROM run_events AS t
    WHERE t.run_no = r.run_no AND t.type IN ('RunCompleted', 'RunFailed', 'RunCancelled'))
ORDER BY r.run_id"""

_MAY_TELL_OF_DOUBT = """
SELECT data FROM run_events WHERE type IN ('NodeFailed', 'StepFailed')
UNION ALL
SELECT data FROM run_waits WHERE status = 'open'"""

Outcome = dict[str, tuple[str, Any]]
"""What it is about (`run explored`, `node charge of explored`), to its status and value."""


def read(store: WorldDatabase) -> Outcome:
    """How every run and every instance ended."""
    found: Outcome = {}
    for run_id, _, status, hold, kind, data in store.ask(_RUNS):
        code, _, why = (hold or "").partition(": ")
        value = (code, why) if code == CODE_CHANGED else _value(kind, data)
        found[f"run {run_id}"] = ("suspended (on hold)" if hold else status, value)
    for run_id, node, path, visit, status, kind, data in store.ask(_NODES):
        name = node if path == "." else f"{node}@{path}"
        found[f"{name}{f'#{visit}' if visit != 1 else ''} of run {run_id}"] = (status, _value(kind, data))
    return found


@lru_cache(maxsize=10_000)
def _value(kind: str | None, data: bytes | None) -> Any:
    if kind is None or data is None:
        return None
    match journal_format.decode(kind, data):
        case ev.NodeCompleted(virtual=False, output=output) | ev.NodeSuspended(output=output):
            return bytes(output)
        case ev.RunCompleted(result=result):
            return bytes(result)
        case ev.NodeFailed(error=error) | ev.RunFailed(error=error):
            return (error.code, error.message, error.node, error.path)
        case ev.RunCancelled(reason=reason):
            return reason
    return None


def volatile(one: Outcome, other: Outcome) -> set[str]:
    """What differs between two schedules without a fault."""
    return {about for about in one.keys() | other.keys() if one.get(about) != other.get(about)}


def was_left_to_a_person(store: WorldDatabase) -> bool:
    """True if a crash ended an attempt that its author forbade to repeat (`on_crash`): that outcome was asked for."""
    return any(b'"outcome_unknown"' in data for (data,) in store.ask(_MAY_TELL_OF_DOUBT))


def differences(found: Outcome, wanted: Outcome, ignored: set[str]) -> Iterator[tuple[str, str]]:
    """(what it is about, how it differs)"""
    for about in sorted(found.keys() | wanted.keys()):
        is_, should = found.get(about), wanted.get(about)
        if is_ == should:
            continue
        if about in ignored and is_ is not None and should is not None and is_[0] == should[0]:
            continue
        yield about, f"{about} {told(is_)}, and without the fault it {told(should)}"


def ending(outcome: tuple[str, Any]) -> str:
    """How a run ended, and if it failed, why."""
    status, value = outcome
    if not isinstance(value, tuple):
        return f"was {status}"
    text = told(outcome)
    return text if len(text) <= 200 else f"{text[:197]}..."


def is_mismatch(outcome: tuple[str, Any]) -> bool:
    """True if the run was put on hold because a body made other calls when it was replayed."""
    return isinstance(outcome[1], tuple) and outcome[1][0] == CODE_CHANGED


def told(outcome: tuple[str, Any] | None) -> str:
    """An outcome as the end of a sentence."""
    if outcome is None:
        return "did not exist"
    status, value = outcome
    match value:
        case bytes():
            text = value.decode(errors="replace")
            return f"was {status} with {text if len(text) <= 200 else text[:197] + '...'}"
        case (code, message, *_):
            return f"was {status} ({code}: {message})"
        case None:
            return f"was {status}"
    return f"was {status} ({value})"
