"""Failures: an exception as the journal keeps it, and back.

Owns: ErrorInfo from an exception (class and bases, message, the user's own frames and what it was raised from, never
locals, at most 16 KiB), and the exception that a remembered failure raises again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from holdfast.model import errors
from holdfast.model.events import ErrorInfo
from holdfast.model.limits import ERROR_BYTES_MAX
from holdfast.model.policies import class_names
from holdfast.worker.loading import user_frames
from holdfast.worker.processes import BodyFailed

_MESSAGE_BYTES_MAX = ERROR_BYTES_MAX // 2
_CAUSES_MAX = 5
"""Who wraps errors in errors more often than that says little more with each; they may also form a circle."""


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
    frames = _frames_and_causes(error, ERROR_BYTES_MAX - _MESSAGE_BYTES_MAX - 1024, _CAUSES_MAX)
    return ErrorInfo(code, message, class_names(type(error)), tuple(frames), retryable)


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
    """The exception that a remembered failure stands for: its own class where that is loaded here, with its message."""
    cls = _loaded_class(info.kinds[0]) if info.kinds else None
    error = None if cls is None else _instance(cls, _text(cls, info.message))
    if error is None:
        return errors.StepFailed(f"{what}: {info.message}")
    if isinstance(error, errors.Fail) and info.retryable is not None:
        error.retryable = info.retryable
    error.add_note(f"(remembered failure of {what})")
    for frame in info.frames:
        error.add_note(f"  {frame}")
    return error


def _text(cls: type[Exception], message: str) -> str:
    """What the exception itself said: `_message` the other way round."""
    if issubclass(cls, errors.HoldfastError):
        return message
    return "" if message == cls.__name__ else message.removeprefix(f"{cls.__name__}: ")


def _instance(cls: type[Exception], text: str) -> Exception | None:
    """An exception of this class that reads like this. Where its constructor wants something else than a text, it is
    made without: whoever catches it asks for its class. None: not even that is possible."""
    quoted = text[1:-1] if text[:1] == text[-1:] == "'" else text  # KeyError shows its argument in quotes
    makers: tuple[Callable[[], Exception], ...] = (
        lambda: cls(text),
        lambda: cls(quoted),
        lambda: cls.__new__(cls, text),
        lambda: _reading(cls, text),
    )
    for make in makers:
        try:
            error = make()
            if type(error).__name__ == cls.__name__ and str(error) == text:
                return error
        except Exception:  # noqa: BLE001, S112 - a user's class may want and do anything
            continue
    return None


def _reading(cls: type[Exception], text: str) -> Exception:
    """For a class that makes its text of what is not remembered: one below it, of the same name, with the text."""
    names = {"__str__": lambda self: text, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    below: type[Exception] = type(cls.__name__, (cls,), names)
    return below.__new__(below, text)


def _loaded_class(name: str) -> type[Exception] | None:
    """An exception class by its qualified name, if its module is loaded; nothing is imported."""
    parts = name.split(".")
    for length in range(len(parts) - 1, -1, -1):  # a class may stand inside another one
        found: Any = sys.modules.get(".".join(parts[:length]) or "builtins")
        if found is not None:
            for part in parts[length:]:
                found = getattr(found, part, None)
            return found if isinstance(found, type) and issubclass(found, Exception) else None
    return None
