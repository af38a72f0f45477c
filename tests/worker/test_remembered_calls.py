"""Remembered calls (SEMANTICS 8): which record answers which call, under every order and every change of the code."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model import events as ev
from holdfast.model import journal_format
from holdfast.model.errors import DuplicateKey, StepMismatch
from holdfast.worker.recorded_calls import Call
from holdfast.worker.replay import Replay, idempotency_key

ROOT = Path(__file__).resolve().parents[2]


def completed(call: Call, output: Any) -> tuple[str, bytes]:
    """The event of a finished call, as the store gives it back."""
    event = ev.StepCompleted(
        call.scope,
        call.position,
        call.kind,
        call.name,
        call.digest,
        msgspec.Raw(msgspec.json.encode(output)),
        call.key,
    )
    return "StepCompleted", journal_format.encode(event)


def first_life(*calls: tuple[str, Any]) -> tuple[list[Call], list[tuple[str, bytes]]]:
    """A body that made these calls (name, argument), each of which returned its own number."""
    replay = Replay()
    made = [replay.call("", "step", name, arg, None) for name, arg in calls]
    return made, [completed(call, i) for i, call in enumerate(made)]


def second_life(rows: list[tuple[str, bytes]], *calls: tuple[str, Any]) -> list[Any]:
    """What the same or a changed body gets for these calls; "new" for a call that nothing answers."""
    replay = Replay.read(rows)
    made = [replay.call("", "step", name, arg, None) for name, arg in calls]
    return [answer(replay, call) for call in made]


def answer(replay: Replay, call: Call) -> Any:
    recorded = replay.recall(call)
    if recorded is None:
        return "new"
    assert recorded.output is not None
    return msgspec.json.decode(recorded.output)


def test_the_same_calls_get_the_same_answers() -> None:
    _, rows = first_life(("a", 1), ("b", 2), ("a", 1))
    assert second_life(rows, ("a", 1), ("b", 2), ("a", 1)) == [0, 1, 2]


def test_the_order_in_which_results_were_recorded_does_not_matter() -> None:
    calls = [("a", 1), ("b", 2), ("a", 1), ("c", 3)]
    made, rows = first_life(*calls)
    for seed in range(1000):
        chance = random.Random(seed)
        shuffled = rows[:]
        chance.shuffle(shuffled)
        cut = chance.randrange(len(rows) + 1)
        replay = Replay.read(shuffled[:cut])
        known = {row[1] for row in shuffled[:cut]}
        again = [replay.call("", "step", name, arg, None) for name, arg in calls]
        order = list(range(len(calls)))
        chance.shuffle(order)
        answers = {i: answer(replay, again[i]) for i in order}
        for i in range(len(calls)):
            # equal calls may answer for one another; a call is new only if fewer equal ones are known than were made
            equal = [j for j in range(len(calls)) if calls[j] == calls[i]]
            got = [answers[j] for j in equal]
            expected = [j for j in equal if rows[j][1] in known]
            assert sorted(x for x in got if x != "new") == expected
        assert [c.step_key for c in again] == [c.step_key for c in made]


def test_lanes_that_overtake_each_other_get_their_own_answers() -> None:
    _, rows = first_life(("fetch", "x"), ("fetch", "y"))
    assert second_life(rows, ("fetch", "y"), ("fetch", "x")) == [1, 0]


def test_a_removed_call_is_a_mismatch_or_answered_by_what_agrees_and_never_wrong() -> None:
    _, rows = first_life(("a", 1), ("b", 2), ("c", 3))
    assert second_life(rows, ("b", 2), ("c", 3)) == [1, 2]


def test_an_added_call_in_front_is_a_mismatch() -> None:
    _, rows = first_life(("a", 1), ("b", 2))
    with pytest.raises(StepMismatch, match=r"'z'.*'a'"):
        second_life(rows, ("z", 9), ("a", 1))


def test_an_added_call_at_the_end_is_new() -> None:
    _, rows = first_life(("a", 1))
    assert second_life(rows, ("a", 1), ("z", 9)) == [0, "new"]


@pytest.mark.parametrize(("now", "differs"), [(("renamed", 1), "the function"), (("a", 99), "the arguments")])
def test_a_changed_call_says_what_differs_and_the_ways_on(now: tuple[str, Any], differs: str) -> None:
    _, rows = first_life(("a", 1))
    with pytest.raises(StepMismatch, match=differs) as caught:
        second_life(rows, now)
    for way in ("ctx.keyed", "ctx.now()", "fork", "old code"):
        assert way in str(caught.value)


def test_equal_calls_made_together_keep_their_own_places_whichever_is_awaited_first() -> None:
    """The second of two equal lanes was not remembered: it must not take the memory of the first."""
    _, rows = first_life(("a", 1), ("a", 1))
    replay = Replay.read(rows[:1])
    first, second = (replay.call("", "step", "a", 1, None) for _ in range(2))
    assert [answer(replay, second), answer(replay, first)] == ["new", 0]


def test_an_equal_call_that_came_too_late_for_its_memo_is_new_and_both_are_remembered_apart() -> None:
    made, rows = first_life(("a", 1))
    replay = Replay.read(rows)
    replay._scope("").next_position = 1  # the code now calls it first from another place
    other = replay.call("", "step", "a", 1, None)
    assert answer(replay, other) == 0
    assert answer(replay, made[0]) == "new"
    third = Replay.read([*rows, completed(made[0], "second")])
    third._scope("").next_position = 1
    assert answer(third, third.call("", "step", "a", 1, None)) == 0
    assert answer(third, made[0]) == "second"


def test_a_memo_answers_one_call_only() -> None:
    _, rows = first_life(("a", 1))
    assert second_life(rows, ("a", 1), ("a", 1)) == [0, "new"]


def test_a_key_finds_its_memo_wherever_the_call_stands_and_whatever_it_is_given() -> None:
    replay = Replay()
    made = replay.call("", "step", "charge", 5, "charge")
    again = Replay.read([completed(made, "done")])
    again.call("", "step", "other", 1, "other")
    call = again.call("", "step", "charge", 6, "charge")
    assert answer(again, call) == "done"


def test_the_idempotency_key_of_a_keyed_call_does_not_depend_on_its_scope() -> None:
    made = [Replay().call(scope, "step", "charge", arg, "k") for scope, arg in (("", 5), ("t.1/", 5), ("", 6))]
    assert made[0].step_key == made[1].step_key
    assert made[0].step_key != made[2].step_key


def test_a_keyed_call_finds_its_memo_in_another_scope_and_what_follows_is_told_of_that_memo() -> None:
    made = Replay().call("t.1/", "step", "charge", 5, "k")
    again = Replay.read([completed(made, "done")])
    call = again.call("t.2/", "step", "charge", 5, "k")
    assert answer(again, call) == "done"
    assert (call.scope, call.position) == ("t.1/", 0)


def test_a_keyed_call_in_another_scope_with_other_arguments_is_new() -> None:
    made = Replay().call("t.1/", "step", "charge", 5, "k")
    again = Replay.read([completed(made, "done")])
    assert answer(again, again.call("t.2/", "step", "charge", 6, "k")) == "new"


def test_one_key_in_two_scopes_is_refused_until_a_checkpoint() -> None:
    replay = Replay()
    replay.call("t.1/", "step", "charge", 5, "k")
    with pytest.raises(DuplicateKey, match=r"scope 't.2/'.*scope 't.1/'"):
        replay.call("t.2/", "step", "charge", 5, "k")
    replay.close(b"1")
    replay.call("t.2/", "step", "charge", 5, "k")


def test_a_key_that_names_another_function_is_a_mismatch() -> None:
    replay = Replay()
    made = replay.call("", "step", "charge", 5, "k")
    again = Replay.read([completed(made, "done")])
    with pytest.raises(StepMismatch):
        again.recall(again.call("", "step", "refund", 5, "k"))


def test_idempotency_keys_survive_reordering_and_tell_equal_calls_apart() -> None:
    def keys(*calls: tuple[str, Any]) -> list[str]:
        replay = Replay()
        made = [replay.call("", "step", name, arg, None) for name, arg in calls]
        return [idempotency_key("r", 1, "n", ".", 1, call.step_key) for call in made]

    a1, a2, b = keys(("a", 1), ("a", 1), ("b", 1))
    assert len({a1, a2, b}) == 3
    assert keys(("b", 1), ("a", 1), ("a", 1)) == [b, a1, a2]


def test_arguments_that_cannot_be_encoded_go_by_their_place() -> None:
    _, rows = first_life(("a", object()), ("a", object()))
    assert second_life(rows, ("a", object()), ("a", object())) == [0, 1]


def test_a_failed_step_is_tried_again_by_the_next_attempt_and_a_completed_one_is_not() -> None:
    replay = Replay()
    good, bad = replay.call("", "step", "good", 1, None), replay.call("", "step", "bad", 2, None)
    failed = ev.StepFailed(
        bad.scope, bad.position, bad.kind, bad.name, bad.digest, ev.ErrorInfo("error", "no"), None, 1, None
    )
    node_failed = ev.NodeFailed(1, ev.ErrorInfo("error", "no"), retryable=True)
    rows = [
        completed(good, 0),
        ("StepFailed", journal_format.encode(failed)),
        ("NodeFailed", journal_format.encode(node_failed)),
    ]
    assert second_life(rows, ("good", 1), ("bad", 2)) == [0, "new"]


def test_a_checkpoint_forgets_what_came_before_it() -> None:
    made, rows = first_life(("a", 1), ("b", 2))
    checkpoint = ev.NodeCheckpointed(msgspec.Raw(b"7"), {}, 1)
    replay = Replay.read([*rows, ("NodeCheckpointed", journal_format.encode(checkpoint))])
    assert (replay.checkpoint, replay.checkpoints, replay.calls) == (b"7", 1, 0)
    call = replay.call("", "step", "a", 1, None)
    assert replay.recall(call) is None
    assert call.step_key != made[0].step_key


SETS = """
from holdfast.worker.replay import Replay
replay = Replay()
items = {"cherry", "apple", "banana", "date", "elder"}
print(replay.call("", "step", "f", (items,), None).step_key)
for item in items:
    print(item, replay.call("", "step", "each", item, None).step_key)
"""


def test_a_set_gives_the_same_digest_under_every_hash_seed() -> None:
    def under(seed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", SETS],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )
        return done.stdout.splitlines()

    one, two = under("1"), under("2")
    assert one[0] == two[0]
    assert sorted(one[1:]) == sorted(two[1:])
    assert one[1:] != two[1:], "the two seeds happen to give the same order: choose others"
