"""Progress: runs shown while they are driven, on a terminal as a tree that is redrawn, elsewhere as plain lines.

Owns: when something is drawn, and what is read from the store for it; many runs are counted with one query.
Never: decides what is drawn (picture.py, narration.py) or drives anything (driving.py).
Invariants: redrawn on events, at most ten times a second, and never more than a tenth of the time is spent on it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.cli import output
from holdfast.cli.narration import TOLD, Narrator
from holdfast.cli.picture import TALLIED, Line, Picture, Progress, bar, fit
from holdfast.model import definition as definitions
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.store.clocks import clock_of
from holdfast.store.contract import Store
from holdfast.store.records.run_records import of_current_branch
from holdfast.store.row_types import EventRow, RunRow

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REDRAW_SECONDS = 0.1
TICK_SECONDS = 0.4
"""Times, and what bodies report, change without an event."""
SHARE = 0.1
"""Of the time, at most, that is spent on drawing."""
DETAILED_MAX = 3
"""Runs that are shown with their nodes; more are counted."""
BAR_WIDTH = 20
PAGE = 5_000
SHOWN_MAX = 20
"""Runs of many that are shown by name."""
ALL_MAX = 1_000_000
UNFINISHED = tuple(status.value for status in RunStatus if status not in RUN_TERMINAL)

SYMBOLS = {
    "completed": "✓",
    "failed": "✗",
    "running": "●",
    "recovering": "●",
    "suspended": "◷",
    "scheduled": "○",
    "created": "○",
    "pending": "·",
    "skipped": "–",
    "cancelled": "⊘",
}


class View(Protocol):
    """Something that shows runs."""

    def update(self) -> None:
        """Read the store and show what is new."""

    def close(self) -> None:
        """Show the end."""


class _Watched:
    """One run, and how much of its journal has been read."""

    def __init__(self, store: Store, run_no: int) -> None:
        self.store = store
        self.run_no = run_no
        self.row = _row(store, run_no)
        version = store.version(self.row.workflow, self.row.version)
        assert version is not None
        self.picture = Picture(definitions.decode(version.definition))
        self.clock = clock_of(store)
        self.seen = 0

    def lines(self, progress: Progress) -> list[Line]:
        """What to draw now: one small read of rows, and the new failures and steps."""
        self.row = _row(self.store, self.run_no)
        while self.seen < self.row.last_seq:
            page = self.store.events(self.run_no, self.seen, PAGE, types=TALLIED)
            self.picture.see(of_current_branch(self.row, page))
            self.seen = _end_of(page, self.row)
        nodes = self.store.open_nodes([self.run_no])
        waits = self.store.open_waits([self.run_no])
        return self.picture.lines(self.row, nodes, waits, progress, self.clock.now())


class Crowd:
    """Many runs, read with one query however many they are."""

    def __init__(self, store: Store, run_nos: Sequence[int]) -> None:
        self._store = store
        self.live: dict[int, RunRow | None] = dict.fromkeys(run_nos)
        """Runs that have not ended, as last read."""
        self.total = len(run_nos)
        self.ended = 0
        self.failed = 0

    def refresh(self) -> list[RunRow]:
        """Read the rows again; return the runs that have ended since the last time."""
        found = {row.run_no: row for row in self._store.runs(status=UNFINISHED, limit=ALL_MAX)}
        gone = [number for number in self.live if number not in found]
        ended = [row for number in gone if (row := self._store.run_by_no(number)) is not None]
        for number in gone:
            del self.live[number]
        for number in self.live:
            self.live[number] = found[number]
        self.ended += len(ended)
        self.failed += sum(row.status == RunStatus.FAILED for row in ended)
        return ended

    @property
    def numbers(self) -> str:
        return f"{self.ended:,}/{self.total:,}" + (f" ✗{self.failed}" if self.failed else "")

    def lines(self, seconds: float, height: int) -> list[Line]:
        """How many have ended, and the first of those that have not."""
        status = "running" if self.live else "completed"
        lines = [Line(0, f"runs ×{self.total}", status, "", self.numbers, self.ended, self.total, seconds)]
        most = min(max(0, height - 2), SHOWN_MAX)
        shown = [row for row in self.live.values() if row is not None][:most]
        lines += [Line(1, row.run_id, row.status, row.workflow) for row in shown]
        if len(self.live) > len(shown):
            lines.append(Line(1, f"… {len(self.live) - len(shown)} more", "pending"))
        return lines


class LiveView:
    """A tree of nodes on a terminal, drawn over itself."""

    def __init__(
        self, store: Store, run_nos: Sequence[int], said: Callable[[int], Progress], console: Console | None = None
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._said = said
        self._watched = [_Watched(store, n) for n in run_nos] if len(run_nos) <= DETAILED_MAX else []
        self._crowd = Crowd(store, [] if self._watched else run_nos)
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self._began = time.monotonic()

    def update(self) -> None:
        height = max(4, self._console.size.height - 2)
        self._live.update(self._drawn(height), refresh=True)

    def close(self) -> None:
        with suppress(OSError):
            self._live.update(self._drawn(10_000), refresh=True)
            self._live.stop()

    def _drawn(self, height: int) -> RenderableType:
        if self._watched:
            each = max(3, height // len(self._watched))
            lines = [line for run in self._watched for line in fit(run.lines(self._said(run.run_no)), each)]
        else:
            self._crowd.refresh()
            lines = self._crowd.lines(time.monotonic() - self._began, height)
        return render(lines)


class PlainView:
    """One line per change, on stderr."""

    MAPS_SECONDS = 1.0

    def __init__(
        self,
        store: Store,
        run_nos: Sequence[int],
        write: Callable[[str], None] = output.note,
        since: dict[int, int] | None = None,
    ) -> None:
        self._store = store
        self._write = write
        self._watched: list[tuple[_Watched, Narrator]] = []
        self._crowd = Crowd(store, run_nos if len(run_nos) > DETAILED_MAX else [])
        self._maps_at = 0.0
        if self._crowd.total:
            return
        for run_no in run_nos:
            watched = _Watched(store, run_no)
            watched.seen = (since or {}).get(run_no, 0)
            prefix = f"{output.line(watched.row.run_id)}  " if len(run_nos) > 1 else ""
            self._watched.append((watched, Narrator(watched.picture, watched.row, prefix=prefix)))

    def update(self) -> None:
        now = time.monotonic()
        with_maps = now >= self._maps_at + self.MAPS_SECONDS
        for watched, narrator in self._watched:
            self._write_events(watched, narrator, with_maps)
        if self._crowd.live:
            self._write_crowd(with_maps)
        if with_maps:
            self._maps_at = now

    def close(self) -> None:
        self._maps_at = 0.0
        self.update()

    def _write_crowd(self, due: bool) -> None:
        """Write each run that has ended; of very many, from time to time how many."""
        ended = self._crowd.refresh()
        if self._crowd.total <= SHOWN_MAX:
            for row in ended:
                self._write(f"{output.line(row.run_id)} {row.status}")
        elif due or not self._crowd.live:
            self._write(f"{self._crowd.numbers} runs have ended")

    def _write_events(self, watched: _Watched, narrator: Narrator, with_maps: bool) -> None:
        row = _row(self._store, watched.run_no)
        while watched.seen < row.last_seq:
            page = self._store.events(watched.run_no, watched.seen, PAGE, types=TOLD)
            watched.picture.see(page)
            for text in narrator.lines(page):
                self._write(text)
            watched.seen = _end_of(page, row)
        if with_maps:
            for text in narrator.maps(self._store.open_nodes([watched.run_no]), watched.clock.now()):
                self._write(text)


async def show(view: View, changed: asyncio.Event) -> None:
    """Update a view when `changed` is set, until this is cancelled."""
    while True:
        began = time.monotonic()
        view.update()
        cost = time.monotonic() - began
        await asyncio.sleep(max(REDRAW_SECONDS, cost / SHARE))
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):  # wait_for would swallow a cancellation that comes with the event
                await changed.wait()
        changed.clear()


def wants_live(json: bool) -> bool:
    """True if stdout is a terminal to draw on."""
    return not json and sys.stdout.isatty()


def render(lines: Sequence[Line]) -> RenderableType:
    """Lines as a grid: symbol and name, numbers, bar, time, details."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for line in lines:
        style = _STYLES.get(line.status, "")
        name = Text("  " * line.depth + SYMBOLS.get(line.status, " ") + " ", style=style)
        name.append(output.line(line.label), style="bold" if line.depth == 0 else "")
        grid.add_row(
            name,
            Text(output.line(line.numbers)),
            _bar(line, style),
            Text(output.duration(line.seconds), style="dim"),
            Text(output.line(line.detail), style="red" if line.status == "failed" else "dim"),
        )
    return grid


def _bar(line: Line, style: str) -> Any:
    from rich.text import Text

    if line.done is None or not line.total:
        return Text("")
    full, empty = bar(line.done, line.total, BAR_WIDTH)
    text = Text(full, style=style or "cyan")
    text.append(empty, style="dim")
    return text


_STYLES = {name: "bright_black" if colour == "dim" else colour for name, colour in output.STATUS_COLOURS.items()}


def _end_of(page: Sequence[EventRow], row: RunRow) -> int:
    """The position up to which the journal is read after a page of some event types."""
    last = page[-1].seq if page else 0
    return last if len(page) == PAGE else max(last, row.last_seq)


def _row(store: Store, run_no: int) -> RunRow:
    row = store.run_by_no(run_no)
    assert row is not None
    return row
