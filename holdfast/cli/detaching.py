"""Detaching: a run in a process of its own that outlives the one that started it.

Owns: starting that process in its own session, its log file, and the word that its run is committed.
On crash: of the starter: the run is there or it is not; of the process: `holdfast resume` goes on with the run.
"""

from __future__ import annotations

import json as stdlib_json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.cli import output
from holdfast.store.urls import database_file


def start(target: str, inputs: dict[str, Any], url: str, options: list[str], *, json: bool) -> int:
    """Start the process, wait until its run is committed, print the run's id; the exit code."""
    log = log_file(url)
    command = [sys.executable, "-m", "holdfast", "run", target, "--input", "-", *options]
    environment = os.environ | {"HOLDFAST_DATABASE_URL": url}  # a command line is for everybody to see
    reader, writer = os.pipe()
    command += ["--report-fd", str(writer)]
    with tempfile.TemporaryFile() as stdin, os.fdopen(reader, "rb") as answer:
        stdin.write(stdlib_json.dumps(inputs).encode())
        stdin.seek(0)
        try:
            with _opened(log) as stream:
                process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=stream,
                    stderr=stream,
                    env=environment,
                    pass_fds=(writer,),
                    start_new_session=True,
                )
        finally:
            os.close(writer)
        said = answer.readline()
    if not said:
        code = process.wait()
        message = f"the engine process ended with exit code {code} before the run was committed; see {log}"
        return output.complain("store_error", message, output.FAILED)
    told = stdlib_json.loads(said)
    if "error" in told:
        process.wait()
        return output.complain(told["error"]["code"], told["error"]["message"], process.returncode or output.FAILED)
    process.returncode = 0  # it lives on, and is nobody's to wait for
    if json:
        output.document({"run_id": told["run_id"], "pid": process.pid, "log": str(log)})
    else:
        output.write(output.line(told["run_id"]))
        output.note(told["over"] or f"running in the background (pid {process.pid}); its log is {log}")
    return output.OK


def tell(fd: int | None, what: dict[str, Any]) -> None:
    """In that process: the run is committed, or it never will be. Said once."""
    if fd is None:
        return
    with suppress(OSError):
        os.write(fd, stdlib_json.dumps(what).encode() + b"\n")
        os.close(fd)


def log_file(url: str) -> Path:
    """One log for all detached engines of a database: beside its file, else in the working directory."""
    path = database_file(url)
    return Path("holdfast.log").absolute() if path is None else path.with_name(path.name + ".log")


def _opened(path: Path) -> Any:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
    except OSError:
        return open(os.devnull, "ab")  # the engine will say what is wrong with that place
