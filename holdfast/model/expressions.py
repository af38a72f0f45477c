"""Expressions: conditions and arguments as data, evaluated by one pure function.

An expression is a scalar constant (null, bool, number, text) or a list `[operator, operand, ...]`:

    ["input", name]            a parameter of the workflow          ["var", name]        a variable
    ["node", id]               the output of a node                 ["param", scope, name]  a parameter of a map or loop
    ["get", x, key]            a field or an index of x             ["const", value]     any JSON value as it is
    ["list", x, ...]           a list                               ["dict", key, x, ...]  an object
    ["eq"|"ne"|"lt"|"le"|"gt"|"ge", a, b]   comparisons             ["and"|"or", a, ...]  ["not", a]
    ["add"|"sub"|"mul"|"div"|"mod", a, b]   arithmetic              ["size", x]  ["contains", x, item]  ["is_none", x]
    ["text", template, x, ...] "{}" filled in order                 ["skipped"|"failed", ["node", id]]
    ["first", x, ...]          the first operand, in order, whose nodes completed
    ["some", n, x, ...]        the list of the n operands that completed earliest, in argument order

Rules also ask ["count", x], the number of items of a list; it never stands in a definition.
Null rules: a field of null is null; `eq` and `ne` compare; every other comparison with null is false; arithmetic with
null is null. A *chain* is `get` ... `get` over a leaf (`input`, `node`, `var`, `param`): what a value is read by.

Owns: the operators, their meaning, size checks, chains and pointers.
Never: loads a value (the caller passes `read`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from holdfast.model.errors import InvalidInput
from holdfast.model.limits import EXPRESSION_DEPTH_MAX, EXPRESSION_NODES_MAX

Expr = Any
"""A JSON value read as an expression."""

Chain = tuple[tuple[str, ...], tuple[str | int, ...]]
"""A leaf such as ("node", "charge") and the keys below it."""

Wanted = Literal["", "#", "@"]
"""What is wanted of a value: the value itself, its size, or the number of its items if it is a list."""

_WANTED: dict[str, Wanted] = {"size": "#", "count": "@"}
LEAVES = frozenset({"input", "node", "var", "param"})
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "mod"})
CHOICES = frozenset({"first", "some"})
LOCATED = frozenset({"at", "items", "var_at"})
"""Leaves of located expressions (references.py); they never stand in a definition."""
OPERATORS = (
    LEAVES
    | COMPARISONS
    | ARITHMETIC
    | CHOICES
    | {"get", "const", "list", "dict", "and", "or", "not", "size", "contains", "is_none", "text", "skipped", "failed"}
)
_ARITY = {"get": 2, "const": 1, "not": 1, "size": 1, "contains": 2, "is_none": 1, "skipped": 1, "failed": 1}
_ARITY |= {"input": 1, "node": 1, "var": 1, "param": 2} | dict.fromkeys(COMPARISONS | ARITHMETIC, 2)


def chain(expr: Expr) -> Chain | None:
    """The leaf and keys that `expr` reads, or None when it is something else than a chain."""
    keys: list[str | int] = []
    while isinstance(expr, list) and expr[0] == "get":
        keys.append(expr[2])
        expr = expr[1]
    if isinstance(expr, list) and expr[0] in LEAVES:
        keys.reverse()
        return tuple(expr), tuple(keys)
    return None


def pointer(keys: tuple[str | int, ...]) -> str:
    """Keys as one string, `/items/0`; the name of a captured value."""
    return "".join("/" + str(k).replace("~", "~0").replace("/", "~1") for k in keys)


def follow(value: Any, keys: tuple[str | int, ...]) -> Any:
    """The part of a plain JSON value that `keys` name; null where there is none."""
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key) if isinstance(key, str) else value.get(str(key))
        elif isinstance(value, list) and isinstance(key, int) and not isinstance(key, bool):
            value = value[key] if -len(value) <= key < len(value) else None
        else:
            return None
    return value


def operands(expr: Expr) -> list[Expr]:
    """The sub-expressions of one operator (not names, keys and constants)."""
    if not isinstance(expr, list):
        return []
    op = expr[0]
    if op in LEAVES or op in LOCATED or op == "const":
        return []
    if op == "get":
        return [expr[1]]
    if op in {"text", "some"}:
        return list(expr[2:])
    if op == "dict":
        return list(expr[2::2])
    return list(expr[1:])


def walk(expr: Expr) -> Iterator[Expr]:
    """Every sub-expression, outermost first."""
    stack = [expr]
    while stack:
        e = stack.pop()
        yield e
        stack.extend(reversed(operands(e)))


def nodes_of(expr: Expr) -> list[str]:
    """The ids of the nodes that an expression refers to, in order, each once."""
    return list(dict.fromkeys(e[1] for e in walk(expr) if isinstance(e, list) and e[0] == "node"))


def chains_of(expr: Expr) -> list[tuple[Chain, Wanted]]:
    """Every value that evaluating `expr` reads, and what of it."""
    found: list[tuple[Chain, Wanted]] = []

    def visit(e: Expr, wanted: Wanted) -> None:
        if not isinstance(e, list) or e[0] in {"skipped", "failed"}:
            return
        link = chain(e)
        if link is not None:
            found.append((link, wanted))
            return
        for sub in operands(e):
            visit(sub, _WANTED.get(e[0], ""))

    visit(expr, "")
    return list(dict.fromkeys(found))


def problem_of(expr: Expr) -> str | None:
    """What is wrong with the shape of an expression, or None."""
    count, stack = 0, [(expr, 1)]
    while stack:
        e, depth = stack.pop()
        count += 1
        if count > EXPRESSION_NODES_MAX:
            return f"the expression has more than {EXPRESSION_NODES_MAX} parts"
        if depth > EXPRESSION_DEPTH_MAX:
            return f"the expression is nested deeper than {EXPRESSION_DEPTH_MAX}"
        if e is None or isinstance(e, str | int | float | bool):
            continue
        if not isinstance(e, list) or not e or not isinstance(e[0], str):
            return f"{e!r} is not an expression: use a constant or [operator, ...]"
        wrong = _shape_problem(e)
        if wrong:
            return wrong
        stack.extend((sub, depth + 1) for sub in operands(e))
    return None


def _shape_problem(e: list[Any]) -> str | None:
    op, rest = e[0], e[1:]
    if op not in OPERATORS:
        return f"unknown operator {op!r}"
    if op in _ARITY and len(rest) != _ARITY[op]:
        return f"{op!r} takes {_ARITY[op]} operand(s), not {len(rest)}"
    if op in LEAVES and not all(isinstance(r, str) for r in rest):
        return f"{op!r} takes names"
    if op == "get" and (isinstance(rest[1], bool) or not isinstance(rest[1], str | int)):
        return "'get' takes a field name or an index"
    if op in {"skipped", "failed"} and not (isinstance(rest[0], list) and rest[0] and rest[0][0] == "node"):
        return f"{op!r} takes a node"
    if op == "dict" and (len(rest) % 2 or not all(isinstance(k, str) for k in rest[::2])):
        return "'dict' takes keys and values in turn"
    if op == "text" and not (rest and isinstance(rest[0], str)):
        return "'text' takes a template first"
    if op == "some" and not (len(rest) >= 2 and isinstance(rest[0], int) and 1 <= rest[0] <= len(rest) - 1):
        return "'some' takes a count between 1 and the number of its operands"
    if op in {"first", "and", "or"} and not rest:
        return f"{op!r} takes at least one operand"
    return None


def evaluate(expr: Expr, read: Callable[[Expr], Any]) -> Any:
    """The value of an expression. `read` answers for chains and for `size` of a chain, `skipped`, `failed`, `first`,
    `some`: everything that depends on more than values. Raises InvalidInput where an operator does not fit its
    operands; nothing else can go wrong."""
    if not isinstance(expr, list):
        return expr
    op = expr[0]
    if op in LEAVES or op in LOCATED or op in CHOICES or op in {"skipped", "failed"}:
        return read(expr)
    match op:
        case "const":
            return expr[1]
        case "get":
            return read(expr) if chain(expr) else follow(evaluate(expr[1], read), (expr[2],))
        case "size" | "count":
            return read(expr) if chain(expr[1]) else part_of(evaluate(expr[1], read), _WANTED[op])
        case "list":
            return [evaluate(e, read) for e in expr[1:]]
        case "dict":
            return {k: evaluate(e, read) for k, e in zip(expr[1::2], expr[2::2], strict=True)}
        case "and":
            value: Any = True
            for e in expr[1:]:
                value = evaluate(e, read)
                if not value:
                    return value
            return value
        case "or":
            value = False
            for e in expr[1:]:
                value = evaluate(e, read)
                if value:
                    return value
            return value
        case "not":
            return not evaluate(expr[1], read)
        case "is_none":
            return evaluate(expr[1], read) is None
        case "contains":
            return _contains(evaluate(expr[1], read), evaluate(expr[2], read))
        case "text":
            return _fill(expr[1], [evaluate(e, read) for e in expr[2:]])
        case "eq":
            return _same(evaluate(expr[1], read), evaluate(expr[2], read))
        case "ne":
            return not _same(evaluate(expr[1], read), evaluate(expr[2], read))
    left, right = evaluate(expr[1], read), evaluate(expr[2], read)
    if left is None or right is None:
        return False if op in COMPARISONS else None
    try:
        return _BINARY[op](left, right)
    except (TypeError, ZeroDivisionError, OverflowError, ValueError) as e:
        raise InvalidInput(f"cannot evaluate {op!r} of {_short(left)} and {_short(right)}: {e}") from None


def wanted_of(expr: Expr) -> tuple[Wanted, Expr]:
    """What an expression wants of the value below it: `["size", x]` wants the size of x."""
    wanted = _WANTED.get(expr[0], "")
    return wanted, expr[1] if wanted else expr


def part_of(value: Any, wanted: Wanted) -> Any:
    """A value, its size (of a list, an object or a text) or its number of items (of a list); else null."""
    if not wanted:
        return value
    return len(value) if isinstance(value, list) or (wanted == "#" and isinstance(value, dict | str)) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False  # JSON: true is not 1
    return bool(a == b)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(_same(part, item) for item in whole)
    return isinstance(whole, dict) and isinstance(part, str) and part in whole


def _fill(template: str, values: list[Any]) -> str:
    pieces = template.split("{}")
    if len(pieces) != len(values) + 1:
        raise InvalidInput(f"the text {_short(template)} has {len(pieces) - 1} places for {len(values)} value(s)")
    out = [pieces[0]]
    for value, piece in zip(values, pieces[1:], strict=True):
        out += ["" if value is None else str(value), piece]
    return "".join(out)


def _times(a: Any, b: Any) -> Any:
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        raise TypeError("only numbers can be multiplied")  # 'x' * 10**9 would fill the memory
    return a * b


def _remainder(a: Any, b: Any) -> Any:
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        raise TypeError("only numbers have a remainder")
    return a % b


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": _times,
    "div": lambda a, b: a / b,
    "mod": _remainder,
}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
