"""Golden journals: their files, and what a journal folds to, in terms that do not depend on the code.

Owns: reading and writing `RUN.jsonl` (one line about the run, one line for each event, one line with the states that
its branches fold to), and `state_of`, which is such a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.model import definition as definitions
from holdfast.model import lineage
from holdfast.model.plans import Plan, compile_definition
from holdfast.model.state import RunState
from holdfast.store.contract import Store
from holdfast.store.records.journal import History, Plans, check_link, entry_of
from holdfast.store.row_types import EventRow, LinkedRow, RunRow

ROOT = Path(__file__).parent
DATABASE = "recorded.db"


class Journal(msgspec.Struct):
    """One run as it was recorded."""

    run_id: str
    run_no: int
    workflow: str
    branch: int
    definitions: dict[int, str]
    """The definition of each version that a branch runs under, as JSON."""
    events: list[dict[str, Any]]
    states: dict[int, dict[str, Any]]
    """What each branch folds to."""


def recordings() -> list[Path]:
    """The folders of frozen recordings, one for each version that has one."""
    return sorted(path.parent for path in ROOT.glob(f"*/{DATABASE}"))


def write(folder: Path, journal: Journal) -> None:
    """Write a journal as JSON lines."""
    about = {"run_id": journal.run_id, "run_no": journal.run_no, "workflow": journal.workflow}
    about |= {"branch": journal.branch, "definitions": _by_text(journal.definitions)}
    lines = [about, *journal.events, {"states": _by_text(journal.states)}]
    encode = msgspec.json.Encoder(order="deterministic").encode
    (folder / f"{journal.run_id}.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))


def _by_text(values: dict[int, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}


def read(file: Path) -> Journal:
    """Read a journal from its file."""
    about, *events, end = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    return msgspec.convert({**about, "events": events, **end}, Journal, strict=False)


def exported(store: Store, row: RunRow) -> Journal:
    """A run of a store, with the state of each of its branches."""
    history = History(store, Plans(store), row)
    versions = {branch.version for branch in history.branches.values()}
    known: dict[int, str] = {}
    for version in sorted(versions):
        found = store.version(row.workflow, version)
        assert found is not None
        known[version] = found.definition.decode()
    writers = {row.run_no: row.run_id}
    for event in history.rows:
        if event.run_no not in writers:
            origin = store.run_by_no(event.run_no)
            assert origin is not None
            writers[event.run_no] = origin.run_id
    events = [
        {**event._asdict(), "run_id": writers[event.run_no], "hash": event.hash.hex(), "data": event.data.decode()}
        for event in history.rows
    ]
    states = {branch: state_of(history.state(branch)) for branch in history.branches}
    return Journal(row.run_id, row.run_no, row.workflow, row.branch, known, events, states)


def rows_of(journal: Journal) -> Iterator[LinkedRow]:
    """The events as a store gives them, each with the hash before it."""
    previous: bytes | None = None
    for event in journal.events:
        fields = {**event, "hash": bytes.fromhex(event["hash"]), "data": event["data"].encode()}
        run_id = fields.pop("run_id")
        row = EventRow(**fields)
        yield LinkedRow(*row, previous, run_id)
        previous = row.hash


def folded(journal: Journal, branch: int) -> dict[str, Any]:
    """What this version of Holdfast makes of a branch, without any store. Raises CorruptJournal."""
    entries = []
    for row in rows_of(journal):
        check_link(row)
        entries.append(entry_of(journal.run_id, EventRow(*row[:11])))

    def plan(version: int) -> Plan:
        return compile_definition(definitions.decode(journal.definitions[version].encode()), version)

    line = lineage.lineage(entries, branch, plan)
    branches = lineage.branches_of(entries)
    state = lineage.fold(plan(branches[branch].version), journal.run_no, journal.run_id, line)
    state.branch = branch
    return state_of(state)


def state_of(state: RunState) -> dict[str, Any]:
    """A state in plain values: what runs, instances, waits and timers are, and what the row of the run keeps."""
    found = {
        "status": state.status,
        "branch": state.branch,
        "seq": state.seq,
        "recoveries": state.recoveries,
        "created_at": state.created_at,
        "started_at": state.started_at,
        "finished_at": state.finished_at,
        "fold": state.fold,
        "instances": [
            {
                "instance": [ns.node, ns.path, ns.visit],
                "status": ns.status,
                "attempt": ns.attempt,
                "failures": ns.failures,
                "output_seq": ns.output_seq,
                "memory_seq": ns.memory_seq,
                "captured": ns.captured,
                "started_at": ns.started_at,
                "finished_at": ns.finished_at,
            }
            for ns in sorted(state.changed, key=lambda ns: (ns.node, ns.path, ns.visit))
        ],
        "waits": {
            wait_id: [wait.kind, wait.node, wait.path, wait.visit, wait.since, wait.until, wait.basket, wait.assignee]
            for wait_id, wait in sorted(state.waits.items())
        },
        "timers": dict(sorted(state.timers.items())),
    }
    return msgspec.json.decode(msgspec.json.encode(found))  # type: ignore[no-any-return]


def differences(found: Any, recorded: Any, where: str = "state") -> Iterator[str]:
    """Where a state is not the recorded one. A later version may know more fields than were recorded."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key, value in recorded.items():
            if key not in found:
                yield f"{where}.{key} is missing"
            else:
                yield from differences(found[key], value, f"{where}.{key}")
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for index, (one, other) in enumerate(zip(found, recorded, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif found != recorded:
        yield f"{where} is {found!r}, and was {recorded!r} when it was recorded"
