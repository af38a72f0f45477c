"""`holdfast run`: start a workflow, or go on with it, and watch it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from holdfast.cli import detaching, inputs, output, settings
from holdfast.cli.driving import drive
from holdfast.cli.logs import show_logs
from holdfast.cli.options import Db, GivenInput, GraceSeconds, InputAssignments, Json, LeaseSeconds, Quiet, Target
from holdfast.cli.reporting import report
from holdfast.cli.tuning import tune
from holdfast.engine.engine import Engine
from holdfast.engine.orders import check_run_id
from holdfast.engine.run_handle import Run
from holdfast.model.errors import HoldfastError
from holdfast.model.policies import seconds
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.opening import undriven_runs
from holdfast.store.row_types import RunRow
from holdfast.worker import trust
from holdfast.worker.loading import load_target, source_files


def command(
    target: Target,
    given: GivenInput = None,
    assignments: InputAssignments = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Your own id. The same id with the same input is the same run.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Fail the run after this time: 90, 90s, 1h30m.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; print the run's id.")] = False,
    quiet: Quiet = False,
    db: Db = None,
    json: Json = False,
    lease_seconds: LeaseSeconds = None,
    grace_seconds: GraceSeconds = None,
    report_fd: Annotated[int | None, typer.Option("--report-fd", hidden=True)] = None,
) -> int:
    """Run a workflow and watch it; print its result.

    Drives this run alone. If this process dies, `holdfast resume` goes on with it. Ctrl-C stops in order, so that the
    run can be resumed; a second Ctrl-C cancels it.

    \b
    Examples:
      holdfast run shop.py:fulfil --input '{"order": {"id": "42", "amount": 1500}}'
      holdfast run shop.py:fulfil --input @order.json --run-id order-42 --detach
      holdfast run hello.py --set name=Ada --json

    \b
    Exit codes: 0 completed, 1 failed, 2 wrong usage (nothing was started), 3 suspended
    (only a person or another program can move it), 4 cancelled, 130 interrupted.
    """
    values = inputs.read(given, assignments or ())
    url = settings.database_url(db)
    settings.engine_numbers(lease_seconds=lease_seconds, grace_seconds=grace_seconds)
    limit = None if timeout is None else _seconds(timeout)
    if detach:
        extra = [part for text in assignments or () for part in ("--set", text)]
        extra += ["--run-id", run_id] if run_id is not None else []
        extra += ["--timeout", timeout] if timeout is not None else []
        return detaching.start(target, values, url, extra, json=json)
    with output.only_json(json):
        try:
            module, workflow = load_target(target)
            inputs.keep_text(values, assignments or (), workflow.definition.params)
            show_logs()
            tune()
            order = _Order(workflow, source_files(module), values, run_id, limit, quiet, report_fd)
            endings = drive(url, order.begin, json=json, quiet=quiet, since=order.since)
        except HoldfastError as error:
            detaching.tell(report_fd, {"error": {"code": error.code, "message": error.message}})
            raise
        return report(url, endings, json=json)


class _Order:
    """What is to be started."""

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
        """From where in its journal a run is told that was there before."""

    async def begin(self, engine: Engine) -> Sequence[Run[Any]]:
        trust.remember(engine.store_id, self.files)
        over = await self._over(engine)
        run = await engine.start(self.workflow, run_id=self.run_id, timeout=self.timeout, **self.values)
        about = f"run {output.line(run.run_id)}"
        if over is not None:
            self.since[over.run_no] = over.last_seq  # what it did long ago is not told as if it happened now
            about = f"{about} has {over.status} already; nothing runs again"
        detaching.tell(self.report_fd, {"run_id": run.run_id, "over": about if over is not None else None})
        if not self.quiet:
            self._say(engine, run, about)
        return [run]

    async def _over(self, engine: Engine) -> RunRow | None:
        """The run, when it had ended before it was asked for here."""
        if self.run_id is None:
            return None
        check_run_id(self.run_id)
        row = await engine.read(engine.store.run, self.run_id)
        return row if row is not None and row.status in RUN_TERMINAL else None

    def _say(self, engine: Engine, run: Run[Any], about: str) -> None:
        output.note(about)
        said = driven_elsewhere(engine, run)
        if said:
            output.note(said)
        others = undriven_runs(engine, run.run_id)
        if others:
            what = "is 1 other unfinished run" if others == 1 else f"are {others:,} other unfinished runs"
            output.note(f"there {what} that no engine drives: `holdfast resume --all`")


def driven_elsewhere(engine: Engine, run: Run[Any]) -> str:
    """Who else drives a run; empty when we do, or nobody has to."""
    row = engine.store.run(run.run_id)
    if row is None or row.engine in (None, engine.lease.engine) or row.status in RUN_TERMINAL:
        return ""
    for other in engine.store.engines():
        if other.engine == row.engine:
            who = f"engine {other.engine} (pid {other.pid} on {output.line(other.host)})"
            return f"run {output.line(run.run_id)} is driven by {who}; following it"
    return ""


def _seconds(text: str) -> float:
    with suppress(ValueError):
        return float(text)
    return seconds(text)
