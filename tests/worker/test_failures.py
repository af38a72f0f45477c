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


class ApiError(Exception):
    def __init__(self, status: int, text: str, response: object = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {"retry-after": [1, 2]}
        self.response = response


def test_attributes_that_are_json_are_kept_and_others_are_not() -> None:
    again = raise_again(describe(ApiError(429, "slow", response=object())), "step call")
    assert isinstance(again, ApiError)
    assert (again.status, again.headers, again.args) == (429, {"retry-after": [1, 2]}, ("slow",))
    assert not hasattr(again, "response")
    assert describe(again).attributes == {"status": 429, "headers": {"retry-after": [1, 2]}}


def test_what_an_exception_of_the_library_carries_is_kept() -> None:
    missing = raise_again(describe(FileNotFoundError(2, "No such file", "/nowhere")), "step read")
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (2, "/nowhere")
    failed = raise_again(describe(subprocess.CalledProcessError(3, ["false"], "out")), "step call")
    assert isinstance(failed, subprocess.CalledProcessError)
    assert (failed.returncode, failed.cmd, failed.stdout) == (3, ["false"], "out")


def test_a_failed_child_that_a_step_passes_on_keeps_its_error() -> None:
    info = describe(hf.ChildFailed("it has failed", run_id="c", error=describe(ValueError("no"))))
    again = raise_again(info, "step start")
    assert isinstance(again, hf.ChildFailed)
    assert (again.run_id, again.error.message) == ("c", "ValueError: no")


def test_what_a_failure_carries_is_bounded() -> None:
    error = ApiError(500, "broken")
    error.headers = {"x": ["y" * 20_000]}
    info = describe(error)
    assert info.attributes == {"status": 500, "response": None}
    long_named = type("L" * 5_000_000, (ValueError,), {})
    info = describe(long_named("no"))
    assert sum(map(len, info.kinds)) <= ERROR_BYTES_MAX // 4
    assert len(info.message) <= ERROR_BYTES_MAX
    assert "ValueError" in info.kinds


def test_fail_carries_data_and_says_when_it_cannot() -> None:
    info = describe(hf.Fail("sold out", details={"left": 0}))
    assert info.details == {"left": 0}
    again = raise_again(info, "step book")
    assert isinstance(again, hf.Fail)
    assert again.details == {"left": 0}
    for details in (object(), "x" * 20_000):
        info = describe(hf.Fail("sold out", details=details))
        assert info.details is None
        assert "sold out (its details are not kept" in info.message
        assert "details are not kept" in str(raise_again(info, "step book"))


def test_frames_of_the_step_are_told_again_when_the_body_fails_with_it() -> None:
    with pytest.raises(ConnectionError) as caught:
        _fetch()
    again = raise_again(describe(caught.value), "step fetch")
    assert any("in _fetch: " in frame for frame in describe(again).frames)


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
