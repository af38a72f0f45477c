"""Ordering: what comes before what in a graph.

Owns: the topological order (Kahn) and finding cycles (Tarjan), both linear and without recursion; the problems of a
graph that has no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.model.definition import Body, Definition, NodeDef, Phase
from holdfast.model.errors import DefinitionError
from holdfast.model.expressions import Expr, walk
from holdfast.model.limits import PROBLEMS_LISTED_MAX
from holdfast.model.problems import Problem


def topological_order(graph: Definition | Body) -> list[str]:
    """The ids of a graph's nodes, each after everything it refers to. Raises DefinitionError where there is none."""
    known = {n.id for n in graph.nodes}
    needs = {n.id: {ref for ref in references(n) if ref in known and ref != n.id} for n in graph.nodes}
    order = kahn(needs)
    if len(order) != len(needs):
        left = sorted(needs.keys() - set(order))
        raise DefinitionError(f"the graph has a cycle among {', '.join(left[:PROBLEMS_LISTED_MAX])}")
    return order


def references(node: NodeDef) -> set[str]:
    """Every node outside it that a node, or anything in its body, refers to; and itself, if it does."""
    found = {*node.after, *_named(*node.args.values(), node.when, node.over, node.start)}
    if node.body is not None:
        inside = set(_named(node.until, node.body.result)).union(*map(references, node.body.nodes))
        found |= inside - {n.id for n in node.body.nodes}
    return found


def _named(*exprs: Expr) -> Iterator[str]:
    for expr in exprs:
        if isinstance(expr, list):
            yield from (e[1] for e in walk(expr) if isinstance(e, list) and e[0] == "node")


def after_phases(nodes: Sequence[NodeDef], phases: Iterable[Phase]) -> tuple[NodeDef, ...]:
    """The nodes, those of a phase that comes after another one ordered after all nodes of that."""
    found = list(nodes)
    for phase in phases:
        if phase.after is None:
            continue
        before = tuple(n.id for n in found if n.phase == phase.after)
        found = [
            msgspec.structs.replace(n, after=tuple(dict.fromkeys(n.after + before)) if n.after else before)
            if n.phase == phase.name
            else n
            for n in found
        ]
    return tuple(found)


def order_problems(needs: dict[str, set[str]], prefix: str) -> list[Problem]:
    """Why the nodes of a body cannot be ordered: those that Kahn's algorithm does not reach are on a cycle or depend on
    one. `prefix` is put before the ids."""
    reached = kahn(needs)
    if len(reached) == len(needs):
        return []
    found: list[Problem] = []

    def add(code: str, node: str, message: str, hint: str = "resolve the cycle first") -> None:
        found.append(Problem(code=code, node=node, message=message, hint=hint))

    left = needs.keys() - set(reached)
    on_cycle: set[str] = set()
    for cycle in cycles({n: needs[n] & left for n in needs if n in left}):
        on_cycle |= set(cycle)
        shown = [*cycle[:PROBLEMS_LISTED_MAX], *(["..."] if len(cycle) > PROBLEMS_LISTED_MAX else []), cycle[0]]
        message = "the nodes wait for each other: " + " -> ".join(shown)
        add("cycle", prefix + cycle[0], message, "use hf.loop to repeat something")
    for node in (n for n in needs if n in left and n not in on_cycle):
        add("unreachable", prefix + node, "can never start: it waits for a cycle")
    if not any(not refs for refs in needs.values()):
        add("no_entry", prefix.removesuffix("/"), "no node can start: each waits for another")
    if needs.keys() <= set().union(*needs.values()):
        add("no_exit", prefix.removesuffix("/"), "no node is last: each is waited for by another")
    return found


def kahn(needs: dict[str, set[str]]) -> list[str]:
    """An order in which everything comes after what it needs; nodes on or behind a cycle are left out."""
    waiting = {node: len(refs) for node, refs in needs.items()}
    needed_by: dict[str, list[str]] = {}
    for node, refs in needs.items():
        for ref in refs:
            needed_by.setdefault(ref, []).append(node)
    order = [node for node, count in waiting.items() if not count]
    for node in order:  # grows while it is read
        for dependent in needed_by.get(node, ()):
            waiting[dependent] -= 1
            if not waiting[dependent]:
                order.append(dependent)
    return order


def cycles(needs: dict[str, set[str]]) -> list[list[str]]:
    """One cycle of each strongly connected part, as a path (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: set[str] = set()
    stack: list[str] = []
    found: list[list[str]] = []
    for root in needs:
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = []
        _enter(root, needs, index, low, stack, on_stack, work)
        while work:
            node, rest = work[-1]
            for ref in rest:
                if ref not in index:
                    _enter(ref, needs, index, low, stack, on_stack, work)
                    break
                if ref in on_stack:
                    low[node] = min(low[node], index[ref])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = _pop_until(node, stack, on_stack)
                    if len(members) > 1 or node in needs[node]:
                        found.append(_path_through(members, needs))
    return found


def _enter(
    node: str,
    needs: dict[str, set[str]],
    index: dict[str, int],
    low: dict[str, int],
    stack: list[str],
    on_stack: set[str],
    work: list[tuple[str, Iterator[str]]],
) -> None:
    index[node] = low[node] = len(index)
    stack.append(node)
    on_stack.add(node)
    work.append((node, iter(sorted(needs[node]))))


def _pop_until(node: str, stack: list[str], on_stack: set[str]) -> list[str]:
    members: list[str] = []
    while True:
        top = stack.pop()
        on_stack.discard(top)
        members.append(top)
        if top == node:
            return members


def _path_through(members: list[str], needs: dict[str, set[str]]) -> list[str]:
    """A cycle among the members of one strongly connected part, in the direction in which values flow."""
    inside = set(members)
    path, seen = [min(members)], {min(members): 0}
    while True:
        following = min(needs[path[-1]] & inside)
        if following in seen:
            cycle = path[seen[following] :]
            cycle.reverse()
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
        seen[following] = len(path)
        path.append(following)
