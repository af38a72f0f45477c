"""The systemd unit: systemd understands every line of it, and its command does what the lines say."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import output
from holdfast.store.urls import store_at
from tests.cli.conftest import ask_to_stop, eventually
from tests.deploy.conftest import DEPLOY, Site

UNIT = DEPLOY / "holdfast-worker.service"
VARIABLES = DEPLOY / "worker.env"

DIRECTIVES = {
    "Unit": """
        After Description StartLimitIntervalSec Wants
    """,
    "Service": """
        AmbientCapabilities CapabilityBoundingSet EnvironmentFile ExecStart KillMode KillSignal LimitNOFILE
        LockPersonality NoNewPrivileges OOMPolicy PrivateDevices PrivateIPC PrivateTmp ProtectClock
        ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules
        ProtectKernelTunables ProtectProc ProtectSystem RemoveIPC Restart RestartPreventExitStatus RestartSec
        RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID StateDirectory
        StateDirectoryMode SystemCallArchitectures SystemCallErrorNumber SystemCallFilter TimeoutStopSec Type UMask
        User WorkingDirectory
    """,
    "Install": """
        WantedBy
    """,
}
"""Of systemd.directives(7), for machines that have no systemd: a name that is misspelt is only a warning there."""

systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")


def parsed(text: str) -> dict[str, dict[str, str]]:
    """Sections, and their settings. Refuses what this unit has no need of: settings that come twice, long lines."""
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
            continue
        name, equals, value = line.partition("=")
        assert equals, line
        assert name not in section, line
        assert not value.endswith("\\"), line
        section[name] = value
    return sections


UNIT_TEXT = UNIT.read_text()
SERVICE = parsed(UNIT_TEXT)["Service"]
COMMAND = shlex.split(SERVICE["ExecStart"])
DRAIN_SECONDS = float(COMMAND[COMMAND.index("--drain") + 1])


def installed(directory: Path, text: str = UNIT_TEXT) -> Path:
    """The unit as it would be on a machine where its program is there."""
    unit = directory / UNIT.name
    unit.write_text(text.replace(f"ExecStart={COMMAND[0]} ", f"ExecStart={sys.executable} "))
    return unit


def complaints(unit: Path) -> list[str]:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    return [line for line in done.stderr.splitlines() if UNIT.name in line] + ["failed"] * done.returncode


@systemd
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    assert complaints(installed(tmp_path)) == []
    assert complaints(installed(tmp_path, UNIT_TEXT.replace("KillMode=", "KillMood="))) != []


@systemd
def test_systemd_finds_that_the_worker_may_do_little_that_it_need_not(tmp_path: Path) -> None:
    unit = installed(tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd is too old to judge a file")
    assert done.returncode == 0, done.stdout


def test_every_directive_is_one_of_systemd() -> None:
    for section, settings in parsed(UNIT_TEXT).items():
        assert settings.keys() - DIRECTIVES[section].split() == set()


def test_an_orderly_stop_is_given_more_time_than_draining_takes() -> None:
    assert float(SERVICE["TimeoutStopSec"]) >= DRAIN_SECONDS + 10
    assert (SERVICE["KillSignal"], SERVICE["KillMode"]) == ("SIGTERM", "mixed")


def test_it_is_started_again_whatever_happened_but_for_wrong_usage(site: Site) -> None:
    assert (SERVICE["Restart"], SERVICE["RestartPreventExitStatus"]) == ("always", str(output.USAGE))
    (site.directory / "workflows.py").unlink()
    worker = site.serve(COMMAND, {})
    worker.communicate(timeout=60)
    assert worker.returncode == int(SERVICE["RestartPreventExitStatus"])


def test_the_command_of_the_unit_lets_bodies_end_and_gives_its_leases_back(site: Site) -> None:
    for name in ("until_the_gate_opens", "asleep_for_a_day"):
        site.holdfast("start", f"workflows.py:{name}", "--run-id", name)
    # Nothing but the order to stop makes it give back what it has in these ten minutes.
    variables = variables_of(VARIABLES) | {"HOLDFAST_IDLE_SECONDS": "600", "HOLDFAST_LEASE_SECONDS": "600"}
    worker = site.serve(COMMAND, variables)
    site.wait_for("begun")
    site.wait_for("asleep")
    eventually(lambda: [engine["runs"] for engine in site.holdfast("engines")] == [2], "it does not own both runs")
    ask_to_stop(worker, signal.Signals[SERVICE["KillSignal"]])
    site.open_gate()
    worker.communicate(timeout=float(SERVICE["TimeoutStopSec"]))
    assert worker.returncode == 0
    assert site.holdfast("engines") == []
    assert site.holdfast("show", "until_the_gate_opens")["status"] == "completed"
    store = store_at(site.variables["HOLDFAST_DATABASE_URL"])
    store.open()
    try:
        row = store.run("asleep_for_a_day")
    finally:
        store.close()
    assert row is not None
    assert (row.engine, row.recoveries) == (None, 0)


def variables_of(file: Path) -> dict[str, str]:
    """An EnvironmentFile, of which ours uses NAME=VALUE and comments."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_variables_name_a_postgresql_server_and_keep_the_password_out_of_the_address() -> None:
    variables = variables_of(VARIABLES)
    assert variables["HOLDFAST_DATABASE_URL"] == "postgresql://holdfast@db.example/holdfast"
    assert variables.keys() == {"HOLDFAST_DATABASE_URL", "PGPASSWORD"}
