"""Reading: what a YAML or JSON text means, where its parts are, and what is refused."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from holdfast.documents.places import Unreadable
from holdfast.documents.reading import read, read_file
from holdfast.model.errors import UsageError


def value_of(text: str, name: str = "flow.yaml") -> object:
    (source,) = read(text.encode(), name)
    return source.value


@pytest.mark.parametrize(
    ("scalar", "meant"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("12:30:45", "12:30:45"),
        ("2024-05-01", "2024-05-01"),
        ("1_000", "1_000"),
        ("1.2.3", "1.2.3"),
        ("-", None),
        ("5", 5),
        ("+5", 5),
        ("-0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ('"5"', "5"),
        ("'true'", "true"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_plain_scalar_means_what_yaml_1_2_says(scalar: str, meant: object) -> None:
    if scalar == "-":
        assert value_of("x:\n-\n") == {"x": [None]}
    else:
        found = value_of(f"x: {scalar}")
        assert found == {"x": meant}
        assert type(found["x"]) is type(meant)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("a: 1\nb: 2\na: 3\n", (3, 1), "the key 'a' occurs twice"),
        ("x: {{ input.n }}\n", (1, 5), "a list or an object cannot be a key"),
        ("a: !!python/object:os.system x", (1, 4), "is not supported"),
        ("a: !mine {b: 1}", (1, 4), "the tag '!mine' is not supported"),
        ("a: 010", (1, 4), "a number for some readers"),
        ("a: 0x1F", (1, 4), "a number for some readers"),
        ("a: .nan", (1, 4), "a number for some readers"),
        ("a: 1e999", (1, 4), "is too large"),
        ("a: " + "9" * 10_000, (1, 4), "does not fit into 64 bits"),
        ("1: one", (1, 1), "1 is not text, and a key is"),
        ("true: one", (1, 1), "true is not text"),
        ("base: &b {a: 1}\nx:\n  <<: *b\n", (3, 3), "merge keys"),
        ("a: &x [*x]", (1, 8), "is not defined above"),
        ("a: *nowhere", (1, 4), "is not defined above"),
        ("a: [1, 2\nb: 3", (2, 2), "this is not YAML"),
        ("a:\n\t- 1", (2, 1), "this is not YAML"),
        ("a: b: c", (1, 5), "mapping values are not allowed"),
        ("a: " + "[" * 1_000, (1, 103), "nested deeper than 100"),
        ("%TAG !e! tag:example.com,2000:\n---\na: 1", (1, 1), "defines tags"),
        ("a: \x07", (1, 4), "U+0007 cannot stand"),
    ],
)
def test_what_two_readers_could_take_differently_is_refused_with_its_place(
    text: str, place: tuple[int, int], part: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        read(text.encode(), "flow.yaml")
    assert part in refused.value.message
    assert (refused.value.line, refused.value.column) == place
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ('{"a": 1,\n "a": 2}', (2, 2), "the key 'a' occurs twice"),
        ('{"a": {"b": [1, {"c": 1, "c": 2}]}}', (1, 26), "the key 'c' occurs twice"),
        ('{"a": NaN}', (1, 7), "NaN is not a number"),
        ('{"a": 1e999}', (1, 7), "is too large"),
        ('{"a": "\\ud800"}', (1, 7), "half of a surrogate pair"),
        ('{"a": ', (1, 7), "this is not JSON"),
        ("[" * 1_000, (1, 101), "nested deeper than 100"),
    ],
)
def test_json_is_held_to_the_same_rules(text: str, place: tuple[int, int], part: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(text.encode(), "flow.json")
    assert part in refused.value.message
    assert (refused.value.line, refused.value.column) == place


@pytest.mark.parametrize("data", ["a: 1".encode("utf-16"), "a: 1".encode("utf-32"), b"a: \xff\n", b"a: \xed\xa0\x80"])
def test_a_file_that_is_not_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="UTF-8"):
        read(data, "flow.yaml")


def test_aliases_may_repeat_as_many_values_as_the_document_has_and_no_more() -> None:
    assert value_of("a: &a [1, 2]\nb: *a\nc: *a") == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    began = time.process_time()
    tracemalloc.start()
    with pytest.raises(Unreadable, match="aliases repeat more values"):
        read("\n".join(bomb).encode(), "flow.yaml")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    assert time.process_time() - began < 1


def test_a_file_may_hold_several_documents_and_empty_ones_do_not_count() -> None:
    found = read(b"---\n---\na: 1\n---\n# nothing\n---\nb: 2\n...\n", "flow.yaml")
    assert [source.value for source in found] == [{"a": 1}, {"b": 2}]
    assert found[1].places([("b",)])[("b",)][:4] == (7, 4, 7, 1)
    assert read(b"", "flow.yaml") == []


YAML = """\
kind: dag
nodes:
  - id: left
    config: {x: "{{ input.n }}", y: [1,
      2]}
  - {id: right, note: |
      two
      lines
    }
"""


def test_each_part_of_a_yaml_document_has_a_line_and_a_column() -> None:
    (source,) = read(
        YAML.replace("note: |\n      two\n      lines\n    ", "note: 'two\n      lines'").encode(), "f.yaml"
    )
    pointers = [(), ("kind",), ("nodes", 0, "config", "x"), ("nodes", 0, "config", "y", 1), ("nodes", 1, "note")]
    found = source.places(pointers)
    assert found[()][:2] == (1, 1)
    assert found["kind",] == (1, 7, 1, 1, 0)
    assert found["nodes", 0, "config", "x"] == (4, 17, 4, 14, 1)
    assert found["nodes", 0, "config", "y", 1] == (5, 7, 5, 7, 0)
    assert found["nodes", 1, "note"] == (6, 23, 6, 17, -1)


def test_a_part_that_is_not_there_has_the_place_of_what_encloses_it() -> None:
    (source,) = read(b"a: &a {b: 1}\nc: *a\n", "f.yaml")
    found = source.places([("c", "b"), ("a", "z")])
    assert found["c", "b"][:2] == (2, 4)
    assert found["a", "z"][:2] == (1, 4)
    (source,) = read(b'{"a": {"b": [1,\n {"c": "x"}]}}', "f.json")
    found = source.places([("a", "b", 1, "c"), ("a", "b", 7)])
    assert found["a", "b", 1, "c"] == (2, 8, 2, 3, 1)
    assert found["a", "b", 7][:2] == (1, 13)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        read_file(tmp_path / "none.yaml")


def test_json_and_yaml_of_the_same_value_are_the_same() -> None:
    text = '{"a": [1, 2.5, true, null, "yes", {"b": "\\u00e9"}]}'
    assert value_of(text, "x.json") == value_of(text, "x.yaml")
