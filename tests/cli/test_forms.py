"""Forms on the terminal: what is asked, how it is read, and what happens to a wrong entry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from holdfast.cli.forms import fill
from holdfast.model.answers import problems, schema_of
from holdfast.model.errors import UsageError
from holdfast.model.values import decoder, encode


class Terminal:
    """Somebody who types these lines; what was shown is in `shown`. After the last line comes Ctrl-D."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.shown: list[str] = []

    def ask(self, prompt: str) -> str:
        self.shown.append(prompt)
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def fill(self, schema: Any) -> Any:
        answer = fill(schema, self.ask, self.shown.append)
        assert self.lines == [], "the form asked for less"
        assert problems(schema, encode(answer)) == []
        return answer

    @property
    def text(self) -> str:
        return "\n".join(self.shown)


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


# --- one line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "entry", "value", "prompt"),
    [
        ({"type": "boolean"}, "yes", True, "answer (yes/no): "),
        ({"type": "boolean"}, "N", False, "answer (yes/no): "),
        ({"type": "integer"}, "12", 12, "answer (a whole number): "),
        ({"type": "number", "minimum": 1, "maximum": 5}, " 1.5 ", 1.5, "answer (a number from 1 to 5): "),
        ({"type": "integer", "minimum": 1}, "2", 2, "answer (a whole number, at least 1): "),
        ({"type": "integer", "maximum": 9}, "2", 2, "answer (a whole number, at most 9): "),
        ({"type": "string"}, "12", "12", "answer (text): "),
        ({"type": "string"}, '""', "", "answer (text): "),
        ({"type": "string", "format": "date"}, "2026-11-15", "2026-11-15", "answer (a date, as 2030-12-31): "),
        ({"type": ["string", "null"]}, "", None, "answer (text, optional): "),
        ({"type": ["string", "null"]}, "null", None, "answer (text, optional): "),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "", None, "answer (a whole number, optional): "),
        ({"type": "string", "default": "red"}, "", "red", "answer (text) [red]: "),
        ({"type": "boolean", "default": False}, "", False, "answer (yes/no) [no]: "),
        ({"enum": [1, 2, 5]}, "2", 2, "answer (one of 1, 2, 5): "),
        ({"type": ["integer", "string"]}, "12", 12, "answer (JSON or text): "),
        ({"type": ["integer", "string"]}, "1.5", "1.5", "answer (JSON or text): "),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x", "x", "answer (JSON or text): "),
        (None, "some words", "some words", "answer (JSON or text): "),
        (None, '{"a": 1}', {"a": 1}, "answer (JSON or text): "),
        ({}, "yes", "yes", "answer (JSON or text): "),
        ({"type": "object"}, '{"a": 1}', {"a": 1}, "answer (JSON, on one line): "),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "{}", {}, "answer (JSON, on one line): "),
        ({"oneOf": [obj("a", a={}), obj("b", b={})]}, '{"b": 1}', {"b": 1}, "answer (JSON, on one line): "),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, "[1]", [1], "answer (JSON, on one line): "),
    ],
)
def test_one_line_is_asked_for_and_read(schema: Any, entry: str, value: Any, prompt: str) -> None:
    terminal = Terminal(entry)
    assert terminal.fill(schema) == value
    assert terminal.shown == [prompt]


@pytest.mark.parametrize(
    ("schema", "entry", "right", "said"),
    [
        ({"type": "boolean"}, "perhaps", "no", '✗ "perhaps" is neither yes nor no'),
        ({"type": "integer"}, "many", "1", '✗ "many" is not a number'),
        ({"type": "integer"}, "1.5", "1", '✗ 1.5 is not of type "integer"'),
        ({"type": "integer"}, "true", "1", '✗ "true" is not a number'),
        ({"type": "number", "maximum": 5}, "7", "5", "✗ 7 is greater than the maximum of 5"),
        ({"type": "string"}, "", "x", '✗ an answer is needed ("" is the empty text)'),
        ({"type": "string", "format": "date"}, "today", "2026-11-15", '✗ "today" is not a "date"'),
        ({"enum": [1, 2]}, "3", "1", "✗ 3 is not one of 1, 2"),
        ({"enum": ["a", "b"]}, "3", "2", '✗ "3" is not on the list: give a number from 1 to 2'),
        ({"type": "object"}, "{a}", "{}", "✗ this is not JSON"),
        ({"type": "object"}, "[]", "{}", '✗ [] is not of type "object"'),
    ],
)
def test_a_wrong_entry_is_said_at_once_and_asked_again(schema: Any, entry: str, right: str, said: str) -> None:
    terminal = Terminal(entry, right)
    terminal.fill(schema)
    assert terminal.shown[-1] == terminal.shown[-3]
    assert said in terminal.shown[-2]


@pytest.mark.parametrize("entry", ["2", "green", "GREEN"])
def test_a_choice_is_shown_with_numbers_and_taken_by_number_or_name(entry: str) -> None:
    terminal = Terminal(entry)
    assert terminal.fill({"enum": ["red", "green"]}) == "green"
    assert terminal.shown == ["   1  red", "   2  green", "answer (one of the list): "]


def test_choices_with_titles_show_the_titles() -> None:
    schema = {"oneOf": [{"const": "r", "title": "Reject"}, {"const": "a", "title": "Accept"}], "default": "r"}
    terminal = Terminal("")
    assert terminal.fill(schema) == "r"
    assert terminal.shown == ["   1  Reject", "   2  Accept", "answer (one of the list) [Reject]: "]
    assert Terminal("accept").fill(schema) == "a"


def test_choices_that_look_alike_are_kept_apart_by_their_numbers() -> None:
    assert Terminal("2").fill({"enum": ["x", "3", 3, None]}) == "3"
    assert Terminal("").fill({"enum": ["x", "3", 3, None]}) is None


# --- objects ---------------------------------------------------------------------------------------------------------


def test_an_object_is_asked_for_field_by_field() -> None:
    terminal = Terminal("yes", "", "")
    schema = obj(
        "approved",
        approved={"type": "boolean", "description": "Ship it?"},
        reason={"type": "string"},
        level={"type": "integer", "default": 3},
    )
    assert terminal.fill(schema) == {"approved": True, "level": 3}
    assert terminal.shown == [
        "  Ship it?",
        "approved (yes/no): ",
        "reason (text, optional): ",
        "level (a whole number) [3]: ",
    ]


def test_a_wrong_field_is_asked_again_alone_whatever_else_is_missing() -> None:
    names = [f"f{i}" for i in range(30)]
    schema = {"required": names, "type": "object", "properties": {name: {"type": "integer"} for name in names}}
    terminal = Terminal("x", "1.5", *(str(i) for i in range(30)))
    assert terminal.fill(schema) == {f"f{i}": i for i in range(30)}
    assert '  ✗ 1.5 is not of type "integer"' in terminal.shown


def test_nested_objects_are_walked_with_a_dotted_prefix() -> None:
    address = obj("city", city={"type": "string"}, zip={"type": "string", "minLength": 4})
    schema = {
        "$ref": "#/$defs/Order",
        "$defs": {"Address": address, "Order": obj("to", to={"$ref": "#/$defs/Address"})},
    }
    terminal = Terminal("Bern", "30", "3000")
    assert terminal.fill(schema) == {"to": {"city": "Bern", "zip": "3000"}}
    assert terminal.shown[0] == "to.city (text): "
    assert terminal.shown[1:3] == ["to.zip (text, optional): ", '  ✗ "30" is shorter than 4 characters']


def test_an_optional_object_is_filled_in_only_when_wanted() -> None:
    schema = obj(to={"anyOf": [obj("city", city={"type": "string"}), {"type": "null"}], "default": None})
    assert Terminal("").fill(schema) == {"to": None}
    assert Terminal("perhaps", "yes", "Bern").fill(schema) == {"to": {"city": "Bern"}}
    assert Terminal("no").fill(obj(to=obj("city", city={"type": "string"}))) == {}


def test_an_object_with_a_default_shows_it() -> None:
    terminal = Terminal("")
    assert terminal.fill(obj("to", to=obj(city={"type": "string"}) | {"default": {"city": "Bern"}})) == {
        "to": {"city": "Bern"}
    }
    assert terminal.shown == ['to (yes to fill it in) [{"city":"Bern"}]: ']


def test_a_schema_inside_itself_ends_where_nobody_wants_more() -> None:
    schema = obj("name", name={"type": "string"}, child={"$ref": "#"})
    terminal = Terminal("a", "yes", "b", "")
    assert terminal.fill(schema) == {"name": "a", "child": {"name": "b"}}
    assert terminal.shown[-1] == "child.child (yes to fill it in) [no]: "


def test_a_tag_is_not_asked_for_but_an_agreement_is() -> None:
    schema = obj("kind", "agreed", kind={"const": "order"}, agreed={"const": True})
    terminal = Terminal("no", "yes")
    assert terminal.fill(schema) == {"kind": "order", "agreed": True}


def test_a_default_that_is_not_right_is_not_offered() -> None:
    for default in (None, "x"):
        terminal = Terminal("", "4")
        assert terminal.fill(obj("n", n={"type": "integer", "default": default})) == {"n": 4}
        assert terminal.shown == ["n (a whole number): ", '  ✗ "" is not a number', "n (a whole number): "]


def test_what_is_wrong_with_the_whole_is_said_and_asked_again_with_what_was_entered() -> None:
    schema = obj("a", a={"type": "boolean"}, b={"type": "string"}, c=obj("d", d={"type": "integer"}))
    schema |= {"if": {"properties": {"a": {"const": False}}}, "then": {"required": ["b"]}}
    terminal = Terminal("no", "", "yes", "1", "", "because", "", "")
    assert terminal.fill(schema) == {"a": False, "b": "because", "c": {"d": 1}}
    assert terminal.shown[4:] == [
        '  ✗ "b" is a required property',
        "Once more; Enter keeps the value in brackets, - omits an optional one.",
        "a (yes/no) [no]: ",
        "b (text, optional): ",
        "c (yes to fill it in) [yes]: ",
        "c.d (a whole number) [1]: ",
    ]


def test_what_was_entered_can_be_left_out_after_all() -> None:
    schema = obj(a={"type": "integer"}, b={"type": "array"}, c=obj(d={"type": "integer"})) | {"maxProperties": 1}
    assert Terminal("1", "2", "", "yes", "3", "-", "-", "", "").fill(schema) == {"c": {"d": 3}}
    assert Terminal("1", "2", "", "yes", "3", "", "-", "no").fill(schema) == {"a": 1}
    assert Terminal("-").fill(obj(a={"type": "string", "default": "x"})) == {}
    assert Terminal("-").fill(obj("a", a={"type": "string", "default": "x"})) == {"a": "-"}


def test_an_object_with_rules_about_its_fields_is_still_asked_for_by_field() -> None:
    schema = obj(a={"type": "integer"}, b={"type": "integer"}) | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert Terminal("", "2").fill(schema) == {"b": 2}


# --- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_is_one_item_a_line_until_an_empty_one() -> None:
    terminal = Terminal("1", "x", "2", "")
    assert terminal.fill(obj("n", n={"type": "array", "items": {"type": "integer"}})) == {"n": [1, 2]}
    assert terminal.shown == [
        "n (one a line, an empty line ends; each: a whole number): ",
        "n[1]: ",
        '  ✗ "x" is not a number',
        "n[1]: ",
        "n[2]: ",
    ]


def test_a_list_may_be_empty_left_out_its_default_or_given_as_json() -> None:
    tags = {"type": "array", "items": {"type": "string"}}
    assert Terminal("").fill(obj("t", t=tags)) == {"t": []}
    assert Terminal("").fill(obj(t=tags)) == {}
    assert Terminal("").fill(obj("t", t=tags | {"default": ["a"]})) == {"t": ["a"]}
    assert Terminal("[]").fill(obj("t", t=tags | {"default": ["a"]})) == {"t": []}
    assert Terminal("[1]", '["a", "b"]').fill(obj("t", t=tags)) == {"t": ["a", "b"]}


def test_a_list_that_is_too_short_is_asked_for_again() -> None:
    terminal = Terminal("a", "", "a", "b", "")
    assert terminal.fill({"type": "array", "items": {"type": "string"}, "minItems": 2}) == ["a", "b"]
    assert "has less than 2 items" in terminal.text


def test_items_are_chosen_from_a_list_or_given_as_json() -> None:
    assert Terminal("2", "red", "").fill({"type": "array", "items": {"enum": ["red", "green"]}}) == ["green", "red"]
    lines = {"type": "array", "items": obj("sku", sku={"type": "string"})}
    terminal = Terminal('{"sku": 1}', '{"sku": "a"}', "")
    assert terminal.fill(lines) == [{"sku": "a"}]
    assert '  ✗ sku: 1 is not of type "string"' in terminal.shown
    assert terminal.shown[0] == "  sku: text"
    assert Terminal("[1, 2]", "[3]", "").fill({"type": "array", "items": {"type": "array", "items": {}}}) == [
        [1, 2],
        [3],
    ]


def test_the_fields_of_items_that_are_given_as_json_are_named() -> None:
    price = obj("net", net={"type": "number"})
    item = obj("sku", "count", sku={"type": "string"}, count={"type": "integer", "minimum": 1}, price=price)
    terminal = Terminal('{"sku": "a", "count": 2}', "")
    terminal.fill({"type": "array", "items": {"$ref": "#/$defs/Line"}, "$defs": {"Line": item}})
    assert terminal.shown == [
        "  sku: text",
        "  count: a whole number, at least 1",
        "  price: JSON, on one line, optional",
        "answer (one a line, an empty line ends; each: JSON, on one line, with these fields): ",
        "[1]: ",
    ]


# --- types of the user -------------------------------------------------------------------------------------------


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass
class Where:
    city: str
    code: str | None = None


@dataclass
class Shipment:
    """How to ship it."""

    approved: bool
    speed: Speed
    until: datetime
    to: Where
    price: Decimal = Decimal("1.50")
    tags: list[str] = field(default_factory=list)


class Verdict(pydantic.BaseModel):
    score: int = pydantic.Field(ge=1, le=5, description="From bad to good")
    text: str | None = None
    day: date
    mood: Literal["good", "bad"] = "good"
    price: Decimal = Decimal(1)


class Tagged(msgspec.Struct, tag="tagged"):
    n: int


@pytest.mark.parametrize(
    ("annotation", "lines", "value"),
    [
        (
            Shipment,
            ["y", "fast", "now", "2026-11-15T10:00:00", "Bern", "", "", "a", "b", ""],
            Shipment(True, Speed.FAST, datetime(2026, 11, 15, 10), Where("Bern"), tags=["a", "b"]),  # noqa: DTZ001
        ),
        (
            Verdict,
            ["6", "5", "", "2026-11-15", "", "2.5"],
            Verdict(score=5, day=date(2026, 11, 15), price=Decimal("2.5")),
        ),
        (Tagged, ["3"], Tagged(3)),
        (bool, ["yes"], True),
    ],
)
def test_a_form_of_a_type_gives_a_value_of_the_type(annotation: Any, lines: list[str], value: Any) -> None:
    answer = Terminal(*lines).fill(schema_of(annotation))
    assert decoder(annotation)(encode(answer)) == value


# --- leaving, and what is shown --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, EOFError])
def test_leaving_passes_through(leaving: type[BaseException]) -> None:
    def ask(_prompt: str) -> str:
        raise leaving

    with pytest.raises(leaving):
        fill({"type": "string"}, ask, print)


def test_a_schema_that_cannot_be_used_asks_nothing() -> None:
    with pytest.raises(UsageError, match="no answer can match it"):
        Terminal().fill({"type": "text"})


def test_nothing_of_a_schema_or_an_entry_is_obeyed_by_the_terminal() -> None:
    evil = "\x1b[2J\u202e"
    choice = {"type": "string", "enum": [evil, "b"], "description": f"a\n{evil}", "default": evil}
    schema = obj(
        **{
            evil: choice,
            "number": {"type": "integer"},
            "text": {"type": "string", "maxLength": 1},
            "list": {"type": "array", "items": {"const": evil}},
        }
    )
    terminal = Terminal("", evil, "1", evil, "x", evil, "")
    assert terminal.fill(schema) == {evil: evil, "number": 1, "text": "x", "list": [evil]}
    assert "\x1b" not in terminal.text
    assert "\u202e" not in terminal.text


def test_bytes_that_are_no_text_are_said_and_asked_again() -> None:
    terminal = Terminal("caf\udce9", "café")
    assert terminal.fill({"type": "string"}) == "café"
    assert "is not valid Unicode" in terminal.text
    assert "\udce9" not in terminal.text
    assert Terminal("\udce9", "2").fill({"type": "integer"}) == 2
    assert Terminal("\udce9", "b").fill({"enum": ["a", "b"]}) == "b"
    assert Terminal("\udce9", "{}").fill({"type": "object"}) == {}
    assert Terminal("\udce9", "b").fill(None) == "b"


def test_a_default_that_is_long_is_cut() -> None:
    terminal = Terminal("")
    terminal.fill({"type": "string", "default": "x" * 1000})
    assert len(terminal.shown[0]) < 100


def test_entries_are_json_that_can_be_sent() -> None:
    answer = Terminal("2026-11-15", "1.5").fill(
        obj("d", "n", d={"type": "string", "format": "date"}, n={"type": "number"})
    )
    assert json.loads(json.dumps(answer)) == {"d": "2026-11-15", "n": 1.5}
