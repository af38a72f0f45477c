"""`holdfast why`: where a run stands, in one paragraph."""

from __future__ import annotations

import textwrap

from holdfast.cli import databases, output
from holdfast.cli.options import Db, Json, RunIdPrefix
from holdfast.inspect.why import why


def command(run: RunIdPrefix, db: Db = None, json: Json = False) -> None:
    """Say what a run waits for, since when, what will wake it, and if nothing will, why.

    \b
    Examples:
      holdfast why order-42
      holdfast why order-42 --json | jq .moves
    """
    with databases.reading(db) as store:
        found = why(store, databases.find_by_prefix(store, run), store.now())
    if json:
        output.document(found.as_json())
        return
    width = max(40, min(output.terminal_width(), 120))
    for text in textwrap.wrap(output.line(found.why), width, break_long_words=False, break_on_hyphens=False):
        output.write(text)
