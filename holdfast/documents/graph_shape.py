"""The shape of documents of kind `graph`."""

from __future__ import annotations

from typing import Final

from holdfast.documents.common_shapes import DESCRIPTION, ID, INPUT, NAME, OPTIONS, RETRY, SETTINGS, VARIABLES
from holdfast.documents.shapes import (
    Choice,
    Expression,
    JsonSchema,
    Lazy,
    ListOf,
    MapOf,
    OneOf,
    Record,
    Shape,
    Text,
    Whole,
)

_NODES: Final = ListOf(Lazy(lambda: NODE), "The nodes, in any order.", least=1)
_PLACED: Final[dict[str, Shape]] = {
    "when": Expression("The node is skipped unless this holds."),
    "after": ListOf(Text(), "Nodes that must be settled first, without data."),
    "phase": Text("The phase that the node belongs to."),
    "lane": Text("The branch of a parallel route, as `route_1.eu.`; `routes` sets it."),
    "label": Text("What is shown beside the node in a branch of a route; `route` and `routes` set it."),
}
_WITH: Final = MapOf(Shape(), "Values that are the same for all items or rounds, read by their names.")
_RESULT: Final = Shape("What it gives: a value with templates; default: the output of its only node.")

CALL: Final = Record(
    "node",
    "A node that runs a handler, or another workflow.",
    {
        "id": ID,
        "handler": Text("A registered Python function, a built-in handler, or another workflow by its name."),
        "input": MapOf(Shape(), "Arguments by name; texts may hold templates {{ ... }}."),
        "returns": JsonSchema("The JSON Schema of its output; default: what its handler declares."),
        **_PLACED,
        **OPTIONS,
    },
    ["id", "handler"],
)
MAP: Final = Record(
    "map node",
    "A node that runs its own nodes once for each item of a list.",
    {
        "id": ID,
        "map": Record(
            "map",
            "What runs over, and for each item.",
            {
                "over": Expression("The list."),
                "item": Text("The name by which the nodes read the item."),
                "limit": Whole("Items at once; default 100.", least=1),
                "errors": Choice(["fail", "collect"], "`collect` gives a failure for an item instead of failing."),
                "with": _WITH,
                "nodes": _NODES,
                "result": _RESULT,
            },
            ["over", "item", "nodes"],
        ),
        **_PLACED,
    },
    ["id", "map"],
)
LOOP: Final = Record(
    "loop node",
    "A node that repeats its own nodes until a condition holds.",
    {
        "id": ID,
        "loop": Record(
            "loop",
            "What is repeated, and until when.",
            {
                "start": Shape("The value of the first round; then it is the result of the round before."),
                "item": Text("The name by which the nodes read the value."),
                "until": Expression("The loop ends when this holds; `result` is that of the round."),
                "max_visits": Whole("Rounds at most; default 1,000.", least=1),
                "at_limit": Choice(["fail", "take"], "At that limit: fail, or give the last result."),
                "returns": JsonSchema("The JSON Schema of what it gives."),
                "with": _WITH,
                "nodes": _NODES,
                "result": _RESULT,
            },
            ["start", "item", "until", "nodes"],
        ),
        **_PLACED,
    },
    ["id", "loop"],
)
_GROUPED: Final[dict[str, Shape]] = {key: _PLACED[key] for key in ("when", "phase")}
ROUTE: Final = Record(
    "route",
    "Exactly one choice runs: the one that is named like the value.",
    {
        "id": ID,
        "route": Record(
            "choice of a route",
            "The value, and the nodes for each.",
            {
                "on": Expression("The value that chooses, a text."),
                "choices": MapOf(_NODES, "Nodes by value."),
                "otherwise": _NODES,
            },
            ["on", "choices"],
        ),
        **_GROUPED,
    },
    ["route"],
)
ROUTES: Final = Record(
    "routes",
    "Every branch whose name is selected runs, side by side.",
    {
        "id": ID,
        "routes": Record(
            "parallel routes",
            "The selected names, and the nodes of each branch.",
            {
                "select": Expression("A list of names of branches."),
                "branches": MapOf(_NODES, "Nodes by name.", names="a branch"),
            },
            ["select", "branches"],
        ),
        **_GROUPED,
    },
    ["routes"],
)
GROUP: Final = Record("group", "Nodes under one condition.", {"nodes": _NODES, **_GROUPED}, ["nodes"])
NODE: Final[Shape] = OneOf(
    "entry",
    {"handler": CALL, "map": MAP, "loop": LOOP, "route": ROUTE, "routes": ROUTES, "nodes": GROUP},
)

SHAPE: Final = Record(
    "graph",
    "A workflow as a graph of nodes.",
    {
        "kind": Choice(["graph"], "The kind of the document."),
        "name": NAME,
        "description": DESCRIPTION,
        "input": INPUT,
        "variables": VARIABLES,
        "settings": SETTINGS,
        "retry": RETRY,
        "tickets": MapOf(
            Text(), "Names that bodies may raise with hf.ticket, and the nodes they lead to.", names="a ticket"
        ),
        "phases": ListOf(
            Record(
                "phase",
                "A named group of nodes.",
                {"name": Text(), "after": Text("The phase that must end first.")},
                ["name"],
            ),
            "Phases, which nodes name.",
        ),
        "nodes": _NODES,
        "result": Shape("What a run gives: a value with templates."),
    },
    ["kind", "name", "nodes"],
)
