"""The bytes that events are stored and hashed as."""

from __future__ import annotations

from holdfast.model import journal_format

AT = 1_763_258_000_123_456


def test_the_hash_of_an_event_is_what_it_always_was() -> None:
    of_a_run = journal_format.link(bytes(16), "run_1", 1, 1, "RunCreated", None, None, 1, AT, 1, b"{}")
    of_a_node = journal_format.link(bytes(16), "run_1", 7, 2, "NodeStarted", "charge", ".", 3, AT, 4, b'{"attempt":1}')
    assert of_a_run.hex() == "bfdc4c85da17635a929a7f72d936b4bd"
    assert of_a_node.hex() == "1c8dc2cc3652e660ebe85255caa83d89"


def test_every_column_counts_in_the_hash_of_an_event() -> None:
    columns = (bytes(16), "run_1", 7, 1, "NodeStarted", "charge", ".", 1, AT, 1, b"{}")
    others = (b"\1" * 16, "run_2", 8, 2, "NodeSkipped", "ship", ".m.1.", 2, AT + 1, 2, b'{"a":1}')
    hashes = [journal_format.link(*columns)]
    for i, other in enumerate(others):
        hashes.append(journal_format.link(*columns[:i], other, *columns[i + 1 :]))  # type: ignore[arg-type]
    assert len(set(hashes)) == len(hashes)
