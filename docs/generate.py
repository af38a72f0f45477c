"""The reference pages that are made from the code: `python3 dev.py docs` writes them, a test compares them.

Owns: docs/errors.md and docs/api.md, whole; the diagrams of docs/state-machines.md.
Never: repeats what the guide explains; a reference lists, with the first paragraph of each docstring.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import holdfast as hf
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


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "api.md": api_page,
    "state-machines.md": state_machines_page,
}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make(), "utf-8")
