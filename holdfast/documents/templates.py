"""Templates: values of a document in which texts may hold `{{ expression }}`.

Owns: which part of a text is an expression, and building the expression of a value that holds some.
Never: parses an expression (cel.py). Text inside values is never expanded again: what a template gives is data.

A text that is exactly one `{{ }}` is that expression, with its type. Any other text with expressions becomes
`["text", …]`: texts as they are, other values as canonical JSON, null as nothing. `{{ "{{" }}` writes braces.
"""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.documents.cel import Parser, constant_of, is_constant
from holdfast.documents.names import ExpressionProblem, Names
from holdfast.model.expressions import Expr

OPEN: Final = "{{"
CLOSE: Final = "}}"


def compile_value(value: Any, names: Names) -> Expr:
    """The expression of a JSON value whose texts may be templates. Raises ExpressionProblem with the pointer of the
    text inside the value."""
    if isinstance(value, str):
        return compile_template(value, names) if OPEN in value else value
    if isinstance(value, list):
        parts = [_part(item, names, index) for index, item in enumerate(value)]
        if all(map(is_constant, parts)):
            return ["const", [constant_of(part) for part in parts]]
        return ["list", *parts]
    if isinstance(value, dict):
        entries = {key: _part(item, names, key) for key, item in value.items()}
        if all(map(is_constant, entries.values())):
            return ["const", {key: constant_of(part) for key, part in entries.items()}]
        return ["dict", *(part for entry in entries.items() for part in entry)]
    return value


def compile_template(text: str, names: Names) -> Expr:
    """The expression of a text that may hold `{{ }}`. Raises ExpressionProblem."""
    plain = _REFERENCE.fullmatch(text)
    if plain is not None:  # most are, and need no parser
        return names.resolve(plain[1], list(plain[2].split(".")[1:]), plain.start(1))
    start = text.find(OPEN)
    if start < 0:
        return text
    pieces: list[str] = []
    values: list[Expr] = []
    after = 0
    while start >= 0:
        _literal(text[after:start], pieces, values)
        parser = Parser(text, start + len(OPEN), names)
        values.append(parser.whole())
        if not text.startswith(CLOSE, parser.at):
            if parser.kind == "end":
                raise ExpressionProblem("`{{` is not closed", "write `}}` behind the expression", start, len(OPEN))
            parser.unexpected("`}}` behind the expression")
        if start == 0 and parser.at + len(CLOSE) == len(text):
            return values[0]
        after = parser.at + len(CLOSE)
        start = text.find(OPEN, after)
    _literal(text[after:], pieces, values)
    return ["text", "{}".join(pieces), *values]


def _literal(text: str, pieces: list[str], values: list[Expr]) -> None:
    """A piece of text between expressions. `{}` in it would be a place to fill, so it is filled with itself."""
    first, *others = text.split("{}")
    pieces.append(first)
    for piece in others:
        values.append("{}")
        pieces.append(piece)


def _part(value: Any, names: Names, key: str | int) -> Expr:
    try:
        return compile_value(value, names)
    except ExpressionProblem as e:
        e.pointer = (key, *e.pointer)
        raise


_REFERENCE: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)((?:\.[A-Za-z_][A-Za-z0-9_]*)+)\s*\}\}")
