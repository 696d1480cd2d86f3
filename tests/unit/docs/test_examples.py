"""The examples of other kinds are gangs of the size that their first comment says.

Those of Jobs and PodGroups are applied to a control plane by `tests/e2e/examples`; the controllers of these kinds are
not there.
"""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from extender.look.simulations import whatif_routes
from tests.support.builders import node
from tests.support.extender_harness import Harness

KINDS = Path(__file__).resolve().parents[3] / "examples" / "kinds"
ZONE = "topology.kubernetes.io/zone"
SIZES = {"jobset": [9], "leaderworkerset": [4, 4]}
"""minCount of each gang."""


@pytest.mark.parametrize(("example", "sizes"), SIZES.items(), ids=SIZES)
async def test_an_example_of_a_kind_is_made_of_gangs(example: str, sizes: list[int]) -> None:
    world = Harness()
    await world.add(*(node(f"n{number}").cpu(4).label(ZONE, f"z{number // 4}") for number in range(8))).run_until_idle()
    app = FastAPI()
    app.include_router(whatif_routes(world.core))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        answer = await http.post("/whatif", content=(KINDS / f"{example}.yaml").read_text())
    found = answer.json()
    assert [(group["outcome"], group["need"]) for group in found["groups"]] == [("Fits", size) for size in sizes]
    await world.close()


def test_every_example_of_a_kind_is_asked_about() -> None:
    assert {path.stem for path in KINDS.iterdir()} == SIZES.keys()
