"""In which order a store answers, and that a group is its commits one after the other, in every store.

Never: names a database.
"""

from __future__ import annotations

from holdfast.store.contract import Store
from holdfast.store.row_types import Commit, MessageRow, WaitRow
from tests.store.conformance.store import (
    Suite,
    change,
    creation,
    event_row,
    make_runs,
    message,
    node_row,
    refusals,
    step,
)


def wait_for(run_no: int, wait_id: str, child: int = 0) -> WaitRow:
    return WaitRow(run_no, wait_id, "child", "a", ".", 1, 1, "open", 5, None, f'{{"child":"run_{child}"}}'.encode())


class OrderConformance(Suite):
    """What the engine may rely on when it takes an answer from its beginning."""

    # --- answers ---

    def test_a_claim_gives_the_runs_in_the_order_in_which_they_were_asked_for(self, store: Store) -> None:
        first, second, third = make_runs(store, 3, engine=None)
        wanted = [second, third, first]
        assert [row.run_no for row in store.claim("one", [*wanted, second])] == wanted

    def test_lists_about_many_runs_are_by_run(self, store: Store) -> None:
        (ended,) = make_runs(store, 1, status="failed", engine=None)
        first, second, third = make_runs(store, 3)
        for seq, no in enumerate([third, first, second, third]):
            waits = [wait_for(no, f"w{seq}b", ended), wait_for(no, f"w{seq}a", ended)]
            nodes = [node_row(no, f"n{seq}b"), node_row(no, f"n{seq}a")]
            row = store.run_by_no(no)
            assert row is not None
            moved = change(row.last_seq + 1, engine=None)
            assert refusals(store, step(no, row.last_seq, change=moved, waits=waits, nodes=nodes)) == [None]
        asked = [third, first, second]
        names = [(first, "1b"), (first, "1a"), (second, "2b"), (second, "2a")]
        names += [(third, "0b"), (third, "0a"), (third, "3b"), (third, "3a")]
        assert [(n.run_no, n.node[1:]) for n in store.open_nodes(asked)] == names
        assert [(w.run_no, w.wait_id[1:]) for w in store.open_waits(asked)] == names
        assert store.waits_for_ended()[0] == [(no, f"run_{ended}") for no, _ in names]
        assert [row[0] for row in store.workflows_of(asked)] == sorted(asked)
        assert store.differing_heads(asked, ["RunCreated"]) == sorted(asked), (
            "none of these heads is the hash of an event"
        )
        assert [s.run_no for s in store.suspects("head", first, third)] == sorted(asked)

    def test_suspects_of_one_run_are_by_place_and_by_what_was_found(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        waits = [wait_for(no, name)._replace(node=node) for name, node in (("w2", "b"), ("w3", "a"), ("w1", "b"))]
        end = change(2, status="failed", engine=None, finished_at=9)
        assert refusals(store, step(no, change=end, waits=waits)) == [None]
        assert [s.found for s in store.suspects("wait_of_end", no, no)] == ["w3", "w1", "w2"]

    def test_rows_of_one_commit_keep_their_order_whether_they_are_open_or_not(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        nodes = [node_row(no, "c", is_open=0), node_row(no, "b"), node_row(no, "d", is_open=0), node_row(no, "a")]
        assert refusals(store, step(no, nodes=nodes)) == [None]
        assert [node.node for node in store.nodes(no)] == ["c", "b", "d", "a"]
        assert refusals(store, step(no, 2, nodes=[node_row(no, "c"), node_row(no, "e")])) == [None]
        assert [node.node for node in store.open_nodes([no])] == ["c", "b", "a", "e"]

    # --- groups ---

    def test_messages_of_a_group_arrive_in_its_order_those_of_a_child_behind_its_parents(self, store: Store) -> None:
        target, low, high = make_runs(store, 3)
        child = creation(store.reserve_run_numbers(1), parent_no=high, root_no=high)
        child.messages = [message("child", target)]
        group = [
            step(high, messages=[message("z", target), message("twice", target, b"high")], children=[child]),
            step(low, messages=[message("twice", target, b"low"), message("a", target)]),
        ]
        assert refusals(store, *group) == [None, None]
        arrived = store.new_messages([target])
        assert [m.message_id for m in arrived] == ["z", "twice", "child", "a"]
        assert arrived[1].payload == b"high"

    def test_a_message_to_a_run_that_ends_in_the_same_group_is_dead_with_the_reason(self, store: Store) -> None:
        """Whether the group is written at once, or one by one because somebody was fenced."""
        for spoilt in (False, True):
            sender, ending, other = make_runs(store, 3)
            late = [message(f"signal {spoilt}", ending), MessageRow(f"retry {spoilt}", ending, "retry", b"{}", 5)]
            end = change(2, status="completed", engine=None, finished_at=9)
            group = [step(sender, messages=late), step(ending, change=end, ends=True)]
            group.append(step(other, token=9 if spoilt else 1))
            assert refusals(store, *group) == [None, None, "fenced" if spoilt else None]
            dead, kept = (store.message(one.message_id) for one in late)
            assert dead is not None
            assert (dead.status, b"finished" in (dead.outcome or b"")) == ("dead", True)
            assert kept is not None
            assert kept.status == "new", "it opens another branch"

    def test_whoever_is_fenced_is_told_so_whatever_else_is_wrong(self, store: Store) -> None:
        (no,) = make_runs(store, 1)
        too_big = event_row(no, 2)._replace(at=2**70)
        taken = Commit(
            no, 7, 1, change=change(2), children=[creation(store.reserve_run_numbers(1), run_id=f"run_{no}")]
        )
        assert refusals(store, step(no, token=7, events=[too_big])) == ["fenced"]
        assert refusals(store, taken) == ["fenced"]
