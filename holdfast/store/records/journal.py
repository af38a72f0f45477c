"""Journal: stored events, checked before their data is used.

Owns: `event_of`, the one way from a stored event to its data. The event's own link (its hash over the event before it
and everything in its row) is recomputed first, so that a changed byte is CorruptJournal and never a value.
Never: follows the whole chain (`doctor/audit.py` does), or checks what this process wrote and still has in memory.
"""

from __future__ import annotations

from typing import Any

from holdfast.model import journal_format
from holdfast.model.errors import CorruptJournal, HoldfastError, NewerFormat, StoreDamaged, StoreError
from holdfast.model.journal_format import is_newer, newer
from holdfast.store.contract import Store
from holdfast.store.row_types import LinkedRow, RunRow

CANNOT_BE_READ = (CorruptJournal, StoreError)
"""What reading a run's rows or journal can lead to. It is no failure of the run, or of the body that asked."""
DAMAGE = (CorruptJournal, StoreDamaged)
"""Of these what trying again does not help: the run is put on hold."""


def hold_reason(error: Exception) -> str:
    """The hold of a run that cannot be read."""
    code = NewerFormat.code if isinstance(error, NewerFormat) else "corrupt"
    what = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return f"{code}: {what}"


def refuse_newer(row: RunRow) -> None:
    """Raise NewerFormat when a run was written by a newer Holdfast: what its events mean is not known here."""
    if is_newer(row.format):
        raise NewerFormat(f"run {row.run_id} was {newer(row.format)}")


def event_of(row: LinkedRow) -> Any:
    """The event that a row holds. Raises CorruptJournal, and NewerFormat where this version cannot read it."""
    check_link(row)
    return readable(row.run_id or "", row.seq, row.type, row.data)


def check_link(row: LinkedRow) -> None:
    """Raise CorruptJournal when an event is not the one that was written."""
    _, seq, branch, kind, node, path, visit, at, token, found, data, previous, run_id = row
    if previous is None and seq > 1:
        raise CorruptJournal(f"event {seq - 1} of run {run_id} is missing from its journal")
    if (
        journal_format.link(previous or b"", run_id or "", seq, branch, kind, node, path, visit, at, token, data)
        != found
    ):
        raise CorruptJournal(
            f"event {seq} ({kind}) of run {run_id} is not the one that was written: its hash does not follow from its "
            "content and the event before it"
        )


def event_at(store: Store, row: RunRow, seq: int) -> Any:
    """One event of a run's journal, which must be there."""
    held = store.event_data(row.run_no, [seq]).get(seq)
    if held is None:
        raise CorruptJournal(f"event {seq} of run {row.run_id} is missing from its journal")
    return event_of(held)


def readable(run_id: str, seq: int, type_name: str, data: bytes) -> Any:
    """An event, decoded. Raises CorruptJournal, which says of which event."""
    try:
        return journal_format.decode(type_name, data)
    except CorruptJournal as error:
        raise type(error)(f"event {seq} of run {run_id}: {error.message}") from None
