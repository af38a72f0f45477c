"""Branch plans: a request for another branch, worked out from the journal; nothing is written.

Owns: which events the branch inherits, and, of a run that is moved to another version, what the conditions of that
version read of values that were made before: it is captured again, from the values in the journal.
Never: decides what is kept (rules), writes the branch (branching.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import answers
from holdfast.model import events as ev
from holdfast.model.captures import capture, captured, check_size
from holdfast.model.lineage import Branch, carried, fold, inherited
from holdfast.model.state import NodeState, RunState
from holdfast.model.statuses import NodeStatus
from holdfast.rules import branch_cut, branch_opening, migration
from holdfast.rules.branch_opening import Asked, Edits, Opening
from holdfast.rules.draft import Refusal
from holdfast.store.records.journal import History
from holdfast.store.records.stored_values import held_value


class Plan(msgspec.Struct):
    """A request whose effect is planned: nothing is written yet."""

    history: History
    opening: Opening
    branch: Branch
    line: list[ev.Entry]
    kept: list[ev.Entry]
    """What the branch inherits of the line."""
    head: RunState
    asked: Asked

    def base(self, run_no: int, run_id: str) -> RunState:
        """The state that the branch begins with."""
        return fold(self.history.plan(self.branch.version), run_no, run_id, self.kept)


def plan_branch(history: History, kind: str, asked: Asked) -> Plan:
    """Plan a request. Raises Refusal."""
    source = history.row.branch if asked.branch is None else asked.branch
    line = history.line(source)
    head = history.state(source, line)
    version = asked.edits.version or history.branch(source).version
    other = history.plan(version)
    if asked.migrates:
        opening = migration.choose(asked, line, head, other)
    else:
        opening = branch_cut.choose(kind, asked, line, head, other)
    opening.inherit_omissions(*carried(history.branches, source, opening.parent, line))
    epochs = [b.key_epoch for b in history.branches.values()]
    inherits = kind == "retry" or asked.keys == "inherit" or asked.accepts_change or asked.migrates
    key_epoch = head.fold.key_epoch if inherits else max(epochs) + 1
    branch = opening.as_branch(max(history.branches) + 1, key_epoch, version, asked.actor)
    kept = inherited(line, branch, history.plan(version))
    branch_opening.check_answers(asked.edits, kept)
    plan = Plan(history, opening, branch, line, kept, head, asked)
    if asked.migrates:
        plan.asked = msgspec.structs.replace(asked, edits=_captured_again(plan))
    return plan


# --- what another version reads --------------------------------------------------------------------------------------


def _captured_again(plan: Plan) -> Edits:
    """The edits by which a run fits the version that it is moved to. Raises Refusal where it cannot."""
    row = plan.history.row
    base = plan.base(row.run_no, row.run_id)
    entries = {entry.seq: entry for entry in plan.kept}
    ready = msgspec.structs.replace(plan.asked.edits, outputs={}, outputs_captured={}, vars={}, vars_captured={})
    _fit_input(base, entries, ready)
    for name, captures in base.plan.var_captures.items():
        seq = base.fold.vars.get(name)
        if seq is not None and any(f"{name}:{key}" not in base.fold.vars_captured for key, _, _ in captures):
            data = bytes(entries[seq].event.vars[name])
            ready.vars[name] = msgspec.Raw(data)
            found = captured(data, captures, f"variable {name}")
            ready.vars_captured |= {f"{name}:{key}": part for key, part in found.items()}
    for ns in base.nodes.values():
        if ns.status is NodeStatus.COMPLETED and any(key not in ns.captured for key, _, _ in ns.plan.captures):
            data = _output(ns, entries)
            ready.outputs[ns.text] = msgspec.Raw(data)
            ready.outputs_captured[ns.text] = captured(data, ns.plan.captures, f"the output of {ns.text}")
    return ready


def _fit_input(base: RunState, entries: dict[int, ev.Entry], ready: Edits) -> None:
    """Add the defaults of inputs that are new, and what conditions read. Raises Refusal for an input that the version
    requires and the run does not have, or that does not fit it."""
    version = f"version {base.plan.version}"
    given: dict[str, Any] = msgspec.json.decode(held_value(entries[base.fold.input_seq].event))
    whole = dict(given)
    for param in base.plan.definition.params:
        if param.name not in whole:
            if param.required:
                raise Refusal("input", f"{version} requires the input {param.name}, which the run does not have")
            whole[param.name] = param.default
        wrong = answers.problems(param.schema, msgspec.json.encode(whole[param.name])) if param.schema else []
        if wrong:
            raise Refusal("input", f"the input {param.name} of the run does not fit {version}: {'; '.join(wrong)}")
    known = base.fold.input_captured
    is_read = all(f"{name}:{key}" in known for name, (key, _, _) in base.plan.input_captures)
    if whole == given and is_read:
        return
    ready.input = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in whole.items()}
    ready.input_captured = {
        f"{name}:{key}": capture(whole[name], keys, wanted) for name, (key, keys, wanted) in base.plan.input_captures
    }
    check_size(ready.input_captured, "the input")


def _output(ns: NodeState, entries: dict[int, ev.Entry]) -> bytes:
    if ns.virtual or ns.output_seq not in entries:
        raise Refusal(
            "not_captured",
            f"a condition of the other version reads the output of {ns.text}, of which the run keeps only the items",
        )
    return held_value(entries[ns.output_seq].event)
