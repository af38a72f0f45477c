"""Code: where a function was written, and whether it changed.

Owns: the names of handlers, the location another process can load them from, and the fingerprint of a function.
Never: imports anything (see cli and opening).
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from holdfast.model.handlers import CodeLocation
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
