"""Reporting: how a run that was driven or looked at is told at the end.

Owns: the lines (or the JSON) about a run's end, its failure, its waits, and the command that goes on with it.
"""

from __future__ import annotations

import shlex

from holdfast.cli import output, settings, waiting
from holdfast.cli.crowds import SHOWN_MAX
from holdfast.cli.databases import reading
from holdfast.cli.driving import Ending
from holdfast.inspect import run_views
from holdfast.inspect.wait_views import only_outside_moves, waits_of
from holdfast.inspect.why import why
from holdfast.model import events as ev
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.contract import Store
from holdfast.store.records.run_records import find_run, result_of, terminal_event
from holdfast.store.row_types import RunRow
from holdfast.store.urls import shown

RESULT_CHARS_MAX = 20_000
"""Of a result on a terminal; the rest is in `show --json`."""


def report(url: str, endings: list[Ending], *, json: bool) -> int:
    """Tell how the runs ended; the exit code for all of them."""
    if not endings:
        return output.complain("interrupted", "stopped before anything began; nothing is lost", output.INTERRUPTED)
    with reading(url) as store:
        rows = [find_run(store, ending.run_id) for ending in endings]
        if json:
            shown = [run_views.run_json(store, row) for row in rows]
            if len(shown) == 1:
                output.document(shown[0])
            else:
                for run in shown:
                    output.document(run, compact=True)
        told = [pair for pair in zip(rows, endings, strict=True) if len(rows) == 1 or pair[1].exit_code != output.OK]
        for row, ending in told[:SHOWN_MAX]:
            _tell(store, row, ending, url, json=json)
        if len(told) > SHOWN_MAX:
            output.note(f"… and {len(told) - SHOWN_MAX} more that did not complete; `holdfast list` shows them")
    codes = [ending.exit_code for ending in endings]
    for code in (output.INTERRUPTED, output.FAILED, output.CANCELLED, output.SUSPENDED):
        if code in codes:
            return code
    return output.OK


def _tell(store: Store, row: RunRow, ending: Ending, url: str, *, json: bool) -> None:
    run_id = output.line(row.run_id)
    match ending.exit_code:
        case output.OK:
            if not json:
                output.write(result_text(result_of(store, row, terminal_event(store, row))))
        case output.FAILED:
            for text in failure_lines(terminal_event(store, row), run_id):
                output.note(text)
            output.note(f"`{command('show', row.run_id, url)}` shows more")
        case output.CANCELLED:
            terminal = terminal_event(store, row)
            reason = f": {output.line(terminal.reason)}" if terminal.reason else ""
            output.note(f"holdfast: run {run_id} was cancelled{reason}")
            for text in other_lines(terminal):
                output.note(text)
        case output.SUSPENDED:
            now = store.now()
            waits = only_outside_moves(store, row, now) or waits_of(store, row)
            output.note(f"holdfast: run {run_id} is suspended; only somebody from outside can move it:")
            for text in waiting.lines(waits, now, row.run_id, database_option(url)):
                output.note(text)
        case output.INTERRUPTED:
            output.note(f"holdfast: stopped; run {run_id} is {row.status}, and no attempt is lost. To go on:")
            output.note(f"  {command('resume', row.run_id, url)}")


def standing(store: Store, row: RunRow, url: str) -> list[str]:
    """How a run stands after somebody has asked something of it, and what is left to do."""
    run_id = output.line(row.run_id)
    if row.status in RUN_TERMINAL:
        return [f"run {run_id} has {row.status}"]
    now = store.now()
    waits = only_outside_moves(store, row, now)
    if waits:
        return [f"run {run_id} waits:", *waiting.lines(waits, now, row.run_id, database_option(url))]
    if why(store, row, now).moves:
        if any(wait.kind == "pause" for wait in store.open_waits([row.run_no])):
            return [f"run {run_id} pauses when the bodies that are at work have ended their nodes"]
        return [f"an engine goes on with run {run_id}"]
    return [f"nobody drives run {run_id}; `{command('resume', row.run_id, url)}` goes on with it"]


def command(verb: str, run_id: str, url: str) -> str:
    """A command that can be pasted: with --db when the settings would not find the database by themselves."""
    parts = ["holdfast", verb, output.line(run_id)]
    return shlex.join(parts + database_option(url))


def database_option(url: str) -> list[str]:
    """`--db URL`, good in any directory and without a password; nothing when the settings lead there by themselves."""
    if url == settings.database_url():
        return []
    return ["--db", shown(url)]


def result_text(result: bytes) -> str:
    """A run's result as people read it."""
    import msgspec

    text = output.json_text(msgspec.json.decode(result))
    if output.colours() and len(text) > RESULT_CHARS_MAX:
        return text[:RESULT_CHARS_MAX] + f"\n… ({len(text):,} characters; --json prints all)"
    return text


def failure_lines(terminal: ev.RunFailed, run_id: str) -> list[str]:
    """What failed, where, and the user's own frames."""
    error = terminal.error
    where = ""
    if error.node is not None:
        path = f"@{output.line(error.path)}" if error.path not in (None, ".") else ""
        tries = f", attempt {error.attempt}" if error.attempt else ""
        where = f" in {output.line(error.node)}{path}{tries}"
    lines = [f"holdfast: run {run_id} failed{where}: {output.clean(error.message)}"]
    lines += [f"  {output.line(frame)}" for frame in error.frames]
    return lines + other_lines(terminal)


def other_lines(terminal: ev.RunFailed | ev.RunCancelled) -> list[str]:
    """What could not be undone, and which node that was."""
    lines = []
    for other in terminal.others:
        node = "" if other.node is None or other.message.startswith(other.node) else f"{other.node}: "
        lines.append(f"  also: {output.line(node + other.message)}")
    return lines
