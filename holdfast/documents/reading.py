"""Reading: YAML and JSON files as plain values, with the line and column of every part.

Owns: files and bytes to `Source`, one for each document.
Never: knows what a document means (see shapes.py).
Invariants: memory and time are bounded by the size of the text (limits.py); places are computed only when asked for, by
reading the text again, so that a valid document does not pay for them.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast.documents.places import Place, Pointer, Unreadable, line_and_column
from holdfast.model.errors import UsageError
from holdfast.model.limits import DOCUMENT_BYTES_MAX

Locate = Callable[[dict[Any, Any]], dict[Pointer, Place]]
"""The places of parts, which are given as a tree of keys."""


class Source:
    """One document of a file: its plain value, and the place of each of its parts."""

    def __init__(self, name: str, value: Any, locate: Locate) -> None:
        self.name = name
        """The file as the caller named it."""
        self.value = value
        self._locate = locate

    def places(self, pointers: Iterable[Pointer]) -> dict[Pointer, Place]:
        """The places of parts, or of the nearest enclosing part that has one (inside an alias there is none)."""
        wanted = list(pointers)
        tree: dict[Any, Any] = {}
        for pointer in wanted:
            branch = tree
            for key in pointer:
                branch = branch.setdefault(key, {})
        found = self._locate(tree)
        return {pointer: next(found[p] for p in _prefixes(pointer) if p in found) for pointer in wanted}


def read_file(path: Path, name: str = "") -> list[Source]:
    """The documents of a file. Raises Unreadable, or UsageError when there is no such file."""
    try:
        with path.open("rb") as opened:
            data = opened.read(DOCUMENT_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path.absolute()}") from None
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    return read(data, name or str(path))


def read(data: bytes, name: str) -> list[Source]:
    """The documents in the bytes of a file, which is JSON when its name ends in `.json`. Raises Unreadable."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise Unreadable(f"the file is larger than {DOCUMENT_BYTES_MAX >> 20} MiB", "split it into several files")
    text = _text(data)
    with _without_collector():
        if name.endswith(".json"):
            from holdfast.documents import json_text

            found: list[tuple[Any, Locate]] = [json_text.read(text)]
        else:
            from holdfast.documents import yaml_text  # only when it is needed: PyYAML takes 10 ms to load

            found = yaml_text.read(text)
    return [Source(name, value, locate) for value, locate in found]


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]:
        raise Unreadable("the file is not UTF-8 but UTF-16 or UTF-32", "save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        before = data[: e.start].decode("utf-8", "replace")
        raise Unreadable("the file is not UTF-8", "save it as UTF-8", *line_and_column(before, len(before))) from None
    odd = _NOT_TEXT.search(text)
    if odd is not None:
        wrong = f"the character U+{ord(odd.group()):04X} cannot stand in a document"
        hint = 'remove it, or write it as an escape such as "\\u0007"'
        raise Unreadable(wrong, hint, *line_and_column(text, odd.start()))
    return text


_NOT_TEXT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def _prefixes(pointer: Pointer) -> Iterator[Pointer]:
    for length in range(len(pointer), -1, -1):
        yield pointer[:length]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the cycle collector: a large document is millions of new values, and it has no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
