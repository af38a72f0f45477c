"""Variables: the values that the variables of a run get from outside its bodies.

Owns: the values with which a run begins (the defaults of its variables), and those that a resume injects: of the
declared type, added or changed, never deleted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import answers
from holdfast.model import events as ev
from holdfast.model.captures import captured, check_size
from holdfast.model.errors import HoldfastError
from holdfast.model.problems import near
from holdfast.rules.draft import Draft, Refusal


def set_first(d: Draft) -> None:
    """Set the variables that have a default, when a run begins."""
    declared = d.state.plan.definition.variables
    given = {
        name: msgspec.Raw(msgspec.json.encode(schema["default"]))
        for name, schema in declared.items()
        if isinstance(schema, dict) and "default" in schema
    }
    changed = set_by(d, given)
    if changed is not None:
        d.emit(changed)


def set_by(d: Draft, given: dict[str, msgspec.Raw]) -> ev.VariablesSet | None:
    """The event that sets variables, if there are any. Raises Refusal for one that is not declared or does not fit."""
    if not given:
        return None
    declared, plan = d.state.plan.definition.variables, d.state.plan
    found: dict[str, Any] = {}
    try:
        for name, value in given.items():
            if name not in declared:
                hint = near(name, declared) or f"declared: {', '.join(declared) or 'none'}"
                raise Refusal("bad_variable", f"variable {name} is not declared ({hint})")
            wrong = answers.problems(declared[name], bytes(value))
            if wrong:
                raise Refusal("bad_variable", f"variable {name}: {'; '.join(wrong)}")
            of_one = captured(bytes(value), plan.var_captures.get(name, ()), f"variable {name}")
            found |= {f"{name}:{key}": part for key, part in of_one.items()}
        check_size(found, "the variables")
    except HoldfastError as e:
        raise Refusal("bad_variable", e.message) from None
    return ev.VariablesSet(given, found)
