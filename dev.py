#!/usr/bin/env python3
"""The development commands: `python3 dev.py setup|run|check|test|lint|docs|bench|soak|lock`.

Owns: the virtual environments, the locked requirements, and the order of the checks.
Needs: Python 3.11+ with pip and venv, and nothing else (the Makefile only calls this file).
Promises: every command makes its own environment first; a second call finds it made and costs next to nothing.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this is the one file that an older Python may be asked to run
    sys.exit("dev.py: Holdfast needs Python 3.11 or newer, and this is " + sys.version.split()[0])

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
PYPROJECT = ROOT / "pyproject.toml"
WINDOWS = os.name == "nt"
BIN = "Scripts" if WINDOWS else "bin"
# Not the copy in an environment that is active now: it may be the one to be made anew.
PYTHON = str(getattr(sys, "_base_executable", sys.executable))
TYPED = ("holdfast", "tests/typing", "tests/store/conformance", "tests/store/oracle", "examples", "benchmarks", "docs")

QUICK = ("model", "rules", "authoring", "worker", "store", "doctor", "branches", "test_public_api.py", "test_tidy.py")
"""What `check` runs of tests/: what needs no other process and no server."""

Command = list[str | Path]


# --- the commands ------------------------------------------------------------------------------------------------


def setup(args: Sequence[str] = ()) -> None:
    """Make .venv with the locked requirements and this project in it."""
    if args:
        fail(f"setup takes no arguments, and got {shlex.join(args)}")
    DEV.make()
    announce(f"{DEV.path.name} is ready")


def run(args: Sequence[str]) -> None:
    """Show the promise: an example is killed half-way, resumed, and loses nothing."""
    setup()
    hand_over([DEV.python, "examples/crash_demo.py", *args])


def lint(args: Sequence[str]) -> None:
    """Run the static checks; with --fix, let ruff repair what it can first."""
    fix = "--fix" in args
    if unknown := [arg for arg in args if arg != "--fix"]:
        fail(f"lint does not know {shlex.join(unknown)}")
    check_locks()
    setup()
    if fix:
        stage("ruff check --fix: repair what can be repaired", [DEV.tool("ruff"), "check", "--fix-only", "."])
        stage("ruff format: lay out the code", [DEV.tool("ruff"), "format", "."])
    else:
        stage("ruff format: the layout of the code", [DEV.tool("ruff"), "format", "--check", "."])
    stage("ruff check: likely bugs, asyncio, security, imports", [DEV.tool("ruff"), "check", "."])
    typed = [*(name for name in TYPED if has_python(ROOT / name)), "dev.py"]
    stage(f"mypy --strict: the types of {', '.join(typed)}", [DEV.tool("mypy"), "--strict", *typed])
    stage("lint-imports: imports point down the layers", [DEV.tool("lint-imports"), "--no-logo"])
    stage("deptry: what is imported is declared, what is declared is used", [DEV.tool("deptry"), "--no-ansi", "."])


def check(args: Sequence[str]) -> None:
    """Run the static checks, then the tests that need no other process, no server and no second: for every save."""
    lint(())
    announce("pytest: the quick tests")
    selected: Command = [*(f"tests/{name}" for name in QUICK), "-m", "not slow and not postgres", "-q"]
    hand_over([DEV.python, "-m", "pytest", *selected, *spread(args), *args])


def test(args: Sequence[str]) -> None:
    """Run the static checks, then the tests. Arguments go to pytest and leave the static checks out.

    The lowest allowed versions of the dependencies are tested too when CI is set, or with --lowest.
    """
    pytest_args = [arg for arg in args if arg != "--lowest"]
    if pytest_args:
        setup()
    else:
        lint(())
    if "--lowest" in args or (os.environ.get("CI") and not pytest_args):
        test_lowest()
    announce("pytest: the tests")
    hand_over([DEV.python, "-m", "pytest", *spread(pytest_args), *pytest_args])


def bench(args: Sequence[str]) -> None:
    """Measure this machine with every suite of benchmarks/, which gets the arguments."""
    setup()
    hand_over([DEV.python, "-m", "benchmarks", *args])


def docs(args: Sequence[str]) -> None:
    """Write the reference pages that are made from the code."""
    setup(args)
    hand_over([DEV.python, "docs/generate.py"])


def soak(args: Sequence[str]) -> None:
    """Run what is too long for each commit, and all properties with new random examples: arguments go to pytest."""
    setup()
    os.environ.setdefault("HOLDFAST_EXPLORE", "10")
    selected: Command = ["-m", "soak or hypothesis", "--timeout=3600"]
    hand_over([DEV.python, "-m", "pytest", *selected, *spread(args), *args])


def lock(args: Sequence[str]) -> None:
    """Write requirements/*.lock anew; pins stay as they are where they can, unless --upgrade is given."""
    if unknown := [arg for arg in args if arg != "--upgrade"]:
        fail(f"lock does not know {shlex.join(unknown)}")
    with tempfile.TemporaryDirectory() as scratch:
        # The environment may be the very thing that the lock is to repair: lock from one of its own.
        bare = Environment(Path(scratch) / "venv", "bootstrap")
        stage("venv: a scratch environment with uv", [PYTHON, "-m", "venv", bare.path])
        stage("pip: install uv", [bare.python, "-m", "pip", "install", "-qq", "uv"])
        for environment in (BOOTSTRAP, DEV, LOWEST):
            environment.compile(bare.tool("uv"), upgrade="--upgrade" in args)


COMMANDS = {command.__name__: command for command in (setup, run, check, test, lint, docs, bench, soak, lock)}


def main() -> None:
    """Parse the command line; what a command does not know itself goes on to the tool behind it."""
    parser = argparse.ArgumentParser(prog="dev.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        text = command.__doc__ or ""
        commands.add_parser(name, help=text.splitlines()[0], description=text, allow_abbrev=False)
    chosen, args = parser.parse_known_args()
    os.chdir(ROOT)
    COMMANDS[chosen.command](args)


# --- environments ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds exactly what one lock file names, and this project."""

    path: Path
    group: str
    resolution: str = "highest"
    extra: str | None = None

    @property
    def lock(self) -> Path:
        return ROOT / "requirements" / f"{'lowest' if self.resolution != 'highest' else self.group}.lock"

    @property
    def python(self) -> Path:
        return self.path / BIN / ("python.exe" if WINDOWS else "python")

    def tool(self, name: str) -> Path:
        return self.path / BIN / (f"{name}.exe" if WINDOWS else name)

    def make(self) -> None:
        """Bring the environment up to date; a stamp inside it says what it was made from."""
        stamp_file = self.path / "holdfast-stamp.json"
        interpreter = [sys.version, sys.base_prefix, str(ROOT)]
        inputs = [digest(file.read_bytes()) for file in (BOOTSTRAP.lock, self.lock, PYPROJECT)]
        stamp = {"interpreter": interpreter, "inputs": inputs}
        with one_at_a_time():
            made = read_json(stamp_file)
            if made == stamp:
                return
            stamp_file.unlink(missing_ok=True)
            if made.get("interpreter") != interpreter or not self.python.exists():
                stage(
                    f"venv: make {self.path.name} with Python {sys.version.split()[0]}",
                    [PYTHON, "-m", "venv", "--clear", self.path],
                    hint="on Debian and Ubuntu: apt-get install python3-venv",
                )
            self._install()
            stamp_file.write_text(json.dumps(stamp))

    def _install(self) -> None:
        """Install the locked requirements with uv, or with pip where uv cannot be had or cannot do it."""
        locked: Command = ["--require-hashes", "--requirement", self.lock]
        project: Command = ["--no-deps", "--no-build-isolation", "--editable", "."]
        bootstrap: Command = ["--require-hashes", "--requirement", BOOTSTRAP.lock]
        pip: Command = [self.python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        uv: Command = [self.tool("uv"), "pip"]
        like_pip = uv_environment()
        if not stage("pip: install uv, which installs the rest", [*pip, *bootstrap], may_fail=True):
            print("    uv cannot be installed here: pip does the rest, slower", flush=True)
        elif stage(
            f"uv: install {self.lock.relative_to(ROOT)}",
            [*uv, "sync", "--quiet", "--compile-bytecode", "--python", self.python, "--require-hashes", self.lock],
            env=like_pip,
            may_fail=True,
        ):
            install: Command = [*uv, "install", "--quiet", "--python", self.python, *project]
            stage("uv: install the project", install, env=like_pip)
            return
        stage(f"pip: install {self.lock.relative_to(ROOT)}", [*pip, *locked])
        stage("pip: install the project", [*pip, *project])

    def compile(self, uv: Path, *, upgrade: bool) -> None:
        """Write the lock: every version and every hash, and nothing that is true of this machine alone."""
        arguments = ["--universal", "--python-version", "3.11", "--resolution", self.resolution, "--generate-hashes"]
        quiet = ["--quiet", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
        sources = ["--group", f"pyproject.toml:{self.group}"]
        if self is not BOOTSTRAP:
            sources = ["pyproject.toml", *sources]
        if self.extra:
            sources += ["--extra", self.extra]
        self.lock.parent.mkdir(exist_ok=True)
        command: Command = [uv, "pip", "compile", *arguments, *quiet, *(["--upgrade"] if upgrade else []), *sources]
        stage(
            f"uv: compile {self.lock.relative_to(ROOT)}", [*command, "--output-file", self.lock], env=uv_environment()
        )
        pins = self.lock.read_text()
        if found := re.search(r".*(://|^-|\bfile:).*", pins, re.MULTILINE):
            self.lock.unlink()
            fail(f"the lock would hold an address or an option: {found[0]!r}")
        self.lock.write_text(f"# Written by `python3 dev.py lock`.\n# inputs: {lock_inputs()}\n{pins}")


BOOTSTRAP = Environment(ROOT / ".venv", "bootstrap")
DEV = Environment(ROOT / ".venv", "dev")
LOWEST = Environment(ROOT / ".venv-lowest", "test", resolution="lowest-direct", extra="pydantic")


def test_lowest() -> None:
    """Run the smoke tests with the lowest versions that pyproject.toml allows."""
    LOWEST.make()
    # Old releases may warn under a newer Python; that is not what is tested here.
    smoke: Command = [LOWEST.python, "-m", "pytest", "-m", "smoke", "-q", "-W", "default", "-p", "no:cacheprovider"]
    no_tests_collected = 5
    stage(
        "pytest -m smoke: with the lowest allowed versions",
        smoke,
        env=child_environment(LOWEST),
        accept=(0, no_tests_collected),
    )


def check_locks() -> None:
    """Stop when pyproject.toml asks for something that the locks do not know yet."""
    for environment in (BOOTSTRAP, DEV, LOWEST):
        if f"# inputs: {lock_inputs()}\n" not in environment.lock.read_text():
            fail(f"{environment.lock.relative_to(ROOT)} is older than pyproject.toml: run python3 dev.py lock")


def lock_inputs() -> str:
    """What the locks depend on, as one short digest."""
    project = tomllib.loads(PYPROJECT.read_text())
    about = project["project"]
    asked = [
        about["requires-python"],
        about["dependencies"],
        about["optional-dependencies"],
        project["dependency-groups"],
    ]
    return digest(json.dumps(asked, sort_keys=True).encode())[:16]


# --- running things ----------------------------------------------------------------------------------------------


def stage(
    title: str,
    command: Sequence[str | Path],
    *,
    env: dict[str, str] | None = None,
    accept: Sequence[int] = (0,),
    may_fail: bool = False,
    hint: str = "",
) -> bool:
    """Run one command, say what it is for and how long it took; stop everything when it fails, unless it may."""
    announce(title)
    started = time.monotonic()
    parts = [str(part) for part in command]
    # One stream, so that the last line of a log is the last thing that happened.
    code = subprocess.run(parts, env=env or child_environment(DEV), stderr=subprocess.STDOUT, check=False).returncode
    passed = code in accept
    print(f"    {'done' if passed else f'failed (exit code {code})'} in {time.monotonic() - started:.1f} s", flush=True)
    if not passed and not may_fail:
        fail(f"stopped at: {title}" + (f" ({hint})" if hint else ""), code)
    return passed


def hand_over(command: Sequence[str | Path]) -> NoReturn:
    """Become the command: its signals, its exit code, and its last line are its own."""
    parts = [str(part) for part in command]
    sys.stdout.flush()
    if WINDOWS:
        sys.exit(subprocess.run(parts, env=child_environment(DEV), check=False).returncode)
    os.execve(parts[0], parts, child_environment(DEV))  # noqa: S606 - no shell is wanted


def child_environment(environment: Environment) -> dict[str, str]:
    """The caller's variables, with the tools of an environment first, less those that would change what is run.

    Without bytecode every one of the many processes that the tests start would compile the whole project anew.
    """
    unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if key not in unwanted}
    env["PATH"] = os.pathsep.join([str(environment.path / BIN), env.get("PATH", os.defpath)])
    return env


def uv_environment() -> dict[str, str]:
    """The caller's variables for uv, which reads no pip.conf: pip's package index and certificates, handed on."""
    env = child_environment(DEV)
    pip = pip_settings()
    if index := pip.get("index-url"):
        env.setdefault("UV_DEFAULT_INDEX", index)
    if certificates := pip.get("cert"):
        env.setdefault("SSL_CERT_FILE", certificates)
    return env


def announce(title: str) -> None:
    print(f"==> {title}", flush=True)


def fail(message: str, code: int = 1) -> NoReturn:
    print(f"dev.py: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


# --- small questions ---------------------------------------------------------------------------------------------


def spread(pytest_args: Sequence[str]) -> list[str]:
    """Two test processes, unless the arguments say otherwise or ask for a debugger."""
    alone = any(
        arg.startswith(("-n", "--numprocesses", "--pdb", "--trace")) or arg == "no:xdist" for arg in pytest_args
    )
    return [] if alone else ["-n", "2", "--dist", "worksteal"]


def pip_settings() -> dict[str, str]:
    """Return what pip was told by its files and variables, the strongest last: `[global]`, `[install]`, `PIP_...`."""
    command = [PYTHON, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        settings |= dict(re.findall(rf"^{section}\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    return settings


def has_python(path: Path) -> bool:
    return path.suffix == ".py" or any(path.rglob("*.py"))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let two calls at once not build the same environment (where the system has flock)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (ROOT / ".venv.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
