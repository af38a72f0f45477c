"""The examples of docs/handlers.md are valid by their schemas, and run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

import holdfast as hf
from holdfast.model import handlers
from tests.handlers.serving import outcome, respond, serving
from tests.handlers.test_llm import part, streams

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text()
EXAMPLES: list[dict[str, Any]] = [
    YAML(typ="safe").load(io.StringIO(block)) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
]


def with_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$secret"}:
            return hf.secret(value["$secret"])
        return {k: with_secrets(v) for k, v in value.items()}
    return list(map(with_secrets, value)) if isinstance(value, list) else value


def without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return "text" if set(value) == {"$secret"} else {k: without_secrets(v) for k, v in value.items()}
    return value


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e["handler"])
async def test_each_example_is_valid_and_completes(tmp_path: Path, example: dict[str, Any]) -> None:
    handler = handlers.find(handlers.stored_name(example["handler"]))
    assert handler is not None
    jsonschema_rs.validator_for(handler.config_schema).validate(without_secrets(example["config"]))
    async with serving() as server:
        server.answers["/charges"] = respond(201, {"id": "c-1"})
        server.answers["/v1/chat/completions"] = streams(
            part(content="Blue"), part(finish_reason="stop"), b"data: [DONE]\n\n"
        )
        config = with_secrets(example["config"])
        for key in ("url", "base_url"):
            if key in config:
                config[key] = config[key].replace("https://api.example.com", server.url(""))
        permissions = hf.Permissions(http_allow=("127.0.0.1",), shell_allow=("/bin/echo",), python_allow=("textwrap",))
        secrets = {"STRIPE_TOKEN": "sk-test-1234", "LLM_KEY": "sk-llm-1234"}
        opened = {"permissions": permissions, "secrets": secrets}
        output = await outcome(f"sqlite:///{tmp_path / 'docs.db'}", example["handler"], config, opened=opened)
    expected: dict[str, Any] = {
        "http": {"status": 201, "headers": {"content-type": "application/json"}, "body": {"id": "c-1"}},
        "shell": {"exit_code": 0, "stdout": "hello $(not a shell)\n", "stderr": ""},
        "python": "a long.",
        "transform": {"total": 12, "currency": "EUR"},
        "sleep": None,
    }
    if example["handler"] == "llm":
        assert output["text"] == "Blue"
    else:
        assert output == expected[example["handler"]]


def test_every_handler_of_documents_is_on_the_page() -> None:
    for name in handlers.ALIASES:
        assert f"`{name}`" in PAGE
