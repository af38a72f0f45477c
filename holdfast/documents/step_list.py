"""Documents of kind `steps`: ordered steps of ordered modules, which pass values on through the state of the run.

Owns: the shape of such a document, and compiling it to a definition. A step is a phase that begins when the one before
it has completed; its modules are nodes that run one after the other. What a module puts into the state is read by the
modules behind it: `state.name` is the value that the last module before put there. So the state needs no variables: the
compiler knows which output each name stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.documents.common_shapes import DESCRIPTION, ID, INPUT, NAME, OPTIONS, RETRY, SETTINGS
from holdfast.documents.compiling import Compiler, title_of, unread
from holdfast.documents.names import Names
from holdfast.documents.places import Pointer
from holdfast.documents.shapes import Choice, Expression, ListOf, MapOf, Record, Shape, Text
from holdfast.model.definition import Definition, NodeDef, Phase
from holdfast.model.expressions import Expr, operands
from holdfast.model.problems import choices

MODULE: Final = Record(
    "module",
    "A module: one unit of work, or a question.",
    {
        "id": ID,
        "handler": Text("A registered Python function, a built-in handler such as `ask`, or another workflow."),
        "input": MapOf(Shape(), "Arguments by name; texts may hold templates {{ state.name }}."),
        "when": Expression("The module is skipped unless this holds."),
        "outputs_to_state": MapOf(
            Expression(),
            "Names in the state, with expressions over `output`.",
            names="a value",
            identifiers=True,
        ),
        **OPTIONS,
    },
    ["id", "handler"],
)
STEP: Final = Record(
    "step",
    "Modules that run one after the other.",
    {"name": Text("What the step is called."), "modules": ListOf(MODULE, "The modules, in order.", least=1)},
    ["name", "modules"],
)
SHAPE: Final = Record(
    "steps",
    "Ordered steps of ordered modules.",
    {
        "kind": Choice(["steps"], "The kind of the document."),
        "name": NAME,
        "description": DESCRIPTION,
        "input": INPUT,
        "settings": SETTINGS,
        "retry": RETRY,
        "steps": ListOf(STEP, "The steps, in order.", least=1),
        "result": Shape("What a run gives: a value with templates; default: the whole state."),
    },
    ["kind", "name", "steps"],
)


def compile_steps(compiler: Compiler) -> Definition | None:
    """The definition of a checked document; None when there are problems."""
    return _Steps(compiler).definition()


class _Steps:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.findings = compiler.findings
        self.state: dict[str, Expr] = {}
        """What each name in the state stands for, at the place that the compiler has reached."""
        self.nodes: list[NodeDef] = []

    def definition(self) -> Definition | None:
        c, document = self.compiler, self.compiler.document
        c.default_retry = c.retry(document.get("retry"))
        params = c.params()
        names = Names([p.name for p in params], (), {})
        phases: list[Phase] = []
        for index, step in enumerate(document["steps"]):
            self.step(step, ("steps", index), names, [p.name for p in phases])
            phases.append(Phase(name=step["name"], after=phases[-1].name if phases else None))
        settings = c.settings()
        result: Expr = ["dict", *(part for entry in self.state.items() for part in entry)]
        if "result" in document:
            result = self.reads(c.value(document["result"], ("result",), self.seen(names)), ("result",))
        if len(self.findings):
            return None
        return c.check(
            Definition(
                name=document["name"],
                params=params,
                nodes=tuple(self.nodes),
                result=result,
                phases=tuple(phases),
                settings=settings,
                doc=document.get("description", ""),
            )
        )

    def step(self, step: Mapping[str, Any], at: Pointer, names: Names, before: list[str]) -> None:
        if step["name"] in before:
            hint = "give one of them another name"
            self.findings.add("duplicate_id", (*at, "name"), f"two steps are called {step['name']!r}", hint)
        for index, module in enumerate(step["modules"]):
            self.module(module, (*at, "modules", index), names, step["name"])

    def module(self, module: dict[str, Any], at: Pointer, names: Names, phase: str) -> None:
        own = self.compiler.claim_id(module["id"], at)
        self.compiler.pointers[own] = at
        seen = self.seen(names)
        fields = self.compiler.call(module, at, "input", seen)
        fields["args"] = {name: self.reads(e, (*at, "input", name)) for name, e in fields["args"].items()}
        when = None
        if "when" in module:
            when = self.reads(self.compiler.expression(module["when"], (*at, "when"), seen), (*at, "when"))
        last = [self.nodes[-1].id] if self.nodes else []
        after = unread(last, [*fields["args"].values(), when])
        self.nodes.append(NodeDef(id=own, title=title_of(module["id"]), when=when, after=after, phase=phase, **fields))
        with_output = seen.with_values({"state": _STATE, "output": ["node", own]})
        for name, text in module.get("outputs_to_state", {}).items():
            where = (*at, "outputs_to_state", name)
            value = self.reads(self.compiler.expression(text, where, with_output), where)
            earlier = self.state.get(name)
            skippable = when is not None and earlier is not None
            self.state[name] = ["first", value, earlier] if skippable else value

    def seen(self, names: Names) -> Names:
        return names.with_values({"state": _STATE})

    def reads(self, expr: Expr, at: Pointer) -> Expr:
        """An expression with what the names in the state stand for."""
        if not isinstance(expr, list):
            return expr
        if expr[0] == "get" and expr[1] == _STATE:
            if expr[2] in self.state:
                return self.state[expr[2]]
            hint = choices(str(expr[2]), list(self.state), "values in the state")
            self.findings.add("unknown_state", at, f"no module before puts {expr[2]!r} into the state", hint)
            return None
        if expr == _STATE:
            return ["dict", *(part for entry in self.state.items() for part in entry)]
        inner = {id(e): self.reads(e, at) for e in operands(expr)}
        return [inner.get(id(part), part) if isinstance(part, list) else part for part in expr]


_STATE: Final[Expr] = ["var", "state"]
"""Stands for the state until it is known what its names mean."""
