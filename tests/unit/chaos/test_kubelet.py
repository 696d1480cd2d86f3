"""The kubelets of the soak: whom they refuse, and how they say so."""

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.chaos.kubelet import Kubelets, Refusal, find_lacking
from tests.chaos.objects import Node, Pod

NODE = Node("n", {}, 4000, 3, admits=True)


def pod(name: str, milli_cpu: int = 1000, *, ended: bool = False) -> Pod:
    return Pod(
        uid=f"{name}-uid",
        name=("ns", name),
        group=None,
        node="n",
        ours=True,
        ended=ended,
        deleting=False,
        gated=False,
        milli_cpu=milli_cpu,
        nominated="",
    )


def refuse(milli_cpu: int = 1000) -> Refusal:
    resource, text = find_lacking(pod("late", milli_cpu), NODE, [pod("a", 3500)]) or ("", "")
    return Refusal(pod("late"), 0.0, resource, text, contested=False)


@pytest.mark.parametrize(
    ("asked", "there", "lacks"),
    [
        pytest.param(1000, (1000, 2000), "", id="it fits exactly"),
        pytest.param(1001, (1000, 2000), "cpu", id="a thousandth too much"),
        pytest.param(10, (10, 10, 10), "pods", id="one pod too many"),
        pytest.param(4001, (), "cpu", id="alone, and too large"),
    ],
)
def test_a_node_takes_a_pod_beside_those_that_are_there(asked: int, there: tuple[int, ...], lacks: str) -> None:
    others = [pod(str(number), milli) for number, milli in enumerate(there)]
    found = find_lacking(pod("late", asked), NODE, others)
    assert (found[0] if found else "") == lacks


def test_it_says_so_as_a_kubelet_does() -> None:
    status = refuse().describe_status()["status"]
    text = "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 3500, capacity: 4000"
    assert status == {"phase": "Failed", "reason": "OutOfcpu", "message": text}


class Answers:
    """An API server that notes patches, answers the first one with an error, and shows the pod ended by the second."""

    def __init__(self) -> None:
        self.patched: list[tuple[str, dict[str, object]]] = []
        self.pods = {("ns", "late"): pod("late")}
        self.ended = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.patched.append((request.path, await request.json()))
        if len(self.patched) == 1:
            return web.Response(status=503)
        self.pods["ns", "late"] = replace(self.pods["ns", "late"], ended=True)
        self.ended.set()
        return web.json_response({})


async def test_who_is_refused_is_failed_however_long_it_takes_and_then_no_more() -> None:
    answers = Answers()
    refused = {"late-uid": refuse(), "gone-uid": replace(refuse(), pod=pod("gone"))}
    app = web.Application()
    app.router.add_patch("/{path:.*}", answers.answer)
    async with TestServer(app) as server, aiohttp.ClientSession(str(server.make_url("/"))) as session:
        task = asyncio.create_task(Kubelets(refused, answers.pods).run(session))
        await asyncio.wait_for(answers.ended.wait(), 10)
        await asyncio.sleep(0.1)
        task.cancel()
    assert [path for path, _ in answers.patched] == ["/api/v1/namespaces/ns/pods/late/status"] * 2
    assert answers.patched[0][1]["metadata"] == {"uid": "late-uid"}
