"""Which commits go together, when those who made them hear of it, and what may be written beside what."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from holdfast.engine.committer import SERVED_GROUP_MAX, Committer, TwoWriterThreads
from holdfast.model.errors import OutcomeUnknown, StoreError, StoreFull
from holdfast.store.contract import Store
from holdfast.store.row_types import Commit, CommitResult

RUNS = 2 * SERVED_GROUP_MAX + 1


class Tape:
    """A store that writes down what is asked of it. What happens is told in the order in which it happens."""

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.groups: list[list[int]] = []
        self.full_times = 0

    def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
        if self.full_times:
            self.full_times -= 1
            raise StoreFull("full")
        self.groups.append([commit.run_no for commit in group])
        return [CommitResult(None)] * len(group)


class Hand:
    """A writer that works when it is told to."""

    def __init__(self, groups_max: int) -> None:
        self.groups_max = groups_max
        self.jobs: deque[Callable[[], None]] = deque()

    def put(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    put_group = put

    def close(self) -> None:
        while self.jobs:
            self.jobs.popleft()()

    async def write(self) -> None:
        """One job, and the loop hears of it."""
        self.jobs.popleft()()
        await asyncio.sleep(0)


class Told:
    """Whoever handed a commit over; knows how many groups waited at the writer when it was told."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.sent_before: int | None = None

    def landed(self, outcome: CommitResult) -> None:
        assert outcome.refusal is None
        self.sent_before = len(self._hand.jobs)


def many_commits(tape: Tape) -> tuple[Committer, Hand, list[Told]]:
    hand = Hand(2 if tape.is_shared else 1)
    committer = Committer(cast(Store, tape), asyncio.get_running_loop(), _fail, hand)
    landers = [Told(hand) for _ in range(RUNS)]
    for run_no, lander in enumerate(landers):
        committer.submit(Commit(run_no, 1, 0), lander)
    committer.flush()
    return committer, hand, landers


def _fail(error: BaseException) -> None:
    raise error


async def test_where_a_server_writes_many_runs_are_parted_into_groups_in_their_order() -> None:
    tape = Tape(is_shared=True)
    committer, hand, landers = many_commits(tape)
    assert len(hand.jobs) == 2  # one for the server, and one on its way
    while hand.jobs:
        await hand.write()
    assert [len(group) for group in tape.groups] == [SERVED_GROUP_MAX, SERVED_GROUP_MAX, 1]
    assert [run_no for group in tape.groups for run_no in group] == list(range(RUNS))
    assert all(lander.sent_before is not None for lander in landers)
    assert committer.idle


async def test_where_a_server_writes_the_next_group_is_sent_before_the_last_one_is_told() -> None:
    _, hand, landers = many_commits(Tape(is_shared=True))
    await hand.write()
    assert [lander.sent_before for lander in landers[:SERVED_GROUP_MAX]] == [2] * SERVED_GROUP_MAX
    assert landers[SERVED_GROUP_MAX].sent_before is None


async def test_into_a_file_everybody_is_written_at_once_and_told_before_anybody_else_is_sent() -> None:
    tape = Tape(is_shared=False)
    committer, hand, landers = many_commits(tape)
    late = Told(hand)
    committer.submit(Commit(RUNS, 1, 0), late)
    await hand.write()
    assert [len(group) for group in tape.groups] == [RUNS]
    assert {lander.sent_before for lander in landers} == {0}
    await hand.write()
    assert late.sent_before == 0


async def test_while_the_disk_is_full_the_group_that_found_it_full_stays_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.engine.committer.FULL_RETRY_SECONDS", 0.0)
    tape = Tape(is_shared=False)
    tape.full_times = 2
    committer, hand, landers = many_commits(tape)
    late = Told(hand)
    committer.submit(Commit(RUNS, 1, 0), late)
    for _ in range(2):
        await hand.write()
        assert not hand.jobs
        await tried_again(hand)
    while hand.jobs:
        await hand.write()
    assert [run_no for group in tape.groups for run_no in group] == list(range(RUNS + 1))
    assert all(lander.sent_before is not None for lander in (*landers, late))


async def test_while_the_disk_of_a_server_is_full_every_group_is_tried_until_it_lands_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.engine.committer.FULL_RETRY_SECONDS", 0.0)
    tape = Tape(is_shared=True)
    tape.full_times = 5
    committer, hand, landers = many_commits(tape)
    while not committer.idle:
        await tried_again(hand)
        await hand.write()
    assert sorted(run_no for group in tape.groups for run_no in group) == list(range(RUNS))
    assert all(lander.sent_before is not None for lander in landers)


async def tried_again(hand: Hand) -> None:
    while not hand.jobs:  # noqa: ASYNC110 - the committer tries again in one of the next turns
        await asyncio.sleep(0)


async def test_one_who_cannot_take_its_outcome_keeps_it_from_nobody_else() -> None:
    hand = Hand(2)
    committer = Committer(cast(Store, Tape(is_shared=True)), asyncio.get_running_loop(), _fail, hand)
    broken: Any = object()
    other = Told(hand)
    committer.submit(Commit(1, 1, 0), broken)
    committer.submit(Commit(2, 1, 0), other)
    committer.flush()
    await hand.write()
    assert other.sent_before is not None


async def test_of_a_store_that_closes_under_two_groups_the_first_error_is_told() -> None:
    class Closed(Tape):
        def commit(self, group: Sequence[Commit]) -> list[CommitResult]:
            self.groups.append([])
            raise OutcomeUnknown("open") if len(self.groups) == 1 else StoreError("closed")

    told: list[BaseException] = []
    hand = Hand(2)
    committer = Committer(cast(Store, Closed(is_shared=True)), asyncio.get_running_loop(), told.append, hand)
    for run_no in range(2 * SERVED_GROUP_MAX):
        committer.submit(Commit(run_no, 1, 0), Told(hand))
    committer.flush()
    await hand.write()
    await hand.write()
    assert [type(error) for error in told] == [OutcomeUnknown]


class Works:
    """Jobs that say when they begin and end, and end when they may."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._events: dict[str, threading.Event] = {}

    def job(self, name: str) -> Callable[[], None]:
        self._events |= {f"{name} may end": threading.Event(), f"{name} began": threading.Event()}

        def work() -> None:
            self.said.append(f"{name} began")
            self._events[f"{name} began"].set()
            assert self._events[f"{name} may end"].wait(30)
            self.said.append(f"{name} ended")

        return work

    def wait_for(self, name: str) -> None:
        assert self._events[f"{name} began"].wait(30)

    def end(self, *names: str) -> None:
        for name in names:
            self._events[f"{name} may end"].set()


def test_two_groups_are_written_beside_each_other() -> None:
    writer, works = TwoWriterThreads(), Works()
    writer.put_group(works.job("a"))
    writer.put_group(works.job("b"))
    works.wait_for("a")
    works.wait_for("b")
    works.end("a", "b")
    writer.close()
    assert sorted(works.said[:2]) == ["a began", "b began"]


def test_any_other_write_waits_for_the_groups_before_it_and_holds_up_those_behind_it() -> None:
    writer, works = TwoWriterThreads(), Works()
    for name in ("a", "b"):
        writer.put_group(works.job(name))
    writer.put(works.job("alone"))
    for name in ("c", "d"):
        writer.put_group(works.job(name))
    works.wait_for("b")
    works.end("a", "alone", "c", "d")  # only b is not allowed to end
    works.wait_for("a")
    works.end("b")
    writer.close()
    alone = works.said.index("alone began")
    assert set(works.said[:alone]) == {"a began", "b began", "a ended", "b ended"}
    assert works.said[alone + 1] == "alone ended"
    assert set(works.said[alone + 2 :]) == {"c began", "c ended", "d began", "d ended"}


def test_other_writes_are_written_one_after_the_other_in_their_order() -> None:
    writer, works = TwoWriterThreads(), Works()
    names = [str(number) for number in range(20)]
    for name in names:
        writer.put(works.job(name))
    works.end(*names)
    writer.close()
    assert works.said == [f"{name} {what}" for name in names for what in ("began", "ended")]
