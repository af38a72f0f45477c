"""`http`: one bounded request with the key of its instance; failures say whether another attempt may help."""

from __future__ import annotations

import asyncio
import gzip
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.handlers.serving import LOCAL, Request, outcome, respond, serving


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'http.db'}"


async def test_a_request_has_what_its_config_says_and_the_output_what_was_answered(db: str) -> None:
    async with serving() as server:
        server.answers["/orders"] = respond(201, {"id": 7}, etag='"v1"', set_cookie="a=b", x_trace="t")
        config = {
            "url": server.url("/orders?a=1"),
            "method": "POST",
            "headers": {"X-Shop": "s"},
            "query": {"b": [2, "x y"], "c": None, "d": True},
            "body": {"amount": 3},
            "response_headers": ["X-Trace"],
        }
        output = await outcome(db, "http", config, opened=LOCAL)
        (request,) = server.requests
    assert output["status"] == 201
    assert output["body"] == {"id": 7}
    assert output["headers"] == {"content-type": "application/json", "etag": '"v1"', "x-trace": "t"}
    assert (request.method, request.target) == ("POST", "/orders?a=1&b=2&b=x+y&d=true")
    assert request.body == b'{"amount":3}'
    assert request.headers["x-shop"] == "s"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"]


async def test_text_json_and_other_bodies_come_as_what_they_are(db: str) -> None:
    async with serving() as server:
        server.answers["/text"] = respond(200, "grün".encode("latin-1"), content_type="text/plain; charset=latin-1")
        server.answers["/bytes"] = respond(200, b"\x00\xff", content_type="image/png")
        server.answers["/nothing"] = respond(204)
        server.answers["/zip"] = respond(200, gzip.compress(b"packed"), content_encoding="gzip")
        server.answers["/wrong"] = respond(200, b"{", content_type="application/json")
        got = {path: await outcome(db, "http", {"url": server.url(path)}, opened=LOCAL) for path in server.answers}
    assert got["/text"]["body"] == "grün"
    assert (got["/bytes"]["body"], got["/bytes"]["encoding"]) == ("AP8=", "base64")
    assert got["/nothing"]["body"] is None
    assert got["/zip"]["body"] == "packed"
    assert got["/wrong"].retryable is False


async def test_two_instances_never_share_a_key_and_attempts_of_one_always_do(db: str) -> None:
    async with serving() as server:
        server.answers["/busy"] = respond(503)
        config = {"url": server.url("/busy")}
        for _ in range(2):
            failed = await outcome(db, "http", config, opened=LOCAL, retry=hf.Retry(attempts=3, backoff=0))
            assert failed.attempt == 3
        keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 6
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert keys[0] != keys[3]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 301, 200 + 4])
async def test_other_statuses_fail_without_another_attempt(db: str, status: int) -> None:
    async with serving() as server:
        server.answers["/x"] = respond(status, b"no such order" + b"." * 10_000)
        config = {"url": server.url("/x?token=abc"), "expect": [200]}
        failed = await outcome(db, "http", config, opened=LOCAL, retry=hf.Retry(attempts=3, backoff=0))
        assert len(server.requests) == 1
    assert f"answered {status}" in failed.message
    assert failed.retryable is False
    if status != 204:
        assert "no such order" in failed.message
    assert len(failed.message) < 3000
    assert "token=abc" not in failed.message


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
async def test_weather_is_tried_again(db: str, status: int) -> None:
    async with serving() as server:
        good = respond(200, {"ok": True})

        async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
            await (respond(status) if len(server.requests) < 3 else good)(request, writer)

        server.answers["/x"] = answer
        config = {"url": server.url("/x")}
        output = await outcome(db, "http", config, opened=LOCAL, retry=hf.Retry(attempts=3, backoff=0))
    assert output["body"] == {"ok": True}


@pytest.mark.parametrize(("asked", "max_delay", "waits"), [("1", 60.0, 1.0), ("3600", 0.2, 0.2), ("0", 60.0, 0.0)])
async def test_retry_after_is_honoured_up_to_the_longest_delay_of_the_policy(
    db: str, asked: str, max_delay: float, waits: float
) -> None:
    async with serving() as server:

        async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
            again = len(server.requests) > 1
            await (respond(200) if again else respond(429, retry_after=asked))(request, writer)

        server.answers["/x"] = answer

        @hf.workflow(name="one_node")
        def one() -> Any:
            from tests.handlers.serving import node

            return node("http", {"url": server.url("/x")}, retry=hf.Retry(attempts=2, backoff=0, max_delay=max_delay))

        async with hf.open(db, **LOCAL) as engine:
            run = await engine.start(one)
            await asyncio.wait_for(run.result(), 60)
            (failed,) = [e async for e in run.follow() if e.type == "NodeFailed"]
    delay = (failed.data["retry_at"] - failed.at.timestamp() * 1e6) / 1e6
    assert delay == pytest.approx(waits, abs=0.05)


async def test_expected_statuses_complete_the_node(db: str) -> None:
    async with serving() as server:
        server.answers["/x"] = respond(404, {"why": "gone"})
        for expect in ([404], ["2xx", "4xx"]):
            output = await outcome(db, "http", {"url": server.url("/x"), "expect": expect}, opened=LOCAL)
            assert (output["status"], output["body"]) == (404, {"why": "gone"})


async def test_basic_and_bearer_authentication(db: str) -> None:
    async with serving() as server:
        server.answers["/x"] = respond(200)
        for auth in ({"bearer": "t0k3n"}, {"username": "me", "password": "pass"}):
            await outcome(db, "http", {"url": server.url("/x"), "auth": auth}, opened=LOCAL)
        assert [r.headers["authorization"] for r in server.requests] == ["Bearer t0k3n", "Basic bWU6cGFzcw=="]


# --- servers that misbehave -----------------------------------------------------------------------------------------


async def test_a_slow_or_dripping_server_is_left_when_the_time_is_over(db: str) -> None:
    async with serving() as server:

        async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60)

        async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.01)

        server.answers |= {"/slow": slow, "/drip": drip}
        for path in server.answers:
            failed = await outcome(db, "http", {"url": server.url(path), "timeout": 0.3}, opened=LOCAL)
            assert "took longer than 0.3 s" in failed.message
            assert failed.retryable is True


async def test_a_response_is_read_up_to_its_bound(db: str) -> None:
    async with serving() as server:

        async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 X\r\n\r\n")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()

        server.answers["/endless"] = endless
        server.answers["/bomb"] = respond(200, gzip.compress(b"x" * 50_000_000), content_encoding="gzip")
        server.answers["/fits"] = respond(200, b"x" * 1000)
        for path in ("/endless", "/bomb"):
            failed = await outcome(db, "http", {"url": server.url(path), "max_bytes": 1000}, opened=LOCAL)
            assert "more than 1,000 bytes" in failed.message
            assert failed.retryable is False
        output = await outcome(db, "http", {"url": server.url("/fits"), "max_bytes": 1000}, opened=LOCAL)
        assert len(output["body"]) == 1000


async def test_a_connection_that_breaks_may_be_tried_again(db: str) -> None:
    async with serving() as server:

        async def short(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\nonly this")

        async def nothing(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def noise(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(b"not http at all\r\n\r\n")

        server.answers |= {"/short": short, "/nothing": nothing, "/noise": noise}
        for path in server.answers:
            failed = await outcome(db, "http", {"url": server.url(path)}, opened=LOCAL)
            assert failed.retryable is True, path
        gone = server.url("/")
    failed = await outcome(db, "http", {"url": gone}, opened=LOCAL)
    assert failed.retryable is True


async def test_redirects_are_not_followed_unless_asked_for(db: str) -> None:
    async with serving() as server:
        server.answers["/old"] = respond(302, location="/new")
        server.answers["/new"] = respond(200, {"new": True})
        server.answers["/loop"] = respond(307, location="/loop")
        failed = await outcome(db, "http", {"url": server.url("/old")}, opened=LOCAL)
        assert "answered 302 to /new" in failed.message
        config = {"url": server.url("/old"), "method": "POST", "body": {}, "redirects": 2}
        output = await outcome(db, "http", config, opened=LOCAL)
        assert output["body"] == {"new": True}
        assert server.requests[-1].method == "GET"
        before = len(server.requests)
        failed = await outcome(db, "http", {"url": server.url("/loop"), "redirects": 3}, opened=LOCAL)
        assert "answered 307" in failed.message
        assert len(server.requests) - before == 4


# --- where requests may go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "0.0.0." + "0", "[::1]", "[::ffff:127.0.0.1]", "[::]", "2130706433", "0x7f.1", "127.1",
     "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]",
     "224.0.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "168.63.129.16"],
)  # fmt: skip
async def test_addresses_that_are_not_public_are_refused(db: str, host: str) -> None:
    async with serving("127.0.0.1") as server:
        failed = await outcome(db, "http", {"url": server.url("/", host), "timeout": 5})
        assert server.requests == []
    assert failed.retryable is False, failed.message
    assert "HOLDFAST_HTTP_ALLOW" in failed.message


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_may_be_reached(address: str) -> None:
    import ipaddress

    from holdfast.handlers.guarded_network import is_public

    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("url", ["ftp://example.com/", "file:///etc/passwd", "gopher://x/", "http://", "http://u:p@h/"])
async def test_other_schemes_are_refused(db: str, url: str) -> None:
    failed = await outcome(db, "http", {"url": url}, opened=LOCAL)
    assert failed.retryable is False


async def test_a_redirect_to_an_address_that_is_not_allowed_is_refused(db: str) -> None:
    async with serving("127.0.0.1") as allowed, serving("127.0.0.2") as inner:
        inner.answers["/"] = respond(200, b"private")
        allowed.answers["/"] = respond(302, location=inner.url("/", "127.0.0.2"))
        failed = await outcome(db, "http", {"url": allowed.url("/"), "redirects": 5}, opened=LOCAL)
        assert "127.0.0.2" in failed.message
        assert failed.retryable is False
        assert inner.requests == []


async def test_the_connection_goes_to_the_very_address_that_was_checked(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name resolves to an allowed address when it is checked, and to another one ever after."""
    async with serving("127.0.0.1") as allowed, serving("127.0.0.2", allowed.port) as inner:
        allowed.answers["/"] = inner.answers["/"] = respond(200, b"ok")
        answers: list[str] = []
        resolve = socket.getaddrinfo

        def changing(host: Any, *args: Any, **kwargs: Any) -> Any:
            if host not in ("rebinding.example", b"rebinding.example"):
                return resolve(host, *args, **kwargs)
            answers.append("127.0.0.2" if answers else "127.0.0.1")
            return resolve(answers[-1], *args, **kwargs)

        monkeypatch.setattr(socket, "getaddrinfo", changing)
        output = await outcome(db, "http", {"url": allowed.url("/", "rebinding.example")}, opened=LOCAL)
        assert output["body"] == "ok"
        assert answers == ["127.0.0.1"]
        assert inner.requests == []
        assert allowed.requests[0].headers["host"] == f"rebinding.example:{allowed.port}"
        failed = await outcome(db, "http", {"url": allowed.url("/", "rebinding.example")}, opened=LOCAL)
        assert failed.retryable is False
        assert inner.requests == []


async def test_headers_that_belong_to_the_handler_cannot_be_given(db: str) -> None:
    for name in ("Host", "Idempotency-Key", "Content-Length", "Transfer-Encoding"):
        failed = await outcome(db, "http", {"url": "http://127.0.0.1:1/", "headers": {name: "x"}}, opened=LOCAL)
        assert failed.retryable is False
        assert name.lower() in failed.message.lower()


# --- secrets --------------------------------------------------------------------------------------------------------


async def test_a_secret_goes_to_its_hosts_only_and_is_hidden_when_it_is_echoed(db: str, tmp_path: Path) -> None:
    value = "s3cr3t-v4lue"
    async with serving() as server, serving("127.0.0.2") as other:

        async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
            await respond(200, {"you_sent": request.headers})(request, writer)

        async def complain(request: Request, writer: asyncio.StreamWriter) -> None:
            await respond(403, {"bad": request.headers["authorization"]})(request, writer)

        server.answers |= {"/echo": echo, "/complain": complain}
        server.answers["/away"] = respond(307, location=other.url("/", "127.0.0.2"))
        rules = {"TOKEN": hf.SecretRule(hosts=("127.0.0.1",))}
        opened = {
            "permissions": hf.Permissions(http_allow=("127.0.0.0/8",), secrets_rules=rules),
            "secrets": {"TOKEN": value},
        }
        basic = {"username": "me", "password": hf.secret("TOKEN")}
        for auth in ({"bearer": hf.secret("TOKEN")}, basic):
            output = await outcome(db, "http", {"url": server.url("/echo"), "auth": auth}, opened=opened)
            assert output["body"]["you_sent"]["authorization"].endswith("***")
        assert server.requests[0].headers["authorization"] == f"Bearer {value}"
        failed = await outcome(db, "http", {"url": server.url("/complain"), "auth": auth}, opened=opened)
        assert "***" in failed.message
        config = {"url": other.url("/", "127.0.0.2"), "headers": {"X-Key": hf.secret("TOKEN")}}
        failed = await outcome(db, "http", config, opened=opened)
        assert "may not be sent to 127.0.0.2" in failed.message
        config = {"url": server.url("/away"), "headers": {"X-Key": hf.secret("TOKEN")}, "redirects": 3}
        failed = await outcome(db, "http", config, opened=opened)
        assert "with a secret" in failed.message
        assert other.requests == []
    for file in tmp_path.glob("http.db*"):
        if file.is_file():
            assert value.encode() not in file.read_bytes()


# --- the extra ------------------------------------------------------------------------------------------------------


def test_the_client_is_imported_at_its_first_use_and_its_extra_is_named_where_it_is_missing() -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'httpx2': raise ModuleNotFoundError(name, name=name)\n"
        "import holdfast.api\n"
        "assert not {'httpx2', 'httpcore2', 'anyio'} & set(sys.modules)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from holdfast.handlers.http_requests import load_network\n"
        "try: load_network('http')\n"
        "except Exception as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'holdfast[http]'" in done.stdout
