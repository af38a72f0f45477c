"""Onboarding: cases that lie in baskets until somebody takes them out again.

    python examples/onboarding.py
    holdfast run examples/onboarding.py:onboard --run-id ada
    holdfast baskets
    holdfast resume ada --set vars.verified=false
    holdfast crashtest examples/onboarding.py:onboard

Shows `hf.pend`, with which a body ends and leaves its node in a basket. On resume the next node runs; with `rerun=True`
the same one runs again, with nothing remembered; with `error=` that counts as a failed attempt. Variables that a body
has set are kept, and whoever resumes the run may set them too. A node that fails for good lies in the basket that
`on_failure` names. Of several pended branches `resume` takes the one that is named by its wait or its path.
"""

import asyncio
import tempfile
from dataclasses import dataclass

import holdfast as hf


@dataclass
class Case:
    name: str


class Registry:
    """Stands for a service outside, which is not there all the time."""

    available = True

    def denies(self, case: Case) -> bool:
        return case.name == "Mallory"


SAMPLE = Case("Ada")
DONE: dict[str, str] = {}
"""Stands for the world outside, where a request with a key that was seen before changes nothing."""
registry = Registry()


@hf.node(idempotent=True)
def verify(ctx: hf.SyncContext, case: Case) -> Case:
    if not registry.available:
        return hf.pend("retry_queue", rerun=True, error="registry is down")  # this node again on resume
    ctx.vars["verified"] = True
    if registry.denies(case):
        return hf.ticket("reject")  # jumps to where the workflow says
    return hf.pend("second_look", output=case)  # the next node on resume


@hf.node
def open_account(ctx: hf.SyncContext, case: Case) -> str:
    how = "verified" if ctx.vars["verified"] else "unverified"
    return DONE.setdefault(ctx.idempotency_key, f"an account for {case.name}, {how}")


@hf.node
def send_rejection(ctx: hf.SyncContext, case: Case) -> str:
    return DONE.setdefault(ctx.idempotency_key, f"a letter to {case.name}, with regret")


@hf.workflow(variables={"verified": bool}, tickets={"reject": "send_rejection"}, on_failure="pend:errors")
def onboard(case: Case = SAMPLE) -> str:
    """A check, a second look by a person, an account; or a letter."""
    account = open_account(verify(case))
    with hf.when(hf.skipped(account)):
        letter = send_rejection(case)
    return hf.first(account, letter)


async def put_into(run: hf.Run[str], basket: str) -> None:
    """Wait until a run lies in a basket, and say so."""
    async for _ in run.follow():
        for wait in await run.waits():
            if wait.basket == basket:
                print(run.run_id, "lies in", basket, wait.error["message"] if wait.error else "")
                return


async def main(url: str) -> None:
    async with hf.open(url) as engine:
        registry.available = False
        ada = await engine.start(onboard, case=SAMPLE, run_id="ada")
        await put_into(ada, "retry_queue")
        registry.available = True
        await ada.resume(actor="bob")
        await put_into(ada, "second_look")
        bob = await engine.start(onboard, case=Case("Bob"), run_id="bob")
        await put_into(bob, "second_look")
        for found in await engine.baskets():
            print(found["basket"], found["pended"])

        try:
            await bob.resume(vars={"verified": "no"})
        except hf.Refused as refusal:
            print(refusal.code)
        await bob.resume(vars={"verified": False}, actor="cy")
        await ada.resume(actor="cy")
        print(await ada.result())
        print(await bob.result())
        mallory = await engine.start(onboard, case=Case("Mallory"))
        print(await mallory.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/onboarding.db"))
