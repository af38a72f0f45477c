"""Problems: what can be wrong with the small parts of a definition: names, numbers, settings, retry policies, targets.

Owns: `Problem`, the checks that need to know nothing about the graph (see validation.py for those that do), and whether
a run can continue at a node that a ticket or `hf.goto` names: one of the workflow itself, outside every map, loop and
parallel route. The answer is the same when a definition is checked and when a body names a node.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from holdfast.model import texts
from holdfast.model.definition import DEFAULT_QUEUE, Milestone, NodeDef, Settings
from holdfast.model.errors import HoldfastError
from holdfast.model.limits import DELAY_SECONDS_MAX, NAME_LENGTH_MAX, NODE_VISITS_MAX, PRIORITY_MAX
from holdfast.model.policies import Retry, seconds

LISTED_MAX: Final = 5
"""Names that a hint lists."""
GOOD_NAME: Final = re.compile(rf"[^.@#~\x00-\x1f\x7f\ud800-\udfff]{{1,{NAME_LENGTH_MAX}}}")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of a definition: a stable code, where, what, and what to do about it."""

    code: str
    node: str = ""
    """The node's id, inside a map or loop `scope/node`; empty when it is about the workflow."""
    field: str = ""
    message: str
    hint: str
    """What to do about it; never empty."""
    file: str = ""
    """Of a document: where it is, with line and column."""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if self.file:
            return f"{self.file}:{self.line}:{self.column}: {self.message}; {self.hint}"
        place = ".".join(p for p in (f"node {self.node!r}" if self.node else "", self.field) if p)
        return f"{place + ': ' if place else ''}{self.message} ({self.hint})"


def name_problem(name: str) -> str | None:
    """What is wrong with a name, or None."""
    if GOOD_NAME.fullmatch(name):
        return None
    if not name:
        return "is empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"{name[:20]!r}... is longer than {NAME_LENGTH_MAX} characters"
    return f"{name!r} contains a dot, '@', '#', '~' or a character that is not text"


def check_settings(settings: Settings) -> list[Problem]:
    """What is wrong with the settings of a workflow or of one run."""
    found: list[Problem] = []

    def bad(field: str, message: str, hint: str) -> None:
        found.append(Problem(code="bad_setting", field=field, message=message, hint=hint))

    if settings.persistence not in {"aggressive", "lazy"}:
        kind, _, interval = settings.persistence.partition(":")
        if kind != "interval" or not _is_duration(interval):
            wrong = f"{settings.persistence!r} is not 'aggressive', 'lazy' or 'interval:10s'"
            bad("persistence", wrong, "leave it out to commit every step ('aggressive')")
    if settings.on_failure.startswith("pend:"):
        try:
            texts.name(settings.on_failure.removeprefix("pend:"), "the basket")
        except HoldfastError as e:
            bad("on_failure", e.message, "use 'pend:errors'")
    elif settings.on_failure not in {"fail", "continue", "compensate"}:
        wrong = f"{settings.on_failure!r} is not 'fail', 'continue', 'compensate' or 'pend:<basket>'"
        bad("on_failure", wrong, "leave it out to fail with the first node that fails")
    if settings.on_code_change not in {"continue", "fail"}:
        wrong = f"{settings.on_code_change!r} is not 'continue' or 'fail'"
        bad("on_code_change", wrong, "leave it out to continue with the new code")
    if settings.timeout is not None and not (is_delay(settings.timeout) and settings.timeout > 0):
        wrong = f"{settings.timeout!r} is not a number of seconds above 0, at most 1,000 years"
        bad("timeout", wrong, "leave it out for a run without a timeout")
    if settings.concurrency is not None and not is_count(settings.concurrency):
        wrong = f"{settings.concurrency!r} is not a whole number above 0"
        bad("concurrency", wrong, "leave it out for any number of runs at once")
    try:
        texts.name(settings.queue, "the queue")
    except HoldfastError as e:
        bad("queue", e.message, f"leave it out for the queue {DEFAULT_QUEUE!r}")
    if settings.max_recoveries is not None and not is_count(settings.max_recoveries):
        wrong = f"{settings.max_recoveries!r} is not a whole number above 0"
        bad("max_recoveries", wrong, "leave it out for the engine's own limit")
    if not is_count(settings.max_visits):
        wrong = f"{settings.max_visits!r} is not a whole number above 0"
        bad("max_visits", wrong, f"leave it out for {NODE_VISITS_MAX:,}")
    if (wrong_priority := priority_problem(settings.priority)) is not None:
        bad("priority", wrong_priority, PRIORITIES)
    return found


PRIORITIES: Final = "the higher one goes first; without one it is 0"


def priority_problem(priority: Any) -> str | None:
    """What is wrong with the priority of a run or of a node, or None."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        return f"{priority!r} is not a whole number"
    if abs(priority) > PRIORITY_MAX:
        return f"the priority {priority} is not between -{PRIORITY_MAX} and {PRIORITY_MAX}"
    return None


def policy_problems(node: NodeDef, where: str) -> list[Problem]:
    """What is wrong with the timeouts, the delay, the limits and the retry policies of a node."""
    found: list[Problem] = []

    def add(code: str, field: str, message: str, hint: str) -> None:
        found.append(Problem(code=code, node=where, field=field, message=message, hint=hint))

    for field, value in (("timeout", node.timeout), ("heartbeat", node.heartbeat)):
        if value is not None and not is_positive(value):
            add("bad_timeout", field, f"{value!r} is not a number of seconds above 0", "leave it out for none")
    if node.delay is not None and not is_delay(node.delay):
        wrong = f"{node.delay!r} is not a number of seconds from 0 to 1,000 years"
        add("bad_delay", "delay", wrong, "leave it out to start at once")
    elif node.delay and node.kind != "call":
        add("bad_delay", "delay", f"a {node.kind} starts at once", "put the delay on the nodes in it")
    if node.concurrency is not None and not is_count(node.concurrency):
        wrong = f"{node.concurrency!r} is not a whole number above 0"
        add("bad_limit", "concurrency", wrong, "leave it out for any number of bodies at once")
    if (wrong_priority := priority_problem(node.priority)) is not None:
        add("bad_priority", "priority", wrong_priority, PRIORITIES)
    for field, retry in (("retry", node.retry), ("compensate_retry", node.compensate_retry)):
        for wrong in retry_problems(retry) if retry is not None else ():
            add("bad_retry", field, wrong, "as in hf.Retry(attempts=5, backoff=0.5, max_delay=30)")
    return found


def retry_problems(retry: Retry) -> list[str]:
    """What is wrong with a retry policy."""
    found = []
    if not is_count(retry.attempts):
        found.append(f"attempts={retry.attempts!r} is not a whole number above 0")
    for field in ("backoff", "max_delay"):
        if not is_delay(getattr(retry, field)):
            found.append(f"{field}={getattr(retry, field)!r} is not a number of seconds from 0 to 1,000 years")
    if not _number(retry.factor) or retry.factor < 1:
        found.append(f"factor={retry.factor!r} is not a number from 1 on")
    if not _number(retry.jitter) or not 0 <= retry.jitter <= 1:
        found.append(f"jitter={retry.jitter!r} is not a share between 0 and 1")
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_positive(value: Any) -> bool:
    """Whether this is a finite number above 0."""
    return _number(value) and value > 0


def is_delay(value: Any) -> bool:
    """Whether this is a number of seconds from 0 to DELAY_SECONDS_MAX."""
    return _number(value) and 0 <= value <= DELAY_SECONDS_MAX


def is_count(value: Any) -> bool:
    """Whether this is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_duration(text: str) -> bool:
    try:
        return seconds(text) > 0
    except HoldfastError:
        return False


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def near(name: str, known: Iterable[str]) -> str:
    """A hint with names that are spelled like this one; empty if there is none."""
    listed = list(known)
    # on a large graph the search for a similar name would cost more than everything else
    found = difflib.get_close_matches(name, listed, n=2) if len(listed) <= 1_000 else []
    return "did you mean " + " or ".join(repr(n) for n in found) + "?" if found else ""


def choices(name: str, known: Collection[str], what: str) -> str:
    """A hint for an unknown name: known names that are spelled like it, else the known names."""
    if not known:
        return f"there are no {what} here"
    return near(name, known) or f"the {what} here are {_listed(known)}"


def _listed(names: Collection[str]) -> str:
    first = ", ".join(repr(name) for name in islice(names, LISTED_MAX))
    return first if len(names) <= LISTED_MAX else f"{first} and {len(names) - LISTED_MAX:,} more"


# --- milestones ----------------------------------------------------------------------------------------------------


def milestone_problems(milestones: Sequence[Milestone]) -> list[Problem]:
    """What is wrong with the milestones of a workflow."""
    found: list[Problem] = []

    def add(name: str, field: str, message: str, hint: str) -> None:
        found.append(Problem(code="bad_milestone", field=f"milestones.{name}.{field}", message=message, hint=hint))

    for twice in repeated(m.name for m in milestones):
        add(twice, "name", f"two milestones are called {twice!r}", "give one of them another name")
    for m in milestones:
        of_basket = m.set_on in ("entry", "exit")
        if not GOOD_NAME.fullmatch(m.name) or ":" in m.name:
            add(m.name, "name", f"{m.name!r} is not a name", "use letters, digits, _ and -")
        if (m.after is None) == (m.at is None):
            add(m.name, "after", "a milestone has either `after` or `at`", "write one of them: after: 2h")
        if m.at is not None and not _is_instant(m.at):
            add(m.name, "at", f"{m.at!r} is not an instant", "write one with its zone: 2027-01-01T09:00:00Z")
        times = [*(() if m.after is None else (m.after,)), *(t for f in m.further for t in (f.after, f.offset))]
        if any(not 0 <= t <= DELAY_SECONDS_MAX for t in times) or any(f.after < 1 for f in m.further):
            add(m.name, "after", "a time is negative, too long, or repeats more than once a second", "write seconds")
        if any(f.repeat == 0 or f.repeat < -1 for f in m.further):
            add(m.name, "further", "`repeat` is a number of times, or -1 for no end", "leave it out for once")
        if of_basket != bool(m.basket):
            add(m.name, "basket", "a milestone of an entry or exit names its basket, any other none", "see `set_on`")
        if m.clears == "exit" and m.set_on != "entry":
            add(m.name, "clears", "only what the entry of a basket sets is cleared by its exit", "leave it out")
        if (m.action in ("move", "signal")) != bool(m.to):
            add(
                m.name,
                "to",
                "`move` names a basket in `to`, `signal` a signal, others nothing",
                "see `action`",
            )
        if not _is_zone(m.zone):
            add(m.name, "zone", f"there is no time zone {m.zone!r}", "write one such as Europe/Oslo")
    return found


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
