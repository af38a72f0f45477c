"""Handlers: the registry that turns a name in a definition into a function in this process.

Owns: name to handler, and name to workflow, for the code that was loaded here; which arguments a compensation gets: the
output of what it undoes as its first argument, inputs of it by the names of its parameters.
Never: imports code (see cli and opening), stores callables anywhere durable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.model.definition import Definition
from holdfast.model.expressions import Expr
from holdfast.model.schemas import schema_of
from holdfast.model.values import decoder

BodyKind = Literal["async", "sync", "inline", "process"]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a handler, without ctx."""

    name: str
    annotation: Any
    """Any when the author gave none."""
    required: bool
    variadic: Literal["", "*", "**"] = ""
    positional_only: bool = False
    keyword_only: bool = False


class Handler(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A node's function and what the engine needs to know about it."""

    name: str
    fn: Callable[..., Any]
    kind: BodyKind
    takes_ctx: bool
    params: tuple[Parameter, ...]
    returns: Any
    """The annotation of the result; Any when there is none."""
    fingerprint: str
    code: CodeLocation
    defaults: dict[str, Expr] = {}
    """The defaults of its parameters, as expressions; one that only Python can hold is left out."""
    fields: dict[str, Any] = {}
    """What its declaration says of every node that runs it: `retry`, `timeout` and so on, as fields of NodeDef."""
    compensate: str | None = None
    """The handler that undoes it."""
    accepts_none: bool = False
    """Whether its first parameter may be None."""

    def call_arguments(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert arguments by parameter name, as in NodeDef.args, to those of `fn(*positional, **keyword)`. The caller
        adds ctx in front."""
        extra = values.get("*") or ()
        if not extra and not self._positional_only:
            return [], {name: value for name, value in values.items() if name != "*"}
        positional: list[Any] = []
        rest = dict(values)
        rest.pop("*", None)
        for p in self.params:
            if p.variadic or p.keyword_only or p.name not in rest or not (extra or p.positional_only):
                break
            positional.append(rest.pop(p.name))
        return [*positional, *extra], rest

    @functools.cached_property
    def config_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments by name, as one object: what a document may write as its config."""
        named = {p.name: schema_of(p.annotation) or {} for p in self.params if not p.variadic}
        parts: dict[str, Any] = {}
        for name, schema in named.items():
            own = schema.get("$defs", {})
            if any(parts.get(part, found) != found for part, found in own.items()):
                named[name] = {}  # two classes of one name: what one of them is like cannot be said
                continue
            parts |= own
            named[name] = {key: value for key, value in schema.items() if key != "$defs"}
        schema = {
            "type": "object",
            "properties": named,
            "required": [p.name for p in self.params if p.required],
            "additionalProperties": any(p.variadic == "**" for p in self.params),
        }
        return schema | {"$defs": parts} if parts else schema

    @property
    def _positional_only(self) -> bool:
        return bool(self.params) and self.params[0].positional_only


class CodeLocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a workflow's code was found, so that another process can load it.

    `document`: it was compiled from a file in YAML or JSON, which its runs do not need; `parts` are where its Python
    handlers were found."""

    kind: Literal["file", "module", "process", "document"]
    file: str = ""
    module: str = ""
    name: str = ""
    sys_path: str = ""
    parts: tuple[CodeLocation, ...] = ()

    @property
    def needed(self) -> tuple[CodeLocation, ...]:
        """The places from which code has to be loaded."""
        return self.parts if self.kind == "document" else (self,)


class RegisteredWorkflow(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A workflow whose code is loaded here."""

    definition: Definition
    code: CodeLocation
    params: tuple[Parameter, ...]
    returns: Any
    variables: dict[str, Any] = {}
    """Name to the annotation of a declared variable."""

    @functools.cached_property
    def read_result(self) -> Callable[[bytes], Any]:
        """The function that decodes the stored result of a run."""
        return decoder(self.returns)


ALIASES: Final = {
    "ask": "holdfast.ask",
    "call_external_service": "holdfast.http",
    "child": "holdfast.child",
    "http": "holdfast.http",
    "input": "holdfast.input",
    "llm": "holdfast.llm",
    "llm_service": "holdfast.llm",
    "output": "holdfast.output",
    "pause": "holdfast.pause",
    "python": "holdfast.python",
    "receive": "holdfast.receive",
    "shell": "holdfast.shell",
    "sleep": "holdfast.sleep",
    "transform": "holdfast.transform",
}
"""The names of built-in handlers in documents, and those that definitions store."""

CHILD_OPTIONS: Final = frozenset({"run_id", "priority", "timeout", "detached"})
"""Options of a child besides its inputs."""

RESERVED_INPUTS: Final = CHILD_OPTIONS | {"db", "persistence", "queue", "rollout_key"}
"""Names that `start`, `child` and `hf.run` reserve."""

_handlers: dict[str, Handler | Callable[[], Handler]] = {}
"""By name; a function until its first use."""
_workflows: dict[str, Callable[[], RegisteredWorkflow]] = {}
_strict: set[str] = set()


def register(name: str, resolve: Callable[[], Handler]) -> None:
    """Register a handler. `resolve` is called at first use: annotations may name things defined later. A second
    registration of a name replaces the first: a notebook cell is run again."""
    _handlers[name] = resolve


def find(name: str) -> Handler | None:
    """The handler of this name, if its code is loaded in this process."""
    found = _handlers.get(name)
    if found is not None and not isinstance(found, Handler):
        found = _handlers[name] = found()
    return found


def stored_name(name: str) -> str:
    """The name by which definitions store a handler that a document names: of a built-in one, its full name."""
    return ALIASES.get(name, name)


def names() -> list[str]:
    """The names of all handlers that are loaded in this process."""
    return sorted(_handlers)


def missing(wanted: Iterable[str]) -> list[str]:
    """Those of these handlers that are not loaded in this process."""
    return [name for name in wanted if name not in _handlers]


def sync_names() -> list[str]:
    """The handlers whose bodies need a thread."""
    return [name for name in names() if (handler := find(name)) is not None and handler.kind == "sync"]


def fingerprints(wanted: Iterable[str]) -> dict[str, str]:
    """Name to fingerprint of those of these handlers that are loaded in this process."""
    return {name: handler.fingerprint for name in wanted if (handler := find(name)) is not None}


def register_workflow(name: str, trace: Callable[[], RegisteredWorkflow], *, is_strict: bool = False) -> None:
    """Register a workflow; `trace` is called at first use and answers from a cache after that. One that `is_strict`
    refuses to continue with changed code."""
    _workflows[name] = trace
    (_strict.add if is_strict else _strict.discard)(name)


def find_workflow(name: str) -> RegisteredWorkflow | None:
    """The workflow of this name, if its code is loaded here."""
    trace = _workflows.get(name)
    return trace() if trace else None


def workflow_names() -> list[str]:
    return sorted(_workflows)


def strict_workflow_names() -> list[str]:
    """The workflows that refuse to continue with changed code."""
    return sorted(_strict & _workflows.keys())


# --- parameters of compensations -----------------------------------------------------------------------------------


def first_parameter(params: Sequence[Parameter]) -> Parameter | None:
    """The parameter of a compensation that gets the output."""
    return next((p for p in params if not p.variadic and not p.keyword_only), None)


def inputs_taken(undo: Sequence[Parameter], undone: Sequence[Parameter]) -> tuple[str, ...]:
    """The parameters of a compensation that get inputs of the node it undoes: those named like parameters of it."""
    first = first_parameter(undo)
    known = {p.name for p in undone if not p.variadic}
    return tuple(p.name for p in undo if p is not first and not p.variadic and p.name in known)


def compensation_fields(undo: Handler, undone: Sequence[Parameter], args: Mapping[str, Expr]) -> dict[str, Any]:
    """The fields of a node, given these arguments, that say how it is compensated."""
    taken = inputs_taken(undo.params, undone)
    fields = {name: undo.fields[name] for name in _COMPENSATION_FIELDS if name in undo.fields}
    return {
        "compensate": undo.name,
        "compensate_inputs": tuple(name for name in taken if name in args),
        "compensate_accepts_none": undo.accepts_none,
        **{f"compensate_{name}": value for name, value in fields.items()},
    }


_COMPENSATION_FIELDS: Final = ("retry", "timeout", "heartbeat", "on_crash", "concurrency", "idempotent")


def compensation_problem(undo: Sequence[Parameter], undone: Sequence[Parameter]) -> tuple[str, str] | None:
    """Why a compensation cannot be called, and what to do about it; None if it can."""
    if first_parameter(undo) is None:
        return (
            "it has no parameter for the output of the node that it undoes",
            "give it a first parameter that takes the output",
        )
    taken = inputs_taken(undo, undone)
    missing = [p.name for p in undo if p.required and p is not first_parameter(undo) and p.name not in taken]
    if not missing:
        return None
    there = ", ".join(p.name for p in undone if not p.variadic) or "none"
    return (
        f"nothing gives it a value for {', '.join(missing)}: its first parameter gets the output, further ones get the "
        "inputs of their names",
        f"name them like parameters of the node ({there}), or give them defaults",
    )
