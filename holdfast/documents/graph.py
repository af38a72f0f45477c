"""Documents of kind `graph`: nodes with conditions, maps, loops, routes and phases, as `@hf.workflow` traces them.

Owns: compiling such a document (graph_shape.py) to a definition. A route or a group of nodes is no node: its nodes
get its condition, lane and label, as nodes that are called in `with hf.route(...)` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.documents.compiling import Compiler, node_id, sorted_nodes, title_of
from holdfast.documents.names import Names
from holdfast.documents.places import Pointer
from holdfast.documents.shapes import shown
from holdfast.model.definition import Body, Definition, NodeDef, Phase
from holdfast.model.expressions import Expr, chain
from holdfast.model.ordering import after_phases, order_problems, references
from holdfast.model.problems import name_problem


class _Under(NamedTuple):
    """What the groups and routes around a node add to it."""

    condition: Expr | None = None
    labels: tuple[str, ...] = ()
    lane: str = ""
    phase: str | None = None


class _Body(NamedTuple):
    """The nodes of the workflow, or of a map or loop, while they are compiled."""

    names: Names
    known: dict[str, str]
    """Titles of the nodes that can be named here to their ids."""
    own: dict[str, str]
    prefix: str
    found: list[NodeDef]


def compile_graph(compiler: Compiler) -> Definition | None:
    """The definition of a checked document; None when there are problems."""
    return _Graph(compiler).definition()


class _Graph:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.findings = compiler.findings
        self.document = compiler.document
        self.routes = 0
        self.phases = tuple(Phase(**phase) for phase in self.document.get("phases", ()))

    def definition(self) -> Definition | None:
        c, document = self.compiler, self.document
        c.default_retry = c.retry(document.get("retry"))
        params = c.params()
        own: dict[str, str] = {}
        self.collect(document["nodes"], ("nodes",), own)
        names = Names([p.name for p in params], list(document.get("variables", {})), own)
        top = _Body(names, own, own, "", [])
        self.entries(document["nodes"], ("nodes",), top, _Under())
        result = c.value(document.get("result"), ("result",), names)
        tickets = {t: c.resolve(to, ("tickets", t), own) or to for t, to in document.get("tickets", {}).items()}
        settings = c.settings()
        nodes = self.ordered(top, ("nodes",))
        if len(self.findings):
            return None
        return c.check(
            Definition(
                name=document["name"],
                params=params,
                nodes=after_phases(nodes, self.phases),
                result=result,
                phases=self.phases,
                variables=document.get("variables", {}),
                tickets=tickets,
                settings=settings,
                doc=document.get("description", ""),
            )
        )

    # --- which nodes there are ----------------------------------------------------------------------------------

    def collect(self, entries: Sequence[Mapping[str, Any]], at: Pointer, own: dict[str, str]) -> None:
        """The ids of a body's nodes, also of those in its groups and routes."""
        for index, entry in enumerate(entries):
            here = (*at, index)
            if "handler" in entry or "map" in entry or "loop" in entry:
                own[entry["id"]] = self.compiler.claim_id(entry["id"], here, own)
                continue
            for key, members in _members(entry):
                self.collect(members, (*here, *key), own)

    # --- compiling ----------------------------------------------------------------------------------------------

    def entries(self, entries: Sequence[Mapping[str, Any]], at: Pointer, body: _Body, under: _Under) -> None:
        for index, entry in enumerate(entries):
            here = (*at, index)
            if "handler" in entry:
                self.add(entry, here, body, under, self.compiler.call(entry, here, "input", body.names))
            elif "map" in entry:
                self.add(entry, here, body, under, self.scope("map", entry, here, body))
            elif "loop" in entry:
                self.add(entry, here, body, under, self.scope("loop", entry, here, body))
            elif "route" in entry:
                self.route(entry, here, body, self.inside(entry, here, body, under))
            elif "routes" in entry:
                self.parallel(entry, here, body, self.inside(entry, here, body, under))
            else:
                self.entries(entry["nodes"], (*here, "nodes"), body, self.inside(entry, here, body, under))

    def add(self, entry: Mapping[str, Any], at: Pointer, body: _Body, under: _Under, fields: dict[str, Any]) -> None:
        under = self.inside(entry, at, body, under)
        own = body.own[entry["id"]]
        after = [self.compiler.resolve(t, (*at, "after", i), body.known) for i, t in enumerate(entry.get("after", ()))]
        label = entry.get("label") or ", ".join(under.labels) or None
        self.compiler.pointers[body.prefix + own] = at
        body.found.append(
            NodeDef(
                id=own,
                title=title_of(entry["id"]),
                when=under.condition,
                after=tuple(dict.fromkeys(name for name in after if name is not None)),
                phase=under.phase,
                lane=under.lane + entry.get("lane", ""),
                route=label,
                **fields,
            )
        )

    def inside(self, entry: Mapping[str, Any], at: Pointer, body: _Body, under: _Under) -> _Under:
        """What an entry's own condition and phase add to what is around it."""
        if "when" in entry:
            under = self.narrowed(under, self.compiler.expression(entry["when"], (*at, "when"), body.names))
        phase = entry.get("phase")
        if phase is None:
            return under
        if body.prefix:
            wrong, hint = "phases belong to the workflow itself", "put `phase` on the map or loop"
            self.findings.add("bad_phase", (*at, "phase"), wrong, hint)
        elif under.phase not in (None, phase):
            wrong = f"phases do not nest: {phase!r} is inside {under.phase!r}"
            self.findings.add("bad_phase", (*at, "phase"), wrong, "name the phase once")
        elif phase not in {p.name for p in self.phases}:
            hint = "add it to `phases`: - {name: " + str(phase) + "}"
            self.findings.add("unknown_phase", (*at, "phase"), f"there is no phase {shown(phase)}", hint)
        return under._replace(phase=phase)

    def narrowed(self, under: _Under, condition: Expr) -> _Under:
        if condition is None:
            return under
        return under._replace(condition=condition if under.condition is None else ["and", under.condition, condition])

    def route(self, entry: Mapping[str, Any], at: Pointer, body: _Body, under: _Under) -> None:
        route = entry["route"]
        label = entry.get("id") or self.new_route("choice")
        value = self.compiler.expression(route["on"], (*at, "route", "on"), body.names)
        link = chain(value)
        if link is not None and "id" not in entry:
            label = str(link[1][-1] if link[1] else link[0][-1])
        names = list(route["choices"])
        for name, members in route["choices"].items():
            inner = self.narrowed(under, ["eq", value, name])._replace(labels=(*under.labels, f"{label}={name}"))
            self.entries(members, (*at, "route", "choices", name), body, inner)
        if "otherwise" in route:
            none: Expr = None
            if names:
                none = ["ne", value, names[0]] if len(names) == 1 else ["not", ["contains", ["const", names], value]]
            inner = self.narrowed(under, none)._replace(labels=(*under.labels, f"{label}=otherwise"))
            self.entries(route["otherwise"], (*at, "route", "otherwise"), body, inner)

    def parallel(self, entry: Mapping[str, Any], at: Pointer, body: _Body, under: _Under) -> None:
        routes = entry["routes"]
        name = node_id(entry["id"]) if "id" in entry else self.new_route("route")
        selected = self.compiler.expression(routes["select"], (*at, "routes", "select"), body.names)
        for branch, members in routes["branches"].items():
            where = (*at, "routes", "branches", branch)
            if (wrong := name_problem(branch)) is not None:
                self.findings.add(
                    "bad_name", where, f"the name of a branch {wrong}", "give it another one", is_key=True
                )
            inner = self.narrowed(under, ["contains", selected, branch])
            inner = inner._replace(labels=(*under.labels, f"{name}={branch}"), lane=f"{under.lane}{name}.{branch}.")
            self.entries(members, where, body, inner)

    def new_route(self, prefix: str) -> str:
        """`route_1`, `route_2`: a name for a route, apart from all nodes."""
        while True:
            self.routes += 1
            found = f"{prefix}_{self.routes}"
            if found not in self.compiler.titles:
                return found

    def scope(self, kind: Literal["map", "loop"], entry: Mapping[str, Any], at: Pointer, body: _Body) -> dict[str, Any]:
        """The fields of a map or a loop; its body has names of its own."""
        c, given, at = self.compiler, entry[kind], (*at, kind)
        own_id = body.own[entry["id"]]
        args = {k: c.value(v, (*at, "with", k), body.names) for k, v in given.get("with", {}).items()}
        own: dict[str, str] = {}
        self.collect(given["nodes"], (*at, "nodes"), own)
        items = {name: ["param", own_id, name] for name in (given["item"], *args)}
        if not given["item"].isidentifier():
            wrong, hint = f"{shown(given['item'])} is not an identifier", "use letters, digits and _, as in `line`"
            self.findings.add("bad_name", (*at, "item"), wrong, hint)
        names = body.names.inside(entry["id"], own_id, items, own)
        inner = _Body(names, {**body.known, **own}, own, f"{body.prefix}{own_id}/", [])
        self.entries(given["nodes"], (*at, "nodes"), inner, _Under())
        result = c.value(given.get("result"), (*at, "result"), names)
        if "result" not in given:
            if len(own) == 1:
                result = ["node", *own.values()]
            else:
                hint = 'add `result: "{{ NODE.output }}"`'
                self.findings.add("missing_key", at, f"the {kind} has several nodes and no 'result'", hint)
        fields: dict[str, Any] = {"kind": kind, "args": args, "item": given["item"]}
        if kind == "map":
            fields["over"] = c.expression(given["over"], (*at, "over"), body.names)
            fields |= {key: given[key] for key in ("limit", "errors") if key in given}
        else:
            fields["start"] = c.value(given["start"], (*at, "start"), body.names)
            fields["until"] = c.expression(given["until"], (*at, "until"), names.with_values({"result": result}))
            fields |= {key: given[key] for key in ("max_visits", "at_limit", "returns") if key in given}
        nodes = self.ordered(inner, (*at, "nodes"))
        return fields | {"body": Body(nodes=nodes, result=result)}

    def ordered(self, body: _Body, at: Pointer) -> tuple[NodeDef, ...]:
        """The nodes of a body, each behind what it needs; a cycle is a problem."""
        ids = {node.id for node in body.found}
        needs = {node.id: references(node) & ids for node in body.found}
        titles = {own: title for title, own in body.own.items()}
        for own, refs in needs.items():
            if own in refs:
                hint = "use a `loop` to repeat something"
                self.findings.add(
                    "self_loop", self.compiler.pointers[body.prefix + own], "the node refers to itself", hint
                )
                refs.discard(own)
        problems = order_problems({titles[n]: {titles[r] for r in refs} for n, refs in needs.items()}, "")
        for problem in problems:
            where = self.compiler.titles.get(problem.node, at)
            hint = problem.hint.replace("use hf.loop", "use a `loop`")
            self.findings.add(problem.code, where, problem.message, hint, node=problem.node)
        return tuple(body.found) if problems else sorted_nodes(body.found, needs)


def _members(entry: Mapping[str, Any]) -> list[tuple[Pointer, Sequence[Mapping[str, Any]]]]:
    """The lists of nodes in a group or a route, each with the way to it."""
    if "nodes" in entry:
        return [(("nodes",), entry["nodes"])]
    if "routes" in entry:
        return [(("routes", "branches", name), found) for name, found in entry["routes"]["branches"].items()]
    route = entry["route"]
    found: list[tuple[Pointer, Any]] = [(("route", "choices", name), nodes) for name, nodes in route["choices"].items()]
    return [*found, *([(("route", "otherwise"), route["otherwise"])] if "otherwise" in route else [])]
