"""Output: everything that the command line prints goes through here.

Owns: exit codes, JSON, tables, colours, the one line of an error, and making data safe for a terminal.
Never: knows what a run is (see commands).
Invariants: no control character of stored data reaches a terminal; with --json nothing but JSON is on stdout.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

OK, FAILED, USAGE, SUSPENDED, CANCELLED, INTERRUPTED = 0, 1, 2, 3, 4, 130
PIPE_CLOSED = 141
"""What a shell shows for a program that a closed pipe has ended."""
STATUS_SECONDS = 0.5
"""Between two updates of a status line; a command that ends sooner shows none."""

debug = False
json_wanted = False
"""True: errors are printed as JSON too."""

_json_fd: int | None = None

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}


class PipeClosed(SystemExit):
    """The reader of our output has closed the pipe."""


# --- text ---------------------------------------------------------------------------------------------------------


def clean(text: object) -> str:
    """Text of several lines, safe to print: control characters and marks that reorder text are shown, not obeyed."""
    return _UNSAFE.sub(_shown, str(text))


def line(text: object, width: int | None = None) -> str:
    """The same as one line, cut to `width` columns."""
    safe = _UNSAFE_LINE.sub(_shown, str(text))
    return safe if width is None else cut(safe, width)


def _shown(match: re.Match[str]) -> str:
    char = match.group()
    named = _NAMED.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def width_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """At most `width` columns, with an ellipsis where something is missing."""
    if len(text) <= width // 2 or width_of(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += width_of(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def pad(text: str, width: int) -> str:
    return text + " " * max(0, width - width_of(text))


def duration(seconds: float | None) -> str:
    """`0.2s`, `41s`, `0:41`-like clocks from a minute on, days in front."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2,000 nodes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# --- colours ------------------------------------------------------------------------------------------------------


def colours(stream: Any = None) -> bool:
    """True for a terminal with colours, unless NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return bool(stream.isatty())
    except ValueError:
        return False


def paint(text: str, colour: str, stream: Any = None) -> str:
    if not colour or not colours(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


STATUS_COLOURS = {
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "recovering": "cyan",
    "suspended": "yellow",
    "skipped": "dim",
    "pending": "dim",
    "scheduled": "dim",
    "created": "dim",
}


def terminal_width(default: int = 100) -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdigit() else default


# --- out ----------------------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """Write a line to stdout. The text must be clean."""
    try:
        sys.stdout.write(text + "\n")
    except BrokenPipeError:
        _close_pipe()
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def note(text: str) -> None:
    """Write a line to stderr; an error there is ignored."""
    with contextlib.suppress(OSError, ValueError):
        try:
            sys.stderr.write(text + "\n")
        except UnicodeEncodeError:
            sys.stderr.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        sys.stderr.flush()


def flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _close_pipe()


def _close_pipe() -> NoReturn:
    """Discard what is still buffered, so that Python does not complain at exit about the closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, sys.stdout.fileno())
    raise PipeClosed(PIPE_CLOSED)


@contextlib.contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """With `wanted`, stdout carries only what `document` prints; what user code prints goes to stderr."""
    global _json_fd
    if not wanted or _json_fd is not None:
        yield
        return
    try:
        sys.stdout.flush()
        out, err = sys.stdout.fileno(), sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # not real files, but those of a test
        yield
        return
    _json_fd = os.dup(out)
    os.dup2(err, out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(_json_fd, out)
        os.close(_json_fd)
        _json_fd = None


def json_text(value: Any, *, compact: bool = False) -> str:
    """JSON that is safe to print: control characters are escaped."""
    import msgspec

    data = msgspec.json.encode(value)
    if not compact:
        data = msgspec.json.format(data, indent=2)
    return _UNSAFE.sub(lambda m: f"\\u{ord(m.group()):04x}", data.decode())


def document(value: Any, *, compact: bool = False) -> None:
    """A JSON document on stdout, in one write."""
    text = json_text(value, compact=compact)
    if _json_fd is None:
        write(text)
        flush()
        return
    data = (text + "\n").encode()
    try:
        while data:
            data = data[os.write(_json_fd, data) :]
    except BrokenPipeError:
        raise PipeClosed(PIPE_CLOSED) from None


def complain(code: str, message: str, exit_code: int) -> int:
    """Print one error: a line on stderr, and with --json an object on stdout as well. Returns the exit code."""
    note(f"{paint('holdfast:', 'red', sys.stderr)} {clean(message)}")
    if json_wanted:
        with contextlib.suppress(PipeClosed):
            document({"error": {"code": code, "message": message}}, compact=True)
    return exit_code


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, colour: int | None = None) -> list[str]:
    """Rows in columns; the column `colour` is painted by its status. Cells must be clean; the last one is cut."""
    widths = [max(width_of(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    room = max(20, terminal_width() - sum(widths[:-1]) - 2 * (len(widths) - 1))
    limit = room if colours() else None
    found = [paint("  ".join(pad(h, w) for h, w in zip(headers, widths, strict=True)).rstrip(), "bold")]
    for row in rows:
        cells = [pad(cell, w) for cell, w in zip(row, widths, strict=True)]
        cells[-1] = row[-1] if limit is None else cut(row[-1], limit)
        if colour is not None:
            cells[colour] = paint(cells[colour], STATUS_COLOURS.get(row[colour], ""))
        found.append("  ".join(cells).rstrip())
    return found


class StatusLine:
    """One line on stderr that shows how far a long command is, on a terminal only; it is erased at the end."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent or not colours(sys.stderr)
        self._next = time.monotonic() + STATUS_SECONDS
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line. The text must be clean."""
        if self._silent or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + STATUS_SECONDS
        self._shown = True
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
