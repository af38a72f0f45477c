"""Signatures: what a function takes and returns, read from its annotations at first use.

Owns: finding ctx, resolving annotations (also under `from __future__ import annotations`), binding calls by name.
Never: builds nodes (see nodes.py).
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from holdfast.model.current import BodyContext, Current
from holdfast.model.handlers import Parameter

CHILD_OPTIONS: Final = frozenset({"run_id", "priority", "timeout", "detached"})
"""What may be said about a child beside its inputs."""

RESERVED_INPUTS: Final = CHILD_OPTIONS | {"db", "persistence", "queue"}
"""Names that `start`, `child` and `hf.run` keep for themselves."""

_KIND: Final[dict[Any, Literal["", "*", "**"]]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """A function's parameters without ctx, the defaults of those that have one, and its result."""

    takes_ctx: bool
    takes_current: bool = False
    """The first parameter is an `hf.Current`; it is not among the parameters, either."""
    params: tuple[Parameter, ...]
    defaults: dict[str, Any]
    returns: Any
    python: inspect.Signature
    """Without ctx: what binds a call."""

    def first(self) -> Parameter | None:
        """The parameter that the first positional argument goes to."""
        return next((p for p in self.params if not p.variadic and not p.keyword_only), None)

    def param(self, name: str) -> Parameter | None:
        """The parameter that takes an argument of this name; `**kwargs` takes the unknown ones."""
        for p in self.params:
            if p.name == name and not p.variadic:
                return p
        return next((p for p in self.params if p.variadic == "**"), None)


def read(fn: Callable[..., Any], names: Mapping[str, Any]) -> Signature:
    """The signature of a function; `names` are what its annotations may name besides its globals."""
    python = inspect.signature(fn)
    hints = resolve(fn, names)
    with_ctx, with_current = takes_ctx(fn, names), takes_current(fn, names)
    listed = list(python.parameters.values())[1 if with_ctx or with_current else 0 :]
    return Signature(
        takes_ctx=with_ctx,
        takes_current=with_current,
        params=tuple(_parameter(p, hints.get(p.name, Any)) for p in listed),
        defaults={p.name: p.default for p in listed if p.default is not p.empty},
        returns=hints.get("return", Any),
        python=python.replace(parameters=listed),
    )


def parameters(fn: Callable[..., Any], names: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The parameters without ctx and without their types, which may not exist yet when the function is decorated."""
    is_given = takes_ctx(fn, names) or takes_current(fn, names)
    listed = list(inspect.signature(fn).parameters.values())[1 if is_given else 0 :]
    return tuple(_parameter(p, Any) for p in listed)


def _parameter(p: inspect.Parameter, annotation: Any) -> Parameter:
    return Parameter(
        name=p.name,
        annotation=annotation,
        required=p.default is p.empty and p.kind not in _KIND,
        variadic=_KIND.get(p.kind, ""),
        positional_only=p.kind is p.POSITIONAL_ONLY,
        keyword_only=p.kind is p.KEYWORD_ONLY,
    )


def takes_ctx(fn: Callable[..., Any], names: Mapping[str, Any]) -> bool:
    """Whether the first parameter is the context: by its annotation, or by the name `ctx` without one."""
    first = _first(fn)
    if first is None:
        return False
    if first.annotation is first.empty:
        return first.name == "ctx"
    found = _resolve_one(fn, first.annotation, names)
    if found is None:  # a name that exists for type checkers only
        return str(first.annotation).rpartition(".")[2] == "Context"
    return isinstance(found, type) and issubclass(found, BodyContext) and found is not Current


def takes_current(fn: Callable[..., Any], names: Mapping[str, Any]) -> bool:
    """Whether the first parameter is annotated with `hf.Current`."""
    first = _first(fn)
    if first is None or first.annotation is first.empty:
        return False
    return _resolve_one(fn, first.annotation, names) is Current


def _first(fn: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter that the first positional argument goes to."""
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    return None if first is None or first.kind in _KIND or first.kind is first.KEYWORD_ONLY else first


def resolve(fn: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations as types; one that cannot be resolved is left out, with a warning."""
    plain = _unwrapped(fn)
    try:
        return typing.get_type_hints(plain, localns=dict(names) or None, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating the user's annotations may raise anything; each is tried alone
        hints = {}
    for name, annotation in inspect.get_annotations(plain).items():
        found = _resolve_one(fn, annotation, names)
        if found is not None:
            hints[name] = found
        elif str(annotation).rpartition(".")[2] != "Context":
            what = "the result" if name == "return" else f"parameter {name!r}"
            warnings.warn(
                f"{fn.__qualname__}: the annotation {annotation!r} of {what} names nothing that exists at run time; "
                f"its values stay plain JSON types",
                stacklevel=2,
            )
    return hints


def enclosing_names(fn: Callable[..., Any], frame: types.FrameType | None) -> dict[str, Any]:
    """What text annotations of a function inside another one may name: what the frame it is made in has under the
    names that they mention."""
    if "<locals>" not in getattr(fn, "__qualname__", "") or frame is None:
        return {}
    if frame.f_code.co_name == "<module>":
        return {}
    texts = [a for a in inspect.get_annotations(fn).values() if isinstance(a, str)]
    local = frame.f_locals
    return {name: local[name] for text in texts for name in _names_in(text) if name in local}


def accepts_none(signature: Signature) -> bool:
    """Whether the first parameter may be None: its annotation says so, or None is its default."""
    first = signature.first()
    if first is None:
        return False
    if first.name in signature.defaults and signature.defaults[first.name] is None:
        return True
    annotation = first.annotation
    return annotation is None or annotation is type(None) or type(None) in typing.get_args(annotation)


def _names_in(annotation: str) -> set[str]:
    try:
        tree = ast.parse(annotation, mode="eval")
    except SyntaxError:
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _resolve_one(fn: Callable[..., Any], annotation: Any, names: Mapping[str, Any]) -> Any:
    """One annotation as a type; None when it names something that does not exist (the type None is NoneType)."""
    if not isinstance(annotation, str):
        return type(None) if annotation is None else annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = typing.get_type_hints(holder, _unwrapped(fn).__globals__, dict(names), include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating the user's annotation may raise anything
        return None
    return hints["it"]


def _unwrapped(fn: Callable[..., Any]) -> Any:
    fn = inspect.unwrap(fn)
    return fn.func if isinstance(fn, functools.partial) else fn
