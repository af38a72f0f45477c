"""Waiting: what a run waits for, in a few words and as lines, with the command that ends it.

Pure: waits and the time in, text out. `holdfast why` (inspect/why.py) says the same in whole sentences.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from holdfast.cli import output
from holdfast.model import events as ev
from holdfast.model.limits import SECOND
from holdfast.model.naming import instance_text
from holdfast.model.views import Wait, iso, wait_ended_by

LISTED_MAX = 10
"""Waits that are listed with their commands; `holdfast show` has all of them."""


def in_short(wait: Wait, now: int) -> str:
    """`asks ada: Ship this order?`, `in the basket errors: registry is down`, `waits for the signal packed`."""
    match wait.kind:
        case "input":
            return f"asks{_whom(wait)}: {wait.question}"
        case "signal":
            return f"waits for the signal {wait.name}"
        case "basket":
            error = f": {wait.error.get('message', '')}" if wait.error else ""
            return f"in the basket {wait.basket}{error}"
        case "pause":
            return str(wait.question)
        case "timer" if wait.until is not None:
            return f"sleeps {output.duration(max(0.0, wait.until.timestamp() - now / SECOND))} more"
        case ev.STEP_RETRY if wait.until is not None:
            left = output.duration(max(0.0, wait.until.timestamp() - now / SECOND))
            return f"retries step {wait.name} in {left}"
        case "child":
            return f"waits for run {wait.child}" if wait.child else "waits for a child"
        case "hold":
            return f"on hold: {wait.question}"
    return f"waits for {wait.kind}"


def line(wait: Wait, now: int, *, of_run: str) -> str:
    """One wait of a run, or of a child that it waits for: where, what for, until when, under which id."""
    where = "" if wait.node is None else f"{instance_text(wait.node, wait.path or '.')} "
    whose = "" if wait.run_id == of_run else f"run {wait.run_id}: "
    until = f", until {iso(wait.until)}" if wait.until is not None and wait.kind not in ("timer", ev.STEP_RETRY) else ""
    named = f" ({wait.wait_id})" if wait.kind in ("input", "basket", "pause") else ""
    return output.line(f"{whose}{where}{in_short(wait, now)}{until}{named}")


def lines(waits: Sequence[Wait], now: int, run_id: str, options: Sequence[str]) -> list[str]:
    """Waits, each above the command that ends it. `options` name the database."""
    found: list[str] = []
    first = _first(waits)
    for wait in first[:LISTED_MAX]:
        found.append(f"  {line(wait, now, of_run=run_id)}")
        found += [f"    {typed}" for typed in commands([wait], options, alone=len(waits) == 1)]
    if len(first) > LISTED_MAX:
        found.append(f"  … and {len(first) - LISTED_MAX:,} more; `holdfast show {output.line(run_id)}` has all of them")
    return found


def commands(waits: Sequence[Wait], options: Sequence[str], *, alone: bool = False) -> list[str]:
    """What can be typed to end some waits."""
    typed = [wait_ended_by(wait, alone=alone) for wait in _first(waits)]
    return [output.line(shlex.join(("holdfast", *parts, *options))) for parts in typed if parts]


def _first(waits: Sequence[Wait]) -> Sequence[Wait]:
    """Nothing else goes on before a pause has ended."""
    return [wait for wait in waits if wait.kind == "pause"] or waits


def together(waits: Sequence[Wait], now: int) -> str:
    """Several waits in one place, in a few words."""
    if not waits:
        return ""
    more = f" and {len(waits) - 1:,} more" if len(waits) > 1 else ""
    return f"{in_short(_first(waits)[0], now)}{more}"


def _whom(wait: Wait) -> str:
    basket = f" in {wait.basket}" if wait.basket else ""
    return f" {wait.assignee}{basket}" if wait.assignee else basket
