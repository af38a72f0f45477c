"""`holdfast bench`: measure the engine on this machine's disk, or on a server.

Owns: the choice of suites, the directory that is measured, and the report as text and as JSON. Further suites, with
floors and aims, are in `benchmarks/` of a checkout; they use the same functions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import options, output, workloads
from holdfast.cli.measuring import DRIFT_MAX, Bench, Figures, S, Sizes, describe, rounded, tuned
from holdfast.model.errors import UsageError
from holdfast.store.urls import is_postgres

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems on which a commit costs nothing and promises nothing."""

SUITES: dict[str, Callable[[Bench[Sizes]], Figures]] = {"W1": workloads.w1, "W2": workloads.w2, "W4": workloads.w4}
QUICK = Sizes(reference_seconds=0.03, chains=1, runs=20, turns=10)
"""Only shows that every suite works."""

Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Measure this PostgreSQL, in schemas made for it; else SQLite files."),
]
DbDir = Annotated[
    Path | None,
    typer.Option(help="The directory whose disk is measured (that of the server, if there is one); else this one."),
]
Repeat = Annotated[
    int | None, typer.Option(min=1, help="How often each figure is measured; the median counts. Else 3 or 5.")
]


def bench(
    suite: Annotated[str, typer.Option(help="W1, W2, W4 (separated by commas), all, or quick (tiny sizes).")] = "all",
    db: Db = None,
    db_dir: DbDir = None,
    repeat: Repeat = None,
    json: options.Json = False,
) -> None:
    """Measure this machine: the time of a durable step (W1), steps per second (W2), the time of a short run (W4).

    Every figure is measured together with `ref`, the raw commits per second of the same disk just before and after it.
    It takes about two minutes; leave the machine idle meanwhile.

    \b
    Examples:
      holdfast bench --suite quick
      holdfast bench --suite W2 --db-dir /mnt/fast --json
    """
    names, quick = choose(suite, list(SUITES))
    with measured_directory(db, db_dir) as directory, output.only_json(json):
        sizes = QUICK if quick else Sizes()
        report = measure({n: SUITES[n] for n in names}, Bench(directory, sizes, repeat or (1 if quick else None), db))
        if json:
            output.document(report)
            return
        rows = [(name if not n else "", text) for name in names for n, text in enumerate(_told(name, report[name]))]
        for line in [*output.table(("SUITE", "MEASURED"), rows), *closing_lines(report, quick=quick)]:
            output.write(line)


def choose(text: str, names: Sequence[str], *, by_name: Sequence[str] = ()) -> tuple[list[str], bool]:
    """The suites that `--suite` names, in their own order, and whether sizes are tiny; `all` leaves out those of
    `by_name`. Raises UsageError."""
    asked = {part.strip().lower() for part in text.split(",") if part.strip()}
    if asked == {"quick"}:
        return list(names), True
    if asked == {"all"}:
        return [name for name in names if name not in by_name], False
    unknown = asked - {name.lower() for name in names}
    if unknown or not asked:
        what = ", ".join(sorted(unknown)) or "''"
        raise UsageError(f"there is no suite {what} here; choose from {', '.join(names)}, or all, or quick")
    return [name for name in names if name.lower() in asked], False


@contextmanager
def measured_directory(db: str | None, wanted: Path | None) -> Iterator[Path]:
    """Yield a new directory on the disk to be measured; remove it at the end. Raises UsageError."""
    if db is not None and not is_postgres(db):
        raise UsageError("--db names a PostgreSQL server; the directory of SQLite files is named by --db-dir")
    parent = Path.cwd() if wanted is None else wanted
    if not parent.is_dir():
        raise UsageError(f"{parent} is not a directory; make it first, or choose another with --db-dir")
    try:
        made = tempfile.TemporaryDirectory(prefix=".holdfast-bench-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(f"{parent} cannot be written ({error.strerror}); choose another with --db-dir") from None
    with made as path:
        yield Path(path).resolve()


def measure(suites: Mapping[str, Callable[[Bench[S]], Figures]], bench: Bench[S]) -> dict[str, Any]:
    """Run the suites and return the report: reference, figures by suite, and the machine."""
    machine = describe(bench.directory, bench.server)
    if machine["filesystem"] in IN_MEMORY:
        where = f"{bench.directory.parent} is in memory ({machine['filesystem']})"
        bench.say(f"{where}: commits cost nothing there; choose a directory on a disk with --db-dir")
    results: dict[str, Figures] = {}
    with tuned():
        bench.reference()
        for name, suite in suites.items():
            bench.say(f"{name}: {suite.__doc__}")
            results[name] = suite(bench)
    references = sorted(bench.references)
    reference = {
        "commits_per_s": references[len(references) // 2],
        "lowest": references[0],
        "highest": references[-1],
        "times": len(references),
    }
    report: dict[str, Any] = rounded({"reference": reference, **results, "machine": machine})
    return report


def _told(suite: str, figures: Figures) -> list[str]:
    """The figures of a suite as lines of text."""
    f = figures
    match suite:
        case "W1":
            ways = (("a step of a graph", ""), ("a ctx.step", "step_"))
            return [f"{what}: {_latency(figures, prefix)}" for what, prefix in ways]
        case "W2":
            headline = f"{f['steps_per_s']:,.0f} steps/s, {f['x_ref']:.1f} times the raw commits"
            return [
                f"1,000 runs of 10 steps: {headline}, {f['cpu_us_per_step']:.1f} µs of CPU per step",
                f"with bodies that never await: {f['no_await_steps_per_s']:,.0f} steps/s, "
                f"{f['no_await_cpu_us_per_step']:.1f} µs of CPU per step",
            ]
    return [f"a one-node run from start to end: {_latency(figures, '')}"]


def _latency(figures: Figures, prefix: str) -> str:
    p50, p99, commits = (figures[f"{prefix}{name}"] for name in ("p50_ms", "p99_ms", "commits"))
    return f"p50 {p50:.3f} ms ({commits:.2f} raw commits), p99 {p99:.3f} ms"


def closing_lines(report: dict[str, Any], *, quick: bool) -> list[str]:
    """The reference, the machine, and what a reader of the figures must know."""
    reference, machine = report["reference"], report["machine"]
    rates = [f"{reference[name]:,.0f}" for name in ("commits_per_s", "lowest", "highest")]
    load = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    database = machine["server"] or f"SQLite {machine['sqlite']}"
    found = [
        "",
        f"raw commits/s (ref): {rates[0]}, from {rates[1]} to {rates[2]}",
        f"holdfast {machine['holdfast']}, Python {machine['python']}, {output.line(database)}, {machine['cpus']} x "
        f"{output.line(machine['cpu'])}, {machine['filesystem'] or 'unknown file system'}{load}",
    ]
    suites = [name for name, about in report.items() if isinstance(about, dict) and about.get("drift", 0) > DRIFT_MAX]
    if suites:
        found.append(f"the disk was unsteady during {', '.join(suites)}: measure again when the machine is idle")
    if quick:
        found.append("tiny sizes: these figures only show that every suite works")
    return found
