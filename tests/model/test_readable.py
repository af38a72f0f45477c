"""Which types can be read from JSON at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict

import msgspec
import pydantic
import pytest

from holdfast.model.errors import InvalidInput
from holdfast.model.schemas import unreadable


class Plain:
    pass


class Quacks(Protocol):
    def quack(self) -> None: ...


@dataclass
class Needs:
    plain: Plain


@dataclass
class MayHave:
    n: int
    plain: Plain | None = None


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Other:
    y: int


class Holder(msgspec.Struct):
    by_name: dict[str, tuple[int, Plain]]


class Typed(TypedDict):
    plain: Plain


class Model(pydantic.BaseModel):
    x: int


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, int, None, type(None), list[int], dict[str, Any], Literal["a"], Path, Model, Tree, MayHave,
        MayHave | Other, MayHave | Plain, Iterable[int], Sized, int | None,
    ],
)  # fmt: skip
def test_what_some_json_value_becomes_is_readable(annotation: Any) -> None:
    assert unreadable(annotation) is None


@pytest.mark.parametrize(
    "annotation",
    [
        Plain, Plain | None, list[Plain], list[Plain | None], dict[str, Plain], tuple[int, Plain], tuple[Plain, ...],
        set[Plain], Needs, Holder, Typed, Needs | Plain,
    ],
)  # fmt: skip
def test_what_no_json_value_becomes_is_named(annotation: Any) -> None:
    assert unreadable(annotation) == "Plain"


def test_functions_classes_and_protocols_are_not_readable() -> None:
    assert [unreadable(kind) for kind in (Callable[[], int], type, Quacks)] == ["Callable", "type", "Quacks"]


@pytest.mark.parametrize("annotation", ["int", 7])
def test_what_is_no_type_says_so(annotation: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be read from JSON"):
        unreadable(annotation)
