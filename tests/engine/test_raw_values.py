"""The bytes of a msgspec.Raw are read before they are stored, wherever a value is handed in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import holdfast as hf
from holdfast.engine.engine import Engine
from holdfast.model.errors import NotSerialisable
from holdfast.model.values import encode
from tests.engine.kit import check_file, until_async, url

PAGE = b"<html>502 Bad Gateway</html>"
FIELDS = b'1,"status":"completed"'
GOOD = b' {"a": 1, "b": [ 2 ]} '


@dataclass
class Reply:
    body: Any


def nested(data: bytes) -> list[Any]:
    raw = Raw(data)
    return [raw, {"body": raw}, [raw], (raw,), Reply(raw), {"deep": [Reply({"r": raw})]}]


@pytest.mark.parametrize("data", [PAGE, FIELDS, b"", b"NaN", b'"\xff"', b"1 2"])
def test_bytes_that_are_no_json_are_refused_wherever_they_are(data: bytes) -> None:
    for value in nested(data):
        with pytest.raises(NotSerialisable, match=r"the result.*: the bytes of a msgspec\.Raw are not JSON"):
            encode(value, what="the result")


def test_bytes_that_are_json_are_written_again() -> None:
    plain = b'{"a":1,"b":[2]}'
    assert [encode(value) for value in nested(GOOD)][:3] == [plain, b'{"body":' + plain + b"}", b"[" + plain + b"]"]
    assert encode(Reply(Raw(b'{"a":1,"a":2}'))) == b'{"body":{"a":2}}'


@hf.node
async def raw_node(data: str) -> Any:
    return Reply(Raw(data.encode()))


@hf.node
def raw_node_in_thread(data: str) -> Any:
    return {"body": Raw(data.encode())}


@hf.workflow
def raw_graph(data: str) -> Any:
    return raw_node(data)


@hf.workflow
def raw_thread_graph(data: str) -> Any:
    return raw_node_in_thread(data)


@hf.workflow
async def raw_step(ctx: hf.Context, data: str) -> Any:
    return await ctx.step(raw_node, data)


@hf.workflow
async def raw_result(ctx: hf.Context, data: str) -> Any:
    return Raw(data.encode())


@hf.workflow
async def raw_checkpoint(ctx: hf.Context, data: str) -> Any:
    await ctx.checkpoint({"x": Raw(data.encode())})
    return 1


@hf.workflow
async def raw_about(ctx: hf.Context, data: str) -> Any:
    return await ctx.ask("?", about={"x": Raw(data.encode())}, deadline=0.01, default=1)


@hf.workflow(variables={"seen": Any})
async def raw_variable(ctx: hf.Context, data: str) -> Any:
    ctx.vars["seen"] = Reply(Raw(data.encode()))
    return 1


@hf.workflow
async def raw_echo(ctx: hf.Context, value: Any) -> Any:
    return value


@hf.workflow
async def raw_child(ctx: hf.Context, data: str) -> Any:
    return await ctx.child(raw_echo, value=[Raw(data.encode())])


@hf.workflow
async def raw_asks(ctx: hf.Context) -> Any:
    return [await ctx.ask("?"), await ctx.receive("s")]


@pytest.mark.parametrize(
    "workflow",
    [raw_graph, raw_thread_graph, raw_step, raw_result, raw_checkpoint, raw_about, raw_variable, raw_child],
    ids=lambda workflow: workflow.name,
)
async def test_a_body_that_hands_in_bytes_fails_its_run_and_the_journal_stays_readable(
    tmp_path: Path, workflow: Any
) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        for data in (PAGE, FIELDS):
            run = await engine.start(workflow, data=data.decode())
            with pytest.raises(hf.RunFailed, match=r"the bytes of a msgspec\.Raw are not JSON"):
                await run.result()
        good = await engine.start(workflow, data=GOOD.decode())
        await good.result()
    check_file(db)


async def test_a_caller_that_hands_in_bytes_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        run = await engine.start(raw_asks)
        (wait,) = await until_async(run.waits)
        before = await run.events()
        calls: list[Callable[[Engine, Raw], Awaitable[Any]]] = [
            lambda engine, raw: engine.start(raw_echo, value={"x": raw}),
            lambda engine, raw: run.respond(wait.wait_id, [raw]),
            lambda engine, raw: run.signal("s", raw),
            lambda engine, raw: run.fork("start", edits={"answers": {wait.wait_id: raw}}, as_run="forked"),
        ]
        for call in calls:
            for data in (PAGE, FIELDS):
                with pytest.raises((NotSerialisable, hf.InvalidInput), match=r"msgspec\.Raw are not JSON"):
                    await call(engine, Raw(data))
        assert await run.events() == before
        assert len(await engine.list()) == 1
        await run.respond(wait.wait_id, [Raw(GOOD)])
        await run.signal("s", Raw(b" [1 ] "))
        assert await run.result() == [[{"a": 1, "b": [2]}], [1]]
        assert await (await engine.start(raw_echo, value={"x": Raw(b" 1 ")})).result() == {"x": 1}
    check_file(db)


@hf.workflow
async def raw_details(ctx: hf.Context, data: str) -> Any:
    raise hf.Fail("no", details={"x": Raw(data.encode())})


async def test_details_of_a_failure_that_are_no_json_are_left_out(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        for data in (PAGE, FIELDS):
            run = await engine.start(raw_details, data=data.decode())
            with pytest.raises(hf.RunFailed, match=r"no \(its details are not kept: they are no JSON"):
                await run.result()
    check_file(db)
