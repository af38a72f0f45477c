"""Failures: an exception as the journal keeps it, and back.

Owns: ErrorInfo from an exception (class and bases, message, arguments and attributes that are JSON, the user's own
frames and what it was raised from, never locals, each within a limit), and the exception that a remembered failure
raises.
Rule: a body is given the failure of a step as it is made from the journal, also the first time, so that a replay sees
the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import errors
from holdfast.model.events import ErrorInfo
from holdfast.model.limits import ERROR_BYTES_MAX, ERROR_CAUSES_MAX, ERROR_DETAILS_BYTES_MAX, ERROR_KINDS_BYTES_MAX
from holdfast.model.module_names import modules_of
from holdfast.model.policies import class_names
from holdfast.model.values import encode, plain
from holdfast.worker.loading import user_frames
from holdfast.worker.processes import BodyFailed

_MESSAGE_BYTES_MAX = ERROR_BYTES_MAX // 2
_REMEMBERED = "__holdfast_error__"
_decode = msgspec.json.Decoder(ErrorInfo).decode


def describe(error: BaseException) -> ErrorInfo:
    """A failure for the journal, whatever the exception does when it is looked at."""
    try:
        return _described(error)
    except Exception:  # noqa: BLE001 - a user's exception class may raise anything
        return ErrorInfo("error", "an exception that cannot be described", ("Exception",))


def _described(error: BaseException) -> ErrorInfo:
    if isinstance(error, BodyFailed):  # it comes from another process, described there
        return error.error
    code = error.code if isinstance(error, errors.HoldfastError) else "error"
    retryable: bool | None = None
    if isinstance(error, errors.Fail):
        retryable = error.retryable
    message = _cut(_message(error), _MESSAGE_BYTES_MAX)
    frames = _frames_and_causes(error, ERROR_BYTES_MAX - _MESSAGE_BYTES_MAX - 1024, ERROR_CAUSES_MAX)
    args, attributes = _details(error)
    if isinstance(error, errors.Fail) and error.details is not None and "details" not in attributes:
        message += f" (its details are not kept: they are no JSON, or have more than {ERROR_DETAILS_BYTES_MAX:,} bytes)"
    return ErrorInfo(code, message, _kinds(error), tuple(frames), retryable, args=args, attributes=attributes)


def _kinds(error: BaseException) -> tuple[str, ...]:
    """The names of the class and its bases; of a remembered failure whose class is not loaded, its own as well."""
    names = class_names(type(error))
    if isinstance(error, errors.StepFailed) and (remembered := _remembered(error)) is not None:
        names = tuple(dict.fromkeys((*names, *remembered.kinds)))
    kept: list[str] = []
    room = ERROR_KINDS_BYTES_MAX
    for name in names:
        cut = _cut(name, ERROR_KINDS_BYTES_MAX // 8)
        room -= _size(cut)
        if room < 0:
            break
        kept.append(cut)
    return tuple(kept)


def _details(error: BaseException) -> tuple[tuple[Any, ...] | None, dict[str, Any]]:
    """What an exception is made again of, and its attributes: as far as they are JSON and there is room."""
    room = ERROR_DETAILS_BYTES_MAX

    def kept(value: Any) -> Any:
        nonlocal room
        data = encode(value, limit=room)
        room -= len(data)
        return plain(data)

    args: tuple[Any, ...] | None = None
    with contextlib.suppress(Exception):  # what cannot be stored, or what a user's class does when it is asked
        if isinstance(error, ExceptionGroup):
            args = tuple(kept([error.message, [_without_frames(_described(e)) for e in error.exceptions]]))
        else:
            made_of = error.__reduce__()
            if isinstance(made_of, tuple) and made_of[0] is type(error):
                args = tuple(kept(list(made_of[1])))
    attributes: dict[str, Any] = {}
    for name, value in list(vars(error).items()):
        if not name.startswith("__"):
            with contextlib.suppress(Exception):
                attributes[name] = kept(value)
    return args, attributes


def _without_frames(info: ErrorInfo) -> ErrorInfo:
    """One of the failures in a group, whose own frames have those of the first."""
    return msgspec.structs.replace(info, frames=())


def _remembered(error: BaseException) -> ErrorInfo | None:
    """The journal's description of an exception that was made from it."""
    info = vars(error).get(_REMEMBERED)
    return info if isinstance(info, ErrorInfo) else None


def _frames_and_causes(error: BaseException, room: int, causes: int) -> list[str]:
    """Where it was raised, then what it was raised from and where that was; not in the message, by which a remembered
    failure is raised again as it was."""
    cause = error.__cause__
    if cause is None or not causes:
        return _innermost(_frames(error), room)
    found = _innermost(_frames(error), room // 2)
    found.append(_cut(f"because of {_message(cause)}", room // 8))
    return found + _frames_and_causes(cause, room - sum(map(_size, found)), causes - 1)


def _innermost(frames: tuple[str, ...], room: int) -> list[str]:
    """As many as there is room for; the innermost say most."""
    kept: list[str] = []
    for frame in reversed(frames):
        room -= _size(frame)
        if room < 0:
            break
        kept.insert(0, frame)
    return kept


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _frames(error: BaseException) -> tuple[str, ...]:
    """The user's own frames; of a group those that led to it, and then those of its first exception."""
    frames = user_frames(error.__traceback__)
    if (remembered := _remembered(error)) is not None:
        return (*frames, *remembered.frames)
    return frames + _frames(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else frames


def _message(error: BaseException) -> str:
    if isinstance(error, errors.Suspended):  # ours mean that a body is left, and fail nothing
        return "Suspended: the body raised hf.Suspended itself; to wait there are ctx.sleep, ctx.ask and hf.pend"
    try:
        text = str(error)
        if isinstance(error, BaseExceptionGroup):  # how many there are says nothing
            text = f"{text}: {'; '.join(_message(e) for e in error.exceptions)}"
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        text = "(its message cannot be read)"
    if isinstance(error, errors.HoldfastError):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _cut(text: str, limit: int) -> str:
    data = text.encode("utf-8", errors="replace")
    return data.decode() if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "..."


def raise_again(info: ErrorInfo, what: str) -> BaseException:
    """The exception that a failure in the journal stands for: its own class where that is loaded here, with its message
    and those of its arguments and attributes that were kept."""
    cls = _loaded_class(info.kinds[0]) if info.kinds else None
    error = None if cls is None else _instance(cls, info)
    if error is None:
        error = errors.StepFailed(f"{what}: {info.message}")
    notes = [f"(remembered failure of {what})", *(f"  {frame}" for frame in info.frames)]
    vars(error).update({_REMEMBERED: info, "__notes__": notes})  # a class may not let attributes be set
    return error


def stored(info: ErrorInfo) -> ErrorInfo:
    """A failure as it will be read from the journal."""
    return _decode(msgspec.json.encode(info))


def _text(cls: type[Exception], message: str) -> str:
    """What the exception itself said: `_message` the other way round."""
    if issubclass(cls, errors.HoldfastError):
        return message
    return "" if message == cls.__name__ else message.removeprefix(f"{cls.__name__}: ")


def _instance(cls: type[Exception], info: ErrorInfo) -> Exception | None:
    """An exception of this class that reads like this. Where its constructor wants something else than what is known,
    it is made without: code that catches it asks for its class. None: not even that is possible."""
    text = _text(cls, info.message)
    quoted = text[1:-1] if text[:1] == text[-1:] == "'" else text  # KeyError shows its argument in quotes
    makers: list[Callable[[], Exception]] = [
        lambda: cls(text),
        lambda: cls(quoted),
        lambda: cls.__new__(cls, text),
        lambda: _reading(cls, text),
    ]
    if (args := info.args) is not None:
        if issubclass(cls, ExceptionGroup):
            args = _of_group(args)
        makers[:0] = [lambda: cls.__new__(cls, *args), lambda: cls(*args)]
    for make in makers:
        try:
            error = make()
            if isinstance(error, errors.Fail) and info.retryable is not None:
                error.retryable = info.retryable
            vars(error).update(_attributes(cls, info))
            if type(error).__name__ == cls.__name__ and _cut(_message(error), _MESSAGE_BYTES_MAX) == info.message:
                return error
        except Exception:  # noqa: BLE001, S112 - a user's class may want and do anything
            continue
    return None


def _of_group(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a group is made again of: its message, and the exceptions in it."""
    message, infos = args
    return message, [raise_again(each, "a step") for each in msgspec.convert(infos, list[ErrorInfo])]


def _attributes(cls: type[Exception], info: ErrorInfo) -> dict[str, Any]:
    """The attributes that were kept; where ours hold an error, it is one again."""
    if issubclass(cls, errors.ChildFailed | errors.RunFailed) and isinstance(info.attributes.get("error"), dict):
        return {**info.attributes, "error": msgspec.convert(info.attributes["error"], ErrorInfo)}
    return info.attributes


def _reading(cls: type[Exception], text: str) -> Exception:
    """For a class that makes its text of what is not remembered: one below it, of the same name, with the text."""
    names = {"__str__": lambda self: text, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    below: type[Exception] = type(cls.__name__, (cls,), names)
    return below.__new__(below, text)


def _loaded_class(name: str) -> type[Exception] | None:
    """An exception class by its qualified name, if its module is loaded; nothing is imported."""
    parts = name.split(".")
    for length in range(len(parts) - 1, -1, -1):  # a class may stand inside another one
        for module in modules_of(".".join(parts[:length]) or "builtins"):
            found: Any = module
            for part in parts[length:]:
                found = getattr(found, part, None)
            if isinstance(found, type) and issubclass(found, Exception):
                return found
    return None
