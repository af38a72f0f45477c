"""Built-in nodes: nodes of a graph that wait for time, people and signals; and the calls that end a body.

Owns: `sleep`, `ask` and `receive`, which are nodes with handlers of Holdfast's own; `pend`, `goto` and `ticket`, which
end the body they are called in.
Never: knows what follows a body that ended this way (rules/body_reports.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TypeVar, overload

from holdfast.authoring import tracing
from holdfast.authoring.node_decorator import Duration
from holdfast.authoring.refs import Ref, trace_error
from holdfast.model import answers, texts
from holdfast.model.errors import HoldfastError, Pended, TicketRaised, UsageError
from holdfast.model.policies import delay_seconds
from holdfast.model.texts import NOTHING, Escalate, escalations, reminder_seconds
from holdfast.model.values import encode

T = TypeVar("T")


def sleep(duration: Duration | Any, *, after: Any = ()) -> Any:
    """A node that waits durably: seconds, a timedelta, text such as "2h", or a reference to seconds.

    It waits from when `after` (a reference, or a list of them) has settled; order other nodes after it with
    `node.after(nap)(…)`.
    """
    trace = tracing.required("hf.sleep", "ctx.sleep")
    amount = _duration(trace, duration, "hf.sleep")
    node_id = trace.new_id("sleep")
    return trace.add(type(None), _list(after), id=node_id, uses="holdfast.sleep", args={"seconds": amount})


@overload
def ask(
    question: str, *, schema: type[T], about: Any = None, assignee: Any = None, basket: Any = None,
    deadline: Any = None, default: Any = NOTHING, remind: Duration | None = None,
    escalate: Escalate | Sequence[Escalate] = (), after: Any = (), named: str = "",
) -> T: ...  # fmt: skip
@overload
def ask(
    question: str, *, schema: Any = None, about: Any = None, assignee: Any = None, basket: Any = None,
    deadline: Any = None, default: Any = NOTHING, remind: Duration | None = None,
    escalate: Escalate | Sequence[Escalate] = (), after: Any = (), named: str = "",
) -> Any: ...  # fmt: skip
def ask(
    question: str, *, schema: Any = None, about: Any = None, assignee: Any = None, basket: Any = None,
    deadline: Any = None, default: Any = NOTHING, remind: Duration | None = None,
    escalate: Escalate | Sequence[Escalate] = (), after: Any = (), named: str = "",
) -> Any:  # fmt: skip
    """A node that asks a person; its output is the answer.

    `ok = hf.ask("Ship this order?", about=order, schema=Decision, basket="finance", deadline="2d")`

    `schema` is the type of the answer (or a JSON Schema): one that does not fit is refused and the question stays open.
    It goes to `assignee`, or into `basket`. After its `deadline` it is answered with `default`; without one the node
    fails. `remind` repeats a reminder, `hf.Escalate("2d", assignee="boss")` reassigns the question. The
    id of the node is `ask`, `ask_2`, …, or `named`.
    """
    trace = tracing.required("hf.ask", "ctx.ask")
    options: dict[str, Any] = {}
    annotation = _answer_type(options, schema, "hf.ask")
    _literal(texts.question, question, "hf.ask: the question")
    _literal(texts.name, assignee, "hf.ask: assignee")
    _literal(texts.name, basket, "hf.ask: basket")
    with _with_the_line():
        if remind is not None:
            options["remind"] = reminder_seconds(remind, "hf.ask")
        steps = escalations(escalate)
    if steps:
        options["escalate"] = steps
    args = {"question": trace.expr(question, str, what="hf.ask")}
    args |= {name: trace.expr(value, what="hf.ask") for name, value in options.items()}
    for name, value in (("about", about), ("assignee", assignee), ("basket", basket)):
        if value is not None:
            args[name] = trace.expr(value, what=f"hf.ask: {name}")
    args |= _deadline(trace, "hf.ask", deadline, default, annotation, options.get("schema"))
    node_id = trace.new_id("ask", named)
    return trace.add(
        annotation, _list(after), id=node_id, uses="holdfast.ask", args=args, returns=options.get("schema")
    )


@overload
def receive(
    name: Any, *, schema: type[T], deadline: Any = None, default: Any = NOTHING, after: Any = (), named: str = ""
) -> T: ...
@overload
def receive(
    name: Any, *, schema: Any = None, deadline: Any = None, default: Any = NOTHING, after: Any = (), named: str = ""
) -> Any: ...
def receive(
    name: Any, *, schema: Any = None, deadline: Any = None, default: Any = NOTHING, after: Any = (), named: str = ""
) -> Any:
    """A node that waits for a signal, `run.signal(name, payload)`; its output is the payload. A signal that
    was sent earlier is received at once. After its `deadline` the output is `default`; without one the node fails."""
    trace = tracing.required("hf.receive", "ctx.receive")
    options: dict[str, Any] = {}
    annotation = _answer_type(options, schema, "hf.receive")
    _literal(texts.name, name, "hf.receive: what it waits for")
    args = {"name": trace.expr(name, str, what="hf.receive")}
    if options:
        args["schema"] = trace.expr(options["schema"], what="hf.receive")
    args |= _deadline(trace, "hf.receive", deadline, default, annotation, options.get("schema"))
    node_id = trace.new_id("receive", named)
    return trace.add(
        annotation, _list(after), id=node_id, uses="holdfast.receive", args=args, returns=options.get("schema")
    )


def pend(
    basket: str,
    *,
    rerun: bool = False,
    error: str | BaseException | None = None,
    output: Any = None,
    ticket: str | None = None,
) -> NoReturn:
    """End this body, and let its node wait in a basket until it is resumed.

    On resume what follows the node runs, and `output` is the node's output. With `rerun=True` the node itself runs
    again, from its start and with nothing remembered. With `error` it counts as an attempt that failed, is shown as an
    error, and runs again. With `ticket` the run continues where that leads. `return hf.pend("second_look")` and
    `hf.pend("second_look")` are the same: it raises, so the types of the body stay as they are.
    """
    if tracing.current() is not None:
        raise trace_error("hf.pend belongs in the body of a node: this function only describes the graph")
    texts.name(basket, "hf.pend: the basket")
    if error is not None and not isinstance(error, str | BaseException):
        raise UsageError(f"hf.pend: error is text or an exception, not {error!r}")
    if ticket is not None and (rerun or error is not None):
        raise UsageError("hf.pend: with rerun or error the node runs again on resume; a ticket would lead elsewhere")
    raise Pended(basket, rerun=rerun, error=error, output=output, ticket=ticket)


def goto(node: str, *, output: Any = None) -> NoReturn:
    """End this body, and continue at a node of the same workflow, back or forward.

    The node that calls it completes, with `output` as its output. Other bodies that run finish their node, then
    `node` is entered as a new visit and everything downstream of it follows again. `return hf.goto("draft")` and
    `hf.goto("draft")` are the same: it raises, so the types of the body stay as they are. A node that does not exist,
    or that is in a map, a loop or a parallel route, fails the node that calls.
    """
    _check_call("goto", node, "the id of a node")
    raise TicketRaised(target=node, output=output)


def ticket(name: str, *, output: Any = None) -> NoReturn:
    """End this body, and continue at the node of a ticket: `@hf.workflow(tickets={"reject": "send_rejection"})`.

    As `hf.goto`, but the body names only the ticket, and the workflow maps it to a node.
    """
    _check_call("ticket", name, "the name of a ticket")
    raise TicketRaised(ticket=name, output=output)


def _check_call(call: str, given: object, what: str) -> None:
    if tracing.current() is not None:
        raise trace_error(f"hf.{call} belongs in the body of a node: this function only describes the graph")
    if not isinstance(given, str) or not given:
        raise UsageError(f"hf.{call} takes {what} as text, not {given!r}")


def _answer_type(options: dict[str, Any], schema: Any, what: str) -> Any:
    """The annotation of what comes back; its JSON Schema goes into the options."""
    with _with_the_line():
        annotation, found = answers.wanted(schema, what)
    if schema is not None:
        options["schema"] = found
    return annotation


def _deadline(
    trace: tracing.Trace, what: str, deadline: Any, default: Any, annotation: Any, schema: Any
) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if deadline is not None:
        if isinstance(deadline, datetime):
            raise trace_error(f"{what}: a graph has no fixed dates; use a duration, or a reference to one")
        args["deadline"] = _duration(trace, deadline, f"{what}: deadline")
    if default is not NOTHING:
        if deadline is None:
            raise trace_error(f"{what}: a default answers when the deadline has passed; give deadline='2d' as well")
        if not isinstance(default, Ref):
            data = encode(default, annotation, what=f"{what}: default")
            wrong = answers.problems(schema, data)
            if wrong:
                raise trace_error(f"{what}: the default does not fit the schema: {'; '.join(wrong)}")
        args["default"] = trace.expr(default, annotation, what=f"{what}: default")
    return args


def _duration(trace: tracing.Trace, duration: Any, what: str) -> Any:
    if isinstance(duration, Ref):
        return trace.expr(duration, what=what)
    with _with_the_line():
        return delay_seconds(duration, what)


def _literal(check: Callable[[Any, str], str], given: Any, what: str) -> None:
    """Check a text that stands in the graph; one that comes from the run is checked when it is asked."""
    if given is not None and not isinstance(given, Ref):
        with _with_the_line():
            check(given, what)


@contextmanager
def _with_the_line() -> Iterator[None]:
    """Raise errors with the line of the author's code."""
    try:
        yield
    except HoldfastError as e:
        raise trace_error(e.message) from None


def _list(after: Any) -> Sequence[Any]:
    return after if isinstance(after, list | tuple) else (after,)
