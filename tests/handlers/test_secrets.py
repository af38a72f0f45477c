"""Secrets: a body gets the value, and nothing that is stored, shown or logged has it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.model.definition import NodeDef
from holdfast.model.validation import check
from holdfast.worker.permissions import from_environment
from holdfast.worker.secret_values import OperatorSecrets

VALUE = 'k3y-"Zq9/\\täöpassw0rd'
"""Its quotes, slashes and letters look different in JSON, in a URL and in repr()."""

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'secrets.db'}"


async def outcome(tmp_path: Path, workflow: Any, secrets: Any = None, **options: Any) -> Any:
    """The result of a run, or what it failed with."""
    async with hf.open(url(tmp_path), secrets={"TOKEN": VALUE} if secrets is None else secrets, **options) as engine:
        run = await engine.start(workflow)
        try:
            return await asyncio.wait_for(run.result(), 60)
        except hf.RunFailed as error:
            return error


def stored(tmp_path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(tmp_path.glob("secrets.db*")) if file.is_file())


# --- getting a value ------------------------------------------------------------------------------------------------


@hf.node
async def call_async(token: str, headers: dict[str, str], *more: str) -> int:
    seen.append((token, headers, more))
    return len(token)


@hf.node
def call_sync(token: str) -> int:
    seen.append(token)
    return len(token)


@hf.node(inline=True)
def call_inline(token: str) -> int:
    seen.append(token)
    return len(token)


async def test_each_kind_of_body_gets_the_value_at_its_place(tmp_path: Path) -> None:
    @hf.workflow
    def calls() -> Any:
        sizes = call_async(hf.secret("TOKEN"), {"X": "y", "Authorization": hf.secret("TOKEN")}, "a", hf.secret("OTHER"))
        call_sync(token=hf.secret("TOKEN"))
        call_inline(hf.secret("TOKEN"))
        return sizes

    assert await outcome(tmp_path, calls, {"TOKEN": VALUE, "OTHER": "other-value"}) == len(VALUE)
    assert (VALUE, {"X": "y", "Authorization": VALUE}, ("a", "other-value")) in seen
    assert seen.count(VALUE) == 2
    assert b"passw0rd" not in stored(tmp_path)


def test_a_definition_has_the_names_and_the_places_and_null_in_their_place() -> None:
    @hf.workflow
    def calls() -> Any:
        return call_async("x", {"Authorization": hf.secret("TOKEN")}, hf.secret("OTHER"))

    (node,) = calls.registered.definition.nodes
    assert node.secrets == {"/headers/Authorization": "TOKEN", "/*/0": "OTHER"}
    assert b"$secret" not in calls.registered.definition.encode()


async def test_steps_of_durable_code_take_secrets_and_replay_without_them(tmp_path: Path) -> None:
    def use(token: str) -> int:
        seen.append(token)
        return len(token)

    @hf.workflow
    async def code(ctx: hf.Context) -> int:
        first = await ctx.step(use, hf.secret("TOKEN"))
        await ctx.ask("Continue?")
        return first + await ctx.step(use, token=hf.secret("TOKEN"))

    async with hf.open(url(tmp_path), secrets={"TOKEN": VALUE}) as engine:
        run = await engine.start(code, run_id="r")
        with pytest.raises(hf.RunSuspended) as suspended:
            await run.until_quiet()
    async with hf.open(url(tmp_path), secrets={"TOKEN": VALUE}) as engine:
        run = engine.get("r")
        await run.respond(suspended.value.waits[0].wait_id, True)
        assert await run.result() == 2 * len(VALUE)
    assert seen == [VALUE, VALUE]
    assert b"passw0rd" not in stored(tmp_path)


async def test_the_programs_source_wins_over_files_and_files_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "A").write_text("from-a-file\n")
    (tmp_path / "B").write_text("from-a-file\n")
    environ = {f"HOLDFAST_SECRET_{name}": "from-the-environment" for name in "ABC"}

    async def ask(name: str) -> str | None:
        return "from-the-program" if name == "A" else None

    for source in (ask, {"A": "from-the-program"}, lambda name: "from-the-program" if name == "A" else None):
        values = OperatorSecrets(source, str(tmp_path), environ=environ)
        assert await values.value("A", "w") == "from-the-program"
        assert await values.value("B", "w") == "from-a-file"
        assert await values.value("C", "w") == "from-the-environment"
        with pytest.raises(hf.SecretUnavailable, match="HOLDFAST_SECRET_D"):
            await values.value("D", "w")


@pytest.mark.parametrize("name", ["../A", "/etc/passwd", "a b", ""])
async def test_a_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(hf.SecretUnavailable):
        await OperatorSecrets(None, str(tmp_path)).value(name, "w")
    with pytest.raises(hf.UsageError):
        hf.secret(name)


async def test_a_value_that_is_too_short_to_be_hidden_is_refused() -> None:
    with pytest.raises(hf.SecretUnavailable, match="4 characters"):
        await OperatorSecrets({"A": "abc"}).value("A", "w")


async def test_a_secret_that_is_not_provided_fails_the_node_without_a_retry(tmp_path: Path) -> None:
    @hf.node(retry=hf.Retry(attempts=5, backoff=0))
    def use(token: str) -> None:
        seen.append(token)

    @hf.workflow
    def calls() -> Any:
        return use(hf.secret("NOT_THERE"))

    failed = await outcome(tmp_path, calls)
    assert failed.error.code == "secret_unavailable"
    assert failed.error.attempt == 1
    assert "HOLDFAST_SECRET_NOT_THERE" in str(failed)
    assert seen == []


async def test_a_source_that_fails_is_tried_again_by_the_nodes_policy(tmp_path: Path) -> None:
    asked: list[str] = []

    def source(name: str) -> str:
        asked.append(name)
        if len(asked) < 3:
            raise ConnectionError("the vault does not answer")
        return VALUE

    @hf.node(retry=hf.Retry(attempts=3, backoff=0))
    def use(token: str) -> int:
        return len(token)

    @hf.workflow
    def calls() -> Any:
        return use(hf.secret("TOKEN"))

    assert await outcome(tmp_path, calls, source) == len(VALUE)
    assert asked == ["TOKEN"] * 3


async def test_rules_limit_a_secret_to_workflows(tmp_path: Path) -> None:
    @hf.workflow(name="allowed")
    def allowed() -> Any:
        return call_sync(hf.secret("TOKEN"))

    @hf.workflow(name="other")
    def other() -> Any:
        return call_sync(hf.secret("TOKEN"))

    rules = hf.Permissions(secrets_rules={"TOKEN": hf.SecretRule(workflows=("allowed",))})
    assert await outcome(tmp_path, allowed, permissions=rules) == len(VALUE)
    failed = await outcome(tmp_path, other, permissions=rules)
    assert failed.error.code == "secret_unavailable"
    assert "may not use the secret TOKEN" in str(failed)


def test_rules_are_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    text = '{"A": {"workflows": ["w"], "hosts": ["h.example"]}, "*": {"workflows": []}}'
    (tmp_path / "rules.json").write_text(text)
    for given in (text, f"@{tmp_path / 'rules.json'}"):
        found = from_environment({"HOLDFAST_SECRETS_RULES": given, "HOLDFAST_HTTP_ALLOW": "10.0.0.0/8, db.internal"})
        assert found.may_use("A", "w")
        assert not found.may_use("A", "x")
        assert not found.may_use("B", "w")
        assert found.refused_secret(["A"], "h.example") is None
        assert found.refused_secret(["A"], "evil.example") == "A"
        assert found.http_allow == ("10.0.0.0/8", "db.internal")
    for wrong in ("{", '{"A": {"workflow": []}}', "@/nowhere/rules.json"):
        with pytest.raises(hf.UsageError, match="HOLDFAST_SECRETS_RULES"):
            from_environment({"HOLDFAST_SECRETS_RULES": wrong})


# --- what looks like a reference is data ----------------------------------------------------------------------------


async def test_a_reference_inside_a_value_is_ordinary_data(tmp_path: Path) -> None:
    looks_like = {"$secret": "TOKEN"}

    @hf.node
    def give() -> dict[str, Any]:
        return {"nested": [looks_like]}

    @hf.node
    def use(given: Any, constant: Any, made: Any) -> Any:
        return [given, constant, made]

    @hf.workflow
    def calls(value: Any) -> Any:
        return use(value, looks_like, give())

    async with hf.open(url(tmp_path), secrets={"TOKEN": VALUE}) as engine:
        run = await engine.start(calls, value=looks_like)
        assert await run.result() == [looks_like, looks_like, {"nested": [looks_like]}]


def test_a_secret_outside_the_call_of_a_node_is_refused_while_tracing() -> None:
    @hf.workflow
    def returns() -> Any:
        call_sync("x")
        return hf.secret("TOKEN")

    @hf.workflow
    def maps(values: list[str]) -> Any:
        return hf.map(call_async, values, headers={"X": hf.secret("TOKEN")})

    for workflow in (returns, maps):
        with pytest.raises(hf.HoldfastError, match="secret"):
            workflow.registered  # noqa: B018 - it is traced at its first use


def test_a_place_that_is_no_argument_is_a_problem_of_the_definition() -> None:
    @hf.workflow
    def calls() -> Any:
        return call_sync(hf.secret("TOKEN"))

    definition = calls.registered.definition
    for secrets in ({"/tokn": "TOKEN"}, {"token": "TOKEN"}, {"/token": "NO NAME"}):
        (node,) = definition.nodes
        changed: NodeDef = msgspec.structs.replace(node, secrets=secrets)
        problems = check(msgspec.structs.replace(definition, nodes=(changed,)))
        assert [p.code for p in problems] == ["bad_secret"]
