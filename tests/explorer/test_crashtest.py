"""`holdfast crashtest`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FLOWS = """
import time
import holdfast as hf

@hf.node
async def crashtest_book(x: int) -> int:
    return x

@hf.node(idempotent=True)
def crashtest_nap(x: int) -> int:
    time.sleep(0.001)
    return x

@hf.workflow(name="crashtest_unsafe")
def unsafe(x: int = 1) -> int:
    return crashtest_book(x)

@hf.workflow(name="crashtest_sleepy")
def sleepy(x: int = 1) -> int:
    return crashtest_nap(x)

def no_sleep(seconds: float) -> None:
    pass

@hf.workflow(name="crashtest_asking")
def asking() -> list:
    return [hf.ask("Is 1=1?", schema=bool), hf.receive("hurry")]
"""


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "crashtest_flows.py"
    if not file.exists():
        file.write_text(FLOWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(file)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "crashtest_flows", raising=False)


def test_unsafe_is_exit_code_1_and_said_in_words(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashtest", f"{flows}:unsafe", "--set", "x=3"]) == 1
    told = capsys.readouterr().out
    assert "crashtest_unsafe is not safe: 1 finding." in told
    assert "the body of crashtest_book ran 2 times and did not read ctx.idempotency_key" in told
    assert "--replay 0/4.2" in told
    assert "schedules per second" in told


def test_safe_is_exit_code_0(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashtest", f"{flows}:unsafe", "--idempotent", "crashtest_book"]) == 0
    assert main(["crashtest", f"{flows}:unsafe", "--effects", "none"]) == 0
    assert "survives every crash" in capsys.readouterr().out


def test_a_tape_is_replayed_and_json_is_json(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashtest", f"{flows}:unsafe", "--replay", "0/4.2", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schedules"] == 2
    assert told["findings"][0]["tape"] == "0/4.2"


def test_what_cannot_be_explored_is_exit_code_2_and_a_fake_helps(
    flows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crashtest", f"{flows}:sleepy"]) == 2
    assert "crashtest_flows.crashtest_nap really sleeps (time.sleep)" in capsys.readouterr().out
    assert main(["crashtest", f"{flows}:sleepy", "--fake", "time:sleep=crashtest_flows:no_sleep"]) == 0


def test_wrong_usage_is_exit_code_2(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashtest", f"{flows}:unsafe", "--fake", "nonsense"]) == 2
    assert main(["crashtest", f"{flows}:unsafe", "--replay", "nonsense"]) == 2
    assert main(["crashtest", f"{flows}:unsafe", "--input", '{"y": 1}']) == 2
    assert "It takes x" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["order.py:fulfil"],
        ["order.py:fulfil", "--set", 'order={"id": "43", "amount": 60, "items": ["lamp", "unicorn"]}'],
        ["refine.py:refine"],
        ["research.py:research", "--answer", 'Good enough?={"accept": true}'],
        ["approval.py:fulfil", "--answer", 'Ship this order?={"approved": true}'],
        # twelve reminders; tests/explorer/test_waits.py has a case with one for each commit
        pytest.param(["approval.py:fulfil", "--people-take", "0"], marks=pytest.mark.soak),
        ["onboarding.py:onboard"],
        ["onboarding.py:onboard", "--set", 'case={"name": "Mallory"}'],
        ["signals.py:parcel", "--signal", 'scanned={"at": "a"}', "--signal", 'scanned={"at": "b", "delivered": true}'],
        ["fan_out.py:survey", "--set", "pattern=f*.py"],
        ["journey.py:onboarding"],
        ["second_thoughts.py:trip", "--set", "hotel=Sea"],
        ["drive.py:wait_for_spring"],
        ["crash_demo.py:album", "--set", "count=2"],
    ],
    ids=" ".join,
)
def test_the_examples_survive_every_crash_and_repeat_nothing_that_matters(arguments: list[str], tmp_path: Path) -> None:
    target, *options = arguments
    command = [sys.executable, "-m", "holdfast", "crashtest", str(EXAMPLES / target), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_tape_of_a_boundary_that_is_not_there_is_wrong_usage(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashtest", f"{flows}:unsafe", "--replay", "0/999.2"]) == 2
    assert "boundary 999 was not reached" in capsys.readouterr().err


def test_people_answer_and_send_signals_from_the_command_line(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crashtest", f"{flows}:asking", "--replay", "0/"]) == 0
    assert "there is no answer to 'Is 1=1?'" in capsys.readouterr().out
    asked = ["--answer", "Is 1=1?=true", "--signal", 'hurry={"by": 3}', "--people-take", "0"]
    assert main(["crashtest", f"{flows}:asking", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "was completed"


@pytest.mark.parametrize("wrong", [["--answer", "Ship it?"], ["--signal", "hurry=please"], ["--people-take", "soon"]])
def test_an_answer_without_json_is_wrong_usage(
    flows: str, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crashtest", f"{flows}:asking", *wrong]) == 2
    assert capsys.readouterr().err
