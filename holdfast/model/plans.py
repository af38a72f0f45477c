"""Plans: a definition compiled for the rules, once per version.

Owns: which node waits for which, what must be captured of each output, where names are looked up.
Never: checks the definition (validation.py) or decides anything (rules).

A `Body` becomes a `ScopePlan`; the workflow itself is the outermost one. Inside a scope a name means the same scope
first, then the nearest enclosing one, `up` levels away.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.captures import Capture, by_captures, reading
from holdfast.model.definition import Body, Definition, NodeDef, handlers_of
from holdfast.model.events import StepUndo
from holdfast.model.expressions import Expr, chain, chains_of, chooses, nodes_of, pointer, walk
from holdfast.model.journal_format import definition_format
from holdfast.model.journey_shape import ROUTES
from holdfast.model.naming import segments, undo_of
from holdfast.model.secret_names import split

_VAR = "$"
"""Marks variables among the inputs while captures are collected; no name begins with it."""


class NodePlan(msgspec.Struct, gc=False):
    """One node of a scope, compiled."""

    definition: NodeDef
    scope: ScopePlan
    waits_for: tuple[str, ...]
    """Nodes of the same scope that must settle first, data, condition and order alike."""
    lazy: bool
    """Its data chooses between nodes (`first`, `some`): it may be ready before all of them settled."""
    data_nodes: tuple[str, ...]
    """Nodes that its data refers to."""
    settles_after: frozenset[str] = frozenset()
    """Of `waits_for`, those that must settle however its data chooses: order, condition, what its body refers to."""
    dependents: tuple[str, ...] = ()
    """Nodes of the same scope that may become ready when this one settles."""
    captures: tuple[Capture, ...] = ()
    """What rules read of its output."""
    when: Expr | None = None
    """Its condition, with what it reads by the names of captured values (`by_captures`)."""
    until: Expr | None = None
    """The same of a loop's `until`."""
    direct: tuple[tuple[str, str | None, tuple[str | int, ...], str], ...] | None = None
    """(parameter, node or None for the input, keys, pointer) of each argument, when all of them are plain references
    to calls of the same scope or to the input. Most nodes are like this; no expression is walked to locate them."""
    body: ScopePlan | None = None
    stores_output: bool = False
    """Of a map: its items' results read what may change when it has completed: what a loop around it carries, or a
    variable. So its output is stored with its completion; that of any other map is read from its items."""
    undo: NodePlan | None = None
    """The compensation, as a node `id~undo`."""

    id: str = ""
    lane: str = ""
    """The path of an instance is that of its scope, and then this; mostly empty."""

    def __post_init__(self) -> None:
        self.id, self.lane = self.definition.id, self.definition.lane


class ScopePlan(msgspec.Struct, gc=False):
    """The nodes of a workflow or of a body."""

    nodes: dict[str, NodePlan]
    result: Expr
    parent: ScopePlan | None
    owner: str
    """The id of the map or loop; empty for the workflow."""
    entries: tuple[str, ...] = ()
    """Nodes that wait for nothing in this scope."""
    param_captures: tuple[tuple[str, Capture], ...] = ()
    """(parameter, capture) that conditions inside read of the scope's own parameters; nothing inside is decided before
    the engine has provided them."""

    def find(self, node: str) -> tuple[NodePlan, int]:
        """A node by name, and how many scopes up it lives."""
        scope: ScopePlan | None = self
        up = 0
        while scope is not None:
            plan = scope.nodes.get(node)
            if plan is not None:
                return plan, up
            scope, up = scope.parent, up + 1
        raise KeyError(node)

    def downstream(self, node: str) -> set[str]:
        """A node of this scope and everything in it that waits for it, however indirectly."""
        found, todo = {node}, [node]
        while todo:
            for name in self.nodes[todo.pop()].dependents:
                if name not in found:
                    found.add(name)
                    todo.append(name)
        return found

    def upstream(self, node: str) -> list[str]:
        """Everything in this scope that a node waits for, however indirectly, in the order of the definition."""
        found: set[str] = set()
        todo = [node]
        while todo:
            for name in self.nodes[todo.pop()].waits_for:
                if name not in found:
                    found.add(name)
                    todo.append(name)
        return [name for name in self.nodes if name in found]


def condition_left(scope: ScopePlan, plan: NodePlan, entered: Sequence[str]) -> Expr | None:
    """The part of a node's condition that must still be evaluated, given the nodes that the run entered whatever their
    conditions were: the blocks around such a node count as entered for everything downstream of it. None: nothing."""
    held: list[Expr] = []
    for name in entered:
        if plan.id in scope.downstream(name):
            held += _blocks(scope.nodes[name].definition.when)
    return _without(plan.definition.when, held) if held else plan.definition.when


def _blocks(condition: Expr | None) -> list[Expr]:
    """The conditions of the blocks around a node, innermost first: nested ones are written [and, outer, inner]."""
    found: list[Expr] = []
    while condition is not None:
        found.append(condition)
        nested = isinstance(condition, list) and condition[0] == "and" and len(condition) == 3
        condition = condition[1] if nested else None
    return found


def _without(condition: Expr | None, held: list[Expr]) -> Expr | None:
    if condition is None or condition in held:
        return None
    if not (isinstance(condition, list) and condition[0] == "and" and len(condition) == 3):
        return condition
    outer = _without(condition[1], held)
    return condition[2] if outer is None else ["and", outer, condition[2]]


class Plan(msgspec.Struct, gc=False):
    """A compiled definition."""

    definition: Definition
    root: ScopePlan
    version: int
    input_captures: tuple[tuple[str, Capture], ...]
    """(input name, capture) that conditions read of the run's input."""
    var_captures: dict[str, tuple[Capture, ...]]
    """What conditions read of each variable."""
    phases: dict[str, frozenset[str]]
    """Phase to its top-level nodes."""
    handlers: frozenset[str]
    """Every handler that an engine needs in order to run this."""
    format: int = 1
    """The format of runs whose readers know every operator in it (journal_format.py)."""

    def scope_of(self, path: str) -> ScopePlan:
        """The scope of an instance's path (lanes of parallel routes are not scopes)."""
        scope = self.root
        for name, _, _ in segments(path):
            plan = scope.nodes.get(name)
            if plan is not None and plan.body is not None:
                scope = plan.body
        return scope


def compile_definition(definition: Definition, version: int) -> Plan:
    """Compile a valid definition. Raises NewerFormat if it uses an operator that is not known here."""
    captures: dict[tuple[int, str], dict[str, Capture]] = {}
    inputs: dict[tuple[str, str], tuple[str, Capture]] = {}
    root = _compile_scope(definition.nodes, definition.result, None, "", captures, inputs)
    if definition.start:
        root.entries = ()  # paths lead to units: rules/journeys.py
        for unit in definition.nodes:
            if unit.unit in ROUTES:
                captures.setdefault((id(root), unit.id), {})[""] = ("", (), "")
    _pass_captures_into_loops(root, captures, inputs)
    _attach_captures(root, captures)
    phases: dict[str, frozenset[str]] = {
        phase.name: frozenset(n.id for n in definition.nodes if n.phase == phase.name) for phase in definition.phases
    }
    of_inputs = tuple(found for (name, _), found in inputs.items() if not name.startswith(_VAR))
    of_vars: dict[str, tuple[Capture, ...]] = {}
    for (name, _), (_, capture) in inputs.items():
        if name.startswith(_VAR):
            of_vars[name.removeprefix(_VAR)] = (*of_vars.get(name.removeprefix(_VAR), ()), capture)
    handlers = frozenset(handlers_of(definition.nodes))
    return Plan(definition, root, version, of_inputs, of_vars, phases, handlers, definition_format(definition))


def _compile_scope(
    nodes: tuple[NodeDef, ...],
    result: Expr,
    parent: ScopePlan | None,
    owner: str,
    captures: dict[tuple[int, str], dict[str, Capture]],
    inputs: dict[tuple[str, str], tuple[str, Capture]],
) -> ScopePlan:
    scope = ScopePlan(nodes={}, result=result, parent=parent, owner=owner)
    for node in nodes:
        scope.nodes[node.id] = NodePlan(node, scope, (), False, ())
    params: dict[tuple[str, str], tuple[str, Capture]] = {}
    for plan in scope.nodes.values():
        d = plan.definition
        if d.body is not None:
            plan.body = _compile_scope(d.body.nodes, d.body.result, scope, d.id, captures, inputs)
            plan.stores_output = d.kind == "map" and _may_change(d.body.result, plan.body)
        if d.compensate:
            plan.undo = _undo_plan(d, scope)
        data = data_of(d)
        plan.data_nodes = tuple(nodes_of(*data))
        strict = [*nodes_of(d.when), *d.after]
        if d.body is not None:
            own = {n.id for n in d.body.nodes}
            strict += [*_outer_references(d.body), *(n for n in nodes_of(d.until) if n not in own)]
        plan.waits_for = tuple(n for n in dict.fromkeys([*plan.data_nodes, *strict]) if n in scope.nodes)
        plan.settles_after = frozenset(strict)
        if d.kind == "call":
            plan.direct = _direct(d, scope)
        plan.lazy = any(map(chooses, data))
        plan.when, plan.until = by_captures(d.when), by_captures(d.until)
        for expr in _rule_expressions(d):
            _capture(expr, scope, captures, inputs, params)
        if d.until is not None and plan.body is not None:
            of_round: dict[tuple[str, str], tuple[str, Capture]] = {}
            _capture(d.until, plan.body, captures, inputs, of_round)
            plan.body.param_captures += tuple(of_round.values())
    waiting: dict[str, list[str]] = {}
    for plan in scope.nodes.values():
        for dependency in plan.waits_for:
            waiting.setdefault(dependency, []).append(plan.id)
    for node_id, dependents in waiting.items():
        scope.nodes[node_id].dependents = tuple(dependents)
    scope.entries = tuple(plan.id for plan in scope.nodes.values() if not plan.waits_for)
    scope.param_captures += tuple(params.values())  # bodies inside may have added theirs
    return scope


def _may_change(expr: Expr, scope: ScopePlan) -> bool:
    """Whether an expression reads a variable or what a loop around it carries, by itself or through parameters."""
    leaves = [e for e in walk(expr) if isinstance(e, list)]
    return any(e[0] == "var" or (e[0] == "param" and _param_may_change(e[1], e[2], scope)) for e in leaves)


def _param_may_change(owner: str, name: str, scope: ScopePlan) -> bool:
    outside = scope.parent
    assert outside is not None
    if scope.owner != owner:
        return _param_may_change(owner, name, outside)
    d = outside.nodes[owner].definition
    if name != d.item:
        return _may_change(d.args[name], outside)
    return d.kind == "loop" or _may_change(d.over, outside)


def _direct(d: NodeDef, scope: ScopePlan) -> tuple[tuple[str, str | None, tuple[str | int, ...], str], ...] | None:
    found: list[tuple[str, str | None, tuple[str | int, ...], str]] = []
    for param, expr in d.args.items():
        link = chain(expr)
        if link is None:
            return None
        (kind, *names), keys = link
        if kind == "input":
            found.append((param, None, (names[0], *keys), pointer((names[0], *keys))))
        elif kind == "node" and names[0] in scope.nodes and scope.nodes[names[0]].definition.kind == "call":
            found.append((param, names[0], keys, pointer(keys)))
        else:
            return None
    return tuple(found)


def step_undo_plan(node: str, scope: ScopePlan, undo: StepUndo | None) -> NodePlan:
    """The compensation of a step as a node; without `undo`: one that has ended, for which nothing is decided."""
    if undo is None:
        return NodePlan(NodeDef(id=node), scope, (), False, ())
    definition = NodeDef(
        id=node,
        uses=undo.uses,
        retry=undo.retry,
        timeout=undo.timeout,
        heartbeat=undo.heartbeat,
        on_crash=undo.on_crash,
        concurrency=undo.concurrency,
        idempotent=undo.idempotent,
    )
    return NodePlan(definition, scope, (), False, ())


def _undo_plan(d: NodeDef, scope: ScopePlan) -> NodePlan:
    undo = NodeDef(
        id=undo_of(d.id),
        uses=d.compensate or "",
        retry=d.compensate_retry,
        timeout=d.compensate_timeout,
        heartbeat=d.compensate_heartbeat,
        on_crash=d.compensate_on_crash,
        concurrency=d.compensate_concurrency,
        idempotent=d.compensate_idempotent,
        secrets={place: name for place, name in d.secrets.items() if split(place)[0] in d.compensate_inputs},
        lane=d.lane,
    )
    return NodePlan(undo, scope, (), False, ())


def data_of(d: NodeDef) -> list[Expr]:
    """The data that a node needs: its arguments, the list of a map, the start of a loop."""
    return [*d.args.values(), *([d.over] if d.kind == "map" else []), *([d.start] if d.kind == "loop" else [])]


def _rule_expressions(d: NodeDef) -> list[Expr]:
    """What rules, not bodies, evaluate before the node runs: its condition, and the size of its list."""
    found = [] if d.when is None else [d.when]
    if d.kind == "map":
        found += _sizes(d.over)
    return found


def _sizes(over: Expr) -> list[Expr]:
    """The sizes of the lists that a map may run over (see rules/scopes.py)."""
    match over:
        case ["list" | "const" | "some", *_]:
            return []
        case ["first", *lists]:
            return [size for x in lists for size in _sizes(x)]
    return [["count", over]]


def _outer_references(body: Body) -> list[str]:
    """Nodes outside a body that it refers to: they must have settled before the scope opens."""
    own = {n.id for n in body.nodes}
    found = nodes_of(body.result)
    for node in body.nodes:
        found += [*nodes_of(*data_of(node), node.when, node.until), *node.after]
        if node.body is not None:
            found += _outer_references(node.body)
    return [n for n in dict.fromkeys(found) if n not in own]


def _capture(
    expr: Expr,
    scope: ScopePlan,
    captures: dict[tuple[int, str], dict[str, Capture]],
    inputs: dict[tuple[str, str], tuple[str, Capture]],
    params: dict[tuple[str, str], tuple[str, Capture]],
) -> None:
    """Collect everything that evaluating `expr` reads."""
    for (leaf, keys), wanted in chains_of(expr):
        capture: Capture = (wanted + pointer(keys), keys, wanted)
        match leaf[0]:
            case "node":
                plan, _ = scope.find(leaf[1])
                captures.setdefault((id(plan.scope), leaf[1]), {})[capture[0]] = capture
            case "input":
                inputs[leaf[1], capture[0]] = (leaf[1], capture)
            case "var":
                inputs[_VAR + leaf[1], capture[0]] = (leaf[1], capture)
            case "param":
                owner: ScopePlan | None = scope
                while owner is not None and owner.owner != leaf[1]:
                    owner = owner.parent
                if owner is scope:
                    params[leaf[2], capture[0]] = (leaf[2], capture)
                elif owner is not None:  # an enclosing scope's parameter: it must be captured there
                    owner.param_captures += ((leaf[2], capture),)


def _pass_captures_into_loops(
    scope: ScopePlan,
    captures: dict[tuple[int, str], dict[str, Capture]],
    inputs: dict[tuple[str, str], tuple[str, Capture]],
) -> None:
    """What is captured of a loop's output is captured of its body's result, outermost loops first."""
    for plan in scope.nodes.values():
        if plan.body is None:
            continue
        if plan.definition.kind == "loop":
            params: dict[tuple[str, str], tuple[str, Capture]] = {}
            for _, keys, wanted in captures.get((id(scope), plan.id), {}).values():
                _capture(reading(plan.body.result, keys, wanted), plan.body, captures, inputs, params)
            plan.body.param_captures += tuple(params.values())
        _pass_captures_into_loops(plan.body, captures, inputs)


def _attach_captures(scope: ScopePlan, captures: dict[tuple[int, str], dict[str, Capture]]) -> None:
    for plan in scope.nodes.values():
        plan.captures = tuple(captures.get((id(scope), plan.id), {}).values())
        if plan.body is not None:
            _attach_captures(plan.body, captures)
