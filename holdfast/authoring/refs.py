"""Refs: what a traced function sees instead of values.

Owns: `Ref`, whose fields, items and operators build expressions, the errors for everything that cannot be one, and
turning arguments (constants, Refs, lists and dicts of them) into expressions.
Never: evaluates anything (see model/expressions.py), adds nodes (see tracing.py).
Invariant: a Ref has no public attribute of its own, so that every name can be a field.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, get_origin

from holdfast.authoring import fields
from holdfast.model.errors import HoldfastError, TraceError
from holdfast.model.expressions import Expr
from holdfast.model.values import builtins

_NOT_THE_AUTHORS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.abspath(contextlib.__file__))


class Frame(Protocol):
    """The body in which a Ref means something: the workflow's, or that of a map or loop (see tracing.py)."""

    @property
    def depth(self) -> int: ...


class Ref:
    """A value that will exist when the workflow runs."""

    __slots__ = ("_hf_annotation", "_hf_expr", "_hf_frame")
    _hf_expr: Expr
    _hf_annotation: Any
    _hf_frame: Frame

    def __init__(self, expr: Expr, annotation: Any, frame: Frame) -> None:
        object.__setattr__(self, "_hf_expr", expr)
        object.__setattr__(self, "_hf_annotation", annotation)
        object.__setattr__(self, "_hf_frame", frame)

    def __repr__(self) -> str:
        return f"<reference {self._hf_expr}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python asking for a protocol, not the author for a field
        key, annotation = _field(self, name)
        return Ref(["get", self._hf_expr, key], annotation, self._hf_frame)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Ref):
            raise trace_error("an index must be a constant here; read the item in a node")
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise trace_error(f"{key!r} is not a field name or an index; take slices in a node")
        known = fields.shape(self._hf_annotation)
        if isinstance(key, str) and known.fields is not None and known.by_key:
            key, annotation = _field(self, key)
        else:
            annotation = fields.item(self._hf_annotation, key)
        return Ref(["get", self._hf_expr, key], annotation, self._hf_frame)

    def __eq__(self, other: object) -> Any:
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _binary("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return _binary("ge", self, other)

    def __and__(self, other: Any) -> Any:
        return _logic("and", self, other)

    def __rand__(self, other: Any) -> Any:
        return _logic("and", other, self)

    def __or__(self, other: Any) -> Any:
        return _logic("or", self, other)

    def __ror__(self, other: Any) -> Any:
        return _logic("or", other, self)

    def __invert__(self) -> Any:
        return _logic("not", self)

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("div", other, self)

    def __mod__(self, other: Any) -> Any:
        return _binary("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _binary("mod", other, self)

    def __setattr__(self, name: str, value: Any) -> None:
        raise trace_error("a reference cannot be changed; let a node return the changed value")

    def __hash__(self) -> int:
        raise trace_error("a reference cannot be a dictionary key or a member of a set; use a list or a dict's value")


_FORBIDDEN = {
    "a reference has no truth value while the graph is traced; use hf.when(x), hf.route(x), and & | ~ instead of "
    "and, or, not (and instead of a chain such as 1 < x < 5)": ["__bool__"],
    "len() of a reference is not known while the graph is traced; use hf.size(x)": ["__len__", "__length_hint__"],
    "a reference cannot be iterated while the graph is traced; use hf.map(fn, x) for each item, x[0] for one of them": [
        "__iter__",
        "__next__",
        "__reversed__",
        "__aiter__",
    ],
    "'in' cannot read a reference while the graph is traced; use hf.contains(x, item)": ["__contains__"],
    'a reference cannot be formatted while the graph is traced; use hf.text("…{}", x)': ["__format__", "__str__"],
    "calls in a graph are not awaited; write the call alone, or use 'async def' with a ctx for durable code": [
        "__await__",
        "__aenter__",
    ],
    "a reference cannot be called; call methods of a value in a node": ["__call__"],
    "a reference is not a number while the graph is traced; compute it in a node": [
        *("__int__", "__float__", "__complex__", "__index__", "__round__", "__abs__", "__neg__", "__pos__"),
        *("__floordiv__", "__rfloordiv__", "__pow__", "__rpow__", "__divmod__", "__rdivmod__", "__xor__", "__rxor__"),
        *("__lshift__", "__rlshift__", "__rshift__", "__rrshift__", "__matmul__", "__rmatmul__", "__trunc__"),
    ],
    "a reference is not a context manager; use hf.when(x) or hf.route(x)": ["__enter__"],
    "a reference is not a path while the graph is traced; open files in a node": ["__fspath__"],
    "a reference cannot be changed; let a node return the changed value": [
        *("__setitem__", "__delitem__", "__delattr__"),
    ],
    "a reference cannot be copied or pickled; pass it on as it is": ["__reduce_ex__"],
}


def _forbid(message: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise trace_error(message)

    return refuse


for _message, _names in _FORBIDDEN.items():
    for _name in _names:
        setattr(Ref, _name, _forbid(_message))


# --- building expressions ---------------------------------------------------------------------------------------


def build(operator: str, *operands: Any, annotation: Any = Any) -> Any:
    """`[operator, operand, ...]` as a Ref; at least one operand is one."""
    parts = [expression(x) for x in operands]
    frame = deepest(*operands)
    assert frame is not None
    return Ref([operator, *parts], annotation, frame)


def expression(value: Any, annotation: Any = Any, *, what: str = "a constant") -> Expr:
    """An argument as an expression: a Ref, a constant, or lists, tuples and dicts of them."""
    if value is None or type(value) in (bool, int, str):
        return value if type(value) is not str else _constant(value, annotation, what)
    if isinstance(value, Ref):
        return value._hf_expr
    if isinstance(value, list | tuple) and _has_ref(value):
        return ["list", *(expression(v, what=f"{what}[{i}]") for i, v in enumerate(value))]
    if isinstance(value, dict) and _has_ref(value):
        parts: list[Expr] = []
        for key, v in value.items():
            if not isinstance(key, str):
                raise trace_error(f"{what}: the key {key!r} is {type(key)}, and JSON keys are text")
            parts += [key, expression(v, what=f"{what}[{key!r}]")]
        return ["dict", *parts]
    return _constant(value, annotation, what)


def deepest(*values: Any) -> Frame | None:
    """The innermost body that the Refs in these values belong to; None without any."""
    frames = [ref._hf_frame for value in values for ref in refs_in(value)]
    return max(frames, key=lambda f: f.depth, default=None)


def refs_in(value: Any) -> list[Ref]:
    """Every Ref in an argument."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, list | tuple):
        return [ref for v in value for ref in refs_in(v)]
    if isinstance(value, dict):
        return [ref for v in value.values() for ref in refs_in(v)]
    return []


def type_of(value: Any) -> Any:
    """The annotation of a Ref; for a constant its class, Any for None."""
    if isinstance(value, Ref):
        return value._hf_annotation
    return Any if value is None else type(value)


def check_truth(what: str, value: Any) -> None:
    """Refuse a value that cannot be true or false: conditions have no truth of numbers, texts and lists."""
    kind = type_of(value)
    if kind in (int, float, str, list, dict) or get_origin(kind) in (list, dict):
        name = getattr(kind, "__name__", kind)
        raise trace_error(
            f"{what} takes true or false, and this is a {name}; compare it, as in x > 0 or hf.size(x) > 0"
        )


def frame_of(ref: Ref) -> Frame:
    """The body a Ref belongs to."""
    return ref._hf_frame


def trace_error(message: str) -> TraceError:
    """A TraceError that begins with the line of the author's code it is about."""
    return TraceError(f"{author_line()}{message}")


def author_line() -> str:
    """`shop.py:12: `, where the author's code called us; empty if that cannot be seen."""
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_NOT_THE_AUTHORS):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}: "


def close_matches(name: str, known: list[str]) -> str:
    """`; did you mean 'amount'?`, or what there is."""
    near = difflib.get_close_matches(name, known, n=3)
    if near:
        return "; did you mean " + " or ".join(repr(n) for n in near) + "?"
    return "; there is " + ", ".join(repr(n) for n in known[:10]) if known else ""


def _constant(value: Any, annotation: Any, what: str) -> Expr:
    if callable(value) and not isinstance(value, type):
        name = getattr(value, "__name__", None) or getattr(value, "name", None) or type(value).__name__
        raise trace_error(f"{what} is the function {name}: call it and pass what it returns")
    try:
        plain = builtins(value, annotation, what=what)
    except HoldfastError as e:
        if "authoring.refs.Ref" in e.message:
            raise trace_error(
                f"{what}: a reference inside a {type(value).__name__}; pass a dict of references instead"
            ) from None
        raise trace_error(f"{what} cannot be stored in the definition: {e.message}") from None
    return ["const", plain] if isinstance(plain, list | dict) else plain


def _has_ref(value: Any) -> bool:
    return bool(refs_in(value))


_AS_WRITTEN = {"and": "&", "or": "|", "not": "~"}


def _logic(operator: str, *operands: Any) -> Any:
    for operand in operands:
        check_truth(_AS_WRITTEN[operator], operand)
    return build(operator, *operands, annotation=bool)


def _binary(operator: str, left: Any, right: Any) -> Any:
    compares = operator in {"eq", "ne", "lt", "le", "gt", "ge"}
    if left is not None and right is not None:
        for side in (left, right):
            kind = fields.compares_as_text(type_of(side))
            if kind is not None:
                raise trace_error(
                    f"a {kind.__name__} is stored as text and cannot be {'compared' if compares else 'computed with'} "
                    f"in the graph; do it in a node"
                )
    annotation: Any = bool if compares else _number_type(operator, type_of(left), type_of(right))
    return build(operator, left, right, annotation=annotation)


def _number_type(operator: str, left: Any, right: Any) -> Any:
    if left == right and left in (int, float, str):
        return float if operator == "div" else left
    return float if {left, right} == {int, float} else Any


def _field(ref: Ref, name: str) -> fields.Field:
    known = fields.shape(ref._hf_annotation)
    if known.fields is None:
        if known.by_key:
            raise trace_error(f'a {known.title} has no field {name!r}; use ["{name}"]')
        return fields.Field(name, Any)
    found = known.fields.get(name)
    if found is not None:
        return found
    hint = close_matches(name, sorted(known.fields))
    if not hint:
        hint = "; use methods and properties of a value in a node"
        if known.title.startswith(("list", "tuple", "set")):
            hint = "; use [0] for an item, hf.size(x), hf.contains(x, item) or hf.map(fn, x)"
    raise trace_error(f"{known.title} has no field {name!r}{hint}")
