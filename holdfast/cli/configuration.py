"""Configuration: where the database is, and the numbers of the engine.

Owns: the order flag, variable, project file, default; and what `holdfast.toml` may say.
Never: knows what a setting means (holdfast.engine.engine_settings does).

    [holdfast]
    database_url = "sqlite:///runs.db"
    lease_seconds = 5
    code = ["shop.py"]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.model.errors import UsageError

PROJECT_FILE = "holdfast.toml"
DEFAULT_URL = "sqlite:///holdfast.db"
NUMBERS = (
    "lease_seconds",
    "grace_seconds",
    "drain_seconds",
    "idle_seconds",
    "sweep_seconds",
    "poll_seconds",
    "threads",
    "processes",
    "max_recoveries",
    "concurrency",
)
"""Settings of an engine; each is also a variable `HOLDFAST_<NAME>`."""

ALLOW_NETWORK = "allow_network_filesystem"
"""The one setting that is neither a number nor a text."""


def database_url(flag: str | None = None) -> str:
    """The address of the database, by flag, variable, project file or default. It may hold a password: what
    is printed is `holdfast.store.urls.shown` of it. Raises UsageError for a setting that cannot be read. Also publishes
    the file's setting for network file systems to this process."""
    if project().get(ALLOW_NETWORK):
        os.environ.setdefault(f"HOLDFAST_{ALLOW_NETWORK.upper()}", "1")
    return str(flag or _variable("DATABASE_URL") or project().get("database_url") or DEFAULT_URL)


def engine_numbers(**flags: float | None) -> None:
    """Publish flags and the project file's numbers to the engines of this process and of the processes it starts.

    A flag wins over a variable, a variable over the file."""
    for name, value in project().items():
        if name in NUMBERS:
            os.environ.setdefault(f"HOLDFAST_{name.upper()}", str(value))
    for name, number in flags.items():
        if number is not None:
            os.environ[f"HOLDFAST_{name.upper()}"] = str(number)


def secrets_directory(flag: str | None) -> None:
    """Publish the directory of secrets to the engines of this process and of the processes it starts."""
    if flag is not None:
        os.environ["HOLDFAST_SECRETS_DIR"] = os.path.abspath(flag)


def engine_defaults(**numbers: float) -> None:
    """Set what engines of this process use unless a flag, a variable or the file sets it."""
    for name, number in numbers.items():
        os.environ.setdefault(f"HOLDFAST_{name.upper()}", str(number))


def project(directory: Path | None = None) -> dict[str, Any]:
    """The table `[holdfast]` of the project file in the working directory; empty when there is none."""
    path = (directory or Path.cwd()) / PROJECT_FILE
    if not path.is_file():
        return {}
    import tomllib

    try:
        found = tomllib.loads(path.read_text("utf-8")).get("holdfast", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: [holdfast] must be a table")
    for name, value in found.items():
        if problem := _problem(name, value):
            raise UsageError(f"{path}: {problem}")
    return found


def _problem(name: str, value: Any) -> str:
    if name == "code":
        is_code = isinstance(value, list) and all(isinstance(place, str) and place for place in value)
        return "" if is_code else 'code must be a list of files or modules, such as ["shop.py"]'
    if name == "database_url":
        return "" if isinstance(value, str) and value else "database_url must be text"
    if name == ALLOW_NETWORK:
        return "" if isinstance(value, bool) else f"{name} must be true or false"
    if name in NUMBERS:
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else f"{name} must be a number"
    return f"unknown setting {name!r}; known are database_url, code, {ALLOW_NETWORK}, {', '.join(NUMBERS)}"


def _variable(name: str) -> str | None:
    """`HOLDFAST_<name>`, or the content of the file that `HOLDFAST_<name>_FILE` names."""
    value = os.environ.get(f"HOLDFAST_{name}")
    if value:
        return value
    file = os.environ.get(f"HOLDFAST_{name}_FILE")
    if not file:
        return None
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"HOLDFAST_{name}_FILE names {file}, which cannot be read: {error}") from None
