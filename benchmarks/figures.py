"""Figures: the floor and the aim of each figure, and the order in which they are shown."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.report import Figure

FIGURES = (
    Figure("W1", "commits", "a step of a graph, p50, in raw commits", "{:.2f}", 2.8, 2.0),
    Figure("W1", "p50_ms", "the same in ms", "{:.3f}"),
    Figure("W1", "p99_ms", "p99 in ms", "{:.3f}"),
    Figure("W1", "step_commits", "a ctx.step, p50, in raw commits", "{:.2f}", 2.8, 2.0),
    Figure("W1", "step_p50_ms", "the same in ms", "{:.3f}"),
    Figure("W1", "step_p99_ms", "p99 in ms", "{:.3f}"),
    Figure("W1", "bare_p50_ms", "a step of a bare loop on this server, p50 in ms", "{:.3f}", served=True),
    Figure("W1", "x_bare", "ours against it", "{:.2f}", served=True),
    Figure("W2", "x_ref", "1,000 runs of 10 steps, steps/s in raw commits", "{:.1f}", 4, 7, True,
           ("steps_per_s", 20_000)),
    Figure("W2", "steps_per_s", "the same in steps/s", "{:,.0f}"),
    Figure("W2", "cpu_us_per_step", "CPU per step in µs", "{:.1f}", 50, 40),
    Figure("W2", "no_await_steps_per_s", "steps/s of bodies that never await", "{:,.0f}"),
    Figure("W2", "no_await_cpu_us_per_step", "CPU per step of these in µs", "{:.1f}"),
    Figure("W2", "group", "runs per commit", "{:,.0f}"),
    Figure("W2", "bare_steps_per_s", "steps/s of a bare loop on this server", "{:,.0f}", served=True),
    Figure("W2", "x_bare", "ours against it", "{:.2f}", served=True),
    Figure("W2x", "cpu_ratio", "CPU per step of 10,000 runs against 1,000", "{:.2f}", 1.4, 1.4),
    Figure("W2x", "cpu_us_per_step", "CPU per step of 10,000 runs in µs", "{:.1f}"),
    Figure("W2x", "steps_per_s", "steps/s of 10,000 runs", "{:,.0f}"),
    Figure("W3", "x_ref", "1,000 parallel nodes and a join, steps/s in raw commits", "{:.1f}", 4, 8, True),
    Figure("W3", "steps_per_s", "the same in steps/s", "{:,.0f}"),
    Figure("W3", "cpu_us_per_step", "CPU per step in µs", "{:.1f}"),
    Figure("W4", "commits", "a one-node run from start to end, p50, in raw commits", "{:.2f}", 6, 4),
    Figure("W4", "p50_ms", "the same in ms", "{:.3f}"),
    Figure("W4", "p99_ms", "p99 in ms", "{:.3f}"),
    Figure("W5", "seconds", "kill -9 at half of 10,000 steps: from restart to all done, in s", "{:.2f}", 2, 0.7),
    Figure("W5", "run_twice", "steps that ran twice", "{:,.0f}"),
    Figure("restart", "first_seconds", "100,000 runs wait, 1,000 were cut off: until the first goes on, in s", "{:.2f}",
           1, 1),
    Figure("restart", "all_seconds", "the same until all 1,000 go on, in s", "{:.2f}", 5, 5),
    Figure("restart", "long_seconds", "a run with 1,000,000 events: from restart until it goes on, in s", "{:.2f}",
           2, 2),
    Figure("restart", "takeover_seconds", "until a living engine goes on with a dead one's run, in s", "{:.2f}", 1,
           0.5),
    Figure("restart", "takeover_after_lease_seconds", "the same when it only stands still: beyond its lease, in s",
           "{:.2f}", 1, 1),
    Figure("W6", "seconds", "1,000 runs get their signal and do a step: until all are done, in s", "{:.3f}", 0.5, 0.15),
    Figure("W6", "evicted_seconds", "the same when none of them is in memory, in s", "{:.3f}"),
    Figure("W6", "cpu_us_per_run", "CPU per signal and run in µs", "{:.1f}"),
    Figure("W6", "evicted_cpu_us_per_run", "the same when none of them is in memory", "{:.1f}"),
    Figure("W7", "cpu_ratio", "one run of 50,000 steps: CPU of the last 1,000 against the first, p50", "{:.3f}", 1.2,
           1.05),
    Figure("W7", "cpu_ratio_mean", "the same by the mean", "{:.3f}"),
    Figure("W7", "cpu_us_first", "CPU of one of the first steps in µs, p50", "{:.1f}"),
    Figure("W8", "x_ref", "W2 with outputs of 1 KB, steps/s in raw commits", "{:.1f}", 2, 4, True),
    Figure("W8", "steps_per_s", "the same in steps/s", "{:,.0f}"),
    Figure("W8", "cpu_us_per_step", "CPU per step in µs", "{:.1f}"),
    Figure("small", "idle_mib", "an idle engine, RSS in MiB", "{:.1f}", 70, 70),
    Figure("small", "import_seconds", "import holdfast and its first name, in s", "{:.3f}", 0.25, 0.25),
    Figure("small", "help_seconds", "holdfast --help, the whole process, in s", "{:.3f}", 0.25, 0.25),
    Figure("small", "map_bytes_per_item", "bytes that each further item of a map takes", "{:,.0f}", 2_000, 500),
    Figure("doctor", "runs_per_s", "doctor: runs checked per second", "{:,.0f}", 20_000, 40_000, True),
    Figure("doctor", "events_per_s", "doctor --deep: events folded and linked per second", "{:,.0f}", 50_000, 60_000,
           True),
    Figure("explorer", "schedules_per_cpu_s", "crashtest of five nodes: schedules per second of CPU", "{:,.0f}", 1_000,
           1_000, True, served=False),
    Figure("explorer", "schedules_per_s", "the same by the clock", "{:,.0f}", served=False),
    Figure("explorer", "schedules", "schedules of that exploration", "{:,.0f}", served=False),
    Figure("explorer", "run_to_end", "of them run to their end, the others were proven alike", "{:,.0f}", served=False),
    Figure("waiting", "ready_seconds", "1,000,000 runs wait: from start until a new run is done, in s", "{:.2f}", 2, 2),
    Figure("waiting", "idle_mib", "the engine after 10 s, RSS in MiB", "{:.1f}", 150, 150),
    Figure("waiting", "idle_cpu_percent", "its CPU meanwhile, in percent of one core", "{:.2f}", 2, 2),
    Figure("waiting", "list_ms", "the newest 100 runs, in ms", "{:.1f}"),
    Figure("waiting", "list_suspended_ms", "the newest 100 that wait, in ms", "{:.1f}"),
    Figure("waiting", "inbox_ms", "the oldest 100 of 10,000 questions, in ms", "{:.1f}"),
    Figure("waiting", "respond_ms", "an answer, until it is applied, in ms", "{:.1f}"),
    Figure("waiting", "signal_ms", "a signal, until its run is done, in ms", "{:.1f}"),
    Figure("waiting", "fired_seconds", "100,000 timers due at once: until all have fired, in s", "{:.2f}", 10, 10),
    Figure("waiting", "done_seconds", "the same until all of their runs are done, in s", "{:.2f}"),
    Figure("waiting", "busy_worst_ms", "slowest step of another run meanwhile, in ms", "{:.1f}", 1_000, 1_000),
    Figure("waiting", "busy_p50_ms", "its p50 meanwhile, in ms", "{:.2f}"),
    Figure("waiting", "busy_before_ms", "its p50 before, in ms", "{:.2f}"),
    Figure("waiting", "timers_mib", "memory of the engine that fires them, peak in MiB", "{:.1f}"),
    Figure("flat", "run_ratio", "a run beside 1,000,000 finished ones, against beside 1,000", "{:.2f}", 1.5, 1.1),
    Figure("flat", "run_us", "the same in µs", "{:,.0f}"),
    Figure("flat", "claim_ratio", "claiming a run, in the same way", "{:.2f}", 1.5, 1.1),
    Figure("flat", "claim_us", "the same in µs", "{:.1f}"),
    Figure("flat", "list_ratio", "the newest 100 runs", "{:.2f}", 1.5, 1.1),
    Figure("flat", "list_ms", "the same in ms", "{:.2f}"),
    Figure("flat", "list_completed_ratio", "the newest 100 that have ended", "{:.2f}", 1.5, 1.1),
    Figure("flat", "list_completed_ms", "the same in ms", "{:.2f}"),
    Figure("flat", "list_created_ratio", "the newest 100 that no engine has claimed yet", "{:.2f}", 1.5, 1.1),
    Figure("flat", "list_created_ms", "the same in ms", "{:.2f}"),
    Figure("engines", "two_against_one", "two engines that share 1,000 runs, against one", "{:.2f}", served=True),
    Figure("engines", "one_steps_per_s", "one engine, in steps/s", "{:,.0f}", served=True),
    Figure("engines", "two_steps_per_s", "two engines, in steps/s", "{:,.0f}", served=True),
    Figure("engines", "one_cpu_us_per_step", "CPU per step of one engine in µs", "{:.1f}", served=True),
    Figure("engines", "two_cpu_us_per_step", "the same of two", "{:.1f}", served=True),
    Figure("engines", "busiest", "what the busier one has done of it", "{:.0%}", served=True),
)  # fmt: skip

SERVED: dict[tuple[str, str], tuple[float, float]] = {
    ("W1", "p50_ms"): (0.9, 0.9),
    ("W1", "x_bare"): (1.55, 1.55),
    ("W2", "x_ref"): (2.5, 4.0),
    ("restart", "takeover_after_lease_seconds"): (1.0, 1.0),
}
"""Floor and aim on a server; a file's do not apply to it, but those of `flat` and of memory do. A step of 0.9 ms was
asked for where a bare loop needs 0.58, which is 1.55 times as much."""
SERVED_ALIKE = ("flat", "small")

# What a map takes per further item is not zero: its input, its list of ended items, and what the join reads. These two
# numbers are ours: 2,000 bytes are 200 MB for 100,000 items.
BY_NAME = ("waiting", "flat")
"""Suites that are measured when they are named, not with all: each makes a database of 2 GB, and takes minutes."""


def figures_of(*, served: bool) -> tuple[Figure, ...]:
    """What is measured on a server, or on a file, and what is asked of it there."""
    found = [figure for figure in FIGURES if figure.served in (None, served)]
    return tuple(_on_server(figure) for figure in found) if served else tuple(found)


def _on_server(figure: Figure) -> Figure:
    if figure.suite in SERVED_ALIKE:
        return figure
    floor, aim = SERVED.get((figure.suite, figure.key), (None, None))
    return replace(figure, floor=floor, aim=aim, instead=None)


def suites_of(*, served: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys(figure.suite for figure in figures_of(served=served)))
