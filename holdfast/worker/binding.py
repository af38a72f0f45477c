"""Binding: stored bytes become a body's arguments, by its annotations.

Owns: which parameter gets which value, and the decoders for them, compiled once per handler.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model.errors import InvalidInput
from holdfast.model.events import Failed
from holdfast.model.handlers import Handler
from holdfast.model.references import UNDONE
from holdfast.model.values import decoder

_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_error = msgspec.json.Decoder(dict[str, ev.ErrorInfo]).decode
_FAILED_MARK = b'{"$failed":'


class Binder:
    """Makes the arguments of one handler."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._decoders = {p.name: item_decoder(p.annotation) for p in handler.params if not p.variadic}
        self._first = next((p.name for p in handler.params if not p.variadic and not p.keyword_only), "")
        rest = next((p for p in handler.params if p.variadic == "*"), None)
        extra = next((p for p in handler.params if p.variadic == "**"), None)
        self._rest = item_decoder(rest.annotation if rest is not None else Any)
        self._extra = item_decoder(extra.annotation if extra is not None else Any)
        self._by_name = not any(p.variadic == "*" or p.positional_only for p in handler.params)
        """Every argument can be given by its name."""

    def bind(self, args: dict[str, Any], load: Callable[[Any], bytes]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments; a value that does not fit its annotation is InvalidInput by name."""
        values: dict[str, Any] = {}
        for name, located in args.items():
            decode = self._decoders.get(name)
            if decode is not None:
                data = load(located)
                try:
                    values[name] = decode(data)
                except InvalidInput as e:
                    raise self._misfit(name, e) from None
            elif name == UNDONE:
                values[self._first] = self._decode(self._first, self._decoders[self._first], load(located))
            elif name == "*":
                values["*"] = [self._decode(name, self._rest, bytes(raw)) for raw in _items(load(located))]
            else:
                values[name] = self._decode(name, self._extra, load(located))
        if self._by_name and "*" not in values:
            return [], values
        return self.handler.call_arguments(values)

    def _decode(self, name: str, decode: Callable[[bytes], Any], data: bytes) -> Any:
        try:
            return decode(data)
        except InvalidInput as e:
            raise self._misfit(name, e) from None

    def _misfit(self, name: str, e: InvalidInput) -> InvalidInput:
        return InvalidInput(f"argument {name} of {self.handler.name}: {e.message}")

    @staticmethod
    def is_quick(args: dict[str, Any]) -> bool:
        """Whether no argument is the whole output of a map, which may be very many rows."""
        for located in args.values():
            if isinstance(located, list) and located and located[0] != "at" and _has_items(located):
                return False
        return True


def _has_items(located: list[Any]) -> bool:
    stack = [located]
    while stack:
        e = stack.pop()
        if e and e[0] == "items":
            return True
        if e and e[0] not in ("at", "var_at", "const"):
            stack.extend(x for x in e[1:] if isinstance(x, list))
    return False


def item_decoder(annotation: Any) -> Callable[[bytes], Any]:
    """A decoder; in `list[T | hf.Failed]` the failed items become `hf.Failed`."""
    if typing.get_origin(annotation) is list:
        (inner,) = typing.get_args(annotation) or (Any,)
        if typing.get_origin(inner) in (typing.Union, types.UnionType) and Failed in typing.get_args(inner):
            others = tuple(t for t in typing.get_args(inner) if t is not Failed)
            plain = decoder(typing.Union[others] if others else Any)  # noqa: UP007 - the members are known at run time only
            return lambda data: [_item(bytes(raw), plain) for raw in _items(data)]
    return decoder(annotation)


def _item(data: bytes, plain: Callable[[bytes], Any]) -> Any:
    return Failed(_error(data)["$failed"]) if data.startswith(_FAILED_MARK) else plain(data)
