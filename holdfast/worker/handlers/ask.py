"""`hf.ask` in a graph: a node that asks a person and has the answer as its output."""

from __future__ import annotations

from typing import Any

from holdfast.model.handlers import Parameter
from holdfast.model.texts import NOTHING, Escalate
from holdfast.worker.context import Context
from holdfast.worker.handlers.builtin import register


async def ask(
    ctx: Context,
    question: str,
    options: dict[str, Any],
    about: Any = None,
    assignee: str | None = None,
    basket: str | None = None,
    deadline: float | str | None = None,
    default: Any = NOTHING,
) -> Any:
    escalate = [Escalate(step.pop("after"), **step) for step in options.get("escalate", ())]
    return await ctx.ask(
        question,
        schema=options.get("schema"),
        about=about,
        assignee=assignee,
        basket=basket,
        deadline=deadline,
        default=default,
        remind=options.get("remind"),
        escalate=escalate,
    )


register(
    "holdfast.ask",
    ask,
    Parameter("question", str, True),
    Parameter("options", dict[str, Any], True),
    Parameter("about", Any, False),
    Parameter("assignee", str | None, False),
    Parameter("basket", str | None, False),
    Parameter("deadline", float | str | None, False),
    Parameter("default", Any, False),
)
