"""`holdfast graph`: a workflow, or a run with its statuses, as a drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import databases, drawing, output
from holdfast.cli.options import Db
from holdfast.cli.picture import Picture
from holdfast.cli.waiting import together
from holdfast.inspect.wait_views import wait_view
from holdfast.model import definition as definitions
from holdfast.model import validation
from holdfast.model.definition import Definition
from holdfast.model.errors import CorruptJournal, UnknownRun, UsageError
from holdfast.model.naming import is_undo
from holdfast.model.views import Wait
from holdfast.store.contract import Store
from holdfast.store.records.run_records import current_visits
from holdfast.store.row_types import RunRow
from holdfast.worker.loading import load_target

_RANK = ("failed", "running", "suspended", "scheduled", "cancelled", "completed", "skipped")


def command(
    what: Annotated[str, typer.Argument(metavar="FILE.py:NAME|FILE.json|RUN", help="A workflow, or a run.")],
    form: Annotated[str, typer.Option("--format", "-f", metavar="mermaid|json", help="What to print.")] = "mermaid",
    db: Db = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Draw a workflow as a Mermaid flowchart; for a run each node has its status as a class.

    \b
    Examples:
      holdfast graph shop.py:fulfil > fulfil.mmd
      holdfast graph order-42 --format json
    """
    if form not in {"mermaid", "json"}:
        raise UsageError(f"--format {form}: use mermaid or json")
    as_json = json or form == "json"
    definition = None if not names_code(what) else _definition(what)
    if definition is not None:
        _print(definition, None, None, as_json)
        return
    try:
        with databases.reading(db) as store:
            row = databases.find_by_prefix(store, what)
            found = store.version(row.workflow, row.version)
            if found is None:
                raise CorruptJournal(
                    f"run {row.run_id} follows version {row.version} of {row.workflow}, which is not there"
                )
            definition = definitions.decode(found.definition)
            statuses, notes = of_run(store, row, definition)
    except UnknownRun as error:
        raise UnknownRun(f"{error.message}. A workflow is given as FILE.py:NAME") from None
    _print(definition, statuses, notes, as_json, row)


def names_code(what: str) -> bool:
    """Whether this is a file or a module rather than a run's id."""
    place = what.rpartition(":")[0] or what
    return what.endswith((".py", ".json")) or place.endswith(".py") or (":" in what and "." in place)


def _definition(what: str) -> Definition:
    if not what.endswith(".json"):
        definition: Definition = load_target(what)[1].definition
        return definition
    try:
        return validation.load(Path(what).read_bytes())
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}") from None


def of_run(
    store: Store, row: RunRow, definition: Definition
) -> tuple[dict[drawing.Address, str], dict[drawing.Address, str]]:
    """The status of each node of a run, those of all items and rounds together; how far maps are, and what nodes wait
    for."""
    picture = Picture(definition)
    found: dict[drawing.Address, set[str]] = {}
    notes: dict[drawing.Address, str] = {}
    visits = current_visits(row)
    for node in store.nodes(row.run_no):
        around, name = picture.place(node.node, node.path)
        address = (*around, name)
        if node.visit != visits.get(address[0], 1) and not is_undo(name):
            continue  # tickets have led to it again
        found.setdefault(address, set()).add(node.status)
    for line in picture.lines(row, store.open_nodes([row.run_no]), (), {}, row.created_at)[1:]:
        if "×" in line.label and line.total:
            notes[(line.label.split(" ×", 1)[0],)] = f"{line.done:g}/{line.total:g}"
    waits: dict[drawing.Address, list[Wait]] = {}
    for wait in store.open_waits([row.run_no]):
        around, name = picture.place(wait.node or "", wait.path or ".")
        waits.setdefault((*around, name), []).append(wait_view(row.run_id, row.workflow, wait))
    now = store.now() if waits else 0
    notes |= {address: f"({together(found, now)})" for address, found in waits.items()}
    statuses = {address: next((s for s in _RANK if s in seen), "pending") for address, seen in found.items()}
    return statuses, notes


def _print(
    definition: Definition,
    statuses: dict[drawing.Address, str] | None,
    notes: dict[drawing.Address, str] | None,
    as_json: bool,
    row: RunRow | None = None,
) -> None:
    if not as_json:
        output.write(output.clean(drawing.mermaid(definition, statuses, notes)))
        return
    shown = drawing.as_json(definition, statuses, notes)
    if row is not None:
        shown |= {"run_id": row.run_id, "version": row.version, "status": row.status}
    output.document(shown)
