"""Tickets: how a body sends its run to another node.

Owns: `hf.goto` and `hf.ticket`, which end the body they are called in.
Never: knows what follows (rules/body_reports.py).
"""

from __future__ import annotations

from typing import Any, NoReturn

from holdfast.authoring import tracing
from holdfast.authoring.refs import trace_error
from holdfast.model.errors import TicketRaised, UsageError


def goto(node: str, *, output: Any = None) -> NoReturn:
    """End this body, and go on at a node of the same workflow, back or forward.

    The node that calls it completes, with `output` as its output. What runs beside it finishes its current node, then
    `node` is entered as a new visit and everything downstream of it follows anew. `return hf.goto("draft")` and
    `hf.goto("draft")` are the same: it raises, so the types of the body stay as they are. A node that does not exist,
    or that lies in a map, a loop or a parallel route, fails the node that calls.
    """
    _check("goto", node, "the id of a node")
    raise TicketRaised(target=node, output=output)


def ticket(name: str, *, output: Any = None) -> NoReturn:
    """End this body, and go on where the workflow says: `@hf.workflow(tickets={"reject": "send_rejection"})`.

    As `hf.goto`, but the body knows the ticket's name alone, and the workflow which node it means.
    """
    _check("ticket", name, "the name of a ticket")
    raise TicketRaised(ticket=name, output=output)


def _check(call: str, given: object, what: str) -> None:
    if tracing.current() is not None:
        raise trace_error(f"hf.{call} belongs into the body of a node: this function only describes the graph")
    if not isinstance(given, str) or not given:
        raise UsageError(f"hf.{call} takes {what} as text, not {given!r}")
