"""What `hf.goto` and `hf.ticket` promise to whoever writes them."""

from __future__ import annotations

from typing import Any, NoReturn, get_type_hints

import pytest

from holdfast.authoring.builtin_nodes import goto, ticket
from holdfast.authoring.node_decorator import node
from holdfast.authoring.workflows import workflow
from holdfast.model.definition import decode
from holdfast.model.errors import DefinitionError, TicketRaised, TraceError, UsageError


@node
def begins() -> str: ...


@node
def follows(x: str) -> str: ...


def test_they_never_return_so_that_the_types_of_a_body_stay_as_they_are() -> None:
    assert get_type_hints(goto)["return"] is NoReturn
    assert get_type_hints(ticket)["return"] is NoReturn


def test_they_raise_what_no_except_exception_catches() -> None:
    with pytest.raises(TicketRaised) as raised:
        goto("begins", output=7)
    assert (raised.value.target, raised.value.ticket, raised.value.output) == ("begins", None, 7)
    with pytest.raises(TicketRaised, match="ticket reject") as raised:
        ticket("reject")
    assert (raised.value.target, raised.value.ticket, raised.value.output) == (None, "reject", None)
    assert not issubclass(TicketRaised, Exception)


@pytest.mark.parametrize("given", [None, "", begins, 3])
def test_they_take_a_name(given: Any) -> None:
    with pytest.raises(UsageError, match=r"hf\.goto takes the id of a node as text"):
        goto(given)
    with pytest.raises(UsageError, match=r"hf\.ticket takes the name of a ticket as text"):
        ticket(given)


def test_in_the_function_of_a_graph_they_say_where_they_belong() -> None:
    @workflow
    def raises_while_traced() -> Any:
        goto("begins")

    with pytest.raises(TraceError, match=r"test_tickets.py:\d+: hf.goto belongs in the body of a node"):
        _ = raises_while_traced.definition


def test_tickets_are_stored_with_the_definition_and_make_a_version() -> None:
    def plain() -> Any:
        return follows(begins())

    without = workflow(name="without_tickets")(plain).definition
    with_one = workflow(name="without_tickets", tickets={"again": "begins"})(plain).definition
    assert decode(with_one.encode()).tickets == {"again": "begins"}
    assert without.content_hash() != with_one.content_hash()
    assert b"again" not in without.encode()


def test_a_ticket_that_leads_nowhere_is_found_while_tracing() -> None:
    @workflow(tickets={"again": "begin"})
    def leads_nowhere() -> Any:
        return follows(begins())

    with pytest.raises(DefinitionError, match=r"tickets.again: there is no node 'begin' \(did you mean 'begins'\?\)"):
        _ = leads_nowhere.definition


def test_tickets_lead_to_ids_not_to_functions() -> None:
    with pytest.raises(UsageError, match="tickets map names to ids of nodes, as text"):

        @workflow(tickets={"again": begins})  # type: ignore[dict-item]
        def leads_to_a_function() -> Any:
            return begins()


def test_max_visits_is_a_number_above_0() -> None:
    with pytest.raises(DefinitionError, match="0 is not a whole number above 0"):
        workflow(max_visits=0)(lambda: None)
