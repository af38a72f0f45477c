"""Validation: every problem of a definition, at once.

Owns: what makes a definition valid, the order of its nodes, and loading one from JSON.
Never: stops at the first problem, runs or imports anything.
Invariant: linear in nodes and references (Kahn's algorithm), without recursion over the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

from holdfast.model.definition import Definition, NodeDef, read
from holdfast.model.errors import DefinitionError
from holdfast.model.expressions import LEAVES, Expr, chains_of, problem_of, walk
from holdfast.model.handlers import Handler, compensation_problem, inputs_taken
from holdfast.model.journey_shape import journey_problems, target_problem
from holdfast.model.limits import LOOP_VISITS_MAX, MAP_LIMIT_DEFAULT, NAME_LENGTH_MAX, PROBLEMS_LISTED_MAX
from holdfast.model.ordering import cycles, order_problems, topological_order
from holdfast.model.problems import (
    GOOD_NAME,
    Problem,
    check_settings,
    choices,
    is_count,
    milestone_problems,
    name_problem,
    near,
    policy_problems,
    repeated,
)
from holdfast.model.secret_names import GOOD_SECRET_NAME, split
from holdfast.model.typecheck import compensation_mismatch, mismatches

SCOPE_DEPTH_MAX: Final = 50
"""Maps and loops inside each other; validation recurses over them."""


__all__ = ["Problem", "check", "check_settings", "error", "load", "name_problem", "topological_order"]

Find = Callable[[str], Handler | None]


def check(definition: Definition, known: Container[str] | None = None, find: Find | None = None) -> list[Problem]:
    """Every problem of a definition. `known` are the handler names that exist; `find` gives handlers, and with them
    the types of their parameters. Without them handlers are not checked."""
    checker = _Checker(definition, known, find)
    checker.run()
    return checker.problems


def load(data: bytes | str, known: Container[str] | None = None) -> Definition:
    """A valid definition from its JSON form. Raises DefinitionError that lists all problems."""
    definition = read(data)
    problems = check(definition, known)
    if problems:
        raise error(definition, problems)
    return definition


def error(definition: Definition, problems: Sequence[Problem]) -> DefinitionError:
    """One error for all problems."""
    lines = [f"  {p.code}: {p}" for p in problems[:PROBLEMS_LISTED_MAX]]
    if len(problems) > PROBLEMS_LISTED_MAX:
        lines.append(f"  ... and {len(problems) - PROBLEMS_LISTED_MAX} more")
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return DefinitionError(f"workflow {definition.name!r} has {count}:\n" + "\n".join(lines), tuple(problems))


# --- the walk over a definition ---------------------------------------------------------------------------------


class _Scope(msgspec.Struct):
    """A body that is being checked, and the names that can be read in it."""

    nodes: dict[str, NodeDef]
    prefix: str = ""
    owner: NodeDef | None = None
    parent: _Scope | None = None
    depth: int = 0


class _Checker:
    def __init__(self, definition: Definition, known: Container[str] | None, find: Find | None) -> None:
        self.definition = definition
        self.known = known
        self.find = find
        self.problems: list[Problem] = []
        self.inputs = {p.name for p in definition.params}
        self.homes: dict[str, str] = {}
        """Ids inside bodies to the scope that owns them, for the hint about references from outside."""

    def run(self) -> None:
        d = self.definition
        self.name(d.name, "", "name")
        for p in d.params:
            self.name(p.name, "", "params")
        for twice in repeated(p.name for p in d.params):
            self.add("duplicate_id", "", "params", f"two inputs are called {twice!r}", _RENAME)
        for variable in d.variables:
            self.name(variable, "", "variables")
        self.problems += check_settings(d.settings)
        self.tickets()
        self.phases()
        self.problems += [*journey_problems(d), *milestone_problems(d.milestones)]
        self._collect_homes(d.nodes)
        self.has_maps = bool(self.homes) or any(n.kind == "map" for n in d.nodes)
        top = _Scope(nodes={n.id: n for n in d.nodes})
        self.body(d.nodes, d.result, top, "result")
        if self.find is not None and not self.problems:
            for node, field, message in mismatches(d, self.find):
                self.add("type_mismatch", node, field, message, "convert it in a node between them")

    def add(self, code: str, node: str, field: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code=code, node=node, field=field, message=message, hint=hint))

    def name(self, name: str, node: str, field: str) -> None:
        if not GOOD_NAME.fullmatch(name):
            self.add("bad_name", node, field, f"the name {name_problem(name)}", _GOOD_NAMES)

    def body(self, nodes: Sequence[NodeDef], result: Expr, scope: _Scope, field: str) -> set[str]:
        """Check one body; the ids of enclosing bodies that it refers to."""
        outside: set[str] = set()
        if len(scope.nodes) != len(nodes):
            for twice in repeated(n.id for n in nodes):
                self.add("duplicate_id", scope.prefix + twice, "id", f"two nodes are called {twice!r}", _RENAME)
        needs: dict[str, set[str]] = {}
        for node in nodes:
            where = scope.prefix + node.id
            if not GOOD_NAME.fullmatch(node.id):
                self.add("bad_name", where, "id", f"the id {name_problem(node.id)}", _GOOD_NAMES)
            refs = self.node_references(node, where, scope)
            if node.kind == "call":
                self.call(node, where)
            else:
                refs |= self.scope_node(node, where, scope)
            self.problems += policy_problems(node, where)
            if node.id in refs and node.id in scope.nodes:
                self.add("self_loop", where, "", "the node refers to itself", "use hf.loop to repeat something")
                refs.discard(node.id)
            inner = {ref for ref in refs if ref in scope.nodes}
            needs[node.id] = inner
            if len(inner) != len(refs):
                outside |= refs - inner
        if result is not None:
            refs = self.expression(result, scope.owner.id if scope.owner else "", field, scope)
            outside |= refs - scope.nodes.keys()
        self.problems += order_problems(needs, scope.prefix)
        return outside

    def node_references(self, node: NodeDef, where: str, scope: _Scope) -> set[str]:
        refs: set[str] = set()
        for name, expr in node.args.items():
            if type(expr) is list:
                refs |= self.expression(expr, where, f"args.{name}", scope)
            elif expr is not None and type(expr) not in _SCALARS:
                self.add("bad_expression", where, f"args.{name}", f"{expr!r} is not an expression", _EXPRESSIONS)
        for field, expr in (("when", node.when), ("over", node.over), ("start", node.start)):
            if expr is not None:
                refs |= self.expression(expr, where, field, scope)
        if node.when is not None:
            self.condition(node.when, where, "when", scope)
        for ref in node.after:
            if self.resolve(ref, where, "after", scope):
                refs.add(ref)
        if node.phase is not None and node.phase not in self.phase_names:
            hint = choices(node.phase, self.phase_names, "phases")
            self.add("unknown_phase", where, "phase", f"there is no phase {node.phase!r}", hint)
        if node.lane and any(name_problem(part) for part in node.lane.removesuffix(".").split(".")):
            hint = "the name of the route and that of its branch, each with a dot behind it"
            self.add("bad_name", where, "lane", f"{node.lane!r} is not a lane such as 'route_1.eu.'", hint)
        return refs

    def expression(self, expr: Expr, where: str, field: str, scope: _Scope) -> set[str]:
        """Check one expression; the nodes that it refers to and that exist."""
        leaf, depth = expr, 0
        while type(leaf) is list and len(leaf) == 3 and leaf[0] == "get" and type(leaf[2]) in _KEYS and depth < 20:
            leaf, depth = leaf[1], depth + 1
        if type(leaf) is list and len(leaf) == 2 and type(leaf[1]) is str and leaf[0] in ("node", "input"):
            return self.leaf(leaf, where, field, scope)  # a plain reference, which most expressions are
        wrong = problem_of(expr)
        if wrong:
            self.add("bad_expression", where, field, wrong, _EXPRESSIONS)
            return set()
        refs: set[str] = set()
        for e in walk(expr):
            if type(e) is list and e[0] in LEAVES:
                refs |= self.leaf(e, where, field, scope)
        return refs

    def leaf(self, leaf: Expr, where: str, field: str, scope: _Scope) -> set[str]:
        """Check what an expression reads at one place; the node, if it is one that exists."""
        kind, name = leaf[0], leaf[1]
        if kind == "node":
            return {name} if name in scope.nodes or self.resolve(name, where, field, scope) else set()
        if kind == "input" and name not in self.inputs:
            hint = choices(name, sorted(self.inputs), "inputs")
            self.add("unknown_input", where, field, f"the workflow has no input {name!r}", hint)
        elif kind == "var" and name not in self.definition.variables:
            hint = near(name, self.definition.variables) or "declare it in 'variables'"
            self.add("unknown_variable", where, field, f"the workflow declares no variable {name!r}", hint)
        elif kind == "param":
            self.param(name, leaf[2], where, field, scope)
        return set()

    def resolve(self, name: str, where: str, field: str, scope: _Scope) -> bool:
        """Whether a node of this name can be read in this body; adds a problem if not."""
        if name in scope.nodes:
            return True
        here: _Scope | None = scope
        while here is not None and here.parent is not None:
            assert here.owner is not None
            if name in here.parent.nodes:
                if name == here.owner.id:
                    hint = "use the item or value that the body is given, or a node of the body"
                    self.add("self_loop", where, field, f"refers to {name!r}, in whose body it is", hint)
                    return False
                return True
            here = here.parent
        home = self.homes.get(name)
        if home is not None:
            message = f"refers to {name!r}, which is inside the body of {home!r}: one value for each item or round"
            self.add("inside_scope", where, field, message, f"refer to {home!r}, or return it from the body")
        else:
            hint = choices(name, scope.nodes, "nodes")
            self.add("unknown_node", where, field, f"there is no node {name!r}", hint)
        return False

    def param(self, owner: str, name: str, where: str, field: str, scope: _Scope) -> None:
        here: _Scope | None = scope
        while here is not None and here.owner is not None:
            if here.owner.id == owner:
                if name != here.owner.item and name not in here.owner.args:
                    hint = choices(name, [here.owner.item, *here.owner.args], "parameters")
                    self.add("unknown_param", where, field, f"the body of {owner!r} has no parameter {name!r}", hint)
                return
            here = here.parent
        hint = "only nodes of that body have its parameters; outside refer to the map or loop itself"
        self.add("unknown_param", where, field, f"this is not inside the body of {owner!r}", hint)

    def condition(self, expr: Expr, where: str, field: str, scope: _Scope) -> None:
        """Check a condition: rules do not keep the list of a map, so a condition may read its size only."""
        if not self.has_maps or problem_of(expr):
            return
        for (leaf, keys), wanted in chains_of(expr):
            if leaf[0] != "node" or (wanted and not keys):
                continue
            target = _find_node(leaf[1], scope)
            if target is not None and target.kind == "map":
                self.add(
                    "map_condition",
                    where,
                    field,
                    f"reads into the list of the map {leaf[1]!r}, of which a condition sees the size only",
                    "let a node read the list and return what the condition needs",
                )

    def call(self, node: NodeDef, where: str) -> None:
        if not node.uses and node.unit != "join":
            hint = "name the function that it runs, as 'shop.charge'"
            self.add("unknown_handler", where, "uses", "the node names no handler", hint)
        for field, name in (("uses", node.uses), ("compensate", node.compensate)):
            if name and not name.startswith("holdfast.") and not self._handler_exists(name):
                self.add("unknown_handler", where, field, f"there is no handler {name!r}", "is its module imported?")
        self.compensation(node, where)
        self.secrets(node, where)
        if node.body is not None or node.over is not None or node.start is not None or node.until is not None:
            self.add("bad_node", where, "kind", "a call has no body, over, start or until", "is it a map or a loop?")

    def compensation(self, node: NodeDef, where: str) -> None:
        """Check that a compensation can be called with the node's output and the inputs that the definition names."""
        for name in node.compensate_inputs:
            if name not in node.args:
                wrong = f"the compensation takes the input {name!r}, which the node is not given"
                hint = choices(name, node.args, "arguments")
                self.add("bad_compensation", where, "compensate_inputs", wrong, hint)
        undo = self.find(node.compensate) if self.find is not None and node.compensate else None
        undone = self.find(node.uses) if self.find is not None and node.uses else None
        if undo is None or undone is None:
            return
        problem = compensation_problem(undo.params, undone.params)
        if problem is None:
            taken = inputs_taken(undo.params, undone.params)
            missing = [p.name for p in undo.params if p.required and p.name in taken]
            missing = [name for name in missing if name not in node.compensate_inputs]
            if missing:
                problem = f"it takes {', '.join(missing)}", f"set compensate_inputs={list(taken)}"
            elif mismatch := compensation_mismatch(undo, undone):
                problem = mismatch, "annotate it with the type of what it gets"
        if problem is None:
            return
        wrong, hint = problem
        self.add("bad_compensation", where, "compensate", f"{node.compensate!r} cannot be called: {wrong}", hint)

    def secrets(self, node: NodeDef, where: str) -> None:
        for place, name in node.secrets.items():
            if not place.startswith("/") or split(place)[0] not in node.args:
                hint = "its first key is a parameter: /headers/Authorization"
                self.add("bad_secret", where, "secrets", f"{place!r} is not a place in the arguments", hint)
            if not GOOD_SECRET_NAME.fullmatch(name):
                hint = "use letters, digits and underscores"
                self.add("bad_secret", where, "secrets", f"{name!r} is not the name of a secret", hint)

    def _handler_exists(self, name: str) -> bool:
        if self.known is not None:
            return name in self.known
        return self.find is None or self.find(name) is not None

    def scope_node(self, node: NodeDef, where: str, scope: _Scope) -> set[str]:
        """Check a map or a loop: its own fields, then its body, whose references to the outside are its own."""
        if node.uses or node.compensate:
            wrong = f"a {node.kind} runs its body and has no handler of its own"
            self.add("bad_node", where, "uses", wrong, "put 'uses' and 'compensate' on the nodes of its body")
        if not node.item or not node.item.isidentifier():
            hint = f"name the parameter of the body that gets the {'item' if node.kind == 'map' else 'value'}"
            self.add("bad_name", where, "item", f"{node.item!r} is not the name of a parameter", hint)
        if node.kind == "map":
            if node.over is None:
                hint = "refer to a node or an input that is a list, as ['node', 'split']"
                self.add("bad_node", where, "over", "a map needs the list that it runs over", hint)
            if not is_count(node.limit):
                self.count("bad_limit", where, "limit", node.limit, f"{MAP_LIMIT_DEFAULT} items at once")
        elif node.until is None:
            hint = "give a condition on a node of its body, as ['gt', ['node', 'judge'], 8]"
            self.add("bad_node", where, "until", "a loop needs a condition that ends it", hint)
        if node.kind == "loop" and not is_count(node.max_visits):
            self.count("bad_max_visits", where, "max_visits", node.max_visits, f"{LOOP_VISITS_MAX:,} rounds")
        if node.body is None:
            hint = "put the nodes that it runs, and their result, into 'body'"
            self.add("bad_node", where, "body", f"a {node.kind} needs a body", hint)
            return set()
        if scope.depth >= SCOPE_DEPTH_MAX:
            wrong = f"maps and loops are nested deeper than {SCOPE_DEPTH_MAX}"
            self.add("bad_node", where, "body", wrong, "make the inner ones a workflow of their own, called as a child")
            return set()
        inner = _Scope(
            nodes={n.id: n for n in node.body.nodes},
            prefix=f"{where}/",
            owner=node,
            parent=scope,
            depth=scope.depth + 1,
        )
        outside = self.body(node.body.nodes, node.body.result, inner, "body.result")
        if node.until is not None:
            outside |= self.expression(node.until, where, "until", inner) - inner.nodes.keys()
            self.condition(node.until, where, "until", inner)
        return outside

    def count(self, code: str, where: str, field: str, value: object, default: str) -> None:
        """Add a problem for a value that should be a whole number above 0."""
        self.add(code, where, field, f"{value!r} is not a whole number above 0", f"leave it out for {default}")

    def tickets(self) -> None:
        for ticket, target in self.definition.tickets.items():
            self.name(ticket, "", "tickets")
            wrong = target_problem(self.definition, target)
            if wrong is not None:
                self.add("bad_target", "", f"tickets.{ticket}", *wrong)

    def phases(self) -> None:
        phases = {p.name: p for p in self.definition.phases}
        self.phase_names = phases.keys()
        for twice in repeated(p.name for p in self.definition.phases):
            self.add("duplicate_id", "", "phases", f"two phases are called {twice!r}", _RENAME)
        for phase in self.definition.phases:
            self.name(phase.name, "", "phases")
            if phase.after is not None and phase.after not in phases:
                hint = choices(phase.after, phases, "phases")
                self.add("unknown_phase", "", "phases", f"{phase.name!r} is after {phase.after!r}, which is none", hint)
        needs = {p.name: {p.after} & phases.keys() if p.after else set() for p in phases.values()}
        for cycle in cycles({n: {a for a in refs if a} for n, refs in needs.items()}):
            message = "phases wait for each other: " + " -> ".join([*cycle, cycle[0]])
            self.add("phase_cycle", "", "phases", message, "remove 'after' from one of them")

    def _collect_homes(self, nodes: Sequence[NodeDef]) -> None:
        stack = [(n, n.id) for n in nodes if n.body is not None]
        while stack:
            node, home = stack.pop()
            for inner in node.body.nodes if node.body else ():
                self.homes.setdefault(inner.id, home)
                if inner.body is not None:
                    stack.append((inner, inner.id))


_RENAME: Final = "give one of them another name"
_GOOD_NAMES: Final = f"use up to {NAME_LENGTH_MAX} characters, none of them '.', '@', '#' or '~'"
_EXPRESSIONS: Final = "use a constant, or a list such as ['node', 'a'] or ['gt', ['input', 'n'], 3]"

_SCALARS: Final = frozenset({str, int, float, bool})
_KEYS: Final = frozenset({str, int})


def _find_node(name: str, scope: _Scope | None) -> NodeDef | None:
    while scope is not None:
        if name in scope.nodes:
            return scope.nodes[name]
        scope = scope.parent
    return None
