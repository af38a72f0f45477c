"""`llm`: completions of an OpenAI-compatible endpoint, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine import operator
from tests.handlers.serving import LOCAL, Request, Server, node, outcome, respond, serving

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'llm.db'}"


def part(usage: Any = None, finish_reason: str | None = None, **delta: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}] if delta or finish_reason else []
    return b"data: " + json.dumps({"model": "m-1", "choices": choices, "usage": usage}).encode() + b"\n\n"


def streams(*parts: bytes, pause: asyncio.Event | None = None) -> Any:
    """An answer that sends its parts one after the other; before the last it waits for `pause`."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for i, one in enumerate(parts):
            if pause is not None and i == len(parts) - 1:
                await pause.wait()
            half = len(one) // 2
            writer.write(one[:half])  # parts do not come as they were sent
            await writer.drain()
            writer.write(one[half:])
            await writer.drain()

    return answer


def config(server: Server, **more: Any) -> dict[str, Any]:
    return {"base_url": server.url("/v1"), "model": "m-1", "prompt": "Say hello", **more}


async def test_a_streamed_completion_becomes_one_message_with_its_usage(db: str) -> None:
    async with serving() as server:
        server.answers["/v1/chat/completions"] = streams(
            part(role="assistant", content=""), part(content="Hel"), b": comment\r\n\r\n", part(content="lo ü"),
            part(finish_reason="stop"), part(usage=USAGE), b"data: [DONE]\n\n",
        )  # fmt: skip
        opened = LOCAL | {"secrets": {"KEY": "sk-secret-key"}}
        given = config(server, system="Be brief.", temperature=0.7, max_tokens=9, api_key=hf.secret("KEY"))
        output = await outcome(db, "llm", given, opened=opened)
        (request,) = server.requests
    assert output == {
        "text": "Hello ü",
        "message": {"role": "assistant", "content": "Hello ü"},
        "finish_reason": "stop",
        "model": "m-1",
        "usage": USAGE,
    }
    sent = json.loads(request.body)
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello"},
    ]
    assert (sent["stream"], sent["temperature"], sent["max_tokens"]) == (True, 0.7, 9)
    assert request.headers["authorization"] == "Bearer sk-secret-key"
    assert request.headers["idempotency-key"]


async def test_tokens_are_shown_while_they_come(db: str) -> None:
    async with serving() as server:
        rest = asyncio.Event()
        server.answers["/v1/chat/completions"] = streams(
            part(content="one "), part(content="two"), part(finish_reason="stop"), pause=rest
        )

        @hf.workflow(name="one_node")
        def one() -> Any:
            return node("llm", config(server))

        async with hf.open(db, **LOCAL) as engine:
            run = await engine.start(one)
            (row,) = [engine.store.run(run.run_id)]
            assert row is not None
            shown: list[Any] = []
            async with asyncio.timeout(30):
                while len(shown) < 2:
                    await asyncio.sleep(0.01)
                    shown = operator.emitted_by(engine, row.run_no)
            assert [(s.number, s.topic, bytes(s.value), s.attempt) for s in shown] == [
                (1, "tokens", b'"one "', 1),
                (2, "tokens", b'"two"', 1),
            ]
            rest.set()
            assert (await run.result())["text"] == "one two"


async def test_tool_calls_are_passed_through_as_data(db: str) -> None:
    async with serving() as server:
        first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
        more = {"index": 0, "function": {"arguments": 'ty": "Ulm"}'}}
        other = {"index": 1, "id": "c2", "function": {"name": "time", "arguments": "{}"}}
        server.answers["/v1/chat/completions"] = streams(
            part(tool_calls=[first]), part(tool_calls=[more, other]), part(finish_reason="tool_calls"),
            b"data: [DONE]\n\n",
        )  # fmt: skip
        tools = [{"type": "function", "function": {"name": "weather"}}]
        output = await outcome(db, "llm", config(server, tools=tools), opened=LOCAL)
        assert json.loads(server.requests[0].body)["tools"] == tools
    assert output["finish_reason"] == "tool_calls"
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in output["message"]["tool_calls"]] == [
        ("c1", "weather", '{"city": "Ulm"}'),
        ("c2", "time", "{}"),
    ]


async def test_a_stream_that_breaks_in_the_middle_is_tried_again_with_the_same_key(db: str) -> None:
    async with serving() as server:

        async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
            parts = [part(content="Hel"), part(content="lo"), part(finish_reason="stop"), b"data: [DONE]\n\n"]
            await streams(*parts[: 4 if len(server.requests) > 1 else 1])(request, writer)

        server.answers["/v1/chat/completions"] = answer
        output = await outcome(db, "llm", config(server), opened=LOCAL, retry=hf.Retry(attempts=2, backoff=0))
        assert output["text"] == "Hello"
        assert len({r.headers["idempotency-key"] for r in server.requests}) == 1
        failed = await outcome(db, "llm", config(server, stream=True), opened=LOCAL)
        assert failed["text"] == "Hello"
        server.requests.clear()
        failed = await outcome(db, "llm", config(server), opened=LOCAL)
        assert "broke off" in failed.message
        assert failed.retryable is True


async def test_a_whole_completion_and_what_is_none(db: str) -> None:
    async with serving() as server:
        choice = {"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        whole = {"model": "m-1", "choices": [choice], "usage": USAGE}
        server.answers["/v1/chat/completions"] = respond(200, whole)
        given = {"base_url": server.url("/v1/"), "model": "m-1", "stream": False}
        output = await outcome(db, "llm", given | {"messages": [{"role": "user", "content": "x"}]}, opened=LOCAL)
        assert (output["text"], output["usage"]) == ("Hi", USAGE)
        assert json.loads(server.requests[0].body)["stream"] is False
        server.answers["/v1/chat/completions"] = respond(200, {"no": "choices"})
        failed = await outcome(db, "llm", config(server), opened=LOCAL)
        assert failed.retryable is False
        server.answers["/v1/chat/completions"] = respond(429, {"error": "slow down"}, retry_after="7")
        failed = await outcome(db, "llm", config(server), opened=LOCAL)
        assert (failed.retryable, failed.retry_after) == (True, 7.0)
        failed = await outcome(db, "llm", {"base_url": server.url("/v1"), "model": "m-1"}, opened=LOCAL)
        assert failed.code == "usage"


async def test_an_endpoint_that_is_not_public_is_refused(db: str) -> None:
    async with serving() as server:
        failed = await outcome(db, "llm", config(server))
        assert "HOLDFAST_HTTP_ALLOW" in failed.message
        assert server.requests == []
