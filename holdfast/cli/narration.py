"""Narration: a run as plain lines, one per change, for logs and pipes.

Owns: what a batch of events is told as; items of maps and bursts are counted, not listed.
Pure: events in, lines out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.cli import output
from holdfast.cli.picture import ENDED, SECOND, Picture
from holdfast.store.api import EventRow, NodeRow, RunRow

BURST = 60
"""More lines than this at once become a sentence: nobody reads them."""

TOLD = (
    "CodeChanged",
    "NodeCancelled",
    "NodeCompleted",
    "NodeFailed",
    "NodeSkipped",
    "NodeStarted",
    "RunCancelRequested",
    "RunTakenOver",
    "ScopeOpened",
    "StepCompleted",
    "StepFailed",
    "TicketRaised",
    "WaitOpened",
)
"""The events that are told."""

_LOUD = frozenset(
    {"CodeChanged", "NodeCancelled", "NodeFailed", "RunCancelRequested", "RunTakenOver", "TicketRaised", "WaitOpened"}
)
"""Told one by one, also in a burst."""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Data(msgspec.Struct):
    """The few fields that lines are made of."""

    attempt: int = 1
    name: str = ""
    reason: str = ""
    kind: str = ""
    handler: str = ""
    target: str = ""
    ticket: str | None = None
    count: int | None = None
    until: int | None = None
    retry_at: int | None = None
    retryable: bool = False
    graceful: bool = False
    error: _Error = _Error()


_data = msgspec.json.Decoder(_Data).decode


class Narrator:
    """Tells one run."""

    def __init__(self, picture: Picture, row: RunRow, *, prefix: str = "") -> None:
        self._picture = picture
        self._began_at = row.started_at or row.created_at
        self._started: dict[tuple[str, str], int] = {}
        self._maps: dict[str, tuple[int, int]] = {}
        self._prefix = prefix

    def tell(self, events: Sequence[EventRow]) -> list[str]:
        """The lines of some new events of the types TOLD."""
        told = [(event, text) for event in events if (text := self._text(event))]
        if len(told) <= BURST:
            return [self._line(event.at, text) for event, text in told]
        loud = [(event, text) for event, text in told if event.type in _LOUD]
        lines = [self._line(event.at, text) for event, text in loud[:BURST]]
        quiet = Counter(_WORDS[event.type] for event, _ in told if event.type not in _LOUD)
        quiet.update({"more failures": len(loud) - BURST} if len(loud) > BURST else {})
        summary = ", ".join(f"{number:,} {word}" for word, number in quiet.items())
        return [*lines, self._line(events[-1].at, f"… {summary}")] if summary else lines

    def maps(self, nodes: Sequence[NodeRow], at: int) -> list[str]:
        """How far the maps of the run are, when that has changed."""
        lines = []
        for node in nodes:
            if node.scope is None or not self._is_top(node.path):
                continue
            counters = msgspec.json.decode(node.scope)
            total = counters.get("count")
            starts, ends = (counters.get("done") or [[], []])[:2]
            now = (sum(ends) - sum(starts), total or 0)
            marks = self._marks(node.node)
            if node.status in ENDED and not marks:  # told already
                continue
            if total and now != self._maps.get(node.node, (0, total)):
                self._maps[node.node] = now
                lines.append(self._line(at, f"{output.line(node.node)} {now[0]:,}/{total:,}{marks}"))
        return lines

    def _marks(self, node: str) -> str:
        places = [place for place in self._picture.tallied() if place[0][:1] == (node,)]
        failed, retried = self._picture.failed(places), self._picture.retried(places)
        return (f" ✗{failed}" if failed else "") + (f" ↻{retried}" if retried else "")

    def _line(self, at: int, text: str) -> str:
        elapsed = output.duration(max(0.0, (at - self._began_at) / SECOND))
        return f"{self._prefix}{elapsed:>7}  {text}"

    def _is_top(self, path: str) -> bool:
        return not self._picture.place("", path)[0]

    def _text(self, event: EventRow) -> str:
        data = _data(event.data)
        if event.node is None or event.path is None:
            return _run_text(event.type, data)
        name = output.line(event.node)
        key = (event.node, event.path)
        if event.type == "TicketRaised":
            how = "goes to" if data.ticket is None else f"raises the ticket {output.line(data.ticket)}:"
            return f"{name} {how} {output.line(data.target)}"
        if not self._is_top(event.path):
            if event.type == "NodeFailed" and not data.retryable:
                return f"{name}@{output.line(event.path)} failed: {output.line(data.error.message, 300)}"
            return ""
        match event.type:
            case "NodeStarted":
                self._started[key] = event.at
                visit = f", visit {event.visit}" if event.visit > 1 else ""
                return f"{name} started{visit}" + (f", attempt {data.attempt}" if data.attempt > 1 else "")
            case "NodeCompleted":
                return f"{name} completed{self._took(key, event.at)}"
            case "NodeFailed":
                return self._failure(name, event, data)
            case "NodeSkipped" | "NodeCancelled":
                why = f" ({output.line(data.reason)})" if data.reason else ""
                return f"{name} {event.type.removeprefix('Node').lower()}{why}"
            case "ScopeOpened":
                self._started[key] = event.at
                return f"{name} started" + (f", {output.count(data.count, 'item')}" if data.count is not None else "")
            case "StepCompleted":
                return f"{name}: {output.line(data.name)} completed" if data.kind in {"step", "map"} else ""
            case "StepFailed":
                again = f"; again in {_in(data.retry_at, event.at)}" if data.retry_at else ""
                step = f"{name}: {output.line(data.name)} failed, attempt {data.attempt}"
                return f"{step}: {output.line(data.error.message, 300)}{again}"
            case "WaitOpened":
                until = f" for {_in(data.until, event.at)}" if data.until is not None else ""
                return f"{name} waits: {data.kind}{until}"
        return ""

    def _took(self, key: tuple[str, str], at: int) -> str:
        began = self._started.pop(key, None)
        return "" if began is None else f" ({output.duration((at - began) / SECOND)})"

    def _failure(self, name: str, event: EventRow, data: _Data) -> str:
        again = f"; again in {_in(data.retry_at, event.at)}" if data.retryable else ""
        return f"{name} failed, attempt {data.attempt}: {output.line(data.error.message, 300)}{again}"


def _in(moment: int | None, now: int) -> str:
    return output.duration(max(0, (moment or now) - now) / SECOND)


def _run_text(kind: str, data: _Data) -> str:
    match kind:
        case "RunTakenOver":
            return "taken over" if data.graceful else "taken over after a crash"
        case "RunCancelRequested":
            return "cancelling" + (f": {output.line(data.reason)}" if data.reason else "")
        case "CodeChanged":
            return f"the code of {output.line(data.handler)} has changed since the run began"
    return ""


_WORDS = {
    "NodeStarted": "nodes started",
    "NodeCompleted": "nodes completed",
    "NodeSkipped": "nodes skipped",
    "ScopeOpened": "maps or loops started",
    "StepCompleted": "steps completed",
    "StepFailed": "steps failed",
}
