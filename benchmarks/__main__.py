"""The command line of the full benchmark: `python -m benchmarks`.

It has the options of `holdfast bench` and more suites, and compares each figure with its floor and aim.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from benchmarks import figures, report
from benchmarks.sizes import FULL, QUICK
from benchmarks.suites import SUITES
from holdfast.cli import options, output
from holdfast.cli.commands.bench import Db, DbDir, Repeat, choose, measure, measured_directory
from holdfast.cli.main import run_app
from holdfast.cli.measuring import Bench

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def bench(
    suite: Annotated[
        str,
        typer.Option(
            help=f"What to measure, separated by commas: {', '.join(SUITES)}; "
            f"all (but {' and '.join(figures.BY_NAME)}, which take 2 GB of the disk each); or quick (tiny sizes). "
            "engines needs a server, explorer none."
        ),
    ] = "all",
    db: Db = None,
    db_dir: DbDir = None,
    repeat: Repeat = None,
    json: options.Json = False,
) -> None:
    """Measure this machine with every suite; four to six minutes, or minutes more for each suite that is named."""
    served = db is not None
    names, quick = choose(suite, figures.suites_of(served=served), by_name=figures.BY_NAME)
    with measured_directory(db, db_dir) as directory, output.only_json(json):
        measured = Bench(directory, QUICK if quick else FULL, repeat or (1 if quick else None), db)
        found = measure({name: SUITES[name] for name in names}, measured)
        catalogue = figures.figures_of(served=served)
        found["verdicts"] = [] if quick else report.judge(found, catalogue)
        if json:
            output.document(found)
            return
        for line in report.lines(found, catalogue, judged=not quick):
            output.write(line)


if __name__ == "__main__":
    sys.exit(run_app(app, sys.argv[1:], "python -m benchmarks"))
