"""Wording: how waits, statuses and the end of a run are worded, with the command that acts on each.

Owns: lines about waits (made of the clauses in model/views.py), sentences that name a verb, and commands that can be
pasted.
Never: reads more than it words; drives anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.cli import configuration, output
from holdfast.inspect.wait_views import only_outside_moves, waits_of
from holdfast.inspect.why import why
from holdfast.model import events as ev
from holdfast.model import views
from holdfast.model.limits import SECOND
from holdfast.model.naming import instance_text
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.model.views import Wait, iso, wait_ended_by
from holdfast.store.contract import Store
from holdfast.store.row_types import RunRow
from holdfast.store.urls import shown

WAITS_MAX = 10
"""Waits that are listed with their commands; `holdfast show` lists all of them."""
NAMES_MAX = 20
"""Names that one line lists; --json lists all of them."""
RESULT_CHARS_MAX = 20_000
"""Characters of a result on a terminal; `show --json` prints all of it."""
MESSAGE_WIDTH = 300
"""Columns of an error message in a line about an event."""


# --- a wait in words ------------------------------------------------------------------------------------------------


def wait_text(wait: Wait, now: int) -> str:
    """What a node or run waits for, with the time that is left of it."""
    return views.wait_text(wait, "" if wait.until is None else _left(wait.until, now))


def _left(until: datetime, now: int) -> str:
    return output.duration(max(0.0, until.timestamp() - now / SECOND))


def waits_text(waits: Sequence[Wait], now: int) -> str:
    """Several waits in one place: the first one, and how many more there are."""
    if not waits:
        return ""
    more = f" and {len(waits) - 1:,} more" if len(waits) > 1 else ""
    return f"{wait_text(_pauses_or_all(waits)[0], now)}{more}"


def wait_line(wait: Wait, now: int, *, of_run: str) -> str:
    """One wait of a run, or of a child that it waits for: where, what for, until when, and its id."""
    whose = "" if wait.run_id == of_run else f"run {wait.run_id}: "
    until = f", until {iso(wait.until)}" if wait.until is not None and wait.kind not in ("timer", ev.STEP_RETRY) else ""
    named = f" ({wait.wait_id})" if wait.kind in ("input", "basket", "pause") else ""
    return output.line(f"{whose}{views.wait_place(wait)}{wait_text(wait, now)}{until}{named}")


def wait_lines(waits: Sequence[Wait], now: int, run_id: str, options: Sequence[str]) -> list[str]:
    """Waits, each above the command that ends it. `options` name the database."""
    found: list[str] = []
    first = _pauses_or_all(waits)
    for wait in first[:WAITS_MAX]:
        found.append(f"  {wait_line(wait, now, of_run=run_id)}")
        found += [f"    {typed}" for typed in wait_commands([wait], options, alone=len(waits) == 1)]
    if len(first) > WAITS_MAX:
        found.append(
            f"  … and {len(first) - WAITS_MAX:,} more; `holdfast show {output.line(run_id)}` lists all of them"
        )
    return found


def wait_commands(waits: Sequence[Wait], options: Sequence[str], *, alone: bool = False) -> list[str]:
    """The commands that end some waits."""
    typed = [wait_ended_by(wait, alone=alone) for wait in _pauses_or_all(waits)]
    return [output.line(shlex.join(("holdfast", *parts, *options))) for parts in typed if parts]


def ended_wait(wait: Wait | None, wait_id: str) -> str:
    """How a resume has ended a wait."""
    if wait is None:
        return f"resumed {wait_id}"
    node = instance_text(wait.node or "?", wait.path or ".")
    match wait.kind:
        case "basket":
            return f"took {node} out of basket {wait.basket} ({wait_id})"
        case "pause":
            return f"the pause is over ({wait_id})"
    return f"released {node} ({wait_id})"


def _pauses_or_all(waits: Sequence[Wait]) -> Sequence[Wait]:
    """A pause comes first: while it lasts, ending another wait changes nothing."""
    return [wait for wait in waits if wait.kind == "pause"] or waits


# --- commands -------------------------------------------------------------------------------------------------------


def command(verb: str, run_id: str, url: str) -> str:
    """A command that can be pasted: with --db unless the settings lead to that database by themselves."""
    return shlex.join(["holdfast", verb, output.line(run_id), *database_option(url)])


def database_option(url: str) -> list[str]:
    """`--db URL`, valid in any directory and without a password; empty if the settings lead there by themselves."""
    return [] if url == configuration.database_url() else ["--db", shown(url)]


# --- runs -----------------------------------------------------------------------------------------------------------


def status_text(row: RunRow, *, already: bool = False) -> str:
    """`run c is cancelled`, `run f has already failed`: a status as a sentence."""
    verb = "has" if row.status in (RunStatus.COMPLETED, RunStatus.FAILED) else "is"
    return f"run {output.line(row.run_id)} {verb}{' already' if already else ''} {row.status}"


def standing(store: Store, row: RunRow, url: str) -> list[str]:
    """The state of a run after a request, and what is left to do."""
    run_id = output.line(row.run_id)
    if row.status in RUN_TERMINAL:
        return [status_text(row)]
    now = store.now()
    waits = only_outside_moves(store, row, now)
    if waits:
        return [f"run {run_id} waits:", *wait_lines(waits, now, row.run_id, database_option(url))]
    if why(store, row, now).moves:
        if any(wait.kind == "pause" for wait in store.open_waits([row.run_no])):
            return [f"run {run_id} pauses when the bodies that run now have ended their nodes"]
        return [f"an engine drives run {run_id}"]
    return [f"no engine drives run {run_id}; `{command('resume', row.run_id, url)}` continues it"]


def suspended_lines(store: Store, row: RunRow, url: str) -> list[str]:
    """A run that only a request from outside can move: what it waits for, with the commands."""
    now = store.now()
    waits = only_outside_moves(store, row, now) or waits_of(store, row)
    head = f"holdfast: run {output.line(row.run_id)} is suspended; it waits for a person or another program:"
    return [head, *wait_lines(waits, now, row.run_id, database_option(url))]


def result_text(result: bytes) -> str:
    """The result of a run as formatted JSON, cut on a terminal."""
    text = output.json_text(msgspec.json.decode(result))
    if output.colours() and len(text) > RESULT_CHARS_MAX:
        return text[:RESULT_CHARS_MAX] + f"\n… ({len(text):,} characters; --json prints all)"
    return text


def failed_place(error: ev.ErrorInfo) -> str:
    """`charge@.pick.3., attempt 2`: which node has failed; empty if no node has."""
    if error.node is None:
        return ""
    path = "" if error.path in (None, ".") else f"@{output.line(error.path)}"
    return f"{output.line(error.node)}{path}" + (f", attempt {error.attempt}" if error.attempt else "")


def failure_lines(terminal: ev.RunFailed, run_id: str) -> list[str]:
    """What failed, where, and the user's own frames."""
    place = failed_place(terminal.error)
    lines = [f"holdfast: run {run_id} failed{' in ' if place else ''}{place}: {output.clean(terminal.error.message)}"]
    return lines + [f"  {output.line(frame)}" for frame in terminal.error.frames] + other_lines(terminal)


def other_lines(terminal: ev.RunFailed | ev.RunCancelled) -> list[str]:
    """Further errors of a run: what could not be undone, and in which node."""
    lines = []
    for other in terminal.others:
        node = "" if other.node is None or other.message.startswith(other.node) else f"{other.node}: "
        lines.append(f"  also: {output.line(node + other.message)}")
    return lines


def listed(names: Sequence[str], most: int = NAMES_MAX, *, none: str = "") -> str:
    """`a, b and 3 more`."""
    names_shown = ", ".join(output.line(name) for name in names[:most])
    return (f"{names_shown} and {len(names) - most:,} more" if len(names) > most else names_shown) or none
