"""What the explorer says about effects: in plain words, with the boundary, and only where it is true."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

import holdfast as hf
from holdfast.model.errors import UsageError
from holdfast.testing import Report, explore
from holdfast.testing.explorer.report import Finding, Kind
from tests.explorer import scenarios, shop

CHARGE = "tests.explorer.shop.charge"


def only(report: Report, kind: Kind) -> Finding:
    (finding,) = report.findings
    assert finding.kind is kind, report.explain()
    return finding


def test_a_body_that_runs_twice_without_reading_its_key_is_reported_with_the_boundary() -> None:
    finding = only(explore(shop.books), Kind.REPEATED)
    assert finding.what == "the body of book ran 2 times and did not read ctx.idempotency_key"
    assert finding.where == "boundary 4, body of book (attempt 1): it happens, and the process dies before it knows"
    assert "idempotent=True" in finding.advice
    assert any("<-- it happens, and the process dies" in line for line in finding.timeline)
    assert len(finding.timeline) <= 22


def test_a_node_said_to_be_idempotent_is_not_reported() -> None:
    report = explore(shop.books, idempotent=["book"])
    assert report.safe, report.explain()


def test_a_step_that_runs_twice_is_reported_and_the_durable_code_around_it_is_not() -> None:
    finding = only(explore(shop.code), Kind.REPEATED)
    assert finding.subject == "step tests.explorer.shop.charge of shop_code"


def test_a_named_call_without_a_key_is_reported() -> None:
    finding = only(explore(shop.without_key, effects=[CHARGE]), Kind.REPEATED)
    assert finding.what.startswith(f"{CHARGE}(amount=10) was called 2 times, and nothing tells the receiver")
    assert "call of tests.explorer.shop.charge" in finding.where


@pytest.mark.parametrize("effect", [CHARGE, "tests.explorer.shop:charge", shop.charge])
def test_a_named_call_with_the_key_of_its_node_is_safe(effect: object) -> None:
    report = explore(shop.with_key, effects=[effect])
    assert report.safe, report.explain()
    assert report.labels["call"] == 1


def test_a_key_inside_another_text_counts() -> None:
    report = explore(shop.sync, effects=["tests.explorer.shop.charge_sync"])
    assert report.safe, report.explain()


def test_a_method_can_be_named() -> None:
    report = explore(shop.by_method, effects=["tests.explorer.shop.Payments.pay"])
    assert report.safe, report.explain()
    assert report.labels["call"] == 1


def test_a_node_can_be_named_among_the_effects() -> None:
    finding = only(explore(shop.books, effects=["tests.explorer.shop.book"]), Kind.REPEATED)
    assert finding.subject == "the body of book"


def test_a_call_repeated_under_another_key_is_reported() -> None:
    finding = only(explore(shop.with_new_key, effects=[CHARGE]), Kind.NEW_KEY)
    assert "was called 2 times with different keys" in finding.what
    assert "ctx.idempotency_key" in finding.advice


def test_a_key_with_the_attempt_in_it_is_another_key() -> None:
    finding = only(explore(shop.again, effects=[CHARGE]), Kind.NEW_KEY)
    assert "with different keys" in finding.what


def test_results_that_differ_between_two_executions_are_reported() -> None:
    finding = only(explore(shop.gamble), Kind.DIFFERS)
    assert finding.what.startswith("the body of lottery ran 2 times and returned different results: 0.")


def test_no_effects_at_all_leaves_the_outcome_and_the_invariants() -> None:
    report = explore(shop.without_key, effects=[])
    assert report.safe, report.explain()
    assert "body" not in report.labels


def test_an_effect_that_does_not_exist_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="has no nothing"):
        explore(shop.with_key, effects=["tests.explorer.shop.nothing"])
    with pytest.raises(UsageError, match="no such module"):
        explore(shop.with_key, effects=["nowhere.nothing"])


def test_the_named_callable_is_itself_again_afterwards() -> None:
    before = shop.charge
    explore(shop.without_key, effects=[CHARGE])
    assert shop.charge is before


@hf.workflow
async def ex_reads_the_clock(ctx: hf.Context) -> None:
    await ctx.step(_ex_note, time.time())
    await ctx.sleep(60)  # long enough for the body to be left, and run again from its start


async def _ex_note(at: float) -> float:
    return at


@hf.workflow
async def ex_always_fails(ctx: hf.Context) -> None:
    raise ValueError("as ever")


def test_a_body_that_makes_other_calls_when_it_is_run_again_is_unsafe_even_without_a_fault() -> None:
    report = explore(ex_reads_the_clock, idempotent=["_ex_note"])
    assert not report.safe
    assert report.findings[0].kind is Kind.DIFFERS
    assert "even without a fault the run was suspended (on hold) (code_changed: " in report.explain()


def test_tasks_created_in_an_order_of_time_are_told_to_need_keys() -> None:
    report = explore(scenarios.overtaking_without_keys, idempotent=["xp_fetch"])
    (again,) = [finding for finding in report.findings if finding.kind is Kind.NEW_KEY]
    assert "ran 2 times under different idempotency keys" in again.what
    assert "ctx.keyed" in again.advice


@hf.workflow
async def ex_one_key_for_equal_calls(ctx: hf.Context) -> None:
    for _ in range(2):
        await ctx.keyed("poll").step(_ex_note, 1.0)


def test_a_key_that_names_several_equal_calls_has_as_many_idempotency_keys_after_every_crash() -> None:
    report = explore(ex_one_key_for_equal_calls, idempotent=["_ex_note"])
    assert report.safe, report.explain()


def test_a_run_that_fails_without_any_fault_is_told_with_its_error() -> None:
    assert "Undisturbed, the run was failed (error: ValueError: as ever)." in explore(ex_always_fails).explain()


async def _ex_ignores_its_cancellation() -> str:
    for _ in range(3):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(4)
    return "late"


@hf.node(idempotent=True)
async def ex_leaves_it_behind(ctx: hf.Context) -> str:
    beside = asyncio.create_task(ctx.step(_ex_ignores_its_cancellation))
    await asyncio.sleep(1)
    return "done" if not beside.done() else "late"


@hf.node(idempotent=True)
async def ex_goes_on_for_long(x: str) -> str:
    await asyncio.sleep(12)
    return x


@hf.workflow
def ex_outlived() -> str:
    return ex_goes_on_for_long(ex_leaves_it_behind())


def test_a_step_that_acts_after_the_end_of_its_body_is_reported_even_without_a_fault() -> None:
    report = explore(ex_outlived, idempotent=["_ex_ignores_its_cancellation"], stop_at_first=True)
    finding = only(report, Kind.OUTLIVES)
    assert finding.what.endswith("of ex_leaves_it_behind acted after its body had ended")
    assert "let it end when it is cancelled" in finding.advice
    assert finding.where == "without any fault"
