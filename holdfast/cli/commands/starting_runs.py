"""`holdfast run` and `start`: start a workflow and watch it, or leave it to a worker.

Owns: both verbs, and `run --detach`: a process in a session of its own that outlives the command which started it.
On crash: of the detaching command, the run is committed or it is not; of its process, `holdfast resume` continues it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json as stdlib_json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import configuration, inputs, output, wording
from holdfast.cli.driving import drive_and_report, driven_elsewhere
from holdfast.cli.options import (
    Db,
    Driving,
    GivenInput,
    HandlerCode,
    InputAssignments,
    Json,
    NewRunId,
    Target,
    with_groups,
)
from holdfast.cli.process_setup import prepare_to_drive
from holdfast.engine.engine import Engine
from holdfast.engine.run_handle import Run
from holdfast.model import texts
from holdfast.model.errors import HoldfastError
from holdfast.model.policies import seconds
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.opening import open_engine, undriven_runs
from holdfast.store.row_types import RunRow
from holdfast.store.urls import database_file
from holdfast.worker import trust
from holdfast.worker.targets import load_workflow


@with_groups
def run(
    target: Target,
    driving: Driving,
    given: GivenInput = None,
    assignments: InputAssignments = None,
    run_id: NewRunId = None,
    code: HandlerCode = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Fail the run after this time: 90, 90s, 1h30m.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; print the run's id.")] = False,
    report_fd: Annotated[int | None, typer.Option("--report-fd", hidden=True)] = None,
) -> int:
    """Run a workflow and watch it; print its result.

    Drives only this run. If this process dies, `holdfast resume` continues it. Ctrl-C stops in order, so that the run
    can be resumed; a second Ctrl-C cancels it.

    \b
    Examples:
      holdfast run shop.py:fulfil --input '{"order": {"id": "42", "amount": 1500}}'
      holdfast run shop.py:fulfil --input @order.json --run-id order-42 --detach
      holdfast run hello.py --set name=Ada --json
      holdfast run flow.yaml:diamond --code handlers.py --set n=5

    \b
    Exit codes: 0 completed, 1 failed, 2 wrong usage (nothing was started), 3 suspended
    (it waits for a person or another program), 4 cancelled, 130 interrupted.
    """
    values, url = inputs.read(given, assignments or ()), driving.url()
    limit = None if timeout is None else _seconds(timeout)
    if detach:
        extra = [part for text in assignments or () for part in ("--set", text)]
        extra += ["--run-id", run_id] if run_id is not None else []
        extra += ["--timeout", timeout] if timeout is not None else []
        extra += [part for place in code or () for part in ("--code", place)]
        return _detach(target, values, url, extra, json=driving.json)
    with output.only_json(driving.json):
        try:
            workflow, files = load_workflow(target, code or ())
            inputs.keep_text(values, assignments or (), workflow.definition.params)
            prepare_to_drive()
            order = _Order(workflow, files, values, run_id, limit, driving.quiet, report_fd)
            return drive_and_report(url, order.begin, json=driving.json, quiet=driving.quiet, since=order.since)
        except HoldfastError as error:
            _report_to_starter(report_fd, {"error": {"code": error.code, "message": error.message}})
            raise


def _seconds(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    return seconds(text)


class _Order:
    """The run to start."""

    def __init__(
        self,
        workflow: Any,
        files: set[str],
        values: dict[str, Any],
        run_id: str | None,
        timeout: float | None,
        quiet: bool,
        fd: int | None,
    ) -> None:
        self.workflow = workflow
        self.files = files
        self.values = values
        self.run_id = run_id
        self.timeout = timeout
        self.quiet = quiet
        self.report_fd = fd
        self.since: dict[int, int] = {}
        """The journal position from which a run that existed before is narrated."""

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        trust.remember(engine.store_id, self.files)
        over = await self._ended_before(engine)
        run = await engine.start(self.workflow, run_id=self.run_id, timeout=self.timeout, **self.values)
        about = f"run {output.line(run.run_id)}"
        if over is not None:
            self.since[over.run_no] = over.last_seq  # what it did long ago is not narrated as if it happened now
            about = f"{wording.status_text(over, already=True)}; nothing runs again"
        _report_to_starter(self.report_fd, {"run_id": run.run_id, "over": about if over is not None else None})
        if not self.quiet:
            _print_notes(engine, run, about)
        return [run]

    async def _ended_before(self, engine: Engine) -> RunRow | None:
        """The run, if it had ended before this command."""
        if self.run_id is None or not texts.is_name(self.run_id):  # the start refuses one that is no id
            return None
        row = await engine.runtime.read(engine.store.run, self.run_id)
        return row if row is not None and row.status in RUN_TERMINAL else None


def _print_notes(engine: Engine, run: Run[Any], about: str) -> None:
    output.note(about)
    if elsewhere := driven_elsewhere(engine, run):
        output.note(elsewhere)
    others = undriven_runs(engine, run.run_id)
    if others:
        what = "is 1 other unfinished run" if others == 1 else f"are {others:,} other unfinished runs"
        output.note(f"there {what} that no engine drives: `holdfast resume --all`")


# --- start ----------------------------------------------------------------------------------------------------------


def start(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME|NAME[@ALIAS]",
            help="The workflow in a file; or what was deployed under a name.",
            show_default=False,
        ),
    ],
    given: GivenInput = None,
    assignments: InputAssignments = None,
    run_id: NewRunId = None,
    code: HandlerCode = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="The queue of the run; else that of the workflow.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="Runs of a workflow with a higher priority are started first.")
    ] = None,
    rollout_key: Annotated[
        str | None,
        typer.Option("--rollout-key", help="Decides between the versions of an alias; else the run's id does."),
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Start a run without driving it: it is stored, and a worker claims it. Prints the run's id.

    By name no code is loaded here: the database has the definition. NAME@ALIAS and NAME@VERSION say which version; NAME
    alone means the alias `stable` if there is one, else the latest.

    \b
    Examples:
      holdfast start shop.py:fulfil --input @order.json --run-id order-42
      holdfast start fulfil@canary --input @order.json --rollout-key customer-7
      holdfast start reports.py:monthly --set month=2024-05 --queue slow
    """
    values, url = inputs.read(given, assignments or ()), configuration.database_url(db)
    with output.only_json(json):
        options = {"run_id": run_id, "queue": queue, "priority": priority, "rollout_key": rollout_key}
        if _is_name(target):
            started = asyncio.run(_start(url, target, set(), values, options))
        else:
            workflow, files = load_workflow(target, code or ())
            inputs.keep_text(values, assignments or (), workflow.definition.params)
            started = asyncio.run(_start(url, workflow, files, values, options))
    if json:
        output.document(started)
    else:
        output.write(output.line(started["run_id"]))


def _is_name(target: str) -> bool:
    """Whether a target is the name of a deployed workflow: NAME@ALIAS always is, NAME unless a module is called so."""
    if "@" in target:
        return True
    return target.isidentifier() and importlib.util.find_spec(target) is None and not Path(f"{target}.py").exists()


async def _start(
    url: str, workflow: Any, files: set[str], values: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    async with open_engine(url, drive=False) as engine:
        trust.remember(engine.store_id, files)
        run = await engine.start(workflow, **options, **values)
        return {"run_id": run.run_id, "status": await run.status()}


# --- run --detach ---------------------------------------------------------------------------------------------------


def _detach(target: str, values: dict[str, Any], url: str, options: list[str], *, json: bool) -> int:
    """Start the process, wait until its run is committed, and print the run's id; the exit code."""
    log = _log_file(url)
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "holdfast", "run", target, "--input", "-", *options, "--report-fd", str(writer)]
    environment = os.environ | {"HOLDFAST_DATABASE_URL": url}  # other users can see a command line
    with tempfile.TemporaryFile() as stdin, os.fdopen(reader, "rb") as answer:
        stdin.write(stdlib_json.dumps(values).encode())
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
        line = answer.readline()
    if not line:
        code = process.wait()
        message = f"the engine process ended with exit code {code} before the run was committed; see {log}"
        return output.complain("store_error", message, output.FAILED)
    reported = stdlib_json.loads(line)
    if "error" in reported:
        process.wait()
        error = reported["error"]
        return output.complain(error["code"], error["message"], process.returncode or output.FAILED)
    process.returncode = 0  # it outlives this process, which does not wait for it
    if json:
        output.document({"run_id": reported["run_id"], "pid": process.pid, "log": str(log)})
    else:
        output.write(output.line(reported["run_id"]))
        output.note(reported["over"] or f"running in the background (pid {process.pid}); its log is {log}")
    return output.OK


def _report_to_starter(fd: int | None, what: dict[str, Any]) -> None:
    """In the detached process: report, once, that the run is committed or never will be."""
    if fd is None:
        return
    with suppress(OSError):
        os.write(fd, stdlib_json.dumps(what).encode() + b"\n")
        os.close(fd)


def _log_file(url: str) -> Path:
    """One log for all detached engines of a database: beside its file, else in the working directory."""
    path = database_file(url)
    return Path("holdfast.log").absolute() if path is None else path.with_name(path.name + ".log")


def _opened(path: Path) -> Any:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
    except OSError:
        return open(os.devnull, "ab")  # the engine reports what is wrong with that directory
