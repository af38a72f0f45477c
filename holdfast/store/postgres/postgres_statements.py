"""The SQL of the PostgreSQL driver, for one schema.

Owns: putting the schema's name in, and making the one statement of a group out of its parts.
Never: puts a value into SQL. What is put together stands in the files; values are always bound.
Invariants: the same parts give the same text, so that it is prepared once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from holdfast.store.sql_files import load

Part = tuple[str, list[Any]]
"""The name of a part, and its rows."""

_PARAMETER = re.compile(r"\$(\d+)")
_OUR_SCHEMA = re.compile(r"\bholdfast(?=[.;])")
_OUR_CHANNEL = "pg_notify('holdfast'"


def in_schema(text: str, schema: str) -> str:
    """SQL of ours with the name of the schema that it is for, which is also the channel in which its writers tell."""
    return _OUR_SCHEMA.sub(f'"{schema}"', text).replace(_OUR_CHANNEL, f"pg_notify('{schema}'")


class Statements:
    """Every named statement, and the statements of groups."""

    def __init__(self, schema: str) -> None:
        self._named = {name: in_schema(text, schema) for name, text in load("postgres").items()}
        self._groups: dict[tuple[str, ...], str] = {}

    def __getitem__(self, name: str) -> str:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def group(self, parts: list[Part]) -> tuple[str, list[Any]]:
        """The statement that writes these rows, and its arguments: an array for each column, the fence's first. With a
        fence it fails, and nothing happens, unless every run passes."""
        names = tuple(name for name, _ in parts)
        text = self._groups.get(names)
        if text is None:
            text = self._groups[names] = self._put_together(names)
        arguments: list[Any] = []
        for _, rows in parts:
            arguments += zip(*rows, strict=True)
        if names[0].startswith("fence"):
            arguments.append(len(parts[0][1]))
        return text, arguments

    def _put_together(self, names: tuple[str, ...]) -> str:
        bodies: list[str] = []
        used = 0
        end = "when_all_passed" if names[0].startswith("fence") else "done"
        for name in (*names, end):
            body = self._named[name]
            bodies.append(_renumbered(body, used))
            used += max((int(number) for number in _PARAMETER.findall(body)), default=0)
        return f"WITH {', '.join(bodies[:-1])} {bodies[-1]}"


def _renumbered(text: str, used: int) -> str:
    """With its parameters behind those that are used already."""
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + used}", text)
