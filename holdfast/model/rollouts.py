"""Rollouts: which version a start by name gets.

Owns: the form of `name@alias`, where an alias points (a base version, and shares of starts for up to two others), and
the bucket of a key, which decides between them.
Never: reads the store, knows whether a version exists or is retired.
Invariants: the bucket of a key depends on the workflow, the alias and the key alone, so that one key always gets the
same version while the shares stay as they are. A version keeps its end of the buckets while it has a share: raising a
share only moves keys towards that version, lowering it only moves keys away from it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.model.errors import UsageError
from holdfast.model.limits import BUCKETS

STABLE: Final = "stable"
"""The alias of a start that names none, if it exists."""
LATEST: Final = "latest"
"""The highest version that is not retired; no alias has this name."""


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an alias points."""

    version: int
    low: tuple[int, int] | None = None
    """(version, buckets) of the share that begins at the first bucket."""
    high: tuple[int, int] | None = None
    """The same of the one that ends at the last bucket. A share that grows from one end takes buckets from the base
    version only; a third share would have to move the second, which is why there are two."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def versions(self) -> tuple[int, ...]:
        return (self.version, *(share[0] for share in (self.low, self.high) if share is not None))

    @property
    def weights(self) -> dict[int, float]:
        """Percentages by version, without the base version."""
        return {share[0]: share[1] * 100 / BUCKETS for share in (self.low, self.high) if share is not None}

    def at(self, bucket: int) -> int:
        """The version that a bucket gets."""
        if self.low is not None and bucket < self.low[1]:
            return self.low[0]
        if self.high is not None and bucket >= BUCKETS - self.high[1]:
            return self.high[0]
        return self.version


_ALIAS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_decode = msgspec.json.Decoder(Target).decode


def target_of(data: bytes | None) -> Target | None:
    """Read where an alias points; None: nowhere."""
    return None if data is None else _decode(data)


def points_to(data: bytes | None) -> tuple[int, ...]:
    """The versions that a stored target names."""
    found = target_of(data)
    return () if found is None else found.versions


def bucket_of(workflow: str, alias: str, key: str) -> int:
    """The bucket of a key, from 0 to 9,999."""
    facts = msgspec.json.encode([workflow, alias, key])
    return int.from_bytes(hashlib.blake2b(facts, digest_size=8).digest()) % BUCKETS


def new_target(version: int, weights: Mapping[int, float], before: Target | None) -> Target:
    """Where an alias points with these percentages; a version that has a share already keeps its end. Raises
    UsageError."""
    shares = {of: _buckets(of, weight) for of, weight in weights.items()}
    if version in shares:
        raise UsageError(f"version {version} is the base version and gets what the others leave; omit its weight")
    if len(shares) > 2:
        raise UsageError("an alias shares starts between a base version and at most two others")
    if sum(shares.values()) > BUCKETS:
        raise UsageError(f"the weights add up to {sum(weights.values()):g} %, which is more than 100")
    shares = {of: share for of, share in shares.items() if share}
    had = (None, None) if before is None else (before.low, before.high)
    ends = [share[0] if share is not None and share[0] in shares else None for share in had]
    for of in shares:
        if of not in ends:
            ends[ends.index(None)] = of
    return Target(version, *((of, shares[of]) if of is not None else None for of in ends))


def _buckets(version: int, percent: float) -> int:
    share = round(percent * BUCKETS / 100)
    if not 0 <= percent <= 100 or abs(share - percent * BUCKETS / 100) > 1e-6:
        raise UsageError(
            f"the weight {percent:g} of version {version} is not a percentage from 0 to 100 in steps of 0.01"
        )
    return share


def split(reference: str) -> tuple[str, str | int | None]:
    """`fulfil`, `fulfil@canary`, `fulfil@3`: the name, and the alias or version. Raises UsageError."""
    name, at, rest = reference.partition("@")
    if not name or (at and not rest):
        raise UsageError(f"{reference!r} does not name a workflow: write NAME, NAME@ALIAS or NAME@VERSION")
    if not at:
        return name, None
    return name, int(rest) if rest.isdecimal() and rest.isascii() else rest


def check_alias(alias: str) -> str:
    """Raise UsageError for a text that cannot be an alias: it could be mistaken for a version."""
    if not isinstance(alias, str) or _ALIAS.fullmatch(alias) is None or alias == LATEST:
        raise UsageError(
            f"{alias!r:.80} cannot be an alias: use up to 63 letters, digits, - and _, beginning with a letter, and "
            f"not {LATEST!r}, which is the highest version"
        )
    return alias
