"""Accounts: what of a run is kept when it is resumed, and what begins again, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.cli import output
from holdfast.model.errors import HoldfastError
from holdfast.model.statuses import RUN_TERMINAL, NodeStatus
from holdfast.store.contract import Store
from holdfast.store.records.journal import Plans
from holdfast.store.row_types import NodeRow, RunRow


class Account(msgspec.Struct):
    """What of a run is kept, and what begins again."""

    nodes: int = 0
    steps: int = 0
    again: list[str] = []
    """Cut off while running: another attempt."""
    asked: list[str] = []
    """Cut off while running, and not repeated before a person has said whether it was done."""
    fails: list[str] = []
    """Cut off while running, and never repeated."""
    onward: list[str] = []
    """Left in order: the same attempt goes on."""


def account_of(store: Store, plans: Plans, row: RunRow) -> Account:
    account = Account()
    if row.status in RUN_TERMINAL:
        return account
    waits = {(wait.node, wait.path) for wait in store.open_waits([row.run_no])}
    for node in store.nodes(row.run_no):
        name = node.node if node.path == "." else f"{node.node}@{node.path}"
        if node.status == NodeStatus.COMPLETED:
            account.nodes += 1
        elif node.status == NodeStatus.RUNNING and node.scope is None:
            match _on_crash(plans, row, node):
                case "ask":
                    account.asked = [*account.asked, name]
                case "fail":
                    account.fails = [*account.fails, name]
                case _:
                    account.again = [*account.again, f"{name} (attempt {node.attempt + 1})"]
        elif node.status == NodeStatus.SUSPENDED and (node.node, node.path) not in waits:
            account.onward = [*account.onward, name]
    account.steps = len(store.events(row.run_no, types=("StepCompleted",)))
    return account


def _on_crash(plans: Plans, row: RunRow, node: NodeRow) -> str:
    try:
        found = plans.numbered(row.workflow, row.version).scope_of(node.path).nodes.get(node.node)
    except HoldfastError:  # its definition is damaged; whoever drives the run says so
        found = None
    return "rerun" if found is None else found.definition.on_crash  # a compensation is repeated


def explain(row: RunRow, account: Account) -> str:
    """What resuming a run means, in a sentence."""
    name = f"run {output.line(row.run_id)}"
    if row.status in RUN_TERMINAL:
        return f"{name} has {row.status} already"
    kept = [output.count(account.nodes, "node")] * bool(account.nodes)
    kept += [output.count(account.steps, "step")] * bool(account.steps)
    parts = [f"{' and '.join(kept)} reused" if kept else "nothing was completed yet"]
    parts += [f"runs again: {_listed(account.again)}"] * bool(account.again)
    parts += [f"asks first whether it was done: {_listed(account.asked)}"] * bool(account.asked)
    parts += [f"fails, as it must not be repeated: {_listed(account.fails)}"] * bool(account.fails)
    parts += [f"goes on: {_listed(account.onward)}"] * bool(account.onward)
    return f"resuming {name} ({output.line(row.workflow)} v{row.version}): {'; '.join(parts)}"


def explain_all(rows: Sequence[RunRow], before: dict[int, Account]) -> str:
    """The same for very many."""
    accounts = [before[row.run_no] for row in rows]
    nodes, steps = sum(a.nodes for a in accounts), sum(a.steps for a in accounts)
    again = sum(len(a.again) for a in accounts)
    reused = f"{output.count(nodes, 'node')} and {output.count(steps, 'step')} reused"
    parts = [reused, f"{output.count(again, 'body', 'bodies')} run again"]
    asked, fails = sum(len(a.asked) for a in accounts), sum(len(a.fails) for a in accounts)
    parts += [f"{asked:,} only when somebody has said whether they were done"] * bool(asked)
    parts += [f"{fails:,} fail, as they must not be repeated"] * bool(fails)
    return f"resuming {output.count(len(rows), 'run')}: {'; '.join(parts)}"


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(output.line(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
