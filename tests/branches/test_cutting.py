"""Where a branch is cut, as rules: plain values in, plain values out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.lineage import Branch, ancestry, branches_of, carried, fold, inherited, lineage
from holdfast.model.naming import instance_text, parse_instance
from holdfast.model.state import RunState
from holdfast.rules import branch_cut
from holdfast.rules.branch_opening import Asked, Edits, Opening, begin, leave
from holdfast.rules.draft import Draft, Refusal
from tests.rules.play import SECOND, Play, call, looped, mapped, ref


def chosen(play: Play, kind: str, target: Any = None, edits: Edits | None = None) -> Opening:
    head = fold(play.plan, 1, "run-1", play.entries)
    return branch_cut.choose(kind, Asked(target, edits=edits or Edits()), play.entries, head, play.plan)


def base_of(play: Play, opening: Opening) -> RunState:
    branch = opening.as_branch(2, 1, 1, "")
    return fold(play.plan, 1, "run-1", inherited(play.entries, branch, play.plan))


def statuses(state: RunState) -> dict[str, str]:
    return {instance_text(ns.node, ns.path): str(ns.status) for ns in state.changed}


def chain(**settings: Any) -> Play:
    return Play(call("a"), call("b", x=ref("a")), call("c", x=ref("b")), call("d", x=ref("a")), **settings)


def test_dropping_a_node_drops_everything_downstream_by_data_condition_and_order() -> None:
    play = Play(
        call("a"),
        call("data", x=ref("a")),
        call("asked", when=["not", ["is_none", ref("a")]]),
        call("ordered", after=("a",)),
        call("behind", x=ref("data")),
        call("free"),
    )
    play.run()
    opening = chosen(play, "fork", "a")
    assert opening.dropped == ("a",), "roots only"
    assert statuses(base_of(play, opening)) == {"free": "completed"}


def test_a_cut_behind_an_event_drops_nothing() -> None:
    play = chain()
    play.run()
    completed = next(e for e in play.entries if isinstance(e.event, ev.NodeCompleted))
    opening = chosen(play, "fork", completed.seq)
    assert (opening.cutoff_seq, opening.dropped, opening.reopened) == (completed.seq, (), ())
    assert [e.seq for e in inherited(play.entries, opening.as_branch(2, 1, 1, ""), play.plan)] == list(
        range(1, completed.seq + 1)
    )


def test_others_cut_just_before_the_end_of_the_run() -> None:
    play = chain()
    play.run()
    assert isinstance(play.entries[-1].event, ev.RunCompleted)
    assert chosen(play, "jump", "c").cutoff_seq == play.entries[-2].seq
    assert chosen(play, "fork", "c").cutoff_seq == play.entries[-2].seq


def test_retry_reopens_what_failed_and_what_was_cancelled_because_of_it() -> None:
    play = chain()
    play.complete("a", 1)
    play.fail("b")
    assert play.told_to_stop == [("d", ".")]
    play.drop("d")
    opening = chosen(play, "retry")
    assert set(opening.reopened) == {"b", "d"}
    assert opening.dropped == ()
    base = base_of(play, opening)
    assert statuses(base) == {"a": "completed", "b": "running", "d": "running"}
    assert base.nodes["b", "."].failures == 0


def test_what_stays_failed_keeps_what_was_stopped_inside_it() -> None:
    """Two maps failed under `continue`; one of them is retried."""
    items = ["const", [1, 2]]
    play = Play(mapped("m", items, call("x")), mapped("n", items, call("y")), on_failure="continue")
    play.fail("x", path=".m.0.")
    play.drop("x", path=".m.1.")
    play.fail("y", path=".n.0.")
    play.drop("y", path=".n.1.")
    opening = chosen(play, "retry", "x@.m.0.")
    assert set(opening.reopened) == {"x@.m.0.", "m", "x@.m.1."}
    assert statuses(base_of(play, opening))["y@.n.1."] == "cancelled"
    whole = chosen(play, "retry", "m")
    assert set(whole.reopened) == set(opening.reopened), "the map is what failed inside it"
    assert set(chosen(play, "retry").reopened) == {"x@.m.0.", "m", "x@.m.1.", "y@.n.0.", "n", "y@.n.1."}


def test_what_was_skipped_for_another_reason_stays_skipped() -> None:
    """In both items y needs x; in one x failed, in the other it was skipped by its condition."""
    play = Play(
        mapped(
            "m",
            ["const", [1, 2]],
            call("x", when=["gt", ["param", "m", "item"], 1], item=["param", "m", "item"]),
            call("y", x=ref("x")),
            call("z", x=["first", ref("y"), 0]),
        ),
        on_failure="continue",
    )
    while play.running:
        node, path = next(iter(play.running))
        if node == "x":
            play.fail(node, path=path)
        else:
            play.complete(node, 1, path)
    opening = chosen(play, "retry")
    assert opening.dropped == (), "x failed the map itself; nothing in the other item was skipped because of it"
    assert statuses(base_of(play, opening))["y@.m.0."] == "skipped"
    assert statuses(base_of(play, opening))["z@.m.0."] == "completed"


def test_a_node_inside_a_round_takes_the_later_rounds_and_what_follows_the_loop_with_it() -> None:
    until = ["ge", ref("x", "n"), 3]
    play = Play(
        looped("l", 0, until, call("x", item=["param", "l", "item"])),
        call("after", x=ref("l")),
        call("free"),
    )
    for n in (1, 2, 3):
        play.complete("x", {"n": n}, f".l.{n - 1}.")
    play.run()
    opening = chosen(play, "jump", "x@.l.1.")
    base = base_of(play, opening)
    assert statuses(base) == {"x@.l.0.": "completed", "l": "running", "free": "completed"}
    counters = base.nodes["l", "."].counters
    assert counters is not None
    assert (len(counters.done), counters.opened) == (1, 1)


@pytest.mark.parametrize("inside", ["the round", "the end of the loop"])
def test_a_cut_does_not_separate_the_end_of_a_round_from_that_of_its_loop(inside: str) -> None:
    play = Play(
        looped("l", 0, ["ge", ref("x", "n"), 1], call("x", item=["param", "l", "item"])), call("after", x=ref("l"))
    )
    play.complete("x", {"n": 1}, ".l.0.")
    play.run()
    kind = ev.NodeCompleted if inside == "the round" else ev.ScopeClosed
    at = next(e.seq for e in play.entries if isinstance(e.event, kind))
    assert statuses(base_of(play, chosen(play, "fork", at)))["l"] == "completed"


def test_a_jump_forward_skips_what_is_not_there_and_keeps_what_is() -> None:
    play = chain()
    play.complete("a", 1)
    opening = chosen(play, "jump", "c", Edits(outputs={"b": None}))  # type: ignore[dict-item]
    assert (opening.enter, opening.skipped, opening.dropped) == ("c", (), ("b",))
    passed = chosen(play, "jump", "c")
    assert (passed.skipped, passed.dropped) == (("b",), ("b",))


def test_refusals_say_what_to_do() -> None:
    play = chain()
    play.run()
    for kind, target, code in [
        ("fork", "nobody", "unknown_node"),
        ("fork", "a@.m.0.", "unknown_instance"),
        ("fork", 99, "unknown_event"),
        ("jump", None, "no_target"),
        ("retry", None, "nothing_failed"),
        ("retry", "a", "not_failed"),
    ]:
        with pytest.raises(Refusal) as refused:
            chosen(play, kind, target)
        assert refused.value.code == code


def test_a_bare_name_is_the_top_level_node_else_the_only_instance_else_a_list() -> None:
    play = Play(mapped("m", ["const", [1, 2]], call("m"), call("x")), mapped("one", ["const", [1]], call("y")))
    play.run()
    head = fold(play.plan, 1, "run-1", play.entries)
    assert branch_cut.find("m", head, play.plan) == ("m", ".", 1)
    assert branch_cut.find("y", head, play.plan) == ("y", ".one.0.", 1)
    assert branch_cut.find("m@.m.1.", head, play.plan) == ("m", ".m.1.", 1)
    with pytest.raises(Refusal, match=r"x has 2 instances, name one of them: x@\.m\.0\., x@\.m\.1\."):
        branch_cut.find("x", head, play.plan)


@pytest.mark.parametrize("text", ["charge", "charge@.pick.3.", "charge@.pick.3.#2", "charge@.#2", "a~undo"])
def test_instances_are_read_as_they_are_written(text: str) -> None:
    assert instance_text(*parse_instance(text)) == text


@pytest.mark.parametrize("text", ["", "@.a.0.", "a@b", "a@.b", "a#", "a#0", "a#x"])
def test_what_is_no_instance_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_instance(text)


def test_what_a_branch_left_out_stays_out_of_those_that_are_cut_below_it() -> None:
    tree = {
        1: Branch(1),
        2: Branch(2, 1, 20, dropped=("b",), reopened=("c",)),
        3: Branch(3, 2, 30, dropped=("d",)),
    }
    assert [b.branch for b in ancestry(tree, 3)] == [1, 2, 3]
    line = [ev.Entry(5, 0, ev.NodeScheduled(1), "c", ".")]
    assert carried(tree, 3, 3, line) == ([], [])
    assert carried(tree, 3, 2, line) == (["d"], [])
    assert carried(tree, 3, 1, line) == (["b", "d"], ["c"])
    assert carried(tree, 3, 1, []) == (["b", "d"], []), "what had not begun is not reopened"


def test_a_lineage_is_the_parents_up_to_the_cut_less_what_is_dropped_then_its_own() -> None:
    play = chain()
    play.run()
    last = play.entries[-2].seq
    opened = ev.Entry(last + 3, 0, ev.BranchOpened(2, 1, last, 1, "fork", ("b",)), branch=2)
    entries = [*play.entries, ev.Entry(last + 2, 0, ev.ForkRequested("b", 2)), opened]
    assert branches_of(entries)[2].dropped == ("b",)
    line = lineage(entries, 2, lambda version: play.plan)
    assert [e.node for e in line if isinstance(e.event, ev.NodeCompleted)] == ["a", "d"]
    assert line[-1] is opened
    assert lineage(entries, 1, lambda version: play.plan) == entries[:-1]


def test_every_visit_of_a_node_can_be_named_also_the_first() -> None:
    play = Play(call("a"), call("b", x=["node", "a"]))
    play.complete("a")
    play.complete("b", goto="a")
    play.run()
    head = fold(play.plan, 1, "run-1", play.entries)
    with pytest.raises(Refusal, match=r"a has 2 instances, name one of them: a#1, a#2"):
        branch_cut.find("a", head, play.plan)
    assert branch_cut.find("a#1", head, play.plan) == ("a", ".", 1)
    assert branch_cut.find("a#2", head, play.plan) == ("a", ".", 2)


# --- waits at a cut ------------------------------------------------------------------------------------------------


def opened(play: Play, at: int | None = None) -> tuple[list[str], RunState]:
    """The events that leave a branch and open the next by a fork at an event, and the state that it begins with."""
    opening = chosen(play, "fork", at)
    base = base_of(play, opening)
    draft = Draft(play.state, play.now)
    leave(draft, base, ev.ForkRequested("x", 2), same_keys=False)
    begin(draft, base, opening, opening.as_branch(2, 2, 1, ""), Edits())
    return [type(entry.event).__name__ for entry in draft.entries], draft.state


def reminded() -> tuple[Play, str]:
    play = Play(call("a"), result=ref("a"))
    wait_id = play.ask("a", remind=60, escalate=[{"after": 3600, "assignee": "boss"}])
    play.suspend("a")
    return play, wait_id


def test_a_question_goes_on_with_its_reminders_where_none_came_behind_the_cut() -> None:
    play, wait_id = reminded()
    timers = dict(play.state.timers)
    said, state = opened(play)
    assert said == ["ForkRequested", "BranchOpened"]
    assert (list(state.waits), state.timers) == ([wait_id], timers)


def test_a_question_of_which_somebody_was_reminded_behind_the_cut_is_asked_anew_with_all_its_timers() -> None:
    play, wait_id = reminded()
    here = play.state.seq
    play.now += 61 * SECOND
    play.due()
    assert [e.after["reminders"] for e in play.events(ev.RunEdited)] == [1]
    said, state = opened(play, here)
    assert said.count("WaitClosed") == 2, "on the branch that is left, and on the new one"
    assert (state.waits, state.timers) == ({}, {})
    assert state.nodes["a", "."].waits == (), "its body goes on, and asks"
    assert wait_id not in state.timers
