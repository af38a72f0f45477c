"""Timers: their names, and when one is due.

Owns: the names of timers other than those of waits (a wait's own timer is named by the wait's id), reading the names
back, and how a timer that was set by a duration is judged. Within the boot in which it was set, elapsed time decides,
so that changing the wall clock neither delays nor hastens it. In any other boot only the wall clock knows how much
time has passed.
Never: reads a clock.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

RUN_TIMEOUT: Final = "run_timeout"
"""The timer of a run's own timeout."""
START: Final = "retry:"
"""How the name of a late start's timer begins."""


class Elapsed(NamedTuple):
    """An instant of the time that passes in one boot of a machine; comparable with instants of the same boot only."""

    boot: str
    micros: int


def due(due_at: int, lasting: Elapsed | None, now: int, elapsed: Elapsed | None) -> int:
    """When a timer is due, by the wall clock that shows `now`. `lasting`: it was set by a duration, which ends then;
    `elapsed`: the present, or None where durations are measured by `now` as well."""
    if lasting is None or elapsed is None or lasting.boot != elapsed.boot:
        return due_at
    return now + lasting.micros - elapsed.micros


class QuestionTimer(NamedTuple):
    """The timer of a reminder or an escalation of a question."""

    kind: Literal["remind", "escalate"]
    wait_id: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.wait_id}:{self.number}"


def question_timer(name: str) -> QuestionTimer | None:
    """Read the name of a reminder's or an escalation's timer; None for any other timer."""
    kind, _, rest = name.partition(":")
    if kind != "remind" and kind != "escalate":
        return None
    wait_id, _, number = rest.partition(":")
    return QuestionTimer("remind" if kind == "remind" else "escalate", wait_id, int(number))


class MilestoneTimer(NamedTuple):
    """The timer of a milestone of a run, or of one of its paths."""

    milestone: str
    path: str
    """Empty: of the run."""
    times: int
    """How often the milestone was reached before."""

    @property
    def name(self) -> str:
        return f"milestone:{self.milestone}:{self.path}:{self.times}"


def milestone_timer(name: str) -> MilestoneTimer | None:
    """Read the name of a milestone's timer; None for any other timer. (Names of milestones have no colon.)"""
    kind, _, rest = name.partition(":")
    if kind != "milestone":
        return None
    milestone, _, rest = rest.partition(":")
    path, _, times = rest.rpartition(":")
    return MilestoneTimer(milestone, path, int(times))


def only_watches(name: str) -> bool:
    """Whether nothing of the run waits for this timer: its timeout, or a milestone."""
    return name == RUN_TIMEOUT or name.startswith("milestone:")


def belongs_to(name: str, wait_id: str) -> bool:
    """Whether this is the timer of a reminder or an escalation of this question."""
    timer = question_timer(name)
    return timer is not None and timer.wait_id == wait_id


def is_start_timer(name: str) -> bool:
    """Whether this is the timer of a late start."""
    return name.startswith(START)
