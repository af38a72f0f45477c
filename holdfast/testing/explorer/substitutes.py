"""Substitutes: replace callables for the time of an exploration.

Owns: finding a callable by its name (`shop.payments.charge`, `shop.payments:charge`, or the object itself), and
replacing it wherever a loaded module refers to it, until the block ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.authoring.node_decorator import Node
from holdfast.model import handlers
from holdfast.model.errors import UsageError
from holdfast.model.handlers import Handler
from holdfast.worker import steps


def find(what: Any) -> tuple[str, Any]:
    """A callable and its name."""
    if not isinstance(what, str):
        if not callable(what):
            raise UsageError(f"{what!r} is not a callable, nor the name of one")
        return name_of(what), what
    module_name, _, rest = what.partition(":")
    if rest:
        return what, _attribute(_imported(module_name, what), rest, what)
    parts = what.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        if name in sys.modules or _exists(name):
            return what, _attribute(_imported(name, what), ".".join(parts[cut:]), what)
    raise UsageError(f"{what!r}: there is no such module; write `module.name` or `module:name`")


def name_of(what: Any) -> str:
    if isinstance(what, Node):
        return what.name
    return f"{getattr(what, '__module__', '?')}.{getattr(what, '__qualname__', repr(what))}"


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _imported(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{what!r}: {name} cannot be imported: {error}") from None


def _attribute(module: Any, path: str, what: str) -> Any:
    found = module
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise UsageError(f"{what!r}: {module.__name__} has no {path}")
    if not callable(found):
        raise UsageError(f"{what!r} is not callable")
    return found


@contextmanager
def put(original: Any, substitute: Callable[..., Any]) -> Iterator[None]:
    """Replace a callable in every module that refers to it; a node keeps its name and its options."""
    undo: list[Callable[[], None]] = []
    if isinstance(original, Node):
        _put_into_node(original, substitute, undo)
    else:
        for owner in _owners(original):
            for name in [name for name, value in list(vars(owner).items()) if value is original]:
                _set(owner, name, substitute, undo)
    try:
        yield
    finally:
        for step in reversed(undo):
            step()


def _owners(original: Any) -> Iterator[Any]:
    """All modules, and the class of a method."""
    for module in list(sys.modules.values()):
        if inspect.ismodule(module):
            yield module
    path = getattr(original, "__qualname__", "").split(".")[:-1]
    owner: Any = sys.modules.get(getattr(original, "__module__", ""))
    for part in path:
        owner = getattr(owner, part, None)
    if inspect.isclass(owner):
        yield owner


def _set(owner: Any, name: str, value: Any, undo: list[Callable[[], None]]) -> None:
    before = vars(owner)[name]
    setattr(owner, name, value)
    undo.append(lambda: setattr(owner, name, before))


def _put_into_node(node: Node[..., Any], substitute: Callable[..., Any], undo: list[Callable[[], None]]) -> None:
    before = node.handler
    kind = before.kind
    if kind in ("async", "sync"):
        kind = "async" if inspect.iscoroutinefunction(substitute) else "sync"
    is_registered = handlers.find(node.name) is before

    def use(handler: Handler) -> None:
        node.__dict__["handler"] = handler
        steps.forget(node)
        if is_registered:
            handlers.register(node.name, lambda: handler)  # the registry keeps what it has resolved once

    use(msgspec.structs.replace(before, fn=substitute, kind=kind))
    undo.append(lambda: use(before))
