"""Appended: a file of lines of JSON that processes write while they are killed, and what can be read from it."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from typing import Any


def lines_in(data: bytes) -> Iterator[dict[str, Any]]:
    """What the lines tell, each a flat object. A process that is killed while it writes a line over the end of a page
    may leave the part that is on the first page, which tells nothing; whoever comes next writes behind it. A line that
    is cut anywhere else is a fault."""
    begin = 0
    for line in data.splitlines(keepends=True):
        whole = line.rfind(b'{"')
        cuts = [whole] * (whole > 0) + [len(line)] * (not line.endswith(b"\n"))
        assert all((begin + cut) % mmap.PAGESIZE == 0 for cut in cuts), f"a line was cut: {line!r} at {begin}"
        if line.endswith(b"\n"):
            yield json.loads(line[whole:])
        begin += len(line)
