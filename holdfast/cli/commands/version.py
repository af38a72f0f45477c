"""`holdfast version`."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from holdfast.cli import output
from holdfast.cli.options import Json


def command(json: Json = False) -> None:
    """Print the version of Holdfast.

    \b
    Example:
      holdfast version
    """
    try:
        known = version("holdfast")
    except PackageNotFoundError:
        known = "unknown"
    if json:
        import apsw

        python = ".".join(str(part) for part in sys.version_info[:3])
        output.document({"version": known, "python": python, "sqlite": apsw.sqlite_lib_version()})
    else:
        output.write(f"holdfast {known}")
