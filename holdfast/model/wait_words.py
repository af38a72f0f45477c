"""Wait words: a wait as text, by its kind.

Owns: what a run that waits is said to do, and which verb with which ids ends the wait.
"""

from __future__ import annotations

from holdfast.model.views import Wait


def of_run(wait: Wait) -> str:
    """What a run does that waits for this, behind its name: `waits for an answer: Ship this order?`"""
    match wait.kind:
        case "input":
            return f"waits for an answer: {wait.question}"
        case "signal":
            return f"waits for the signal {wait.name!r}"
        case "basket":
            return f"lies in the basket {wait.basket!r}" + (f": {wait.error['message']}" if wait.error else "")
        case "pause":
            return f"is {wait.question}"
    return f"is on hold: {wait.question}"


def ended_by(wait: Wait, *, alone: bool = False) -> tuple[str, ...]:
    """The verb that ends a wait, with its arguments; nothing when it ends by itself. `alone`: the run waits for
    nothing else, so its id is enough."""
    match wait.kind:
        case "input":
            return ("respond", wait.wait_id)
        case "signal":
            return ("signal", wait.run_id, str(wait.name), "PAYLOAD")
        case "basket" if not alone:
            return ("resume", wait.run_id, "--wait", wait.wait_id)
        case "basket" | "pause" | "hold":
            return ("resume", wait.run_id)
    return ()
