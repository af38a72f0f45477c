"""Ids on the command line: whole for a verb that changes something, a prefix is enough for one that reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli import main as cli
from holdfast.cli.options import WaitId
from holdfast.store.sqlite.sqlite_store import SqliteStore

Cli = Callable[..., tuple[int, str, str]]
READS = {"show", "vars", "events", "why", "graph", "branches", "diff", "doctor"}
CHANGES = {
    "cancel": ("RUN",),
    "resume": ("RUN", "--no-run"),
    "pause": ("RUN",),
    "signal": ("RUN", "paid"),
    "fork": ("RUN", "--no-run"),
    "jump": ("RUN", "asked_order", "--no-run"),
    "retry": ("RUN", "--no-run"),
    "recover": ("RUN", "--no-run"),
    "reopen": ("RUN", "appeal", "--no-run"),
    "migrate": ("RUN", "--to", "1"),
    "respond": ("WAIT", "--input", "1"),
    "reassign": ("WAIT", "--to", "bob"),
    "move": ("WAIT", "second"),
}
"""Verbs that change something, with arguments that would be enough for them."""


@hf.workflow
async def asked_order(ctx: hf.Context) -> str:
    return str(await ctx.ask("Ship?", schema=int))


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    with pytest.raises(hf.RunSuspended):
        hf.run(asked_order, run_id="order-42", db=f"sqlite:///{path}")
    return path


@pytest.fixture
def verb(db: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*args: str) -> tuple[int, str, str]:
        code = cli.main([*args, "--db", f"sqlite:///{db}"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def last_seq(db: Path) -> int:
    store = SqliteStore(f"sqlite:///{db}")
    store.open()
    try:
        row = store.run("order-42")
        assert row is not None
        return row.last_seq
    finally:
        store.close()


def wait_id(db: Path) -> str:
    async def ask() -> str:
        async with hf.open(f"sqlite:///{db}", drive=False) as engine:
            return (await engine.asked())[0].wait_id

    return asyncio.run(ask())


def test_every_verb_that_takes_an_id_is_known_here() -> None:
    of_waits = WaitId.__metadata__[0].metavar
    takes_id = {
        name
        for name in cli.COMMANDS
        for parameter in getattr(cli.load(name), "params", ())
        if parameter.param_type_name == "argument"
        and ("RUN" in (parameter.metavar or "") or parameter.metavar == of_waits)
    }
    assert takes_id == READS | CHANGES.keys() | {"export"}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_verb_that_changes_something_refuses_a_prefix_and_names_the_id_that_exists(
    name: str, verb: Cli, db: Path
) -> None:
    before, whole = last_seq(db), wait_id(db)
    typed = {"RUN": "order-4", "WAIT": whole[:-1]}
    code, _, err = verb(name, *(typed.get(part, part) for part in CHANGES[name]))
    assert code == 2
    meant = whole if "WAIT" in CHANGES[name] else "order-42"
    assert f"Did you mean {meant}? Only verbs that read accept the beginning of an id" in err
    assert last_seq(db) == before


def test_waits_and_runs_that_are_options_are_whole_as_well(verb: Cli, db: Path) -> None:
    before, whole = last_seq(db), wait_id(db)
    assert verb("respond", whole, "--input", "1", "--run", "order-4")[0] == 2
    assert verb("resume", "order-42", "--wait", whole[:-1], "--no-run")[0] == 2
    assert verb("doctor", "order-4", "--repair")[0] == 2
    assert last_seq(db) == before


@pytest.mark.parametrize("name", sorted(READS))
def test_a_verb_that_reads_takes_a_prefix_and_prints_the_id_beside_its_output(name: str, verb: Cli) -> None:
    more = ("1", "1") if name == "diff" else ()
    code, out, err = verb(name, "order", *more, "--json")
    assert code == 0, err
    assert "order is run order-42" in err
    assert "is run order-42" not in out
    for line in out.splitlines() if name == "events" else [out]:
        json.loads(line)
    assert "is run" not in verb(name, "order-42", *more)[2]


def test_export_takes_a_prefix_and_prints_the_id_beside_the_document(verb: Cli) -> None:
    assert "order is run order-42" in verb("export", "order")[2]


def test_a_typed_id_that_looks_like_a_recent_one_is_suggested(verb: Cli) -> None:
    code, _, err = verb("cancel", "order-24")
    assert code == 2
    assert "Did you mean order-42?" in err
    assert "Did you mean" not in verb("cancel", "invoice")[2]
