"""Picture: a run as a few lines, whatever its size.

Owns: which lines a run is shown as (a node a line, a wide fan-out, a map or a loop one line), and their numbers.
Pure: definition, rows and events in, lines out. How lines are drawn is in progress.py.
Invariant: what it costs depends on the open rows and the new events, never on how many items a map has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.cli import output, wording
from holdfast.inspect.wait_views import hold_of, wait_view
from holdfast.model.definition import Definition, NodeDef
from holdfast.model.limits import SECOND
from holdfast.model.naming import is_undo, segments
from holdfast.model.views import Wait
from holdfast.store.row_types import EventRow, NodeRow, RunRow, WaitRow

WIDE = 5
"""From this many calls of one handler on they are one line."""

STEPS_SHOWN = 8
"""Names of steps listed below a body."""

TALLIED = ("NodeFailed", "StepCompleted", "StepFailed")
"""The events that a picture counts."""

ENDED = frozenset({"completed", "failed", "skipped", "cancelled"})

Place = tuple[tuple[str, ...], str]
"""Maps and loops around a node, outermost first, and the node."""
Progress = Mapping[tuple[str, str], tuple[float, float | None, str]]


class Line(NamedTuple):
    """One line of a picture."""

    depth: int
    label: str
    status: str
    detail: str = ""
    numbers: str = ""
    """`34/50 ✗2 ↻1`: items ended, failed and tried again."""
    done: float | None = None
    """With `total`: how full the bar is."""
    total: float | None = None
    seconds: float | None = None


class _Counters(msgspec.Struct):
    count: int | None = None
    opened: int = 0
    done: tuple[list[int], list[int]] = ([], [])


class _Named(msgspec.Struct):
    name: str = ""


class _Failure(msgspec.Struct):
    retryable: bool = False


_counters = msgspec.json.Decoder(_Counters).decode
_named = msgspec.json.Decoder(_Named).decode
_failure = msgspec.json.Decoder(_Failure).decode


class _Sum(msgspec.Struct):
    """Open rows of one place, added up."""

    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    attempt: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    not_before: int = 0
    items: int = 0
    items_done: int = 0
    rounds: int = 0

    def add(self, row: NodeRow) -> None:
        self.statuses[row.status] += 1
        self.attempt = max(self.attempt, row.attempt)
        self.not_before = max(self.not_before, row.not_before)
        if row.started_at is not None:
            self.started_at = min(self.started_at or row.started_at, row.started_at)
        if row.finished_at is not None:
            self.finished_at = max(self.finished_at or 0, row.finished_at)
        if row.scope is not None:
            counters = _counters(row.scope)
            starts, ends = counters.done
            self.items += counters.count or 0
            self.items_done += sum(ends) - sum(starts)
            self.rounds = max(self.rounds, counters.opened)

    @property
    def status(self) -> str:
        """One status for all of them: an unfinished one counts more than one that has ended."""
        for word in ("running", "suspended", "scheduled", "failed", "cancelled", "completed", "skipped"):
            if self.statuses[word]:
                return word
        return "pending"


class Picture:
    """One run. `see` takes new events, `lines` gives what to draw."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._scopes = _scope_names(definition.nodes)
        self._failed: Counter[Place] = Counter()
        self._retried: Counter[Place] = Counter()
        self._steps: dict[Place, Counter[str]] = {}
        self._steps_failed: dict[Place, Counter[str]] = {}

    def place(self, node: str, path: str) -> Place:
        """The place of an instance; all items of a map and rounds of a loop share one."""
        return tuple(name for name, _, _ in segments(path) if name in self._scopes), node

    def see(self, events: Iterable[EventRow]) -> None:
        """Count failures and steps; `events` are new ones of the types TALLIED."""
        for event in events:
            if event.node is None or event.path is None:
                continue
            place = self.place(event.node, event.path)
            match event.type:
                case "NodeFailed":
                    tally = self._retried if _failure(event.data).retryable else self._failed
                    tally[place] += 1
                case "StepCompleted":
                    self._steps.setdefault(place, Counter())[_named(event.data).name] += 1
                case "StepFailed":
                    self._steps_failed.setdefault(place, Counter())[_named(event.data).name] += 1

    def lines(
        self, row: RunRow, nodes: Sequence[NodeRow], waits: Sequence[WaitRow], progress: Progress, now: int
    ) -> list[Line]:
        """The run, then its nodes in the order of the definition. `nodes` are the open rows."""
        drawing = _Drawing(self, row, nodes, waits, progress, now)
        return [drawing.headline(), *drawing.body()]

    def tallied(self) -> list[Place]:
        """Places in which an attempt has failed."""
        return list(self._failed.keys() | self._retried.keys())

    def failed(self, places: Iterable[Place]) -> int:
        return sum(self._failed[place] for place in places)

    def retried(self, places: Iterable[Place]) -> int:
        return sum(self._retried[place] for place in places)

    def steps(self, place: Place) -> list[tuple[str, int, int]]:
        """(name, completed, failed) in the order in which they first ended."""
        done, bad = self._steps.get(place, Counter()), self._steps_failed.get(place, Counter())
        return [(name, done[name], bad[name]) for name in dict.fromkeys([*done, *bad])]


class _Drawing:
    """The rows of one picture, at one moment."""

    def __init__(
        self,
        picture: Picture,
        row: RunRow,
        nodes: Sequence[NodeRow],
        waits: Sequence[WaitRow],
        progress: Progress,
        now: int,
    ) -> None:
        self.picture = picture
        self.row = row
        self.waits: dict[Place, list[Wait]] = {}
        self.pauses: list[Wait] = []
        for wait in waits:
            shown = wait_view(row.run_id, row.workflow, wait)
            if wait.node is None:
                self.pauses.append(shown)
            else:
                self.waits.setdefault(picture.place(wait.node, wait.path or "."), []).append(shown)
        self.now = row.finished_at or now
        self.sums: dict[Place, _Sum] = {}
        for node in nodes:
            place = picture.place(node.node, node.path)
            if place not in self.sums:
                self.sums[place] = _Sum()
            self.sums[place].add(node)
        self.said = {picture.place(node, path): said for (node, path), said in progress.items()}

    def headline(self) -> Line:
        """The run itself, with the share of its nodes that have ended."""
        top = self.picture.definition.nodes
        ended = sum(1 for n in top if self._sum(((), n.id)).status in ENDED)
        row = self.row
        detail = f"run {row.run_id}"
        hold = hold_of(row)
        if hold is not None:
            detail += f"  on hold: {hold}"
        if self.pauses:
            detail += f"  {wording.waits_text(self.pauses, self.now)}"
        seconds = (self.now - (row.started_at or row.created_at)) / SECOND
        if len(top) == 1:
            return Line(0, row.workflow, row.status, detail, seconds=seconds)
        return Line(0, row.workflow, row.status, detail, f"{ended}/{len(top)}", ended, len(top), seconds)

    def body(self) -> list[Line]:
        """The nodes by phase, then their compensations."""
        undone = [
            Line(1, node, found.status, self._attempts(found), seconds=self._seconds(found))
            for (_, node), found in self.sums.items()
            if is_undo(node)
        ]
        return self._nodes() + undone

    def _nodes(self) -> list[Line]:
        definition = self.picture.definition
        phases = [phase.name for phase in definition.phases]
        if not phases:
            return self._scope((), definition.nodes, 1)
        lines: list[Line] = []
        for phase in phases:
            members = [n for n in definition.nodes if n.phase == phase]
            inner = self._scope((), members, 2)
            lines += [Line(1, phase, _together([line.status for line in inner])), *inner]
        return lines + self._scope((), [n for n in definition.nodes if n.phase is None], 1)

    def _scope(self, around: tuple[str, ...], nodes: Sequence[NodeDef], depth: int) -> list[Line]:
        calls = Counter(n.uses for n in nodes if n.kind == "call")
        lines: list[Line] = []
        drawn: set[str] = set()
        for node in nodes:
            if node.kind != "call":
                lines += self._map_or_loop(around, node, depth)
            elif around or calls[node.uses] < WIDE:
                lines += self._node(around, node, depth)
            elif node.uses not in drawn:
                drawn.add(node.uses)
                lines.append(self._fan_out([n for n in nodes if n.kind == "call" and n.uses == node.uses], depth))
        return lines

    def _node(self, around: tuple[str, ...], node: NodeDef, depth: int) -> list[Line]:
        place = (around, node.id)
        found = self._sum(place)
        done, total, said = self.said.get(place, (None, None, ""))
        details = [self._many(found)] if around else []
        details += [self._attempts(found), said, self._waits([place])]
        if done is not None and total is None:
            details.append(f"{done:g}")
        line = Line(depth, node.id, found.status, _joined(details), "", done, total, self._seconds(found))
        return [line, *self._steps(place, depth + 1)]

    def _map_or_loop(self, around: tuple[str, ...], node: NodeDef, depth: int) -> list[Line]:
        place = (around, node.id)
        found = self._sum(place)
        assert node.body is not None
        inside = [((*around, node.id), n.id) for n in node.body.nodes]
        marks = self._marks(inside)
        single = len(node.body.nodes) == 1 and node.body.nodes[0].kind == "call" and node.body.nodes[0].id == node.id
        waits = self._waits(inside) if single else ""
        if node.kind == "map":
            size = f"×{found.items}" if found.statuses else "×?"
            numbers = f"{found.items_done}/{found.items}" if found.statuses else ""
            detail = _joined([numbers, marks])
            line = Line(
                depth,
                f"{node.id} {size}",
                found.status,
                waits,
                detail,
                found.items_done if found.items else None,
                found.items or None,
                self._seconds(found),
            )
        else:
            rounds = f"round {found.rounds}" if found.rounds else ""
            numbers = _joined([rounds, marks])
            line = Line(depth, node.id, found.status, waits, numbers, seconds=self._seconds(found))
        if single or found.status in ENDED or not found.statuses:
            return [line]
        return [line, *self._scope((*around, node.id), node.body.nodes, depth + 1)]

    def _fan_out(self, nodes: Sequence[NodeDef], depth: int) -> Line:
        together = _Sum()
        for node in nodes:
            found = self._sum(((), node.id))
            together.statuses.update(found.statuses or {"pending": 1})
            if found.started_at is not None:
                together.started_at = min(together.started_at or found.started_at, found.started_at)
            if found.finished_at is not None:
                together.finished_at = max(together.finished_at or 0, found.finished_at)
        ended = sum(together.statuses[s] for s in ENDED)
        began = together.statuses["running"] + ended > 0
        status = "running" if began and ended < len(nodes) and self.row.finished_at is None else together.status
        marks = self._marks([((), n.id) for n in nodes])
        label = f"{nodes[0].uses.rsplit('.', 1)[-1]} ×{len(nodes)}"
        seconds = self._seconds(together) if ended == len(nodes) or status == "running" else None
        if status == "running" and together.started_at is not None:
            seconds = (self.now - together.started_at) / SECOND
        waits = self._waits([((), node.id) for node in nodes])
        return Line(depth, label, status, waits, _joined([f"{ended}/{len(nodes)}", marks]), ended, len(nodes), seconds)

    def _steps(self, place: Place, depth: int) -> list[Line]:
        steps = self.picture.steps(place)
        lines = []
        for name, done, bad in steps[-STEPS_SHOWN:]:
            times = f" ×{done}" if done > 1 else ""
            marks = f"↻{bad}" if bad else ""
            lines.append(Line(depth, f"{name}{times}", "completed" if done else "failed", numbers=marks))
        hidden = len(steps) - STEPS_SHOWN
        return [Line(depth, f"… {hidden} more steps", "completed"), *lines] if hidden > 0 else lines

    def _sum(self, place: Place) -> _Sum:
        return self.sums.get(place) or _Sum()

    def _seconds(self, found: _Sum) -> float | None:
        if found.started_at is None:
            return None
        end = found.finished_at if found.status in ENDED and found.finished_at is not None else self.now
        return (end - found.started_at) / SECOND

    def _attempts(self, found: _Sum) -> str:
        if found.status == "scheduled" and found.not_before > self.now:
            what = f"attempt {found.attempt}" if found.attempt > 1 else "starts"
            return f"{what} in {output.duration((found.not_before - self.now) / SECOND)}"
        return f"attempt {found.attempt}" if found.attempt > 1 else ""

    @staticmethod
    def _many(found: _Sum) -> str:
        """How many items of a map are at this node now."""
        busy = found.statuses["running"] + found.statuses["suspended"] + found.statuses["scheduled"]
        return f"{busy} now" if busy > 1 else ""

    def _waits(self, places: Sequence[Place]) -> str:
        """What the instances in some places wait for."""
        return wording.waits_text([wait for place in places for wait in self.waits.get(place, ())], self.now)

    def _marks(self, places: Sequence[Place]) -> str:
        failed, retried = self.picture.failed(places), self.picture.retried(places)
        return _joined([f"✗{failed}" if failed else "", f"↻{retried}" if retried else ""])


def fit(lines: Sequence[Line], height: int) -> list[Line]:
    """At most `height` lines: running and failed ones stay, others are counted instead."""
    if len(lines) <= height:
        return list(lines)
    room = max(1, height - 2)
    by_interest = sorted(range(1, len(lines)), key=lambda i: (_INTEREST.get(lines[i].status, 3), i))
    kept = {0, *by_interest[: room - 1]}
    hidden = Counter(lines[i].status for i in range(len(lines)) if i not in kept)
    rest = ", ".join(f"{number} {status}" for status, number in hidden.most_common())
    return [*(lines[i] for i in sorted(kept)), Line(1, f"… {rest}", "pending")]


_INTEREST = {"failed": 0, "running": 1, "suspended": 2, "scheduled": 3, "completed": 4, "pending": 5, "skipped": 6}


def bar(done: float, total: float, width: int) -> tuple[str, str]:
    """The full and the empty part of a bar, `━━━╸` and `───`."""
    share = 0.0 if total <= 0 else min(1.0, max(0.0, done / total))
    halves = int(share * width * 2)
    full = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return full, "─" * (width - len(full))


def _joined(parts: Sequence[str]) -> str:
    return " ".join(part for part in parts if part)


def _together(statuses: Sequence[str]) -> str:
    """One word for the nodes of a phase."""
    found = set(statuses)
    for word in ("failed", "running", "suspended"):
        if word in found:
            return word
    if found and found <= ENDED:
        return "cancelled" if "cancelled" in found else "skipped" if found == {"skipped"} else "completed"
    return "running" if found & ENDED else "scheduled" if "scheduled" in found else "pending"


def _scope_names(nodes: Sequence[NodeDef]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if node.body is not None:
            found |= {node.id} | _scope_names(node.body.nodes)
    return found
