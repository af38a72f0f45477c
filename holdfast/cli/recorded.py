"""Recorded code: importing what runs need from where it was when they began.

Owns: which files a run and its unfinished children need, and what to say about those that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.cli.crowds import UNFINISHED
from holdfast.model.errors import CorruptJournal, HoldfastError, MissingCode
from holdfast.model.handlers import CodeLocation
from holdfast.store.contract import Store
from holdfast.store.records.run_records import creation_of
from holdfast.store.row_types import RunRow
from holdfast.worker.loading import load_given
from holdfast.worker.trust import load_recorded

Places = list[CodeLocation] | CorruptJournal
"""Where the code of a run was, or why nobody knows that any more."""


def locations(store: Store, row: RunRow) -> Places:
    """Where the code of a run and of its unfinished children was when they began."""
    found: dict[CodeLocation, None] = {}
    family = store.runs(status=UNFINISHED, root_no=row.root_no, limit=1000)
    for member in [row, *(m for m in family if m.run_no != row.run_no)]:
        try:
            created = creation_of(store, member)
        except CorruptJournal as damage:
            return damage
        if created.code is not None:
            found[msgspec.convert(created.code, CodeLocation)] = None
    return list(found)


def load(
    rows: Sequence[RunRow], locations: dict[int, Places], code: str | None, store_id: str
) -> tuple[list[RunRow], list[HoldfastError]]:
    """Import what the runs need; the runs whose code is there, and why the others' is not."""
    if code is not None:
        load_given(code, [place for found in locations.values() if isinstance(found, list) for place in found])
    loaded: list[RunRow] = []
    missing: list[HoldfastError] = []
    tried: dict[CodeLocation, HoldfastError | None] = {}
    for row in rows:
        places = locations.get(row.run_no, []) if code is None else []
        if isinstance(places, CorruptJournal):
            missing.append(places)
            continue
        problem: HoldfastError | None = None
        for location in places:
            if location not in tried:
                tried[location] = _try(location, store_id)
            problem = problem or tried[location]
        if problem is None:
            loaded.append(row)
        else:
            missing.append(MissingCode(f"run {row.run_id}: {problem.message}"))
    return loaded, missing


def _try(location: CodeLocation, store_id: str) -> HoldfastError | None:
    try:
        load_recorded(location, store_id)
    except HoldfastError as error:
        return error
    return None
