"""Servers for tests of built-in handlers: real ones on sockets of this machine, which answer as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import holdfast as hf
from holdfast.authoring import tracing
from holdfast.authoring.refs import Ref
from holdfast.model import handlers
from holdfast.model.secret_names import without_secrets

Answer = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """One server; `answers` are by path, each gets the request and writes the raw response."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            request = Request(method, target, headers, body)
            self.requests.append(request)
            await self.answers[target.partition("?")[0]](request, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1", port: int = 0, **options: Any) -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server._serve, host, port, **options)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def respond(status: int, body: bytes | object = b"", **headers: str) -> Answer:
    """An answer of this status; a body that is not bytes is JSON."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("content_type", "application/json")

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        lines = {"content-length": str(len(body))} | {k.replace("_", "-"): v for k, v in headers.items()}
        head = "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body)

    return answer


def node(handler: str, config: dict[str, Any], **fields: Any) -> Any:
    """A node of a built-in handler in a graph that is being traced, as a document has it."""
    trace = tracing.required("a node of a test")
    secrets: dict[str, str] = {}
    config = without_secrets(config, "", secrets, lambda _: Ref(None, Any, trace.frame))
    args = {name: trace.expr(value, what=name) for name, value in config.items()}
    uses = handlers.stored_name(handler)
    return trace.add(Any, id=trace.new_id(handler), uses=uses, args=args, secrets=secrets, **fields)


async def outcome(db: str, handler: str, config: dict[str, Any], *, opened: Any = None, **fields: Any) -> Any:
    """The output of one node of a built-in handler, or the error that its run failed with."""

    @hf.workflow(name="one_node")
    def one() -> Any:
        return node(handler, config, **fields)

    async with hf.open(db, **(opened or {})) as engine:
        run = await engine.start(one)
        try:
            return await asyncio.wait_for(run.result(), 60)
        except hf.RunFailed as failed:
            return failed.error


LOCAL = {"permissions": hf.Permissions(http_allow=("127.0.0.1",))}
"""How to open an engine whose bodies may reach the servers of a test."""
