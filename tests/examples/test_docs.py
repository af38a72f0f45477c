"""The documentation tells the truth: its Python blocks run, and what is made from the code is up to date."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_python_blocks_of_a_page_run_as_one_file(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks), "utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    command = [sys.executable, "-W", "error", str(script)]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The names that headings of a page have in links to it."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", generate.PAGES)
def test_the_pages_that_are_made_from_the_code_are_up_to_date(page: str) -> None:
    assert (ROOT / "docs" / page).read_text("utf-8") == generate.PAGES[page](), "run python3 dev.py docs"


def test_every_test_named_by_the_requirements_exists() -> None:
    """`tests/x/test_y.py::test_z` is there; a bare file or folder is there too."""
    page = (ROOT / "docs/requirements.md").read_text("utf-8")
    missing = []
    for place, _, name in {m.groups() for m in re.finditer(r"`((?:tests|holdfast/testing)/[\w./-]+)(::(\w+))?`", page)}:
        path = ROOT / place
        if not path.exists() or (name and f"def {name}(" not in path.read_text("utf-8")):
            missing.append(f"{place}::{name}" if name else place)
    assert sorted(missing) == []


REQUIREMENTS = {
    "K": [(1, 24)],
    "S0": [(1, 85)],
    "S1": [(1, 87)],
    "S2": [(1, 110)],
    "S3": [(1, 78)],
    "S4": [(1, 90)],
    "B0": [(1, 17)],
    "B2": [(1, 14), (20, 32)],
    "B3": [(1, 15)],
    "B4": [(1, 20)],
    "R0": [(1, 8), (20, 26)],
    "R2": [(1, 15)],
    "R3": [(1, 6)],
    "R4": [(1, 12)],
}
"""The ids of all requirements: their families, and the numbers in each."""


def test_every_requirement_has_one_line_with_a_state() -> None:
    """Each id occurs in the first column of one line, and that line says what shows it or what is missing."""
    page = (ROOT / "docs/requirements.md").read_text("utf-8")
    lines = re.findall(r"^\| ([KSBR]\d?-\d[^|]*) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    found = [each for ids, _, _ in lines for each in ids_of(ids)]
    wanted = [(f, n) for f, spans in REQUIREMENTS.items() for first, last in spans for n in range(first, last + 1)]
    assert sorted(found) == sorted(wanted)
    wrong = []
    for ids, behaviour, state in lines:
        word, _, rest = state.partition(": ")
        tests = len(re.findall(r"`tests/[\w./-]+::test_\w+`", rest))
        has_witness = (1 <= tests <= 3) or "](" in rest
        is_right = {
            "shown by": has_witness,
            "partly": has_witness and "; missing: " in rest,
            "not yet": tests == 0,
            "differs": tests <= 3,
        }
        if not is_right.get(word) or not rest or not behaviour.strip():
            wrong.append((ids, state))
    assert wrong == []


def ids_of(cell: str) -> list[tuple[str, int]]:
    """`S0-36 to S0-38, S0-40` as (family, number) each."""
    found = []
    for part in cell.split(", "):
        family, first, last_family, last = re.fullmatch(r"(\w+)-(\d+)(?: to (\w+)-(\d+))?", part).groups()
        assert last_family in (None, family), part
        found += [(family, n) for n in range(int(first), int(last or first) + 1)]
    return found
