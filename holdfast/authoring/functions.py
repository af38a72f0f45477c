"""Functions: what is read from a user's function: its name and location, its fingerprint, its signature.

Owns: the names of handlers, the location that another process can load them from, the fingerprint by which a changed
function is found; finding ctx, resolving annotations (also under `from __future__ import annotations`), binding calls
by name.
Never: imports the user's code (see cli and opening), builds nodes (node_decorator.py).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, Literal

import msgspec

from holdfast.model.current import BodyContext, Current
from holdfast.model.handlers import CodeLocation, Parameter
from holdfast.model.module_names import importable, module_name


def handler_name(fn: Callable[..., Any]) -> str:
    """`shop.charge`: how definitions name a function."""
    return f"{module_name(fn)}.{fn.__qualname__}"


def is_local(fn: Callable[..., Any]) -> bool:
    """Whether the function exists in this process only: nothing that could be imported leads to it."""
    return "<" in fn.__qualname__ or not source_file(fn)


def source_file(fn: Callable[..., Any]) -> str:
    """The absolute path of the file a function was written in; empty for a REPL or a notebook."""
    code = _code_of(fn)
    if code is None or code.co_filename.startswith("<") or not os.path.isfile(code.co_filename):
        return ""
    return os.path.abspath(code.co_filename)


def location(fn: Callable[..., Any]) -> CodeLocation:
    """Where the function can be loaded from (SEMANTICS 17)."""
    file, module, name = source_file(fn), module_name(fn), fn.__qualname__
    if is_local(fn):
        return CodeLocation(kind="process", file=file, module=module, name=name)
    entry = _import_entry(file, module)
    if entry is not None and fn.__module__ != "__main__":
        return CodeLocation(kind="module", file=file, module=module, name=name, sys_path=entry)
    root = str(importable(Path(file))[0]) if "." in module else os.path.dirname(file)
    return CodeLocation(kind="file", file=file, module=module, name=name, sys_path=entry or root)


def fingerprint(fn: Callable[..., Any]) -> str:
    """A hash of what the function does: its syntax tree without docstring, comments and decorators."""
    tree = _function_tree(fn)
    if tree is not None:
        text = "".join(_dump(tree))
    else:
        code = _code_of(fn)
        text = "" if code is None else repr((code.co_code, code.co_names, code.co_varnames, _constants(code)))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def describe(fn: Callable[..., Any]) -> str:
    """`shop.py:12`, for messages."""
    code = _code_of(fn)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else repr(fn)


def _code_of(fn: Callable[..., Any]) -> CodeType | None:
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn.__code__ if isinstance(fn, FunctionType) else None


def _import_entry(file: str, module: str) -> str | None:
    """The entry of sys.path from which `import module` finds this file."""
    parts = module.split(".")
    path = Path(file)
    if path.stem == "__init__":
        path = path.parent
    for part in reversed(parts):
        if path.stem != part:
            return None
        path = path.parent
    entry = str(path)
    known = {os.path.abspath(p or os.curdir) for p in sys.path}
    return entry if entry in known else None


_trees: dict[str, tuple[float, dict[tuple[str, int], ast.AST]]] = {}


def _function_tree(fn: Callable[..., Any]) -> ast.AST | None:
    """The definition of a function, from its file parsed once; None when there is no (unchanged) source."""
    file, code = source_file(fn), _code_of(fn)
    if not file or code is None:
        return None
    try:
        changed_at = os.stat(file).st_mtime
        if file not in _trees or _trees[file][0] != changed_at:
            _trees[file] = (changed_at, _functions(Path(file).read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return _trees[file][1].get((code.co_name, code.co_firstlineno))


def _functions(source: bytes) -> dict[tuple[str, int], ast.AST]:
    found: dict[tuple[str, int], ast.AST] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first_line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name, first_line] = node
    return found


def _dump(node: Any, top: bool = True) -> Iterator[str]:
    """A syntax tree as text; absent fields are left out, so that new ones in a later Python change nothing."""
    if isinstance(node, ast.AST):
        yield type(node).__name__ + "("
        for name, value in ast.iter_fields(node):
            if value is None or value == [] or name in {"type_comment", "kind"} or (top and name == "decorator_list"):
                continue
            if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                value = _without_docstring(value)
            yield name + "="
            yield from _dump(value, top=False)
            yield ","
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            yield from _dump(item, top=False)
            yield ","
        yield "]"
    else:
        yield repr(node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
        case _:
            return body


def _constants(code: CodeType) -> list[str]:
    """Constants without memory addresses; the first one may be the docstring."""
    constants = code.co_consts[1:] if code.co_consts and isinstance(code.co_consts[0], str) else code.co_consts
    return [repr(_constants(c)) + repr(c.co_code) if isinstance(c, CodeType) else repr(c) for c in constants]


# --- signatures --------------------------------------------------------------------------------------------------

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


def signature_of(fn: Callable[..., Any], names: Mapping[str, Any]) -> Signature:
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
                f"{fn.__qualname__}: the annotation {annotation!r} of {what} does not exist at run time; "
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
    """Whether the first parameter may be None, by its annotation or its default."""
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
