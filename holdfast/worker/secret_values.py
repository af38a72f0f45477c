"""Secret values: where the values of secrets come from, and hiding them.

Owns: the provider (a function or mapping of the program, a directory of files, environment variables), which workflow
may use which secret, and `Hidden`: the values that one body got, as they may turn up in texts.
Never: stores or logs a value.
Rule: what a body would store is refused when it contains a value of a secret; in its errors and log lines the value is
replaced. (A replay must see what the first execution saw: a changed result would be another one.)
"""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, quote_plus

import msgspec

from holdfast.model.errors import SecretUnavailable, UsageError
from holdfast.model.events import ErrorInfo
from holdfast.model.limits import SECRET_BYTES_MAX, SECRET_LENGTH_MIN, SECRET_PREFIX_HIDDEN
from holdfast.model.secret_names import GOOD_SECRET_NAME, Secret, without_secrets
from holdfast.worker.permissions import Permissions

Source = Callable[[str], str | Awaitable[str | None] | None] | Mapping[str, str]
"""What `hf.open(secrets=…)` takes: the value of a secret by its name, or None."""

MASK: Final = "***"


class SecretValues(Protocol):
    """Finds values of secrets for bodies."""

    async def value(self, name: str, workflow: str) -> str:
        """The value of a secret for a body of this workflow. Raises SecretUnavailable."""
        ...


class OperatorSecrets:
    """The values that the operator of this process provides."""

    def __init__(
        self,
        source: Source | None = None,
        directory: str | None = None,
        permissions: Permissions | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._source = source
        self._directory = None if not directory else Path(directory)
        self._permissions = permissions or Permissions()
        self._environ = environ

    async def value(self, name: str, workflow: str) -> str:
        if not GOOD_SECRET_NAME.fullmatch(name):
            raise SecretUnavailable(f"{name!r:.60} is not the name of a secret; use letters, digits and underscores")
        if not self._permissions.may_use(name, workflow):
            raise SecretUnavailable(
                f"workflow {workflow} may not use the secret {name}: the operator's rules (HOLDFAST_SECRETS_RULES) "
                "name the workflows that may"
            )
        found = await self._given(name)
        if found is None and self._directory is not None:
            found = await asyncio.to_thread(_read, self._directory / name)
        if found is None:
            found = self._environ.get(f"HOLDFAST_SECRET_{name}")
        if found is None:
            where = f" a file {name} in {self._directory}," if self._directory is not None else ""
            raise SecretUnavailable(
                f"the secret {name} is not provided here: set HOLDFAST_SECRET_{name},{where} or give it to "
                "hf.open(secrets=...) where the run is driven, then retry the run"
            )
        if not isinstance(found, str):
            raise SecretUnavailable(f"the secret {name} is not text")
        if len(found) < SECRET_LENGTH_MIN or len(found.encode(errors="replace")) > SECRET_BYTES_MAX:
            raise SecretUnavailable(
                f"the secret {name} must have {SECRET_LENGTH_MIN} characters or more, and at most "
                f"{SECRET_BYTES_MAX:,} bytes: a shorter one cannot be found and hidden in texts"
            )
        return found

    async def _given(self, name: str) -> str | None:
        source = self._source
        if source is None:
            return None
        if isinstance(source, Mapping):
            return source.get(name)
        if inspect.iscoroutinefunction(source):
            found: Any = await source(name)
        else:  # it may read from the network
            found = await asyncio.to_thread(source, name)
            if inspect.isawaitable(found):
                found = await found
        return found  # type: ignore[no-any-return]  # checked by the caller


def _read(file: Path) -> str | None:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise SecretUnavailable(f"the file of the secret {file.name} cannot be read: {e}") from None
    return text.removesuffix("\n").removesuffix("\r")


# --- arguments of steps ---------------------------------------------------------------------------------------------


def has_secrets(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument of a step is `hf.secret(...)`."""
    return Secret in map(type, args) or Secret in map(type, kwargs.values())


def with_names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a step with the names of secrets, as its digest is made of them."""
    return without_secrets((args, kwargs), "", {}, lambda secret: {"$secret": secret.name})


async def with_values(
    values_of: Callable[[Iterable[str]], Awaitable[dict[str, str]]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a step with the values of secrets."""
    values = await values_of([value.name for value in (*args, *kwargs.values()) if type(value) is Secret])
    given = tuple(values[value.name] if type(value) is Secret else value for value in args)
    return given, {k: values[v.name] if type(v) is Secret else v for k, v in kwargs.items()}


# --- hiding ---------------------------------------------------------------------------------------------------------


class Hidden:
    """The values of secrets that one body got, as they may stand in texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Each form of each value, longest first, to the name of its secret."""

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: str, value: str) -> None:
        """Hide a value, or what was made of one."""
        quoted = msgspec.json.encode(value).decode()[1:-1]
        forms = {value, quote(value, safe=""), quote(value), quote_plus(value), quoted, repr(value)[1:-1]}
        self._names |= dict.fromkeys((form for form in forms if len(form) >= SECRET_LENGTH_MIN), name)
        self._names = dict(sorted(self._names.items(), key=lambda form: -len(form[0])))

    def text(self, text: str) -> str:
        """A text of an error or a log line, without the values, and without beginnings of them (texts are cut)."""
        for form in self._names:
            text = text.replace(form, MASK)
            start = form[:SECRET_PREFIX_HIDDEN]
            at = text.find(start) if len(start) == SECRET_PREFIX_HIDDEN else -1
            while at >= 0:
                end = at + len(start)
                while end < len(text) and end - at < len(form) and text[end] == form[end - at]:
                    end += 1
                text = text[:at] + MASK + text[end:]
                at = text.find(start, at)
        return text

    def value(self, value: Any) -> Any:
        """Plain JSON without the values; keys of objects included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self.value(v) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.value, value))
        return value

    def error(self, info: ErrorInfo) -> ErrorInfo:
        """A failure as the journal may have it."""
        return msgspec.structs.replace(
            info,
            message=self.text(info.message),
            frames=self.value(info.frames),
            args=self.value(info.args),
            attributes=self.value(info.attributes),
        )

    def traceback(self, error: BaseException) -> str:
        """The traceback of an exception, as a log may have it."""
        return self.text("".join(traceback.format_exception(error)).rstrip("\n"))

    def refuse(self, what: str, stored: Any) -> None:
        """Raise UsageError if something that is about to be stored contains a value."""
        for text in _texts(stored):
            for form, name in self._names.items():
                if form in text:
                    raise UsageError(
                        f"{what} contains the value of the secret {name}, and secrets are never stored: give back or "
                        "record something else"
                    )


def _texts(value: Any) -> Iterator[str]:
    """Every text in a command and in the encoded values that it carries."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes | bytearray | memoryview | msgspec.Raw):
        yield bytes(value).decode(errors="replace")
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _texts(getattr(value, field))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _texts(inner)
