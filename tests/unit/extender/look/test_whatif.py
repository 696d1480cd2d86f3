"""``POST /debug/whatif``: what would become of gangs that do not exist."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, MutableMapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI

from extender.look.manifests import read_documents
from extender.look.simulations import whatif_routes
from serried.api.level import FALLBACK, NATIVE, ApiLevel
from serried.api.names import GANG_POLICY, REQUIRED_TOPOLOGY
from serried.api.volume import StorageClass, Volume, VolumeClaim
from serried.cluster.rule import KindState
from serried.rules.devices.cluster import DeviceClaims
from serried.rules.volumes.cluster import Volumes
from tests.support.budgets import budget
from tests.support.builders import RACK, compatible_group, node, pod, pod_group, workload
from tests.support.composites import composite
from tests.support.devices import claim, device_class, devices, mark_devices_listed
from tests.support.extender_harness import SCHEDULER, Harness, members, small_nodes
from tests.support.memory import read_memory
from tests.support.parents import job_set
from tests.support.priorities import priority_class
from tests.support.volumes import storage_class, volume, volume_claim

Raw = dict[str, Any]

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "high-priority.yaml"

JOB_SETS = "jobset.x-k8s.io/v1alpha2"


class Asking:
    """Asks the extender of a small cluster."""

    def __init__(self, app: FastAPI, http: httpx.AsyncClient) -> None:
        self.app = app
        self._http = http

    async def post(self, body: str | bytes, query: str = "") -> httpx.Response:
        return await self._http.post(f"/whatif?{query}", content=body)

    async def ask(self, *objects: Raw, query: str = "") -> Raw:
        """The whole answer about some manifests."""
        answer = await self.post(yaml.safe_dump_all(objects), query)
        assert answer.status_code == 200, answer.text
        found: Raw = answer.json()
        return found

    async def one(self, *objects: Raw, query: str = "") -> Raw:
        """The one gang of the answer."""
        (found,) = (await self.ask(*objects, query=query))["groups"]
        return dict(found)


@pytest.fixture
async def asking(world: Harness) -> AsyncIterator[Asking]:
    app = FastAPI()
    app.include_router(whatif_routes(world.core))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield Asking(app, http)


def training(size: int, cpu: int = 1, name: str = "train", **spec: Any) -> Raw:
    """An Indexed Job as people write it."""
    container = {"name": "main", "image": "train:1", "resources": {"requests": {"cpu": str(cpu)}}}
    template = {"spec": {"schedulerName": SCHEDULER, "containers": [container], "restartPolicy": "Never", **spec}}
    made = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": made}


def raw(builder: Any, kind: str, version: str = "scheduling.k8s.io/v1beta1") -> Raw:
    return {"apiVersion": version, "kind": kind, **builder.raw()}


def named(kind: str, version: str) -> Raw:
    """An object of which nothing but its kind and name matters."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}


def ranked(name: str, rack: str, cpus: int = 2) -> Any:
    return node(name).cpu(cpus).rack(rack)


# --- what is asked ---------------------------------------------------------------------------------------------------


async def test_a_job_that_fits_is_told_its_nodes(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    found = await asking.one(training(4))
    assert (found["outcome"], found["placed"], found["nodes"]) == ("Fits", 4, {"n1": 2, "n2": 2})
    assert (found["namespace"], found["kind"], found["source"]) == ("default", "Job", "Job default/train")
    assert found["owner"] == "job/train"


@pytest.mark.parametrize("form", ["application/yaml", "application/json"])
async def test_the_example_of_the_openapi_can_be_asked(world: Harness, asking: Asking, form: str) -> None:
    world.add(*small_nodes(2))
    app = FastAPI()
    app.include_router(whatif_routes(world.core))
    example = app.openapi()["paths"]["/whatif"]["post"]["requestBody"]["content"][form]["example"]
    answer = await asking.post(example if isinstance(example, str) else json.dumps(example), "namespace=team")
    (found,) = answer.json()["groups"]
    assert (found["source"], found["members"], found["outcome"]) == ("Job team/train", 4, "Fits")


async def test_a_job_that_does_not_fit_is_told_why(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    answer = await asking.ask(training(5))
    assert answer["fits"] is False
    found = answer["groups"][0]
    assert (found["outcome"], found["reason"], found["placed"]) == ("DoesNotFit", "NoCapacity", 0)
    assert found["message"] == (
        "NoCapacity: only 4 of 5 members fit into the cluster; "
        "even if nothing ran, at most 4 members would fit, so waiting does not help"
    )


async def test_a_gang_that_runs_fits(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2), pod_group("g").gang(2), *[each.on("n1") for each in members(2)])
    answer = await asking.ask(query="group=default/g")
    (found,) = answer["groups"]
    assert (answer["fits"], found["outcome"], found["message"]) == (True, "Fits", "Scheduled: 2 members are bound")
    assert (await asking.ask(query="group=default/g&drain=n1"))["fits"] is False


async def test_its_annotations_decide_as_for_a_job_that_exists(world: Harness, asking: Asking) -> None:
    world.add(ranked("n1", "a"), ranked("n2", "b"), ranked("n3", "b"))
    wish = training(4)
    wish["metadata"]["annotations"] = {"scheduling.serried.dev/required-topology": RACK}
    found = await asking.one(wish)
    assert (found["domain"], found["nodes"]) == ("b", {"n2": 2, "n3": 2})


async def test_the_name_of_a_level_means_the_label_that_stands_for_it_here(world: Harness, asking: Asking) -> None:
    aisle = "topology.k8s.aws/network-node-layer-3"
    world.add(*(node(name).cpu(2).label(aisle, name[0]) for name in ("a1", "b1", "b2")))
    wish = training(4)
    wish["metadata"]["annotations"] = {"scheduling.serried.dev/required-topology": "rack"}
    found = await asking.one(wish)
    assert (found["domain"], found["nodes"]) == ("b", {"b1": 2, "b2": 2})


async def test_a_level_that_no_label_stands_for_here_is_a_no(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    wish = training(4)
    wish["metadata"]["annotations"] = {"scheduling.serried.dev/required-topology": "spine"}
    answer = await asking.ask(wish)
    (said,) = answer["refused"]
    assert answer["fits"] is False
    assert said.startswith(
        "document 1, Job default/train: LevelUnknown: this cluster has no node label for level spine; fewer"
    )


async def test_a_job_that_is_no_gang_fits_if_each_of_its_pods_does(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1))
    wish = training(3)
    wish["metadata"]["annotations"] = {"scheduling.serried.dev/gang-policy": "NoGang"}
    found = await asking.one(wish)
    assert (found["outcome"], found["need"], found["placed"], found["members"]) == ("DoesNotFit", 1, 2, 3)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(
            [training(2) | {"spec": {**training(2)["spec"], "completionMode": "NonIndexed"}}],
            "it is not Indexed; to make it a gang, create it again with completionMode: Indexed, or the annotation",
            id="a Job that is not Indexed",
        ),
        pytest.param(
            [training(2) | {"metadata": {"name": "train", "annotations": {GANG_POLICY: "NoGang"}}}],
            "its pods one by one: it has the annotation scheduling.serried.dev/gang-policy: NoGang",
            id="a Job that wants none",
        ),
        pytest.param(
            [raw(job_set("s").replicated("w", pods=2), "JobSet", JOB_SETS)],
            "JobSet s controls it; to make it a gang, create it again with the annotation",
            id="the Jobs of a JobSet that does not ask",
        ),
        pytest.param(
            [raw(pod_group("g"), "PodGroup"), *(raw(each, "Pod", "v1") for each in members(2))],
            "kube-scheduler places its pods one by one: its policy is basic",
            id="a PodGroup of policy basic",
        ),
        pytest.param(
            [raw(pod("alone").cpu(1).scheduler(SCHEDULER), "Pod", "v1")],
            "kube-scheduler places the pod by itself: it names no PodGroup",
            id="a pod of no group",
        ),
    ],
)
async def test_what_is_no_gang_is_told_why(world: Harness, asking: Asking, asked: list[Raw], why: str) -> None:
    world.add(*small_nodes(2))
    found = await asking.one(*asked)
    assert found["outcome"] == "Fits"
    assert why in found["noGang"]
    assert found["message"].startswith(f"no gang, so {found['noGang']}; ")


async def test_of_a_gang_nothing_is_said(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    assert (await asking.one(training(2)))["noGang"] == ""


async def test_its_workload_says_how_many_are_enough(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1))
    wish = raw(workload("w").for_job("train").gang_template("workers", 2), "Workload")
    found = await asking.one(wish, training(3))
    assert (found["outcome"], found["need"], found["placed"], found["members"]) == ("Fits", 2, 2, 3)


async def test_a_pod_group_comes_with_its_pods(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    pods = [raw(each, "Pod", "v1") for each in members(3)]
    found = await asking.one(raw(pod_group("g").gang(3), "PodGroup"), *pods)
    assert (found["name"], found["outcome"], found["members"]) == ("g", "Fits", 3)


async def test_a_pod_group_of_scheduler_plugins_is_one_too(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1))
    pods = [pod(f"p{at}").cpu(1).scheduler(SCHEDULER).in_compatible_group("g") for at in range(3)]
    wish = raw(compatible_group("g").gang(3), "PodGroup", "scheduling.x-k8s.io/v1alpha1")
    found = await asking.one(wish, *[raw(each, "Pod", "v1") for each in pods])
    assert (found["kind"], found["outcome"]) == ("PodGroup.scheduling.x-k8s.io", "DoesNotFit")


async def test_a_group_that_exists_is_asked_about_by_its_name(world: Harness, asking: Asking) -> None:
    await world.add(*small_nodes(1), pod_group("g").gang(3), *members(3)).run_until_idle()
    answer = await asking.post("", "group=default/g&add=1*n1")
    (found,) = answer.json()["groups"]
    assert (found["outcome"], found["nodes"]) == ("Fits", {"n1": 2, "n1+1": 1})


async def test_one_that_is_planned_is_asked_about_as_if_it_were_not(world: Harness, asking: Asking) -> None:
    await world.add(*small_nodes(1), pod_group("g").gang(2), *members(2)).run_until_idle()
    (found,) = (await asking.post("", "group=default/g")).json()["groups"]
    assert found["outcome"] == "Fits"


async def test_late_members_of_a_group_that_exists_join_it(world: Harness, asking: Asking) -> None:
    runs = [each.on("n1") for each in members(2)]
    world.add(ranked("n1", "a", 3), ranked("n2", "b", 9), pod_group("g").gang(2).topology(), *runs)
    found = await asking.one(*[raw(each, "Pod", "v1") for each in members(1, first=2)])
    assert (found["outcome"], found["nodes"]) == ("Fits", {"n1": 1})


async def test_of_several_gangs_each_finds_the_room_of_those_before_it_taken(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2), priority_class("high", 100))
    answer = await asking.ask(training(3, name="low"), training(3, name="high", priorityClassName="high"))
    assert [(each["source"], each["outcome"]) for each in answer["groups"]] == [
        ("Job default/high", "Fits"),
        ("Job default/low", "DoesNotFit"),
    ]
    assert answer["fits"] is False


async def test_json_and_lists_are_read_too(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    for body in ({"manifests": [training(2)]}, {"kind": "List", "items": [training(2)]}, [training(2)]):
        answer = await asking.post(yaml.safe_dump(body))
        assert answer.json()["fits"] is True
        assert (await asking.post(httpx.Request("POST", "http://x", json=body).content)).json()["fits"] is True


async def test_what_makes_no_pods_is_left_out_and_named(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1))
    chart = [
        named("Service", "v1"),
        named("Role", "rbac.authorization.k8s.io/v1"),
        training(2),
        named("ConfigMap", "v1"),
    ]
    answer = await asking.ask(*chart)
    assert [each["source"] for each in answer["groups"]] == ["Job default/train"]
    assert answer["skipped"] == ["Service x", "Role x", "ConfigMap x"]


async def test_a_namespace_is_that_of_the_manifest_else_of_the_question(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1))
    assert (await asking.one(training(2), query="namespace=team"))["namespace"] == "team"


async def test_a_manifest_of_kubectl_get_is_asked_about_as_if_it_were_new(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1))
    wish = training(2)
    wish["metadata"] |= {"uid": "x", "resourceVersion": "5", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    wish["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert (await asking.one(wish))["outcome"] == "Fits"


async def test_a_tree_goes_as_one_and_each_of_its_groups_into_a_rack(world: Harness, asking: Asking) -> None:
    world.add(ranked("n1", "a"), ranked("n2", "b"), ranked("n3", "c", 1))
    leaves = [raw(pod_group(name).gang(2).topology().child_of("root"), "PodGroup") for name in ("one", "two")]
    pods = [pod(f"{leaf}-{at}").cpu(1).scheduler(SCHEDULER).in_group(leaf) for leaf in ("one", "two") for at in (0, 1)]
    root = raw(composite("root").gang(2), "CompositePodGroup", "scheduling.k8s.io/v1alpha3")
    tree = [root, *leaves, *(raw(each, "Pod", "v1") for each in pods)]
    found = await asking.one(*tree)
    assert (found["source"], found["kind"], found["need"]) == (
        "CompositePodGroup default/root",
        "CompositePodGroup",
        4,
    )
    assert (found["outcome"], found["nodes"]) == ("Fits", {"n1": 2, "n2": 2})
    assert (await asking.one(*tree, query="drain=n2"))["outcome"] == "DoesNotFit"


async def test_late_members_of_a_tree_that_exists_join_their_group(world: Harness, asking: Asking) -> None:
    leaves = [pod_group(name).gang(1).topology().child_of("root") for name in ("one", "two")]
    runs = [pod(f"{leaf}-0").cpu(1).in_group(leaf).on(home) for leaf, home in (("one", "a"), ("two", "b"))]
    world.add(ranked("a", "a", 3), ranked("b", "b", 9), composite("root").gang(2), *leaves, *runs)
    late = pod("one-1").cpu(1).scheduler(SCHEDULER).in_group("one")
    found = await asking.one(raw(late, "Pod", "v1"))
    assert (found["outcome"], found["nodes"]) == ("Fits", {"a": 1})


async def test_a_job_set_goes_as_one_gang_into_one_rack(world: Harness, asking: Asking) -> None:
    world.add(ranked("n1", "a"), ranked("n2", "b"), ranked("n3", "b"))
    built = job_set("train").gang_policy().topology().replicated("driver").replicated("workers", 1, 3)
    wish = raw(built, "JobSet", "jobset.x-k8s.io/v1alpha2")
    for replicated in wish["spec"]["replicatedJobs"]:
        replicated["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    found = await asking.one(wish)
    assert (found["source"], found["kind"], found["need"]) == ("JobSet default/train", "JobSet", 4)
    assert (found["domain"], found["nodes"]) == ("b", {"n2": 2, "n3": 2})


# --- another cluster -------------------------------------------------------------------------------------------------


async def test_a_drained_node_is_not_there_and_its_pods_are_counted(world: Harness, asking: Asking) -> None:
    daemon = pod("log").cpu(1).on("n1").controlled_by("DaemonSet", "log")
    world.add(*small_nodes(2), pod("web").cpu(1).on("n1"), daemon)
    answer = await asking.ask(training(3), query="drain=n1")
    assert (answer["fits"], answer["changes"]["displaced"]) == (False, 1)
    assert (await asking.ask(training(2), query="drain=n1"))["groups"][0]["nodes"] == {"n2": 2}


async def test_added_nodes_are_like_the_one_and_have_its_daemons(world: Harness, asking: Asking) -> None:
    daemon = pod("log").cpu(1).on("n1").controlled_by("DaemonSet", "log")
    world.add(ranked("n1", "a"), daemon, pod("web").cpu(1).on("n1"))
    assert (await asking.ask(training(2), query="add=1*n1"))["fits"] is False
    answer = await asking.ask(training(3), query="add=3*n1")
    assert answer["groups"][0]["nodes"] == {"n1+1": 1, "n1+2": 1, "n1+3": 1}
    assert answer["changes"]["added"] == ["3*n1"]


async def test_a_removed_gang_leaves_its_room_bound_or_planned(world: Harness, asking: Asking) -> None:
    runs = [pod(f"r{at}").cpu(1).scheduler(SCHEDULER).in_group("run").on("n1") for at in range(2)]
    world.add(*small_nodes(2), pod_group("run").gang(2), *runs)
    await world.add(pod_group("g").gang(2), *members(2)).run_until_idle()
    assert (await asking.ask(training(2)))["fits"] is False
    assert (await asking.one(training(2), query="remove=default/run"))["nodes"] == {"n1": 2}
    assert (await asking.one(training(2), query="remove=default/g"))["nodes"] == {"n2": 2}
    assert (await asking.ask(training(4), query="remove=default/run&remove=default/g"))["fits"] is True


async def test_what_is_said_twice_counts_once_and_additions_are_summed(world: Harness, asking: Asking) -> None:
    world.add(ranked("n1", "a"), ranked("n2", "b"), pod_group("run").gang(1))
    world.add(pod("r0").cpu(2).scheduler(SCHEDULER).in_group("run").on("n1"))
    twice = "&".join(["drain=n2", "add=1*n2", "remove=default/run"] * 2)
    answer = await asking.ask(training(6), query=twice)
    changes = {"drained": ["n2"], "displaced": 0, "added": ["2*n2"], "removed": ["default/run"]}
    assert (answer["fits"], answer["changes"]) == (True, changes)
    assert (await asking.ask(training(7), query=twice))["fits"] is False
    await world.add(pod_group("g").gang(2), *members(2)).run_until_idle()
    assert len((await asking.ask(query="group=default/g&group=default/g"))["groups"]) == 1


# --- who would have to go --------------------------------------------------------------------------------------------


async def test_victims_are_told_and_nobody_is_evicted(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1), pod("web").cpu(2).on("n1"), priority_class("high", 100))
    found = await asking.one(training(2, priorityClassName="high"))
    assert (found["outcome"], found["preemption"]["victims"]) == ("FitsAfterEvictions", ["default/web"])
    assert found["message"].endswith("it fits once 1 pod of lower priority has ended")
    assert world.api.calls == []


async def test_the_next_gang_does_not_get_the_same_victims(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1), pod("web").cpu(2).on("n1"), priority_class("high", 100))
    gangs = [training(2, name=name, priorityClassName="high") for name in ("a", "b")]
    outcomes = [each["outcome"] for each in (await asking.ask(*gangs))["groups"]]
    assert outcomes == ["FitsAfterEvictions", "DoesNotFit"]


async def test_what_an_elastic_gang_can_spare_is_told_once(world: Harness, asking: Asking) -> None:
    web = pod("web").cpu(2).on("n1").started("2023-11-14T10:00:00Z")
    spare = [
        each.cpu(2).on(f"n{place}").started(f"2023-11-14T1{place}:00:00Z") for place, each in enumerate(members(2), 2)
    ]
    world.add(*small_nodes(3), web, pod_group("g").gang(1), *spare, priority_class("high", 100))
    gangs = [training(2, name=name, priorityClassName="high") for name in ("a", "b")]
    victims = [each["preemption"]["victims"] for each in (await asking.ask(*gangs))["groups"]]
    assert victims == [["default/m1"], ["default/web"]]


def bring(name: str, value: int, **fields: Any) -> Raw:
    return raw(priority_class(name, value), "PriorityClass", "scheduling.k8s.io/v1") | fields


@pytest.mark.parametrize(
    ("level", "gang"),
    [
        pytest.param(NATIVE, [training(2, priorityClassName="new")], id="a Job"),
        pytest.param(FALLBACK, [training(2, priorityClassName="new")], id="a Job where PodGroups are ours"),
        pytest.param(
            FALLBACK,
            [
                raw(
                    pod_group("g").gang(2).with_field("new", "spec", "priorityClassName"),
                    "PodGroup",
                    FALLBACK.api_version,
                ),
                *(raw(each.cpu(1), "Pod", "v1") for each in members(2)),
            ],
            id="a PodGroup with its pods",
        ),
    ],
)
async def test_a_class_that_comes_with_the_gang_counts(level: ApiLevel, gang: list[Raw]) -> None:
    world = Harness(level=level)
    world.add(*small_nodes(1), pod("web").cpu(2).on("n1"))
    app = FastAPI()
    app.include_router(whatif_routes(world.core))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        answer = await Asking(app, http).ask(*gang, bring("new", 100))
        never = await Asking(app, http).ask(*gang, bring("new", 100, preemptionPolicy="Never"))
    (found,) = answer["groups"]
    assert (found["priority"], found["outcome"], answer["skipped"]) == (100, "FitsAfterEvictions", [])
    assert found["preemption"]["victims"] == ["default/web"]
    assert never["groups"][0]["outcome"] == "DoesNotFit"
    await world.close()


async def test_a_class_that_is_there_already_counts_as_it_is(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(1), priority_class("high", 100))
    answer = await asking.ask(training(2, priorityClassName="high"), bring("high", 7))
    assert answer["groups"][0]["priority"] == 100
    assert answer["skipped"] == ["PriorityClass high"]


async def test_an_example_is_answered_with_its_class(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    (found,) = (await asking.post(EXAMPLE.read_text())).json()["groups"]
    assert (found["source"], found["priority"], found["outcome"]) == ("Job default/high-priority", 1_000_000, "Fits")


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        pytest.param({"priorityClassName": "gentle"}, "Never", id="its class never preempts"),
        pytest.param({"priorityClassName": "high", "preemptionPolicy": "Never"}, None, id="its pods never preempt"),
        pytest.param({}, None, id="nothing has a lower priority"),
    ],
)
async def test_nobody_goes_where(world: Harness, asking: Asking, spec: Raw, policy: str | None) -> None:
    gentle = priority_class("gentle", 100).with_field(policy, "preemptionPolicy")
    world.add(*small_nodes(1), pod("web").cpu(2).on("n1"), gentle, priority_class("high", 100))
    found = await asking.one(training(2, **spec))
    assert (found["outcome"], found["preemption"]) == ("DoesNotFit", None)


async def test_what_keeps_victims_is_told(world: Harness, asking: Asking) -> None:
    web = pod("web").cpu(2).on("n1").label("app", "web")
    world.add(*small_nodes(1), web, budget("b").selecting(app="web"), priority_class("high", 100))
    found = await asking.one(training(2, priorityClassName="high"))
    assert (found["outcome"], found["preemption"]["blocker"]) == ("DoesNotFit", "protection")


async def test_room_that_is_kept_for_the_first_gang_is_kept_from_others(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2), pod("web").cpu(1).on("n1"), pod_group("g").gang(4), *members(4))
    await world.run_until_idle()
    assert world.core.backfill.head is not None
    assert (await asking.one(training(2)))["reason"] == "BehindHead"


# --- as the API server would have it ---------------------------------------------------------------------------------

GPU = "example.com/gpu"
ONE = {"cpu": "1"}
TEMPLATES = [{"name": "gpu", "resourceClaimTemplateName": "one"}]


def container(**resources: Any) -> Raw:
    return {"name": "main", "image": "train:1", "resources": resources}


@pytest.mark.parametrize(
    ("spec", "room"),
    [
        pytest.param({"containers": [container(requests=ONE)]}, 4, id="requests alone"),
        pytest.param({"containers": [container(limits=ONE)]}, 4, id="limits stand for requests"),
        pytest.param({"containers": [container(limits={"cpu": "2"}, requests=ONE)]}, 4, id="what is requested counts"),
        pytest.param(
            {"containers": [container(limits={"cpu": "2", "memory": "1Ki"}, requests={"memory": "1Ki"})]},
            2,
            id="each resource for itself",
        ),
        pytest.param(
            {"containers": [container()], "initContainers": [container(limits={"cpu": "2"})]},
            2,
            id="init containers, too",
        ),
        pytest.param({"containers": [container()], "resources": {"limits": ONE}}, 4, id="limits of the whole pod"),
        pytest.param(
            {"containers": [container(requests=ONE)], "resources": {"limits": {"cpu": "2"}}},
            4,
            id="limits of the pod, where its containers have requests",
        ),
        pytest.param({"containers": [container()]}, 5, id="nothing"),
    ],
)
async def test_requests_are_those_that_an_api_server_would_default(
    world: Harness, asking: Asking, spec: Raw, room: int
) -> None:
    world.add(*[node(f"n{at}").cpu(2).memory("1Gi").pods(5) for at in (1, 2)])
    assert (await asking.one(training(room, **spec)))["outcome"] == "Fits"
    if room < 5:
        assert (await asking.one(training(room + 1, **spec)))["outcome"] == "DoesNotFit"


async def test_a_resource_that_nothing_brings_does_not_fit(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    wish = training(2, containers=[container(limits={"cpu": "1", GPU: "1"})])
    found = await asking.one(wish)
    assert (found["outcome"], found["reason"]) == ("DoesNotFit", "NoCapacity")
    assert f"asks for {GPU}, which no node has and no DeviceClass provides" in found["message"]
    world.add(device_class("gpu").extended_resource(GPU))
    found = await asking.one(wish)
    assert (found["outcome"], found["message"]) == (
        "Fits",
        f"2 of 2 members fit; 2 members ask for {GPU}, which only kube-scheduler can count",
    )


async def test_claims_that_are_made_from_a_template_are_there_by_then(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    found = await asking.one(training(2, resourceClaims=TEMPLATES))
    assert (found["outcome"], found["message"]) == (
        "Fits",
        "2 of 2 members fit; 2 members claim devices, which only kube-scheduler can count",
    )
    assert world.store.rule(DeviceClaims).wanted, "so that they are listed for the next question"


# --- claims that come with the question ------------------------------------------------------------------------------


def see_devices(world: Harness, *counts: int) -> None:
    """Each node has so many devices."""
    world.add(*small_nodes(len(counts)), device_class("gpu"))
    for at, count in enumerate(counts, 1):
        world.store.put_object(devices(f"n{at}", count).value())
    mark_devices_listed(world.store)


def template_of(count: int) -> Raw:
    asked = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]}}
    return {
        **named("ResourceClaimTemplate", "resource.k8s.io/v1"),
        "metadata": {"name": "one"},
        "spec": {"spec": asked},
    }


async def test_devices_of_a_template_that_is_sent_are_counted(world: Harness, asking: Asking) -> None:
    see_devices(world, 2, 1)
    wish = training(3, resourceClaims=TEMPLATES)
    found = await asking.one(template_of(1), wish)
    assert (found["outcome"], found["message"]) == ("Fits", "3 of 3 members fit")
    assert found["nodes"] == {"n1": 2, "n2": 1}
    answer = await asking.ask(template_of(2), wish)
    assert answer["groups"][0]["outcome"] == "DoesNotFit"
    assert "only 1 of 3 members fit into the cluster" in answer["groups"][0]["message"]
    assert not answer["skipped"]


async def test_a_template_that_is_not_known_is_named(world: Harness, asking: Asking) -> None:
    see_devices(world, 2, 1)
    assert (await asking.one(training(2, resourceClaims=TEMPLATES)))["message"] == (
        "2 of 2 members fit; 2 members claim devices, which only kube-scheduler can count "
        "(no claim is made yet from ResourceClaimTemplate one)"
    )


CHANNEL = "compute-domain-default-channel.nvidia.com"


def compute_domain(template: str = "one") -> Raw:
    """Return a ComputeDomain: one NVLink domain of the members' nodes. Its controller makes their claim template."""
    spec = {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": template}}}
    return {**named("ComputeDomain", "resource.nvidia.com/v1beta1"), "spec": spec}


@pytest.mark.parametrize(
    ("template", "size", "outcome", "said"),
    [
        pytest.param("one", 3, "Fits", "3 of 3 members fit", id="as many members as nodes with a channel fit"),
        pytest.param("one", 4, "DoesNotFit", "only 3 of 4 members fit", id="one more does not, though CPUs are free"),
        pytest.param("other", 4, "Fits", "no claim is made yet from", id="the template of another one is not known"),
    ],
)
async def test_the_manifest_of_an_nvlink_rack_is_answered(
    world: Harness, asking: Asking, template: str, size: int, outcome: str, said: str
) -> None:
    see_devices(world, 1, 1, 1)
    world.add(device_class(CHANNEL))
    answer = await asking.ask(
        compute_domain(template), named("Service", "v1"), training(size, resourceClaims=TEMPLATES)
    )
    (found,) = answer["groups"]
    assert (found["outcome"], said in found["message"]) == (outcome, True)
    assert answer["fits"] == (outcome == "Fits")
    assert (answer["refused"], answer["skipped"]) == ([], ["ComputeDomain x", "Service x"])


async def test_a_compute_domain_without_its_driver_does_not_fit(world: Harness, asking: Asking) -> None:
    see_devices(world, 1, 1, 1)
    answer = await asking.ask(compute_domain(), training(2, resourceClaims=TEMPLATES))
    assert not answer["fits"]
    assert f"names DeviceClass {CHANNEL}, which does not exist" in answer["groups"][0]["message"]


async def test_a_compute_domain_alone_is_no_question(world: Harness, asking: Asking) -> None:
    answer = await asking.post(yaml.safe_dump(compute_domain()))
    assert (answer.status_code, "no object in the body makes pods" in answer.text) == (400, True)


async def test_a_claim_that_members_share_is_left_to_the_scheduler(world: Harness, asking: Asking) -> None:
    see_devices(world, 1, 0)
    sent = {**claim("mine", 1).raw(), **named("ResourceClaim", "resource.k8s.io/v1")}
    sent["metadata"] = {"name": "mine"}
    shared = [{"name": "gpu", "resourceClaimName": "mine"}]
    found = await asking.one(sent, training(2, resourceClaims=shared))
    assert found["message"].endswith("(several of them name ResourceClaim mine)")
    found = await asking.one(training(2, resourceClaims=shared))
    assert "can run nowhere: ResourceClaim mine does not exist" in found["message"]


def see_storage(world: Harness) -> None:
    """Two nodes, of which n1 reaches two disks and n2 one; and a class whose volumes are made on n2."""
    world.add(*(node(f"n{at}").cpu(8).label("kubernetes.io/hostname", f"n{at}") for at in (1, 2)))
    for kind in (VolumeClaim, Volume, StorageClass):
        world.store.note_state(kind, KindState.KNOWN)
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    made = storage_class("made", "made.example.com").allowed_topology("kubernetes.io/hostname", "n2")
    for each in (
        storage_class("local"),
        made.with_field(default, "metadata", "annotations"),
        storage_class("now").immediate(),
    ):
        world.store.put_object(each.value())
    for name, where in (("v1", "n1"), ("v2", "n1"), ("v3", "n2")):
        world.store.put_object(volume(name).local_to(where).available("local").value())


def scratch(**spec: Any) -> Raw:
    """An ephemeral volume of each pod."""
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": wanted}}}]}


MOUNTED: Raw = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


async def test_ephemeral_volumes_are_one_for_each_member(world: Harness, asking: Asking) -> None:
    see_storage(world)
    found = await asking.one(training(3, **scratch(storageClassName="local")))
    assert (found["outcome"], found["nodes"]) == ("Fits", {"n1": 2, "n2": 1})
    found = await asking.one(training(4, **scratch(storageClassName="local")))
    assert found["outcome"] == "DoesNotFit"
    assert "3 PersistentVolumes of StorageClass local are left for 4 volume claims" in found["message"]


async def test_those_of_no_class_are_of_the_default_one(world: Harness, asking: Asking) -> None:
    see_storage(world)
    assert (await asking.one(training(3, **scratch())))["nodes"] == {"n2": 3}


async def test_a_volume_claim_is_created_sent_or_missing(world: Harness, asking: Asking) -> None:
    see_storage(world)
    missing = await asking.one(training(2, **MOUNTED))
    assert (missing["outcome"], missing["message"]) == (
        "Fits",
        (
            "2 of 2 members fit; volume claim data does not exist, so Serried cannot tell where its volume will be: "
            "send the claim, too"
        ),
    )
    sent = raw(volume_claim("data").requesting("made"), "PersistentVolumeClaim", "v1")
    assert (await asking.one(sent, training(2, **MOUNTED)))["nodes"] == {"n2": 2}
    local = raw(volume_claim("data").requesting("local"), "PersistentVolumeClaim", "v1")
    shared = await asking.one(local, training(6, **MOUNTED))
    assert (shared["outcome"], len(shared["nodes"])) == ("Fits", 1), "one volume for all"
    at_once = raw(volume_claim("data").requesting("now"), "PersistentVolumeClaim", "v1")
    assert (await asking.one(at_once, training(2, **MOUNTED)))["message"] == (
        "2 of 2 members fit; Serried cannot tell where volume claim data will be, because StorageClass now does "
        "not wait for the first consumer"
    )


async def test_where_volumes_can_be_is_not_known_before_anybody_has_asked(world: Harness, asking: Asking) -> None:
    world.add(*small_nodes(2))
    for kind in (VolumeClaim, Volume):
        world.store.note_state(kind, KindState.KNOWN)
    assert (await asking.one(training(2, **scratch())))["message"] == (
        "2 of 2 members fit; Serried cannot tell where volume claim train-scratch can be before it has listed the "
        "StorageClasses: ask again"
    )
    assert world.store.rule(Volumes).wanted


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        pytest.param("a: &a {x: 1}\nb: *a", {"a": {"x": 1}, "b": {"x": 1}}, id="a value twice"),
        pytest.param("a: &a {x: 1}\nb: {<<: *a, y: 2}", {"a": {"x": 1}, "b": {"x": 1, "y": 2}}, id="a map in another"),
        pytest.param("a: &a {x: 1}\nb: {x: 3, <<: *a}", {"a": {"x": 1}, "b": {"x": 3}}, id="its own keys count"),
        pytest.param(
            "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}",
            {"a": {"x": 1}, "b": {"x": 2, "y": 2}, "c": {"x": 1, "y": 2}},
            id="of several maps the first counts",
        ),
        pytest.param("'<<': &a 1\nb: *a", {"<<": 1, "b": 1}, id="a quoted key is a key like any"),
    ],
)
def test_anchors_are_read_as_by_kubernetes(text: str, fits: Raw) -> None:
    assert read_documents(text) == [fits]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a: &a [*a]", "more than 64 levels are not read", id="of itself"),
        pytest.param("a: &a 1\n---\nb: *a", "line 3: found undefined alias", id="of another"),
        pytest.param("a: &a 1\nb: {<<: *a}", "line 2: << takes maps only", id="no map"),
        pytest.param("a: !!set {x}", "line 1: could not determine a constructor", id="what JSON has not"),
        pytest.param(
            f"a: &a {{{', '.join(f'k{at}: 1' for at in range(9000))}}}\nb: {{<<: [{', '.join(['*a'] * 9)}]}}",
            "aliases repeat more than 65536 values",
            id="a large map again and again",
        ),
        pytest.param(
            "\n".join(["a0: &a0 [1, 1]", *(f"a{at + 1}: &a{at + 1} [*a{at}, *a{at}]" for at in range(40))]),
            "aliases repeat more than 65536 values",
            id="few lines that mean billions",
        ),
        pytest.param(
            "\n".join(["a0: &a0 [1]", *(f"a{at + 1}: &a{at + 1} [*a{at}]" for at in range(70))]),
            "more than 64 levels are not read",
            id="ever deeper",
        ),
    ],
)
def test_anchors_that_cannot_be_read_are_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_documents(text)


# --- what cannot be asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "query", "said"),
    [
        pytest.param("", "", "there is no object in the body; Serried reads Job, JobSet", id="nothing"),
        pytest.param("a: [", "", "it is not YAML: line", id="no YAML"),
        pytest.param("- " * 100, "", "more than 64 levels are not read", id="too deep"),
        pytest.param("[" * 250_000, "", "more than 64 levels are not read", id="far too deep"),
        pytest.param("[" * 1020 + "]" * 1020, "", "more than 64 levels are not read", id="too deep, as JSON"),
        pytest.param(
            yaml.safe_dump(named("Service", "v1")),
            "",
            "no object in the body makes pods; Serried reads Job, JobSet",
            id="nothing that makes pods",
        ),
        pytest.param(
            yaml.safe_dump_all([training(1, name=f"j{at}") for at in range(60)]),
            "",
            "there are 60 gangs; ask for at most 50",
            id="too many gangs",
        ),
        pytest.param("", "drain=n9", "there is no node n9; see /debug/nodes", id="an unknown node"),
        pytest.param("", "add=n1", "add is NUMBER*NODE, such as 4*node-7, not 'n1'", id="no number"),
        pytest.param("", "add=5000*n1", "with a number from 1 to 1000", id="too many nodes"),
        pytest.param("", "remove=default/x", "there is no group default/x; see /debug/groups", id="an unknown gang"),
        pytest.param("", "group=default/x", "no group default/x is known", id="an unknown group"),
        pytest.param("", "group=x", "a group is NAMESPACE/NAME", id="a group without namespace"),
    ],
)
async def test_what_cannot_be_asked_is_told_with_what_to_do(
    world: Harness, asking: Asking, body: str, query: str, said: str
) -> None:
    world.add(*small_nodes(1))
    answer = await asking.post(body, query)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param("kind: Job\nmetadata: {name: j}", "spec is missing", id="a Job without a spec"),
        pytest.param("just text", "document 1 is no manifest: it has no kind", id="a text"),
        pytest.param("kind: Job", "document 1, Job: metadata.name is missing", id="no name"),
        pytest.param(
            yaml.safe_dump({"kind": "Deployment", "metadata": {"name": "web"}}),
            "document 1, Deployment default/web: Serried does not read this kind; send the pods that it makes",
            id="another kind",
        ),
        pytest.param(
            yaml.safe_dump(named("PyTorchJob", "kubeflow.org/v1")),
            "PyTorchJob default/x: Serried does not read this kind; send the pods that it makes, or their Job, as "
            "kubectl get -o yaml shows them, with their PodGroup; or ask for a gang that exists by its name",
            id="a kind whose operator makes the pods",
        ),
        pytest.param(
            yaml.safe_dump(named("Service", "serving.knative.dev/v1")),
            "document 1, Service default/x: Serried does not read this kind; send the pods that it makes",
            id="a kind that makes pods though its namesake makes none",
        ),
        pytest.param(
            yaml.safe_dump_all([named("StatefulSet", "apps/v1"), training(2)]),
            "document 1, StatefulSet default/x: Serried does not read this kind",
            id="a kind that makes pods, beside others",
        ),
        pytest.param(
            yaml.safe_dump(training(2) | {"spec": {"parallelism": "two"}}),
            "document 1, Job default/train: parallelism is not an integer",
            id="a field of the wrong type",
        ),
        pytest.param(
            yaml.safe_dump_all([training(2), training(2)]),
            "document 2, Job default/train: there is another one of this name; send it once",
            id="the same twice",
        ),
        pytest.param(
            yaml.safe_dump(training(2, schedulerName="default-scheduler")),
            "schedulerName is default-scheduler, which Serried does not serve; it has to be serried",
            id="another scheduler",
        ),
        pytest.param(
            yaml.safe_dump(training(2, priorityClassName="none")),
            "PriorityClass none does not exist; create it, or name another one",
            id="an unknown class",
        ),
        pytest.param(
            yaml.safe_dump(raw(pod_group("g").gang(2), "PodGroup")),
            "PodGroup default/g has no pods here, and none exist; send its pods",
            id="a group without pods",
        ),
        pytest.param(
            yaml.safe_dump(raw(members(1)[0], "Pod", "v1")),
            "pod m0 names PodGroup default/g, which does not exist; send it, too",
            id="pods without their group",
        ),
        pytest.param(
            yaml.safe_dump(raw(workload("w").for_job("j").gang_template("t", 2), "Workload")),
            "Workload default/w: Serried cannot tell which pods it has; send its Job with it",
            id="a Workload alone",
        ),
        pytest.param(
            yaml.safe_dump(training(2) | {"apiVersion": "batch.volcano.sh/v1alpha1"}),
            "Job default/train, of batch.volcano.sh/v1alpha1: Serried does not read this kind",
            id="a Job of Volcano",
        ),
        pytest.param(
            yaml.safe_dump(raw(pod_group("g").gang(2), "PodGroup", "scheduling.volcano.sh/v1beta1")),
            "PodGroup default/g, of scheduling.volcano.sh/v1beta1: Serried does not read this kind",
            id="a PodGroup of Volcano",
        ),
        pytest.param(
            yaml.safe_dump(named("Workload", "kueue.x-k8s.io/v1beta1")),
            "Workload default/x, of kueue.x-k8s.io/v1beta1: Serried does not read this kind",
            id="a Workload of Kueue",
        ),
        pytest.param(
            yaml.safe_dump(training(2) | {"apiVersion": "batch/v2"}),
            "Job default/train: batch/v2 is not read here; this kind is read as batch/v1",
            id="another version",
        ),
        pytest.param(
            yaml.safe_dump(raw(pod_group("g").gang(2), "PodGroup", "scheduling.k8s.io/v1alpha2")),
            "scheduling.k8s.io/v1alpha2 is not read here; this kind is read as scheduling.k8s.io/v1, ",
            id="a version that this cluster has not",
        ),
        pytest.param(
            yaml.safe_dump(
                raw(job_set("s").gang_policy().replicated("w").with_field({}, "spec", "scheduling"), "JobSet", JOB_SETS)
            ),
            "its own controller creates a Workload and PodGroups from spec.scheduling",
            id="a JobSet that says it in its own words",
        ),
        pytest.param(
            yaml.safe_dump(
                training(2) | {"metadata": {"name": "train", "annotations": {f"{REQUIRED_TOPOLOGY[:-2]}yg": RACK}}}
            ),
            f"did you mean the annotation {REQUIRED_TOPOLOGY} of the Job?",
            id="an annotation that nothing reads",
        ),
        pytest.param(yaml.safe_dump(training(20_000)), "there are more than 10000 pods", id="too many pods"),
    ],
)
async def test_what_is_refused_is_told_with_what_to_do_and_the_others_are_answered(
    world: Harness, asking: Asking, body: str, said: str
) -> None:
    world.add(*small_nodes(4))
    alone = (await asking.post(body)).json()
    answer = (await asking.post(f"{body}\n---\n{yaml.safe_dump(training(3, name='beside'))}")).json()
    assert said in alone["refused"][0]
    assert (alone["fits"], answer["fits"], answer["refused"]) == (False, False, alone["refused"])
    assert {"source": "Job default/beside", "outcome": "Fits"}.items() <= answer["groups"][-1].items()


async def test_a_body_may_not_be_larger_than_it_need_be(asking: Asking) -> None:
    assert (await asking.post(b"#" * 300_000)).status_code == 413
    assert (await asking.post(b"\xff\xfe")).status_code == 400


async def test_who_goes_away_within_a_body_leaves_no_error(asking: Asking) -> None:
    part = {"type": "http.request", "body": b"kind: Jo", "more_body": True}
    events = iter((part, {"type": "http.disconnect"}))
    answers: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return next(events)

    async def send(answer: MutableMapping[str, Any]) -> None:
        answers.append(answer)

    scope = {"type": "http", "method": "POST", "path": "/whatif", "query_string": b"", "headers": []}
    await asking.app(scope, receive, send)
    assert answers[0]["status"] == 400


async def test_one_question_is_answered_at_a_time(world: Harness) -> None:
    app = FastAPI()
    app.include_router(whatif_routes(world.add(*small_nodes(1)).core))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        asked = [http.post("/whatif", content=yaml.safe_dump(training(1))) for _ in range(2)]
        first, second = await asyncio.gather(*asked)
        assert (second.status_code, second.headers["Retry-After"]) == (429, "1")
        assert first.status_code == 200


# --- nothing is touched ----------------------------------------------------------------------------------------------


async def test_nothing_is_changed_or_written(world: Harness, asking: Asking) -> None:
    runs = [pod(f"r{at}").cpu(1).scheduler(SCHEDULER).in_group("run").on("n1") for at in range(2)]
    world.add(*small_nodes(2), pod_group("run").gang(2), *runs, priority_class("high", 100))
    await world.add(pod_group("g").gang(2), *members(2)).run_until_idle()
    await world.add(
        pod_group("late").gang(9), pod("late-0").cpu(1).scheduler(SCHEDULER).in_group("late")
    ).run_until_idle()
    before = remember(world)
    rule = {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}}
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [{**rule, "topologyKey": RACK}]}
    gangs = [
        training(2, priorityClassName="high"),
        training(9, cpu=2, name="large"),
        training(2, name="apart", affinity={"podAntiAffinity": apart}),
    ]
    for query in (
        "",
        "remove=default/run",
        "drain=n1&add=3*n2",
        "group=default/g",
        "remove=default/g&group=default/run",
    ):
        await asking.ask(*gangs, query=query)
    assert remember(world) == before


_FACETS = ("occupancy", "vacancies", "members")


def remember(world: Harness) -> Any:
    """Return all state of the Store, its facets and the parts that decide, and every call that was made."""
    store = read_memory(world.store)
    facets = {name: read_memory(part) for name, part in store.items() if hasattr(part, "__dict__")}
    plain = {name: part for name, part in store.items() if not hasattr(part, "__dict__")}
    kept = {name: deepcopy_plain(facets[name]) for name in _FACETS}
    kept |= {type(rule).__name__: deepcopy_plain(read_memory(rule)) for rule in world.store.all_rules}
    states = {
        key: (state.verdict, state.entry.retry_at, state.entry.last_input) for key, state in world.groups.states.items()
    }
    ledger = [(each.group, dict(each.slots)) for each in world.ledger]
    head = world.core.backfill.head
    return (
        {name: dict(part) for name, part in plain.items() if isinstance(part, dict)},
        kept,
        states,
        ledger,
        list(world.queue.unschedulable),
        None if head is None else (head.group, head.until, dict(head.passed)),
        len(world.api.calls),
        world.core.outbox.drain(),
    )


def deepcopy_plain(memory: Raw) -> Raw:
    return {name: deepcopy(part) for name, part in memory.items() if isinstance(part, dict | list | int)}
