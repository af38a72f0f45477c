"""The reference pages that are made from the code: `python3 dev.py docs` writes them, a test compares them.

Owns: docs/errors.md and docs/api.md, whole; the diagrams of docs/state-machines.md; in docs/cli.md the tables of verbs,
options and exit codes; docs/schemas, whole.
Never: repeats what the guide explains; a reference lists, with the first paragraph of each docstring.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import holdfast as hf
from holdfast.cli import main as command_line
from holdfast.cli import output
from holdfast.documents import kinds
from holdfast.engine.run.actor import LIFE_TRANSITIONS, Life
from holdfast.model import errors
from holdfast.model.statuses import NODE_SETTLED, NODE_TRANSITIONS, RUN_TERMINAL, RUN_TRANSITIONS
from holdfast.worker.body_life import BODY_TRANSITIONS, BodyLife

S = TypeVar("S", bound=StrEnum)

MADE_BY_USERS = {"Escalate", "Retry"}
"""Classes that programs construct; instances of the others are given to them."""

FOLDER = Path(__file__).resolve().parent


def errors_page() -> str:
    """Every error that Holdfast raises: its code, what it means and what to do."""
    lines = [
        "# Errors",
        "",
        "Made from `holdfast/model/errors.py` by `python3 dev.py docs`. An error has the same code in Python",
        "(`error.code`), on the command line (`--json`), and in the journal. `hf.HoldfastError` is the base class; the",
        "errors that programs usually catch are names of `holdfast`, the others are in `holdfast.model.errors`.",
    ]
    for cls in sorted(_error_classes(errors), key=lambda cls: str(cls.code)):
        _, _, advice = inspect.getdoc(cls).partition("\n\n")  # type: ignore[union-attr]  # every error has one
        lines += ["", f"## `{cls.code}`", "", *_wrapped(f"`{_public_name(cls)}`: {errors.default_message(cls)}")]
        lines += ["", *_wrapped(advice)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _error_classes(module: ModuleType) -> Iterator[Any]:
    for cls in vars(module).values():
        if inspect.isclass(cls) and issubclass(cls, BaseException) and hasattr(cls, "code"):
            yield cls


def _public_name(cls: type[BaseException]) -> str:
    return f"hf.{cls.__name__}" if cls.__name__ in hf.__all__ else cls.__name__


def api_page() -> str:
    """Every public name with its signature and the first paragraph of its docstring, methods included."""
    lines = [
        "# The Python API",
        "",
        "Made from the code by `python3 dev.py docs`. `import holdfast as hf`; what is not listed here may change.",
        "[Errors](errors.md) have a page of their own; the [guide](guide.md) explains how the parts work together.",
    ]
    public = {name: getattr(hf, name) for name in sorted(hf.__all__, key=str.lower)}
    for name, thing in public.items():
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            continue
        lines += ["", f"## `hf.{name}`", "", *_described(f"hf.{name}", thing)]
        if inspect.isclass(thing):
            for method, function in _methods(thing):
                lines += ["", f"### `{name}.{method}`", "", *_described(f"{name}.{method}", function)]
    return "\n".join(lines) + "\n"


def _methods(cls: type[Any]) -> list[tuple[str, Any]]:
    """Public methods and properties that have a docstring, in the order of their names."""
    found = []
    for name, thing in inspect.getmembers(cls):
        is_ours = callable(thing) or isinstance(thing, property)
        if not name.startswith("_") and is_ours and inspect.getdoc(thing) and _is_defined_by_us(cls, name):
            found.append((name, thing))
    return found


def _is_defined_by_us(cls: type[Any], name: str) -> bool:
    owner = next((base for base in cls.__mro__ if name in vars(base)), None)
    return owner is not None and owner.__module__.startswith("holdfast.")


def _described(name: str, thing: Any) -> list[str]:
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    lines = _wrapped(text)
    is_given = inspect.isclass(thing) and thing.__name__ not in MADE_BY_USERS
    if isinstance(thing, property) or not callable(thing) or is_given:
        return lines
    return ["```text", *_signature(name, thing), "```", "", *lines]


def _signature(name: str, thing: Callable[..., Any]) -> list[str]:
    """Name and parameters, one a line where they are many, with annotations as they stand in the code."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return [name]
    parts: list[str] = []
    is_keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only and "*" not in "".join(parts):
            parts.append("*")
        is_keyword_only = is_keyword_only or parameter.kind is parameter.KEYWORD_ONLY
        parts.append(_parameter(parameter))
    result = "" if signature.return_annotation is inspect.Signature.empty else f" -> {signature.return_annotation}"
    result = result.replace("'", "")
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= 120:
        return [line]
    return [f"{name}(", *(f"    {part}," for part in parts), f"){result}"]


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) or "**" * (parameter.kind is parameter.VAR_KEYWORD)
    is_annotated = parameter.annotation is not parameter.empty
    has_default = parameter.default is not parameter.empty
    annotation = f": {parameter.annotation}" if is_annotated else ""
    default = f"{' = ' if is_annotated else '='}{parameter.default!r}" if has_default else ""
    return f"{stars}{parameter.name}{annotation}{default}"


def state_machines_page() -> str:
    """The page as it is, with its diagrams drawn anew from the transition tables."""
    diagrams = iter(
        [
            _diagram(RUN_TRANSITIONS, "created", RUN_TERMINAL),
            _diagram(NODE_TRANSITIONS, "pending", NODE_SETTLED),
            _diagram(LIFE_TRANSITIONS, "idle", frozenset({Life.DETACHED})),
            _diagram(BODY_TRANSITIONS, "starting", frozenset({BodyLife.REPORTED})),
        ]
    )
    page = (FOLDER / "state-machines.md").read_text("utf-8")
    drawn = re.sub(
        r"^```mermaid\n.*?^```", lambda _: f"```mermaid\n{next(diagrams)}```", page, flags=re.DOTALL | re.MULTILINE
    )
    assert next(diagrams, None) is None, "state-machines.md has a place for each diagram"
    return drawn


def _diagram(table: Mapping[S, frozenset[S]], first: str, last: frozenset[S]) -> str:
    """A transition table as Mermaid draws it."""
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {now} --> {to}" for now in table for to in table if to in table[now]]
    lines += [f"    {status} --> [*]" for status in table if status in last]
    return "\n".join(lines) + "\n"


# --- the command line -----------------------------------------------------------------------------------------------

SHARED_OPTIONS = ("--db", "--json", "--quiet", "--lease-seconds", "--grace-seconds")
"""Options that are described once, above the verbs."""
EXIT_CODES = {
    output.OK: "done; the run completed",
    output.FAILED: "the run failed; problems were found; the request was refused; the store cannot be used "
    "(full disk, read-only file system, a server that accepts no writes at the moment)",
    output.USAGE: "wrong usage: bad input, no such file, workflow or run, a database that cannot be used. "
    "Nothing was changed",
    output.SUSPENDED: "the run is suspended: it waits for a person or another program. Timers are waited for",
    output.CANCELLED: "the run was cancelled",
    output.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; the run can be resumed",
    output.PIPE_CLOSED: "the reader of the output has closed the pipe (`… \\| head`)",
}


def cli_page() -> str:
    """The page of the command line: hand-written, with blocks `<!-- NAME -->` to `<!-- end -->` made from the code."""
    text = (FOLDER / "cli.md").read_text("utf-8")
    blocks = {f"verb {name}": _verb(name, command) for name, command in _commands()}
    blocks |= {"verbs": _verbs(text), "shared options": _shared_options(), "exit codes": _exit_codes()}
    missing = [name for name in blocks if f"<!-- {name} -->" not in text]
    assert not missing, f"docs/cli.md lacks the blocks {missing}: add <!-- NAME --> and <!-- end --> where they belong"
    pattern = re.compile(r"<!-- (verbs?(?: [\w ]+)?|shared options|exit codes) -->\n.*?<!-- end -->", re.DOTALL)
    return pattern.sub(lambda m: "\n".join([f"<!-- {m[1]} -->", *blocks[m[1]], "<!-- end -->"]), text)


def _commands() -> Iterator[tuple[str, Any]]:
    """Every verb with its command; `db` is a group of verbs."""
    for verb in command_line.COMMANDS:
        command = command_line.load(verb)
        inner = getattr(command, "commands", {})
        yield from ((f"{verb} {name}", found) for name, found in inner.items())
        if not inner:
            yield verb, command


def _verbs(page: str) -> list[str]:
    """A table of the verbs, each with a link to the section that has its options."""
    lines = ["| verb | what it does |", "|---|---|"]
    for verb, (_, _, about) in command_line.COMMANDS.items():
        before = re.split(rf"<!-- verb {verb} ", page, maxsplit=1)[0]
        heading = re.findall(r"^## (.+)$", before, re.MULTILINE)[-1]
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        lines.append(f"| [`{verb}`](#{anchor}) | {about[0].lower()}{about[1:].rstrip('.')} |")
    return lines


def _verb(name: str, command: Any) -> list[str]:
    """Usage, arguments, options and exit codes of one verb."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    usage = " ".join(["holdfast", name, *(_metavar(p) for p in arguments), *["[OPTIONS]"] * bool(options)])
    lines = ["```text", usage, "```"]
    rows = [(f"`{_metavar(p)}`", p.help or "") for p in arguments]
    common = _shared()
    shared = [f"`{p.opts[0]}`" for p in options if common.get(p.opts[0]) == p.help]
    rows += [(_option(p), _meaning(p)) for p in options if common.get(p.opts[0]) != p.help]
    if rows:
        lines += ["", "| | |", "|---|---|", *(f"| {_cell(what)} | {_cell(about)} |" for what, about in rows)]
    codes = re.search(r"Exit codes: (.*?)(?:\n\s*\n|\Z)", command.help, re.DOTALL)
    notes = f"Also {', '.join(shared)}. " if shared else ""
    notes += f"Exit codes: {' '.join(codes[1].split()) if codes else '0 done, 1 an error, 2 wrong usage.'}"
    return [*lines, "", *_wrapped(notes)]


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" `{parameter.metavar or parameter.type.name.upper()}`"
    return names + value


def _meaning(parameter: Any) -> str:
    is_shown = parameter.default not in (None, False, "", ()) and not parameter.is_flag
    return (parameter.help or "") + (f" Default: `{parameter.default}`." if is_shown else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shared() -> dict[str, str]:
    """The options that several verbs share, with their help."""
    return {p.opts[0]: p.help for p in command_line.load("resume").params if p.opts[0] in SHARED_OPTIONS}


def _shared_options() -> list[str]:
    found = {p.opts[0]: p for p in command_line.load("resume").params}
    rows = [(_option(found[name]), _meaning(found[name])) for name in SHARED_OPTIONS]
    return ["| | |", "|---|---|", *(f"| {_cell(what)} | {_cell(about)} |" for what, about in rows)]


def _exit_codes() -> list[str]:
    return ["| code | meaning |", "|---|---|", *(f"| {code} | {about} |" for code, about in EXIT_CODES.items())]


def _schema(kind: str) -> str:
    """The JSON Schema of one kind of document, or of all."""
    found = kinds.schema_of_documents() if kind == "holdfast" else kinds.schema_of_kind(kind)
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "api.md": api_page,
    "state-machines.md": state_machines_page,
    "cli.md": cli_page,
}
PAGES |= {f"schemas/{kind}.json": functools.partial(_schema, kind) for kind in ("holdfast", *kinds.KINDS)}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).parent.mkdir(exist_ok=True)
        (FOLDER / page).write_text(make(), "utf-8")
