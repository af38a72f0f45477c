"""Printing: expression data as the text that compiles to it.

Owns: the text of an expression (CEL), and of a value position (JSON with templates).
Never: decides what a document looks like (export.py).
Invariant: compiling what is printed gives the same data, for every expression in normal form. That is the form which
Python graphs and documents produce: a list or an object without references is one constant, a constant scalar stands
alone.
"""

from __future__ import annotations

import json
from typing import Any, Final

from holdfast.documents.names import Names, as_key, quoted
from holdfast.model.expressions import LEAVES, Expr

_INFIX: Final = {
    "or": (1, "||"), "and": (2, "&&"),
    "eq": (3, "=="), "ne": (3, "!="), "lt": (3, "<"), "le": (3, "<="), "gt": (3, ">"), "ge": (3, ">="),
    "add": (4, "+"), "sub": (4, "-"), "mul": (5, "*"), "div": (5, "/"), "mod": (5, "%"),
}  # fmt: skip
"""Precedence and symbol of operators between two operands (or more: `||` and `&&`)."""
_TERNARY, _IN, _UNARY, _BEHIND = 0, 3, 6, 7
_METHODS: Final = {"starts_with": "startsWith", "ends_with": "endsWith"}


def expression_text(expr: Expr, names: Names) -> str:
    """The text of an expression where these names are known."""
    return _text(expr, names, _TERNARY)


def value_text(expr: Expr, names: Names) -> Any:
    """The JSON value, with templates in its texts, that compiles to an expression."""
    if not isinstance(expr, list):
        return _constant_text(expr) if isinstance(expr, str) else expr
    match expr:
        case ["const", value]:
            return _constant_value(value)
        case ["list", *parts]:
            return [value_text(part, names) for part in parts]
        case ["dict", *parts]:
            return {key: value_text(part, names) for key, part in zip(parts[::2], parts[1::2], strict=True)}
        case ["text", str(template), *values] if values and "{{" not in template:
            pieces = template.split("{}")
            if len(values) > 1 or pieces != ["", ""]:
                filled = [f"{{{{ {expression_text(value, names)} }}}}" for value in values]
                return pieces[0] + "".join(a + b for a, b in zip(filled, pieces[1:], strict=True))
    return f"{{{{ {expression_text(expr, names)} }}}}"


def _text(expr: Expr, names: Names, least: int) -> str:
    """The text of an expression, in parentheses if its operator binds less than `least`."""
    text, level = _with_level(expr, names)
    return f"({text})" if level < least else text


def _with_level(expr: Expr, names: Names) -> tuple[str, int]:
    if not isinstance(expr, list):
        is_negative = isinstance(expr, int | float) and str(expr).startswith("-")
        return _literal(expr), _UNARY if is_negative else _BEHIND
    op = expr[0]
    if op in LEAVES:
        return names.written(expr), _BEHIND
    if op in _INFIX:
        level, symbol = _INFIX[op]
        # relations do not chain, and a chain of one logical operator is one list: their operands bind more
        left = level if op in ("add", "sub", "mul", "div", "mod") else level + 1
        parts = [_text(expr[1], names, left), *(_text(part, names, level + 1) for part in expr[2:])]
        return f" {symbol} ".join(parts), level
    match expr:
        case ["const", value]:
            return _literal(value), _BEHIND
        case ["get", whole, key]:
            return _text(whole, names, _BEHIND) + as_key(key), _BEHIND
        case ["contains", whole, part]:
            return f"{_text(part, names, _IN + 1)} in {_text(whole, names, _IN + 1)}", _IN
        case ["not", ["is_none", part]]:
            return f"has({_text(part, names, _TERNARY)})", _BEHIND
        case ["not", part]:
            return f"!{_text(part, names, _UNARY)}", _UNARY
        case ["if", condition, yes, no]:
            parts = [_text(condition, names, _TERNARY + 1), *(_text(part, names, _TERNARY) for part in (yes, no))]
            return "{} ? {} : {}".format(*parts), _TERNARY
        case [("starts_with" | "ends_with") as op, whole, part]:
            return f"{_text(whole, names, _BEHIND)}.{_METHODS[op]}({_text(part, names, _TERNARY)})", _BEHIND
        case ["list", *parts]:
            return f"[{_listed(parts, names)}]", _BEHIND
        case ["dict", *parts]:
            entries = [f"{quoted(k)}: {_text(v, names, 0)}" for k, v in zip(parts[::2], parts[1::2], strict=True)]
            return "{" + ", ".join(entries) + "}", _BEHIND
        case [("skipped" | "failed") as op, ["node", _]]:
            return f"{op}({names.written(expr[1]).removesuffix('.output')})", _BEHIND
        case [str(op), *parts]:  # functions: size, is_none, text, first, some
            return f"{op}({_listed(parts, names)})", _BEHIND
    raise AssertionError(f"not an expression: {expr!r}")


def _listed(parts: list[Expr], names: Names) -> str:
    return ", ".join(_text(part, names, _TERNARY) for part in parts)


def _literal(value: Any) -> str:
    """A JSON value as a literal of CEL."""
    match value:
        case list():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{quoted(k)}: {_literal(v)}" for k, v in value.items()) + "}"
        case str():
            return quoted(value)
    return json.dumps(value)


def _constant_value(value: Any) -> Any:
    """A constant in a value position: texts that look like templates are written so that they are not."""
    match value:
        case list():
            return [_constant_value(part) for part in value]
        case dict():
            return {key: _constant_value(part) for key, part in value.items()}
        case str():
            return _constant_text(value)
    return value


def _constant_text(text: str) -> str:
    return f"{{{{ {quoted(text)} }}}}" if "{{" in text else text
