"""``/debug/lookup``: what a person has the name of leads to the group."""

from collections.abc import AsyncIterator
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from extender.look.routes import debug_routes
from serried.api.level import FALLBACK
from tests.support.builders import job, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import SCHEDULER, Harness


@pytest.fixture
async def http(world: Harness) -> AsyncIterator[httpx.AsyncClient]:
    world.add(node("n"))
    world.add(pod_group("train").gang(2).owned_by("Job", "train"))
    world.add(pod("train-0").scheduler(SCHEDULER).in_group("train"))
    world.add(pod("alone").scheduler(SCHEDULER))
    world.add(job("early").size(2).scheduler(SCHEDULER).uid("u-early"))
    world.add(pod("early-0").scheduler(SCHEDULER).controlled_by("Job", "early", "u-early"))
    world.add(job("plain").not_indexed().scheduler(SCHEDULER))
    world.add(pod("plain-0").scheduler(SCHEDULER).of_job("plain", 0))
    world.add(job("typed").scheduler(SCHEDULER).annotation("scheduling.serried.dev/gang-polcy", "JobAsGang"))
    world.add(composite("tree").owned_by("JobSet", "wood"), pod_group("leaf").gang(1).child_of("tree"))
    world.add(pod_group("made").gang(1))
    await world.run_until_idle()
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield http


@pytest.mark.parametrize(
    ("what", "names"),
    [
        pytest.param("podgroup/train", ["train"], id="a PodGroup by its own name"),
        pytest.param("pod/train-0", ["train"], id="a member"),
        pytest.param("job/train", ["train"], id="the owner of the PodGroup"),
        pytest.param("job/early", ["job:early"], id="a Job that has no PodGroup yet"),
        pytest.param("podgroup/leaf", ["composite:tree"], id="a PodGroup in a tree leads to the tree"),
        pytest.param("podgroup/tree", ["composite:tree"], id="a CompositePodGroup"),
    ],
)
async def test_it_leads_to_its_group(http: httpx.AsyncClient, what: str, names: list[str]) -> None:
    answer = await http.get(f"/debug/lookup/default/{what}")
    assert [group["name"] for group in answer.json()] == names
    for name in names:
        assert (await http.get(f"/debug/groups/default/{name}")).status_code == 200


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        pytest.param("train", "job/train", id="of a Job's PodGroup"),
        pytest.param("job:early", "job/early", id="of a Job that has no PodGroup yet"),
        pytest.param("composite:tree", "jobset/wood", id="of a tree"),
        pytest.param("made", "", id="of a PodGroup that somebody has made"),
    ],
)
async def test_a_group_is_shown_with_the_name_that_people_gave(http: httpx.AsyncClient, name: str, owner: str) -> None:
    assert (await http.get(f"/debug/groups/default/{name}")).json()["owner"] == owner
    listed = (await http.get("/debug/groups")).json()
    assert [each["owner"] for each in listed if each["name"] == name] == [owner]


async def test_what_its_owner_says_in_vain_is_shown(world: Harness, http: httpx.AsyncClient) -> None:
    assert (await http.get("/debug/groups/default/job:early")).json()["unread"] == []
    world.add(
        job("early").size(2).scheduler(SCHEDULER).uid("u-early").annotation("scheduling.serried.dev/pakking", "x")
    )
    (said,) = (await http.get("/debug/groups/default/job:early")).json()["unread"]
    assert "did you mean the annotation scheduling.serried.dev/packing of the Job?" in said


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("pod/alone", "pod default/alone is in no group", id="a pod of no group"),
        pytest.param(
            "pod/plain-0",
            "any other pod; its Job plain is no gang, so kube-scheduler places its pods one by one: it runs one pod",
            id="a pod of a Job that is no gang",
        ),
        pytest.param(
            "job/typed",
            "it runs one pod at a time; to make it a gang, create it again with a larger parallelism, and completions; "
            "annotation 'scheduling.serried.dev/gang-polcy' has no effect",
            id="a Job with an annotation that nothing reads",
        ),
        pytest.param(
            "job/plain", "is no gang, so kube-scheduler places its pods one by one: it runs", id="a Job that is none"
        ),
        pytest.param("job/gone", "no job default/gone is known", id="a Job that is not there"),
        pytest.param("podgroup/gone", "no podgroup default/gone is known", id="a PodGroup that is not there"),
    ],
)
async def test_what_leads_nowhere_is_told_apart(http: httpx.AsyncClient, what: str, said: str) -> None:
    answer = await http.get(f"/debug/lookup/default/{what}")
    assert answer.status_code == 404
    assert said in answer.json()["detail"]


async def test_a_kind_that_has_no_groups_is_refused_with_those_that_have(http: httpx.AsyncClient) -> None:
    answer = await http.get("/debug/lookup/default/service/x")
    assert answer.status_code == 400
    assert "podgroup, pod, workload, job, jobset, leaderworkerset" in answer.json()["detail"]
