"""A capture lacks what docs/contributing/debugging.md says it does, wherever in the file a pod stands."""

import pytest

from extender.look.cluster import take_capture
from serried.api.level import NATIVE
from serried.ops.steps import finish
from tests.support.budgets import budget
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


@pytest.mark.parametrize("dead", [pytest.param((), id="of a member"), pytest.param(("m0",), id="of a dead member")])
async def test_labels_by_which_no_budget_selects_and_volumes_stay_here(world: Harness, dead: tuple[str, ...]) -> None:
    first, second = members(2)
    told = first.label("owner", "jane").label("app", "train").mounting("jane-s-data")
    chosen = budget("one").selecting(app="train").disruptions_allowed(1)
    await world.add(*small_nodes(2), chosen, gang(2), told.on("n1"), second.on("n2")).run_until_idle()
    for name in dead:
        world.delete(name)
    capture = finish(take_capture(world.core, NATIVE, GANG))
    kept = [each.pod for each in capture.vacancies] if dead else capture.pods
    assert [dict(pod.labels) for pod in kept if pod.name == "m0"] == [{"app": "train"}]
    assert "jane" not in str(capture)
