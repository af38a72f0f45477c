"""Chat completions: the body of `llm` (`llm_service`), for every endpoint that speaks OpenAI's protocol.

Owns: its config, the request, reading the answer or the stream of its parts, and its output: text, message (with tool
calls, which are data for the next node), usage.
Never: runs a tool, connects (guarded_network.py), retries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.handlers.http_requests import Auth, load_network, prepared, refusal, without_secrets_in
from holdfast.handlers.registering import builtin, permissions_of, secrets_of, without_secrets
from holdfast.handlers.waiting import Duration
from holdfast.model.errors import Fail, UsageError
from holdfast.model.limits import HTTP_BYTES_MAX, LLM_SECONDS, LLM_STREAM_BYTES_MAX
from holdfast.model.policies import delay_seconds
from holdfast.worker.context import Context

if TYPE_CHECKING:
    from holdfast.handlers import guarded_network

_DONE = "[DONE]"


@builtin("holdfast.llm")
async def llm(
    ctx: Context,
    model: Annotated[str, Meta(min_length=1)],
    prompt: Annotated[str | None, Meta(description="One message of the user, in place of `messages`.")] = None,
    messages: Annotated[list[dict[str, Any]], Meta(description="The conversation: `{role, content}`, ...")] = [],  # noqa: B006
    system: Annotated[str | None, Meta(description="Put before the messages.")] = None,
    base_url: Annotated[str, Meta(description="Of the endpoint, without /chat/completions.")] = (
        "https://api.openai.com/v1"
    ),
    api_key: Annotated[str | None, Meta(description="Sent as a bearer token; a secret.")] = None,
    temperature: float | None = None,
    max_tokens: Annotated[int | None, Meta(ge=1)] = None,
    tools: Annotated[list[dict[str, Any]], Meta(description="Sent as they are; calls of them are in the output.")] = [],  # noqa: B006
    tool_choice: Any = None,
    response_format: Any = None,
    options: Annotated[dict[str, Any], Meta(description="Further fields of the request.")] = {},  # noqa: B006
    headers: dict[str, str] = {},  # noqa: B006 - never changed
    stream: Annotated[bool, Meta(description="Show the text while it is written (`ctx.emit`).")] = True,
    timeout: Annotated[Duration, Meta(description="For the whole completion; default 300 s.")] = LLM_SECONDS,
) -> dict[str, Any]:
    """Complete a conversation; the output is `{text, message, finish_reason, model, usage}`."""
    network = load_network("llm")
    conversation = [{"role": "user", "content": prompt}] if prompt is not None else list(messages)
    if not conversation or (prompt is not None and messages):
        raise UsageError("llm: give prompt or messages")
    if system is not None:
        conversation.insert(0, {"role": "system", "content": system})
    asked = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "tools": tools or None,
        "tool_choice": tool_choice,
        "response_format": response_format,
    }
    request = {"model": model, "messages": conversation, "stream": stream} | options
    request |= {name: value for name, value in asked.items() if value is not None}
    if stream:
        request.setdefault("stream_options", {"include_usage": True})
    call = network.Call(
        method="POST",
        url=network.parsed_url(base_url.rstrip("/") + "/chat/completions"),
        headers=network.checked_headers(headers.items()),
        content=b"",
        permissions=permissions_of(ctx),
        secrets=secrets_of(ctx),
        max_bytes=LLM_STREAM_BYTES_MAX if stream else HTTP_BYTES_MAX,
    )
    call = prepared(ctx, call, request, None, None if api_key is None else Auth(bearer=api_key))
    async with network.limited(delay_seconds(timeout, "llm: timeout"), call.shown), network.exchange(call) as response:
        if response.status != 200:
            raise without_secrets_in(ctx, refusal(response, await response.read()))
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            output = await _streamed(ctx, response)
        else:
            output = _whole(response, await response.read())
    return without_secrets(ctx, output)


def _whole(response: guarded_network.Response, content: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(content)
        choice = said["choices"][0]
        message = choice["message"]
        return _output(message, choice.get("finish_reason"), said.get("model"), said.get("usage"))
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as e:
        raise _unreadable(response, e) from None


async def _streamed(ctx: Context, response: guarded_network.Response) -> dict[str, Any]:
    """Put the message together from its parts, and show its text meanwhile."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    finish_reason: str | None = None
    model: str | None = None
    usage: Any = None
    is_done = False
    async for data in _events(response.chunks):
        if data == _DONE:
            is_done = True
            break
        try:
            part = msgspec.json.decode(data)
            if part.get("error"):
                raise Fail(f"{response.call.shown}: the model failed: {part['error']}", retryable=True)
            model, usage = part.get("model") or model, part.get("usage") or usage
            for choice in (part.get("choices") or ())[:1]:
                delta = choice.get("delta") or {}
                finish_reason = choice.get("finish_reason") or finish_reason
                if text := delta.get("content"):
                    message["content"] = (message["content"] or "") + text
                    ctx.emit("tokens", without_secrets(ctx, text))
                if refused := delta.get("refusal"):
                    message["refusal"] = message.get("refusal", "") + refused
                for piece in delta.get("tool_calls") or ():
                    _add_piece(calls, piece)
        except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as e:
            raise _unreadable(response, e) from None
    if not is_done and finish_reason is None:
        raise Fail(f"{response.call.shown}: the stream broke off before the completion had ended", retryable=True)
    if calls:
        message["tool_calls"] = [calls[i] for i in sorted(calls)]
    return _output(message, finish_reason, model, usage)


def _add_piece(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    """Add a part of a tool call: its id and name are in the first, its arguments come in pieces."""
    whole = calls.setdefault(piece.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}})
    if piece.get("id"):
        whole["id"] = piece["id"]
    given = piece.get("function") or {}
    whole["function"]["name"] += given.get("name") or ""
    whole["function"]["arguments"] += given.get("arguments") or ""


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of server-sent events."""
    rest, data = b"", list[str]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace").rstrip("\r")
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                yield "\n".join(data)
                data = []


def _output(message: Any, finish_reason: Any, model: Any, usage: Any) -> dict[str, Any]:
    counted = usage if isinstance(usage, dict) else {}
    return {
        "text": message.get("content") or "",
        "message": message,
        "finish_reason": finish_reason,
        "model": model,
        "usage": {name: counted.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
    }


def _unreadable(response: guarded_network.Response, why: Exception) -> Fail:
    return Fail(f"{response.call.shown} answered with what is no chat completion: {why!r}", retryable=False)
