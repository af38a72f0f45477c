"""A fan-out: one node per file of a folder, a few at a time, and a join that takes all their results.

    python examples/fan_out.py
    holdfast run examples/fan_out.py:survey
    holdfast run examples/fan_out.py:survey --input '{"folder": "docs", "pattern": "*.md"}'

Shows `hf.map` over a list that only exists when the workflow runs. Each file is an item with a journal, retries and a
timeout of its own (`.measure.0.`, `.measure.1.`, ...): after a crash only the files that were under way are read again.
A map over 100,000 items costs no more memory than one over 100.
"""

from dataclasses import dataclass
from pathlib import Path

import holdfast as hf

HERE = str(Path(__file__).resolve().parent)


@dataclass
class Measure:
    name: str
    lines: int
    words: int


@hf.node(idempotent=True)
def find(folder: str, pattern: str) -> list[Path]:
    """List the files, in an order that does not depend on the disk."""
    return sorted(Path(folder).glob(pattern))


@hf.node(retry=hf.Retry(attempts=3, backoff=0.1, on=(OSError,)), timeout="30s", idempotent=True)
def measure(file: Path) -> Measure:
    """Read one file. Plain functions run in threads, so that slow disks do not hold up the others."""
    text = file.read_text(encoding="utf-8", errors="replace")
    return Measure(file.name, len(text.splitlines()), len(text.split()))


@hf.node(idempotent=True)
async def total(measures: list[Measure]) -> Measure:
    """Join: runs once, when every file has been read."""
    return Measure(f"{len(measures)} files", sum(m.lines for m in measures), sum(m.words for m in measures))


@hf.node(idempotent=True)
async def longest(measures: list[Measure]) -> str:
    return max(measures, key=lambda m: (m.lines, m.name)).name if measures else ""


@hf.workflow
def survey(folder: str = HERE, pattern: str = "*.py") -> dict[str, Measure | str]:
    """Count the lines and words of the files in a folder."""
    measures = hf.map(measure, find(folder, pattern), limit=16)
    return {"total": total(measures), "longest": longest(measures)}


if __name__ == "__main__":
    found = hf.run(survey)
    print(found["total"], found["longest"])
