"""Failures: what the journal keeps of an exception, and the exception that it raises again."""

from __future__ import annotations

import json
import subprocess

import pytest

import holdfast as hf
from holdfast.model.errors import StepFailed
from holdfast.worker.failures import describe, raise_again


class Declined(Exception):
    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")


class Worded(Exception):
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __str__(self) -> str:
        return f"{self.amount} is too much"


class Order:
    class Missing(Exception):
        pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError("no", 3),
        KeyError("key"),
        TimeoutError(),
        FileNotFoundError(2, "No such file", "/nowhere"),
        json.JSONDecodeError("bad", "{", 1),
        subprocess.CalledProcessError(1, ["false"]),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start"),
        Declined(402, why="no money"),
        Worded(9),
        Order.Missing(7),
        hf.Fail("never", retryable=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_remembered_failure_is_caught_by_its_own_class_and_reads_as_before(error: Exception) -> None:
    info = describe(error)
    again = raise_again(info, "step pay")
    assert isinstance(again, type(error))
    assert str(again) == str(error)
    assert describe(again).kinds == info.kinds
    assert describe(again).retryable == info.retryable


def test_a_failure_of_a_class_that_is_not_loaded_is_a_failed_step() -> None:
    class Local(Exception):
        pass

    again = raise_again(describe(Local("gone")), "step pay")
    assert isinstance(again, StepFailed)
    assert "Local: gone" in str(again)


def test_a_group_says_what_is_in_it() -> None:
    def fetch() -> None:
        raise ConnectionError("no route")

    try:
        try:
            fetch()
        except ConnectionError as inner:
            raise ExceptionGroup("unhandled errors in a TaskGroup", [inner, ValueError("no")]) from None
    except ExceptionGroup as group:
        info = describe(group)
    assert info.message == (
        "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ConnectionError: no route; ValueError: no"
    )
    assert " in fetch: " in info.frames[-1]
