"""What the doctor relies on in every store: the checking half of holdfast/store/contract.py as tests.

Never: names a database. Damage is made through `commit`, which lands whatever rows it is given.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast.model.journal_format import FORMAT
from holdfast.store.contract import Store
from holdfast.store.row_types import Check, Commit, EngineRow, MessageRow, Rebuilt, RunRow, TimerRow, WaitRow
from tests.store.conformance.store import (
    Suite,
    change,
    event_row,
    make_runs,
    message,
    node_row,
    refusals,
    run_row,
    step,
)


def ended(run_no: int, **other: Any) -> RunRow:
    return run_row(run_no, **{"status": "completed", "engine": None, "finished_at": 99, "head_hash": b"hash1", **other})


ALL_RUNS = (-(2**63), 2**63 - 1)


class CheckingConformance(Suite):
    """What the doctor asks of a store, and may change in it."""

    def put(self, store: Store, row: RunRow, **rows: Any) -> None:
        events = rows.pop("events", [event_row(row.run_no, 1, "RunCompleted")])
        store.register_version("order", "hash", b"{}", 1)
        assert refusals(store, Commit(row.run_no, 1, 0, create=row, events=events, **rows)) == [None]

    def found(self, store: Store, before: int = 0) -> dict[str, list[Any]]:
        """Every check that finds something, with the runs that it finds."""
        answers = {check: store.suspects(check, *ALL_RUNS, before) for check in get_args(Check)}
        return {check: [s.run_no for s in suspects] for check, suspects in answers.items() if suspects}

    def test_evidence_is_everything_about_a_run_at_one_moment(self, store: Store) -> None:
        one, other = make_runs(store, 2)
        nodes = [node_row(one, "a"), node_row(one, "b", is_open=0)]
        waits = [
            WaitRow(one, f"w{i}", "timer", "a", "", 1, 1, s, 5, 9, b"{}") for i, s in enumerate(["open", "closed"])
        ]
        timers = [TimerRow(one, "t1", 9, 1, "set"), TimerRow(one, "t2", 9, 1, "fired")]
        assert refusals(store, step(one, nodes=nodes, waits=waits, timers=timers)) == [None]
        store.send([message("m1", one)])
        store.send([message("m2", other)])
        found = store.evidence(one)
        assert found.run == store.run_by_no(one)
        assert found.complete
        assert [e.seq for e in found.events] == [1, 2]
        assert (list(found.nodes), list(found.waits), list(found.timers)) == (nodes, waits, timers)
        assert [m.message_id for m in found.messages] == ["m1"]
        assert [e.seq for e in store.evidence(one, 1).events] == [2]
        page = store.evidence(one, 0, 1)
        assert ([e.seq for e in page.events], page.complete, page.nodes) == ([1], False, ())
        assert store.evidence(one, 0, 3).complete
        assert store.evidence(one + 5).run is None

    def test_runs_are_paged_by_number(self, store: Store) -> None:
        assert store.run_page(0, 10) == (0, 0)
        numbers = make_runs(store, 5)
        assert store.run_page(0, 3) == (3, numbers[2])
        assert store.run_page(numbers[2], 3) == (2, numbers[4])
        assert store.run_numbers(numbers[1], numbers[3]) == numbers[1:4]

    def test_a_run_that_is_in_order_is_no_suspect(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        self.put(store, ended(no))
        assert self.found(store) == {}

    @pytest.mark.parametrize(
        ("columns", "checks"),
        [
            ({"head_hash": b"other"}, {"head"}),
            ({"last_seq": 2}, {"head"}),
            ({"token": 0}, {"token"}),
            ({"finished_at": None}, {"ending"}),
            ({"status": "failed"}, {"terminal"}),
            ({"status": "odd", "finished_at": None}, {"status", "terminal"}),
            ({"engine": "gone"}, {"owned_end", "lease"}),
            ({"version": 2}, {"version"}),
            ({"format": FORMAT + 1}, {"format"}),
            ({"root_no": 999}, {"parent"}),
            ({"parent_no": 999}, {"parent"}),
            ({"branch": 2}, {"branch"}),
        ],
    )
    def test_a_run_with_a_wrong_column_is_a_suspect(
        self, store: Store, columns: dict[str, Any], checks: set[str]
    ) -> None:
        no = store.reserve_run_numbers(1)
        self.put(store, ended(no, **columns))
        assert self.found(store) == {check: [no] for check in checks}
        assert store.suspects("head", no + 1, no + 9) == []

    def test_what_a_finished_run_must_not_have_is_found(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        wait = WaitRow(no, "w1", "timer", "a", "", 1, 1, "open", 5, None, b"{}")
        self.put(
            store, ended(no), nodes=[node_row(no, "a")], waits=[wait], timers=[TimerRow(no, "t", 9, 1, "set")],
            messages=[MessageRow("m1", no, "signal", b"1", 5)],
        )  # fmt: skip
        # a message to a run that has ended is dead in the same commit
        assert self.found(store) == {check: [no] for check in ("node_of_end", "wait_of_end", "timer_of_end")}

    def test_a_gap_is_found_at_its_place(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        events = [event_row(no, seq, "RunCompleted" if seq == 5 else "NodeStarted") for seq in (1, 2, 4, 5)]
        self.put(store, ended(no, last_seq=5, head_hash=b"hash5"), events=events)
        assert self.found(store) == {"gap": [no]}
        (suspect,) = store.suspects("gap", no, no)
        assert (suspect.run_id, suspect.seq, suspect.found, suspect.wanted) == (f"run_{no}", 3, 4, 5)

    def test_a_suspended_run_needs_something_that_wakes_it(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        suspended = ended(no, status="suspended", finished_at=None)
        events = [event_row(no, 1, "RunSuspended")]
        self.put(store, suspended, events=events)
        assert self.found(store) == {"stuck": [no]}
        store.send([message("m1", no)])
        assert self.found(store) == {}

    def test_a_wait_with_an_end_needs_its_timer(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        wait = WaitRow(no, "w1", "timer", "a", "", 1, 1, "open", 5, 9, b"{}")
        suspended = ended(no, status="suspended", finished_at=None)
        self.put(store, suspended, events=[event_row(no, 1, "RunSuspended")], waits=[wait])
        assert self.found(store) == {"wait_without_timer": [no]}

    def test_a_wait_for_a_child_needs_one_that_lives_or_has_reported(self, store: Store) -> None:
        no = store.reserve_run_numbers(2)
        wait = WaitRow(no, "w1", "child", "a", "", 1, 1, "open", 5, None, f'{{"child":"run_{no + 1}"}}'.encode())
        suspended = ended(no, status="suspended", finished_at=None)
        self.put(store, suspended, events=[event_row(no, 1, "RunSuspended")], waits=[wait])
        assert self.found(store) == {"wait_without_child": [no]}
        self.put(store, ended(no + 1, parent_no=no, root_no=no))
        assert self.found(store) == {"wait_for_ended_child": [no]}
        payload = f'{{"child":"run_{no + 1}"}}'.encode()
        store.send([MessageRow("m1", no, "child_ended", payload, 5)])
        assert self.found(store) == {}

    def test_a_child_outlives_a_failed_parent_only_when_it_was_asked_to_stop(self, store: Store) -> None:
        no = store.reserve_run_numbers(2)
        self.put(store, ended(no, status="failed"), events=[event_row(no, 1, "RunFailed")])
        fold = f'{{"parent":{{"run_id":"run_{no}"}}}}'.encode()
        child = run_row(no + 1, parent_no=no, root_no=no, fold=fold, engine=None, head_hash=b"hash1")
        self.put(store, child, events=[event_row(no + 1, 1)])
        assert self.found(store) == {"child_of_ended": [no + 1]}
        store.send([MessageRow("m1", no + 1, "cancel", b"{}", 5)])
        assert self.found(store) == {}

    def test_what_was_left_alone_depends_on_when(self, store: Store) -> None:
        working, waiting = store.reserve_run_numbers(2), 0
        waiting = working + 1
        self.put(store, run_row(working, engine=None, head_hash=b"hash1"), events=[event_row(working, 1)])
        suspended = ended(waiting, status="suspended", finished_at=None)
        timer = TimerRow(waiting, "t", 101, 1, "set")
        self.put(store, suspended, events=[event_row(waiting, 1, "RunSuspended")], timers=[timer])
        assert self.found(store, before=101) == {}
        assert self.found(store, before=102) == {"left_alone": [working], "overdue": [waiting]}

    def test_rows_of_no_run_are_found_and_removed(self, store: Store) -> None:
        no = store.reserve_run_numbers(2)
        ghost = no + 1
        self.put(
            store, ended(no), nodes=[node_row(ghost, "a"), node_row(ghost, "b")],
            waits=[WaitRow(ghost, "w1", "timer", "a", "", 1, 1, "open", 5, None, b"{}")],
            timers=[TimerRow(ghost, "t", 9, 1, "set")], messages=[MessageRow("m1", ghost, "signal", b"1", 5)],
            events=[event_row(no, 1, "RunCompleted"), event_row(ghost, 1)],
        )  # fmt: skip
        orphans = ("orphan_nodes", "orphan_waits", "orphan_timers", "orphan_messages")
        assert self.found(store) == {check: [ghost] for check in (*orphans, "orphan_events")}
        removed = [store.remove_orphans(check, ghost) for check in orphans]  # type: ignore[arg-type]
        assert removed == [2, 1, 1, 1]
        assert self.found(store) == {"orphan_events": [ghost]}

    def test_rows_of_a_run_are_no_orphans(self, store: Store) -> None:
        no = store.reserve_run_numbers(1)
        self.put(store, ended(no), nodes=[node_row(no, "a", status="completed")])
        assert store.remove_orphans("orphan_nodes", no) == 0
        assert len(store.nodes(no)) == 1

    def test_a_lease_is_told_with_whether_its_engine_is_known(self, store: Store) -> None:
        known, unknown = make_runs(store, 2)
        store.register_engine(EngineRow("one", "host", 1, "lock", 1, 2, b"{}"))
        assert [s.wanted for s in store.suspects("lease", known, unknown)] == ["one", "one"]
        store.remove_engine("one")
        store.claim("two", [known])
        assert [(s.run_no, s.found, s.wanted) for s in store.suspects("lease", known, unknown)] == [
            (known, "two", None)
        ]

    def test_a_new_store_is_in_good_health(self, store: Store) -> None:
        health = store.health(thorough=True)
        assert (list(health.damage), health.durable, health.schema) == ([], True, health.schema_wanted)

    def test_every_version_is_listed(self, store: Store) -> None:
        store.register_version("order", "h1", b"one", 1)
        store.register_version("order", "h2", b"two", 1)
        store.register_version("bill", "h1", b"three", 1)
        listed = [(v.workflow, v.version, v.definition) for v in store.versions()]
        assert listed == [("bill", 1, b"three"), ("order", 1, b"one"), ("order", 2, b"two")]

    def rebuilt(self, no: int, token: int) -> Rebuilt:
        wait = WaitRow(no, "w1", "timer", "a", "", 1, 1, "open", 5, 9, b"{}")
        return Rebuilt(
            no, token, 2, 1, b"hash1", "suspended", 1, 3, 11, None, b'{"x":1}',
            [node_row(no, "a"), node_row(no, "b", is_open=0)], [wait], [TimerRow(no, "w1", 9, 1, "set")],
        )  # fmt: skip

    def test_a_rebuild_replaces_the_rows_of_a_run_and_fences_whoever_owned_it(self, store: Store) -> None:
        no, other = make_runs(store, 2, engine=None)
        stale = [node_row(no, "old"), node_row(other, "old")]
        assert refusals(store, step(no, nodes=stale, change=change(2, engine=None))) == [None]
        before = store.run_by_no(no)
        assert before is not None
        assert store.rebuild(self.rebuilt(no, before.token))
        row = store.run_by_no(no)
        assert row is not None
        assert (row.status, row.version, row.last_seq, row.recoveries) == ("suspended", 2, 1, 3)
        assert (row.fold, row.token, row.engine) == (b'{"x":1}', before.token + 1, None)
        evidence = store.evidence(no)
        assert [n.node for n in evidence.nodes] == ["a", "b"]
        assert ([w.wait_id for w in evidence.waits], [t.timer for t in evidence.timers]) == (["w1"], ["w1"])
        assert [n.node for n in store.nodes(other)] == ["old"]
        assert refusals(store, step(no, 1, before.token)) == ["fenced"]

    def test_a_rebuild_does_nothing_when_somebody_owns_the_run_or_was_quicker(self, store: Store) -> None:
        owned, moved = make_runs(store, 2)
        assert not store.rebuild(self.rebuilt(owned, 1))
        store.release("one", [(moved, 1)])
        assert not store.rebuild(self.rebuilt(moved, 7))
        assert store.nodes(owned) == store.nodes(moved) == []

    def test_a_rebuild_ends_a_hold_for_damage_and_no_other(self, store: Store) -> None:
        damaged = make_runs(store, 1, engine=None, hold="corrupt: x")[0]
        looping = make_runs(store, 1, engine=None, hold="crash_loop: x")[0]
        asked = make_runs(store, 1, engine=None, hold="CORRUPT? asks ann")[0]
        assert all(store.rebuild(self.rebuilt(no, 1)) for no in (damaged, looping, asked))
        holds = [row.hold for no in (damaged, looping, asked) if (row := store.run_by_no(no)) is not None]
        assert holds == [None, "crash_loop: x", "CORRUPT? asks ann"]

    def test_mail_of_a_finished_run_is_refused_and_that_of_others_is_not(self, store: Store) -> None:
        done, alive = make_runs(store, 2)
        store.send([message("m1", done)])
        store.send([message("m2", alive)])
        assert refusals(store, step(done, change=change(2, status="completed", finished_at=9, engine=None))) == [None]
        assert [s.found for s in store.suspects("message_of_end", done, alive)] == ["m1"]
        assert (store.close_inbox(done), store.close_inbox(alive), store.close_inbox(alive + 9)) == (1, 0, 0)
        assert [m.message_id for m in store.new_messages([done, alive])] == ["m2"]
