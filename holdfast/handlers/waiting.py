"""Waiting: the bodies of `ask`, `receive`, `sleep`, and of workflows that are called inside a graph."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from holdfast.handlers.registering import builtin
from holdfast.model.errors import Pended
from holdfast.model.texts import NOTHING, Escalate
from holdfast.worker.context import Context

Duration = Annotated[float | str, Meta(description="Seconds, or text such as `90s`, `1h30m`, `2d`.")]
AnswerSchema = Annotated[Any, Meta(description="The JSON Schema of what is wanted; another value is refused.")]
Default = Annotated[Any, Meta(description="What is used once the deadline has passed; without it the node fails.")]


@builtin("holdfast.ask")
async def ask(
    ctx: Context,
    question: Annotated[str, Meta(min_length=1)],
    schema: AnswerSchema = None,
    about: Annotated[Any, Meta(description="What is shown beside the question.")] = None,
    assignee: Annotated[str | None, Meta(description="Who is asked.")] = None,
    basket: Annotated[str | None, Meta(description="Where the question waits until a person takes it.")] = None,
    deadline: Duration | None = None,
    default: Default = NOTHING,
    remind: Annotated[Duration | None, Meta(description="How often a reminder is recorded.")] = None,
    escalate: Annotated[
        list[dict[str, Any]], Meta(description="Reassignments: `{after: 2d, assignee: boss}`, in order.")
    ] = [],  # noqa: B006 - never changed
) -> Any:
    """Ask a person; the output is the answer."""
    steps = [Escalate(step["after"], **{k: v for k, v in step.items() if k != "after"}) for step in escalate]
    return await ctx.ask(
        question,
        schema=schema,
        about=about,
        assignee=assignee,
        basket=basket,
        deadline=deadline,
        default=default,
        remind=remind,
        escalate=steps,
    )


@builtin("holdfast.receive")
async def receive(
    ctx: Context,
    name: Annotated[str, Meta(min_length=1)],
    schema: AnswerSchema = None,
    deadline: Duration | None = None,
    default: Default = NOTHING,
) -> Any:
    """Wait for a signal; the output is its payload."""
    return await ctx.receive(name, schema=schema, deadline=deadline, default=default)


@builtin("holdfast.pause")
async def pause(ctx: Context, basket: Annotated[str, Meta(min_length=1)]) -> None:
    """Wait in a basket until the path is resumed; then the next unit runs."""
    raise Pended(basket)


@builtin("holdfast.sleep")
async def sleep(ctx: Context, seconds: Duration) -> None:
    """Wait, durably."""
    await ctx.sleep(seconds)


@builtin("holdfast.child")
async def child(
    ctx: Context,
    workflow: Annotated[str, Meta(min_length=1)],
    inputs: dict[str, Any] = {},  # noqa: B006 - never changed
    run_id: Annotated[str | None, Meta(description="The id of the new run; default: derived from this one.")] = None,
    detached: Annotated[bool, Meta(description="Start it only; the output is its run id.")] = False,
) -> Any:
    """Run another workflow; the output is its result."""
    return await ctx.child(workflow, run_id=run_id, detached=detached, **inputs)
