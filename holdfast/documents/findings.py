"""Findings: the problems of documents, all of them at once, each with its place.

Owns: collecting problems by pointer while a document is checked and compiled, and turning pointers into lines.
Never: computes a place while there is no problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.documents.places import Pointer, Unreadable
from holdfast.documents.reading import Source
from holdfast.model.errors import DefinitionError
from holdfast.model.limits import DOCUMENT_PROBLEMS_MAX, PROBLEMS_LISTED_MAX
from holdfast.model.problems import Problem


class _Noted(NamedTuple):
    code: str
    at: Pointer
    is_key: bool
    offset: int
    node: str
    message: str
    hint: str


class Findings:
    """The problems of one document."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._noted: dict[_Noted, None] = {}

    def add(
        self,
        code: str,
        at: Pointer,
        message: str,
        hint: str,
        *,
        is_key: bool = False,
        offset: int = -1,
        node: str = "",
    ) -> None:
        """A problem of the part at a pointer: of its key, or of the character `offset` of its text."""
        if len(self._noted) < DOCUMENT_PROBLEMS_MAX:
            self._noted[_Noted(code, at, is_key, offset, node, message, hint)] = None

    def __len__(self) -> int:
        return len(self._noted)

    def codes(self) -> set[str]:
        """The codes of the problems."""
        return {noted.code for noted in self._noted}

    def listed(self) -> list[Problem]:
        """All of them with their places, in the order of the file."""
        if not self._noted:
            return []
        places = self._source.places({noted.at for noted in self._noted})
        found = []
        for noted in self._noted:
            place = places[noted.at]
            line, column = (place.key_line, place.key_column) if noted.is_key else (place.line, place.column)
            if noted.offset > 0 and place.inside >= 0:
                column += place.inside + noted.offset
            found.append(
                Problem(
                    code=noted.code,
                    node=noted.node,
                    message=noted.message,
                    hint=noted.hint,
                    file=self._source.name,
                    line=line,
                    column=column,
                )
            )
        return sorted(found, key=lambda p: (p.line, p.column))


def of_text(refused: Unreadable, name: str) -> Problem:
    """The problem of a file that cannot be read."""
    return Problem(
        code="unreadable",
        message=refused.message,
        hint=refused.hint,
        file=name,
        line=refused.line,
        column=refused.column,
    )


def error(problems: Iterable[Problem], what: str) -> DefinitionError:
    """One error for all problems of what was loaded."""
    listed = list(problems)
    lines = [f"  {problem}" for problem in listed[:PROBLEMS_LISTED_MAX]]
    if len(listed) > PROBLEMS_LISTED_MAX:
        lines.append(f"  ... and {len(listed) - PROBLEMS_LISTED_MAX} more")
    count = "a problem" if len(listed) == 1 else f"{len(listed)} problems"
    return DefinitionError(f"{what} has {count}:\n" + "\n".join(lines), tuple(listed))
