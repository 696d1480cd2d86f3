"""With a kubeconfig one finds out why a gang waits, who is before it, how full the racks are, and what is wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from serried import __version__
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names
from tests.support.commands import Ended, Run
from tests.support.pod_proxy import KUBECONFIG, PodProxy, extender_pod

pytestmark = pytest.mark.e2e

PROXY = "/api/v1/namespaces/serried-system/pods/https:serried-0:8912/proxy"
POLICY = "serried-pod-group-label"


def await_no(run: Callable[[], Ended]) -> Ended:
    """Run the command until its exit code is 1. Return that result."""
    return eventually("a check that finds something", lambda: ended if (ended := run()).code == 1 else None)


def wait_in_vain(stage: ClusterStage) -> None:
    """A gang that wants five whole nodes in a rack of three."""
    stage.create_group("ring", 5, RACK)
    stage.create_pods(names("ring", 5), "ring", cpu="30")
    stage.await_reason("ring", "NoDomainFits")


def test_kubectl_says_why_a_gang_waits_and_what_each_rack_lacks(stage: ClusterStage, kubectl: Run) -> None:
    wait_in_vain(stage)
    server = stage.cluster.ops_url
    ended = kubectl("explain", "podgroup/ring", "-n", stage.namespace, "--server", server)
    assert ended.code == 0, ended.err
    for said in ("NoDomainFits", "gang of 5", "3 of 5", "ask for less, or for one domain of a wider level", "ring-4"):
        assert said in ended.out, ended.out
    by_pod = kubectl("explain", "pod/ring-0", "-n", stage.namespace, "--server", server, "-o", "json")
    (group,) = json.loads(by_pod.out)
    assert (group["name"], group["reason"]) == ("ring", "NoDomainFits")
    assert group["diagnosis"]["advice"] is not None


def test_gangs_queue_and_decisions_name_it(stage: ClusterStage, serried: Run) -> None:
    wait_in_vain(stage)
    server = {"SERRIED_SERVER": stage.cluster.ops_url}
    assert re.search(rf"{stage.namespace} +ring .*NoDomainFits", serried("queue", "-A", **server).out)
    assert re.search(
        r"^ *1 .* ring .*NoDomainFits", serried("queue", "-n", stage.namespace, **server).out, re.MULTILINE
    )
    waiting = serried("gangs", "-n", stage.namespace, "--state", "waiting", **server).out
    assert re.search(rf"^{stage.namespace} +ring +Waiting +0/5 .*NoDomainFits", waiting, re.MULTILINE)
    assert serried("gangs", "-n", stage.namespace, "--state", "running", "-o", "name", **server).out == ""
    for name in ("ring", "podgroup/ring", f"{stage.namespace}/ring"):
        said = serried("decisions", "--group", name, "-n", stage.namespace, **server)
        assert (said.code, "do not fit into any domain of" in said.out) == (0, True), said.err


def test_a_gang_is_called_as_its_job_is(stage: ClusterStage, serried: Run, kubectl: Run) -> None:
    stage.create_job("train", 5, "30", RACK)
    stage.await_reason(stage.group_of_job("train"), "NoDomainFits")
    where = ("-n", stage.namespace, "--server", stage.cluster.ops_url)
    for words in (["job/train"], ["job", "train"], ["train"]):
        ended = kubectl("explain", *words, *where)
        assert (ended.code, "NoDomainFits" in ended.out) == (0, True), ended.err
    assert serried("queue", *where, "-o", "name").out == "job/train\n"
    assert "job/train" in serried("decisions", *where).out
    assert serried("decisions", *where, "--group", "train").code == 0
    foretold = serried("whatif", *where, "--group", "job/train")
    assert (foretold.code, f"{stage.namespace}/job/train " in foretold.out) == (1, True), foretold.err
    unknown = serried("decisions", *where, "--group", "one-rack")
    assert (unknown.code, f"belongs to one, in namespace {stage.namespace}" in unknown.err) == (4, True)


def test_the_racks_show_who_has_taken_what(stage: ClusterStage, serried: Run) -> None:
    stage.create_group("ring", 3, RACK)
    stage.create_pods(names("ring", 3), "ring", cpu="30")
    stage.await_bound("ring", 3)
    found = json.loads(serried("top", "--key", RACK, "-o", "json", SERRIED_SERVER=stage.cluster.ops_url).out)
    assert len(found["domains"]) == 4
    (rack,) = [each for each in found["domains"] if each["groups"]]
    assert {rack["domain"]} == stage.racks("ring")
    assert rack["resources"]["cpu"] == {"allocatable": 96_000, "used": 90_000}


def test_a_name_that_leads_nowhere_is_not_found(stage: ClusterStage, kubectl: Run) -> None:
    ended = kubectl("explain", "job/nothing", "-n", stage.namespace, "--server", stage.cluster.ops_url)
    assert ended.code == 4
    assert f"no job {stage.namespace}/nothing is known" in ended.err


def test_no_port_forward_is_needed_where_the_api_server_reaches_the_pod(
    stage: ClusterStage, serried: Run, tmp_path: Path
) -> None:
    """The nodes here have no kubelet, so another server stands for an API server that reaches pods."""
    wait_in_vain(stage)
    kubeconfig = tmp_path / "kubeconfig"
    with PodProxy([extender_pod("serried-0")], {PROXY: stage.cluster.ops_url}) as proxy:
        kubeconfig.write_text(KUBECONFIG.format(url=proxy.url))
        ended = serried("explain", "podgroup/ring", "-n", stage.namespace, "--kubeconfig", str(kubeconfig))
    assert (ended.code, "NoDomainFits" in ended.out) == (0, True), ended.err


def test_without_a_pod_it_is_said_what_was_looked_for(kubectl: Run) -> None:
    ended = kubectl("queue")
    assert ended.code == 3
    assert "no pod with the labels app.kubernetes.io/name=serried" in ended.err


def test_the_shipped_installation_is_sound_and_a_policy_that_is_gone_is_missed(
    stage: ClusterStage, serried: Run
) -> None:
    config = stage.cluster.kubectl_program.parent / "scheduler.yaml"
    arguments = ("check", "--server", stage.cluster.ops_url, "--scheduler-config", str(config), "-o", "json")
    sound = serried(*arguments)
    assert (sound.code, _find_faults(sound)) == (0, []), sound.out + sound.err
    binding = f"validatingadmissionpolicybinding/{POLICY}"
    kept = stage.cluster.kubectl("get", binding, "-o", "json")
    stage.cluster.kubectl("delete", binding)
    try:
        missing = await_no(lambda: serried(*arguments, "--fail-on", "warning"))
    finally:
        stage.cluster.api.post("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", _anew(kept))
    assert _find_faults(missing) == [POLICY]


def _find_faults(ended: Ended) -> list[str]:
    """Return the places of the errors and warnings; notes name nothing that is wrong."""
    return [each["where"] for each in json.loads(ended.out) if each["severity"] != "note"]


def test_a_crd_of_an_older_release_is_an_error(stage: ClusterStage, serried: Run) -> None:
    definition, label = "crd/reservations.scheduling.serried.dev", "app.kubernetes.io/version"
    arguments = ("check", "--only", "extender", "--server", stage.cluster.ops_url, "-o", "json")
    stage.cluster.kubectl("label", definition, f"{label}=0.0.1", "--overwrite")
    try:
        old = serried(*arguments)
    finally:
        stage.cluster.kubectl("label", definition, f"{label}={__version__}", "--overwrite")
    (finding,) = json.loads(old.out)
    assert (old.code, finding["where"]) == (1, "CRD reservations.scheduling.serried.dev")
    assert f"its release is 0.0.1, not {__version__}" in finding["what"]


def test_a_right_that_is_taken_away_is_missed(stage: ClusterStage, serried: Run) -> None:
    binding = "clusterrolebinding/serried-controller"
    kept = stage.cluster.kubectl("get", binding, "-o", "json")
    stage.cluster.kubectl("delete", binding)
    try:
        # The API server's own cache of roles follows a moment later.
        missing = await_no(
            lambda: serried("check", "--only", "rights", "--server", stage.cluster.ops_url, "-o", "json")
        )
    finally:
        stage.cluster.api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _anew(kept))
    found = json.loads(missing.out)
    assert {finding["where"] for finding in found} == {"ServiceAccount serried-controller"}
    assert any("no Job becomes a gang" in finding["what"] for finding in found)


def test_a_webhook_that_nobody_answers_for_is_named(stage: ClusterStage, serried: Run) -> None:
    """The webhook selects only namespaces that do not exist, so it stops no other story."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    webhook = {
        "name": "vet.example.com",
        "rules": [rule],
        "clientConfig": {"service": {"namespace": "vet", "name": "vet"}},
        "namespaceSelector": {"matchLabels": {"of": "nobody"}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    stage.cluster.api.post(path, {"metadata": {"name": "vet"}, "webhooks": [webhook]})
    try:
        ended = serried("check", "--only", "cluster", "--server", stage.cluster.ops_url, "-o", "json")
    finally:
        stage.cluster.kubectl("delete", "validatingwebhookconfiguration", "vet")
    (finding,) = [each for each in json.loads(ended.out) if each["where"].endswith("vet.example.com")]
    assert "no pod is ready behind its Service vet/vet" in finding["what"]


def _anew(text: str) -> dict[str, object]:
    """An object as it can be created again."""
    found = json.loads(text)
    found["metadata"] = {"name": found["metadata"]["name"]}
    return dict(found)
