"""Secret names: which arguments of a body are secrets, by name, and where they stand.

Owns: `hf.secret`, the places of secrets in arguments (JSON pointers, `/headers/Authorization`), and putting values
there.
Never: knows a value (worker/secret_values.py). A definition and a journal have names only; what is a secret is said
beside the arguments (`NodeDef.secrets`), so that a value that looks like a reference is ordinary data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.model.errors import NotSerialisable, UsageError
from holdfast.model.values import plain

GOOD_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,100}")


class Secret:
    """A value that the operator provides under this name when a body begins."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"hf.secret({self.name!r})"

    def __reduce__(self) -> Any:
        raise NotSerialisable(f"{self!r} is a reference to a secret and is not stored")


def secret(name: str) -> Any:
    """A secret as an argument, in a graph or of a step: `charge(order, token=hf.secret("STRIPE_TOKEN"))`.

    The operator provides its value: `HOLDFAST_SECRET_<NAME>`, a file of that name in the directory
    `HOLDFAST_SECRETS_DIR`, or `hf.open(secrets=…)`. The body gets it as text. It is never stored: a value that contains
    it cannot be returned or recorded, and in errors and in what the body logs it is `***`.
    """
    if not isinstance(name, str) or not GOOD_SECRET_NAME.fullmatch(name):
        raise UsageError(f"hf.secret: {name!r} is not a name; use letters, digits and underscores")
    return Secret(name)


def without_secrets(value: Any, place: str, found: dict[str, str], instead: Callable[[Secret], Any]) -> Any:
    """A copy of an argument in which secrets are replaced; `found` gets their places and names."""
    if isinstance(value, Secret):
        found[place] = value.name
        return instead(value)
    if isinstance(value, list | tuple):
        listed = [without_secrets(v, f"{place}/{i}", found, instead) for i, v in enumerate(value)]
        return tuple(listed) if isinstance(value, tuple) else listed
    if isinstance(value, dict):
        return {k: without_secrets(v, f"{place}/{escaped(k)}", found, instead) for k, v in value.items()}
    return value


def escaped(key: object) -> str:
    """A key as a JSON pointer has it."""
    return str(key).replace("~", "~0").replace("/", "~1")


def split(place: str) -> list[str]:
    """The keys of a JSON pointer: the parameter first."""
    return [key.replace("~1", "/").replace("~0", "~") for key in place.split("/")[1:]]


def put_in(arguments: Mapping[str, bytes], places: Mapping[str, str], values: Mapping[str, str]) -> dict[str, bytes]:
    """Encoded arguments with the values of secrets in their places; `values` are by name."""
    found = dict(arguments)
    changed: dict[str, Any] = {}
    for place, name in places.items():
        param, *keys = split(place)
        if param not in changed:
            changed[param] = plain(found[param]) if param in found else None
        changed[param] = _with(changed[param], keys, values[name])
    return found | {param: msgspec.json.encode(value) for param, value in changed.items()}


def _with(whole: Any, keys: list[str], value: str) -> Any:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(whole, list):
        whole[int(key)] = _with(whole[int(key)], rest, value)
        return whole
    inner = whole if isinstance(whole, dict) else {}
    inner[key] = _with(inner.get(key), rest, value)
    return inner
