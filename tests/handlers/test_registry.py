"""The registry of built-in handlers: their names in documents, and the schemas of their config."""

from __future__ import annotations

from dataclasses import dataclass

import jsonschema_rs
import pytest

import holdfast as hf
from holdfast.handlers import NAMES
from holdfast.model import handlers


def config_problems(name: str, config: object) -> list[str]:
    handler = handlers.find(handlers.stored_name(name))
    assert handler is not None
    return [e.message for e in jsonschema_rs.validator_for(handler.config_schema).iter_errors(config)]


def test_every_name_in_documents_leads_to_a_registered_handler() -> None:
    assert set(handlers.ALIASES.values()) == set(NAMES)
    for name in NAMES:
        assert handlers.find(name) is not None, name


def test_two_names_of_one_handler_are_stored_as_one() -> None:
    assert handlers.stored_name("http") == handlers.stored_name("call_external_service") == "holdfast.http"
    assert handlers.stored_name("llm") == handlers.stored_name("llm_service") == "holdfast.llm"
    assert handlers.stored_name("shop.charge") == "shop.charge"


def test_config_of_ask_is_checked_by_its_schema() -> None:
    assert config_problems("ask", {"question": "Ship?", "deadline": "2d", "escalate": [{"after": "1d"}]}) == []
    assert config_problems("ask", {"deadline": "2d"})
    assert config_problems("ask", {"question": "Ship?", "deadlin": "2d"})
    assert config_problems("ask", {"question": 3})


@dataclass
class Address:
    street: str


def test_a_python_handler_has_a_schema_from_its_annotations() -> None:
    @hf.node(name="schema_test.send")
    def send(to: Address, copies: int = 1) -> None: ...

    assert send.handler.config_schema["required"] == ["to"]
    assert config_problems("schema_test.send", {"to": {"street": "Long Lane"}, "copies": 2}) == []
    assert config_problems("schema_test.send", {"to": {"street": 7}})
    assert config_problems("schema_test.send", {"to": {"street": "Long Lane"}, "copys": 2})


def test_other_keywords_are_allowed_where_the_function_takes_them() -> None:
    @hf.node(name="schema_test.anything")
    def anything(first: int, **rest: str) -> None: ...

    assert config_problems("schema_test.anything", {"first": 1, "other": "x"}) == []


@pytest.mark.parametrize("name", sorted(handlers.ALIASES))
def test_a_node_cannot_take_the_name_of_a_built_in_handler(name: str) -> None:
    with pytest.raises(hf.UsageError, match="built-in handler"):

        @hf.node(name=name)
        def mine() -> None: ...
