"""Places: whether a limit that all engines share was kept at every moment, by bodies whose engine owned their run.

A body is at work from when it says that it comes until it says that it goes, and no longer than its engine owns its
run: a zombie's body counts for nothing, and one whose process was killed goes with its lease. When that is, the server
itself writes down: whoever takes a run away makes its token grow, in the transaction that frees the places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.flows import LIMITS
from tests.chaos.outside import Body, Shift
from tests.store.postgres_kit import sql

WATCHED = (
    "CREATE TABLE holdfast.chaos_lost (run_id text, token bigint, at bigint, PRIMARY KEY (run_id, token))",
    "CREATE FUNCTION holdfast.chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO holdfast.chaos_lost VALUES (OLD.run_id, OLD.token, extract(epoch FROM clock_timestamp()) * 1000000); "
    "RETURN NULL; END $$",
    "CREATE TRIGGER chaos_note AFTER UPDATE OF token ON holdfast.run_state FOR EACH ROW "
    "WHEN (OLD.token <> NEW.token) EXECUTE FUNCTION holdfast.chaos_note()",
)


def watch(url: str) -> None:
    """From now on the server writes down when a run's owner lost it."""
    sql(url, *WATCHED)


def most_at_work(url: str, shifts: Iterable[Shift]) -> dict[str, int]:
    """How many bodies of each pool that has a limit were at work at once, at most."""
    lost_at = {(run_id, token): at for run_id, token, at in sql(url, "SELECT * FROM holdfast.chaos_lost")}
    tokens = _tokens(url)
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for shift in shifts:
        body = shift.body
        ends = [shift.went, lost_at.get((body.run_id, tokens[body]))]
        known = [end for end in ends if end is not None]
        assert known, f"{body} neither went nor was taken away"
        if shift.came < min(known):
            changes[shift.pool] += [(shift.came, 1), (min(known), -1)]
    return {pool: _most(changes[pool]) for pool in LIMITS}


def _tokens(url: str) -> dict[Body, int]:
    """The token under which each attempt was started."""
    started = sql(
        url,
        "SELECT r.run_id, e.node, e.path, convert_from(e.data, 'UTF8')::json ->> 'attempt', e.token "
        "FROM holdfast.run_events AS e JOIN holdfast.run_state AS r USING (run_no) WHERE e.type = 'NodeStarted'",
    )
    return {Body(run_id, node, path, int(attempt)): token for run_id, node, path, attempt, token in started}


def _most(changes: list[tuple[int, int]]) -> int:
    """Who goes in the same microsecond in which another one comes has gone before."""
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
