"""Bad input to every verb and route of a running extender: a clear error, no traceback, nothing reserved."""

import json
from typing import Any

import httpx
import pytest

from tests.support.cluster_stage import SCHEDULER, ClusterStage

pytestmark = pytest.mark.e2e

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"schedulerName": SCHEDULER, "containers": [{"name": "c"}]},
}
VERBS = ["filter", "prioritize", "preempt", "bind"]


def url(stage: ClusterStage, verb: str) -> str:
    return f"{stage.cluster.bind_url if verb == 'bind' else stage.cluster.filter_url}/{verb}"


def post(stage: ClusterStage, verb: str, body: bytes | object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url(stage, verb), content=content, timeout=20.0)


BAD: dict[str, tuple[bytes | object, str]] = {
    "an empty body": (b"", "not JSON"),
    "half an object": (b"{", "not JSON"),
    "no UTF-8": (b"\xff\xfe", "not JSON"),
    "a list": ([], "JSON object"),
    "wrong types": ({"Pod": 7, "NodeNames": ["n"], "PodName": 7}, "must be"),
    "10 MB": (b"x" * 10_000_000, "larger than"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_bad_body_gets_a_clear_error_in_the_protocols_form(stage: ClusterStage, verb: str) -> None:
    for name, (body, said) in BAD.items():
        answer = post(stage, verb, body)
        assert answer.status_code == (200 if verb in ("filter", "bind") else 400), name
        assert said in answer.json()["Error"], name
        assert f"serried {verb}:" in answer.json()["Error"], name
        assert "Traceback" not in answer.text, name
    assert not stage.held_in_ledger()


def test_nodes_nobody_knows_are_passed_on_for_a_plain_pod_and_refused_for_a_member(stage: ClusterStage) -> None:
    assert post(stage, "filter", {"Pod": POD, "NodeNames": ["nowhere"]}).json() == {"NodeNames": ["nowhere"]}

    member = POD | {"metadata": POD["metadata"] | {"labels": {"scheduling.serried.dev/pod-group": "nobody"}}}
    answer = post(stage, "filter", {"Pod": member, "NodeNames": ["nowhere"]}).json()
    assert answer["NodeNames"] == []
    assert "Serried holds this pod" in answer["FailedAndUnresolvableNodes"]["nowhere"]
    assert not stage.held_in_ledger()


def test_full_nodes_instead_of_names_are_told_how_to_configure_the_scheduler(stage: ClusterStage) -> None:
    answer = post(stage, "filter", {"Pod": POD, "Nodes": {"items": []}, "NodeNames": None})
    assert "nodeCacheCapable" in answer.json()["Error"]


def test_a_binding_of_an_unknown_pod_is_an_error(stage: ClusterStage) -> None:
    request = {"PodName": "nobody", "PodNamespace": stage.namespace, "PodUID": "u", "Node": "node-00000"}
    assert "does not exist" in post(stage, "bind", request).json()["Error"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        pytest.param("/groups/default/nobody", 404, "no PodGroup default/nobody is known", id="an unknown group"),
        pytest.param("/nodes?limit=many", 422, "integer", id="a limit that is no number"),
        pytest.param("/nothing", 404, "Not Found", id="an unknown page"),
    ],
)
def test_a_bad_question_to_debug_gets_a_clear_answer(stage: ClusterStage, path: str, status: int, said: str) -> None:
    answer = httpx.get(stage.cluster.debug_url + path)
    assert answer.status_code == status
    assert said in answer.text


def test_a_verb_answers_only_to_post(stage: ClusterStage) -> None:
    assert httpx.get(url(stage, "filter")).status_code == 405
