"""What many engines rely on in every store: who may drive what, and how many places each has, as tests.

Never: names a database. What only one database does is tested beside its driver.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

from holdfast.model.journal_format import FORMAT
from holdfast.store.contract import Store
from holdfast.store.row_types import EngineRow, MessageRow, RunStep, TimerRow
from tests.store.conformance.store import Suite, change, claimable, make_runs, message, refusals, step


def engine_row(name: str, expires_at: int = 100) -> EngineRow:
    return EngineRow(name, "host", 1, f"{name}.lock", 1, expires_at, b"{}")


def register(store: Store, *names: str) -> None:
    for name in names:
        store.register_engine(engine_row(name))


def last_engines(store: Store, *run_nos: int) -> list[str | None]:
    """Who drove each of these runs before, as one look by number and as the list of all runs say."""
    listed = {row.run_no: row.last_engine for row in store.runs(limit=1_000)}
    found = [store.run_by_no(no) for no in run_nos]
    assert [row and row.last_engine for row in found] == [listed[no] for no in run_nos]
    return [listed[no] for no in run_nos]


class EnginesConformance(Suite):
    """What one store object promises to engines."""

    # --- what may be claimed ---

    def test_claimable_runs_are_free_and_live_or_have_mail(self, store: Store) -> None:
        (low,) = make_runs(store, 1, engine=None, status="created")
        (mail,) = make_runs(store, 1, engine=None, status="suspended")
        make_runs(store, 1, engine=None, status="suspended")
        make_runs(store, 1)
        (failed,) = make_runs(store, 1, engine=None, status="failed")
        (held,) = make_runs(store, 1, engine=None, status="suspended", hold="x")
        make_runs(store, 1, engine=None, hold="x")
        (high,) = make_runs(store, 1, engine=None, priority=5, status="recovering", root_no=low, parent_no=low)
        (urgent,) = make_runs(store, 1, engine=None, priority=9, status="suspended")
        store.send([message(f"{word}{no}", no) for no in (mail, held, urgent) for word in ("a", "b")])
        assert store.send([MessageRow("again", failed, "retry", b"{}", 50)]) == ["new"]
        assert claimable(store) == [urgent, high, low, mail, failed]
        assert claimable(store, root_nos=[low]) == [high, low]
        assert claimable(store, root_nos=[low, mail]) == [high, low, mail]
        assert claimable(store, root_nos=[]) == []
        for limit in range(1, 6):
            assert claimable(store, limit=limit) == [urgent, high, low, mail, failed][:limit]

    def test_unowned_versions_are_those_of_which_something_is_claimable(self, store: Store) -> None:
        assert store.unowned_versions() == []
        for version in (3, 1, 2, 10):
            make_runs(store, 3, engine=None, workflow="b", version=version)
        make_runs(store, 2, engine=None, workflow="a", version=7, status="created")
        make_runs(store, 1, workflow="owned")
        make_runs(store, 1, engine=None, workflow="waits", status="suspended")
        make_runs(store, 1, engine=None, workflow="ended", status="completed")
        make_runs(store, 1, engine=None, workflow="held", hold="x")
        (mail,) = make_runs(store, 1, engine=None, workflow="mail", version=2, status="suspended")
        both = make_runs(store, 1, engine=None, workflow="b", version=1, status="suspended")
        store.send([message("m", mail), message("n", both[0])])
        assert store.unowned_versions() == [("a", 7), ("b", 1), ("b", 2), ("b", 3), ("b", 10), ("mail", 2)]

    def test_claimable_gives_the_first_of_each_version_and_only_of_those_asked_for(self, store: Store) -> None:
        many = make_runs(store, 5, engine=None, workflow="many")
        (urgent,) = make_runs(store, 1, engine=None, workflow="many", priority=1)
        (newer,) = make_runs(store, 1, engine=None, workflow="many", version=2)
        few = make_runs(store, 2, engine=None, workflow="few")
        make_runs(store, 1, engine=None, workflow="other")
        versions = [("few", 1), ("many", 1), ("many", 2), ("none", 1)]
        found = store.claimable(versions, limit=3)
        wanted = [(urgent, "many", 1), *((no, "many", 1) for no in many[:2]), (newer, "many", 2)]
        assert found == [*wanted, *((no, "few", 1) for no in few)]
        assert store.claimable([], limit=3) == []
        assert store.claimable([("few", 2), ("other", 9)]) == []

    def test_claimable_of_a_queue_leaves_the_others_alone(self, store: Store) -> None:
        plain = make_runs(store, 3, engine=None)
        (gpu,) = make_runs(store, 1, engine=None, queue="gpu")
        (urgent,) = make_runs(store, 1, engine=None, queue="slow", priority=3)
        (mail,) = make_runs(store, 1, engine=None, queue="gpu", status="suspended")
        store.send([message("m", mail)])
        assert claimable(store) == [urgent, *plain, gpu, mail]
        assert claimable(store, limit=2) == [urgent, plain[0]]
        assert claimable(store, queues=["gpu"]) == [gpu, mail]
        assert claimable(store, queues=["gpu", "slow"], limit=2) == [urgent, gpu]
        assert claimable(store, queues=["default"], root_nos=plain[1:]) == plain[1:]
        assert claimable(store, queues=["nobody's"]) == claimable(store, queues=[]) == []

    def test_a_run_keeps_the_queue_that_it_was_created_in(self, store: Store) -> None:
        (gpu,) = make_runs(store, 1, queue="gpu")
        (plain,) = make_runs(store, 1)
        assert refusals(store, step(gpu, change=change(2, engine=None))) == [None]
        assert [row.queue for row in store.claim("two", [gpu])] == ["gpu"]
        assert sorted((row[0], row[4]) for row in store.workflows_of([gpu, plain])) == [
            (gpu, "gpu"),
            (plain, "default"),
        ]
        assert [row.queue for row in store.runs(limit=2)] == ["default", "gpu"]

    def test_due_timers_of_a_queue(self, store: Store) -> None:
        (gpu,) = make_runs(store, 1, queue="gpu")
        (plain,) = make_runs(store, 1)
        released = change(2, status="suspended", engine=None)
        timers = {no: TimerRow(no, "t", 20, 1, "set") for no in (gpu, plain)}
        assert refusals(store, *(step(no, change=released, timers=[timers[no]]) for no in timers)) == [None] * 2
        assert store.due_timers(20, 10, ["order"]) == [timers[gpu], timers[plain]]
        assert store.due_timers(20, 10, ["order"], queues=["gpu", "other"]) == [timers[gpu]]
        assert store.due_timers(20, 10, ["order"], queues=[]) == []

    def test_loads_count_what_each_engine_owns(self, store: Store) -> None:
        assert store.loads() == {}
        make_runs(store, 3)
        make_runs(store, 1, status="suspended")
        make_runs(store, 2, engine="two")
        make_runs(store, 2, engine=None)
        assert store.loads() == {"one": 4, "two": 2}

    def test_the_clock_of_a_store_goes_on(self, store: Store) -> None:
        before = store.now()
        assert before > 1_600_000_000_000_000, "microseconds since 1970"
        assert store.now() >= before

    # --- engines that are declared dead ---

    def test_an_engine_is_removed_only_with_the_expiry_it_was_judged_by(self, store: Store) -> None:
        register(store, "one")
        numbers = make_runs(store, 2)
        assert store.take_slots("one", "pool", 1, 1) == 1
        assert store.renew_engine("one", 200)
        assert store.remove_engine("one", 100) is None
        assert store.engines() == [engine_row("one", 200)]
        assert store.loads() == {"one": 2}
        assert store.take_slots("one", "pool", 1, 1) == 0, "it keeps its place"
        assert refusals(store, *(step(no) for no in numbers)) == [None, None]
        assert store.remove_engine("one", 200) == 2
        assert (store.engines(), store.loads()) == ([], {})
        assert refusals(store, *(step(no, 2) for no in numbers)) == ["fenced", "fenced"]

    def test_what_an_engine_took_that_is_not_on_the_list_any_more_is_freed_with_any_expiry(self, store: Store) -> None:
        make_runs(store, 2, engine="ghost")
        assert store.remove_engine("ghost", 77) == 2
        assert store.remove_engine("ghost", 77) == 0

    # --- formats ---

    def test_a_run_of_a_format_that_is_not_read_here_is_neither_found_nor_claimed(self, store: Store) -> None:
        newer, known = (
            make_runs(store, 1, engine=None, status="suspended", format=number)[0] for number in (FORMAT + 1, FORMAT)
        )
        for no in (newer, known):
            timer = TimerRow(no, "t", 5, 1, "set")
            assert refusals(store, step(no, change=change(2, engine=None), timers=[timer])) == [None]
        assert [timer.run_no for timer in store.due_timers(9, 10, ["order"])] == [known]
        assert claimable(store) == [known]
        assert claimable(store, root_nos=[newer, known]) == [known]
        assert [row.run_no for row in store.claim("two", [newer, known])] == [known]
        assert store.unowned_versions() == []
        assert store.next_timer() is None
        store.send([MessageRow("m_newer", newer, "cancel", b"{}", 50)])
        assert (claimable(store), store.claim("two", [newer])) == ([], [])

    def test_a_format_is_raised_with_a_commit_and_never_lowered(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        formats = []
        for seq, number in ((1, 1), (2, 3), (3, 2)):
            assert refusals(store, step(no, seq, change=change(seq + 1, format=number))) == [None]
            row = store.run_by_no(no)
            assert row is not None
            formats.append(row.format)
        stale = step(no, 4, token=9, change=change(5, format=7))
        assert refusals(store, stale) == ["fenced"]
        assert refusals(store, step(no, 4, change=RunStep(5, b"head5", 0))) == [None]
        row = store.run_by_no(no)
        assert row is not None
        assert [*formats, row.format] == [1, 3, 3, 3]

    # --- who drove a run before ---

    def test_a_run_that_nobody_has_given_up_has_no_engine_before(self, store: Store) -> None:
        (owned,) = make_runs(store, 1)
        (free,) = make_runs(store, 1, engine=None, status="created")
        assert [row.last_engine for row in store.claim("two", [free])] == [None]
        assert refusals(store, step(owned), step(free, token=2, change=change(2, engine="two"))) == [None, None]
        assert last_engines(store, owned, free) == [None, None]

    def test_the_run_of_an_engine_that_is_gone_names_it_also_when_somebody_else_has_it(self, store: Store) -> None:
        register(store, "one")
        (no,) = make_runs(store, 1)
        assert store.remove_engine("one") == 1
        assert last_engines(store, no) == ["one"]
        assert [(row.engine, row.last_engine) for row in store.claim("two", [no])] == [("two", "one")]
        assert refusals(store, step(no, token=3, change=change(2, engine="two"))) == [None]
        assert last_engines(store, no) == ["one"], "while the next one drives it, too"
        assert store.remove_engine("two") == 1
        assert [(row.engine, row.last_engine) for row in store.claim("one", [no])] == [("one", "two")]

    def test_a_run_that_was_given_back_names_who_gave_it_back(self, store: Store) -> None:
        first, second = make_runs(store, 2)
        assert store.release("one", [(first, 1), (second, 1)]) == 2
        assert last_engines(store, first, second) == ["one", "one"]
        won = store.claim("two", [first, second])
        assert [(row.engine, row.last_engine) for row in won] == [("two", "one")] * 2
        assert store.release("two", [(first, 2)]) == 1
        assert last_engines(store, first, second) == ["two", "one"]
        assert not store.release("two", [(first, 2)])
        assert last_engines(store, first) == ["two"]

    def test_who_gives_a_run_back_unused_did_not_drive_it(self, store: Store) -> None:
        numbers = make_runs(store, 2)
        assert store.release("one", [(no, 1) for no in numbers]) == 2
        assert len(store.claim("two", numbers)) == 2
        assert store.release("two", [(no, 2) for no in numbers], unused=True) == 2
        assert last_engines(store, *numbers) == ["one", "one"]
        assert [(row.engine, row.last_engine) for row in store.claim("three", numbers)] == [("three", "one")] * 2

    def test_a_commit_that_gives_an_unfinished_run_back_leaves_the_name_of_its_owner(self, store: Store) -> None:
        alone, given, kept, ended = make_runs(store, 4)
        free = change(2, status="suspended", engine=None)
        assert refusals(store, step(alone, change=free)) == [None]
        end = change(2, status="completed", engine=None, finished_at=5)
        group = (step(given, change=free), step(kept, change=change(2)), step(ended, change=end, ends=True))
        assert refusals(store, *group) == [None] * 3
        assert last_engines(store, alone, given, kept, ended) == ["one", "one", None, None]
        late = change(3, status="suspended", engine=None)
        assert refusals(store, step(alone, 2, change=late)) == [None]
        assert last_engines(store, alone) == ["one"], "whoever writes once more without the lease is still the last"

    # --- places of shared pools ---

    def test_places_are_given_until_there_are_none(self, store: Store) -> None:
        register(store, "one", "two")
        assert store.take_slots("one", "pool", 3, 5) == 3
        assert store.take_slots("two", "pool", 4, 5) == 2
        assert store.take_slots("one", "pool", 1, 5) == 0
        assert store.take_slots("one", "another", 1, 1) == 1
        assert store.take_slots("one", "pool", 1, 6) == 1, "there are more places now"
        assert store.take_slots("one", "pool", 1, 2) == 0, "and fewer"
        assert store.take_slots("one", "pool", 0, 9) == 0

    def test_places_that_are_given_back_can_be_taken_again(self, store: Store) -> None:
        register(store, "one", "two")
        assert store.take_slots("one", "pool", 3, 3) == 3
        store.give_slots("one", "pool", 2)
        assert store.take_slots("two", "pool", 9, 3) == 2
        store.give_slots("one", "pool", 5)
        assert store.take_slots("two", "pool", 9, 3) == 1, "nobody gives back more than they have"
        store.give_slots("one", "pool", 1)
        store.give_slots("one", "unheard of", 1)
        assert store.take_slots("one", "pool", 1, 3) == 0

    def test_an_engine_that_is_not_on_the_list_gets_no_place(self, store: Store) -> None:
        register(store, "two")
        assert store.take_slots("one", "pool", 1, 5) == 0
        register(store, "one")
        assert store.take_slots("one", "pool", 1, 5) == 1
        store.remove_engine("one")
        assert store.take_slots("one", "pool", 1, 5) == 0
        assert store.take_slots("two", "pool", 9, 5) == 5

    def test_the_places_of_a_dead_engine_are_free(self, store: Store) -> None:
        register(store, "one", "two")
        assert store.take_slots("one", "pool", 2, 3) == 2
        assert store.take_slots("one", "another", 1, 1) == 1
        assert store.take_slots("two", "pool", 3, 3) == 1
        assert store.remove_engine("one", 100) == 0
        assert store.take_slots("two", "pool", 3, 3) == 2
        assert store.take_slots("two", "another", 1, 1) == 1


class SharedEnginesConformance(Suite):
    """What engines promise to each other through two store objects."""

    def test_two_engines_that_race_for_places_never_have_more_than_there_are(self, store: Store, other: Store) -> None:
        register(store, "one", "two")
        limit, rounds = 5, 40
        together = threading.Barrier(2)

        def race(engine: str, one: Store) -> list[int]:
            got = []
            for _, wanted in zip(range(rounds), cycle((1, 3, 5)), strict=False):
                together.wait(30)
                got.append(one.take_slots(engine, "pool", wanted, limit))
                together.wait(30)
                one.give_slots(engine, "pool", got[-1])
            return got

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(race, "one", store), pool.submit(race, "two", other)
            taken = list(zip(first.result(), second.result(), cycle((2, 5, 5))))
        assert all(one + two == most for one, two, most in taken), taken
        assert store.take_slots("one", "pool", 9, limit) == limit, "all were given back"

    def test_an_engine_that_renews_while_it_is_declared_dead_lives_or_knows(self, store: Store, other: Store) -> None:
        together = threading.Barrier(2)

        def renew(name: str) -> bool:
            together.wait(30)
            return store.renew_engine(name, 200)

        with ThreadPoolExecutor(1) as pool:
            for number in range(40):
                name = f"engine{number}"
                register(store, name)
                (no,) = make_runs(store, 1, engine=name)
                renewing = pool.submit(renew, name)
                together.wait(30)
                freed = other.remove_engine(name, 100)
                assert renewing.result() == (freed is None)
                row = store.run_by_no(no)
                assert row is not None
                assert (row.engine, row.token) == ((name, 1) if freed is None else (None, 2))
