"""Reasons: each thing that a run waits for, as a clause of a sentence.

Owns: since when it waits, for whom or what, until when, and what happens then.
Never: says who will go on with the run (why.py does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.inspect import run_views
from holdfast.model import events as ev
from holdfast.model.naming import instance_text
from holdfast.model.statuses import NodeStatus
from holdfast.model.timers import RUN_TIMEOUT, QuestionTimer, question_timer
from holdfast.model.views import humanize_duration, iso_or_none, times
from holdfast.store.contract import Store
from holdfast.store.records.state_rows import about_of, child_of
from holdfast.store.row_types import NodeRow, TimerRow, WaitRow


class Reasons:
    """What one run waits for, as of `now`."""

    def __init__(self, store: Store, timers: Sequence[TimerRow], now: int) -> None:
        self._store = store
        self._timers = timers
        self._now = now

    def of(self, wait: WaitRow) -> str:
        """Why the run does not go on, as far as this wait has to do with it."""
        about = about_of(wait)
        node = instance_text(wait.node or "?", wait.path or ".", wait.visit)
        age = humanize_duration(self._now - wait.since)
        match wait.kind:
            case "timer":
                return f"{node} has slept for {age}, and sleeps {self.until(wait.until)}"
            case ev.STEP_RETRY:
                failures, attempt = about.get("attempt", 2) - 1, about.get("attempt", 2)
                at = self._instant(wait.until or self._now)
                step = f"step {about.get('name')} of {node}"
                return f"{step} failed {times(failures)} and is tried again (attempt {attempt}) at {at}"
            case "child":
                return f"{node} has waited for {age} for its child {self._child(child_of(wait))}"
            case "input" if about.get("code") == "outcome_unknown":
                question = about["question"]
                return f"{node} has waited for {age} for somebody to answer: {question} ({wait.wait_id})"
            case "input":
                details = [wait.wait_id, *self._steps(wait, about), *self._deadline(wait, about, "it is answered with")]
                asked = f"{about.get('question')} ({'; '.join(details)})"
                return f"{node} has waited for {age} for {_whom(wait)} to answer: {asked}"
            case "signal":
                end = "".join(f" ({text})" for text in self._deadline(wait, about, "it goes on with"))
                return f"{node} has waited for {age} for the signal {about.get('name')!r}{end}"
            case "basket":
                return f"{node} has been in the basket {wait.basket} for {age} ({wait.wait_id}){_pended(about)}"
            case "pause":
                by = f" by {about['actor']}" if about.get("actor") else ""
                reason = f" ({about['reason']})" if about.get("reason") else ""
                return f"it was paused {age} ago{by}{reason}"
        why = about.get("why", "its engine died, and nobody knows whether it was done")
        return f"{node} has waited for {age} for a person to decide ({why})"

    def delays(self, nodes: Sequence[NodeRow]) -> list[str]:
        """Starts that are put off, and the end of the run's time."""
        put_off = [node for node in nodes if node.status == NodeStatus.SCHEDULED and node.not_before]
        limits = [timer for timer in self._timers if timer.timer == RUN_TIMEOUT]
        return [self._put_off(node) for node in put_off] + [f"it may take {self.until(t.due_at)}" for t in limits]

    def until(self, due_at: int | None) -> str:
        return "without an end" if due_at is None else f"until {self._instant(due_at)}"

    def _put_off(self, node: NodeRow) -> str:
        name, at = instance_text(node.node, node.path, node.visit), self._instant(node.not_before)
        if not node.failures:
            return f"{name} starts at {at}, after its delay"
        return f"{name} failed {times(node.failures)} and is tried again (attempt {node.attempt}) at {at}"

    def _instant(self, at: int) -> str:
        apart = (
            f"which was {humanize_duration(self._now - at)} ago"
            if at <= self._now
            else f"in {humanize_duration(at - self._now)}"
        )
        return f"{iso_or_none(at)}, {apart}"

    def _child(self, child: str | None) -> str:
        row = None if child is None else self._store.run(child)
        if row is None:
            return f"{child}, which does not exist, so nothing will wake it"
        return f"{child}, which is {run_views.shown_status(row)} (`holdfast why {child}`)"

    # --- while nobody answers --------------------------------------------------------------------------------

    def _steps(self, wait: WaitRow, about: dict[str, Any]) -> list[str]:
        """The next reminder of a question, and who is asked next, soonest first."""
        known = [(timer.due_at, question_timer(timer.timer)) for timer in self._timers]
        mine = [(due_at, timer) for due_at, timer in known if timer is not None and timer.wait_id == wait.wait_id]
        return [self._step(timer, due_at, about) for due_at, timer in sorted(mine, key=lambda found: found[0])]

    def _step(self, timer: QuestionTimer, due_at: int, about: dict[str, Any]) -> str:
        at = self._instant(due_at)
        if timer.kind == "remind":
            before = timer.number - 1
            return f"the next reminder, after {before}, at {at}" if before else f"a reminder at {at}"
        step = about["escalate"][timer.number]
        to = [str(step["assignee"])] if "assignee" in step else []
        to += [f"the basket {step['basket']}"] if "basket" in step else []
        return f"it goes to {' and '.join(to)} at {at}"

    def _deadline(self, wait: WaitRow, about: dict[str, Any], goes_on: str) -> list[str]:
        if wait.until is None:
            return []
        then = f"{goes_on} its default" if "default" in about else "the node fails"
        return [f"its deadline is {self._instant(wait.until)}: then {then}"]


def _whom(wait: WaitRow) -> str:
    basket = f" (basket {wait.basket})" if wait.basket else ""
    return f"{wait.assignee or 'somebody'}{basket}"


def _pended(about: dict[str, Any]) -> str:
    """What brought a node into its basket, and what resuming it means."""
    error = (about.get("error") or {}).get("message")
    match about.get("mode"):
        case "next" if about.get("target"):
            then = f"the run goes to {about['target']}"
        case "next":
            then = "what follows it runs"
        case "same":
            then = "it runs again from its start"
        case _:
            then = "it runs again, as another attempt,"
    return (f" because of an error ({error})" if error else "") + f", and {then} when it is resumed"
