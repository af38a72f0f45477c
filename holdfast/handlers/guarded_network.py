"""Guarded network: one HTTP exchange of a built-in handler, to an address that it may reach.

Owns: the check of addresses, redirects, the bounds of time and size, and which failures another attempt may avoid.
Rules: a name is resolved once, its addresses are checked, and the connection is made to a checked address: what the
name resolves to afterwards does not matter. TLS and the header Host have the name. Addresses that are not public
(private, loopback, link-local with the metadata services, multicast, unspecified, and IPv6 addresses that stand for
such IPv4 ones) are refused unless the operator allows the host or the network. Proxies of the environment are not used:
they would connect in our place. Each redirect is a new request with the same checks.
Never: retries (the engine does, by the node's policy), keeps connections, logs.

Only the bodies of `http` and `llm` import this module: it needs the extra `[http]`.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpcore2
import httpx2

from holdfast.model.errors import Fail
from holdfast.worker.permissions import Permissions

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

RETRYABLE_STATUS = frozenset({408, 425, 429, *range(500, 600)})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "idempotency-key", "te", "transfer-encoding", "upgrade"}
)
_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_AZURE_METADATA = ipaddress.IPv4Address("168.63.129.16")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request, and the bounds of its response."""

    method: str
    url: httpx2.URL
    headers: httpx2.Headers
    content: bytes
    permissions: Permissions
    secrets: frozenset[str] = field(default_factory=frozenset)
    """The names of the secrets that the request carries."""
    max_bytes: int
    redirects: int = 0

    @property
    def shown(self) -> str:
        """The request as errors name it: a query may have what is not for logs."""
        return f"{self.method} {self.url.copy_with(query=None, fragment=None)}"


@dataclass(frozen=True)
class Response:
    """The beginning of a response; `chunks` reads the rest."""

    call: Call
    status: int
    headers: httpx2.Headers
    chunks: AsyncIterator[bytes]

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks])

    def retry_after(self) -> float | None:
        """What the server asks to wait, in seconds."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text[:9])
        try:
            return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
        except (TypeError, ValueError):
            return None


def parsed_url(text: str, query: Iterable[tuple[str, str]] = ()) -> httpx2.URL:
    """A URL that may be requested. Raises Fail."""
    try:
        url = httpx2.URL(text)
        url = url.copy_merge_params(list(query)) if query else url
    except (httpx2.InvalidURL, TypeError, ValueError) as e:
        raise Fail(f"the URL cannot be used: {e}", retryable=False) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise Fail(f"the URL must begin with http:// or https:// and name a host, not {url.scheme!r}", retryable=False)
    if url.userinfo:
        raise Fail("the URL has a user name or password in it; use `auth` and a secret", retryable=False)
    return url


def checked_headers(given: Iterable[tuple[str, str]]) -> httpx2.Headers:
    """Headers that a caller may set. Raises Fail."""
    headers = httpx2.Headers(list(given))
    for name in headers:
        if name.lower() in _OWN_HEADERS:
            raise Fail(f"the header {name} is set by the handler and cannot be given", retryable=False)
    return headers


@asynccontextmanager
async def exchange(call: Call) -> AsyncIterator[Response]:
    """Send a request, follow its redirects as far as it allows, and give the response. Raises Fail; the caller bounds
    the time (`limited`)."""
    async with _Pool(call) as pool:
        response = await pool.send()
        for _ in range(call.redirects):
            target = _redirected(response)
            if target is None:
                break
            response = await pool.send(target)
        yield response


@asynccontextmanager
async def limited(seconds: float, what: str) -> AsyncIterator[None]:
    """Bound the time of an exchange. Raises Fail when it is over, and for failures of the connection."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Fail(f"{what} took longer than {seconds:g} s", retryable=True) from None
    except httpcore2.LocalProtocolError as e:
        raise Fail(f"{what} cannot be sent: {e}", retryable=False) from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as e:
        raise Fail(f"{what} failed: {type(e).__name__}: {e}", retryable=True) from None


class _Pool:
    """The connections of one call and its redirects; none is used twice."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._open: list[httpcore2.AsyncConnectionPool] = []

    async def __aenter__(self) -> _Pool:
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self._open:
            await pool.aclose()

    async def send(self, call: Call | None = None) -> Response:
        call = call or self._call
        refused = call.permissions.refused_secret(call.secrets, call.url.host)
        if refused is not None:
            raise Fail(
                f"{call.shown}: the secret {refused} may not be sent to {call.url.host}: the operator's rules "
                "(HOLDFAST_SECRETS_RULES) name the hosts that it may be sent to",
                retryable=False,
            )
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=_tls(), max_connections=1, network_backend=_CheckedAddresses(call.permissions)
        )
        self._open.append(pool)
        request = httpx2.Request(call.method, call.url, headers=call.headers, content=call.content)
        raw = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=call.url.raw_scheme, host=call.url.raw_host, port=call.url.port, target=call.url.raw_path
            ),
            headers=request.headers.raw,
            content=call.content,
        )
        found = await pool.handle_async_request(raw)
        headers = httpx2.Headers(found.headers)
        assert isinstance(found.stream, AsyncIterable)
        chunks = _bounded(_decoded(found.stream, headers, call), call)
        return Response(call, found.status, headers, chunks)


def _redirected(response: Response) -> Call | None:
    """The request that a response redirects to; None: it is no redirect. Raises Fail for one that is not followed."""
    call, location = response.call, response.headers.get("location")
    if response.status not in _REDIRECTS or location is None:
        return None
    target = parsed_url(str(call.url.join(location)))
    if call.url.scheme == "https" and target.scheme == "http":
        raise Fail(f"{call.shown} redirects from https to http, which is not followed", retryable=False)
    headers = httpx2.Headers(call.headers)
    if (target.scheme, target.host, target.port) != (call.url.scheme, call.url.host, call.url.port):
        if call.secrets:
            raise Fail(
                f"{call.shown} redirects to {target.host}, and a request with a secret is not sent to another place",
                retryable=False,
            )
        headers = httpx2.Headers([(k, v) for k, v in headers.multi_items() if k.lower() not in _CREDENTIALS])
    method, content = call.method, call.content
    if response.status == 303 or (response.status in (301, 302) and method == "POST"):
        method, content = "HEAD" if method == "HEAD" else "GET", b""
        headers.pop("content-type", None)
    return Call(
        method=method,
        url=target,
        headers=headers,
        content=content,
        permissions=call.permissions,
        secrets=call.secrets,
        max_bytes=call.max_bytes,
    )


# --- addresses ------------------------------------------------------------------------------------------------------


class _CheckedAddresses(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were resolved and checked here."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception | None = None
        for address in await _allowed_addresses(host, port, self._permissions):
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as e:
                failure = e
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise Fail("a request does not go to a socket in the file system", retryable=False)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _allowed_addresses(host: str, port: int, permissions: Permissions) -> list[Address]:
    """The addresses of a host that may be reached. Raises Fail if it has none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as e:
        raise httpcore2.ConnectError(f"{host} cannot be resolved: {e}") from None
    except UnicodeError:
        raise Fail(f"{host!r} is not the name of a host", retryable=False) from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    networks = permissions.networks()
    allows_all = permissions.allows_host(host, port)
    allowed = [a for a in addresses if allows_all or is_public(a) or any(_meant(a) in n or a in n for n in networks)]
    if not allowed:
        shown = ", ".join(map(str, addresses))
        raise Fail(
            f"{host} resolves to {shown}, which is not a public address; an operator who wants workflows to reach it "
            "names the host or the network in HOLDFAST_HTTP_ALLOW",
            retryable=False,
        )
    return list(dict.fromkeys(allowed))


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or int(address) >> 32 == 0:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, and so does the one that it stands for."""
    meant = _meant(address)
    if meant is not address and (meant.is_multicast or not meant.is_global or meant == _AZURE_METADATA):
        return False
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return (mapped or address.is_global) and not address.is_multicast and address != _AZURE_METADATA


# --- responses ------------------------------------------------------------------------------------------------------


async def _bounded(chunks: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > call.max_bytes:
            raise Fail(f"{call.shown} answered with more than {call.max_bytes:,} bytes", retryable=False)
        yield chunk


async def _decoded(chunks: AsyncIterable[bytes], headers: httpx2.Headers, call: Call) -> AsyncIterator[bytes]:
    """Undo a compression, in portions: some kilobytes may stand for gigabytes."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("", "identity"):
        async for chunk in chunks:
            yield chunk
        return
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise Fail(f"{call.shown} answered with the unknown content-encoding {coding!r}", retryable=False)
    reader = zlib.decompressobj(wbits=47 if coding != "deflate" else zlib.MAX_WBITS)
    try:
        async for chunk in chunks:
            while chunk:
                yield reader.decompress(chunk, call.max_bytes + 1)
                chunk = reader.unconsumed_tail
    except zlib.error as e:
        raise Fail(f"{call.shown} answered with a damaged {coding} body: {e}", retryable=True) from None
    if not reader.eof:
        raise Fail(f"{call.shown} answered with a {coding} body that ends too early", retryable=True)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates are always checked; making this takes a while."""
    return httpx2.create_ssl_context()
