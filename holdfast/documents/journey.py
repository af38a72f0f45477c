"""Documents of kind `journey`: units that are entered along execution paths, with ways back, baskets and milestones.

Owns: the shape of such a document, and compiling it to a definition with a `start` (rules/journeys.py runs it).
A unit reads inputs and variables; the result is what `result` says, else all variables by name. A unit that fails pends
in the error basket, unless the settings say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.documents.common_shapes import DESCRIPTION, ID, INPUT, NAME, OPTIONS, RETRY, SETTINGS, VARIABLES
from holdfast.documents.compiling import Compiler, title_of
from holdfast.documents.names import Names
from holdfast.documents.places import Pointer
from holdfast.documents.shapes import (
    Choice,
    Duration,
    Expression,
    ListOf,
    MapOf,
    OneOf,
    Record,
    Shape,
    Text,
    Whole,
)
from holdfast.model.definition import END, Definition, Further, Milestone, NodeDef
from holdfast.model.handlers import ALIASES
from holdfast.model.policies import seconds
from holdfast.model.problems import choices

ERROR_BASKET: Final = "workflow_error"
_NEXT: Final = Text("The unit that follows, or `end`.")
_BRANCHES: Final = MapOf(Text(), "The first unit of each branch, by the name of the branch.", names="a branch")
_RUNS: Final[dict[str, Shape]] = {
    "handler": Text("A registered Python function, a built-in handler, or another workflow by its name."),
    "input": MapOf(Shape(), "Arguments by name; texts may hold templates {{ ... }}."),
    **OPTIONS,
}
_CHOOSES: Final[dict[str, Shape]] = {
    **_RUNS,
    "choose": Expression("The name of the branch, or a list of names, in place of a handler."),
}


def _unit(name: str, doc: str, fields: Mapping[str, Shape], required: list[str]) -> Record:
    return Record(name, doc, {"id": ID, "type": Choice(sorted(_TYPES)), **fields}, ["id", *required])


_TYPES: Final = {
    "step": "step",
    "task": "step",
    "s_route": "route",
    "p_route": "parallel",
    "p_route_dynamic": "parallel",
    "p_join": "join",
    "persist": "step",
    "pause": "step",
}
"""The types of units, and what each is in a definition."""
_JOIN: Final = Text("The unit of type p_join to which all its branches lead.")
SHAPES: Final = {
    "step": _unit("step", "A unit that does something.", {**_RUNS, "next": _NEXT}, ["handler", "next"]),
    "s_route": _unit(
        "s_route", "A unit that chooses one branch.", {**_CHOOSES, "branches": _BRANCHES}, ["type", "branches"]
    ),
    "p_route": _unit(
        "p_route",
        "A unit whose branches run side by side.",
        {**_CHOOSES, "branches": _BRANCHES, "join": _JOIN},
        ["type", "branches", "join"],
    ),
    "p_route_dynamic": _unit(
        "p_route_dynamic",
        "A unit that runs the same units once for each name that it answers.",
        {**_CHOOSES, "next": _NEXT, "join": _JOIN},
        ["type", "next", "join"],
    ),
    "p_join": _unit("p_join", "Where parallel branches meet.", {"next": _NEXT}, ["type", "next"]),
    "persist": _unit(
        "persist", "A unit that lets the application save its data.", {**_RUNS, "next": _NEXT}, ["type", "next"]
    ),
    "pause": _unit(
        "pause",
        "A unit that waits in a basket until it is resumed.",
        {"basket": Text("The basket."), "next": _NEXT},
        ["type", "basket", "next"],
    ),
}
SHAPES["task"] = SHAPES["step"]

MILESTONE: Final = Record(
    "milestone",
    "A time by which the run, or its stay in a basket, should have ended.",
    {
        "name": Text("What it is called."),
        "set_on": Choice(["start", "reopen", "entry", "exit"], "The run starts or is reopened; of a basket."),
        "basket": Text("The basket, for `entry` and `exit`."),
        "clears": Choice(["end", "exit"], "What clears it: the end of the run, or that the basket is left."),
        "after": Duration("The time from then on."),
        "at": Text("An instant in place of `after`, such as 2027-01-01T09:00:00Z."),
        "clock": Choice(["immediately", "next_day"], "Whether `after` counts from then, or from the next midnight."),
        "zone": Text("The time zone of that midnight; default UTC."),
        "action": Choice(["notify", "resume", "retry", "cancel", "move", "signal"], "What is requested."),
        "to": Text("The basket of `move`, the name of `signal`."),
        "data": Shape("For people and hooks; the payload of a signal."),
        "further": ListOf(
            Record(
                "further",
                "The milestone is reached again.",
                {
                    "after": Duration("The interval."),
                    "repeat": Whole("How often; -1 for no end; default 1.", least=-1),
                    "offset": Duration("The time before the first interval."),
                },
                ["after"],
            ),
            "What follows when it was reached.",
        ),
    },
    ["name"],
)


class _Unit(Shape):
    """A unit; its `type` says which keys it has."""

    words = "an object"

    def schema(self, parts: dict[str, Any]) -> dict[str, Any]:
        return OneOf("unit", SHAPES).schema(parts)

    def check(self, value: Any, at: Pointer, findings: Any) -> None:
        kind = value.get("type", "step") if isinstance(value, dict) else "step"
        if not isinstance(kind, str) or kind not in SHAPES:
            hint = choices(str(kind), list(SHAPES), "types")
            findings.add("bad_value", (*at, "type"), f"{kind!r} is not a type of unit", hint)
            return
        SHAPES[kind].check(value, at, findings)


SHAPE: Final = Record(
    "journey",
    "Units that are entered along execution paths.",
    {
        "kind": Choice(["journey"], "The kind of the document."),
        "name": NAME,
        "description": DESCRIPTION,
        "input": INPUT,
        "variables": VARIABLES,
        "settings": SETTINGS,
        "retry": RETRY,
        "start": Text("The first unit; default: the one called `start`, else the first one."),
        "units": ListOf(_Unit(), "The units, in any order.", least=1),
        "tickets": MapOf(Text(), "Names of tickets, and the units they lead to.", names="a ticket"),
        "error_basket": Text(f"Where a unit that fails pends; default {ERROR_BASKET}."),
        "on_persist": Text("The handler of units of type persist."),
        "milestones": ListOf(MILESTONE, "Times by which the run, or its stay in a basket, should have ended."),
        "result": Shape("What a run gives: a value with templates; default: its variables."),
    },
    ["kind", "name", "units"],
)


def compile_journey(compiler: Compiler) -> Definition | None:
    """The definition of a checked document; None when there are problems."""
    return _Journey(compiler).definition()


class _Journey:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.findings = compiler.findings
        self.document = compiler.document
        self.known: dict[str, str] = {}

    def definition(self) -> Definition | None:
        c, document = self.compiler, self.document
        c.default_retry = c.retry(document.get("retry"))
        for index, unit in enumerate(document["units"]):
            self.known[unit["id"]] = c.claim_id(unit["id"], ("units", index))
        params, variables = c.params(), dict(document.get("variables", {}))
        names = Names([p.name for p in params], list(variables), {})
        units = tuple(self.unit(u, ("units", i), names) for i, u in enumerate(document["units"]))
        tickets = {name: self.target(t, ("tickets", name)) for name, t in document.get("tickets", {}).items()}
        first = document.get("start") or ("start" if "start" in self.known else document["units"][0]["id"])
        settings = c.settings()
        if "on_failure" not in document.get("settings", {}):
            basket = document.get("error_basket", ERROR_BASKET)
            settings = msgspec.structs.replace(settings, on_failure=f"pend:{basket}")
        result = c.value(document["result"], ("result",), names) if "result" in document else _all_of(variables)
        if len(self.findings):
            return None
        return c.check(
            Definition(
                name=document["name"],
                params=params,
                nodes=units,
                start=self.target(first, ("start",)),
                result=result,
                variables=variables,
                tickets=tickets,
                milestones=tuple(map(_milestone, document.get("milestones", ()))),
                settings=settings,
                doc=document.get("description", ""),
            )
        )

    def target(self, title: Any, at: Pointer) -> str:
        if title == END:
            return END
        return self.compiler.resolve(title, at, self.known) or END

    def unit(self, unit: dict[str, Any], at: Pointer, names: Names) -> NodeDef:
        own = self.known[unit["id"]]
        self.compiler.pointers[own] = at
        fields = self.work(unit, at, names)
        branches = {
            name: self.target(target, (*at, "branches", name)) for name, target in unit.get("branches", {}).items()
        }
        return NodeDef(
            id=own,
            title=title_of(unit["id"]),
            unit=_TYPES[unit.get("type", "step")],  # type: ignore[arg-type]  # one of the words of the definition
            next=self.target(unit["next"], (*at, "next")) if "next" in unit else "",
            branches=branches,
            join=self.target(unit["join"], (*at, "join")) if "join" in unit else "",
            **fields,
        )

    def work(self, unit: dict[str, Any], at: Pointer, names: Names) -> dict[str, Any]:
        """What a unit runs."""
        kind = unit.get("type", "step")
        if kind == "p_join":
            return {}
        if kind == "pause":
            return {"uses": ALIASES["pause"], "args": {"basket": unit["basket"]}}
        if kind == "persist" and "handler" not in unit and "on_persist" in self.document:
            unit = {**unit, "handler": self.document["on_persist"]}
        if "choose" in unit and "handler" in unit:
            wrong, hint = "a route has either `choose` or `handler`", "remove one of them"
            self.findings.add("bad_value", (*at, "choose"), wrong, hint, is_key=True)
        if "choose" in unit:
            value = self.compiler.expression(unit["choose"], (*at, "choose"), names)
            return {"uses": ALIASES["transform"], "args": {"value": value}}
        if "handler" not in unit:
            hint = "add `handler: ...`" + (", or `on_persist: ...` to the document" if kind == "persist" else "")
            self.findings.add("missing_key", at, f"the {kind} has no 'handler'", hint)
            return {}
        return self.compiler.call(unit, at, "input", names)


def _all_of(variables: Mapping[str, Any]) -> Any:
    return ["dict", *(part for name in variables for part in (name, ["var", name]))]


def _milestone(given: Mapping[str, Any]) -> Milestone:
    plain = {key: part for key, part in given.items() if key not in ("clears", "after", "clock", "further")}
    is_entry = given.get("set_on") == "entry"
    return Milestone(
        **plain,
        clears=given.get("clears", "exit" if is_entry else "end"),
        after=seconds(given["after"]) if "after" in given else None,
        from_next_day=given.get("clock") == "next_day",
        further=tuple(
            Further(after=seconds(f["after"]), repeat=f.get("repeat", 1), offset=seconds(f.get("offset", 0)))
            for f in given.get("further", ())
        ),
    )
