"""Failures: what the journal keeps of an exception, and the exception that it raises again."""

from __future__ import annotations

import json
import subprocess

import pytest

import holdfast as hf
from holdfast.model.errors import StepFailed
from holdfast.model.limits import ERROR_BYTES_MAX
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


def _fetch() -> None:
    raise ConnectionError("no route")


def _pay(wrapped: int = 0) -> None:
    try:
        _fetch() if not wrapped else _pay(wrapped - 1)
    except Exception as error:
        raise LookupError("no price") from error


def test_a_failure_says_what_it_was_raised_from_and_is_raised_again_as_it_was() -> None:
    with pytest.raises(LookupError) as caught:
        _pay()
    info = describe(caught.value)
    assert info.message == "LookupError: no price"
    said = [frame.rpartition(" in ")[2] if " in _" in frame else frame for frame in info.frames]
    assert said[-4:] == [
        '_pay: raise LookupError("no price") from error',
        "because of ConnectionError: no route",
        "_pay: _fetch() if not wrapped else _pay(wrapped - 1)",
        '_fetch: raise ConnectionError("no route")',
    ]
    again = raise_again(info, "step pay")
    assert str(again) == "no price"
    assert "  because of ConnectionError: no route" in again.__notes__


def test_causes_without_an_end_or_of_any_size_are_cut() -> None:
    circle, other = ValueError("one"), ValueError("other")
    circle.__cause__, other.__cause__ = other, circle
    huge = ValueError("x" * 100_000)
    huge.__cause__ = KeyError("y" * 100_000)
    with pytest.raises(LookupError) as caught:
        _pay(wrapped=300)
    for error in (circle, huge, caught.value):
        info = describe(error)
        assert any(frame.startswith("because of ") for frame in info.frames)
        assert sum(len(part.encode()) for part in (info.message, *info.frames, *info.kinds)) <= ERROR_BYTES_MAX
