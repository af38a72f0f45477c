"""Compiling: what the compilers of all kinds of documents have in common.

Owns: ids of nodes, values and expressions, inputs, variables, settings, retry policies; calls of handlers and of other
workflows: which arguments they get, and what their own declaration adds; mapping the problems of a definition back to
the lines of its document.
Never: runs or imports anything; what exists is asked of the `Library`.
Invariant: a compiler adds every problem it meets and goes on; it gives a definition only when there was none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.documents.cel import compile_expression
from holdfast.documents.findings import Findings
from holdfast.documents.names import ExpressionProblem, Names
from holdfast.documents.places import Pointer
from holdfast.documents.reading import Source
from holdfast.documents.shapes import shown
from holdfast.documents.templates import compile_value
from holdfast.model import handlers, validation
from holdfast.model.definition import Definition, NodeDef, Param, Settings, decode
from holdfast.model.errors import HoldfastError
from holdfast.model.expressions import Expr, nodes_of
from holdfast.model.handlers import ALIASES, RESERVED_INPUTS, Handler, Parameter
from holdfast.model.policies import Retry, seconds
from holdfast.model.problems import GOOD_NAME, choices, near
from holdfast.model.schemas import schema_of
from holdfast.model.secret_names import GOOD_SECRET_NAME, escaped, split
from holdfast.model.values import decoder

RESERVED_IDS: Final = frozenset({"input", "vars", "nodes"})
_TIMES: Final = ("timeout", "heartbeat", "delay")


class Library:
    """What a document may name besides its own nodes: handlers and workflows that are loaded, and the documents that
    are read together with it."""

    def __init__(self, documents: Mapping[str, Any] | None = None, *, has_code: bool = True) -> None:
        self._documents = dict(documents or {})
        self._has_code = has_code
        """Whether the code of handlers was given; without it a name that is not known may be one of them."""
        self.unchecked: dict[str, None] = {}
        """Handlers that documents name and that are not loaded here."""
        self._handlers: dict[str, Handler | None] = {}

    def handler(self, name: str) -> Handler | None:
        """The handler of this name, a built-in one by its short name too."""
        if name not in self._handlers:
            self._handlers[name] = handlers.find(handlers.stored_name(name))
        return self._handlers[name]

    def inputs_of(self, workflow: str) -> dict[str, bool] | None:
        """The inputs of a workflow and whether each is required; none when it does not declare them. KeyError when
        there is no such workflow."""
        if workflow in self._documents:
            declared = self._documents[workflow].get("input")
            if not isinstance(declared, dict):
                return None
            return {name: not (isinstance(s, dict) and "default" in s) for name, s in declared.items()}
        if workflow not in handlers.workflow_names():
            raise KeyError(workflow)
        found = handlers.find_workflow(workflow)
        assert found is not None
        return {p.name: p.required for p in found.definition.params}

    def problem(self, name: str) -> str:
        """The hint for a handler that does not exist; empty when that cannot be known here."""
        built_in = near(name, ALIASES)
        if not self._has_code and not built_in:
            self.unchecked[name] = None
            return ""
        known = [*ALIASES, *self._documents, *(n for n in handlers.names() if not n.startswith("holdfast."))]
        same = [n for n in known if n.rpartition(".")[2] == name]
        return f"did you mean {same[0]!r}?" if same else choices(name, known, "handlers")


class Compiler:
    """One document on its way to a definition."""

    def __init__(self, source: Source, library: Library, findings: Findings) -> None:
        self.document: dict[str, Any] = source.value
        self.library = library
        self.findings = findings
        self.pointers: dict[str, Pointer] = {}
        """A node, inside a map or loop `scope/node`, to its place."""
        self.titles: dict[str, Pointer] = {}
        self.default_retry: Retry | None = None
        self._readers: dict[tuple[str, str], Callable[[bytes], Any] | None] = {}

    # --- values -------------------------------------------------------------------------------------------------

    def value(self, value: Any, at: Pointer, names: Names) -> Expr:
        """A value with templates in it, as an expression."""
        if type(value) not in _CONTAINERS and (type(value) is not str or "{{" not in value):
            return value
        try:
            return compile_value(value, names)
        except ExpressionProblem as e:
            self.findings.add("bad_expression", (*at, *e.pointer), e.message, e.hint or _SYNTAX, offset=e.offset)
            return _BROKEN

    def expression(self, text: Any, at: Pointer, names: Names) -> Expr:
        """An expression in CEL."""
        if type(text) is not str:
            return text
        try:
            return compile_expression(text, names)
        except ExpressionProblem as e:
            self.findings.add("bad_expression", at, e.message, e.hint or _SYNTAX, offset=e.offset)
            return _BROKEN

    # --- the head of a document ---------------------------------------------------------------------------------

    def params(self) -> tuple[Param, ...]:
        """The inputs that the document declares."""
        found = []
        for name, schema in self.document.get("input", {}).items():
            if name in RESERVED_INPUTS:
                wrong, hint = f"{name!r} cannot be an input: it is an option of every start", "give it another name"
                self.findings.add("bad_name", ("input", name), wrong, hint, is_key=True)
            bare = {key: part for key, part in schema.items() if key != "default"}
            required = "default" not in schema
            found.append(Param(name=name, required=required, default=schema.get("default"), schema=bare or None))
        return tuple(found)

    def settings(self) -> Settings:
        """The settings of the document's runs."""
        given = dict(self.document.get("settings", {}))
        if "timeout" in given:
            given["timeout"] = seconds(given["timeout"])
        found = msgspec.convert(given, Settings)
        for problem in validation.check_settings(found):
            self.findings.add(problem.code, ("settings", problem.field), problem.message, problem.hint)
        return found

    def retry(self, given: Mapping[str, Any] | None) -> Retry | None:
        """A retry policy as documents write it."""
        if given is None:
            return None
        times = {key: seconds(given[key]) for key in ("backoff", "max_delay") if key in given}
        names = {key: tuple(given[key]) for key in ("on", "never") if key in given}
        return Retry(**{**given, **times, **names})

    # --- nodes --------------------------------------------------------------------------------------------------

    def claim_id(self, title: str, at: Pointer, taken: Container[str] | None = None) -> str:
        """The internal id of a node that the author calls `title`; adds a problem when the name is among the `taken`
        ones: those of its body, else all of the document."""
        if title in RESERVED_IDS:
            hint = "give the node another id"
            self.findings.add("bad_name", (*at, "id"), f"{title!r} is reserved in expressions", hint)
        if title in (self.titles if taken is None else taken):
            hint = "give one of them another id"
            self.findings.add("duplicate_id", (*at, "id"), f"two nodes are called {shown(title)}", hint)
        self.titles[title] = at
        return node_id(title)

    def resolve(self, title: Any, at: Pointer, known: Mapping[str, str]) -> str | None:
        """The internal id of a node that another one names."""
        found = known.get(title)
        if found is None:
            hint = choices(title, list(known), "nodes")
            self.findings.add("unknown_node", at, f"there is no node {shown(title)}", hint)
        return found

    def call(
        self, node: Mapping[str, Any], at: Pointer, key: str, names: Names, given: Mapping[str, Expr] | None = None
    ) -> dict[str, Any]:
        """The fields of a node that calls `handler`: what it runs, its arguments, and its options with those that the
        handler declares. `key` is where the arguments stand in the document; `given` are arguments that the kind of
        document passes to parameters of their names."""
        name = node["handler"]
        secrets: dict[str, str] = {}
        config = {
            k: self._without_secrets(v, (*at, key, k), f"/{escaped(k)}", secrets) for k, v in node.get(key, {}).items()
        }
        args = {k: self.value(v, (*at, key, k), names) for k, v in config.items()}
        handler = self.library.handler(name)
        if handler is not None:
            self._bind(handler, config, args, at, key, given or {}, {split(place)[0] for place in secrets})
            fields = self._declared(handler, node, at, args)
            return {"uses": handler.name, "args": args, "secrets": secrets, **fields}
        if secrets:
            wrong = "only the config of a handler may name secrets"
            self.findings.add("bad_secret", (*at, key), wrong, "let the other workflow name the secret")
        try:
            inputs = self.library.inputs_of(name)
        except KeyError:
            hint = self.library.problem(name)
            if hint:
                self.findings.add("unknown_handler", (*at, "handler"), f"there is no handler {shown(name)}", hint)
            return {"uses": name, "args": args, **self._options(node)}
        except HoldfastError as e:
            hint = "correct that workflow first"
            self.findings.add("bad_child", (*at, "handler"), f"the workflow {name!r} has problems: {e.message}", hint)
            inputs = None
        self._check_inputs(name, inputs, args, at, key)
        flat = [part for k, expr in args.items() for part in (k, expr)]
        child = {"workflow": name, "inputs": ["dict", *flat]}
        return {"uses": ALIASES["child"], "args": child, **self._options(node)}

    def _without_secrets(self, value: Any, at: Pointer, place: str, found: dict[str, str]) -> Any:
        """A value with null in the places of `{$secret: NAME}`; `found` gets these places."""
        if type(value) is dict and "$secret" in value:
            name = value["$secret"]
            if len(value) > 1 or type(name) is not str or not GOOD_SECRET_NAME.fullmatch(name):
                wrong, hint = (
                    f"{shown(name)} is not the name of a secret",
                    "write {$secret: API_TOKEN} and nothing beside",
                )
                self.findings.add("bad_secret", at, wrong, hint)
            found[place] = str(name)
            return None
        if type(value) is dict:
            return {k: self._without_secrets(v, (*at, k), f"{place}/{escaped(k)}", found) for k, v in value.items()}
        if type(value) is list:
            return [self._without_secrets(v, (*at, i), f"{place}/{i}", found) for i, v in enumerate(value)]
        return value

    def _bind(
        self,
        handler: Handler,
        config: Mapping[str, Any],
        args: dict[str, Expr],
        at: Pointer,
        key: str,
        given: Mapping[str, Expr],
        with_secrets: Collection[str],
    ) -> None:
        """Check the arguments against the parameters; add those that the document's kind gives, and defaults."""
        params = {p.name: p for p in handler.params if not p.variadic}
        rest = {p.variadic for p in handler.params if p.variadic}
        for name, value in config.items():
            if name in params and name in with_secrets:
                pass  # its value is known when the body begins
            elif name in params:
                self._check_constant(handler, params[name], args[name], value, (*at, key, name))
            elif "**" not in rest and not (name == "*" and "*" in rest):
                hint = choices(name, list(params), "parameters")
                wrong = f"{handler_title(handler)} has no parameter {shown(name)}"
                self.findings.add("unknown_argument", (*at, key, name), wrong, hint, is_key=True)
        for name, expr in given.items():
            if name not in args and (name in params or ("**" in rest and name.isidentifier())):
                args[name] = expr
        for name, param in params.items():
            if name in args:
                continue
            if name in handler.defaults:
                args[name] = handler.defaults[name]
            elif param.required:
                where = (*at, key) if key in config or config else at
                hint = f"add `{name}: ...` to {key}"
                wrong = f"{handler_title(handler)} needs the argument {name!r}"
                self.findings.add("missing_argument", where, wrong, hint)

    def _check_constant(self, handler: Handler, param: Parameter, expr: Expr, value: Any, at: Pointer) -> None:
        """Check a constant argument against the type of its parameter."""
        if param.annotation is Any or (type(expr) is list and expr[0] != "const"):
            return
        kind = handler.name, param.name
        if kind not in self._readers:
            self._readers[kind] = decoder(param.annotation)
        read = self._readers[kind]
        assert read is not None
        try:
            read(msgspec.json.encode(value))
        except HoldfastError as e:
            wrong = f"{handler_title(handler)}({param.name}): {e.message}"
            self.findings.add("bad_argument", at, wrong, "write a value of that type, or a template")

    def _check_inputs(
        self, name: str, inputs: Mapping[str, bool] | None, args: Mapping[str, Expr], at: Pointer, key: str
    ) -> None:
        if inputs is None:
            return
        for given in args:
            if given not in inputs:
                wrong = f"the workflow {name!r} has no input {shown(given)}"
                hint = choices(given, list(inputs), "inputs")
                self.findings.add("unknown_argument", (*at, key, given), wrong, hint, is_key=True)
        for wanted, required in inputs.items():
            if required and wanted not in args:
                wrong = f"the workflow {name!r} needs the input {wanted!r}"
                self.findings.add("missing_argument", at, wrong, f"add `{wanted}: ...` to {key}")

    def _options(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the document itself gives to a node."""
        found = {name: node[name] for name in ("on_crash", "priority", "idempotent", "concurrency") if name in node}
        found |= {name: seconds(node[name]) for name in _TIMES if name in node}
        if "returns" in node:
            found["returns"] = node["returns"]
        retry = self.retry(node.get("retry"))
        found["retry"] = self.default_retry if retry is None else retry
        return found

    def _declared(
        self, handler: Handler, node: Mapping[str, Any], at: Pointer, args: Mapping[str, Expr]
    ) -> dict[str, Any]:
        """The options of a node: its own, then those that its handler declares, then those of the document."""
        own = self._options(node)
        if "retry" not in node and handler.fields.get("retry") is not None:
            own["retry"] = handler.fields["retry"]
        found = {**handler.fields, "returns": schema_of(handler.returns), **own}
        undo = node.get("compensate", handler.compensate)
        if undo is None:
            return found
        undoing = self.library.handler(undo)
        if undoing is None:
            wrong, hint = f"there is no handler {shown(undo)}", self.library.problem(undo)
            if hint:
                self.findings.add("unknown_handler", (*at, "compensate"), wrong, hint)
            return found | {"compensate": undo}
        problem = handlers.compensation_problem(undoing.params, handler.params)
        if problem is not None:
            self.findings.add(
                "bad_compensation", (*at, "compensate"), f"{undo!r} cannot be called: {problem[0]}", problem[1]
            )
            return found
        return found | handlers.compensation_fields(undoing, handler.params, args)

    # --- the definition -----------------------------------------------------------------------------------------

    def check(self, definition: Definition) -> Definition | None:
        """The definition, if it is valid; its problems are added with their places."""
        if len(self.findings):
            return None
        for problem in validation.check(definition, find=handlers.find if not self.library.unchecked else None):
            at = self.pointers.get(problem.node, ())
            for part in problem.field.split(".") if problem.field else ():
                at = (*at, _FIELDS.get(part, part))
            self.findings.add(problem.code, at, problem.message, problem.hint, node=problem.node)
        # a default that the document spells out is left out when a definition is stored, and must be here as well
        return None if len(self.findings) else decode(definition.encode())


_SYNTAX: Final = "write an expression such as `input.order.amount > 100 && !skipped(check)`"
_BROKEN: Final[Expr] = ["list"]
"""Stands for an expression with a problem, so that nothing else is said about it."""
_CONTAINERS: Final = frozenset({dict, list})
_FIELDS: Final = {"args": "input", "uses": "handler", "params": "input"}


def node_id(title: str) -> str:
    """The internal id of a node: its own when that is a legal name, else a readable one with a hash behind it."""
    if GOOD_NAME.fullmatch(title):
        return title
    slug = re.sub(r"[.@#~\x00-\x1f\x7f]+", "-", title).strip("-")[:100]
    return f"{slug}-{hashlib.blake2b(title.encode(), digest_size=4).hexdigest()}".lstrip("-")


def title_of(title: str) -> str:
    """What is kept of the author's id beside the internal one."""
    return "" if GOOD_NAME.fullmatch(title) else title


def handler_title(handler: Handler) -> str:
    """How documents name a handler."""
    return next((alias for alias, stored in ALIASES.items() if stored == handler.name), handler.name)


def unread(needed: Sequence[str], args: Collection[Expr]) -> tuple[str, ...]:
    """The nodes that must be settled first and that no argument reads."""
    read = {name for expr in args if type(expr) is list for name in nodes_of(expr)}
    return tuple(name for name in needed if name not in read)


def sorted_nodes(nodes: Sequence[NodeDef], needs: Mapping[str, set[str]]) -> tuple[NodeDef, ...]:
    """The nodes, each behind everything that it needs, else in their order in the document. There is no cycle."""
    by_id = {node.id: (index, node) for index, node in enumerate(nodes)}
    placed: dict[str, None] = {}
    for node in nodes:
        stack = [node.id]
        while stack:
            missing = [name for name in needs[stack[-1]] if name not in placed]
            if missing:
                stack.append(min(missing, key=lambda name: by_id[name][0]))
            else:
                placed.setdefault(stack.pop())
    return tuple(by_id[name][1] for name in placed)
