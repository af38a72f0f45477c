"""Policies: how often, how long, how soon. Pure values and the arithmetic on them.

Owns: retry and timeout policies as they stand in definitions, the retry decision, and durations as users write them.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.model.errors import InvalidInput, UsageError
from holdfast.model.limits import DELAY_SECONDS_MAX
from holdfast.model.module_names import module_name

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d|w)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a node is retried.

    `attempts` counts all tries. The n-th retry waits `backoff * factor ** (n - 1)` seconds, at most `max_delay`, with
    up to `jitter` (a share) taken off. `on` limits it to some exception classes (or their qualified names), `never`
    excludes some. `hf.Retry(attempts=5, backoff=0.5, max_delay=30, on=(ConnectionError, TimeoutError))`
    """

    attempts: int = 1
    backoff: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.1
    on: tuple[Any, ...] = ()
    never: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for field in ("on", "never"):
            names = tuple(qualified_name(c) if isinstance(c, type) else str(c) for c in getattr(self, field))
            msgspec.structs.force_setattr(self, field, names)
        for field in ("backoff", "factor", "max_delay", "jitter"):  # 1 and 1.0 are the same policy
            if type(getattr(self, field)) is int:
                msgspec.structs.force_setattr(self, field, float(getattr(self, field)))

    def delay_seconds(self, failures: int, seed: str) -> float:
        """The wait before the next try after `failures` failures; jitter comes from the seed, so rules stay pure."""
        # a huge exponent would overflow a float long before it mattered: the delay is capped anyway
        full = min(self.max_delay, self.backoff * self.factor ** min(failures - 1, 64))
        share = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest(), "big") / 0xFFFFFFFF
        return full * (1.0 - self.jitter * share)

    def applies(self, kinds: tuple[str, ...], retryable: bool | None) -> bool:
        """Whether a failure whose class and bases are `kinds` may be tried again. An explicit `retryable` wins."""
        if retryable is not None:
            return retryable
        if kinds and kinds[0] in HOPELESS:
            return kinds[0] in self.on
        if any(kind in self.never for kind in kinds):
            return False
        return not self.on or any(kind in self.on for kind in kinds)


NO_RETRY = Retry()


def seconds_until_retry(
    policy: Retry,
    failures: int,
    kinds: tuple[str, ...],
    retryable: bool | None,
    seed: str,
    retry_after: float | None = None,
) -> float | None:
    """The wait before the next try after `failures` failures, the last of them of these `kinds`; None: it was the last
    try. A failure that asks for a wait (`retry_after`) gets it, up to the policy's `max_delay`. Nodes
    (rules/body_reports.py) and nodes that are called as steps (worker/steps.py) both follow this."""
    if failures >= policy.attempts or not policy.applies(kinds, retryable):
        return None
    delay = policy.delay_seconds(failures, seed)
    return delay if retry_after is None else max(delay, min(retry_after, policy.max_delay))


HOPELESS = frozenset(
    f"holdfast.model.errors.{name}"
    for name in (
        "ChildFailed",
        "DeadlinePassed",
        "DuplicateKey",
        "InvalidInput",
        "NotSerialisable",
        "OutcomeUnknown",
        "SecretUnavailable",
        "UsageError",
        "ValueTooLarge",
    )
)
"""Failures that another attempt cannot avoid; retried only by a policy that names them."""


def qualified_name(kind: type) -> str:
    """`ConnectionError`, `shop.payments.Declined`: how a class is named in policies and journals."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{module_name(kind)}.{kind.__qualname__}"


def class_names(kind: type[BaseException]) -> tuple[str, ...]:
    """The names of an exception class and its bases, most specific first, without `object` and `BaseException`."""
    return tuple(dict.fromkeys(qualified_name(c) for c in kind.__mro__ if c not in (object, BaseException)))


def seconds(duration: float | str | timedelta) -> float:
    """`90`, `"1h30m"`, `"2d"` or a timedelta, as seconds."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    if isinstance(duration, str):
        parts = list(_DURATION.finditer(duration.replace(" ", "")))
        if parts and "".join(p.group() for p in parts) == duration.replace(" ", ""):
            return sum(float(p["number"]) * _UNIT_SECONDS[p["unit"]] for p in parts)
    raise InvalidInput(
        f"{duration!r:.60} is not a duration: use seconds, a timedelta, or text such as '90s', '1h30m', '2d'"
    )


def delay_seconds(duration: float | str | timedelta, what: str) -> float:
    """The same for a delay: not negative, and at most DELAY_SECONDS_MAX."""
    try:
        amount = seconds(duration)
    except InvalidInput as e:
        raise InvalidInput(f"{what}: {e.message}") from None
    except OverflowError:  # a whole number that is larger than any float
        amount = math.inf
    if not 0 <= amount <= DELAY_SECONDS_MAX:
        shown = repr(duration) if isinstance(duration, str | timedelta) else f"{amount:g}"
        raise UsageError(f"{what}: {shown:.60} is not a time to wait: it is 0 s to 1,000 years")
    return amount
