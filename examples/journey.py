"""A journey: a case that may have to go back, and that may be turned away.

    python examples/journey.py
    holdfast run examples/journey.py:onboarding --input '{"case": {"name": "Mallory"}}'
    holdfast show RUN

Shows `hf.goto`, with which a body sends its run to another node, here back to one that has run before, and `hf.ticket`,
which names a way out and leaves it to the workflow where that leads. What a node did on each visit is kept: `holdfast
show` lists them all, and each has an idempotency key of its own. `ctx.visit` tells a body which visit it is on.
"""

from dataclasses import dataclass

import holdfast as hf


@dataclass
class Case:
    name: str


@dataclass
class Papers:
    passport: bool
    address: bool


SAMPLE = Case("Ada")
DONE: dict[str, str] = {}
"""Stands for the world outside, where a request with a key that was seen before changes nothing."""


@hf.node(idempotent=True)
async def collect(ctx: hf.Context, case: Case) -> Papers:
    """Ask for the papers. People seldom send all of them the first time."""
    return Papers(passport=True, address=ctx.visit > 1)


@hf.node(idempotent=True)
async def verify(case: Case, papers: Papers) -> Case:
    if case.name == "Mallory":
        return hf.ticket("reject")
    if not papers.address:
        return hf.goto("collect")
    return case


@hf.node
async def open_account(ctx: hf.Context, case: Case) -> str:
    return DONE.setdefault(ctx.idempotency_key, f"an account for {case.name}")


@hf.node
async def send_rejection(ctx: hf.Context, case: Case) -> str:
    return DONE.setdefault(ctx.idempotency_key, f"a letter to {case.name}, with regret")


@hf.workflow(tickets={"reject": "send_rejection"})
def onboarding(case: Case = SAMPLE) -> str:
    """Papers, a check, an account; or a letter. The check alone decides which way the run goes."""
    verified = verify(case, collect(case))
    account = open_account(verified)
    with hf.when(hf.skipped(account)):
        letter = send_rejection(case)
    return hf.first(account, letter)


if __name__ == "__main__":
    print(hf.run(onboarding))
    print(hf.run(onboarding, case=Case("Mallory")))
