"""Expressions: conditions and arguments as data, evaluated by one pure function.

An expression is a scalar constant (null, bool, number, text) or a list `[operator, operand, ...]`:

    ["input", name]            a parameter of the workflow          ["var", name]        a variable
    ["node", id]               the output of a node                 ["param", scope, name]  a parameter of a map or loop
    ["get", x, key]            a field or an index of x             ["const", value]     any JSON value as it is
    ["list", x, ...]           a list                               ["dict", key, x, ...]  an object
    ["eq"|"ne"|"lt"|"le"|"gt"|"ge", a, b]   comparisons             ["and"|"or", a, b, ...]  ["not", a]
    ["add"|"sub"|"mul"|"div"|"mod", a, b]   arithmetic              ["size", x]  ["contains", x, item]  ["is_none", x]
    ["if", condition, a, b]    a where the condition holds, else b  ["starts_with"|"ends_with", text, part]
    ["text", template, x, ...] "{}" filled in order                 ["skipped"|"failed", ["node", id]]
    ["first", x, ...]          the first operand, in order, whose nodes completed
    ["some", n, x, ...]        the list of the n operands that completed earliest, in argument order

Rules also ask ["count", x], the number of items of a list; it never stands in a definition.
Null rules: a field of null is null; `eq` and `ne` compare; every other comparison with null is false; arithmetic with
null is null. Conditions and the operands of `and`, `or`, `not` are true, false or null, which counts as false. true and
false are never numbers. Numbers are compared and computed with numbers, texts compared and joined with texts, lists
joined with lists; anything else is an error.
A *chain* is `get` ... `get` over a leaf (`input`, `node`, `var`, `param`): what a value is read by.

Owns: the operators, their meaning, size checks, chains and pointers.
Never: loads a value (the caller passes `read`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from holdfast.model.errors import InvalidInput
from holdfast.model.limits import EXPRESSION_DEPTH_MAX, EXPRESSION_NODES_MAX, NUMBER_BITS_MAX

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
CHOOSING = CHOICES | {"skipped", "failed"}
"""Operators whose value depends on which nodes completed."""
AFFIXES = frozenset({"starts_with", "ends_with"})
LOCATED = frozenset({"at", "items", "var_at", "captured"})
"""Leaves of located expressions (references.py) and of compiled conditions (plans.py); never in a definition."""
OPERATORS = (
    LEAVES
    | COMPARISONS
    | ARITHMETIC
    | CHOICES
    | AFFIXES
    | {"get", "const", "list", "dict", "and", "or", "not", "size", "contains", "is_none", "text", "skipped", "failed"}
    | {"if"}
)
NEEDS_FORMAT: Final = {"if": 2, "starts_with": 2, "ends_with": 2}
"""Operators that the first format does not have, and the format that has them (journal_format.py)."""
_ARITY = {"get": 2, "const": 1, "not": 1, "size": 1, "contains": 2, "is_none": 1, "skipped": 1, "failed": 1}
_ARITY |= {"input": 1, "node": 1, "var": 1, "param": 2, "if": 3}
_ARITY |= dict.fromkeys(COMPARISONS | ARITHMETIC | AFFIXES, 2)


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


def nodes_of(*exprs: Expr) -> list[str]:
    """The ids of the nodes that expressions refer to, in order, each once."""
    return list(dict.fromkeys(e[1] for x in exprs for e in walk(x) if isinstance(e, list) and e[0] == "node"))


def chooses(expr: Expr) -> bool:
    """Whether the value depends on which nodes completed, and not on their outputs alone."""
    return any(isinstance(e, list) and e[0] in CHOOSING for e in walk(expr))


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
        subs = operands(e)
        if e[0] == "if":  # the size of a choice is the size of what is chosen
            visit(subs.pop(0), "")
        else:
            wanted = _WANTED.get(e[0], "")
        for sub in subs:
            visit(sub, wanted)

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
    if op in {"first", "and", "or"} and len(rest) < (1 if op == "first" else 2):
        return f"{op!r} takes at least {'one operand' if op == 'first' else 'two operands'}"
    return None


# --- meaning -----------------------------------------------------------------------------------------------------

Read = Callable[[Expr], Any]


def evaluate(expr: Expr, read: Read) -> Any:
    """The value of an expression. `read` answers for chains and for `size` of a chain, `skipped`, `failed`, `first`,
    `some`: everything that depends on more than values. Raises InvalidInput where an operator does not fit its
    operands; nothing else can go wrong."""
    return _MEANING[expr[0]](expr, read) if type(expr) is list else expr


def holds(value: Any, what: str = "a condition") -> bool:
    """Whether the value of a condition is true; null counts as false. Raises InvalidInput for anything but true, false
    and null."""
    if value is True:
        return True
    if value is False or value is None:
        return False
    raise InvalidInput(
        f"{what} takes true, false or null, not {_short(value)}; compare the value, as in `x != null` or `size(x) > 0`"
    )


def _get(expr: list[Any], read: Read) -> Any:
    return read(expr) if chain(expr) else follow(evaluate(expr[1], read), (expr[2],))


def _size(expr: list[Any], read: Read) -> Any:
    op, whole = expr
    if type(whole) is list and whole[0] == "if":  # of what is chosen, so that only its size need be known
        return evaluate([op, whole[2 if holds(evaluate(whole[1], read), "?:") else 3]], read)
    return read(expr) if chain(whole) else part_of(evaluate(whole, read), _WANTED[op])


def _each(exprs: list[Expr], read: Read) -> list[Any]:
    values = []
    for e in exprs:  # not a comprehension: what a loop carries nests once for each round, and frames are limited
        values.append(_MEANING[e[0]](e, read) if type(e) is list else e)
    return values


def _all(expr: list[Any], read: Read) -> bool:
    for e in expr[1:]:
        value = _MEANING[e[0]](e, read) if type(e) is list else e
        if value is not True and not holds(value, "&&"):
            return False
    return True


def _any(expr: list[Any], read: Read) -> bool:
    for e in expr[1:]:
        value = _MEANING[e[0]](e, read) if type(e) is list else e
        if value is True or holds(value, "||"):
            return True
    return False


def _equal(expr: list[Any], read: Read) -> bool:
    op, a, b = expr
    if type(a) is list:
        a = _MEANING[a[0]](a, read)
    if type(b) is list:
        b = _MEANING[b[0]](b, read)
    return _same(a, b) is (op == "eq")


def _order(expr: list[Any], read: Read) -> bool:
    op, a, b = expr
    if type(a) is list:
        a = _MEANING[a[0]](a, read)
    if type(b) is list:
        b = _MEANING[b[0]](b, read)
    if (type(a) in _NUMBERS and type(b) in _NUMBERS) or (type(a) is str and type(b) is str):
        return _COMPUTE[op](a, b) is True
    if a is None or b is None:
        return False
    raise InvalidInput(f"{_SYMBOLS[op]} compares two numbers or two texts, not {_short(a)} and {_short(b)}")


def _arithmetic(expr: list[Any], read: Read) -> Any:
    op, a, b = expr
    if type(a) is list:
        a = _MEANING[a[0]](a, read)
    if type(b) is list:
        b = _MEANING[b[0]](b, read)
    if a is None or b is None:
        return None
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        try:
            return _bounded(_COMPUTE[op](a, b))
        except (ZeroDivisionError, OverflowError) as e:
            raise InvalidInput(f"{_short(a)} {_SYMBOLS[op]} {_short(b)} cannot be computed: {e}") from None
    if op == "add" and type(a) is type(b) and type(a) in (str, list):
        return a + b
    what = "takes two numbers, two texts or two lists" if op == "add" else "takes two numbers"
    raise InvalidInput(f"{_SYMBOLS[op]} {what}, not {_short(a)} and {_short(b)}")


def _affix(expr: list[Any], read: Read) -> bool:
    op, text, part = expr[0], evaluate(expr[1], read), evaluate(expr[2], read)
    if type(text) is str and type(part) is str:
        return text.startswith(part) if op == "starts_with" else text.endswith(part)
    if text is None or part is None:
        return False
    raise InvalidInput(f"{_SYMBOLS[op]} takes two texts, not {_short(text)} and {_short(part)}")


_NUMBERS: Final = frozenset({int, float})  # not bool, which is a kind of int in Python
_SYMBOLS: Final = {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%",
    "starts_with": "startsWith", "ends_with": "endsWith",
}  # fmt: skip
_COMPUTE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "mod": operator.mod,
}  # fmt: skip
_MEANING: Final[dict[str, Callable[[list[Any], Read], Any]]] = {
    **dict.fromkeys(LEAVES | LOCATED | CHOICES | {"skipped", "failed"}, lambda expr, read: read(expr)),
    "const": lambda expr, _: expr[1],
    "get": _get,
    "size": _size,
    "count": _size,
    "list": lambda expr, read: _each(expr[1:], read),
    "dict": lambda expr, read: dict(zip(expr[1::2], _each(expr[2::2], read), strict=True)),
    "text": lambda expr, read: _fill(expr[1], _each(expr[2:], read)),
    "and": _all,
    "or": _any,
    "not": lambda expr, read: not holds(evaluate(expr[1], read), "!"),
    "if": lambda expr, read: evaluate(expr[2 if holds(evaluate(expr[1], read), "?:") else 3], read),
    "is_none": lambda expr, read: evaluate(expr[1], read) is None,
    "contains": lambda expr, read: _has(evaluate(expr[1], read), evaluate(expr[2], read)),
    **dict.fromkeys(("eq", "ne"), _equal),
    **dict.fromkeys(("lt", "le", "gt", "ge"), _order),
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys(AFFIXES, _affix),
}


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
    kind = type(a)
    if kind is str or (kind is not type(b) and bool in (kind, type(b))):  # JSON: true is not 1
        return kind is type(b) and bool(a == b)
    if kind is list and type(b) is list:
        return len(a) == len(b) and all(map(_same, a, b))
    if kind is dict and type(b) is dict:
        return a.keys() == b.keys() and all(_same(x, b[k]) for k, x in a.items())
    return bool(a == b)


def _has(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(_same(part, item) for item in whole)
    return isinstance(whole, dict) and isinstance(part, str) and part in whole


_canonical = msgspec.json.Encoder(order="deterministic").encode


def _fill(template: str, values: list[Any]) -> str:
    """Fill the places of a template: texts as they are, null as nothing, other values as canonical JSON."""
    pieces = template.split("{}")
    if len(pieces) != len(values) + 1:
        raise InvalidInput(f"the text {_short(template)} has {len(pieces) - 1} places for {len(values)} value(s)")
    out = [pieces[0]]
    for value, piece in zip(values, pieces[1:], strict=True):
        out += [value if type(value) is str else "" if value is None else _canonical(value).decode(), piece]
    return "".join(out)


def _bounded(number: Any) -> Any:
    """The result of a computation, unless JSON has no such number: it would be stored as null, or grow without end."""
    if not (math.isfinite(number) if type(number) is float else number.bit_length() <= NUMBER_BITS_MAX):
        raise OverflowError("the result is too large")
    return number


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
