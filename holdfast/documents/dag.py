"""Documents of kind `dag`: nodes with dependencies, whose config may read the outputs of what they depend on.

Owns: the shape of such a document, and compiling it to a definition.
The result is the outputs of the nodes on which no other one depends, by id; of a single such node its output itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.documents.common_shapes import DESCRIPTION, ID, INPUT, NAME, OPTIONS, RETRY, SETTINGS
from holdfast.documents.compiling import Compiler, sorted_nodes, title_of, unread
from holdfast.documents.names import Names
from holdfast.documents.places import Pointer
from holdfast.documents.shapes import (
    Choice,
    Duration,
    Flag,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Record,
    Shape,
    Text,
    Whole,
    shown,
)
from holdfast.model.definition import Definition, NodeDef, Param
from holdfast.model.expressions import Expr
from holdfast.model.handlers import ALIASES
from holdfast.model.ordering import order_problems
from holdfast.model.policies import Retry, seconds

RETRY_CONFIG: Final = Record(
    "retry_config",
    "How a node is tried again: `max_retries` tries after the first one.",
    {
        "max_retries": Whole("Tries after the first one; default 3.", least=0),
        "initial_delay": Duration("The delay before the first retry; default 1s."),
        "max_delay": Duration("The longest delay; default 60s."),
        "base": Number("What each further delay is multiplied by; default 2.", least=1),
        "jitter": Flag("Whether up to a tenth of a delay is taken off at random; default true."),
    },
)
NODE: Final = Record(
    "node",
    "A node of the graph.",
    {
        "id": ID,
        "handler": Text("A registered Python function, a built-in handler, or another workflow by its name."),
        "dependencies": ListOf(Text(), "The nodes that must complete first; only these can be read."),
        "config": MapOf(Shape(), "Arguments by name; texts may hold templates {{ ... }}."),
        "retry_config": RETRY_CONFIG,
        **OPTIONS,
    },
    ["id", "handler"],
)
_NODES: Final = ListOf(NODE, "The nodes, in any order.", least=1)
_HEAD: Final[dict[str, Shape]] = {
    "kind": Choice(["dag"], "The kind of the document."),
    "name": NAME,
    "description": DESCRIPTION,
    "input": INPUT,
    "settings": SETTINGS,
    "retry": RETRY,
    "default_retry_config": RETRY_CONFIG,
}
SHAPE: Final = OneOf(
    "dag document",
    {
        "nodes": Record(
            "dag", "A graph of nodes with dependencies.", {**_HEAD, "nodes": _NODES}, ["kind", "name", "nodes"]
        ),
        "dag": Record(
            "nested dag",
            "The same with its nodes under `dag`.",
            {**_HEAD, "dag": Record("dag nodes", "The nodes.", {"nodes": _NODES}, ["nodes"])},
            ["kind", "name", "dag"],
        ),
    },
)


def compile_dag(compiler: Compiler) -> Definition | None:
    """The definition of a checked document; None when there are problems."""
    return _Dag(compiler).definition()


class _Dag:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.findings = compiler.findings
        self.at: Pointer = ("nodes",) if "nodes" in compiler.document else ("dag", "nodes")
        self.nodes: list[dict[str, Any]] = compiler.document.get("nodes") or compiler.document["dag"]["nodes"]
        self.known: dict[str, str] = {}
        self.whole_input: list[Expr] = ["dict"]
        """Stands for the whole input wherever it is passed; filled once all inputs are known."""

    def definition(self) -> Definition | None:
        c, document = self.compiler, self.compiler.document
        c.default_retry = self.policy(document, "default_retry_config", ())
        for index, node in enumerate(self.nodes):
            self.known[node["id"]] = c.claim_id(node["id"], (*self.at, index), self.known)
        params = c.params() if "input" in document else None
        names = Names(None if params is None else [p.name for p in params], (), self.known)
        found = [self.node(node, (*self.at, index), names) for index, node in enumerate(self.nodes)]
        needs = self.needs()
        if params is None:
            params = self.undeclared(names)
        self.whole_input += [part for p in params for part in (p.name, ["input", p.name])]
        settings = c.settings()
        if len(self.findings):
            return None
        return c.check(
            Definition(
                name=document["name"],
                params=params,
                nodes=sorted_nodes(found, {self.known[n]: {self.known[r] for r in refs} for n, refs in needs.items()}),
                result=self.result(needs),
                settings=settings,
                doc=document.get("description", ""),
            )
        )

    def policy(self, given: Mapping[str, Any], key: str, at: Pointer) -> Retry | None:
        """The retry policy under `retry`, or under the other name that people know it by."""
        if "retry" in given and key in given:
            wrong, hint = f"'retry' and {key!r} mean the same", "remove one of them"
            self.findings.add("bad_retry", (*at, key), wrong, hint, is_key=True)
        if key not in given:
            return self.compiler.retry(given.get("retry"))
        config = given[key]
        return Retry(
            attempts=config.get("max_retries", 3) + 1,
            backoff=seconds(config.get("initial_delay", 1)),
            factor=config.get("base", 2),
            max_delay=seconds(config.get("max_delay", 60)),
            jitter=0.1 if config.get("jitter", True) else 0.0,
        )

    def node(self, node: dict[str, Any], at: Pointer, names: Names) -> NodeDef:
        title = node["id"]
        wanted = self.dependencies(node, at)
        visible = names.only(wanted, f"add it to `dependencies` of {title!r}").with_values({"input": self.whole_input})
        given: dict[str, Expr] = {name: ["node", self.known[name]] for name in wanted}
        given["_input"] = self.whole_input
        fields = self.compiler.call(node, at, "config", visible, given)
        if fields["uses"] == ALIASES["input"] and "value" not in fields["args"]:
            fields["args"]["value"] = self.whole_input
        if "retry_config" in node:
            fields["retry"] = self.policy(node, "retry_config", at)
        own = self.known[title]
        self.compiler.pointers[own] = at
        after = unread([self.known[name] for name in wanted], fields["args"].values())
        return NodeDef(id=own, title=title_of(title), after=after, **fields)

    def dependencies(self, node: Mapping[str, Any], at: Pointer) -> list[str]:
        """The dependencies of a node that exist, each once."""
        found: dict[str, None] = {}
        for index, name in enumerate(node.get("dependencies", ())):
            where = (*at, "dependencies", index)
            if name == node["id"]:
                self.findings.add("self_loop", where, f"{shown(name)} depends on itself", "remove this dependency")
            elif name in found:
                self.findings.add("duplicate_id", where, f"{shown(name)} is named twice", "remove one of them")
            elif self.compiler.resolve(name, where, self.known) is not None:
                found[name] = None
        return list(found)

    def needs(self) -> dict[str, set[str]]:
        """What each node depends on; a cycle is a problem."""
        needs = {
            n["id"]: {name for name in n.get("dependencies", ()) if name in self.known and name != n["id"]}
            for n in self.nodes
        }
        for problem in order_problems(needs, ""):
            at = self.compiler.titles.get(problem.node, self.at)
            hint = problem.hint.replace("use hf.loop to repeat something", "remove one of these dependencies")
            self.findings.add(problem.code, at, problem.message, hint, node=problem.node)
        return needs

    def undeclared(self, names: Names) -> tuple[Param, ...]:
        """The inputs that the templates read, all of them required."""
        takes_all = [n for n in self.nodes if n["handler"] == "input" and "value" not in n.get("config", {})]
        if takes_all and not names.used_inputs:
            wrong = "the node passes the input on, and the document does not say what it consists of"
            hint = "declare it, as `input: {order: {type: object}}`"
            self.findings.add("undeclared_input", self.compiler.titles[takes_all[0]["id"]], wrong, hint)
        return tuple(Param(name=name) for name in names.used_inputs)

    def result(self, needs: Mapping[str, set[str]]) -> Expr:
        needed = set().union(*needs.values())
        leaves = [n["id"] for n in self.nodes if n["id"] not in needed]
        if len(leaves) == 1:
            return ["node", self.known[leaves[0]]]
        return ["dict", *(part for title in leaves for part in (title, ["node", self.known[title]]))]
