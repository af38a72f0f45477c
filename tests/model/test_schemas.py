"""How many parts of a JSON Schema may apply to one place of a value."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import answers
from holdfast.model.errors import InvalidInput, UsageError
from holdfast.model.schemas import check_width


def doubling(levels: int, keyword: str) -> dict[str, Any]:
    """A schema of definitions, each of which applies the next one twice to the same value."""
    definitions: dict[str, Any] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "integer"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


TREE = {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_definitions_that_double_are_refused_before_anything_is_checked_by_them(keyword: str) -> None:
    schema = doubling(29, keyword)
    with pytest.raises(UsageError, match="the schema of an answer: more than 2,000 of its parts apply to one place"):
        answers.wanted(schema, "ctx.ask")
    assert "more than 2,000" in answers.problems(schema, b"1")[0]
    assert answers.problems(doubling(5, keyword if keyword != "oneOf" else "allOf"), b"1") == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"properties": {"x": {"$ref": "#/$defs/a"}}}] * 2}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"items": {"$ref": "#/$defs/a"}}] * 2}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"additionalProperties": {"$ref": "#/$defs/a"}}] * 2}}},
    ],
)
def test_parts_that_double_with_each_level_of_the_value_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="more than"):
        check_width(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"kids": {"type": "array", "items": TREE}}}}},
        {"anyOf": [{"properties": {"type": {"const": i}, "a": {"type": "integer"}}} for i in range(500)]},
        {  # two fields of each class have the next class: a value grows with it
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"properties": {n: {"$ref": f"#/$defs/d{i + 1}"} for n in "ab"}} for i in range(100)},
        },
    ],
)
def test_schemas_that_people_write_are_taken(schema: Any) -> None:
    check_width(schema)
