"""The promise in half a minute: a run is killed half-way with SIGKILL, resumed, and loses nothing.

    make run
    python examples/crash_demo.py

A photo album is developed, three pictures at a time, by `holdfast run` in a process of its own. That process is killed
when half of the pictures are done. `holdfast resume` continues it with nothing but the database: what had completed is
reused, the three pictures that were under way are developed again, and the rest comes for the first time. The numbers
at the end are read from the run's journal, and checked against a list that the work itself kept on paper, so to speak:
a file to which every body wrote a line when it began.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast as hf

# --- the workflow ------------------------------------------------------------------------------------------------

PHOTOS = 12
AT_ONCE = 3


@hf.node(idempotent=True)
async def sort_photos(count: int) -> list[str]:
    return [f"photo {n:02}" for n in range(1, count + 1)]


@hf.node(idempotent=True)
async def develop(ctx: hf.Context, photo: str, seconds: float, paper: str) -> str:
    """Work that takes its time. It notes on paper that it began, whatever becomes of it."""
    if paper:
        with open(paper, "a", encoding="utf-8") as file:  # noqa: ASYNC230 - a line of text
            file.write(f"{photo}\n")
    await asyncio.sleep(seconds)
    return f"{photo}, developed"


@hf.node(idempotent=True)
async def bind(prints: list[str]) -> str:
    return f"an album of {len(prints)} pictures, from {prints[0]!r} to {prints[-1]!r}"


@hf.workflow
def album(count: int = PHOTOS, seconds: float = 0.5, paper: str = "") -> str:
    """Develop photos, a few at a time, and bind them."""
    return bind(hf.map(develop, sort_photos(count), limit=AT_ONCE, seconds=seconds, paper=paper))


# --- the demonstration -------------------------------------------------------------------------------------------

RUN_ID = "album-1"
WRONG_USAGE = 2
HOLDFAST = [sys.executable, "-m", "holdfast"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill a run half-way, resume it, and show what was reused.")
    parser.add_argument("--seconds", type=float, default=0.8, help="how long a picture takes (default: 0.8)")
    seconds: float = parser.parse_args(arguments).seconds
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        return demonstrate(Path(folder), seconds)


def demonstrate(folder: Path, seconds: float) -> int:
    database, paper = f"sqlite:///{folder}/album.db", folder / "paper.txt"
    paper.touch()
    inputs = json.dumps({"seconds": seconds, "paper": str(paper)})
    say(f"1. holdfast run examples/crash_demo.py:album    ({PHOTOS} photos, {AT_ONCE} at a time)")
    command = ["run", f"{__file__}:album", "--input", inputs, "--run-id", RUN_ID, "--db", database]
    with child(command) as process:
        if not wait_for_lines(paper, PHOTOS // 2 + AT_ONCE, process):
            say("The run ended before it could be killed; that should not happen.")
            return 1
        time.sleep(seconds / 2)  # half-way through the pictures that have just begun
        process.send_signal(signal.SIGKILL)
        process.wait()
    say(f"\n2. kill -9 {process.pid}    (the process is gone; only the database is left)")
    before = journal(database)
    say(f"   {len(before)} events are in its journal, and nobody drives the run")
    say(f"\n3. holdfast resume {RUN_ID}")
    command = ["resume", RUN_ID, "--db", database]
    with child(command) as process:
        code = process.wait()
    if code == WRONG_USAGE:  # code that others could have changed is not loaded by itself; here we say that we trust it
        with child([*command, "--code", __file__]) as process:
            code = process.wait()
    if code != 0:
        say(f"It could not be resumed (exit code {code}).")
        return 1
    return report(before, journal(database)[len(before) :], Counter(paper.read_text("utf-8").splitlines()))


def report(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], paper: Counter[str]) -> int:
    """Say what was reused and what ran again; 0 when that is what was promised."""
    done = instances(before, "NodeCompleted")
    started = instances(before, "NodeStarted")
    started_after = instances(after, "NodeStarted")
    under_way = started - done
    again = {i for i in started_after if i in started}
    first_time = started_after - again
    attempts = {e["data"]["attempt"] for e in after if e["type"] == "NodeStarted" and instance(e) in again}
    say("\n4. What the journal says")
    line("reused", len(done), "had completed before the kill; none of them ran again", done)
    line("run again", len(again), "were under way when the process died; now attempt 2", again)
    line("run once", len(first_time), "had not begun yet", first_time)
    twice = sorted(photo for photo, times in paper.items() if times > 1)
    counted = f"photos were begun, {len(paper)} different ones; twice: {', '.join(twice)}"
    say(f"   on paper   {sum(paper.values()):>2}  {counted}")
    kept = not (done & started_after) and again == under_way and attempts <= {2}
    kept = kept and set(twice) <= {photo_of(path) for node, path in again} and len(paper) == PHOTOS
    say("\nNothing was lost, and nothing that was done was done again." if kept else "\nThat is not what was promised!")
    return 0 if kept else 1


# --- small parts -------------------------------------------------------------------------------------------------


@contextmanager
def child(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A `holdfast` command in a process of its own, which writes to our terminal; it does not outlive us."""
    process = subprocess.Popen([*HOLDFAST, *arguments])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if sys.stdout.isatty():
            print("\x1b[?25h", end="")  # a live view that was killed could not bring the cursor back


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until so many bodies have begun; False when the process ended first."""
    give_up = time.monotonic() + 60
    while len(file.read_text("utf-8").splitlines()) < count:
        if process.poll() is not None or time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def journal(database: str) -> list[dict[str, Any]]:
    """Every event of the run, as `holdfast events --json` prints them: one a line."""
    command = [*HOLDFAST, "events", RUN_ID, "--json", "--db", database]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(text) for text in printed.splitlines()]


def instance(event: dict[str, Any]) -> tuple[str, str]:
    return event["node"], event["path"]


def instances(events: Sequence[dict[str, Any]], kind: str) -> set[tuple[str, str]]:
    """The node instances that events of one type are about; the map itself, which has no body, is left out."""
    return {instance(e) for e in events if e["type"] == kind and instance(e) != ("develop", ".")}


def photo_of(path: str) -> str:
    """`.develop.6.` is the seventh item of the map, `photo 07`."""
    return f"photo {int(path.split('.')[-2]) + 1:02}"


def line(word: str, count: int, meaning: str, which: set[tuple[str, str]]) -> None:
    photos = sorted(photo_of(path).removeprefix("photo ") for node, path in which if node == "develop")
    names = [f"photos {', '.join(photos)}"] if photos else []
    nodes = {node for node, _ in which}
    names = ["sort_photos"] * ("sort_photos" in nodes) + names + ["bind"] * ("bind" in nodes)
    say(f"   {word:<10} {count:>2}  {meaning}: {', then '.join(names)}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    sys.exit(main())
