"""Missing code: runs that this engine cannot drive because their handlers are not loaded here.

Owns: which handlers of which run those are, whether another engine has them, the messages that name them; which
compensations cannot run.
Never: loads code (see worker/loading.py), or keeps a run from an engine that has it.
"""

from __future__ import annotations

import difflib

from holdfast.engine.runtime import Runtime
from holdfast.model import capabilities, handlers
from holdfast.model.capabilities import EngineCapabilities
from holdfast.model.errors import MissingCode
from holdfast.model.limits import WAITING_READ_MAX
from holdfast.model.state import RunState
from holdfast.model.statuses import RUN_TERMINAL
from holdfast.store.liveness import is_dead
from holdfast.store.records.run_records import creation_of
from holdfast.store.row_types import RunRow

NAMED_MAX = 5
"""Handlers that a message names."""


def error_for(runtime: Runtime, row: RunRow) -> MissingCode | None:
    """Why this engine cannot drive a run; None when it has the code."""
    if runtime.versions.runnable(row.workflow, row.version):
        return None
    return MissingCode(f"run {row.run_id} of workflow {row.workflow} {_lacks(runtime, row.workflow, row.version)}")


def error_if_stuck(runtime: Runtime, row: RunRow) -> MissingCode | None:
    """The same for a run that an engine is to drive to its end; None as well when another engine drives it or would,
    or when it waits for a person."""
    if row.status in RUN_TERMINAL or row.hold is not None or row.engine is not None:
        return None
    error = error_for(runtime, row)
    if error is None or runtime.inspector.external_waits(row):
        return None
    return None if _offers(runtime, row.workflow, row.version, row.queue) else error


def hold_for(run_id: str, name: str) -> str:
    """Why a run is put on hold whose workflow is loaded here, and one handler that only its journal names is not: that
    of a compensation of a step."""
    return f"missing_code: run {run_id} {_lacks_handlers([name])}"


def compensations_without_code(
    runtime: Runtime, state: RunState, wanted: frozenset[str], *, runs_here: bool
) -> frozenset[str]:
    """Those of these compensations that cannot run because no engine has loaded them. An engine that runs the run
    (`runs_here`) goes by what it has loaded itself. Another one leaves them to a live engine that can take the run;
    without such an engine none of them can run."""
    if runs_here:
        return frozenset(handlers.missing(wanted))
    return frozenset() if wanted and _is_taken_elsewhere(runtime, state) else wanted


def _is_taken_elsewhere(runtime: Runtime, state: RunState) -> bool:
    """Whether a live engine has the code of a run, and may drive it."""
    row = runtime.store.run_by_no(state.run_no)
    assert row is not None
    strict = state.fold.settings.on_code_change == "fail"
    began_with = creation_of(runtime.store, row).fingerprints if strict else {}
    return any(not offer.changed(began_with) for offer in _offers(runtime, row.workflow, row.version, row.queue))


def warnings(runtime: Runtime, known: set[tuple[str, int]]) -> list[str]:
    """A warning for each run that could continue and that no live engine can drive; once for each version, which is
    added to those that are `known`."""
    said: list[str] = []
    for version in runtime.store.unowned_versions():
        if version in known or runtime.versions.runnable(*version):
            continue
        found = runtime.store.claimable([version], queues=runtime.queues, limit=1)
        row = runtime.store.run_by_no(found[0][0]) if found else None
        if row is not None and not _offers(runtime, *version, row.queue):
            known.add(version)
            lacks = _lacks(runtime, *version)
            said.append(f"run {row.run_id} (and perhaps others) of workflow {row.workflow} is not driven: it {lacks}")
    return said


def warnings_of_waiting(runtime: Runtime) -> list[str]:
    """The same for suspended runs of workflows that are loaded here, whose functions were renamed or moved: before they
    wake the old code can still be brought back in time. Those of other workflows may belong to other programs."""
    said: dict[tuple[str, int], str] = {}
    loaded = handlers.workflow_names()
    for row in runtime.store.runs(status=["suspended"], limit=WAITING_READ_MAX):
        version = (row.workflow, row.version)
        if version in said or row.engine is not None or row.hold is not None or not runtime.serves(row.queue):
            continue
        if row.workflow not in loaded or runtime.versions.runnable(*version):
            continue
        if not _offers(runtime, *version, row.queue):
            said[version] = (
                f"run {row.run_id} (and perhaps others) of workflow {row.workflow} waits, and cannot be driven when it "
                f"wakes: it {_lacks(runtime, *version)}"
            )
    return list(said.values())


def _offers(runtime: Runtime, workflow: str, version: int, queue: str) -> list[EngineCapabilities]:
    """What live engines offer that have the code of a version and serve a queue."""
    needed, now, locks = runtime.versions.needed(workflow, version), runtime.clock.now(), runtime.lease.locks
    alive = [row for row in runtime.store.engines() if not is_dead(row, now, locks)]
    offered = [capabilities.decode(row.can_run) for row in alive]
    return [offer for offer in offered if offer.handlers and offer.serves(queue) and not offer.missing(needed)]


def _lacks(runtime: Runtime, workflow: str, version: int) -> str:
    missing = runtime.versions.missing(workflow, version)
    if not missing:
        return "needs its code, which is not loaded here; import it, then resume"
    return _lacks_handlers(missing)


def _lacks_handlers(missing: list[str]) -> str:
    loaded = handlers.names()
    same = [name for name in loaded for lost in missing if name.rpartition(".")[2] == lost.rpartition(".")[2]]
    close = [name for lost in missing for name in difflib.get_close_matches(lost, loaded, n=2)]
    likely = list(dict.fromkeys([*same, *close]))
    others = [name for name in loaded if "." in name and name not in likely]
    shown = [*likely, *others][:NAMED_MAX]
    more = f" and {len(likely) + len(others) - len(shown)} more" if len(likely) + len(others) > len(shown) else ""
    here = f"loaded here: {', '.join(shown)}{more}" if shown else "no code is loaded here"
    return (
        f"needs {', '.join(missing[:NAMED_MAX])}, which is not loaded here ({here}). Load it, then resume; a function "
        f'that was renamed or moved keeps its old name with @hf.node(name="{missing[0]}")'
    )
