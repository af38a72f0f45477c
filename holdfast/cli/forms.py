"""Forms: an answer, asked for field by field on a terminal as its JSON Schema says.

Owns: the order of the fields, saying at once what is wrong with an entry, asking again, and reading a line.
Never: sends the answer; Ctrl-C and Ctrl-D raise out of the form, and nothing has been sent.
Invariant: what a form returns has no problems under its schema.
"""

from __future__ import annotations

import copy
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.cli.form_fields import (
    ALTERNATIVES,
    FIXED,
    JSON,
    NOTHING,
    SHOWN_WIDTH,
    Entry,
    entry_for,
    read_yes_no,
    shown,
)
from holdfast.cli.output import clean, line, paint
from holdfast.model.answers import Path, Problem, located, problems, schema_problem, where
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.schemas import resolved
from holdfast.model.values import encode

_READ_BYTES = 4096
"""The longest line that a terminal delivers."""


def fill(schema: Any, ask: Callable[[str], str], say: Callable[[str], None]) -> Any:
    """Ask for an answer on a terminal: `ask` shows a prompt and returns the line, `say` shows a line.

    Enter accepts the default in brackets, or omits an optional field; `-` omits an optional field that has a default.
    Raises UsageError if the schema is invalid.
    """
    if why := schema_problem(schema):
        raise UsageError(f"the schema of the question is invalid, so no answer can match it: {why}")
    form = _Form(schema, ask, say)
    answer = NOTHING
    while True:
        answer = form.value((), schema, needed=True, before=answer)
        wrong = problems(schema, encode(answer))
        if not wrong:
            return answer
        form.complain(wrong)
        say("Once more; Enter keeps the value in brackets, - omits an optional one.")


class _Form:
    """One answer being filled in."""

    def __init__(self, root: Any, ask: Callable[[str], str], say: Callable[[str], None]) -> None:
        self._root = root
        self._ask = ask
        self._say = say
        self._answer: Any = None

    def value(self, path: Path, schema: Any, *, needed: bool, before: Any = NOTHING) -> Any:
        """Ask for one field, which may have fields of its own; NOTHING if it is omitted."""
        field = _field(self._root, schema, path, needed=needed)
        if description := field.about.get("description"):
            self._say(paint("\n".join(f"  {text}" for text in clean(description).splitlines()), "dim"))
        if before is not NOTHING and not field.properties:
            field.default = before
        elif "default" in field.about and not self._wrong(path, field.about["default"]):
            field.default = field.about["default"]
        if field.properties:
            return self._object(field, before)
        if field.items is not None:
            return self._list(field)
        return self._line(field)

    def complain(self, wrong: Iterable[str]) -> None:
        for problem in wrong:
            self._say(paint(f"  ✗ {line(problem)}", "red"))

    # --- kinds of fields --------------------------------------------------------------------------------------

    def _line(self, field: _Field) -> Any:
        entry = entry_for(self._root, field.about)
        if entry.only is not NOTHING and field.needed:
            return entry.only
        self._show_choices(entry)
        prompt = field.prompt(entry.expects, entry.show)
        while True:
            text = self._ask(prompt).strip()
            if field.is_omitted(text):
                return field.omitted(text)
            value = self._read(field.path, entry, text, nullable=field.nullable)
            if value is not NOTHING:
                return value

    def _list(self, field: _Field) -> Any:
        item = _field(self._root, field.items, (*field.path, 0), needed=True)
        entry = entry_for(self._root, item.about)
        self._show_choices(entry)
        each = entry.expects
        if entry is JSON and item.properties:
            self._show_fields(item)
            each = f"{each}, with these fields"
        first = field.prompt(f"one a line, an empty line ends; each: {each}", shown)
        while True:
            text = self._ask(first).strip()
            if field.is_omitted(text):
                return field.omitted(text)
            if text.startswith("[") and entry is not JSON:  # all of them at once
                value = self._read(field.path, JSON, text)
                if value is not NOTHING:
                    return value
                continue
            items = self._items(field, item, entry, text)
            wrong = self._wrong(field.path, items)
            if not wrong:
                return items
            self.complain(wrong)

    def _items(self, field: _Field, item: _Field, entry: Entry, text: str) -> list[Any]:
        items: list[Any] = []
        self._put(field.path, [])
        while text:
            path = (*field.path, len(items))
            value = self._read(path, entry, text, nullable=item.nullable)
            if value is not NOTHING:
                self._put(path, value)
                items.append(value)
            text = self._ask(f"{line(where((*field.path, len(items))))}: ").strip()
        return items

    def _object(self, field: _Field, before: Any) -> Any:
        kept = before if isinstance(before, dict) else {}
        if field.may_be_empty and not self._wants(field, again=bool(kept)):
            return field.omitted("")
        self._put(field.path, {})
        required = field.about.get("required", ())
        for name, schema in field.properties.items():
            path = (*field.path, name)
            value = self.value(path, schema, needed=name in required, before=kept.get(name, NOTHING))
            if value is not NOTHING:
                self._put(path, value)
        return self._get(field.path)

    def _wants(self, field: _Field, *, again: bool) -> bool:
        """Ask whether to fill in the fields of an optional object."""
        usual = "yes" if again else "no"
        bracket = usual if again or field.default in (NOTHING, None) else line(shown(field.default), SHOWN_WIDTH)
        while True:
            text = self._ask(f"{field.name} (yes to fill it in) [{bracket}]: ").strip()
            try:
                return bool(read_yes_no(text or usual)[0])
            except ValueError as e:
                self.complain([str(e)])

    # --- entries ---------------------------------------------------------------------------------------

    def _read(self, path: Path, entry: Entry, text: str, *, nullable: bool = False) -> Any:
        """The value that a line stands for; NOTHING if it is wrong, and the reason was shown."""
        if nullable and text == "null":
            return None
        try:
            meanings = entry.read(text)
        except ValueError as e:
            self.complain([str(e)])
            return NOTHING
        found = [self._wrong(path, value) for value in meanings]
        for value, wrong in zip(meanings, found, strict=True):
            if not wrong:
                return value
        self.complain(found[0])
        return NOTHING

    def _wrong(self, path: Path, value: Any) -> list[str]:
        """What is wrong with the value in its place, apart from fields that are still missing elsewhere."""
        before = copy.deepcopy(self._answer)
        try:
            self._put(path, value)
            found = located(self._root, encode(self._answer), below=path)
        except HoldfastError as e:  # bytes that are not text, or too many of them
            return [e.message]
        finally:
            self._answer = before
        return [str(Problem(problem.path[len(path) :], problem.text)) for problem in found]

    def _get(self, path: Path) -> Any:
        part = self._answer
        for step in path:
            part = part[step]
        return part

    def _put(self, path: Path, value: Any) -> None:
        if not path:
            self._answer = value
            return
        holder, step = self._get(path[:-1]), path[-1]
        if isinstance(holder, list) and step == len(holder):
            holder.append(value)
        else:
            holder[step] = value

    def _show_fields(self, item: _Field) -> None:
        """The fields of something that is typed as JSON."""
        required = item.about.get("required", ())
        for name, schema in item.properties.items():
            field = _field(self._root, schema, (name,), needed=name in required)
            optional = "" if field.needed else ", optional"
            self._say(f"  {line(name, SHOWN_WIDTH)}: {entry_for(self._root, field.about).expects}{optional}")

    def _show_choices(self, entry: Entry) -> None:
        for number, choice in enumerate(entry.choices, 1):
            self._say(f"  {number:>2}  {line(choice, SHOWN_WIDTH)}")


# --- fields --------------------------------------------------------------------------------------------------------


@dataclass
class _Field:
    path: Path
    about: dict[str, Any]
    """Its schema: references followed, null taken out."""
    nullable: bool
    needed: bool
    default: Any = NOTHING

    @property
    def name(self) -> str:
        return line(where(self.path)) or "answer"

    @property
    def properties(self) -> dict[str, Any]:
        """The fields of an object that can be asked for one by one."""
        if self.about.get("type", "object") != "object" or FIXED & self.about.keys():
            return {}
        alternatives = [part for keyword in ALTERNATIVES for part in self.about.get(keyword, ())]
        one_shape = all(isinstance(part, dict) and not part.keys() & {"properties", "$ref"} for part in alternatives)
        return dict(self.about.get("properties", {})) if one_shape else {}

    @property
    def items(self) -> Any:
        """The schema of each item of a list; None if this is not a list, or a list with items of different kinds."""
        if self.about.get("type") != "array" or "prefixItems" in self.about or FIXED & self.about.keys():
            return None
        return self.about.get("items", {})

    @property
    def may_be_empty(self) -> bool:
        return self.default is not NOTHING or not self.needed or self.nullable

    def is_omitted(self, text: str) -> bool:
        """True if this line omits the field: an empty line, or `-` for an optional field with a default."""
        return self.may_be_empty and (not text or (text == "-" and not self.needed and self.default is not NOTHING))

    def omitted(self, text: str) -> Any:
        """The value of such a line: the default, null, or NOTHING."""
        if text != "-" and self.default is not NOTHING:
            return self.default
        return None if self.needed else NOTHING

    def prompt(self, expects: str, show: Callable[[Any], str]) -> str:
        default = "" if self.default in (NOTHING, None) else f" [{line(show(self.default), SHOWN_WIDTH)}]"
        optional = ", optional" if self.may_be_empty and not default else ""
        return f"{self.name} ({expects}{optional}){default}: "


def _field(root: Any, schema: Any, path: Path, *, needed: bool) -> _Field:
    about = resolved(root, schema)
    for keyword in ALTERNATIVES & about.keys():
        others = [part for part in about[keyword] if resolved(root, part).get("type") != "null"]
        nullable = len(others) < len(about[keyword])
        around = {key: value for key, value in about.items() if key != keyword}
        if len(others) == 1:  # X | None, or a reference wrapped because of keywords beside it
            inner = _field(root, resolved(root, others[0]) | around, path, needed=needed)
            inner.nullable |= nullable
            return inner
        if nullable:
            return _Field(path, around | {keyword: others}, True, needed)
    nullable = False
    if isinstance(types := about.get("type"), list):
        nullable = "null" in types
        types = [kind for kind in types if kind != "null"]
        about = about | {"type": types[0] if len(types) == 1 else types}
    if None in (about.get("enum") or ()):
        nullable = True
        about = about | {"enum": [value for value in about["enum"] if value is not None]}
    return _Field(path, about, nullable, needed)


# --- the terminal ----------------------------------------------------------------------------------------------------


def prompt(text: str) -> str:
    """Show a prompt and return the line that is typed, without its end. For terminals only: they deliver whole lines.

    A Ctrl-C is noticed whenever it is typed. `input()` misses one that arrives between its prompt and its read: the
    signal is recorded, the read blocks, and nothing happens until another key is typed.

    Raises EOFError at Ctrl-D, or when the terminal is gone, and KeyboardInterrupt at Ctrl-C.
    """
    keyboard = sys.stdin.fileno()
    typed = b""
    with _signals() as signals:
        print(text, end="", flush=True)
        while not typed.endswith(b"\n"):
            ready, _, _ = select.select([keyboard, signals], [], [])
            if signals in ready:  # Python's handler has run by now, and has not raised
                signals.recv(_READ_BYTES)
            elif read := _read(keyboard):
                typed += read
            elif typed:
                break
            else:
                raise EOFError
    return typed.decode(sys.stdin.encoding, "surrogateescape").rstrip("\n")


def _read(keyboard: int) -> bytes:
    try:
        return os.read(keyboard, _READ_BYTES)
    except OSError:  # the terminal is gone
        return b""


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket that is readable as soon as a signal was caught, even before the wait for it began."""
    ours, handler = socket.socketpair()
    with ours, handler:
        handler.setblocking(False)
        before = signal.set_wakeup_fd(handler.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)
