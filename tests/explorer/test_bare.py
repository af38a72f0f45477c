"""A context for unit tests: what people say and which signals come is given beforehand."""

from __future__ import annotations

import msgspec
import pytest

import holdfast as hf
from holdfast.model.errors import InvalidInput, UsageError
from holdfast.testing import context


class Verdict(msgspec.Struct):
    approved: bool
    note: str = ""


@hf.node
async def bare_review(ctx: hf.Context, case: str) -> str:
    verdict = await ctx.ask(f"Is {case} fine?", schema=Verdict, basket="second_look")
    hurry = await ctx.receive("hurry", schema=int, deadline="1h", default=0)
    await ctx.signal("ledger", "reviewed", case)
    return f"{verdict.approved} {verdict.note!r} {hurry}"


async def test_a_body_gets_the_answers_and_signals_that_were_given() -> None:
    ctx = context(answers={"Is ann fine?": {"approved": True}}, signals=[("other", 1), ("hurry", 3)])
    assert await bare_review.fn(ctx, "ann") == "True '' 3"
    assert ctx.signalled == [("ledger", "reviewed", "ann")]


async def test_a_signal_that_does_not_come_is_its_default() -> None:
    assert (await bare_review.fn(context(answers={"Is ann fine?": Verdict(False)}), "ann")).endswith(" 0")


async def test_what_nobody_answers_says_how_to_give_it() -> None:
    with pytest.raises(UsageError, match=r"context\(answers=\{"):
        await bare_review.fn(context(), "ann")


async def test_an_answer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="approved"):
        await bare_review.fn(context(answers={"Is ann fine?": {"approved": "perhaps"}}), "ann")
