"""Versions on the command line: deploy, aliases, starts by name, differences, and moving runs, also under kill -9."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

import holdfast as hf
from tests.cli.conftest import Project, eventually

SHOP = """
import holdfast as hf

@hf.node
async def charge(amount: int) -> int:
    return amount

@hf.workflow
def vcli(amount: int):
    paid = charge(amount)
    hf.ask("ok?", schema=bool, after=paid, named="approve")
    return paid
"""
LATER = SHOP.replace("    return paid\n", '    return charge.named("again")(paid)\n')
OTHER = SHOP.replace("paid = charge(amount)", 'paid = charge.named("other")(amount)')


def release(project: Project, text: str) -> None:
    (project.directory / "vshop.py").write_text(text)


@pytest.fixture
def shop(project: Project) -> Project:
    release(project, SHOP)
    return project


def test_a_release_is_deployed_rolled_out_and_taken_back(shop: Project) -> None:
    assert shop.cli("deploy", "vshop.py").stdout == "vcli version 1 (new)\n"
    release(shop, LATER)
    assert shop.cli("deploy", "vshop.py:vcli").stdout == "vcli version 2 (new)\n"
    assert shop.cli("deploy", "vshop.py").stdout == "vcli version 2 (unchanged)\n"
    changed = shop.cli("diff", "vcli", "1", "2").stdout
    assert "+ node again\n" in changed
    assert "+ edge charge -> again\n" in changed
    assert shop.json("diff", "vcli", "1", "2")["nodes"] == {"added": ["again"], "removed": [], "changed": []}
    shop.json("alias", "set", "vcli", "stable", "1", "--reason", "first")
    shared = shop.json("alias", "set", "vcli", "stable", "1", "--weight", "2=10", "--actor", "ann")
    assert shared["target"] == {"version": 1, "weights": {"2": 10.0}}
    shop.json("start", "vcli", "--set", "amount=3", "--run-id", "by-alias", "--rollout-key", "k")
    shop.json("start", "vcli@2", "--set", "amount=3", "--run-id", "by-number")
    assert shop.json("show", "by-number")["version"] == 2
    assert shop.json("rollback", "vcli", "--reason", "no")["target"] == {"version": 1, "weights": {}}
    assert [one["actor"] for one in shop.json("alias", "show", "vcli", "stable")][1] == "ann"
    (listed,) = shop.json("workflows")
    assert (listed["latest"], listed["unfinished"], listed["aliases"]["stable"]["version"]) == (2, 2, 1)
    refused = shop.cli("retire", "vcli", "2")
    assert (refused.returncode, "unfinished" in refused.stderr) == (1, True)
    assert [one["version"] for one in shop.json("versions", "vcli")] == [1, 2]


def test_a_wrong_start_by_name_is_wrong_usage(shop: Project) -> None:
    shop.cli("deploy", "vshop.py")
    for args, why in (
        (("start", "vcli@canary"), "has no alias canary"),
        (("start", "nothing@stable"), "no workflow nothing was deployed"),
        (("start", "vcli", "--set", "amount=much"), "input amount"),
        (("alias", "set", "vcli", "stable", "9"), "has no version 9"),
        (("alias", "set", "vcli", "stable", "1", "--weight", "2"), "VERSION=PERCENT"),
        (("migrate", "--to", "2"), "name runs"),
    ):
        done = shop.cli(*args)
        assert (done.returncode, why in done.stderr) == (2, True), done


def test_a_run_is_moved_with_its_question(shop: Project) -> None:
    assert shop.cli("run", "vshop.py", "--set", "amount=3", "--run-id", "r", "-q").returncode == 3
    (asked,) = shop.json("inbox")
    release(shop, LATER)
    assert "vcli version 2 (new)" in shop.cli("deploy", "vshop.py", "--check-running").stdout
    planned = shop.cli("migrate", "r", "--to", "2", "--dry-run")
    assert planned.stdout == "run r: version 1 to 2 is possible; kept: charge, approve\n"
    assert shop.json("show", "r")["version"] == 1
    assert shop.cli("migrate", "r", "--to", "2").stdout == "run r: moved from version 1 to 2, on branch 2\n"
    assert "moved to version 2" in shop.cli("branches", "r").stdout
    assert [one["wait_id"] for one in shop.json("inbox")] == [asked["wait_id"]]
    release(shop, OTHER)
    stopped = shop.cli("deploy", "vshop.py", "--check-running")
    assert (stopped.returncode, "nothing was deployed" in stopped.stderr) == (1, True)
    assert len(shop.json("versions", "vcli")) == 2
    assert shop.cli("deploy", "vshop.py").returncode == 0
    lost = shop.cli("migrate", "r", "--to", "3")
    assert (lost.returncode, "not kept although started: charge" in lost.stdout) == (1, True)
    assert shop.cli("doctor", "--deep").returncode == 0


def test_a_document_is_deployed_with_the_code_of_its_handlers_and_started_by_name(project: Project) -> None:
    (project.directory / "vhandlers.py").write_text(
        'import holdfast as hf\n\n@hf.node(name="vdouble")\nasync def vdouble(n: int) -> int:\n    return 2 * n\n'
    )
    document = "kind: graph\nname: vdoc\ninput: {n: {type: integer}}\nnodes:\n"
    document += '  - {id: double, handler: vdouble, input: {n: "{{ input.n }}"}}\nresult: "{{ double.output }}"\n'
    (project.directory / "vdoc.yaml").write_text(document)
    done = project.cli("deploy", "vdoc.yaml", "--code", "vhandlers.py")
    assert done.stdout == "vdoc version 1 (new)\n", done
    (project.directory / "vdoc.yaml").unlink()
    refused = project.cli("start", "vdoc", "--set", 'n="x"', "--run-id", "bad")
    assert (refused.returncode, "input n" in refused.stderr) == (2, True)
    project.json("start", "vdoc", "--set", "n=21", "--run-id", "doc")
    resumed = project.cli("resume", "doc", "--json")
    assert json.loads(resumed.stdout)["result"] == 42, resumed


@pytest.mark.slow
def test_a_migration_that_is_killed_is_completed_by_the_same_command(shop: Project) -> None:
    """kill -9 in the middle of many runs: each was moved or not, and every question is still open."""
    count = 60
    assert shop.cli("deploy", "vshop.py").returncode == 0

    async def start() -> None:
        async with hf.open(shop.url, drive=False) as engine:
            for n in range(count):
                await engine.start("vcli", run_id=f"r{n}", amount=n)

    asyncio.run(start())
    worker = shop.start("worker", "vshop.py")
    eventually(lambda: len(shop.json("inbox", "--limit", "1000")) == count, "all ask")
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    before = {one["run_id"]: one["wait_id"] for one in shop.json("inbox", "--limit", "1000")}
    release(shop, LATER)
    assert shop.cli("deploy", "vshop.py").returncode == 0
    command = ("migrate", "--workflow", "vcli", "--from-version", "1", "--to", "2")

    def moved() -> int:
        return sum(one["version"] == 2 for one in shop.json("list", "--limit", "1000"))

    moving = shop.start(*command)
    eventually(lambda: moved() > 0 or moving.poll() is not None, "the first is moved")
    moving.kill()
    moving.wait()
    assert 0 < moved() <= count
    done = shop.cli(*command, "--json")
    assert {one["outcome"] for one in json.loads(done.stdout)} <= {"migrated"}, done
    assert moved() == count
    assert {one["run_id"]: one["wait_id"] for one in shop.json("inbox", "--limit", "1000")} == before
    assert all(len(shop.json("branches", f"r{n}")) == 2 for n in (0, count // 2, count - 1))
    assert shop.cli("doctor", "--deep").returncode == 0
    again = shop.start("worker", "vshop.py")
    for wait_id in list(before.values())[:5]:
        assert shop.cli("respond", wait_id, "--input", "true").returncode == 0
    eventually(lambda: len(shop.json("list", "--status", "completed")) == 5, "those that are answered complete")
    again.send_signal(signal.SIGTERM)
    again.wait()
