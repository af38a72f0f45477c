"""HTTP requests: the body of `http` (`call_external_service`).

Owns: its config, the request that it makes of it, its output, and which answers fail the node. The request carries the
idempotency key of its instance, so that a receiver that honours it acts once however often the body runs.
Never: connects (guarded_network.py), retries: a failure says whether another attempt may help, and the node's policy
decides.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.handlers.registering import builtin, hide, permissions_of, secrets_of, without_secrets
from holdfast.handlers.waiting import Duration
from holdfast.model.errors import Fail, UsageError
from holdfast.model.limits import HTTP_BYTES_MAX, HTTP_PROBLEM_LENGTH, HTTP_REDIRECTS_MAX, HTTP_SECONDS
from holdfast.model.policies import delay_seconds
from holdfast.worker.context import Context

if TYPE_CHECKING:
    from holdfast.handlers import guarded_network

_SHOWN_HEADERS = ("content-type", "etag", "last-modified", "location", "retry-after")
_TEXT_TYPES = ("application/xml", "application/x-www-form-urlencoded", "application/javascript")

_OK: list[int | str] = ["2xx"]

Scalar = str | int | float | bool
Status = Annotated[int, Meta(ge=100, le=599)] | Annotated[str, Meta(pattern="^[1-5]xx$")]


class Auth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a request authenticates: a bearer token, or a user name and a password."""

    bearer: str | None = None
    username: str | None = None
    password: str | None = None


@builtin("holdfast.http")
async def http(
    ctx: Context,
    url: Annotated[str, Meta(min_length=1, description="http:// or https://")],
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET",
    headers: dict[str, str] = {},  # noqa: B006 - never changed
    query: Annotated[
        dict[str, Scalar | list[Scalar] | None], Meta(description="Added to the URL; null leaves a name out.")
    ] = {},  # noqa: B006 - never changed
    body: Annotated[Any, Meta(description="Text is sent as it is, any other value as JSON.")] = None,
    form: Annotated[
        dict[str, Scalar] | None, Meta(description="Sent as application/x-www-form-urlencoded, in place of a body.")
    ] = None,
    auth: Auth | None = None,
    expect: Annotated[
        list[Status], Meta(description="Statuses that complete the node; `2xx` stands for a class.")
    ] = _OK,
    timeout: Annotated[Duration, Meta(description="For the whole exchange; default 30 s.")] = HTTP_SECONDS,
    max_bytes: Annotated[int, Meta(ge=0, le=HTTP_BYTES_MAX, description="Of the response.")] = HTTP_BYTES_MAX,
    redirects: Annotated[int, Meta(ge=0, le=HTTP_REDIRECTS_MAX, description="How many are followed.")] = 0,
    response_headers: Annotated[list[str], Meta(description="Further headers of the response for the output.")] = [],  # noqa: B006
) -> dict[str, Any]:
    """Send one request; the output is `{status, headers, body}`, the body decoded if it is JSON."""
    network = load_network("http")
    call = network.Call(
        method=method,
        url=network.parsed_url(url, _pairs(query)),
        headers=network.checked_headers(headers.items()),
        content=b"",
        permissions=permissions_of(ctx),
        secrets=secrets_of(ctx),
        max_bytes=max_bytes,
        redirects=redirects,
    )
    call = prepared(ctx, call, body, form, auth)
    async with network.limited(delay_seconds(timeout, "http: timeout"), call.shown), network.exchange(call) as response:
        content = await response.read()
    if not is_expected(response.status, expect):
        raise without_secrets_in(ctx, refusal(response, content))
    wanted = {name.lower() for name in (*_SHOWN_HEADERS, *response_headers)}
    output: dict[str, Any] = {
        "status": response.status,
        "headers": {name: value for name, value in response.headers.items() if name.lower() in wanted},
    }
    output |= _body(content, response)
    return without_secrets(ctx, output)


def load_network(handler: str) -> Any:
    """The module that connects. Raises UsageError where the extra is not installed."""
    try:
        from holdfast.handlers import guarded_network
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in ("httpx2", "httpcore2", "anyio"):
            raise
        raise UsageError(
            f"the handler {handler} needs httpx2, which is not installed here: pip install 'holdfast[http]'"
        ) from None
    return guarded_network


def prepared(
    ctx: Context, call: guarded_network.Call, body: Any, form: dict[str, Scalar] | None, auth: Auth | None
) -> guarded_network.Call:
    """The request with its content, and the headers that the handler sets."""
    from dataclasses import replace
    from urllib.parse import urlencode

    headers, content = call.headers.copy(), b""
    if form is not None:
        if body is not None:
            raise UsageError("http: give body or form, not both")
        content = urlencode({name: _text(value) for name, value in form.items()}).encode()
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
    elif isinstance(body, str):
        content = body.encode()
        headers.setdefault("content-type", "text/plain; charset=utf-8")
    elif body is not None:
        content = msgspec.json.encode(body)
        headers.setdefault("content-type", "application/json")
    if auth is not None:
        headers["authorization"] = _authorization(ctx, auth)
    headers["accept-encoding"] = "gzip, deflate"
    headers["idempotency-key"] = ctx.idempotency_key
    headers.setdefault("user-agent", "holdfast")
    return replace(call, headers=headers, content=content)


def _authorization(ctx: Context, auth: Auth) -> str:
    if auth.bearer is not None and auth.username is None and auth.password is None:
        return f"Bearer {auth.bearer}"
    if auth.bearer is None and auth.username is not None:
        pair = base64.b64encode(f"{auth.username}:{auth.password or ''}".encode()).decode()
        hide(ctx, pair)
        return f"Basic {pair}"
    raise UsageError("http: auth is {bearer: ...}, or {username: ..., password: ...}")


def is_expected(status: int, expected: Iterable[int | str]) -> bool:
    """Whether a status completes the node."""
    return status in expected or f"{status // 100}xx" in expected


def refusal(response: guarded_network.Response, content: bytes) -> Fail:
    """The failure of a request that was answered with an unexpected status."""
    from holdfast.handlers.guarded_network import RETRYABLE_STATUS

    said = content.decode(errors="replace").strip()
    shown = said if len(said) <= HTTP_PROBLEM_LENGTH else said[:HTTP_PROBLEM_LENGTH] + "..."
    where = f" to {response.headers['location']}" if "location" in response.headers else ""
    retryable = response.status in RETRYABLE_STATUS
    return Fail(
        f"{response.call.shown} answered {response.status}{where}{f': {shown}' if shown else ''}",
        retryable=retryable,
        retry_after=response.retry_after() if retryable else None,
        details={"status": response.status, "body": shown},
    )


def without_secrets_in(ctx: Context, failure: Fail) -> Fail:
    """A failure without the values of secrets. (The engine hides them as well; this text is from outside.)"""
    failure.args = (without_secrets(ctx, failure.args[0]),)
    failure.details = without_secrets(ctx, failure.details)
    return failure


def _pairs(query: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in query.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found.append((name, _text(one)))
    return found


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _body(content: bytes, response: guarded_network.Response) -> dict[str, Any]:
    """The body as the output has it."""
    kind, _, rest = response.headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    if not content:
        return {"body": None}
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return {"body": msgspec.json.decode(content)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise Fail(
                f"{response.call.shown} answered with {kind} that cannot be read: {e}", retryable=False
            ) from None
    if not kind or kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith("+xml"):
        charset = rest.partition("charset=")[2].strip(" \"'").partition(";")[0] or "utf-8"
        try:
            return {"body": content.decode(charset, errors="replace")}
        except LookupError:
            return {"body": content.decode(errors="replace")}
    return {"body": base64.b64encode(content).decode(), "encoding": "base64"}
