"""300 broken documents: each gives problems with a place, no other exception, within a second and 200 MB."""

from __future__ import annotations

import random
import time
import tracemalloc
from pathlib import Path

import pytest

from holdfast.documents import registration
from holdfast.model.errors import DefinitionError
from tests.documents import flows
from tests.documents.test_dag import DIAMOND
from tests.documents.test_graph_documents import HEAD, NODES, SAME

assert flows.double

VALID = [DIAMOND, HEAD + NODES, SAME]
HAND_MADE = [
    "",
    "[]",
    "42",
    "kind: graph",
    "kind: [graph]\nname: x\nnodes: []",
    "kind: graph\nname: {a: b}\nnodes: 3",
    "kind: graph\nname: x\nnodes: [1, null, [], text]",
    "kind: graph\nname: x\nnodes: [{id: a, handler: {}}]",
    "kind: graph\nname: x\nnodes: [{id: '', handler: double}]",
    "kind: graph\nname: x\nnodes: [{id: a, handler: double, input: {x: '{{'}}]",
    "kind: graph\nname: x\nnodes: [{id: a, handler: double, input: {x: '{{ }}'}}]",
    "kind: graph\nname: x\nnodes: [{id: a, handler: double, input: {x: '{{ " + "(" * 5_000 + " }}'}}]",
    "kind: graph\nname: x\nnodes: [{id: a, handler: double, when: '" + "!" * 5_000 + "true', input: {x: 1}}]",
    "kind: graph\nname: x\nnodes: [{id: a, map: {over: a.output, item: x, nodes: [{id: a, handler: double}]}}]",
    "kind: graph\nname: x\nnodes: [{id: a, loop: {start: 1, item: i, until: result, nodes: []}}]",
    "kind: graph\nname: x\nnodes: [{route: {on: 1, choices: []}}]",
    "kind: graph\nname: x\nnodes: [{id: " + "a" * 300 + ", handler: double, input: {x: 1}}]",
    "kind: graph\nname: x\ninput: {n: {type: nonsense}}\nnodes: [{id: a, handler: double, input: {x: 1}}]",
    "kind: graph\nname: x\nretry: {attempts: 1e9}\nnodes: [{id: a, handler: double, input: {x: 1}}]",
    "kind: graph\nname: x\nsettings: {timeout: 9999999999999999}\nnodes: [{id: a, handler: double, input: {x: 1}}]",
    "kind: dag\nname: x\nnodes: [{id: a, handler: double, dependencies: [[a]], config: {x: 1}}]",
    "kind: dag\nname: x\ndag: {}",
    "kind: dag\nname: x\nnodes: [{id: a, handler: double, config: {x: " + "9" * 5_000 + "}}]",
    "kind: dag\nname: x\nnodes: " + "[" * 10_000,
    "kind: dag\nname: x\nnodes: " + "{a: " * 10_000,
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
]


def mutated(text: str, chance: random.Random) -> str:
    """A valid text with a few parts removed, repeated, exchanged or replaced."""
    lines = text.splitlines()
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        line = lines[at]
        spot = chance.randrange(len(line) + 1)
        odd = chance.choice(
            ["{", "}", "[", "]", ":", '"', "'", "\t", "&a ", "*a", "!!x ", "{{", "}}", "\x01", "- ", "0x1", "é"]
        )
        match chance.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, line)
            case 2:
                lines[at] = line[:spot] + odd + line[spot:]
            case 3:
                lines[at] = line[:spot] + line[spot + chance.randint(1, 6) :]
            case 4:
                lines[at] = " " * chance.randint(1, 3) + line
            case 5:
                other = chance.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                words = line.split(" ")
                words[chance.randrange(len(words))] = chance.choice(
                    ["null", "true", "-1", "[]", "{}", "input", "~", "1e999"]
                )
                lines[at] = " ".join(words)
        if not lines:
            return text[:1]
    return "\n".join(lines)


def broken(count: int) -> list[str]:
    chance = random.Random(20_261_118)
    return HAND_MADE + [mutated(chance.choice(VALID), chance) for _ in range(count)]


@pytest.mark.parametrize("portion", range(6))
def test_every_broken_document_gives_problems_with_a_place(tmp_path: Path, portion: int) -> None:
    file = tmp_path / "flow.yaml"
    refused = 0
    for text in broken(400)[portion::6]:
        file.write_text(text, "utf-8")
        tracemalloc.start()
        began = time.process_time()
        checked, _ = registration.check([str(file)])
        spent = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000_000, text[:200]
        assert spent < 1, (spent, text[:200])
        problems = [problem for document in checked for problem in document.problems]
        refused += bool(problems) or not checked
        lines = text.count("\n") + 1
        for problem in problems:
            assert problem.message, text
            assert problem.hint, (str(problem), text)
            assert 1 <= problem.line <= lines + 1, (str(problem), text)
            assert problem.column >= 1, (str(problem), text)
    assert refused >= 50  # of 71, so more than 300 in all: some mutations leave a document valid


def test_loading_a_broken_document_raises_one_error_with_all_problems(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(DIAMOND.replace("double", "doubel"))
    with pytest.raises(DefinitionError) as refused:
        registration.load([str(file)])
    assert len(refused.value.problems) == 2
    assert f"{file}:5:26: there is no handler 'doubel'" in refused.value.message
