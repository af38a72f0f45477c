"""Tracing: the graph that is being built while a workflow function runs once.

Owns: the trace (ids, phases, variables) and its frames (the workflow's body and those of maps and loops); adding nodes
to them under the conditions, lanes and phases that are open; the options of a call before it is made
(`x.named("id")`, `x.after(ref)`, `x.delayed("5m")`); what is checked once the function has returned.
Never: knows functions (node_decorator.py, workflows.py) or what an operator means (refs.py).
Invariant: a node's id is given once per workflow; a reference is only used where its value can be read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, Self

from holdfast.authoring import functions
from holdfast.authoring.refs import Ref, close_matches, expression, frame_of, refs_in, trace_error, type_of
from holdfast.model.current import current_body
from holdfast.model.definition import NodeDef, Phase
from holdfast.model.errors import TraceError, UsageError
from holdfast.model.expressions import CHOICES, Expr, nodes_of, operands
from holdfast.model.policies import Retry, delay_seconds

SCOPE_DEPTH_MAX: Final = 20
"""Maps and loops inside each other; a body that maps over itself ends with a clear error."""

Branches = tuple[tuple[str, str], ...]
"""The branches of exclusive routes that a node stands in: (route, branch), outermost first."""


class Frame:
    """One body while it is traced: its nodes, and what every new node in it gets."""

    def __init__(self, trace: Trace, parent: Frame | None = None, scope: str = "") -> None:
        self.trace = trace
        self.parent = parent
        self.scope = scope
        self.depth: int = parent.depth + 1 if parent else 0
        self.nodes: list[NodeDef] = []
        self.condition: Expr | None = None
        self.lane = ""
        self.labels: tuple[str, ...] = ()
        self.phase: str | None = None
        self.branches: Branches = ()
        self.closed_by = ""
        """Why no node can be added right now."""

    def encloses(self, other: Frame | None) -> bool:
        while other is not None:
            if other is self:
                return True
            other = other.parent
        return False


class Trace:
    """A workflow while its function runs."""

    def __init__(self, name: str, variables: dict[str, Any], retry: Retry | None = None) -> None:
        self.name = name
        self.variables = variables
        self.retry = retry
        """The policy of nodes that have none of their own."""
        self.phases: dict[str, Phase] = {}
        self.ids: set[str] = set()
        self.counts: dict[str, int] = {}
        self.routes = 0
        self.top = Frame(self)
        self.frame = self.top
        self.branches: dict[str, Branches] = {}
        """Node to the branches of exclusive routes it stands in."""

    def new_id(self, base: str, explicit: str = "") -> str:
        """The author's id, or `base`, `base_2`, `base_3` in the order of calls."""
        if explicit:
            if explicit in self.ids:
                raise trace_error(f"two nodes are called {explicit!r}; give one of them another name")
            self.ids.add(explicit)
            return explicit
        while True:
            count = self.counts[base] = self.counts.get(base, 0) + 1
            found = base if count == 1 else f"{base}_{count}"
            if found not in self.ids:
                self.ids.add(found)
                return found

    def new_route(self, prefix: str) -> str:
        """`route_1`, `route_2`: a name for a route, apart from all nodes."""
        while True:
            self.routes += 1
            found = f"{prefix}_{self.routes}"
            if found not in self.ids:
                self.ids.add(found)
                return found

    def add(self, annotation: Any, after: Sequence[Any] = (), **node: Any) -> Any:
        """A node in the open frame, under what is open there; the reference to its output."""
        frame = self.frame
        if frame.closed_by:
            raise trace_error(f"{frame.closed_by} cannot call nodes")
        if node.get("kind", "call") == "call" and node.get("retry") is None:
            node["retry"] = self.retry
        built = NodeDef(
            when=frame.condition,
            after=self.after_ids(after),
            phase=frame.phase,
            lane=frame.lane,
            route=", ".join(frame.labels) or None,
            **node,
        )
        frame.nodes.append(built)
        if frame.branches:
            self.branches[built.id] = frame.branches
        return Ref(["node", built.id], annotation, frame)

    def expr(self, value: Any, annotation: Any = Any, *, what: str) -> Expr:
        """An argument as an expression, after checking that its references can be read here."""
        for ref in refs_in(value):
            self.check_visible(ref, what)
        return expression(value, annotation, what=what)

    def check_visible(self, ref: Ref, what: str) -> None:
        home = frame_of(ref)
        assert isinstance(home, Frame)
        if home.trace is not self:
            raise trace_error(
                f"{what}: the reference belongs to the workflow {home.trace.name!r}; pass its value as an input"
            )
        if not home.encloses(self.frame):
            raise trace_error(
                f"{what}: the reference is inside the body of {home.scope!r} and has a value for each item or round; "
                f"return it from that body and use what hf.map or hf.loop returns"
            )

    def after_ids(self, after: Sequence[Any]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for ref in after:
            if not isinstance(ref, Ref):
                raise trace_error(f".after() takes what a node call returned, not {ref!r}")
            self.check_visible(ref, ".after()")
            ids = nodes_of(expression(ref))
            if not ids:
                raise trace_error(".after() takes what a node call returned; an input is always there")
            found |= dict.fromkeys(ids)
        return tuple(found)

    def variable(self, name: str) -> Any:
        if name not in self.variables:
            raise trace_error(
                f"the workflow {self.name!r} declares no variable {name!r}{close_matches(name, sorted(self.variables))}"
                f" (declare it with @hf.workflow(variables={{{name!r}: ...}}))"
            )
        return Ref(["var", name], self.variables[name], self.top)

    @contextmanager
    def under(
        self, condition: Expr | None, *, label: str = "", lane: str = "", branch: tuple[str, str] | None = None
    ) -> Iterator[None]:
        """Nodes added inside get this condition besides the open ones, and the label, lane and branch of a route."""
        frame = self.frame
        before = frame.condition, frame.labels, frame.lane, frame.branches
        if condition is not None:
            frame.condition = condition if frame.condition is None else ["and", frame.condition, condition]
        if label:
            frame.labels = (*frame.labels, label)
        if branch:
            frame.branches = (*frame.branches, branch)
        frame.lane += lane
        try:
            yield
        finally:
            frame.condition, frame.labels, frame.lane, frame.branches = before

    @contextmanager
    def scope(self, scope_id: str) -> Iterator[Frame]:
        """Trace the body of a map or a loop: new nodes go there, with no condition, lane or phase of their own yet."""
        outer = self.frame
        if outer.depth >= SCOPE_DEPTH_MAX:
            raise trace_error(f"maps and loops are nested deeper than {SCOPE_DEPTH_MAX}; does a body map over itself?")
        self.frame = Frame(self, outer, scope_id)
        try:
            yield self.frame
        finally:
            self.frame = outer


_current: ContextVar[Trace | None] = ContextVar("holdfast_trace", default=None)


def current() -> Trace | None:
    """The trace that runs here, if one does."""
    return _current.get()


def required(what: str, instead: str = "") -> Trace:
    """The trace that runs here. Raises UsageError that says where `what` belongs."""
    trace = _current.get()
    if trace is None:
        durable = f"; inside a body use {instead}" if instead and current_body.get() is not None else ""
        raise UsageError(f"{what} belongs in the function of a workflow graph, while it is traced{durable}")
    return trace


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Make this the trace that node calls add to."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


# --- calls in a graph --------------------------------------------------------------------------------------------


class Placed:
    """A function that becomes a node when it is called while tracing."""

    explicit_id = ""
    """The id that the author gave; empty: one is made from the name."""
    after_refs: tuple[Any, ...] = ()
    """What must be settled first, without data."""
    delay_seconds: float | None = None
    """The delay of its start; None: as declared."""

    def named(self, node_id: str) -> Self:
        """The same under an id of its own: `charge.named("charge_again")(order)`."""
        configured = copy.copy(self)
        configured.explicit_id = node_id
        return configured

    def after(self, *refs: Any) -> Self:
        """The same, started only when what `refs` came from is settled: `ship.after(label)(order)`."""
        configured = copy.copy(self)
        configured.after_refs = (*self.after_refs, *refs)
        return configured

    def delayed(self, duration: float | str | timedelta) -> Self:
        """The same, started that long after everything it needs has completed: `remind.delayed("2d")(order)`. The delay
        is durable; meanwhile the run is not in memory."""
        configured = copy.copy(self)
        configured.delay_seconds = delay_seconds(duration, "delay")
        return configured


# --- once the function has returned ------------------------------------------------------------------------------


def check_result(trace: Trace, result: Expr, fn: Callable[..., Any]) -> None:
    """Refuse a result from only one of several branches of a route, unless hf.first or hf.some chose it.

    It is the sign of a name that is bound once in each branch: the last branch would win, and the others give null.
    """
    populated: dict[str, set[str]] = {}
    for branches in trace.branches.values():
        for route, branch in branches:
            populated.setdefault(route, set()).add(branch)
    returned: dict[str, dict[str, str]] = {}
    for node_id in _read_directly(result):
        for route, branch in trace.branches.get(node_id, ()):
            returned.setdefault(route, {})[branch] = node_id
    for route, branches_of_route in returned.items():
        if len(branches_of_route) == 1 and len(populated[route]) > 1:
            ((branch, node_id),) = branches_of_route.items()
            raise TraceError(
                f"{functions.describe(fn)}: {fn.__qualname__} returns {node_id!r}, which runs only in the branch "
                f"{branch!r} of a route; give each branch a name of its own and return hf.first(a, b, ...), or "
                f"hf.first({node_id}, None) if the others give nothing"
            )


def result_annotation(returned: Any) -> Any:
    """The type of a result without a declared type: that of the returned reference, or null."""
    if not isinstance(returned, Ref):
        return Any
    kind = type_of(returned)
    try:
        return Any if kind is Any else kind | None
    except TypeError:
        return Any


def _read_directly(expr: Expr) -> list[str]:
    found: list[str] = []
    stack = [expr]
    while stack:
        e = stack.pop()
        if not isinstance(e, list) or e[0] in CHOICES or e[0] in {"skipped", "failed"}:
            continue
        if e[0] == "node":
            found.append(e[1])
        stack.extend(operands(e))
    return found
