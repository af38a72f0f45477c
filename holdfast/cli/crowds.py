"""Crowds: many runs at once, looked at with one query however many they are."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.picture import Line
from holdfast.model.statuses import RUN_TERMINAL, RunStatus
from holdfast.store.contract import Store
from holdfast.store.row_types import RunRow

UNFINISHED = tuple(status.value for status in RunStatus if status not in RUN_TERMINAL)
SHOWN_MAX = 20
"""Runs of a crowd that are shown by name."""
_ALL = 1_000_000


class Crowd:
    """Some runs, and which of them go on."""

    def __init__(self, store: Store, run_nos: Sequence[int]) -> None:
        self._store = store
        self.live: dict[int, RunRow | None] = dict.fromkeys(run_nos)
        """Those that have not ended, as last seen."""
        self.total = len(run_nos)
        self.ended = 0
        self.failed = 0

    def look(self) -> list[RunRow]:
        """See what has changed; the runs that have ended since the last look."""
        found = {row.run_no: row for row in self._store.runs(status=UNFINISHED, limit=_ALL)}
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
        """How many have ended, and those that have not, as far as there is room."""
        status = "running" if self.live else "completed"
        lines = [Line(0, f"runs ×{self.total}", status, "", self.numbers, self.ended, self.total, seconds)]
        room = min(max(0, height - 2), SHOWN_MAX)
        shown = [row for row in self.live.values() if row is not None][:room]
        lines += [Line(1, row.run_id, row.status, row.workflow) for row in shown]
        if len(self.live) > len(shown):
            lines.append(Line(1, f"… {len(self.live) - len(shown)} more", "pending"))
        return lines
