"""Run inputs: what a caller gives to a new run or to a new branch, checked and encoded, nothing written.

Owns: the inputs and settings of a new run, what all runs of a workflow have in common, and the edits of a branch, which
are checked like the original: JSON in, encoded values out, with what rules read of them.
Never: gives a run its number or writes anything (starting.py, branching.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model import answers, handlers, values
from holdfast.model import events as ev
from holdfast.model.canonical import InputForm
from holdfast.model.captures import capture, captured, check_size
from holdfast.model.definition import Settings
from holdfast.model.errors import CorruptJournal, HoldfastError, InvalidInput, UsageError
from holdfast.model.handlers import CodeLocation, Parameter, RegisteredWorkflow
from holdfast.model.limits import NAME_LENGTH_MAX
from holdfast.model.naming import instance_text
from holdfast.model.plans import NodePlan, Plan
from holdfast.model.state import RunState, code_hash
from holdfast.model.validation import check_settings
from holdfast.rules.branch_cut import find
from holdfast.rules.branch_opening import AnswerEdit, Edits
from holdfast.rules.draft import Refusal
from holdfast.store.records.journal import History
from holdfast.store.records.stored_values import held_value


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
    def of(cls, workflow: RegisteredWorkflow, plan: Plan, recorded: dict[str, str] | None = None) -> Pattern:
        """`recorded`: the fingerprints of code that is not loaded here, as of when it was deployed."""
        found = {**(recorded or {}), **handlers.fingerprints(plan.handlers)}
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
        declared = {p.name: p.schema for p in workflow.definition.params}
        self._schemas = {p.name: of for p in workflow.params if p.annotation is Any and (of := declared.get(p.name))}
        """Of inputs whose type only their JSON Schema tells."""

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
                if name in self._schemas:
                    _check_schema(self._schemas[name], data, what)
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


def _check_schema(schema: Any, data: bytes, what: str) -> None:
    wrong = answers.problems(schema, data)
    if wrong:
        raise InvalidInput(f"{what}: {'; '.join(wrong)}")


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


# --- edits of a branch ----------------------------------------------------------------------------------------------


KNOWN = ("input", "vars", "outputs", "answers", "version")


def prepare(edits: dict[str, Any] | None, history: History, head: RunState) -> Edits:
    """Check what a caller wants to edit. `input` is a JSON merge patch on the input of the branch, `vars` and
    `outputs` give whole values, `answers` whole answers by the id of the question."""
    ready = Edits()
    if not edits:
        return ready
    unknown = [name for name in edits if name not in KNOWN]
    if unknown:
        raise InvalidInput(f"edits know {', '.join(KNOWN)}; not {', '.join(unknown)}")
    ready.version = _version(edits, history)
    plan = history.plan(ready.version) if ready.version else head.plan
    workflow = handlers.find_workflow(history.row.workflow) or _stored(plan)
    if edits.get("input") is not None:
        ready.input, ready.input_captured = _input(edits["input"], history, head, plan, workflow)
    if edits.get("vars"):
        ready.vars, ready.vars_captured = _vars(edits["vars"], plan, workflow)
    for name, value in (edits.get("outputs") or {}).items():
        try:
            instance = find(name, head, plan)
        except Refusal as refusal:
            raise InvalidInput(f"the output of {name} cannot be edited: {refusal.why}") from None
        text = instance_text(*instance)
        node = plan.scope_of(instance[1]).nodes[instance[0]]
        data, ready.outputs_captured[text] = _output(text, value, node)
        ready.outputs[text] = msgspec.Raw(data)
    if edits.get("answers"):
        ready.answers = _answers(edits["answers"], history.line(head.branch))
    return ready


def _stored(plan: Plan) -> RegisteredWorkflow:
    """A workflow whose code is not loaded here, with its inputs and variables as the stored schemas describe them."""
    params = tuple(Parameter(p.name, Any, p.required) for p in plan.definition.params)
    return RegisteredWorkflow(
        definition=plan.definition, code=CodeLocation(kind="document"), params=params, returns=Any
    )


def merge_patch(value: Any, patch: Any) -> Any:
    """RFC 7396: null removes a field, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), change)
    return merged


def _version(edits: dict[str, Any], history: History) -> int:
    version = edits.get("version") or 0
    if not isinstance(version, int):
        raise InvalidInput(f"a version is a number, not {version!r}")
    if version:
        try:
            history.plan(version)
        except CorruptJournal as e:
            raise InvalidInput(e.message) from None
    return version


def _input(
    patch: Any, history: History, head: RunState, plan: Plan, workflow: RegisteredWorkflow
) -> tuple[dict[str, msgspec.Raw], dict[str, Any]]:
    if not isinstance(patch, dict):
        raise InvalidInput(f"the edited input is an object with inputs by name, not {patch!r}")
    entry = next(e for e in history.entries if e.seq == head.fold.input_seq)
    merged = merge_patch(msgspec.json.decode(held_value(entry.event)), patch)
    _, parts = Inputs(workflow).encode(merged)
    plain = {name: msgspec.json.decode(data) for name, data in parts.items()}
    found = {f"{name}:{key}": capture(plain[name], keys, wanted) for name, (key, keys, wanted) in plan.input_captures}
    check_size(found, "the input")
    return {name: msgspec.Raw(data) for name, data in parts.items()}, found


def _vars(
    given: dict[str, Any], plan: Plan, workflow: RegisteredWorkflow
) -> tuple[dict[str, msgspec.Raw], dict[str, Any]]:
    ready: dict[str, msgspec.Raw] = {}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in plan.definition.variables:
            raise InvalidInput(
                f"variable {name} is not declared; declared: {', '.join(plan.definition.variables) or 'none'}"
            )
        data = _check(value, workflow.variables.get(name, Any), f"variable {name}")
        if name not in workflow.variables:
            _check_schema(plan.definition.variables[name], data, f"variable {name}")
        ready[name] = msgspec.Raw(data)
        of_one = captured(data, plan.var_captures.get(name, ()), f"variable {name}")
        found |= {f"{name}:{key}": part for key, part in of_one.items()}
    return ready, found


def _output(text: str, value: Any, node: NodePlan) -> tuple[bytes, dict[str, Any]]:
    what = f"the output of {text}"
    if node.definition.kind == "map":
        data = _check(value, list[Any], what)
    else:
        handler = handlers.find(node.definition.uses) if node.body is None else None
        data = _check(value, Any if handler is None else handler.returns, what)
    return data, captured(data, node.captures, what)


def _answers(given: Any, line: Sequence[ev.Entry]) -> dict[str, AnswerEdit]:
    if not isinstance(given, dict):
        raise InvalidInput(f"edited answers are an object with answers by the id of their question, not {given!r}")
    opened = {entry.event.wait_id: entry for entry in line if type(entry.event) is ev.WaitOpened}
    ready: dict[str, AnswerEdit] = {}
    for wait_id, value in given.items():
        asked = opened.get(wait_id)
        if asked is None:
            known = ", ".join(name for name, entry in opened.items() if entry.event.kind == "input") or "none"
            raise InvalidInput(f"there is no question {wait_id} on this branch; there are: {known}")
        if asked.event.kind != "input":
            raise InvalidInput(f"{wait_id} is no question but a {asked.event.kind}: it has no answer to edit")
        assert asked.node is not None
        assert asked.path is not None
        schema = asked.event.about.get("schema")
        data = values.encode(value, what=f"the answer to {wait_id}")
        wrong = answers.problems(schema, data)
        if wrong:
            raise InvalidInput(f"this does not answer {wait_id}: {'; '.join(wrong)}")
        data = answers.completed(schema, data)
        ready[wait_id] = AnswerEdit(msgspec.Raw(data), asked.node, asked.path, asked.visit, asked.event.call)
    return ready


def _check(value: Any, annotation: Any, what: str) -> bytes:
    try:
        data = values.encode(value, annotation, what=what)
        values.decoder(annotation)(data)
    except HoldfastError as e:
        raise InvalidInput(e.message if what in e.message else f"{what}: {e.message}") from None
    return data
