"""``serried whatif`` has the API server try the pods first: what it makes of them is what is asked about."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.admission import admit
from cli.target import Target
from tests.support.commands import Ended, Run
from tests.support.pod_proxy import PodProxy
from tests.unit.cli.test_whatif import answer, prediction

Raw = dict[str, Any]

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PODS = "/api/v1/namespaces/team/pods"
QUOTAS = "/api/v1/namespaces/team/resourcequotas"
ADMITTED = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}], "overhead": {"cpu": "250m"}}
ALL_REST = "defaults, LimitRanges, RuntimeClasses, quotas and admission in namespace team: "


def job(name: str = "train", pods: int = 4, **spec: Any) -> Raw:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main"}], "nodeName": "n1"}}
    made = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": made}


def refuse(message: str, code: int = 403, reason: str = "Forbidden") -> Raw:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


class Server:
    """An API server that admits pods, unless a test changes that."""

    def __init__(self, proxy: PodProxy, run: Run, directory: Path) -> None:
        self.proxy = proxy
        self._run = run
        self._path = directory / "manifests.yaml"
        answer(proxy, "whatif", prediction("Fits"))
        proxy.answer(REVIEWS, {"kind": "SelfSubjectAccessReview", "status": {"allowed": True}})
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x", "labels": {"app": "a", "by": "webhook"}}}
        proxy.answer(PODS, {**pod, "spec": ADMITTED})
        self.limit()

    def limit(self, **hard: str) -> None:
        names = {name.replace("_", "."): amount for name, amount in hard.items()}
        quota = {"metadata": {"name": "team"}, "spec": {"hard": names}, "status": {"hard": names}}
        self.proxy.answer(
            QUOTAS,
            {"kind": "ResourceQuotaList", "metadata": {"resourceVersion": "1"}, "items": [quota] if hard else []},
        )

    def ask(self, *objects: Raw) -> Ended:
        self._path.write_text(yaml.safe_dump_all(objects))
        return self._run("whatif", str(self._path), "-n", "team", "-o", "json")

    def asked(self) -> list[Any]:
        """Return the bodies of the what-if requests to the extender."""
        return self.list_bodies("debug/whatif")

    def list_bodies(self, part: str) -> list[Any]:
        """Return the bodies of the requests whose path and query contain this part."""
        pairs = zip(self.proxy.asked, self.proxy.bodies, strict=True)
        return [json.loads(body) for target, body in pairs if part in target]


@pytest.fixture
def server(proxy: PodProxy, run: Run, tmp_path: Path) -> Server:
    return Server(proxy, run, tmp_path)


def test_the_extender_is_asked_about_pods_as_they_are_admitted(server: Server) -> None:
    ended = server.ask(job())
    assert (ended.code, json.loads(ended.out)["unchecked"]) == (0, [])
    (tried,) = [
        json.loads(body)
        for target, body in zip(server.proxy.asked, server.proxy.bodies, strict=True)
        if target == f"{PODS}?dryRun=All"
    ]
    assert tried["metadata"] == {"labels": {"app": "a"}, "generateName": "whatif-"}
    assert "nodeName" not in tried["spec"]
    ((sent,),) = server.asked()
    assert sent["spec"]["template"] == {"metadata": {"labels": {"app": "a", "by": "webhook"}}, "spec": ADMITTED}
    assert sent["spec"]["parallelism"] == 4


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(403, 'pods "whatif-x" is forbidden: exceeded quota: team', id="by quota or LimitRange"),
        pytest.param(422, 'Pod "whatif-x" is invalid: spec.containers: Required value', id="as it is no valid pod"),
        pytest.param(400, 'admission webhook "w" denied the request: no', id="by a webhook"),
    ],
)
def test_what_the_api_server_refuses_is_told_in_its_words_and_nobody_else_is_asked(
    server: Server, status: int, message: str
) -> None:
    server.proxy.answer(PODS, refuse(message, status), status)
    ended = server.ask(job())
    assert (ended.code, server.asked()) == (1, [])
    said = json.loads(ended.out)
    assert (said["fits"], said["groups"]) == (False, [])
    assert said["refused"] == [f"Job team/train: the API server would reject its pods: {message}"]


@pytest.mark.parametrize(
    ("path", "document", "status", "said"),
    [
        pytest.param(
            REVIEWS,
            {"kind": "SelfSubjectAccessReview", "status": {"allowed": False}},
            200,
            "this needs the right to create pods in the namespace",
            id="who may not create pods",
        ),
        pytest.param(REVIEWS, refuse("no"), 403, "no", id="who may not ask for that"),
        pytest.param(PODS, refuse('namespaces "team" not found', 404, "NotFound"), 404, "not found", id="no namespace"),
        pytest.param(
            PODS,
            refuse('admission webhook "w" does not support dry run', 400),
            400,
            "dry run",
            id="a webhook that cannot",
        ),
        pytest.param(
            PODS,
            refuse('pods "x" is forbidden: error looking up service account team/own: serviceaccount "own" not found'),
            403,
            "these manifests create own",
            id="pods need what comes with them",
        ),
    ],
)
def test_what_cannot_be_tried_is_asked_as_it_is_written_and_that_is_told(
    server: Server, path: str, document: Raw, status: int, said: str
) -> None:
    server.proxy.answer(path, document, status)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "own"}}
    ended = server.ask(account, job())
    assert ended.code == 0
    (unchecked,) = json.loads(ended.out)["unchecked"]
    assert unchecked.startswith(ALL_REST)
    assert said in unchecked
    assert server.asked() == [[account, job()]]


async def test_without_credentials_nothing_is_tried_and_that_is_told(tmp_path: Path) -> None:
    found = await admit(Target(server="http://extender", kubeconfig=str(tmp_path / "none")), [job()], "team")
    assert (found.objects, found.refused) == ([job()], [])
    assert found.unchecked[0].startswith("defaults, LimitRanges, RuntimeClasses, quotas and admission: ")


# --- more than one pod -----------------------------------------------------------------------------------------------


def test_a_quota_has_room_for_all_pods_or_the_manifest_is_refused_and_the_next_finds_what_is_left(
    server: Server,
) -> None:
    server.limit(requests_cpu="10")  # each pod has 1250m
    ended = server.ask(job("a", 5), job("b", 4), job("c", 3))
    said = json.loads(ended.out)
    (refused,) = said["refused"]
    assert refused.endswith(
        "document 2, Job team/b: quota team has 3.75 of 10 requests.cpu left, and its 4 pods need 5"
    )
    (sent,) = server.asked()
    assert [each and each["metadata"]["name"] for each in sent] == ["a", None, "c"]


def test_a_gang_for_which_fewer_pods_are_enough_needs_no_more(server: Server) -> None:
    server.limit(pods="3")
    elastic = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    said = json.loads(server.ask(job(scheduling=elastic)).out)
    assert said["refused"] == []
    (unchecked,) = said["unchecked"]
    assert unchecked.startswith("whether all pods can be created: quota team has 3 of 3 pods left, and its 4 pods")
    assert unchecked.endswith("the quota suffices for minCount pods")


CLAIM_TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"


def claiming(server: Server, *templates: str) -> Raw:
    """A Job whose pods, as they are admitted, have claims from these templates."""
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in templates]
    server.proxy.answer(
        PODS, {"kind": "Pod", "metadata": {"name": "x"}, "spec": {**ADMITTED, "resourceClaims": claims}}
    )
    return job()


def test_claim_templates_that_exist_are_sent_with_the_question(server: Server) -> None:
    spec: Raw = {"spec": {"devices": {"requests": []}}}
    server.proxy.answer(f"{CLAIM_TEMPLATES}/one", {"kind": "ResourceClaimTemplate", "metadata": {}, "spec": spec})
    sent = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "two"}}
    server.proxy.answer(f"{CLAIM_TEMPLATES}/gone", refuse("there is none", 404, "NotFound"), 404)
    server.proxy.answer(f"{CLAIM_TEMPLATES}/hidden", refuse("you may not"), 403)
    ended = server.ask(claiming(server, "one", "two", "gone", "hidden"), sent)
    (asked,) = server.asked()
    assert [each["metadata"]["name"] for each in asked] == ["train", "two", "one"]
    assert asked[-1]["spec"] == spec
    assert json.loads(ended.out)["unchecked"] == [
        "devices of ResourceClaimTemplate hidden in namespace team: you may not"
    ]


def test_quotas_that_may_not_be_seen_are_told(server: Server) -> None:
    server.proxy.answer(QUOTAS, refuse("you may not list them"), 403)
    assert json.loads(server.ask(job()).out)["unchecked"] == [
        "quotas in namespace team for more than one pod: you may not list them"
    ]


POD_TEMPLATE = {"spec": {"containers": [{"name": "main"}]}}
REPLICATED = {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": POD_TEMPLATE}}}


@pytest.mark.parametrize(
    ("api", "kind", "spec", "pods", "tries"),
    [
        pytest.param("v1", "Pod", POD_TEMPLATE["spec"], 1, 1, id="a pod"),
        pytest.param(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [REPLICATED, {**REPLICATED, "name": "d", "replicas": 1}]},
            9,
            2,
            id="a JobSet",
        ),
        pytest.param(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": POD_TEMPLATE}},
            8,
            1,
            id="a LeaderWorkerSet",
        ),
        pytest.param(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"size": 4, "leaderTemplate": POD_TEMPLATE, "workerTemplate": POD_TEMPLATE}},
            4,
            2,
            id="one with a leader of its own",
        ),
    ],
)
def test_each_template_is_tried_and_all_its_pods_are_counted(
    server: Server, api: str, kind: str, spec: Raw, pods: int, tries: int
) -> None:
    obj = {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    server.limit(pods=str(pods))
    assert server.ask(obj).code == 0
    assert server.proxy.asked.count(f"{PODS}?dryRun=All") == tries
    assert json.dumps(server.asked()).count('"overhead"') == tries
    server.limit(pods=str(pods - 1))
    assert json.loads(server.ask(obj).out)["refused"] == [
        f"{kind} team/x: quota team has {pods - 1} of {pods - 1} pods left, and its {pods} pods need {pods}"
    ]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}, id="what makes no pods"),
        pytest.param({**job(), "apiVersion": "batch.volcano.sh/v1alpha1"}, id="a kind that is not read"),
        pytest.param({**job(), "spec": {"parallelism": "two"}}, id="a mistake"),
        pytest.param({**job(), "spec": {}}, id="no template"),
        pytest.param({**job(), "metadata": "none"}, id="no metadata"),
        pytest.param({"kind": "Job"}, id="next to nothing"),
    ],
)
def test_what_has_no_pods_to_try_is_left_to_the_extender(server: Server, obj: Raw) -> None:
    server.ask(obj)
    assert server.asked() == [[obj]]
    assert f"{PODS}?dryRun=All" not in server.proxy.asked
