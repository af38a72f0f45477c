"""Retry policies and durations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput, UsageError
from holdfast.model.limits import DELAY_SECONDS_MAX
from holdfast.model.policies import Retry, class_names, delay_seconds, qualified_name, seconds


class Declined(ConnectionError):
    pass


def test_exception_classes_are_stored_as_qualified_names() -> None:
    retry = Retry(attempts=3, on=(ConnectionError, Declined, "shop.Late"), never=(KeyError,))
    assert retry.on == ("ConnectionError", f"{__name__}.Declined", "shop.Late")
    assert retry.never == ("KeyError",)


def test_a_subclass_matches_by_the_names_of_its_bases() -> None:
    kinds = class_names(Declined)
    assert kinds == (f"{__name__}.Declined", "ConnectionError", "OSError", "Exception")
    assert Retry(on=(ConnectionError,)).applies(kinds, None)
    assert not Retry(on=(KeyError,)).applies(kinds, None)
    assert not Retry(never=(OSError,)).applies(kinds, None)
    assert Retry().applies(kinds, None)


def test_the_word_of_the_body_wins_over_the_classes() -> None:
    kinds = class_names(KeyError)
    assert not Retry(on=(KeyError,)).applies(kinds, False)
    assert Retry(never=(KeyError,)).applies(kinds, True)


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    retry = Retry(backoff=0.5, factor=3, max_delay=10, jitter=0)
    assert [retry.delay_seconds(n, "seed") for n in range(1, 6)] == [0.5, 1.5, 4.5, 10, 10]


@given(st.integers(1, 10_000), st.floats(0, 1), st.text(max_size=20))
def test_jitter_only_takes_off_and_is_the_same_for_the_same_seed(failures: int, jitter: float, seed: str) -> None:
    retry = Retry(backoff=1, factor=2, max_delay=60, jitter=jitter)
    delay = retry.delay_seconds(failures, seed)
    full = min(60.0, 2.0 ** min(failures - 1, 64))
    assert full * (1 - jitter) <= delay * (1 + 1e-9)
    assert delay <= full
    assert delay == retry.delay_seconds(failures, seed)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (90, 90.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        ("1w", 604800.0),
        ("1.5m", 90.0),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_durations_as_people_write_them(duration: Any, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize("wrong", ["", "soon", "10", "10x", "1h,2m", "-5s", None, True, [1]])
def test_what_is_no_duration_is_refused_with_examples(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a duration: use seconds"):
        seconds(wrong)


def test_builtin_classes_are_named_without_their_module() -> None:
    assert qualified_name(ValueError) == "ValueError"
    assert qualified_name(Declined) == f"{__name__}.Declined"


@pytest.mark.parametrize(
    ("duration", "shown"),
    [
        (-1, "-1"),
        (float("nan"), "nan"),
        (10**400, "inf"),
        ("9999999d", "'9999999d'"),
        (timedelta(days=-1), "datetime.timedelta"),
        ("9" * 500 + "w", "'99999"),
    ],
)
def test_a_time_to_wait_is_not_negative_and_not_longer_than_a_calendar(duration: Any, shown: str) -> None:
    with pytest.raises(UsageError, match=f"^nap: {shown}.{{0,60}} is not a time to wait: it is 0 s to 1,000 years$"):
        delay_seconds(duration, "nap")


def test_a_time_to_wait_is_taken_to_its_bounds() -> None:
    assert delay_seconds(0, "nap") == 0
    assert delay_seconds(DELAY_SECONDS_MAX, "nap") == DELAY_SECONDS_MAX
    assert delay_seconds("2d", "nap") == 172_800
