"""The public API is a promise: names and parameters that change here change programs that people have written."""

import inspect
from typing import Any

import pytest

import holdfast as hf

EXPORTED = [
    "ChildFailed",
    "Context",
    "Current",
    "DeadlinePassed",
    "DefinitionError",
    "DuplicateKey",
    "Engine",
    "Escalate",
    "Fail",
    "Failed",
    "HoldfastError",
    "InvalidInput",
    "LeaseLost",
    "MissingCode",
    "Node",
    "NotYetApplied",
    "OutcomeUnknown",
    "Pended",
    "Permissions",
    "Refused",
    "Retry",
    "Run",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunSuspended",
    "SecretRule",
    "SecretUnavailable",
    "StepMismatch",
    "StoreError",
    "Suspended",
    "SyncContext",
    "TicketRaised",
    "TraceError",
    "UnknownRun",
    "UsageError",
    "Wait",
    "Won",
    "Workflow",
    "any_of",
    "ask",
    "contains",
    "current",
    "ends_with",
    "failed",
    "first",
    "goto",
    "if_else",
    "is_none",
    "load",
    "loop",
    "map",
    "node",
    "open",
    "pend",
    "phase",
    "receive",
    "route",
    "routes",
    "run",
    "secret",
    "size",
    "skipped",
    "sleep",
    "some",
    "starts_with",
    "text",
    "ticket",
    "var",
    "when",
    "workflow",
]

FUNCTIONS = {
    "any_of": "*options",
    "ask": "question schema about assignee basket deadline default remind escalate after named",
    "contains": "whole part",
    "current": "",
    "ends_with": "text part",
    "failed": "ref",
    "first": "*options",
    "goto": "node output",
    "if_else": "condition yes no",
    "is_none": "value",
    "load": "path",
    "loop": "body start until max_visits at_limit **same_for_all",
    "map": "body over limit errors **same_for_all",
    "node": (
        "fn/ name delay retry timeout heartbeat on_crash compensate concurrency priority inline process idempotent"
    ),
    "open": (
        "url recover drive queues concurrency lease_seconds grace_seconds drain_seconds idle_seconds threads processes "
        "max_recoveries allow_network_filesystem secrets permissions"
    ),
    "pend": "basket rerun error output ticket",
    "phase": "name after",
    "receive": "name schema deadline default after named",
    "route": "value",
    "routes": "selected",
    "run": "workflow/ run_id priority timeout db **inputs",
    "size": "value",
    "skipped": "ref",
    "sleep": "duration after",
    "some": "*options n",
    "starts_with": "text part",
    "text": "template *values",
    "ticket": "name output",
    "var": "name",
    "when": "condition",
    "workflow": (
        "fn/ name persistence on_failure on_code_change timeout priority concurrency queue variables "
        "tickets max_recoveries max_visits retry"
    ),
}

METHODS: dict[str, dict[str, str]] = {
    "Engine": {
        "start": "workflow/ run_id priority timeout persistence queue rollout_key **inputs",
        "deploy": "*workflows",
        "workflows": "",
        "versions": "workflow",
        "diff_versions": "workflow one other",
        "aliases": "workflow",
        "alias_history": "workflow alias",
        "set_alias": "workflow alias version weights reason actor",
        "remove_alias": "workflow alias reason actor",
        "rollback": "workflow alias reason actor",
        "retire": "workflow version",
        "plan_migration": "run_id to drop",
        "migrate": "workflow from_version to drop dry_run actor",
        "check_running": "workflow",
        "get": "run_id",
        "list": "status workflow limit",
        "resume": "run_id wait path vars accept_change actor",
        "asked": "basket assignee limit",
        "baskets": "",
    },
    "Run": {
        "status": "",
        "result": "timeout",
        "nodes": "",
        "events": "after branch",
        "follow": "after",
        "show": "branch",
        "waits": "",
        "respond": "wait_id value actor",
        "signal": "name payload id",
        "pause": "reason actor",
        "resume": "wait path vars accept_change actor",
        "reassign": "wait_id assignee basket actor",
        "cancel": "reason actor give_up_undo",
        "fork": "at edits as_run branch keys actor",
        "jump": "to edits keys actor",
        "retry": "node edits actor",
        "migrate": "to drop actor",
        "preview": "kind target edits branch keys",
        "branches": "",
        "diff": "one other",
    },
    "Context": {
        "step": "fn *args **kwargs",
        "map": "fn items limit **kwargs",
        "child": "workflow/ run_id detached **inputs",
        "sleep": "duration",
        "ask": "question schema about **options",
        "receive": "name schema deadline default",
        "signal": "run name payload id",
        "race": "*calls",
        "now": "",
        "uuid": "",
        "random": "",
        "checkpoint": "value",
        "keyed": "key",
        "patched": "name",
        "emit": "topic value",
        "progress": "done total message",
        "heartbeat": "",
    },
    "Node": {"named": "node_id", "after": "*refs", "delayed": "duration"},
    "Workflow": {"named": "node_id", "after": "*refs", "delayed": "duration"},
}

CONTEXT_PROPERTIES = [
    "attempt",
    "cancelled",
    "checkpointed",
    "idempotency_key",
    "leaving",
    "log",
    "node",
    "path",
    "run_id",
    "vars",
    "visit",
]
ASK_OPTIONS = ["assignee", "basket", "deadline", "default", "remind", "escalate"]
RETRY_FIELDS = ["attempts", "backoff", "factor", "max_delay", "jitter", "on", "never"]
ERROR_CODES = {
    "ChildFailed": "child_failed",
    "DeadlinePassed": "deadline_passed",
    "DefinitionError": "invalid_definition",
    "DuplicateKey": "duplicate_key",
    "Fail": "fail",
    "InvalidInput": "invalid_input",
    "LeaseLost": "lease_lost",
    "MissingCode": "missing_code",
    "NotYetApplied": "not_yet_applied",
    "OutcomeUnknown": "outcome_unknown",
    "Refused": "refused",
    "RunCancelled": "run_cancelled",
    "RunExists": "run_exists",
    "RunFailed": "run_failed",
    "RunSuspended": "run_suspended",
    "StoreError": "store_error",
    "TraceError": "trace_error",
    "SecretUnavailable": "secret_unavailable",
    "UnknownRun": "unknown_run",
    "UsageError": "usage",
}


def parameters(function: Any, *, bound: bool = False) -> str:
    """`a/ b *c **d`: the names of a function's parameters, and how those are told apart that are not ordinary ones."""
    marks = {
        inspect.Parameter.POSITIONAL_ONLY: "{}/",
        inspect.Parameter.VAR_POSITIONAL: "*{}",
        inspect.Parameter.VAR_KEYWORD: "**{}",
    }
    found = list(inspect.signature(function).parameters.values())[bound:]
    return " ".join(marks.get(p.kind, "{}").format(p.name) for p in found)


def test_the_exported_names_are_exactly_these() -> None:
    assert sorted(hf.__all__) == EXPORTED
    assert sorted(set(dir(hf)) - {"__version__"}) == EXPORTED


@pytest.mark.smoke
def test_every_exported_name_can_be_used_and_no_other() -> None:
    for name in EXPORTED:
        assert getattr(hf, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hf.nonsense  # type: ignore[attr-defined]


def test_every_exported_name_says_what_it_is() -> None:
    assert [name for name in EXPORTED if not inspect.getdoc(getattr(hf, name))] == []


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_keep_their_parameters(name: str) -> None:
    assert parameters(getattr(hf, name)) == FUNCTIONS[name]


@pytest.mark.parametrize(("owner", "method"), [(owner, m) for owner, ms in METHODS.items() for m in ms])
def test_methods_keep_their_parameters(owner: str, method: str) -> None:
    assert parameters(getattr(getattr(hf, owner), method), bound=True) == METHODS[owner][method]


ASYNC_ONLY = {"race"}
"""Calls that a sync body cannot make."""


def test_a_sync_body_has_the_same_calls_as_an_async_one() -> None:
    def offered(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert offered(hf.Context) == {*METHODS["Context"], *CONTEXT_PROPERTIES}
    assert offered(hf.SyncContext) == offered(hf.Context) - ASYNC_ONLY
    for method in METHODS["Context"].keys() - ASYNC_ONLY:
        assert parameters(getattr(hf.SyncContext, method), bound=True) == METHODS["Context"][method]


def test_a_question_keeps_its_options() -> None:
    options = inspect.signature(hf.Context.ask, eval_str=True).parameters["options"].annotation
    assert list(options.__args__[0].__annotations__) == ASK_OPTIONS


def test_a_retry_keeps_its_fields() -> None:
    assert list(hf.Retry.__struct_fields__) == RETRY_FIELDS


def test_errors_keep_their_codes_and_their_one_root() -> None:
    errors = {n: getattr(hf, n) for n in EXPORTED if isinstance(getattr(hf, n), type)}
    errors = {n: kind for n, kind in errors.items() if issubclass(kind, BaseException)}
    leaving = {n for n, kind in errors.items() if not issubclass(kind, hf.HoldfastError)}
    assert leaving == {"Pended", "StepMismatch", "Suspended", "TicketRaised"}
    assert {n: kind.code for n, kind in errors.items() if n not in {"HoldfastError", *leaving}} == ERROR_CODES
    assert not issubclass(hf.Suspended, Exception), "a body's `except Exception` must not swallow being left"
