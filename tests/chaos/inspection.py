"""Inspection: whether every promise was kept, when everything is over.

Each check is of what the outside can see: runs and journals in the database, effects in the file, the ledger of what
was acknowledged.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

from holdfast.engine.messages import signal_message_id
from tests.chaos import flows, places
from tests.chaos.client import Ledger
from tests.chaos.orders import ANSWER, Order
from tests.chaos.outside import Outside
from tests.chaos.workers import Crew
from tests.store.postgres_kit import sql

UNFINISHED = (
    "SELECT run_id, status, engine, recoveries, hold FROM holdfast.run_state "
    "WHERE status NOT IN ('completed', 'failed', 'cancelled') ORDER BY run_no"
)
LEFT_BEHIND = {
    "engines": "SELECT engine FROM holdfast.engines",
    "places of engines": "SELECT pool, engine, held FROM holdfast.engine_slots",
    "owned runs": "SELECT run_id, engine FROM holdfast.run_state WHERE engine IS NOT NULL",
    "runs on hold": "SELECT run_id, hold FROM holdfast.run_state WHERE hold IS NOT NULL",
    "open waits": "SELECT run_no, wait_id FROM holdfast.run_waits WHERE status = 'open'",
    "timers": "SELECT run_no, timer FROM holdfast.run_timers WHERE status = 'set'",
    "messages": "SELECT run_no, kind FROM holdfast.run_inbox_messages WHERE status IN ('new', 'held')",
}
"""What there must be none of when everything has ended."""
ALARMING = ("Traceback", "critical:", "background work failed", "looking for work failed", "put on hold")
"""What no worker may say, however often it was killed."""
REPEATING = frozenset({flows.chaos_lazy.name})
"""Workflows whose attempts begin again with their number: what was not committed has not happened."""


class Inspection:
    """Looks at one database and its outside."""

    def __init__(self, url: str, crew: Crew, ledger: Ledger) -> None:
        self._url = url
        self._crew = crew
        self._outside: Outside = crew.outside
        self._ledger = ledger
        self._journals = self._read_journals()

    def everything(self) -> None:
        assert self._takeovers() > 0, "nobody was at work when workers were killed: this has shown nothing"
        self.every_acknowledged_run_has_ended_right()
        self.there_are_no_other_runs()
        self.every_acknowledged_command_is_in_the_journal()
        self.every_effect_happened_under_one_key_of_its_own()
        self.no_attempt_acted_twice()
        self.limits_were_kept()
        self.nothing_is_left_behind()
        self.no_worker_was_alarmed()
        self.the_doctor_finds_nothing()

    def every_acknowledged_run_has_ended_right(self) -> None:
        for order in self._ledger.started:
            assert order.run_id in self._journals, f"{order.run_id} was acknowledged, and is not there"
            kind, data = self._journals[order.run_id][-1]
            assert kind == f"Run{order.shape.status.capitalize()}", f"{order.run_id} has ended with {kind}: {data}"
            if order.shape.status == "completed":
                expected = self._expected(order)
                assert data["result"] == expected, f"{order.run_id} gave {data['result']}, and not {expected}"

    def _expected(self, order: Order) -> Any:
        result = order.shape.result(order.shape, order.run_id)
        if isinstance(result, list) and ANSWER in result:
            result[result.index(ANSWER)] = self._answer_of(order.run_id)
        return result

    def there_are_no_other_runs(self) -> None:
        expected = {run_id for order in self._ledger.started for run_id in (order.run_id, *order.children())}
        assert set(self._journals) == expected

    def every_acknowledged_command_is_in_the_journal(self) -> None:
        ledger = self._ledger
        for run_id, answer in ledger.answered.items():
            assert self._answer_of(run_id) == answer, f"{run_id}: the acknowledged answer {answer} is not the one"
        for run_id, tried in ledger.tried.items():
            assert self._answer_of(run_id) in tried, f"{run_id} has an answer that nobody gave"
        for run_id, signal_id in ledger.signalled:
            message_id = signal_message_id(run_id, signal_id)
            times = [data["message_id"] for kind, data in self._journals[run_id] if kind == "MessageConsumed"]
            assert times.count(message_id) == 1, f"{run_id} received {signal_id} {times.count(message_id)} times"
        for run_id in ledger.cancelled:
            assert self._journals[run_id][-1][0] == "RunCancelled", f"{run_id}: the acknowledged cancel is missing"

    def _answer_of(self, run_id: str) -> Any:
        answers = [data["value"] for kind, data in self._journals[run_id] if kind == "WaitClosed" and "value" in data]
        assert len(answers) == 1, f"{run_id} has {len(answers)} answers"
        return answers[0]

    def every_effect_happened_under_one_key_of_its_own(self) -> None:
        """So a receiver that honours keys has seen each of them once."""
        keys: dict[str, set[str]] = defaultdict(set)
        for effect in self._outside.effects():
            keys[effect.name].add(effect.key)
        expected = set[str]().union(*(order.effects() for order in self._ledger.started))
        assert expected - set(keys) == set(), "these never happened"
        assert set(keys) - expected == set(), "nobody asked for these"
        assert [name for name, found in keys.items() if len(found) > 1] == [], "these came under several keys"
        shared = Counter(key for found in keys.values() for key in found)
        assert [key for key, count in shared.items() if count > 1] == [], "these keys stand for several effects"

    def no_attempt_acted_twice(self) -> None:
        """What acts again is another attempt: nothing was started by two engines."""
        acted = Counter((effect.name, effect.attempt) for effect in self._outside.effects())
        twice = [key for key, times in acted.items() if times > 1 and key[0].partition("-")[0] not in REPEATING]
        assert twice == []

    def limits_were_kept(self) -> None:
        most = places.most_at_work(self._url, self._outside.shifts())
        for pool, limit in flows.LIMITS.items():
            assert most[pool] <= limit, f"{most[pool]} bodies of {pool} were at work at once, and not {limit}"

    def nothing_is_left_behind(self) -> None:
        for what, query in LEFT_BEHIND.items():
            assert sql(self._url, query) == [], f"there are {what} left"
        assert self._crew.json("engines") == []

    def no_worker_was_alarmed(self) -> None:
        for log, text in self._crew.logs().items():
            found = [line for line in text.splitlines() if any(words in line for words in ALARMING)]
            assert found == [], f"{log}: {found}"

    def the_doctor_finds_nothing(self) -> None:
        report = self._crew.json("doctor", "--deep")
        assert report["violations"] == []

    def account(self) -> str:
        """In numbers, for people."""
        ledger, effects = self._ledger, self._outside.effects()
        refused = sum(text.count("lease_lost") for text in self._crew.logs().values())
        numbers = {
            "runs": len(self._journals),
            "events": sum(map(len, self._journals.values())),
            "takeovers": self._takeovers(),
            "lost leases noticed": refused,
            "effects": len({effect.key for effect in effects}),
            "acts": len(effects),
            "answers": len(ledger.answered),
            "signals": len(ledger.signalled),
            "cancels": len(ledger.cancelled),
            "asked again": ledger.asked_again,
            "most at work": places.most_at_work(self._url, self._outside.shifts()),
        }
        return ", ".join(f"{what} {number}" for what, number in numbers.items())

    def _takeovers(self) -> int:
        return sum(kind == "RunTakenOver" for journal in self._journals.values() for kind, _ in journal)

    def _read_journals(self) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        journals: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        rows = sql(
            self._url,
            "SELECT r.run_id, e.type, e.data FROM holdfast.run_events AS e "
            "JOIN holdfast.run_state AS r USING (run_no) ORDER BY e.run_no, e.seq",
        )
        for run_id, kind, data in rows:
            journals[run_id].append((kind, json.loads(data)))
        return dict(journals)
