"""Journey shape: which units a journey has, where its parallel branches begin and meet, and where tickets may lead.

Owns: the parallel units around each unit, and every problem of a journey's shape: units that are missing, unreachable
or reached in two ways that exclude each other, branches without a join, what a journey cannot have. The targets that
a ticket of a journey or of a graph may have.
Never: moves a path (rules/journeys.py), reads a document (documents/journey.py).

Invariant of a valid journey: the branches of a parallel unit all lead to its join, and no other way leads into or out
of them; so the path that a unit is on has the same shape whenever it is reached. Ways back are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.model.definition import END, Definition, NodeDef
from holdfast.model.expressions import nodes_of
from holdfast.model.problems import Problem, choices, name_problem

ROUTES = ("route", "parallel")
Around = tuple[str, ...]
"""The parallel units around a unit, outermost first."""


def is_outside(definition: Definition, unit: str) -> bool:
    """Whether a unit of a valid journey is outside of all parallel branches."""
    return _Walk(definition).around.get(unit) == ()


def journey_problems(definition: Definition) -> list[Problem]:
    """Every problem of the shape of a journey; of a graph, that it has units."""
    if definition.start:
        return [*_Walk(definition).problems, *_misplaced(definition)]
    units = (n.id for n in definition.nodes if n.unit)
    hint = "name its first unit in `start`, or leave `unit` out"
    return [
        Problem(code="not_in_graph", node=n, field="unit", message="only a journey has units", hint=hint) for n in units
    ]


def names_in(answer: Any) -> list[str] | None:
    """The branches that the answer of a route names; None if it is no answer of a route."""
    if isinstance(answer, str):
        return [answer]
    if isinstance(answer, list) and all(isinstance(name, str) for name in answer):
        return list(dict.fromkeys(answer))
    return None


def answer_problem(unit: NodeDef, answer: Any) -> str | None:
    """Why the path of a route cannot continue with this answer; None if it can, or if the unit is no route."""
    if unit.unit not in ROUTES:
        return None
    names = names_in(answer)
    if names is None or (unit.unit == "route" and not names):
        wanted = "the name of a branch" if unit.unit == "route" else "a list of names of branches"
        return f"the route {unit.id} answered {answer!r}, and must answer with {wanted}"
    for name in names[:1] if unit.unit == "route" else names:
        if unit.branches and name not in unit.branches:
            return f"the route {unit.id} has no branch {name!r} ({choices(name, list(unit.branches), 'branches')})"
        wrong = None if unit.branches else name_problem(name)
        if wrong:
            return f"the route {unit.id} answered the branch {name!r}, and the name of a branch {wrong}"
    return None


class _Walk:
    """Every way from the start, each unit once."""

    def __init__(self, definition: Definition) -> None:
        self.units: Mapping[str, NodeDef] = {n.id: n for n in definition.nodes}
        self.around: dict[str, Around] = {}
        self.problems: list[Problem] = []
        todo: list[tuple[str, str, str, Around]] = [("", "start", definition.start, ())]
        while todo:
            todo += self._reach(*todo.pop())
        missing = bool(self.problems)  # a way that leads to the unit may be among them
        for unit in self.units.values():
            if unit.id not in self.around and not missing:
                self._add("unreachable", unit.id, "", "no way leads to this unit", "let a unit name it, or remove it")

    def _add(self, code: str, node: str, field: str, message: str, hint: str) -> None:
        self.problems.append(Problem(code=code, node=node, field=field, message=message, hint=hint))

    def _reach(self, by: str, field: str, target: str, around: Around) -> Iterator[tuple[str, str, str, Around]]:
        if target == END:
            if around:
                hint = f"lead to the join of {around[-1]}"
                self._add("bad_branch", by, field, "a branch of a parallel unit cannot lead to the end", hint)
            return
        unit = self.units.get(target)
        if unit is None:
            what = f"there is no unit {target!r}" if target else "no unit is named"
            self._add("unknown_unit", by, field, what, choices(target, [*self.units, END], "units"))
            return
        if unit.unit == "join":
            if not around or self.units[around[-1]].join != target:
                expected = f"lead to {self.units[around[-1]].join}" if around else "lead to another unit"
                self._add("bad_join", by, field, f"{target} is not the join of the branch that leads to it", expected)
                return
            around = around[:-1]
        if target in self.around:
            if self.around[target] != around:
                first, second = (" in ".join(reversed(a)) or "no branch" for a in (self.around[target], around))
                what = f"{target} is reached in {first} and in {second}"
                self._add("bad_branch", by, field, what, "give each branch units of its own up to the join")
            return
        self.around[target] = around
        yield from self._ways(unit, around)

    def _ways(self, unit: NodeDef, around: Around) -> Iterator[tuple[str, str, str, Around]]:
        if unit.unit in ("step", "join"):
            yield unit.id, "next", unit.next, around
            return
        inside = (*around, unit.id) if unit.unit == "parallel" else around
        if unit.unit == "parallel" and (unit.join not in self.units or self.units[unit.join].unit != "join"):
            what = f"{unit.join!r} is not a join" if unit.join else "its branches have no join"
            self._add("bad_join", unit.id, "join", what, "name the unit of type p_join that its branches lead to")
            return
        for name, target in unit.branches.items():
            wrong = name_problem(name)
            if wrong:
                self._add("bad_name", unit.id, "branches", f"the name of a branch {wrong}", "use letters and digits")
            yield unit.id, f"branches.{name}", target, inside
        if not unit.branches and unit.unit == "parallel":
            yield unit.id, "next", unit.next, inside
        elif not unit.branches:
            self._add("no_branches", unit.id, "branches", "the route has no branches", "name at least one")


def _misplaced(d: Definition) -> list[Problem]:
    """What only graphs have."""
    found: list[Problem] = []

    def add(node: str, field: str, message: str, hint: str) -> None:
        found.append(Problem(code="not_in_journey", node=node, field=field, message=message, hint=hint))

    if d.phases:
        add("", "phases", "a journey has no phases", "leave them out")
    if d.settings.on_failure == "continue":
        add(
            "", "settings.on_failure", "a path cannot continue behind a unit that failed", "use `pend:BASKET` or `fail`"
        )
    if nodes_of(d.result):
        add("", "result", "the result of a journey reads no outputs of units", "let it read inputs and variables")
    for unit in d.nodes:
        if any(nodes_of(expr) for expr in unit.args.values()):
            add(unit.id, "args", "a unit reads no outputs of other units", "let them set variables, and read those")
        if unit.id == END:
            add(unit.id, "id", "`end` is where a journey ends, not a unit", "give the unit another name")
        if not unit.unit:
            add(unit.id, "unit", "the node says not what follows it", "make it a step, a route, a parallel or a join")
        elif unit.kind != "call" or _has(unit, ("when", "after", "phase", "lane")):
            add(unit.id, "", "a unit is entered along its path only", "leave out kind, when, after, phase and lane")
        if unit.unit == "join" and unit.uses:
            add(unit.id, "uses", "a join runs nothing", "leave the handler out")
        if unit.unit in ROUTES and unit.unit != "parallel" and unit.next:
            add(unit.id, "next", "a route continues with its branches", "leave `next` out")
        if unit.unit == "parallel" and unit.next and unit.branches:
            add(unit.id, "next", "a parallel unit continues with its branches", "leave `next` out")
    return found


def _has(unit: NodeDef, fields: Sequence[str]) -> bool:
    return any(getattr(unit, field) for field in fields)


# --- targets of tickets ------------------------------------------------------------------------------------------


def target_problem(definition: Definition, target: str) -> tuple[str, str] | None:
    """What is wrong with a target and what to do about it; None if a run can continue there."""
    if definition.kind == "code":
        return "durable code has no nodes to go to", "use the control flow of the function itself"
    for node in definition.nodes:
        if node.id == target:
            if node.unit == "join" or (node.unit and not is_outside(definition, target)):
                return f"{target!r} is in a branch of a parallel unit, or a join", "go to a unit outside of them"
            if not node.lane:
                return None
            return f"{target!r} is in a branch of a parallel route", "go to a node before or after the route"
    around = _owner_of(target, definition.nodes)
    if around is not None:
        return f"{target!r} is inside the body of {around!r}", f"go to {around!r}, or to a node outside it"
    there = [n.id for n in definition.nodes if not n.lane]
    return f"there is no node {target!r}", choices(target, there, "nodes")


def _owner_of(target: str, nodes: Sequence[NodeDef]) -> str | None:
    """The map or loop whose body has a node of this name."""
    stack = [n for n in nodes if n.body is not None]
    while stack:
        owner = stack.pop()
        for inner in owner.body.nodes if owner.body else ():
            if inner.id == target:
                return owner.id
            if inner.body is not None:
                stack.append(inner)
    return None
