"""`shell` and `python`: only what the operator allows; `input`, `output`, `transform`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.handlers.serving import node, outcome

PYTHON = sys.executable
ALLOWED = {"permissions": hf.Permissions(shell_allow=(PYTHON,), python_allow=("textwrap", "json"))}


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'programs.db'}"


def script(code: str, *args: str, **more: Any) -> dict[str, Any]:
    return {"argv": [PYTHON, "-c", code, *args], **more}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def _until_exists(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


# --- shell ----------------------------------------------------------------------------------------------------------


async def test_a_program_runs_with_its_arguments_as_they_are(db: str) -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('err', file=sys.stderr)"
    output = await outcome(db, "shell", script(code, "$(id)", "a b; ls", stdin="in"), opened=ALLOWED)
    assert output == {"exit_code": 0, "stdout": "['$(id)', 'a b; ls'] in\n", "stderr": "err\n"}


@pytest.mark.parametrize("argv", [["/bin/sh", "-c", "id"], ["python"], ["../bin/python"], ["/usr/bin/env", "id"]])
async def test_a_program_that_is_not_on_the_operators_list_does_not_run(db: str, argv: list[str]) -> None:
    failed = await outcome(db, "shell", {"argv": argv}, opened=ALLOWED)
    assert failed.code == "usage"
    assert "HOLDFAST_SHELL_ALLOW" in failed.message


async def test_without_a_list_no_program_runs(db: str) -> None:
    assert (await outcome(db, "shell", script("1"))).code == "usage"


async def test_a_program_does_not_see_the_engines_environment(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_TOKEN", "never-to-be-seen")
    given = script("import os; print(sorted(os.environ), os.environ['MINE'])", env={"MINE": "x"})
    output = await outcome(db, "shell", given, opened=ALLOWED)
    assert "HOLDFAST_SECRET_TOKEN" not in output["stdout"]
    assert "HOLDFAST_IDEMPOTENCY_KEY" in output["stdout"]


async def test_an_unexpected_exit_code_fails_the_node_and_an_expected_one_does_not(db: str) -> None:
    given = script("import sys; print('why', file=sys.stderr); sys.exit(3)")
    failed = await outcome(db, "shell", given, opened=ALLOWED)
    assert "ended with 3: why" in failed.message
    assert (await outcome(db, "shell", given | {"expect": [0, 3]}, opened=ALLOWED))["exit_code"] == 3


async def test_output_and_time_are_bounded_and_nothing_stays_behind(db: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    forks = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
    )
    for code, limits, said in (
        (forks + "time.sleep(600)", {"timeout": 2}, "ran longer than 2 s"),
        (forks + "while True: print('x' * 1000)", {"max_bytes": 1000}, "more than 1,000 bytes"),
    ):
        failed = await outcome(db, "shell", script(code, **limits), opened=ALLOWED)
        assert said in failed.message
        assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


async def test_a_cancelled_run_kills_the_group_of_its_program(db: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )

    @hf.workflow(name="one_node")
    def one() -> Any:
        return node("shell", script(code))

    async with hf.open(db, **ALLOWED) as engine:  # type: ignore[arg-type]
        run = await engine.start(one)
        await asyncio.to_thread(_until_exists, pids)
        await run.cancel()
        with pytest.raises(hf.RunCancelled):
            await run.result()
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


# --- python ---------------------------------------------------------------------------------------------------------


async def test_python_calls_a_registered_handler_with_its_types(db: str) -> None:
    @hf.node(name="programs_test.add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    given = {"function": "programs_test.add", "arguments": {"a": 2}}
    assert await outcome(db, "python", given) == 3
    failed = await outcome(db, "python", given | {"arguments": {"a": "x"}})
    assert failed.code == "invalid_input"


async def test_python_calls_functions_of_modules_that_the_operator_allows(db: str) -> None:
    given = {"function": "textwrap:shorten", "arguments": {"text": "a b c d", "width": 5, "placeholder": "."}}
    assert await outcome(db, "python", given, opened=ALLOWED) == "a b."
    for function in ("os:system", "textwrap:_x", "textwrap:re", "json:nothing", "jsonx:loads", "no_such_handler"):
        failed = await outcome(db, "python", {"function": function}, opened=ALLOWED)
        assert failed.code == "usage", function
    assert (await outcome(db, "python", given)).code == "usage"


# --- values ---------------------------------------------------------------------------------------------------------


async def test_input_output_and_transform_return_what_their_expression_is(db: str) -> None:
    @hf.workflow(name="passing")
    def passing(order: dict[str, Any]) -> Any:
        start = node("input", {"value": order})
        doubled = node("transform", {"value": {"amount": start["amount"] * 2, "of": [start["id"]]}})
        return node("output", {"value": doubled})

    async with hf.open(db) as engine:
        run = await engine.start(passing, order={"id": "o-1", "amount": 4})
        assert await run.result() == {"amount": 8, "of": ["o-1"]}
