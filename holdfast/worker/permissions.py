"""Permissions: what the operator of an engine lets built-in handlers reach, and which workflow may use which secret.

Owns: the settings, and reading them from the environment. By default a definition can reach public addresses, no
program, no module, and every secret that is provided.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from holdfast.model.errors import UsageError


class SecretRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one secret may go. None: no limit."""

    workflows: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    """Of requests of `http` and `llm` that carry it."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator allows. Every field can be set by a variable: `HOLDFAST_HTTP_ALLOW`, `HOLDFAST_SHELL_ALLOW`,
    `HOLDFAST_PYTHON_ALLOW` (texts that are separated by commas) and `HOLDFAST_SECRETS_RULES` (JSON, or `@FILE`)."""

    http_allow: tuple[str, ...] = ()
    """Hosts (`db.internal`, `db.internal:8080`) and networks (`10.0.0.0/8`) that `http` and `llm` may reach although
    their addresses are not public."""
    shell_allow: tuple[str, ...] = ()
    """Programs that `shell` may start, by their absolute paths."""
    python_allow: tuple[str, ...] = ()
    """Modules whose functions `python` may call as `module:function`; a package stands for its modules."""
    secrets_rules: dict[str, SecretRule] = {}
    """By the name of the secret; `*` is for those that have no rule of their own."""

    def __post_init__(self) -> None:
        for program in self.shell_allow:
            if not Path(program).is_absolute():
                raise UsageError(f"shell_allow: {program!r} is not an absolute path")
        self.networks()

    def rule(self, secret: str) -> SecretRule:
        """The rule for a secret."""
        return self.secrets_rules.get(secret) or self.secrets_rules.get("*") or SecretRule()

    def may_use(self, secret: str, workflow: str) -> bool:
        """Whether a workflow may use a secret."""
        allowed = self.rule(secret).workflows
        return allowed is None or workflow in allowed

    def refused_secret(self, secrets: Iterable[str], host: str) -> str | None:
        """The first of these secrets that may not be sent to a host; None: all may."""
        for secret in secrets:
            allowed = self.rule(secret).hosts
            if allowed is not None and host.lower() not in {name.lower() for name in allowed}:
                return secret
        return None

    def networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """The networks in `http_allow`; a single address is one."""
        found = []
        for entry in self.http_allow:
            if "/" in entry:
                try:
                    found.append(ipaddress.ip_network(entry, strict=False))
                except ValueError as e:
                    raise UsageError(f"http_allow: {entry!r} is not a network: {e}") from None
                continue
            try:
                found.append(ipaddress.ip_network(entry))
            except ValueError:
                continue  # a host
        return found

    def allows_host(self, host: str, port: int) -> bool:
        """Whether a host may be reached whatever its addresses are."""
        known = {entry.lower() for entry in self.http_allow if "/" not in entry}
        return host.lower() in known or f"{host.lower()}:{port}" in known


def from_environment(environ: Mapping[str, str]) -> Permissions:
    """Permissions from `HOLDFAST_*` variables."""
    lists = {
        field: tuple(part.strip() for part in environ.get(f"HOLDFAST_{field.upper()}", "").split(",") if part.strip())
        for field in ("http_allow", "shell_allow", "python_allow")
    }
    text = environ.get("HOLDFAST_SECRETS_RULES", "")
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        rules = msgspec.json.decode(text or "{}", type=dict[str, SecretRule])
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as e:
        raise UsageError(
            f"HOLDFAST_SECRETS_RULES cannot be read: {e}. It is JSON, or @ and the name of a file with it: "
            '{"TOKEN": {"workflows": ["billing"], "hosts": ["api.example.com"]}}'
        ) from None
    return Permissions(**lists, secrets_rules=rules)
