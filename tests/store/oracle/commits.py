"""What one commit, and one message, does to the tables.

Owns: the fence, the order of a commit's parts, what an update leaves alone.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from holdfast.model.statuses import BRANCH_REQUESTS
from holdfast.store.row_types import Commit, CommitResult, MessageRow, RunChange, RunRow, Sent, TimerRow, WaitRow
from tests.store.oracle.tables import ENDED, Impossible, Tables, add, checked

_TOO_LATE = b'{"outcome":"refused","code":"finished","why":"the run has ended"}'


def land(tables: Tables, commit: Commit, before: Tables) -> CommitResult:
    """Writes a commit into `tables`; what it says of how that ended. After a refusal they are worth nothing."""
    run = tables.runs.get(commit.run_no)
    if commit.change is not None and (
        run is None
        or (run.token, run.last_seq) != (commit.token, commit.expected_seq)
        or commit.expected_hash not in (None, run.head_hash)
    ):
        return CommitResult("fenced")
    retired = _retired(tables, commit)
    if retired and not any(tables.with_id(new.run_id) for new in _created(commit)):
        return CommitResult("retired", retired)
    try:
        _apply(tables, commit)
    except Impossible as error:
        created = _created(commit)
        if any(before.with_id(new.run_id) is not None for new in created):
            return CommitResult("run_exists", str(error))
        if any(new.run_no in before.runs for new in created):
            return CommitResult("number_taken", str(error))
        return CommitResult("failed", str(error))
    return CommitResult(None)


def _created(commit: Commit) -> list[RunRow]:
    return [new.create for new in (commit, *commit.children) if new.create is not None]


def _retired(tables: Tables, commit: Commit) -> str:
    """Which version nothing can begin under."""
    begun = [(new.workflow, new.version) for new in _created(commit)]
    begun += [] if commit.begins is None else [commit.begins]
    there = (tables.versions.get(version) for version in begun)
    return next(
        (f"{row.workflow} {row.version}" for row in there if row is not None and row.retired_at is not None), ""
    )


def _apply(tables: Tables, commit: Commit) -> None:
    if (commit.create is None) == (commit.change is None):
        raise Impossible("either `create` or `change`")
    _write_run(tables, commit)
    for node in commit.nodes:
        tables.nodes[node[:4]] = checked(node)
    for event in commit.events:
        add(tables.events, event[:2], event)
    if commit.ends:
        close_inbox(tables, commit.run_no)
    if commit.opens is not None:
        add(tables.branches, commit.opens[:2], commit.opens)
    for instance in commit.gone:
        tables.nodes.pop((commit.run_no, *instance), None)
    for wait in commit.waits:
        tables.waits[wait[:2]] = checked(_later_wait(tables.waits.get(wait[:2]), wait))
    for timer in commit.timers:
        tables.timers[timer[:2]] = checked(_later_timer(tables.timers.get(timer[:2]), timer))
    for message_id, status, outcome in commit.outcomes:
        if message_id in tables.messages:
            tables.messages[message_id] = tables.messages[message_id]._replace(status=status, outcome=outcome)
    for message in commit.messages:
        _deliver(tables, message)
    for child in commit.children:
        _apply(tables, child)


def _write_run(tables: Tables, commit: Commit) -> None:
    if commit.create is not None:
        if tables.with_id(commit.create.run_id) is not None:
            raise Impossible(f"the run id {commit.create.run_id} is taken")
        add(tables.runs, commit.run_no, replace(commit.create))
        return
    assert commit.change is not None
    run = tables.runs[commit.run_no]
    columns = commit.change._asdict() if isinstance(commit.change, RunChange) else asdict(commit.change)
    if columns.get("fold") is None:
        columns["fold"] = run.fold
    if run.engine is not None and columns.get("engine", "") is None and columns["finished_at"] is None:
        columns["last_engine"] = run.engine
    columns["format"] = max(run.format, columns.get("format", 1))
    if commit.version:
        columns["version"] = commit.version
    tables.runs[run.run_no] = checked(replace(run, **columns))


def _later_wait(before: WaitRow | None, wait: WaitRow) -> WaitRow:
    """What a wait is about never changes; one that is closed stays in its basket."""
    if before is None:
        return wait
    after = before._replace(status=wait.status, outcome=wait.outcome, actor=wait.actor)
    return after._replace(basket=wait.basket, assignee=wait.assignee) if wait.status == "open" else after


def _later_timer(before: TimerRow | None, timer: TimerRow) -> TimerRow:
    """Only one that is set says when it is due."""
    if before is None or timer.status == "set":
        return timer
    return timer._replace(due_at=before.due_at, boot=before.boot, elapsed=before.elapsed)


def _deliver(tables: Tables, message: MessageRow) -> None:
    if message.message_id not in tables.messages:
        _store(tables, checked(message))
    known = tables.messages[message.message_id]
    run = tables.runs.get(known.run_no)
    if run is not None and run.status in ENDED and _is_unread(known):
        tables.messages[known.message_id] = known._replace(status="dead", outcome=_TOO_LATE)


def close_inbox(tables: Tables, run_no: int) -> int:
    unread = [m for m in tables.messages.values() if m.run_no == run_no and _is_unread(m)]
    for message in unread:
        tables.messages[message.message_id] = message._replace(status="dead", outcome=_TOO_LATE)
    return len(unread)


def _is_unread(message: MessageRow) -> bool:
    """And never read, if its run has ended."""
    return message.status == "new" and message.kind not in BRANCH_REQUESTS


def send(tables: Tables, message: MessageRow) -> Sent:
    known, run = tables.messages.get(message.message_id), tables.runs.get(message.run_no)
    if known is not None:
        is_same = (known.run_no, known.kind, known.payload) == (message.run_no, message.kind, message.payload)
        return "duplicate" if is_same else "conflict"
    if run is None:
        return "unknown_run"
    if run.status in ENDED and message.kind not in BRANCH_REQUESTS:
        return "finished"
    _store(tables, message)
    return "new"


def _store(tables: Tables, message: MessageRow) -> None:
    tables.messages[message.message_id] = message._replace(no=tables.next_message_no)
    tables.next_message_no += 1
