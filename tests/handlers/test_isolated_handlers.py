"""Bodies of suspects, in processes of their own, get secrets and permissions from their engine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

import holdfast as hf
from holdfast.engine.run.actor import RunActor
from tests.handlers import isolated_calls
from tests.handlers.serving import LOCAL, Request, respond, serving

VALUE = "s3cr3t-v4lue"


@pytest.fixture(autouse=True)
def _all_are_suspects() -> Iterator[None]:
    with mock.patch.object(RunActor, "is_suspect", property(lambda _: True)):
        yield


async def test_a_suspects_request_has_its_secret_and_goes_where_the_engine_allows(tmp_path: Path) -> None:
    async with serving() as server:

        async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
            await respond(200, request.headers["x-key"].encode())(request, writer)

        server.answers["/"] = echo
        async with hf.open(f"sqlite:///{tmp_path / 'x.db'}", secrets={"TOKEN": VALUE}, **LOCAL) as engine:
            run = await engine.start(isolated_calls.isolated_http, url=server.url("/"))
            asked, output = await asyncio.wait_for(run.result(), 120)
        assert server.requests[0].headers["x-key"] == VALUE
    assert asked == len(VALUE)
    assert output["body"] == "***"


async def test_a_suspects_errors_and_log_lines_have_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with hf.open(f"sqlite:///{tmp_path / 'x.db'}", secrets={"TOKEN": VALUE}) as engine:
        run = await engine.start(isolated_calls.isolated_failure)
        with pytest.raises(hf.RunFailed, match=r"cannot use \*\*\*"):
            await asyncio.wait_for(run.result(), 120)
    assert "*** in " in caplog.text
    assert f"in {os.getpid()}" not in caplog.text
    assert VALUE not in caplog.text
    assert VALUE.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("x.db*") if file.is_file())
