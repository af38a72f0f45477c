"""What every store promises about versions, aliases and what is retired (holdfast/store/version_contract.py)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.model.rollouts import Target
from holdfast.store.contract import Store
from holdfast.store.row_types import BranchRow
from holdfast.store.version_contract import AliasMove, Moved, Retirement
from tests.store.conformance.store import Suite, change, creation, make_runs, refusals, step


def versions_of_order(store: Store, count: int = 3) -> None:
    for number in range(1, count + 1):
        assert store.register_version("order", f"h{number}", b"%d" % number, number, b"code") == number


def move(no: int = 1, target: Target | None = None, alias: str = "stable", **other: Any) -> AliasMove:
    values = {"at": 5, "actor": "ann", "reason": "because", **other}
    return AliasMove("order", alias, no, None if target is None else target.encode(), **values)


def set_alias(store: Store, target: Target, no: int = 1, alias: str = "stable") -> Moved:
    return store.move_alias(move(no, target, alias), target.versions)


class VersionsConformance(Suite):
    def test_a_version_keeps_the_code_it_was_registered_with_until_it_is_deployed(self, store: Store) -> None:
        assert store.register_version("order", "h1", b"one", 1, b"here") == 1
        assert store.register_version("order", "h1", b"one", 2, b"there") == 1
        assert [row.code for row in store.versions("order")] == [b"here"]
        assert store.register_version("order", "h1", b"one", 2, b"there", True) == 1
        (row,) = store.versions("order")
        assert (row.code, row.created_at, row.definition) == (b"there", 1, b"one")

    def test_versions_are_listed_by_name(self, store: Store) -> None:
        versions_of_order(store, 2)
        store.register_version("bill", "h", b"b", 1)
        assert [(row.workflow, row.version) for row in store.versions()] == [("bill", 1), ("order", 1), ("order", 2)]
        assert store.version_numbers() == [("bill", 1), ("order", 1), ("order", 2)]
        assert [row.version for row in store.versions("order")] == [1, 2]
        assert store.versions("nothing") == []

    def test_unfinished_runs_are_counted_by_version(self, store: Store) -> None:
        make_runs(store, 2, version=1)
        make_runs(store, 3, version=2, status="suspended", engine=None)
        make_runs(store, 1, version=2, status="created", engine=None)
        make_runs(store, 4, version=3, status="completed", engine=None)
        make_runs(store, 1, workflow="bill")
        assert store.unfinished_by_version("order") == {1: 2, 2: 4}

    def test_a_retired_version_starts_nothing_and_stays_readable(self, store: Store) -> None:
        versions_of_order(store)
        assert store.retire_version("order", 3, 77) == Retirement(None)
        assert store.retire_version("order", 3, 99) == Retirement(None), "once more is the same"
        assert [(row.version, row.retired_at, row.definition) for row in store.versions("order")] == [
            (1, None, b"1"), (2, None, b"2"), (3, 77, b"3"),
        ]  # fmt: skip
        assert store.latest_active("order") == 2
        latest = store.latest_version("order")
        assert latest is not None
        assert latest.version == 3
        no = store.reserve_run_numbers(4)
        group = [creation(no, version=2), creation(no + 1, version=3), creation(no + 2, workflow="bill", version=3)]
        assert refusals(store, *group) == [None, "retired", None]
        assert store.run_by_no(no + 1) is None
        assert store.events(no + 1) == []

    def test_a_child_of_a_retired_version_refuses_the_commit_of_its_parent(self, store: Store) -> None:
        versions_of_order(store)
        store.retire_version("order", 3, 77)
        (parent,) = make_runs(store, 1, version=1)
        child = creation(store.reserve_run_numbers(1), version=3)
        assert refusals(store, step(parent, children=[child])) == ["retired"]
        row = store.run_by_no(parent)
        assert row is not None
        assert row.last_seq == 1

    def test_a_branch_does_not_begin_under_a_retired_version(self, store: Store) -> None:
        versions_of_order(store)
        store.retire_version("order", 3, 77)
        (no, other) = make_runs(store, 2, version=1)
        opening = step(no, opens=BranchRow(no, 2, 1, 1, 1, "migrated", None, 5), version=3, begins=("order", 3))
        assert refusals(store, opening, step(other)) == ["retired", None]
        assert store.branches(no) == []
        opening = step(no, opens=BranchRow(no, 2, 1, 1, 1, "migrated", None, 5), version=2, begins=("order", 2))
        assert refusals(store, opening) == [None]

    def test_a_run_id_that_is_taken_counts_before_a_retired_version(self, store: Store) -> None:
        versions_of_order(store)
        (no,) = make_runs(store, 1, version=3, status="completed", engine=None)
        assert store.retire_version("order", 3, 77) == Retirement(None)
        again = creation(store.reserve_run_numbers(1), version=3, run_id=f"run_{no}")
        assert refusals(store, again) in (["run_exists"], ["retired"])
        assert store.run_by_no(again.run_no) is None

    def test_a_version_with_unfinished_runs_is_not_retired(self, store: Store) -> None:
        versions_of_order(store)
        first, _ = make_runs(store, 2, version=2)
        assert store.retire_version("order", 2, 77) == Retirement("unfinished", 2)
        assert refusals(store, creation(store.reserve_run_numbers(1), version=2)) == [None]
        ended = change(2, status="completed", engine=None, finished_at=9)
        for no in (first, first + 1, first + 2):
            refusals(store, step(no, change=ended, ends=True))
        assert store.unfinished_by_version("order") == {}
        assert store.retire_version("order", 2, 77) == Retirement(None)

    def test_a_version_that_an_alias_names_is_not_retired(self, store: Store) -> None:
        versions_of_order(store)
        assert set_alias(store, Target(1, (2, 1_000))) == "moved"
        assert store.retire_version("order", 1, 77) == Retirement("aliased", 0, ["stable"])
        assert store.retire_version("order", 2, 77) == Retirement("aliased", 0, ["stable"])
        assert set_alias(store, Target(3), 2) == "moved"
        assert store.retire_version("order", 2, 77) == Retirement(None)
        assert store.retire_version("order", 9, 77) == Retirement("unknown_version")

    def test_deploying_a_retired_version_again_makes_it_active(self, store: Store) -> None:
        versions_of_order(store)
        store.retire_version("order", 3, 77)
        assert store.register_version("order", "h3", b"3", 8) == 3
        assert store.latest_active("order") == 2, "a start registers a version, and does not deploy it"
        assert store.register_version("order", "h3", b"3", 9, b"new", True) == 3
        assert store.latest_active("order") == 3
        assert refusals(store, creation(store.reserve_run_numbers(1), version=3)) == [None]

    def test_an_alias_is_its_last_move_and_every_move_is_kept(self, store: Store) -> None:
        versions_of_order(store)
        assert store.alias("order", "stable") is None
        moves = [move(1, Target(1)), move(2, Target(1, (2, 500)), reason="try"), move(3, None), move(4, Target(3))]
        for one, targets in zip(moves, ([1], [1, 2], [], [3]), strict=True):
            assert store.move_alias(one, targets) == "moved"
        assert set_alias(store, Target(2), alias="canary") == "moved"
        assert store.alias_moves("order", "stable") == moves
        assert store.alias("order", "stable") == moves[-1]
        assert [(one.alias, one.no) for one in store.aliases("order")] == [("canary", 1), ("stable", 4)]
        assert store.aliases() == store.aliases("order")
        assert store.aliases("bill") == []

    def test_of_two_moves_with_one_number_the_first_counts(self, store: Store) -> None:
        versions_of_order(store)
        first = move(1, Target(1))
        assert store.move_alias(first, [1]) == "moved"
        assert store.move_alias(first, [1]) == "moved", "sent twice"
        assert store.move_alias(move(1, Target(2)), [2]) == "raced"
        assert store.alias_moves("order", "stable") == [first]

    def test_an_alias_points_only_to_versions_that_exist_and_are_active(self, store: Store) -> None:
        versions_of_order(store)
        store.retire_version("order", 2, 7)
        assert set_alias(store, Target(9)) == "unknown_version"
        assert set_alias(store, Target(1, (9, 5))) == "unknown_version"
        assert set_alias(store, Target(2)) == "retired"
        assert set_alias(store, Target(1, None, (2, 5))) == "retired"
        assert store.aliases("order") == []


class SharedVersionsConformance(Suite):
    def test_a_start_and_a_retirement_at_the_same_moment_never_both_succeed(self, store: Store, other: Store) -> None:
        rounds = 40
        versions_of_order(store, rounds)
        first = store.reserve_run_numbers(rounds)
        together = threading.Barrier(2)

        def begin() -> list[str | None]:
            found = []
            for index in range(rounds):
                together.wait()
                found += refusals(store, creation(first + index, version=index + 1))
            return found

        def retire() -> list[Retirement]:
            found = []
            for index in range(rounds):
                together.wait()
                found.append(other.retire_version("order", index + 1, 5))
            return found

        with ThreadPoolExecutor(2) as pool:
            begun, retired = pool.submit(begin), pool.submit(retire)
            outcomes = list(zip(begun.result(), retired.result(), strict=True))
        assert set(outcomes) <= {(None, Retirement("unfinished", 1)), ("retired", Retirement(None))}

    def test_an_alias_and_a_retirement_at_the_same_moment_never_both_succeed(self, store: Store, other: Store) -> None:
        rounds = 40
        versions_of_order(store, rounds)
        together = threading.Barrier(2)

        def point() -> list[str]:
            found: list[str] = []
            for index in range(rounds):
                together.wait()
                found.append(set_alias(store, Target(index + 1), 1, f"a{index}"))
            return found

        def retire() -> list[str | None]:
            found: list[str | None] = []
            for index in range(rounds):
                together.wait()
                found.append(other.retire_version("order", index + 1, 5).refusal)
            return found

        with ThreadPoolExecutor(2) as pool:
            pointed, retired = pool.submit(point), pool.submit(retire)
            outcomes = set(zip(pointed.result(), retired.result(), strict=True))
        assert outcomes <= {("moved", "aliased"), ("retired", None)}
