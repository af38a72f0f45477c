"""Failures: an exception as the journal keeps it, and back.

Owns: ErrorInfo from an exception (class and bases, message, the user's own frames, never locals, at most 16 KiB), and
the exception that a remembered failure raises again.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast.model import errors
from holdfast.model.events import ErrorInfo
from holdfast.model.limits import ERROR_BYTES_MAX
from holdfast.model.policies import class_names
from holdfast.worker.loading import user_frames
from holdfast.worker.processes import BodyFailed

_MESSAGE_BYTES_MAX = ERROR_BYTES_MAX // 2


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
    frames: list[str] = []
    room = ERROR_BYTES_MAX - _MESSAGE_BYTES_MAX - 1024
    for frame in reversed(user_frames(error.__traceback__)):  # the innermost frames say most
        room -= len(frame.encode(errors="replace"))
        if room < 0:
            break
        frames.insert(0, frame)
    return ErrorInfo(code, message, class_names(type(error)), tuple(frames), retryable)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
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
    message = info.message
    for kind in info.kinds:
        cls = _loaded_class(kind)
        if cls is None:
            continue
        name = cls.__name__
        text = message.removeprefix(f"{name}: ") if kind == info.kinds[0] else message
        try:
            error = cls(text)
            if str(error) != text and text[:1] == text[-1:] == "'":  # KeyError shows its argument in quotes
                error = cls(text[1:-1])
        except Exception:  # noqa: BLE001, S112 - a class that wants other arguments: its base may do
            continue
        if kind == info.kinds[0]:
            error.add_note(f"(remembered failure of {what})")
            for frame in info.frames:
                error.add_note(f"  {frame}")
            return error
        break
    return errors.StepFailed(f"{what}: {message}")


def _loaded_class(name: str) -> type[Exception] | None:
    """An exception class by its qualified name, if its module is loaded; nothing is imported."""
    module, _, qualname = name.rpartition(".")
    found: Any = sys.modules.get(module or "builtins")
    if found is None:
        return None
    found = getattr(found, qualname, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
