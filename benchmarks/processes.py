"""Processes: for what is measured in a process of its own, because it is killed, or because its memory is the figure.

Owns: starting such a child, a line of JSON from it at a time, letting it go on, and what it says about itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def child(module: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does one of the works of a module of the benchmark; it does not outlive the block."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    with subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process: subprocess.Popen[bytes]) -> Figures:
    """What a child says next."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a child process of the benchmark failed; its error is above")
    found: Figures = json.loads(line)
    return found


def tell(process: subprocess.Popen[bytes]) -> None:
    """Let a child that waits for it go on."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def ask(module: str, *arguments: object) -> Figures:
    """The one thing that a child says; it ends by itself."""
    with child(module, *arguments) as process:
        answer = hear(process)
        process.wait()
    return answer


def run(*arguments: str) -> str:
    """What a Python process prints that has nothing to do with the benchmark."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def say(answer: Figures) -> None:
    """The child's side."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def memory_mib(name: str) -> float:
    """What the kernel says about this process; the peak where it only tells that."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 / 1024 if sys.platform == "darwin" else peak / 1024


def _environment() -> dict[str, str]:
    """Children find this package wherever they are started, and keep compiled modules as an installation does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])}
