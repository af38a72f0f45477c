"""Which version a start by name gets: buckets, shares and references, as plain values."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import UsageError
from holdfast.model.limits import BUCKETS
from holdfast.model.rollouts import Target, bucket_of, check_alias, new_target, split, target_of

KEYS = [f"customer-{n}" for n in range(10_000)]


def chosen(target: Target) -> dict[str, int]:
    return {key: target.at(bucket_of("fulfil", "stable", key)) for key in KEYS}


@pytest.mark.parametrize("weights", [{4: 10}, {4: 0.5}, {4: 30, 5: 20}, {4: 100}])
def test_ten_thousand_keys_are_shared_within_the_expected_band(weights: dict[int, float]) -> None:
    """Five standard deviations of a binomial share: a share that is wrong by two per cent is outside."""
    found = Counter(chosen(new_target(3, weights, None)).values())
    for version, percent in {**weights, 3: 100 - sum(weights.values())}.items():
        share = percent / 100
        band = 5 * math.sqrt(len(KEYS) * share * (1 - share))
        assert abs(found[version] - len(KEYS) * share) <= band, (version, found)


@given(
    st.dictionaries(st.integers(4, 9), st.integers(1, 45), min_size=1, max_size=2),
    st.integers(0, 10),
    st.data(),
)
def test_raising_a_weight_only_moves_keys_towards_that_version(
    weights: dict[int, int], more: int, data: st.DataObject
) -> None:
    raised = data.draw(st.sampled_from(sorted(weights)))
    before = new_target(3, weights, None)
    after = new_target(3, {**weights, raised: weights[raised] + more}, before)
    for bucket in range(BUCKETS):
        assert after.at(bucket) in (before.at(bucket), raised)


def test_a_second_version_gets_its_keys_from_the_base_version_only() -> None:
    before = new_target(3, {5: 10}, None)
    after = new_target(3, {4: 20, 5: 10}, before)  # in whatever order they are named
    for bucket in range(BUCKETS):
        assert after.at(bucket) in (before.at(bucket), 4)


def test_a_version_that_becomes_the_base_keeps_its_keys() -> None:
    before = new_target(3, {4: 10}, None)
    assert all(new_target(4, {}, before).at(bucket) == 4 for bucket in range(BUCKETS))


def test_the_bucket_of_a_key_never_changes() -> None:
    """Programs in the field rely on it: another function would move every key once."""
    assert [bucket_of("fulfil", "stable", key) for key in ("a", "b", "order-42")] == [493, 8592, 2292]
    assert bucket_of("fulfil", "canary", "a") != bucket_of("fulfil", "stable", "a")


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({3: 10}, "is the base version"),
        ({4: 60, 5: 50}, "110 %, which is more than 100"),
        ({4: 1, 5: 1, 6: 1}, "at most two others"),
        ({4: 0.001}, "steps of 0.01"),
        ({4: -1}, "from 0 to 100"),
        ({4: 101}, "from 0 to 100"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: dict[int, float], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        new_target(3, weights, None)


def test_a_target_survives_being_stored() -> None:
    target = new_target(3, {4: 10, 5: 0.01}, None)
    assert target_of(target.encode()) == target
    assert target.weights == {4: 10, 5: 0.01}
    assert new_target(3, {4: 0}, target) == Target(3)


@pytest.mark.parametrize(
    ("text", "found"),
    [("fulfil", ("fulfil", None)), ("fulfil@canary", ("fulfil", "canary")), ("fulfil@3", ("fulfil", 3))],
)
def test_a_reference_names_a_workflow_and_perhaps_an_alias_or_a_version(text: str, found: object) -> None:
    assert split(text) == found


@pytest.mark.parametrize("text", ["", "@stable", "fulfil@"])
def test_half_a_reference_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="NAME@ALIAS"):
        split(text)


@pytest.mark.parametrize("alias", ["3", "latest", "", "a b", "a@b", "é", "x" * 64, "-a"])
def test_what_could_be_mistaken_for_a_version_is_no_alias(alias: str) -> None:
    with pytest.raises(UsageError, match="cannot be an alias"):
        check_alias(alias)
