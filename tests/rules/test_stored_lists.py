"""Maps inside loops whose items return what the loop carries: the engine provides their list, and it is stored."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import commands as cmd
from holdfast.model import events as ev
from tests.rules.play import Play, call, looped, mapped, ref

VALUE = ["param", "l", "item"]


def carrying(*after: Any, **options: Any) -> Any:
    """Two rounds of a map whose items return what the loop carries."""
    result = ["dict", "before", VALUE, "n", ref("f")]
    inner = mapped("m", ["const", [1, 2]], call("f", x=["param", "m", "item"]), result=result)
    never = ["gt", ["size", ref("m")], 9]
    return looped("l", 0, never, inner, *after, result=ref("m"), max_visits=2, at_limit="take", **options)


def carried(rounds: int) -> Any:
    value: Any = 0
    for _ in range(rounds):
        value = [{"before": value, "n": n} for n in (1, 2)]
    return value


def test_items_return_what_the_loop_carries_in_their_round() -> None:
    play = Play(carrying(), result=ref("l"))
    play.run({"f": lambda x: x})
    assert play.result == carried(2)
    outputs = [msgspec.json.decode(e.output) for e in play.events(ev.NodeCompleted, node="m")]
    assert outputs == [carried(1), carried(2)]


def without_output(play: Play) -> list[Any]:
    """The engine provides no output of a map from now on; the maps that want it."""
    wanted: list[Any] = []
    play._provide_output = wanted.append  # type: ignore[method-assign]
    return wanted


def provide(play: Play, owner: Any) -> None:
    """The engine provides the output of a map, late."""
    play.tell(cmd.ProvideOutput(*owner.instance, msgspec.json.encode(play._items(*owner.key))))


def test_an_output_that_was_not_yet_provided_is_asked_for_after_a_crash() -> None:
    play = Play(carrying(), result=ref("l"))
    wanted = without_output(play)
    play.run({"f": lambda x: x})
    assert len(wanted) == 1
    assert play.state.status == "running"
    del play._provide_output
    play.crash()
    play.run({"f": lambda x: x})
    assert play.result == carried(2)
    assert play.log == ["f@.l.0.m.0.", "f@.l.0.m.1.", "f@.l.1.m.0.", "f@.l.1.m.1."]


def test_a_run_that_wants_an_output_is_not_suspended() -> None:
    play = Play(call("asks"), carrying(), result=ref("l"))
    play.ask("asks")
    wanted = without_output(play)
    for item in (0, 1):
        play.complete("f", item + 1, f".l.0.m.{item}.")
    assert play.state.status == "running", "it waits for an answer, and for its engine"
    del play._provide_output
    provide(play, wanted[0])
    assert ("f", ".l.1.m.0.") in play.running


def test_an_output_is_provided_once() -> None:
    play = Play(carrying(), result=ref("l"))
    wanted = without_output(play)
    play.run({"f": lambda x: x})
    provide(play, wanted[0])
    assert play.refusal(cmd.ProvideOutput(*wanted[0].instance, b"[]")) == "stale"


def test_an_output_that_comes_when_the_run_is_being_cancelled_completes_nothing() -> None:
    play = Play(call("slow"), carrying(), result=ref("l"))
    wanted = without_output(play)
    for item in (0, 1):
        play.complete("f", item + 1, f".l.0.m.{item}.")
    play.cancel()
    assert play.refusal(cmd.ProvideOutput(*wanted[0].instance, b"[]")) == "stale"
    play.drop("slow")
    assert play.state.status == "cancelled"


def test_an_output_that_comes_after_a_ticket_completes_nothing() -> None:
    play = Play(call("target"), call("goes"), carrying(), result=ref("l"))
    play.complete("target")
    wanted = without_output(play)
    for item in (0, 1):
        play.complete("f", item + 1, f".l.0.m.{item}.")
    play.complete("goes", goto="target")
    assert play.refusal(cmd.ProvideOutput(*wanted[0].instance, b"[]")) == "stale"


def test_an_output_is_provided_while_the_run_is_paused() -> None:
    play = Play(carrying(), result=ref("l"))
    wanted = without_output(play)
    for item in (0, 1):
        play.complete("f", item + 1, f".l.0.m.{item}.")
    play.pause()
    del play._provide_output
    provide(play, wanted[0])
    assert not play.running
    play.resume()
    play.run({"f": lambda x: x})
    assert play.result == carried(2)
