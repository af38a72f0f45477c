"""Asking: what a body asks of people and of other runs, checked before it is asked.

Owns: a question and an expected signal as the data of their wait, deadlines as instants.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from holdfast.model import answers
from holdfast.model.errors import UsageError
from holdfast.model.policies import seconds
from holdfast.model.questions import NOTHING, Escalate, escalations
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
        return now + int(seconds(when) * 1_000_000)
    if when.tzinfo is None:
        raise UsageError(f"{what}: a datetime needs a time zone")
    return int(when.timestamp() * 1_000_000)


class _Awaited:
    """Something that a person or another run brings: a value of a type, perhaps until a deadline."""

    def __init__(self, what: str, schema: Any, deadline: Deadline | None, default: Any) -> None:
        self._what = what
        self._deadline = deadline
        self.annotation: Any = Any if schema is None or isinstance(schema, dict) else schema
        self.about: dict[str, Any] = {}
        if schema is not None:
            self.about["schema"] = answers.schema_of(schema)
            wrong = answers.schema_problem(self.about["schema"])
            if wrong is not None:
                raise UsageError(f"{what}: this is no schema for an answer: {wrong}")
        if default is NOTHING:
            return
        if deadline is None:
            raise UsageError(f"{what}: a default answers when the deadline has passed; say deadline='2d' as well")
        data = encode(default, self.annotation, what=f"the default of {what}")
        problems = answers.problems(self.about.get("schema"), data)
        if problems:
            raise UsageError(f"{what}: the default does not fit the schema: {'; '.join(problems)}")
        self.about["default"] = msgspec.json.decode(data)

    def until(self, now: int) -> int | None:
        return None if self._deadline is None else instant(self._deadline, now, self._what)


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
        if not isinstance(question, str) or not question.strip():
            raise UsageError(f"ctx.ask takes a question as text, not {question!r}")
        asked = cls(f"the question {question[:60]!r}", schema, deadline, default)
        asked.text = question
        asked.about["question"] = question
        if about is not None:
            asked.about["about"] = msgspec.json.decode(encode(about, what="what the question is about"))
        for name, value in (("assignee", assignee), ("basket", basket)):
            if value is not None and (not isinstance(value, str) or not value):
                raise UsageError(f"ctx.ask: {name} is a name, not {value!r}")
            if value is not None:
                asked.about[name] = value
        if remind is not None:
            every = seconds(remind)
            if every < 1:
                raise UsageError(f"ctx.ask: remind={remind!r} is too often; at least '1s'")
            asked.about["remind"] = every
        steps = escalations(escalate)
        if steps:
            asked.about["escalate"] = steps
        return asked


class Expected(_Awaited):
    """A signal that a body waits for."""

    name: str

    @classmethod
    def of(cls, name: str, schema: Any, deadline: Deadline | None, default: Any) -> Expected:
        if not isinstance(name, str) or not name:
            raise UsageError(f"ctx.receive takes the name of a signal, not {name!r}")
        expected = cls(f"the signal {name!r}", schema, deadline, default)
        expected.name = expected.about["name"] = name
        return expected
