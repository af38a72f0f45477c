"""Secrets are never stored, shown or logged, whatever a body does with them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.worker.secret_values import Hidden

VALUE = 'k3y-"Zq9/\\täöpassw0rd'
"""Its quotes, slashes and letters look different in JSON, in a URL and in repr()."""


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'secrets.db'}"


def stored(tmp_path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(tmp_path.glob("secrets.db*")) if file.is_file())


async def _ended(run: Any) -> Any:
    await asyncio.wait_for(run.until_quiet(), 60)
    return await run.result()


def _return_it(token: str) -> Any:
    return {"deep": [f"Bearer {token}"]}


def _raise_it(token: str) -> Any:
    raise ValueError(f"cannot use {token}", {"args": token})


def _raise_a_part_of_it(token: str) -> Any:
    raise ValueError(f"cannot use {token[:12]}...")


def _raise_from_it(token: str) -> Any:
    try:
        _raise_it(token)
    except ValueError as e:
        raise hf.Fail("declined", details={"header": token, "list": [token]}) from e


def _pend_with_it(token: str) -> Any:
    hf.pend("review", error=RuntimeError(token))


@pytest.mark.parametrize("use", [_return_it, _raise_it, _raise_a_part_of_it, _raise_from_it, _pend_with_it])
@pytest.mark.parametrize("kind", ["sync", "async", "step"])
async def test_a_body_cannot_store_its_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, use: Callable[[str], Any], kind: str
) -> None:
    if kind == "sync":

        @hf.node
        def body(token: str) -> Any:
            return use(token)

    elif kind == "async":

        @hf.node
        async def body(ctx: hf.Context, token: str) -> Any:
            try:
                return use(token)
            except ValueError:
                ctx.log.exception("%s went wrong", token)
                raise

    else:

        @hf.node
        async def body(ctx: hf.Context, token: str) -> Any:
            return await ctx.step(use, hf.secret("TOKEN"))

    @hf.workflow(name="stores")
    def calls() -> Any:
        return body(hf.secret("TOKEN"))

    caplog.set_level(logging.DEBUG)
    async with hf.open(url(tmp_path), secrets={"TOKEN": VALUE}) as engine:
        run = await engine.start(calls)
        with pytest.raises((hf.RunFailed, hf.RunSuspended)) as ended:
            await _ended(run)
        shown = repr(ended.value) + repr(vars(ended.value))
        assert "***" in shown or "contains the value of the secret TOKEN" in shown
    everything = stored(tmp_path).decode(errors="replace") + shown + caplog.text
    for form in _forms(VALUE):
        assert form not in everything, form


def _forms(value: str) -> list[str]:
    hidden = Hidden()
    hidden.add("TOKEN", value)
    return [*hidden._names, value[:12]]


def test_variables_checkpoints_and_questions_with_a_secret_are_refused(tmp_path: Path) -> None:
    @hf.node
    async def body(ctx: hf.Context, token: str, way: str) -> Any:
        if way == "variable":
            ctx.vars["v"] = token
        elif way == "checkpoint":
            await ctx.checkpoint({"t": token})
        elif way == "ask":
            await ctx.ask(f"Is {token} right?")
        elif way == "signal":
            await ctx.signal("r-other", "name", token)
        elif way == "step":
            await ctx.step(_return_it, token)

    @hf.workflow(variables={"v": str})
    def calls(way: str) -> Any:
        return body(hf.secret("TOKEN"), way)

    for way in ("variable", "checkpoint", "ask", "step"):
        os.environ["HOLDFAST_SECRET_TOKEN"] = VALUE
        try:
            with pytest.raises(hf.RunFailed, match="contains the value of the secret TOKEN"):
                hf.run(calls, way=way, db=url(tmp_path))
        finally:
            del os.environ["HOLDFAST_SECRET_TOKEN"]
    assert b"passw0rd" not in stored(tmp_path)


CODE = """
import holdfast as hf

@hf.node(process=True)
def in_a_process(token: str) -> None:
    raise ValueError(f"cannot use {token}", token)

@hf.node(retry=hf.Retry(attempts=2, backoff=0))
async def charge(ctx: hf.Context, token: str) -> None:
    ctx.log.warning("using %s", token)
    raise hf.Fail(f"declined: {token}", details={"token": token})

@hf.node
def undo(output: int, token: str) -> None:
    raise RuntimeError(token)

@hf.node(compensate=undo)
def book(token: str) -> int:
    assert token.startswith("k3y")
    return len(token)

@hf.workflow(on_failure="compensate")
def everything_fails():
    n = book(hf.secret("TOKEN"))
    return charge.after(n)(hf.secret("TOKEN"))

@hf.workflow
def dies():
    return in_a_process(hf.secret("TOKEN"))
"""


def test_no_verb_file_or_log_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CODE)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "TOKEN").write_text(VALUE + "\n")
    environment = os.environ | {
        "HOLDFAST_DATABASE_URL": url(tmp_path),
        "HOLDFAST_STATE_DIR": str(tmp_path / "state"),
        "HOLDFAST_DEBUG": "1",
    }

    def holdfast(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *args],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    shown = ""
    for name in ("everything_fails", "dies"):
        shown += holdfast("run", f"shop.py:{name}", "--run-id", name, "--secrets-dir", "secrets")
        shown += holdfast("retry", name, "--secrets-dir", "secrets")
        for verb in ("show", "why", "events", "graph", "paths", "branches"):
            shown += holdfast(verb, name) + holdfast(verb, name, "--json")
    shown += holdfast("list") + holdfast("list", "--json") + holdfast("doctor") + holdfast("graph", "shop.py:dies")
    assert "declined: ***" in shown
    assert "cannot use ***" in shown
    shown += stored(tmp_path).decode(errors="replace")
    for form in _forms(VALUE):
        assert form not in shown, form
