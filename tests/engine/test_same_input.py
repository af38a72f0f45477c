"""A repeated start, child or signal is the same one however its value is spelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.cli import main as cli
from tests.engine.kit import check_file, types, until_async, url


@dataclass
class Parcel:
    id: str
    weight: float
    tags: set[str] = field(default_factory=lambda: {"plain"})
    note: str = "none"


@hf.workflow
async def spelled(ctx: hf.Context, parcel: Parcel, rate: float = 1.5, extra: Any = None) -> str:
    return parcel.id


PARCEL = Parcel("p", 2.0, {"a", "b", "c"})
SPELLINGS: list[dict[str, Any]] = [
    {"parcel": PARCEL, "extra": {"k": {"x", "y", "z"}, "l": 1}},
    {"parcel": PARCEL, "extra": {"l": 1.0, "k": {"z", "y", "x"}}, "rate": 1.5},
    {"extra": {"l": 1, "k": ["x", "y", "z"]}, "parcel": {"tags": ["c", "b", "a"], "weight": 2, "id": "p"}},
    {
        "parcel": {"id": "p", "weight": 2.0, "note": "none", "tags": ["a", "c", "b", "b"]},
        "extra": {"k": ["x", "y", "z"], "l": 1},
    },
]


async def test_a_start_is_the_same_however_its_input_is_spelled(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    async with hf.open(url(db)) as engine:
        for inputs in SPELLINGS:
            run = await engine.start(spelled, run_id="one", **inputs)
            assert await run.result() == "p"
        assert types(await run.events()).count("RunCreated") == 1
        for other in (
            {"parcel": Parcel("p", 2.5, {"a", "b", "c"}), "extra": SPELLINGS[0]["extra"]},
            {**SPELLINGS[0], "rate": 1},
            {"parcel": PARCEL, "extra": {"k": ["z", "y", "x"], "l": 1}},
            {"parcel": PARCEL},
        ):
            with pytest.raises(hf.RunExists, match="another input"):
                await engine.start(spelled, run_id="one", **other)
    check_file(db)


PROGRAM = """
import os, signal, sys
import holdfast as hf

@hf.node
async def count(items: set[str]) -> int:
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(items)

@hf.workflow
def basket(items: set[str]) -> int:
    return count(items)

print(hf.run(basket, items={"apple", "pear", "fig", "kiwi"}, run_id="order-1", db="sqlite:///runs.db"))
"""


def test_a_program_that_died_goes_on_with_its_run_under_another_hash_seed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*args: str, seed: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "program.py", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("die", seed=1).returncode == -signal.SIGKILL
    for seed in (2, 3):
        again = run(seed=seed)
        assert again.stdout.strip() == "4", again.stderr


FLOW = """
import holdfast as hf

@hf.workflow
async def spelled_cli(ctx: hf.Context, tags: set[str], rate: float = 2):
    return rate
"""


def test_the_command_line_goes_on_with_a_run_that_a_program_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flows.py").write_text(FLOW)
    db = f"sqlite:///{tmp_path / 'runs.db'}"
    target = f"{tmp_path / 'flows.py'}:spelled_cli"
    for given in ('{"tags":["a","b"]}', '{"rate": 2.0, "tags": ["b", "a"]}'):
        assert cli.main(["run", target, "--run-id", "r", "--input", given, "--db", db, "--quiet"]) == 0
    assert cli.main(["run", target, "--run-id", "r", "--input", '{"tags":["b"]}', "--db", db, "--quiet"]) == 2
    assert "another input" in capsys.readouterr().err


def first_version() -> Any:
    @hf.workflow(name="versioned_input")
    async def first(ctx: hf.Context, a: float, b: int = 1) -> float:
        return a

    return first


def second_version() -> Any:
    @hf.workflow(name="versioned_input")
    async def second(ctx: hf.Context, a: float, b: int = 2, c: str = "new") -> float:
        return a

    return second


async def test_a_repeated_start_is_compared_under_the_version_that_the_run_follows(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        await (await engine.start(first_version(), run_id="old", a=1)).result()
        changed = second_version()
        await (await engine.start(changed, run_id="young", a=1)).result()
        assert await (await engine.start(changed, run_id="old", a=1.0)).result() == 1
        assert await (await engine.start(changed, run_id="old", a=1, b=1)).result() == 1
        for other in ({"a": 1, "b": 2}, {"a": 1, "c": "new"}, {"a": 2}):
            with pytest.raises(hf.RunExists, match="another input"):
                await engine.start(changed, run_id="old", **other)


@hf.workflow
async def tagged_child(ctx: hf.Context, tags: set[str], rate: float = 1) -> str:
    return "child"


@hf.workflow
async def parent_of_tagged(ctx: hf.Context, spelling: dict[str, Any]) -> str:
    return str(await ctx.child(tagged_child, run_id="the-child", **spelling))


async def test_a_child_with_an_id_is_the_same_however_its_input_is_spelled(tmp_path: Path) -> None:
    async with hf.open(url(tmp_path / "runs.db")) as engine:
        for spelling in ({"tags": ["a", "b"]}, {"rate": 1.0, "tags": ["b", "a"]}):
            assert await (await engine.start(parent_of_tagged, spelling=spelling)).result() == "child"
        with pytest.raises(hf.RunFailed, match="another input"):
            await (await engine.start(parent_of_tagged, spelling={"tags": []})).result()


@dataclass
class Paid:
    amount: float
    tags: set[str] = field(default_factory=set)
    by: str = "card"


@hf.workflow
async def receives_paid(ctx: hf.Context) -> Any:
    paid = await ctx.receive("paid", schema=Paid)
    await ctx.receive("shipped")
    return paid.amount


@hf.workflow
async def sends_paid(ctx: hf.Context, to: str, payload: Any) -> None:
    await ctx.signal(to, "paid", payload, id="evt-1")


@pytest.mark.parametrize("early", [True, False])
async def test_a_webhook_that_is_delivered_again_is_the_same_signal(tmp_path: Path, early: bool) -> None:
    db = tmp_path / "runs.db"
    sent = [
        {"amount": 2.0, "tags": ["a", "b"]},
        {"tags": ["a", "b"], "amount": 2},
        {"tags": ["b", "a"], "amount": 2, "by": "card"},
    ]
    async with hf.open(url(db)) as engine:
        run = await engine.start(receives_paid, run_id="r")
        if not early:
            await until_async(run.waits)
        for payload in sent:
            await run.signal("paid", payload, id="evt-1")
            await until_async(lambda: received(run))
        await (await engine.start(sends_paid, to="r", payload=sent[1])).result()
        with pytest.raises(hf.Refused, match="something else under this id"):
            await run.signal("paid", {"amount": 3}, id="evt-1")
        with pytest.raises(hf.Refused, match="something else under this id"):
            await run.signal("unpaid", sent[0], id="evt-1")
        await run.signal("shipped")
        assert await run.result() == 2
        assert types(await run.events()).count("MessageConsumed") == 2
    check_file(db)


async def received(run: hf.Run[Any]) -> bool:
    return any(event.type == "MessageConsumed" for event in await run.events())


async def test_what_a_body_gets_is_what_was_given(tmp_path: Path) -> None:
    """The form is for comparing: the keys of an input keep their order."""

    @hf.workflow(name="ordered_keys")
    async def ordered(ctx: hf.Context, columns: dict[str, int]) -> list[str]:
        return list(columns)

    async with hf.open(url(tmp_path / "runs.db")) as engine:
        run = await engine.start(ordered, columns={"z": 1, "a": 2})
        assert await run.result() == ["z", "a"]
        shown = await run.show()
        assert msgspec.json.encode(shown["input"]) == b'{"columns":{"z":1,"a":2}}'
        assert json.loads(json.dumps(shown["input"])) == {"columns": {"z": 1, "a": 2}}
