"""`holdfast bench`: measure the engine on this machine's disk, or on a server."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import options, output
from holdfast.cli.bench.targets import BY_NAME, suites_of
from holdfast.cli.bench.targets import SUITES as NAMES
from holdfast.model.errors import UsageError
from holdfast.store.urls import is_postgres


def bench(
    suite: Annotated[
        str,
        typer.Option(
            help=f"What to measure, separated by commas: {', '.join(NAMES)}; all (but {' and '.join(BY_NAME)}, "
            "which take 2 GB of the disk each); or quick (tiny sizes). engines needs a server, explorer none."
        ),
    ] = "all",
    db: Annotated[
        str | None,
        typer.Option(
            "--db", metavar="URL", help="Measure this PostgreSQL, in schemas that are made for it; else SQLite files."
        ),
    ] = None,
    db_dir: Annotated[
        Path | None,
        typer.Option(
            help="The directory whose disk is measured, which should be the server's if there is one; else the working "
            "directory."
        ),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="How often each figure is measured; the median counts. Else 3 or 5.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure this machine.

    Every figure is measured together with `ref`, the raw commits per second of the same disk just before and after it,
    and compared with what it should be. The whole takes some minutes; leave the machine alone meanwhile.
    """
    if db is not None and not is_postgres(db):
        raise UsageError("--db names a PostgreSQL server; the directory of SQLite files is named by --db-dir")
    names, quick = _suites(suite, served=db is not None)
    with output.only_json(json), _directory(db_dir) as directory:
        report = _measure(names, quick, directory, repeat, db)
        if json:
            output.document(report)
            return
        from holdfast.cli.bench.report import lines

        for line in lines(report, judged=not quick):
            output.write(line)


def _suites(text: str, *, served: bool) -> tuple[list[str], bool]:
    """The suites that were asked for, in their own order, and whether only to look whether they work."""
    names = suites_of(served=served)
    asked = {part.strip().lower() for part in text.split(",") if part.strip()}
    if asked == {"quick"}:
        return list(names), True
    if asked == {"all"}:
        return [name for name in names if name not in BY_NAME], False
    known = {name.lower() for name in names}
    if not asked or asked - known:
        unknown = ", ".join(sorted(asked - known)) or "nothing"
        where = "on a server" if served else "without a server (--db)"
        raise UsageError(f"there is no suite {unknown} {where}; choose from {', '.join(names)}, or all, or quick")
    return [name for name in names if name.lower() in asked], False


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """A new directory on the disk to be measured, gone afterwards."""
    parent = Path.cwd() if wanted is None else wanted
    if not parent.is_dir():
        raise UsageError(f"{parent} is not a directory; make it first, or choose another with --db-dir")
    try:
        made = tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"{parent} cannot be written ({error.strerror}); choose another with --db-dir") from None
    with made as path:
        yield Path(path).resolve()


@contextmanager
def _own_process() -> Iterator[None]:
    """As in the processes that are ours."""
    from holdfast.cli.tuning import tune

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    tune()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def _measure(names: list[str], quick: bool, directory: Path, repeat: int | None, server: str | None) -> dict[str, Any]:
    from holdfast.cli.bench import machine, places, report, targets
    from holdfast.cli.bench.reference import FULL, QUICK, Bench
    from holdfast.cli.bench.suites import SUITES

    about = machine.describe(directory, None if server is None else places.server_version(server))
    if about["filesystem"] in machine.IN_MEMORY:
        output.note(
            f"{directory.parent} is in memory ({about['filesystem']}): commits cost nothing there; use --db-dir"
        )
    repeat = 1 if quick and repeat is None else repeat
    measured = Bench(directory, QUICK if quick else FULL, repeat, output.note, server)
    results: dict[str, dict[str, Any]] = {}
    with _own_process():
        measured.reference()
        for name in names:
            output.note(f"{output.paint(name, 'bold', sys.stderr)}: {SUITES[name].__doc__}")
            results[name] = SUITES[name](measured)
    references = sorted(measured.references)
    found: dict[str, Any] = {
        "reference": {
            "commits_per_s": references[len(references) // 2],
            "lowest": references[0],
            "highest": references[-1],
            "times": len(references),
        },
        **results,
        "verdicts": [] if quick else targets.judge(results, served=server is not None),
        "machine": about,
    }
    cleaned: dict[str, Any] = report.rounded(found)
    return cleaned
