"""The table of meaning in docs/documents.md: every example compiles, and gives what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.documents.cel import compile_expression
from holdfast.documents.names import Names
from holdfast.model.errors import InvalidInput
from holdfast.model.expressions import OPERATORS, problem_of, walk
from tests.rules.play import Play, call

PAGE = (Path(__file__).parents[2] / "docs" / "documents.md").read_text("utf-8")
ORDER = {"id": "A-7", "amount": 150, "lines": ["lamp", "bulb"], "note": None}
CHARGE = {"ok": True, "fee": 1.5}
NAMES = Names(["order"], [], {"charge": "charge", "label": "label"})


def rows() -> list[tuple[str, str]]:
    table = PAGE[PAGE.index("| | example | gives |") :].split("\n\n")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()[2:]]
    return [
        (example.strip().strip("`").replace("\\|", "|"), gives.strip().strip("`")) for _, example, gives, _ in cells
    ]


def evaluated(text: str) -> Any:
    """What a run gives whose result is the expression."""
    expr = compile_expression(text, NAMES)
    assert problem_of(expr) is None
    # a skipped reference in a result is null, as in a condition
    play = Play(call("charge"), call("label", when=False), result=["list", expr], inputs={"order": ORDER})
    play.complete("charge", CHARGE)
    return play.result[0]


def test_the_page_says_with_what_the_examples_are_executed() -> None:
    assert json.dumps(ORDER) in PAGE
    assert json.dumps(CHARGE) in PAGE


@pytest.mark.parametrize(("example", "gives"), rows(), ids=[example for example, _ in rows()])
def test_an_example_gives_what_the_table_says(example: str, gives: str) -> None:
    if gives.startswith("error: "):
        with pytest.raises(InvalidInput, match=re.escape(gives.removeprefix("error: "))):
            evaluated(example)
        return
    found = evaluated(example)
    assert json.dumps(found) == json.dumps(json.loads(gives))


def test_the_table_has_every_operator() -> None:
    used = {e[0] for example, _ in rows() for e in walk(compile_expression(example, NAMES)) if isinstance(e, list)}
    assert OPERATORS - used == {"var", "param"}
