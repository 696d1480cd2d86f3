"""Who would be evicted for a group now, as ``/debug/groups/NAMESPACE/NAME?dryRun`` shows it. Nothing is changed."""

import asyncio

from fastapi import HTTPException

from extender.core import Core
from extender.debug.preemption import PreemptionView, view_preemption
from extender.debug.view import View
from serried.model.group import GroupKey
from serried.model.victim import NoVictims, Preemption

_SECONDS = 30.0
"""How long an answer is waited for; the search itself takes 5 s of work at the most."""

_WORDS = (None, "", "All")
"""``?dryRun`` alone will do; the API server takes ``dryRun=All``."""


class DryRunView(View):
    """What would be evicted for a group now."""

    message: str
    """Who would go, or why nobody does, a sentence."""

    found: PreemptionView | None
    """Who would have to go; None where nobody was looked for, or not found in time."""


def read_dry_run(text: str | None) -> bool:
    """Whether a dry run is asked for; any other word is an error."""
    if text not in _WORDS:
        raise HTTPException(400, f"dryRun is All or nothing, not {str(text)[:100]!r}")
    return text is not None


async def try_out(core: Core, group: GroupKey) -> DryRunView:
    """Search for victims anew, in slices as ever."""
    state = core.groups.states.get(group)
    if not core.term.plans or state is None:
        return DryRunView(message="this instance does not plan the group: ask the one that leads", found=None)
    answer: asyncio.Future[DryRunView] = asyncio.get_running_loop().create_future()

    def tell(found: Preemption | NoVictims | None, text: str) -> None:
        if not answer.done():
            answer.set_result(DryRunView(message=text, found=view_preemption(found)))

    core.preemptions.try_out(state, group, tell)
    core.runner.carry_out()
    try:
        async with asyncio.timeout(_SECONDS):
            return await answer
    except TimeoutError:
        return DryRunView(message="no answer was there in time: others are planned first", found=None)
