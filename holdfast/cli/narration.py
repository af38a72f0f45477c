"""Narration: a run as plain lines, one per change, for logs and pipes.

Owns: the line of each event; items of maps and bursts are counted, not listed.
Pure: events in, lines out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.cli import output, wording
from holdfast.cli.picture import ENDED, Picture
from holdfast.model import events as ev
from holdfast.model.limits import SECOND
from holdfast.model.naming import instance_text
from holdfast.model.views import Wait, when
from holdfast.store.row_types import EventRow, NodeRow, RunRow

BURST = 60
"""More lines than this at once are summed up in one."""

TOLD = (
    "CodeChanged",
    "NodeCancelled",
    "NodeCompleted",
    "NodeFailed",
    "NodeSkipped",
    "NodeStarted",
    "RunCancelRequested",
    "RunEdited",
    "RunTakenOver",
    "ScopeOpened",
    "StepCompleted",
    "StepFailed",
    "TicketRaised",
    "VariablesSet",
    "WaitClosed",
    "WaitOpened",
)
"""The events that have a line."""

_LOUD = frozenset(
    {
        "CodeChanged",
        "NodeCancelled",
        "NodeFailed",
        "RunCancelRequested",
        "RunEdited",
        "RunTakenOver",
        "TicketRaised",
        "VariablesSet",
        "WaitClosed",
        "WaitOpened",
    }
)
"""Events that have a line of their own even in a burst."""


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _About(msgspec.Struct):
    """What a wait is about."""

    question: str = ""
    name: str = ""
    basket: str | None = None
    assignee: str | None = None
    reason: str = ""
    actor: str = ""
    error: _Error | None = None


class _Edited(msgspec.Struct):
    """What a person or a timer has changed about a wait."""

    wait_id: str = ""
    reminders: int = 0
    assignee: str | None = None
    basket: str | None = None


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
    wait_id: str = ""
    outcome: str = ""
    actor: str = ""
    about: _About | None = None
    after: _Edited | None = None
    vars: dict[str, msgspec.Raw] = {}


_data = msgspec.json.Decoder(_Data).decode


class Narrator:
    """Words the events of one run."""

    def __init__(self, picture: Picture, row: RunRow, *, prefix: str = "") -> None:
        self._picture = picture
        self._began_at = row.started_at or row.created_at
        self._started: dict[tuple[str, str], int] = {}
        self._maps: dict[str, tuple[int, int]] = {}
        self._prefix = prefix

    def lines(self, events: Sequence[EventRow]) -> list[str]:
        """The lines of some new events of the types TOLD."""
        told = [(event, text) for event in events if (text := self._text(event))]
        if len(told) <= BURST:
            return [self._line(event.at, text) for event, text in told]
        loud = [(event, text) for event, text in told if event.type in _LOUD]
        found = [self._line(event.at, text) for event, text in loud[:BURST]]
        quiet = Counter(_WORDS[event.type] for event, _ in told if event.type not in _LOUD)
        quiet.update({"more like these": len(loud) - BURST} if len(loud) > BURST else {})
        summary = ", ".join(f"{number:,} {word}" for word, number in quiet.items())
        return [*found, self._line(events[-1].at, f"… {summary}")] if summary else found

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
            if node.status in ENDED and not marks:  # has a line already
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
            return _run_text(event, data)
        name = output.line(event.node)
        key = (event.node, event.path)
        if event.type == "TicketRaised":
            how = "continues at" if data.ticket is None else f"raises the ticket {output.line(data.ticket)}:"
            return f"{name} {how} {output.line(data.target)}"
        waits = _wait_text(event, data)
        if waits and (data.kind not in ("timer", "child") or self._is_top(event.path)):
            return f"{output.line(instance_text(event.node, event.path))} {waits}"
        if not self._is_top(event.path):
            if event.type == "NodeFailed" and not data.retryable:
                return (
                    f"{name}@{output.line(event.path)} failed: {output.line(data.error.message, wording.MESSAGE_WIDTH)}"
                )
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
                return f"{step}: {output.line(data.error.message, wording.MESSAGE_WIDTH)}{again}"
        return ""

    def _took(self, key: tuple[str, str], at: int) -> str:
        began = self._started.pop(key, None)
        return "" if began is None else f" ({output.duration((at - began) / SECOND)})"

    def _failure(self, name: str, event: EventRow, data: _Data) -> str:
        again = f"; again in {_in(data.retry_at, event.at)}" if data.retry_at is not None else ""
        return f"{name} failed, attempt {data.attempt}: {output.line(data.error.message, wording.MESSAGE_WIDTH)}{again}"


def _wait_text(event: EventRow, data: _Data) -> str:
    """An event about a wait, behind the name of the node that waits; of a pause it is the whole line."""
    match event.type:
        case "WaitOpened":
            return _opened(event, data)
        case "WaitClosed":
            by = f" by {data.actor}" if data.actor else ""
            told = {
                "answered": f"was answered{by}" if data.actor != "deadline" else "was answered with its default",
                "received": "received its signal" if data.actor != "deadline" else "continues with its default",
                "resumed": f"was resumed{by}",
                "released": f"was released{by}",
                "deadline": "passed its deadline",
            }
            return output.line(told.get(data.outcome, ""))
        case "RunEdited" if data.after is not None:
            if data.after.reminders:
                return f"is reminded of its question ({output.count(data.after.reminders, 'reminder')})"
            to = [data.after.assignee] * bool(data.after.assignee)
            to += [f"basket {data.after.basket}"] * bool(data.after.basket)
            return output.line(f"is reassigned to {', '.join(map(str, to))} ({data.actor})") if to else ""
    return ""


def _opened(event: EventRow, data: _Data) -> str:
    about = data.about or _About()
    if data.kind == ev.STEP_RETRY:
        return ""  # the failure of the step says when it is tried again
    pause = "paused" + (f" by {about.actor}" if about.actor else "") + (f": {about.reason}" if about.reason else "")
    wait = Wait(
        wait_id=data.wait_id,
        kind=data.kind,
        run_id="",
        workflow="",
        until=None if data.until is None else when(data.until),
        question=pause if data.kind == "pause" else about.question,
        basket=about.basket,
        assignee=about.assignee,
        name=about.name,
        error=None if about.error is None else {"message": about.error.message},
    )
    left = [f"{_in(data.until, event.at)} left"] * (data.until is not None and data.kind != "timer")
    named = [data.wait_id] * (data.kind in ("input", "basket"))
    notes = ", ".join((*named, *left))
    return output.line(wording.wait_text(wait, event.at) + (f" ({notes})" if notes else ""))


def _in(moment: int | None, now: int) -> str:
    return output.duration(max(0, (moment or now) - now) / SECOND)


def _run_text(event: EventRow, data: _Data) -> str:
    match event.type:
        case "RunTakenOver":
            return "taken over" if data.graceful else "taken over after a crash"
        case "RunCancelRequested":
            return "cancelling" + (f": {output.line(data.reason)}" if data.reason else "")
        case "CodeChanged":
            return f"the code of {output.line(data.handler)} has changed since the run began"
        case "VariablesSet" if data.actor:
            return output.line(f"{data.actor} set {', '.join(data.vars)}")
        case "WaitClosed" if data.outcome == "resumed":
            return output.line("resumed" + (f" by {data.actor}" if data.actor else ""))
        case "WaitOpened":
            return _opened(event, data)
    return ""


_WORDS = {
    "NodeStarted": "nodes started",
    "NodeCompleted": "nodes completed",
    "NodeSkipped": "nodes skipped",
    "ScopeOpened": "maps or loops started",
    "StepCompleted": "steps completed",
    "StepFailed": "steps failed",
}
