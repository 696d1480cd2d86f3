"""``serried check`` reads of Kueue and autoscalers only what it needs, and says each failure once."""

import json
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from tests.support.checked_clusters import HOME, items, named
from tests.support.commands import Run
from tests.support.installations import RACK, SELFCHECK, ZONE, shipped_installation
from tests.support.pod_proxy import PodProxy

KUEUE = "/apis/kueue.x-k8s.io"
KARPENTER = "/apis/karpenter.sh"
CONFIG = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
STATUS = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
BY_LABEL = "labelSelector=app.kubernetes.io/name=kueue"
GROUPS = "/apis/scheduling.k8s.io/v1beta1"
SETTINGS = {"timeout": "24h", "recoveryTimeout": "1h", "requeuingStrategy": {"timestamp": "Creation"}}
MISSING = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
REFUSED = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "eve cannot"}


def serve(proxy: PodProxy, root: str, version: str) -> None:
    """Have an API group answer in one version."""
    preferred = {"groupVersion": f"{root.rpartition('/')[2]}/{version}", "version": version}
    proxy.answer(root, {"kind": "APIGroup", "versions": [preferred], "preferredVersion": preferred})


def configured(namespace: str = "kueue-system", **fields: Any) -> dict[str, Any]:
    """The ConfigMap with Kueue's configuration."""
    document = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", **fields}
    metadata = {"namespace": namespace, "name": "kueue-manager-config"}
    return {"metadata": metadata, "data": {"controller_manager_config.yaml": yaml.safe_dump(document)}}


@pytest.fixture
def kueue(sound: PodProxy) -> PodProxy:
    """A sound installation beside a Kueue that leaves gangs time, with one queue in the namespace team."""
    serve(sound, KUEUE, "v1beta2")
    sound.answer(CONFIG, configured(waitForPodsReady=SETTINGS))
    sound.answer("/api/v1/configmaps", items())
    flavor, quota = {"metadata": {"name": "gpu"}, "spec": {}}, [{"name": "cpu", "nominalQuota": "8"}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "gpu", "resources": quota}]}]
    sound.answer(f"{KUEUE}/v1beta2/resourceflavors", items(flavor))
    sound.answer(
        f"{KUEUE}/v1beta2/clusterqueues", items({"metadata": {"name": "all"}, "spec": {"resourceGroups": groups}})
    )
    node = {"metadata": {"name": "n", "labels": {RACK: "r"}}, "status": {"allocatable": {"cpu": "8"}}}
    sound.answer("/api/v1/nodes", items(node))
    return sound


def choose_nodes(proxy: PodProxy) -> None:
    """Have Kueue choose the nodes of its queue's workloads; there is a gang that wants its own, and a foreign pod."""
    topology = {"metadata": {"name": "racks"}, "spec": {"levels": [{"nodeLabel": RACK}]}}
    proxy.answer(f"{KUEUE}/v1beta2/topologies", items(topology))
    flavor = {"metadata": {"name": "gpu"}, "spec": {"topologyName": "racks"}}
    proxy.answer(f"{KUEUE}/v1beta2/resourceflavors", items(flavor))
    local = {"metadata": {"namespace": "team", "name": "queue"}, "spec": {"clusterQueue": "all"}}
    proxy.answer(f"{KUEUE}/v1beta2/localqueues", items(local))
    proxy.answer("/api/v1/pods", items({"metadata": {"namespace": "web", "name": "x"}, "spec": {"nodeName": "n"}}))
    labels, asks = {"kueue.x-k8s.io/queue-name": "queue"}, {"scheduling.serried.dev/required-topology": RACK}
    about = {"namespace": "team", "name": "train", "uid": "u1", "labels": labels, "annotations": asks}
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    old = {"metadata": about | {"name": "old"}, "spec": {"parallelism": 4}, "status": ended}
    proxy.answer("/apis/batch/v1/namespaces/team/jobs", items({"metadata": about, "spec": {"parallelism": 4}}, old))
    answer_groups(proxy, ZONE)


def answer_groups(proxy: PodProxy, key: str) -> None:
    """Have the PodGroup and the Workload of a gang require one domain of a key."""
    about = {"namespace": "team", "uid": "u2"}
    asks = {"schedulingPolicy": {"gang": {"minCount": 4}}, "schedulingConstraints": {"topology": [{"key": key}]}}
    group = {"metadata": {**about, "name": "ring"}, "spec": asks}
    workload = {"metadata": {**about, "name": "whole"}, "spec": {"podGroupTemplates": [{"name": "main", **asks}]}}
    broken = {"metadata": {**about, "name": "broken"}, "spec": {"schedulingPolicy": {}}}
    proxy.answer(f"{GROUPS}/podgroups", items(group, broken))
    proxy.answer(f"{GROUPS}/workloads", items(workload, {"metadata": {"namespace": "team"}}))


def find(run: Run, *words: str) -> list[dict[str, str]]:
    """The findings of the command."""
    return list(json.loads(run("check", "-o", "json", *words).out))


def list_asked(proxy: PodProxy, part: str) -> list[str]:
    return [asked for asked in map(unquote, proxy.asked) if part in asked]


def test_a_cluster_without_neighbours_is_asked_three_questions_about_them(sound: PodProxy, run: Run) -> None:
    assert find(run) == []
    about = [asked for asked in sound.asked if asked in {KUEUE, KARPENTER, STATUS}]
    assert sorted(about) == sorted([KUEUE, KARPENTER, STATUS])
    for word in ("kueue", "karpenter"):
        assert len(list_asked(sound, word)) == 1
    assert list_asked(sound, "podgroups?") == list_asked(sound, "/api/v1/pods?") == []


def test_a_kueue_with_the_recommended_settings_is_sound_and_nodes_are_listed_once(kueue: PodProxy, run: Run) -> None:
    assert find(run) == []
    assert len(list_asked(kueue, "/api/v1/nodes?")) == 1
    for word in ("localqueues", "topologies", "/jobs", "podgroups?", "/api/v1/pods?"):
        assert list_asked(kueue, word) == []


def test_nodes_are_listed_for_quotas_where_only_the_cluster_is_checked(kueue: PodProxy, run: Run) -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}}
    kueue.answer("/api/v1/nodes", items(node))
    (finding,) = find(run, "--only", "cluster")
    assert "ClusterQueues all may use 8 of cpu, but its nodes (1) have 4" in finding["what"]


def test_nodes_are_not_listed_where_no_queue_has_a_quota(kueue: PodProxy, run: Run) -> None:
    kueue.answer(f"{KUEUE}/v1beta2/clusterqueues", items())
    assert find(run, "--only", "cluster") == []
    assert list_asked(kueue, "/api/v1/nodes?") == []


def test_other_areas_do_not_read_kueue(kueue: PodProxy, run: Run) -> None:
    assert find(run, "--only", "nodes") == []
    assert list_asked(kueue, "kueue") == []


def test_the_configuration_is_found_by_its_label_elsewhere(kueue: PodProxy, run: Run) -> None:
    kueue.answer(CONFIG, MISSING, status=404)
    kueue.answer("/api/v1/configmaps", items(named("other"), configured("batch", waitForPodsReady={"timeout": "30m"})))
    found = find(run)
    assert {each["where"].partition(": ")[0] for each in found} == {"ConfigMap batch/kueue-manager-config"}
    (asked,) = list_asked(kueue, "/api/v1/configmaps?")
    assert BY_LABEL in asked


@pytest.mark.parametrize(
    ("image", "count"),
    [
        pytest.param("kueue:v0.19.1", 3, id="0.19 waits by default"),
        pytest.param("kueue:v0.18.3", 0, id="0.18 does not"),
    ],
)
def test_the_manager_s_version_decides_about_what_is_not_configured(
    kueue: PodProxy, run: Run, image: str, count: int
) -> None:
    spec = {"template": {"spec": {"containers": [{"image": image}]}}}
    kueue.answer("/apis/apps/v1/deployments", items(named("kueue-controller-manager", spec=spec)))
    kueue.answer(CONFIG, configured())
    assert len(find(run)) == count


def test_users_of_kueue_s_nodes_and_second_owners_are_read_where_it_chooses_nodes(kueue: PodProxy, run: Run) -> None:
    choose_nodes(kueue)
    owners, outsider = sorted(find(run), key=lambda finding: finding["what"])
    assert "Kueue does not manage 1 pod on its nodes (web/x)" in outsider["what"]
    assert "1 Job, 1 PodGroup, 1 Workload of its namespaces require" in owners["what"]
    assert "team/job/train, team/podgroup/ring, team/workload/whole" in owners["what"]
    (pods,) = list_asked(kueue, "/api/v1/pods?")
    assert "fieldSelector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed" in pods


@pytest.mark.parametrize(
    ("path", "unread"),
    [
        pytest.param(CONFIG, "Kueue's configuration", id="the configuration"),
        pytest.param(f"{KUEUE}/v1beta2/resourceflavors", "Kueue's queues and flavors", id="flavors"),
        pytest.param(f"{KUEUE}/v1beta2/clusterqueues", "Kueue's queues and flavors", id="queues"),
        pytest.param("/api/v1/pods", "pods on nodes of Kueue's Topologies", id="pods"),
        pytest.param(
            "/apis/batch/v1/namespaces/team/jobs", "Jobs that Kueue places by a Topology", id="Jobs of a namespace"
        ),
        pytest.param(f"{GROUPS}/podgroups", "the topology that groups require", id="PodGroups"),
        pytest.param(KUEUE, "Kueue", id="its API"),
        pytest.param(KARPENTER, "autoscalers", id="the API of an autoscaler"),
        pytest.param(STATUS, "autoscalers", id="the ConfigMap of an autoscaler"),
    ],
)
def test_what_may_not_be_read_of_neighbours_is_said_once_and_the_rest_is_checked(
    kueue: PodProxy, run: Run, path: str, unread: str
) -> None:
    choose_nodes(kueue)
    kueue.answer(path, REFUSED, status=403)
    found = find(run)
    (unknown,) = [each for each in found if each["severity"] == "unknown"]
    assert (unknown["area"], unknown["where"]) == ("cluster", unread)
    assert "eve cannot" in unknown["what"]


def test_nodes_that_may_not_be_listed_are_said_once(kueue: PodProxy, run: Run) -> None:
    kueue.answer("/api/v1/nodes", REFUSED, status=403)
    for words in ((), ("--only", "cluster")):
        (unknown,) = find(run, *words)
        assert unknown["severity"] == "unknown"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(named("c"), id="a ConfigMap without the file"),
        pytest.param(
            {"metadata": {"namespace": "kueue-system", "name": "c"}, "data": {"controller_manager_config.yaml": "["}},
            id="no YAML",
        ),
        pytest.param(
            {
                "metadata": {"namespace": "kueue-system", "name": "c"},
                "data": {"controller_manager_config.yaml": "a: b"},
            },
            id="no configuration",
        ),
    ],
)
def test_a_configuration_that_is_none_is_unknown(kueue: PodProxy, run: Run, document: dict[str, Any]) -> None:
    kueue.answer(CONFIG, document)
    (unknown,) = find(run)
    assert (unknown["severity"], unknown["where"]) == ("unknown", "Kueue's configuration")


def pool(labels: dict[str, str], *requirements: dict[str, Any]) -> dict[str, Any]:
    """A NodePool of Karpenter."""
    return {
        "metadata": {"name": "pool"},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": {"requirements": list(requirements)}}},
    }


def test_karpenter_is_known_by_its_api_and_new_nodes_by_its_pools(sound: PodProxy, run: Run) -> None:
    serve(sound, KARPENTER, "v1")
    pools: tuple[dict[str, Any], ...] = (
        pool({RACK: "r"}),
        pool({}, {"key": "example.com/block", "operator": "Exists"}),
        {"spec": {}},
    )
    sound.answer(f"{KARPENTER}/v1/nodepools", items(*pools))
    provide_gate(sound)
    for key in (RACK, "example.com/block", ZONE):
        answer_groups(sound, key)
        assert find(run, "--only", "cluster") == []
    fixed = pool({"example.com/block": "b"})
    fixed["spec"]["replicas"] = 3
    sound.answer(f"{KARPENTER}/v1/nodepools", items(fixed, {}))
    answer_groups(sound, "example.com/block")
    (finding,) = find(run, "--only", "cluster")
    assert finding["where"] == "Karpenter"
    assert "1 PodGroup, 1 Workload require one domain of example.com/block" in finding["what"]


def provide_gate(proxy: PodProxy) -> None:
    """Have the shape with the scheduling gate installed."""
    admission = "/apis/admissionregistration.k8s.io/v1"
    kinds = [{"name": f"{kind}admissionpolicies"} for kind in ("validating", "mutating")]
    proxy.answer(admission, {"resources": kinds})
    proxy.answer(f"{admission}/mutatingadmissionpolicies", items(named("serried-gate")))
    binding = named("serried-gate", spec={"policyName": "serried-gate"})
    proxy.answer(f"{admission}/mutatingadmissionpolicybindings", items(binding))
    proxy.answer(f"{HOME}/configmaps/serried-hold", named("serried-hold"))


def test_cluster_autoscaler_is_known_by_its_configmap_and_misses_the_gate(sound: PodProxy, run: Run) -> None:
    sound.answer(STATUS, named("cluster-autoscaler-status"))
    answer_groups(sound, ZONE)
    (finding,) = find(run)
    assert finding["where"] == "Cluster Autoscaler"
    assert "autoscalers may add nodes for gangs that cannot start" in finding["what"]
    provide_gate(sound)
    assert find(run) == []


def test_nodepools_that_may_not_be_read_are_unknown_and_no_label_is_missed(sound: PodProxy, run: Run) -> None:
    serve(sound, KARPENTER, "v1")
    provide_gate(sound)
    answer_groups(sound, RACK)
    sound.answer(f"{KARPENTER}/v1/nodepools", REFUSED, status=403)
    (unknown,) = find(run)
    assert unknown["where"] == "Karpenter's NodePools"


def test_groups_are_read_at_the_level_that_the_extender_uses(sound: PodProxy, run: Run) -> None:
    level = {**SELFCHECK["api"], "level": "fallback", "group": "scheduling.serried.dev", "version": "v1beta1"}
    sound.answer_debug("serried-0:8912", "selfcheck", SELFCHECK | {"api": level})
    sound.answer(STATUS, named("cluster-autoscaler-status"))
    find(run, "--only", "cluster")
    assert {asked.partition("?")[0] for asked in list_asked(sound, "podgroups")} == {
        "/apis/scheduling.serried.dev/v1beta1/podgroups"
    }


def test_a_silent_extender_s_groups_are_not_read(sound: PodProxy, run: Run) -> None:
    sound.answer_debug("serried-0:8912", "selfcheck", {"kind": "Status", "code": 503, "message": "refused"}, status=503)
    sound.answer(STATUS, named("cluster-autoscaler-status"))
    provide_gate(sound)
    assert [each["severity"] for each in find(run, "--only", "cluster")] == ["unknown"]
    assert list_asked(sound, "podgroups") == []


def test_flags_about_autoscalers_come_from_the_extender(sound: PodProxy, run: Run) -> None:
    settings = [{"flag": f"--{name}", "value": value} for name, value in shipped_installation().flags.items()]
    settings = [each for each in settings if each["flag"] != "--autoscaler"]
    sound.answer_debug("serried-0:8912", "config", {"settings": [*settings, {"flag": "--autoscaler", "value": "none"}]})
    sound.answer(STATUS, named("cluster-autoscaler-status"))
    answer_groups(sound, ZONE)
    (finding,) = find(run)
    assert finding["fix"] == "run the extender with --autoscaler=auto"
