"""sleep, ask, receive and pend: the data that they become, and what is refused while a graph is traced."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.authoring import builtin_nodes
from holdfast.authoring import control_flow as hf
from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import workflow
from holdfast.model.current import current_body
from holdfast.model.definition import Definition
from holdfast.model.errors import HoldfastError, Pended, TraceError, UsageError
from holdfast.model.texts import Escalate


@dataclass
class Order:
    id: str
    amount: int
    patience: float = 60.0


@dataclass
class Decision:
    approved: bool
    note: str = ""


@node
def load(id: str) -> Order: ...


@node
def ship(order: Order, note: str = "") -> str: ...


_numbers = itertools.count()


def graph_of(build: Any, **options: Any) -> Definition:
    return workflow(name=f"waiting_under_test_{next(_numbers)}", **options)(build).definition


def by_id(definition: Definition) -> dict[str, Any]:
    return {n.id: n for n in definition.nodes}


DECISION = {
    "$ref": "#/$defs/Decision",
    "$defs": {
        "Decision": {
            "title": "Decision",
            "type": "object",
            "properties": {"approved": {"type": "boolean"}, "note": {"type": "string", "default": ""}},
            "required": ["approved"],
        }
    },
}


# --- sleep ----------------------------------------------------------------------------------------------------------


def test_sleep_is_a_node_that_can_be_ordered() -> None:
    def build(id: str, pause: float) -> Any:
        order = load(id)
        nap = builtin_nodes.sleep("1h30m", after=order)
        builtin_nodes.sleep(timedelta(seconds=2), after=[order, nap])
        builtin_nodes.sleep(pause)
        return ship.after(nap)(order)

    nodes = by_id(graph_of(build))
    assert (nodes["sleep"].uses, nodes["sleep"].args, nodes["sleep"].after) == (
        "holdfast.sleep",
        {"seconds": 5400.0},
        ("load",),
    )
    assert nodes["sleep_2"].after == ("load", "sleep")
    assert nodes["sleep_3"].args == {"seconds": ["input", "pause"]}
    assert nodes["ship"].after == ("sleep",)


# --- ask ------------------------------------------------------------------------------------------------------------


def test_a_question_is_a_node_whose_output_has_the_type_of_its_answer() -> None:
    def build(id: str) -> Any:
        order = load(id)
        ok = builtin_nodes.ask("Ship?", about=order, schema=Decision, basket="finance", deadline="2d")
        with hf.when(ok.approved):
            return ship(order, ok.note)

    nodes = by_id(graph_of(build))
    ask = nodes["ask"]
    assert (ask.uses, ask.returns) == ("holdfast.ask", DECISION)
    assert ask.args == {
        "question": "Ship?",
        "schema": ["const", DECISION],
        "about": ["node", "load"],
        "basket": "finance",
        "deadline": 172800.0,
    }
    assert nodes["ship"].when == ["get", ["node", "ask"], "approved"]
    assert nodes["ship"].args["note"] == ["get", ["node", "ask"], "note"]


def test_a_field_that_the_answer_does_not_have_is_refused_while_tracing() -> None:
    with pytest.raises(TraceError, match="aproved"):
        graph_of(lambda: builtin_nodes.ask("Ship?", schema=Decision).aproved)


def test_who_is_asked_and_for_how_long_may_come_from_the_run() -> None:
    def build(order: Order, who: str) -> Any:
        return builtin_nodes.ask(
            hf.text("Ship {}?", order.id), assignee=who, basket=hf.text("orders_{}", order.id), deadline=order.patience
        )

    ask = by_id(graph_of(build))["ask"]
    assert ask.args["assignee"] == ["input", "who"]
    assert ask.args["deadline"] == ["get", ["input", "order"], "patience"]
    assert ask.args["question"][0] == ask.args["basket"][0] == "text"


def test_reminders_escalations_and_defaults_are_data() -> None:
    def build() -> Any:
        return builtin_nodes.ask(
            "Ship?",
            schema=Decision,
            deadline=60,
            default=Decision(False),
            remind="1d",
            escalate=[Escalate("2d", assignee="boss"), Escalate(timedelta(days=3), basket="managers")],
        )

    args = by_id(graph_of(build))["ask"].args
    assert args["remind"] == 86400.0
    assert args["escalate"] == [
        "const",
        [{"after": 172800.0, "assignee": "boss"}, {"after": 259200.0, "basket": "managers"}],
    ]
    assert args["default"] == ["const", {"approved": False, "note": ""}]


def test_a_default_may_be_none_and_no_default_is_no_argument() -> None:
    def build() -> Any:
        builtin_nodes.ask("One?", deadline=60, default=None)
        builtin_nodes.ask("Two?", deadline=60)

    nodes = by_id(graph_of(build))
    assert "default" in nodes["ask"].args
    assert nodes["ask"].args["default"] is None
    assert "default" not in nodes["ask_2"].args


def test_questions_have_names_of_their_own_and_can_be_ordered() -> None:
    def build(id: str) -> Any:
        order = load(id)
        first = builtin_nodes.ask("One?", after=order)
        builtin_nodes.ask("Two?", after=[order, first], named="really")

    nodes = by_id(graph_of(build))
    assert set(nodes) == {"load", "ask", "really"}
    assert nodes["really"].after == ("load", "ask")


def test_a_schema_may_be_json_schema_itself() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    ask = by_id(graph_of(lambda: builtin_nodes.ask("How many?", schema=schema)))["ask"]
    assert ask.returns == schema


# --- receive --------------------------------------------------------------------------------------------------------


def test_a_signal_is_a_node_whose_output_is_its_payload() -> None:
    def build(order: Order) -> Any:
        paid = builtin_nodes.receive(
            hf.text("paid-{}", order.id), schema=Decision, deadline="1h", default=Decision(False)
        )
        other = builtin_nodes.receive("other", named="plain", after=paid)
        return [paid.approved, other]

    nodes = by_id(graph_of(build))
    receive = nodes["receive"]
    assert (receive.uses, receive.returns, receive.args["deadline"]) == ("holdfast.receive", DECISION, 3600.0)
    assert receive.args["schema"] == ["const", DECISION]
    assert nodes["plain"].args == {"name": "other"}
    assert nodes["plain"].after == ("receive",)


# --- what is refused ------------------------------------------------------------------------------------------------


class Unmakeable:
    """No JSON value becomes one."""


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: builtin_nodes.sleep("soon"), "not a duration"),
        (lambda: builtin_nodes.sleep(-1), "not a time to wait"),
        (lambda: builtin_nodes.sleep(float("nan")), "not a time to wait"),
        (lambda: builtin_nodes.sleep("9999999d"), "not a time to wait: it is 0 s to 1,000 years"),
        (lambda: builtin_nodes.ask("Well?", deadline="soon"), "not a duration"),
        (lambda: builtin_nodes.ask("Well?", deadline="9999999d"), "not a time to wait"),
        (lambda: builtin_nodes.ask(""), "the question is a text"),
        (lambda: builtin_nodes.ask("x" * 10_001), "at most 10,000"),
        (lambda: builtin_nodes.ask("Well?", assignee=7), "assignee is a name, not 7"),
        (lambda: builtin_nodes.ask("Well?", basket="\ud800"), "cannot be stored"),
        (lambda: builtin_nodes.ask("Well?", escalate="boss"), "not 'boss'"),  # type: ignore[arg-type]
        (lambda: builtin_nodes.ask("Well?", escalate=[Escalate("1d", basket="b"), 7]), "or a list of them"),  # type: ignore[list-item]
        (lambda: builtin_nodes.ask("Well?", remind=0.1), "too often"),
        (lambda: builtin_nodes.ask("Well?", schema=Unmakeable), "a Unmakeable cannot be made from JSON"),
        (lambda: builtin_nodes.ask("Well?", deadline=datetime(2030, 1, 1, tzinfo=UTC)), "no fixed dates"),
        (lambda: builtin_nodes.ask("Well?", default=1), "give deadline="),
        (lambda: builtin_nodes.ask("Well?", schema=int, deadline=1, default="x"), "default"),
        (lambda: builtin_nodes.ask("Well?", schema={"type": "nonsense"}), "cannot be the schema of an answer"),
        (lambda: builtin_nodes.ask("Well?", remind="often"), "not a duration"),
        (lambda: builtin_nodes.receive("go", default=1), "give deadline="),
        (lambda: builtin_nodes.receive(""), "is a name"),
        (lambda: builtin_nodes.receive("go", schema=list[Unmakeable]), "a Unmakeable cannot be made from JSON"),
        (
            lambda: builtin_nodes.receive("go", schema={"$ref": "https://example.org/x"}),
            "cannot be the schema of an answer",
        ),
        (lambda: builtin_nodes.pend("desk"), "belongs in the body of a node"),
    ],
)
def test_wrong_uses_are_refused_with_the_line(build: Any, message: str) -> None:
    with pytest.raises(TraceError, match=rf"^[\w.]+:\d+: .*{message}"):
        graph_of(build)


@pytest.mark.parametrize(
    ("use", "call"),
    [
        (lambda: builtin_nodes.sleep(1), "ctx.sleep"),
        (lambda: builtin_nodes.ask("Well?"), "ctx.ask"),
        (lambda: builtin_nodes.receive("go"), "ctx.receive"),
    ],
)
def test_outside_a_graph_they_say_where_they_belong_and_inside_a_body_name_the_durable_call(
    use: Any, call: str
) -> None:
    with pytest.raises(UsageError, match="belongs in the function of a workflow graph"):
        use()
    token = current_body.set("shop.checkout")
    try:
        with pytest.raises(UsageError, match=rf"inside a body use {call}"):
            use()
    finally:
        current_body.reset(token)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Escalate("2d"), "give assignee="),
        (lambda: Escalate(0, assignee="boss"), "not a time to wait"),
        (lambda: Escalate("later", assignee="boss"), "not a duration"),
        (lambda: Escalate("9999999d", assignee="boss"), "not a time to wait"),
        (lambda: Escalate(float("nan"), assignee="boss"), "not a time to wait"),
        (lambda: Escalate("2d", assignee=7), "assignee is a name, not 7"),  # type: ignore[arg-type]
        (lambda: Escalate("2d", basket=""), "basket is a name"),
    ],
)
def test_an_escalation_that_leads_nowhere_is_refused(make: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        make()


# --- pend -----------------------------------------------------------------------------------------------------------


def test_a_pend_ends_the_body_whatever_catches_errors_in_it() -> None:
    assert not issubclass(Pended, Exception), "a body's `except Exception` must not swallow it"
    with pytest.raises(Pended) as caught:
        builtin_nodes.pend("desk", rerun=True, error="it is down", output=3)
    ended = caught.value
    assert (ended.basket, ended.rerun, ended.error, ended.output) == ("desk", True, "it is down", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"basket": ""}, "the basket is a name"),
        ({"basket": 5}, "the basket is a name"),
        ({"basket": "desk", "error": 5}, "text or an exception"),
        ({"basket": "desk", "rerun": True, "ticket": "reject"}, "would lead elsewhere"),
        ({"basket": "desk", "error": "x", "ticket": "reject"}, "would lead elsewhere"),
    ],
)
def test_a_pend_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        builtin_nodes.pend(**options)
