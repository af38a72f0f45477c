"""TLS of `http`: the certificate is that of the name, though the connection goes to a checked address."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.handlers import guarded_network
from tests.handlers.serving import LOCAL, outcome, respond, serving


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """A server's certificate for api.test, which clients of this test trust; both names resolve to this machine."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=api.test",
         "-addext", "subjectAltName=DNS:api.test", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    resolve = socket.getaddrinfo

    def local(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(".test") else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    guarded_network._tls.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    yield context
    guarded_network._tls.cache_clear()


async def test_the_name_is_in_the_handshake_and_in_the_certificate(tmp_path: Path, certificate: ssl.SSLContext) -> None:
    names: list[str | None] = []
    certificate.sni_callback = lambda _, name, __: names.append(name)
    async with serving(ssl=certificate) as server:
        server.answers["/"] = respond(200, b"ok")
        db = f"sqlite:///{tmp_path / 'tls.db'}"
        output = await outcome(db, "http", {"url": f"https://api.test:{server.port}/"}, opened=LOCAL)
        assert output["body"] == "ok"
        assert names == ["api.test"]
        failed = await outcome(db, "http", {"url": f"https://other.test:{server.port}/"}, opened=LOCAL)
        assert "certificate" in failed.message.lower()
        assert len(server.requests) == 1


async def test_a_redirect_from_https_to_http_is_not_followed(tmp_path: Path, certificate: ssl.SSLContext) -> None:
    async with serving(ssl=certificate) as server, serving() as plain:
        server.answers["/"] = respond(302, location=plain.url("/", "api.test"))
        given = {"url": f"https://api.test:{server.port}/", "redirects": 3}
        failed = await outcome(f"sqlite:///{tmp_path / 'tls.db'}", "http", given, opened=LOCAL)
        assert "from https to http" in failed.message
        assert plain.requests == []
