"""Asking: what a body asks of people and of other runs, checked before it is asked.

Owns: a question and an expected signal as the data of their wait, deadlines as instants.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from holdfast.model import answers, texts
from holdfast.model.errors import UsageError
from holdfast.model.limits import DELAY_SECONDS_MAX, SECOND
from holdfast.model.policies import delay_seconds
from holdfast.model.texts import NOTHING, Escalate, escalations, reminder_seconds
from holdfast.model.values import encode

Deadline = float | str | timedelta | datetime
Escalations = Escalate | Sequence[Escalate]


class Asking(TypedDict, total=False):
    """What `ctx.ask` takes beside the question and the type of its answer."""

    assignee: str | None
    basket: str | None
    deadline: Deadline | None
    default: Any
    remind: float | str | timedelta | None
    escalate: Escalations


def instant(when: Deadline, now: int, what: str) -> int:
    """A duration from now on, or a datetime, in microseconds since 1970."""
    if not isinstance(when, datetime):
        return now + int(delay_seconds(when, what) * SECOND)
    if when.tzinfo is None:
        raise UsageError(f"{what}: a datetime needs a time zone")
    until = int(when.timestamp() * SECOND)
    if until - now > DELAY_SECONDS_MAX * SECOND:
        raise UsageError(f"{what}: {when} is more than 1,000 years away")
    return until


class _Awaited:
    """A value of a type that a person or another run provides, perhaps until a deadline."""

    def __init__(self, what: str, schema: Any, deadline: Deadline | None, default: Any) -> None:
        self._what = what
        self._deadline = deadline
        self.annotation, json_schema = answers.wanted(schema, what)
        self.about: dict[str, Any] = {} if schema is None else {"schema": json_schema}
        if default is NOTHING:
            return
        if deadline is None:
            raise UsageError(f"{what}: a default answers when the deadline has passed; say deadline='2d' as well")
        data = encode(default, self.annotation, what=f"the default of {what}")
        problems = answers.problems(self.about.get("schema"), data)
        if problems:
            raise UsageError(f"{what}: the default does not fit the schema: {'; '.join(problems)}")
        self.about["default"] = msgspec.json.decode(data)

    def until(self, now: int) -> tuple[int | None, int | None]:
        """Its deadline as an instant and, where it was given as one, as a duration, in microseconds."""
        if self._deadline is None:
            return None, None
        until = instant(self._deadline, now, self._what)
        return until, None if isinstance(self._deadline, datetime) else until - now


class Question(_Awaited):
    """A question to a person."""

    text: str

    @classmethod
    def of(
        cls,
        question: str,
        schema: Any,
        about: Any,
        *,
        assignee: str | None = None,
        basket: str | None = None,
        deadline: Deadline | None = None,
        default: Any = NOTHING,
        remind: float | str | timedelta | None = None,
        escalate: Escalations = (),
    ) -> Question:
        texts.question(question, "ctx.ask: the question")
        asked = cls(f"the question {question[:60]!r}", schema, deadline, default)
        asked.text = question
        asked.about["question"] = question
        if about is not None:
            asked.about["about"] = msgspec.json.decode(encode(about, what="what the question is about"))
        for name, value in (("assignee", assignee), ("basket", basket)):
            if value is not None:
                asked.about[name] = texts.name(value, f"ctx.ask: {name}")
        if remind is not None:
            asked.about["remind"] = reminder_seconds(remind, "ctx.ask")
        steps = escalations(escalate)
        if steps:
            asked.about["escalate"] = steps
        return asked


class Expected(_Awaited):
    """A signal that a body waits for."""

    name: str

    @classmethod
    def of(cls, name: str, schema: Any, deadline: Deadline | None, default: Any) -> Expected:
        texts.name(name, "ctx.receive: what it waits for")
        expected = cls(f"the signal {name!r}", schema, deadline, default)
        expected.name = expected.about["name"] = name
        return expected
