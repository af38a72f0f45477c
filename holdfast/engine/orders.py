"""Orders: runs that are to be started, everything checked and nothing written.

Owns: checking and encoding the inputs and settings of a new run, and what all runs of a workflow have in common.
Never: gives a run its number or writes anything (starting.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import events as ev
from holdfast.model import handlers, values
from holdfast.model.canonical import InputForm
from holdfast.model.definition import Settings
from holdfast.model.errors import HoldfastError, InvalidInput, UsageError
from holdfast.model.handlers import Parameter, RegisteredWorkflow
from holdfast.model.limits import NAME_LENGTH_MAX
from holdfast.model.plans import Plan
from holdfast.model.references import capture, check_size
from holdfast.model.state import code_hash
from holdfast.model.validation import check_settings


class Order(msgspec.Struct):
    """A run that is to be started: everything checked, nothing written."""

    plan: Plan
    input: bytes
    given: bytes
    """The inputs without defaults, as JSON that does not depend on the order of sets."""
    event: ev.RunCreated


class Pattern(msgspec.Struct):
    """What all runs of a workflow that is loaded here have in common: computed for the first of them."""

    workflow: RegisteredWorkflow
    plan: Plan
    inputs: Inputs
    form: InputForm
    fingerprints: dict[str, str]
    code_hash: str

    @classmethod
    def of(cls, workflow: RegisteredWorkflow, plan: Plan) -> Pattern:
        found = {name: h.fingerprint for name in plan.handlers if (h := handlers.find(name)) is not None}
        return cls(workflow, plan, Inputs(workflow), InputForm(plan.definition.params), found, code_hash(found))


def order_of(pattern: Pattern, inputs: dict[str, Any], settings: dict[str, Any]) -> Order:
    """Check everything about a run that can be checked before it exists."""
    plan = pattern.plan
    if settings:
        _check_settings(settings, plan)
    data, parts = pattern.inputs.encode(inputs)
    found: dict[str, Any] = {}
    if plan.input_captures:
        for name, (key, keys, wanted) in plan.input_captures:
            found[f"{name}:{key}"] = capture(msgspec.json.decode(parts[name]), keys, wanted)
        check_size(found, "the input")
    given = values.canonical(inputs, what="the input")
    event = ev.RunCreated(
        workflow=plan.definition.name,
        version=plan.version,
        input=msgspec.Raw(data),
        input_hash=pattern.form.hash(given),
        settings=settings,
        code=pattern.workflow.code,
        fingerprints=pattern.fingerprints,
        code_hash=pattern.code_hash,
        captured=found,
    )
    return Order(plan, data, given, event)


class Inputs:
    """The inputs of a workflow: which there are, and how each is written and checked."""

    def __init__(self, workflow: RegisteredWorkflow) -> None:
        self._workflow = workflow
        self._fields = {p.name: self._field(p) for p in workflow.params}

    def _field(self, param: Parameter) -> tuple[str, bytes, Any, Callable[[bytes], Any]]:
        """What an input is called in errors, how its field begins, its annotation, and what reads it."""
        what = f"input {param.name}"
        try:
            return what, msgspec.json.encode(param.name) + b":", param.annotation, values.decoder(param.annotation)
        except HoldfastError as e:
            raise self._misfit(what, e) from None

    def encode(self, inputs: dict[str, Any]) -> tuple[bytes, dict[str, bytes]]:
        """The inputs as one JSON object, each checked against its annotation; also each by itself."""
        if inputs.keys() != self._fields.keys():
            inputs = self._completed(inputs)
        parts: dict[str, bytes] = {}
        fields: list[bytes] = []
        for name, (what, begin, annotation, read) in self._fields.items():
            try:
                data = values.encode(inputs.get(name), annotation, what=what)
                read(data)
            except HoldfastError as e:
                raise self._misfit(what, e) from None
            parts[name] = data
            fields.append(begin + data)
        return b"{" + b",".join(fields) + b"}", parts

    def _misfit(self, what: str, e: HoldfastError) -> HoldfastError:
        where = "" if what in e.message else f"{what}: "
        return type(e)(f"workflow {self._workflow.definition.name}, {where}{e.message}")

    def _completed(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs with their defaults, if none is unknown or missing."""
        workflow = self._workflow
        unknown = [name for name in inputs if name not in self._fields]
        missing = [p.name for p in workflow.params if p.required and p.name not in inputs]
        if unknown or missing:
            wrong = [f"missing {', '.join(missing)}"] * bool(missing)
            wrong += [f"unknown {', '.join(unknown)}"] * bool(unknown)
            takes = ", ".join(self._fields) or "no inputs"
            raise InvalidInput(f"workflow {workflow.definition.name}: {'; '.join(wrong)}. It takes {takes}.")
        return {p.name: p.default for p in workflow.definition.params if not p.required} | inputs


def check_run_id(run_id: str) -> None:
    """Raise UsageError for a run id that cannot stand in tables, file names and URLs."""
    if not run_id or len(run_id) > NAME_LENGTH_MAX or not run_id.isprintable() or run_id != run_id.strip():
        raise UsageError(f"{run_id!r} is not a run id: use 1 to {NAME_LENGTH_MAX} printable characters")


def setting(created: ev.RunCreated, plan: Plan, name: str) -> Any:
    """A setting of a run that is not created yet."""
    return created.settings.get(name, getattr(plan.definition.settings, name))


def _check_settings(settings: dict[str, Any], plan: Plan) -> None:
    try:
        chosen = msgspec.convert({**msgspec.to_builtins(plan.definition.settings), **settings}, Settings)
    except msgspec.ValidationError as e:
        raise UsageError(f"these settings do not fit a run: {e}") from None
    problems = check_settings(chosen)
    if problems:
        raise UsageError("; ".join(p.message for p in problems))
