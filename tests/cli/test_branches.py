"""fork, jump, retry, branches, diff and --branch, in real processes."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import pytest

from tests.cli.conftest import COMMAND, ENVIRONMENT, ORDER, PATIENCE_SECONDS, Project, eventually

FLOWS = """
import os
from dataclasses import dataclass

import holdfast as hf


@dataclass
class Order:
    id: str
    amount: int


def mark(name):
    with open(name, "a") as f:
        f.write("x")


@hf.node
def charge(order: Order) -> str:
    mark("charged")
    return f"receipt-{order.id}-{order.amount}"


@hf.node
def pack(order: Order) -> str:
    mark("packed")
    if not os.path.exists("boxes"):
        raise RuntimeError("no boxes left")
    return "boxes"


@hf.node
def ship(boxes: str, receipt: str) -> str:
    return f"{boxes} {receipt}"


@hf.workflow
def fulfil(order: Order):
    return ship(pack(order), charge(order))
"""


@pytest.fixture
def failed(project: Project) -> Project:
    """A run that failed, and whose reason is gone."""
    (project.directory / "flows.py").write_text(FLOWS)
    assert project.cli("run", "flows.py:fulfil", "--input", ORDER, "--run-id", "order-42", "-q").returncode == 1
    (project.directory / "boxes").touch()
    return project


def test_retry_goes_on_with_what_failed_and_prints_the_result(failed: Project) -> None:
    shown = failed.cli("show", "order-42").stdout
    assert "let what failed try again: holdfast retry order-42" in shown
    done = failed.cli("retry", "order-42")
    assert (done.returncode, done.stdout) == (0, '"boxes receipt-42-1500"\n')
    assert "run order-42 continues on branch 2: 1 node reused; runs again: pack" in done.stderr
    assert "pack started, attempt 2" in done.stderr
    assert (failed.marks("charged"), failed.marks("packed")) == (1, 2)
    again = failed.json("retry", "order-42", exit_code=1)
    assert "nothing of the run has failed" in again["error"]["message"]


def test_a_dry_run_lists_what_is_reused_what_runs_again_and_which_effects_repeat(failed: Project) -> None:
    before = failed.events("order-42")
    told = failed.cli("retry", "order-42", "--dry-run").stdout
    assert "reused      charge\nruns again  pack\n" in told
    assert "effects of pack happen again, with the same idempotency keys" in told
    forked = failed.cli("fork", "order-42", "--at", "charge", "--dry-run").stdout
    assert {"effects of charge, pack happen", "effects of pack, charge happen"} & {
        line.split(" again")[0] for line in forked.splitlines()
    }
    assert "with new idempotency keys" in forked
    shown = failed.json("fork", "order-42", "--at", "start", "--dry-run", "--keys", "inherit")
    assert (shown["reused"], shown["same_keys"], shown["cutoff_seq"]) == ([], True, 1)
    assert failed.events("order-42") == before
    assert failed.marks("packed") == 1


def test_fork_takes_edits_from_set_json_and_file(failed: Project) -> None:
    done = failed.json("fork", "order-42", "--at", "charge", "--set", "input.order.amount=10")
    assert (done["result"], done["branch"], done["input"]["order"]["amount"]) == ("boxes receipt-42-10", 2, 10)
    done = failed.json("fork", "order-42", "--at", "ship", "--edits", '{"outputs": {"charge": "by hand"}}')
    assert done["result"] == "boxes by hand"
    (failed.directory / "edits.json").write_text('{"outputs": {"pack": "crates"}}')
    done = failed.json("fork", "order-42", "--at", "ship", "--edits", "@edits.json", "--set", "outputs.charge=again")
    assert done["result"] == "crates again"
    done = failed.json("fork", "order-42", "--at", "charge", "--set", "input.order.id=007", "--as-run", "order-7")
    assert (done["run_id"], done["result"]) == ("order-7", "crates receipt-007-10")
    assert failed.json("show", "order-42")["result"] == "crates again"


def test_jump_goes_forward_when_the_data_is_given(failed: Project) -> None:
    (failed.directory / "boxes").unlink()
    refused = failed.json("jump", "order-42", "ship", exit_code=1)
    assert "ship needs the output of pack" in refused["error"]["message"]
    done = failed.cli("jump", "order-42", "ship", "--set", "outputs.pack=a crate")
    assert (done.returncode, done.stdout) == (0, '"a crate receipt-42-1500"\n')
    back = failed.cli("jump", "order-42", "pack", "-q")
    assert (back.returncode, back.stderr.splitlines()[0]) == (
        1,
        "holdfast: run order-42 failed in pack, attempt 1: RuntimeError: no boxes left",
    )


def test_no_run_opens_the_branch_and_needs_no_code(failed: Project) -> None:
    code = failed.directory / "flows.py"
    source = code.read_text()
    code.unlink()
    opened = failed.cli("retry", "order-42", "--no-run")
    assert (opened.returncode, opened.stdout) == (0, "run order-42 is running on branch 2\n")
    assert "`holdfast resume order-42` continues it" in opened.stderr
    assert failed.json("fork", "order-42", "--at", "start", "--no-run")["branch"] == 3
    needs = failed.json("fork", "order-42", "--at", "start", "--no-run", "--set", "input.order.id=1", exit_code=2)
    assert needs["error"]["code"] == "missing_code"
    code.write_text(source)
    assert failed.json("resume", "order-42")["result"] == "boxes receipt-42-1500"


def test_wrong_usage_is_one_line_and_changes_nothing(failed: Project) -> None:
    before = failed.events("order-42")
    for args, code in [
        (["fork", "order-42", "--edits", "{"], 2),
        (["fork", "order-42", "--edits", "[1]"], 2),
        (["fork", "order-42", "--keys", "new"], 2),
        (["fork", "order-42", "--keys", "inherit", "--as-run", "x"], 2),
        (["fork", "nobody"], 2),
        (["jump", "order-42"], 2),
        (["events", "order-42", "--branch", "9"], 2),
        (["show", "order-42", "--branch", "9"], 2),
        (["diff", "order-42", "1", "9"], 2),
        (["events", "order-42", "--branch", "1", "--follow"], 2),
    ]:
        done = failed.here(*args)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), (args, done)
    for args, code in [  # these load the code of the run
        (["fork", "order-42", "--edits", '{"inputs": {}}'], 2),
        (["fork", "order-42", "--set", "input.order.amount=many"], 2),
        (["fork", "order-42", "--as-run", "order-42"], 2),
        (["fork", "order-42", "--branch", "9"], 2),
        (["fork", "order-42", "--at", "999"], 1),
        (["jump", "order-42", "shup"], 1),
        (["retry", "order-42", "charge"], 1),
    ]:
        done = failed.cli(*args)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), (args, done)
    assert failed.events("order-42") == before


def test_old_branches_stay_readable(failed: Project) -> None:
    failed.cli("retry", "order-42", "-q")
    failed.cli("fork", "order-42", "--at", "charge", "--set", "input.order.amount=10", "-q")
    old = failed.cli("show", "order-42", "--branch", "1").stdout
    assert "✗ pack failed, attempt 1" in old
    assert '"amount":1500' in old
    assert "what you can do" not in old
    assert failed.json("show", "order-42", "--branch", "2")["result"] == "boxes receipt-42-1500"
    printed = failed.cli("events", "order-42", "--branch", "1", "--json").stdout
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {event["branch"] for event in lines} == {1}
    assert lines[-1]["type"] == "RetryRequested"
    second = [json.loads(x) for x in failed.cli("events", "order-42", "--branch", "2", "--json").stdout.splitlines()]
    assert [e["type"] for e in second].count("NodeFailed") == 0, "what was retried did not fail on this line"
    assert [e["seq"] for e in second] == sorted(e["seq"] for e in second)


def test_branches_are_drawn_as_a_tree_listed_in_rows_and_printed_as_json(failed: Project) -> None:
    failed.cli("retry", "order-42", "-q")
    failed.cli("jump", "order-42", "ship", "-q")
    failed.cli("fork", "order-42", "--branch", "1", "-q")
    rows = failed.cli("branches", "order-42").stdout.splitlines()
    assert rows[0].split() == ["BRANCH", "PARENT", "AFTER", "STATUS", "EVENTS", "WHAT"]
    assert rows[2].split()[:4] == ["2", "1", "7", "completed"]
    assert rows[4].endswith("fork at end, by command line (current)")
    drawn = on_a_terminal(failed, "branches", "order-42")
    assert "✗ 1  start" in drawn[1]
    assert "├─ ✓ 2  retry of pack" in drawn[2]
    assert "│  └─ ✓ 3  jump to ship" in drawn[3]
    assert "└─ ✓ 4  fork at end" in drawn[4]
    shown = failed.json("branches", "order-42")
    assert [(b["branch"], b["parent"], b["reason"]) for b in shown] == [
        (1, None, "start"),
        (2, 1, "retry"),
        (3, 2, "jump"),
        (4, 1, "fork"),
    ]


def on_a_terminal(project: Project, *args: str) -> list[str]:
    """What a command prints when somebody watches, without colours."""
    leader, follower = pty.openpty()
    env = ENVIRONMENT | {"NO_COLOR": "1", "COLUMNS": "120"}
    subprocess.run([*COMMAND, *args], cwd=project.directory, env=env, stdout=follower, timeout=30, check=True)
    os.close(follower)
    printed = os.read(leader, 100_000).decode()
    os.close(leader)
    return printed.splitlines()


def test_diff_shows_what_differs(failed: Project) -> None:
    failed.cli("fork", "order-42", "--at", "charge", "--set", "input.order.amount=10", "-q")
    told = failed.cli("diff", "order-42", "1", "2").stdout.splitlines()
    assert told[0].split() == ["BRANCH", "1", "BRANCH", "2"]
    cells = {line.split()[0]: line for line in told[1:]}
    assert cells.keys() == {"status", "input", "result", "charge", "pack", "ship"}
    assert "failed: RuntimeError: no boxes left" in cells["pack"]
    assert "completed receipt-42-10" in cells["charge"]
    assert "-" in cells["ship"]
    assert failed.cli("diff", "order-42", "2", "2").stdout == "branches 2 and 2 have the same outputs and statuses\n"
    as_json = failed.json("diff", "order-42", "1", "2")
    assert (as_json["one"]["status"], as_json["other"]["result"]) == ("failed", "boxes receipt-42-10")
    assert {node["node"] for node in as_json["nodes"]} == {"charge", "pack", "ship"}


@pytest.mark.parametrize("die_at", ["commit.before:1", "commit.after:1"])
def test_killed_around_the_commit_that_opens_a_branch_there_is_the_old_one_or_the_new_one(
    failed: Project, die_at: str
) -> None:
    killed = failed.cli("retry", "order-42", "-q", HOLDFAST_DIE_AT=die_at)
    assert killed.returncode == -9
    types = [event["type"] for event in failed.events("order-42")]
    if die_at.startswith("commit.before"):
        assert failed.json("show", "order-42")["branch"] == 1
        assert "RetryRequested" not in types, "the request is a message, not half a branch"
        done = failed.json("retry", "order-42")
    else:
        assert failed.json("show", "order-42")["branch"] == 2
        done = failed.json("resume", "order-42")
    assert done["result"] == "boxes receipt-42-1500"
    assert done["branch"] == 2, "one branch, however often it was asked for"
    assert failed.marks("charged") == 1
    assert failed.json("doctor", "--deep")["violations"] == []


def test_a_request_that_was_sent_before_the_crash_is_applied_by_the_next_engine(failed: Project) -> None:
    failed.cli("retry", "order-42", "-q", HOLDFAST_DIE_AT="commit.before:1")
    serve = (
        "import asyncio, holdfast as hf, flows\n"
        "async def main():\n"
        "    async with hf.open('sqlite:///holdfast.db') as engine:\n"
        "        print(await engine.get('order-42').result(timeout=60)) if await opened(engine) else None\n"
        "async def opened(engine):\n"
        "    while (await engine.get('order-42').show())['branch'] == 1: await asyncio.sleep(0.01)\n"
        "    return True\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", serve],
        cwd=failed.directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout == "boxes receipt-42-1500\n", done


def test_a_run_that_another_process_drives_is_jumped_and_followed(project: Project) -> None:
    driving = project.start("run", "flows.py:gated", "--run-id", "live", "--grace-seconds", "0.1")
    project.wait_for("attempt-1")
    jump = project.start("jump", "live", "gated", "--json")
    eventually(lambda: len(project.json("branches", "live")) == 2, "the branch was never opened")
    project.open_gate()
    out, err = jump.communicate(timeout=PATIENCE_SECONDS)
    assert jump.returncode == 0, err
    assert json.loads(out)["branch"] == 2
    # between the old line and the new one nobody holds the run for a moment: who is first goes on, the other follows
    assert "is driven by engine" in err or "gated started" in err
    first, _ = driving.communicate(timeout=PATIENCE_SECONDS)
    assert (driving.returncode, first.strip()) == (0, "6")
    assert project.marks("adds") == 9, "three steps before the jump, six on the new branch"


ASKING = """
import holdfast as hf


@hf.node
async def price(ctx: hf.Context, n: int) -> int:
    return int(await ctx.ask("Which price?", schema=int))


@hf.workflow
def priced(n: int):
    return price(n)
"""


def test_fork_brings_the_answer_to_a_question_and_a_wrong_one_changes_nothing(project: Project) -> None:
    (project.directory / "flows.py").write_text(ASKING)
    assert project.cli("run", "flows.py:priced", "--set", "n=1", "--run-id", "p", "-q").returncode == 3
    (wait,) = project.json("show", "p")["waits"]
    answer = f"answers.{wait['wait_id']}"
    refused = project.json("fork", "p", "--set", f"{answer}=much", exit_code=2)
    assert "does not answer" in refused["error"]["message"]
    assert project.json("show", "p")["branch"] == 1
    told = project.cli("fork", "p", "--at", "price", "--set", f"{answer}=7", "--dry-run").stdout
    assert f"answered    {wait['wait_id']}" in told
    assert project.json("fork", "p", "--at", "price", "--set", f"{answer}=7")["result"] == 7


SAGA = """
import os
import holdfast as hf

@hf.node
async def refund(receipt: str, amount: int) -> None:
    if os.path.exists("broken"):
        raise ConnectionError("the bank is closed")

@hf.node(compensate=refund)
async def charge(amount: int) -> str:
    return "receipt"

@hf.node
async def ship(receipt: str) -> None:
    raise ValueError("no courier")

@hf.workflow(on_failure="compensate")
def saga(amount: int = 5) -> None:
    ship(charge(amount))
"""


def test_show_and_why_propose_what_is_possible_after_compensations(project: Project) -> None:
    (project.directory / "saga.py").write_text(SAGA)
    (project.directory / "broken").touch()
    assert project.cli("run", "saga.py:saga", "--run-id", "r").returncode == 1
    shown = project.cli("show", "r").stdout
    assert "let the compensation that failed try again, with its key: holdfast retry r 'charge~undo'" in shown
    assert "do everything again, with new keys: holdfast fork r --at start" in shown
    assert "holdfast retry r 'charge~undo'" in project.cli("why", "r").stdout.replace("\n", " ")
    for verb in (("jump", "r", "charge~undo"), ("fork", "r", "--at", "charge~undo")):
        refused = project.cli(*verb)
        assert refused.returncode == 1
        assert "is the compensation of charge" in refused.stderr
    (project.directory / "broken").unlink()
    again = project.cli("retry", "r", "charge~undo")
    assert (again.returncode, "also:" in again.stderr) == (1, False)
    mended = project.cli("show", "r").stdout
    assert "holdfast retry" not in mended
    assert "do everything again, with new keys: holdfast fork r --at start" in mended
    assert project.cli("retry", "r").returncode == 1
