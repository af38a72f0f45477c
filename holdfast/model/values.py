"""Values: what bodies and the journal exchange, as JSON bytes.

Owns: encoding by msgspec (dataclasses, Structs, pydantic models, datetimes, decimals, UUIDs, enums, bytes, paths,
sets), decoding by annotation, JSON Schema of annotations, and the place in a value that cannot be stored.
Never: pickles, decides where the bytes are stored.
Invariant: what `encode` accepts, `plain` reads; NaN and number keys, which JSON would change silently, are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from holdfast.model.errors import HoldfastError, InvalidInput, NotSerialisable, ValueTooLarge
from holdfast.model.limits import INLINE_LIMIT_BYTES, JSON_DEPTH_MAX

# A key that was a number, a bool or not finite before it became text; similar texts only cost another check.
_NUMBER_KEY: Final = re.compile(rb'"(?:-?\d[\d.eE+-]*|true|false|nan|-?inf)":')
_MISMATCH: Final = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)


def encode(value: Any, annotation: Any = Any, *, what: str = "value", limit: int = INLINE_LIMIT_BYTES) -> bytes:
    """The JSON bytes of a value. `what` names it in errors, `annotation` is what it will be decoded by.

    Raises NotSerialisable with the type and the path inside the value, ValueTooLarge over `limit` bytes.
    """
    kind = type(value)
    try:
        data = _encode(value)
        is_plain = kind in _NO_PARTS or ((kind is dict or kind is list) and _decode_plain(data) == value)
        if not is_plain and _has_raw(value):
            data = _encode(msgspec.to_builtins(value, enc_hook=_read_raw))
    except Exception as e:  # noqa: BLE001 - serialisers of the user's models may raise anything
        raise _not_serialisable(value, what, e) from None
    if len(data) > limit:
        raise ValueTooLarge(
            f"{what} has {len(data):,} bytes as JSON; at most {limit:,} are stored. Return something smaller, or store "
            f"the data elsewhere and return a reference to it"
        )
    if not is_plain:
        _refuse_silent_changes(value, data, annotation, what)
    return data


def _refuse_silent_changes(value: Any, data: bytes, annotation: Any, what: str) -> None:
    """Refuse what msgspec would change silently: it writes NaN and Infinity as null, and the key 1 as "1"."""
    if b"null" in data:
        _refuse_non_finite(value, what)
    if _NUMBER_KEY.search(data):
        _refuse_lost_keys(value, data, annotation, what)


def canonical(value: Any, *, what: str = "value") -> bytes:
    """JSON bytes that do not depend on the order of sets and keys: for digests, not for storing."""
    try:
        return _CANONICAL.encode(value)
    except Exception as e:  # noqa: BLE001 - as in `encode`
        raise _not_serialisable(value, what, e) from None


def plain(data: bytes | str) -> Any:
    """The plain JSON value: dict, list, str, int, float, bool, None."""
    return _plain(data)


class DuplicateKey(ValueError):
    """A JSON object has a key twice: one of the two values would be lost."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON that a person wrote (`object_pairs_hook` of json.loads). Raises DuplicateKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise DuplicateKey(f"the key {json.dumps(twice)} occurs twice in one object")
    return found


def builtins(value: Any, annotation: Any = Any, *, what: str = "value") -> Any:
    """A value as plain JSON types, by way of its stored form."""
    if value is None or type(value) in (bool, int):
        return value
    return plain(encode(value, annotation, what=what))


def decoder(annotation: Any) -> Callable[[bytes | str], Any]:
    """What turns stored bytes into a value of this annotation; raises InvalidInput with the field's path.

    Any gives plain JSON types. The result is cached for each annotation.
    """
    try:
        # A | B equals B | A, but which member is tried first is the author's choice
        return _cached_decoder(annotation, () if type(annotation) is type else typing.get_args(annotation))
    except TypeError as e:
        if "unhashable" not in str(e):
            raise
        return _make_decoder(annotation)


def is_pydantic(kind: Any) -> bool:
    """Whether this is a pydantic model class, found without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate")


# --- encoding --------------------------------------------------------------------------------------------------


def _encode_hook(value: Any) -> Any:
    if is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, pathlib.PurePath):
        return str(value)
    raise NotImplementedError(type(value))


_encode = msgspec.json.Encoder(enc_hook=_encode_hook).encode
_decode_plain = msgspec.json.Decoder().decode
_CANONICAL = msgspec.json.Encoder(enc_hook=_encode_hook, order="deterministic")


class _FoundRaw(Exception):
    """There is a msgspec.Raw in a value."""


def _has_raw(value: Any) -> bool:
    """Whether there is a msgspec.Raw in a value: the encoder would write its bytes unread, whatever they are."""
    try:
        msgspec.to_builtins(value, enc_hook=_find_raw)
    except _FoundRaw:
        return True
    return False


def _find_raw(part: Any) -> None:
    if isinstance(part, msgspec.Raw):
        raise _FoundRaw


def _read_raw(part: Any) -> Any:
    return _decode_plain(part) if isinstance(part, msgspec.Raw) else _encode_hook(part)


def _not_serialisable(value: Any, what: str, error: Exception) -> HoldfastError:
    fault = _find_fault(value, what)
    if fault is None:  # the whole cannot be stored although each of its parts can
        fault = f"{what}: {type(value)} cannot be stored as JSON ({error})"
    return NotSerialisable(fault)


def _find_fault(value: Any, what: str) -> str | None:
    """The first part of a value that cannot be stored, as `path: reason`; depth first, without recursion."""
    stack: list[tuple[Any, str, tuple[int, ...]]] = [(value, what, ())]
    while stack:
        part, path, parents = stack.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return f"{path}: {part!r} is not a JSON number"
        if isinstance(part, str):
            if _has_surrogate(part):
                return f"{path}: the text {ascii(part)[:60]} has a lone surrogate and is not valid Unicode"
            continue
        if isinstance(part, msgspec.Raw):
            try:
                _decode_plain(part)
            except (msgspec.DecodeError, UnicodeDecodeError) as e:
                return f"{path}: the bytes of a msgspec.Raw are not JSON ({e})"
            continue
        if id(part) in parents:
            return f"{path}: {type(part)} contains itself"
        if len(parents) > JSON_DEPTH_MAX:
            return f"{path[:100]}...: nested deeper than {JSON_DEPTH_MAX}"
        inner = list(_parts(part))
        if inner or isinstance(part, dict | list | tuple | set | frozenset):
            if isinstance(part, dict) and (wrong := _bad_key(part)):
                return f"{path}: {wrong}"
            stack.extend((sub, path + step, (*parents, id(part))) for step, sub in reversed(inner))
            continue
        try:
            _encode(part)
        except Exception as e:  # noqa: BLE001 - as in `encode`
            reason = "" if isinstance(e, NotImplementedError) else f" ({e})"
            return f"{path}: {type(part)} cannot be stored as JSON{reason}"
    return None


def _bad_key(value: dict[Any, Any]) -> str | None:
    for key in value:
        if isinstance(key, str):
            if _has_surrogate(key):
                return f"the key {ascii(key)[:60]} has a lone surrogate and is not valid Unicode"
            continue
        try:
            _encode({key: None})
        except Exception:  # noqa: BLE001 - as in `encode`
            return f"the key {str(key)[:60]} is {type(key)}, and JSON keys are text"
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container or of an object with fields, each with its step in a path."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{str(key)[:60]!r}]"), part
    elif isinstance(value, list | tuple | set | frozenset):
        for i, part in enumerate(value):
            yield f"[{i}]", part
    elif not isinstance(value, type):
        for name in _field_names(value):
            yield f".{name}", getattr(value, name, None)


def _field_names(value: Any) -> list[str]:
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [f.name for f in dataclasses.fields(value)]
    if is_pydantic(type(value)):
        return list(type(value).model_fields)
    return []


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse_non_finite(value: Any, what: str) -> None:
    stack: list[Any] = [value]
    while stack:
        part = stack.pop()
        kind = type(part)
        if kind is float:
            if not math.isfinite(part):
                raise NotSerialisable(_find_fault(value, what))
        elif kind is dict:
            stack.extend(part.values())
        elif kind is list or kind is tuple:
            stack.extend(part)
        elif kind not in _NO_PARTS:
            if isinstance(part, float) and not math.isfinite(part):
                raise NotSerialisable(_find_fault(value, what))
            stack.extend(sub for _, sub in _parts(part))


_NO_PARTS: Final = frozenset({str, int, bool, type(None), bytes})


def _refuse_lost_keys(value: Any, data: bytes, annotation: Any, what: str) -> None:
    """Refuse keys that are numbers unless decoding by the annotation restores them."""
    try:
        back = decoder(annotation)(data)
    except HoldfastError:
        back = plain(data)
    stack: list[tuple[Any, Any, str]] = [(value, back, what)]
    while stack:
        part, found, path = stack.pop()
        if isinstance(part, dict):
            if not isinstance(found, dict):
                continue  # became an object with fields
            for key in part:
                if isinstance(key, int | float) and key not in found:
                    raise NotSerialisable(
                        f"{path}: the key {key!r} is {type(key)} and would become text; use text keys, or annotate it, "
                        f"as in dict[{type(key).__name__}, ...]"
                    )
            if len(part) != len(found):
                raise NotSerialisable(f"{path}: two keys are the same text as JSON")
            steps = [(part[key], found.get(key), f"{path}[{key!r}]") for key in part]
        elif isinstance(part, list | tuple) and isinstance(found, list | tuple):
            steps = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(part, found, strict=False))]
        else:
            names = _field_names(part)
            steps = [(getattr(part, n), _field(found, n), f"{path}.{n}") for n in names if hasattr(part, n)]
        stack.extend(steps)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


# --- decoding --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _cached_decoder(annotation: Any, _members: tuple[Any, ...]) -> Callable[[bytes | str], Any]:
    return _make_decoder(annotation)


def _make_decoder(annotation: Any) -> Callable[[bytes | str], Any]:
    read = _reader(annotation)

    def decode(data: bytes | str) -> Any:
        try:
            return read(data)
        except msgspec.ValidationError as e:
            raise InvalidInput(_explain(str(e))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise InvalidInput(f"this is not JSON: {e}") from None
        except RecursionError:
            raise InvalidInput("the value is nested too deep") from None

    return decode


def _reader(annotation: Any) -> Callable[[bytes | str], Any]:
    try:
        return msgspec.json.Decoder(Any if annotation is object else annotation, dec_hook=_decode_hook).decode
    except (TypeError, NotImplementedError) as e:
        members = union_members(annotation)
        if len(members) < 2:
            raise InvalidInput(f"values of type {_name(annotation)} cannot be read from JSON: {e}") from None
        return _union_reader(annotation, [_reader(m) for m in members])


def _union_reader(annotation: Any, readers: list[Callable[[bytes | str], Any]]) -> Callable[[bytes | str], Any]:
    """Decode a union that msgspec refuses (two dataclasses, a path or text) as the first member that fits."""

    def read(data: bytes | str) -> Any:
        for reader in readers:
            try:
                return reader(data)
            except msgspec.ValidationError:
                continue
        raise msgspec.ValidationError(f"Expected `{_name(annotation)}`, but the value fits none of its members")

    return read


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of `A | B`; the annotation alone if it is not a union."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _decode_hook(kind: Any, value: Any) -> Any:
    """For types that msgspec does not know. ValueError and TypeError become an error with the path."""
    if is_pydantic(kind):
        return kind.model_validate(value)
    if isinstance(kind, type):
        if issubclass(kind, pathlib.PurePath):
            if not isinstance(value, str):
                raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
            return kind(value)
        if kind is object or isinstance(value, kind):
            return value
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and isinstance(value, origin):
        return value  # Iterable[int] and the like: a list is one
    raise ValueError(f"a {_name(kind)} cannot be made from JSON")


def _explain(message: str) -> str:
    """`items[0].qty: expected int, got str`, from msgspec's message."""
    found = _MISMATCH.fullmatch(message)
    if found is None:
        return message
    text = found["what"].replace("`", "")
    text = text[:1].lower() + text[1:] if text.startswith(("Expected", "Object", "Invalid")) else text
    path = (found["path"] or "").removeprefix(".")
    where = f"{path}: " if path else ""
    return f"{where}{'a key: ' if found['key'] else ''}{text}"


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


_plain = _make_decoder(Any)
