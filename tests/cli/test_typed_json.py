"""JSON that people type or keep in files: a key that occurs twice is refused, wherever it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import inputs
from holdfast.cli import main as cli
from holdfast.cli.form_fields import JSON, entry_for
from holdfast.cli.forms import fill
from holdfast.model.errors import UsageError

TWICE = '{"order": {"amount": 10, "amount": 1000}}'
TOLD = r'the key "amount" occurs twice in one object; keep one of them'


def test_an_input_an_answer_and_a_payload_are_refused() -> None:
    for read in (inputs.read, lambda text: inputs.parse(text, "--edits"), lambda text: inputs.value_of(text, "x")):
        with pytest.raises(UsageError, match=TOLD):
            read(TWICE)
    with pytest.raises(UsageError, match=TOLD):
        inputs.answer(TWICE, "--input", {"type": "object"})


def test_a_value_that_is_set_is_refused_and_not_taken_for_text() -> None:
    with pytest.raises(UsageError, match=TOLD):
        inputs.put({}, 'order={"amount": 1, "amount": 2}')


@pytest.mark.parametrize("schema", [{"type": "object"}, {}, {"anyOf": [{"type": "object"}, {"type": "string"}]}])
def test_a_form_asks_again(schema: dict[str, Any]) -> None:
    entry = JSON if schema == {"type": "object"} else entry_for(schema, schema)
    with pytest.raises(ValueError, match='the key "amount" occurs twice'):
        entry.read('{"amount": 1, "amount": 2}')
    typed = iter(['{"amount": 1, "amount": 2}', '{"amount": 3}'])
    said: list[str] = []
    assert fill({"type": "object"}, lambda *_args, **_kwargs: next(typed), said.append) == {"amount": 3}
    assert any('the key "amount" occurs twice' in line for line in said)


@pytest.mark.parametrize("verb", ["validate", "graph"])
def test_a_definition_in_a_file_is_refused(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flow.json"
    path.write_text('{"name": "flow", "kind": "graph", "nodes": [], "name": "other", "result": null}')
    assert cli.main([verb, str(path)]) != 0
    told = capsys.readouterr()
    assert "the key 'name' occurs twice" in told.out + told.err


@pytest.mark.parametrize("verb", [("run",), ("start",)])
def test_nothing_is_started(verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flow = tmp_path / "twice.py"
    flow.write_text(
        "import holdfast as hf\n@hf.workflow\nasync def twice(ctx: hf.Context, order: dict): return order\n"
    )
    db = tmp_path / "runs.db"
    assert cli.main([*verb, f"{flow}:twice", "--input", TWICE, "--db", f"sqlite:///{db}"]) == 2
    assert "occurs twice" in capsys.readouterr().err
    assert not db.exists()
