"""``serried check`` as a command: what it reads, what it prints, how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.check.observed import DEFAULT_FLAGS, NEEDS, list_rights
from serried.settings import describe_settings, extender_settings
from tests.support.checked_clusters import ADMISSION, CRDS, DEPLOYMENT, HOME, items, named
from tests.support.commands import Run
from tests.support.installations import RACK, SELFCHECK, read_shipped
from tests.support.pod_proxy import PodProxy
from tests.unit.manifests.shipped import MANIFESTS

NONE = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}


def test_a_sound_installation_ends_with_0(sound: PodProxy, run: Run) -> None:
    ended = run("check")
    assert (ended.code, ended.out, ended.err) == (0, "No mistakes found.\n", "")


def test_what_levels_mean_is_told_and_is_no_mistake(sound: PodProxy, run: Run) -> None:
    pool = {"resource": "", "nodes": 1, "labels": [{"level": "rack", "label": RACK, "nodes": 1}]}
    table = {"metadata": {"name": "default"}, "status": {"levels": [], "pools": [pool]}}
    sound.answer("/apis/scheduling.serried.dev/v1beta1/topologylevels/default", table)
    ended = run("check", "--fail-on", "warning")
    assert ended.code == 0
    assert "No mistakes found." in ended.out
    assert f"rack means {RACK} on 1 of 1" in " ".join(ended.out.split())
    assert "1 note" in ended.out


def test_each_right_is_asked_for_once(sound: PodProxy, run: Run) -> None:
    run("check", "--only", "rights")
    assert sum("subjectaccessreviews" in each for each in sound.asked) == len(list_rights(NEEDS)) > 80


def test_an_error_ends_with_1_and_is_shown_with_its_fix(sound: PodProxy, run: Run) -> None:
    sound.answer("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"status": {"allowed": False}})
    ended = run("check")
    assert ended.code == 1
    assert "Serried binds no member" in ended.out
    assert "kubectl apply -k manifests/kustomize/rbac" in ended.out


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [
        pytest.param([], 0, id="a warning alone is no failure"),
        pytest.param(["--fail-on", "warning"], 1, id="but for who asks for it"),
        pytest.param(["--fail-on", "never"], 0, id="nothing is for who asks for that"),
    ],
)
def test_what_fails_is_chosen(sound: PodProxy, run: Run, fail_on: list[str], code: int) -> None:
    sound.answer(
        "/api/v1/nodes", items({"metadata": {"name": "a", "labels": {RACK: "r"}}}, {"metadata": {"name": "b"}})
    )
    ended = run("check", *fail_on)
    assert ended.code == code
    assert "1 of 2 nodes lack this label (b)" in ended.out
    assert "1 warning" in ended.out


def test_programs_get_a_list(sound: PodProxy, run: Run) -> None:
    sound.answer("/version", {"gitVersion": "v1.36.4"})
    (finding,) = json.loads(run("check", "-o", "json").out)
    assert (finding["severity"], finding["area"], finding["where"]) == ("error", "cluster", "kube-scheduler")
    assert set(finding) == {"severity", "area", "where", "what", "fix"}


def test_a_clock_is_compared_with_that_of_the_api_server(sound: PodProxy, run: Run) -> None:
    sound.answer_debug("serried-0:8912", "selfcheck", SELFCHECK | {"now": "2020-01-01T00:00:00Z"})
    ended = run("check", "--only", "extender")
    assert ended.code == 1
    assert "behind the API server's" in ended.out


def test_yaml_is_the_same_list(sound: PodProxy, run: Run) -> None:
    sound.answer("/version", {"gitVersion": "v1.36.4"})
    (finding,) = yaml.safe_load(run("check", "-o", "yaml").out)
    assert [finding] == json.loads(run("check", "-o", "json").out)


def test_nothing_is_asked_between_the_two_clocks(sound: PodProxy, run: Run) -> None:
    run("check")
    at = sound.asked.index("/version")
    assert sound.asked[at - 1].endswith("/debug/selfcheck")


BINDINGS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
SERVICE = {"service": {"namespace": "vet", "name": "vet"}}
SLICES = "/apis/discovery.k8s.io/v1/namespaces/vet/endpointslices"
SERVED = items({"metadata": {"name": "vet-x"}, "endpoints": [{"conditions": {"ready": True}}]})


def add_webhook(proxy: PodProxy, rule: dict[str, Any], **fields: Any) -> None:
    """Add a foreign webhook, whose Service has a ready pod."""
    webhook = {"name": "vet.example.com", "rules": [rule], "clientConfig": SERVICE, **fields}
    proxy.answer(f"{ADMISSION}/v1/validatingwebhookconfigurations", items(named("vet", webhooks=[webhook])))
    proxy.answer(SLICES, SERVED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(
            {},
            "calls it for CREATE pods/binding (failurePolicy Fail): while it does not answer, Serried binds no member",
        ),
        pytest.param({"resources": ["*/*"], "apiGroups": ["*"], "apiVersions": ["*"]}, "CREATE pods/binding, CREATE "),
        pytest.param({"operations": ["*"], "resources": ["pods"]}, "for UPDATE pods, DELETE pods ("),
        pytest.param(
            {"operations": ["UPDATE"], "resources": ["*/status"]}, "for UPDATE pods/status (", id="all statuses"
        ),
        pytest.param({"operations": ["UPDATE"], "resources": ["pods/*"]}, "for UPDATE pods/status, UPDATE pods ("),
        pytest.param({"scope": "Namespaced"}, "Serried binds no member", id="what is in namespaces"),
    ],
)
def test_a_webhook_that_may_stop_what_serried_writes_of_pods_is_named(
    sound: PodProxy, run: Run, changes: dict[str, Any], said: str
) -> None:
    add_webhook(sound, BINDINGS | changes)
    (finding,) = json.loads(run("check", "-o", "json").out)
    assert (finding["severity"], finding["area"]) == ("warning", "cluster")
    assert finding["where"] == "validatingwebhookconfiguration/vet: vet.example.com"
    assert said in finding["what"]


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        pytest.param({}, {"failurePolicy": "Ignore"}, id="that is done without where it does not answer"),
        pytest.param({"resources": ["pods"]}, {}, id="of pods that are created, as Serried creates none"),
        pytest.param({"operations": ["UPDATE"], "resources": ["*"]}, {"failurePolicy": "Ignore"}, id="of everything"),
        pytest.param({"resources": ["*"]}, {}, id="of no subresource"),
        pytest.param({"resources": ["deployments/*"]}, {}, id="of another kind"),
        pytest.param({"apiGroups": ["apps"]}, {}, id="of another group"),
        pytest.param({"scope": "Cluster"}, {}, id="of what is in no namespace"),
    ],
)
def test_other_webhooks_are_none_of_its_business(
    sound: PodProxy, run: Run, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    add_webhook(sound, BINDINGS | changes, **fields)
    assert run("check").out == "No mistakes found.\n"


@pytest.mark.parametrize(
    "slices",
    [
        pytest.param([], id="no pods at all"),
        pytest.param(
            [{"metadata": {"name": "x"}, "endpoints": [{"conditions": {"ready": False}}]}], id="none is ready"
        ),
    ],
)
def test_a_webhook_behind_which_nothing_runs_is_told_apart(
    sound: PodProxy, run: Run, slices: list[dict[str, Any]]
) -> None:
    add_webhook(sound, BINDINGS)
    sound.answer(SLICES, items(*slices))
    (finding,) = json.loads(run("check", "-o", "json").out)
    assert "no pod is ready behind its Service vet/vet, so CREATE pods/binding fails" in finding["what"]
    assert finding["fix"].endswith("kubectl delete validatingwebhookconfiguration/vet")
    add_webhook(sound, BINDINGS, clientConfig={"url": "https://vet.example.com"})
    assert "while it does not answer" in run("check").out


def test_what_may_not_be_read_is_unknown_and_the_rest_is_checked(sound: PodProxy, run: Run) -> None:
    refused = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "eve cannot list nodes"}
    sound.answer("/api/v1/nodes", refused, status=403)
    ended = run("check")
    assert ended.code == 0
    assert "UNKNOWN" in ended.out
    assert "eve cannot list nodes" in ended.out


def test_an_extender_that_does_not_answer_is_an_error_among_others(sound: PodProxy, run: Run) -> None:
    sound.answer_debug("serried-0:8912", "selfcheck", {"kind": "Status", "code": 503, "message": "refused"}, status=503)
    ended = run("check")
    assert ended.code == 1
    assert ended.out.count("pod serried-system/serried-0 does not answer: refused") == 1


@pytest.fixture
def empty(sound: PodProxy) -> PodProxy:
    """A cluster without Serried, in which no ServiceAccount of Serried may do anything."""
    sound.answer(f"{HOME}/pods", items())
    sound.answer(DEPLOYMENT, NONE, status=404)
    sound.answer("/apis/apps/v1/deployments", items())
    sound.answer("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"status": {"allowed": False}})
    return sound


def test_where_nothing_is_installed_there_is_one_finding(empty: PodProxy, run: Run) -> None:
    ended = run("check", "-o", "json")
    (finding,) = json.loads(ended.out)
    assert (ended.code, finding["severity"], finding["fix"]) == (1, "error", "serried install")
    assert finding["what"].startswith("Serried is not installed in namespace serried-system of the API server http://")
    assert len(run("check").out.splitlines()) < 8


def test_one_in_another_namespace_is_named(empty: PodProxy, run: Run) -> None:
    other = {"metadata": {"name": "serried", "namespace": "gangs"}}
    empty.answer("/apis/apps/v1/deployments", items(other))
    (finding,) = json.loads(run("check", "-o", "json").out)
    assert finding["what"].endswith(", but in namespace gangs")
    assert finding["fix"] == "serried check --serried-namespace gangs"


def test_an_address_that_is_silent_says_nothing_of_an_installation(empty: PodProxy, run: Run) -> None:
    ended = run("check", "--server", "http://127.0.0.1:1", "-o", "json")
    found = json.loads(ended.out)
    assert "serried install" not in {each["fix"] for each in found}
    assert any("127.0.0.1:1" in each["what"] for each in found)


def test_an_installation_without_pods_is_one(empty: PodProxy, run: Run) -> None:
    empty.answer(DEPLOYMENT, {"metadata": {"name": "serried", "namespace": "serried-system"}})
    assert len(json.loads(run("check", "-o", "json").out)) > 1


def test_a_missing_crd_is_an_error(sound: PodProxy, run: Run) -> None:
    sound.answer(f"{CRDS}/reservations.scheduling.serried.dev", NONE, status=404)
    ended = run("check", "-o", "json")
    (finding,) = json.loads(ended.out)
    assert (ended.code, finding["severity"]) == (1, "error")
    assert finding["where"] == "CRD reservations.scheduling.serried.dev"
    assert "no gang starts" in finding["what"]


@pytest.mark.parametrize(
    ("metadata", "fix"),
    [
        pytest.param({}, "kubectl apply -k manifests/kustomize/rbac", id="kubectl"),
        pytest.param(
            {"managedFields": [{"manager": "serried-install"}]},
            "serried install --image mine:1 --shape base --scheduler-image IMAGE",
            id="our command",
        ),
        pytest.param(
            {
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {"meta.helm.sh/release-name": "gangs"},
            },
            "helm upgrade gangs -n serried-system CHART --reset-then-reuse-values",
            id="Helm",
        ),
    ],
)
def test_fixes_go_by_the_tool_that_installed_it(sound: PodProxy, run: Run, metadata: dict[str, Any], fix: str) -> None:
    pod = {"initContainers": [{"name": "extender", "image": "mine:1"}], "containers": []}
    about = {"name": "serried", "namespace": "serried-system", **metadata}
    sound.answer(DEPLOYMENT, {"metadata": about, "spec": {"template": {"spec": pod}}})
    sound.answer("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"status": {"allowed": False}})
    found = json.loads(run("check", "--only", "rights", "-o", "json").out)
    assert f"{fix}, or grant it in roles of your own" in {each["fix"] for each in found}


def test_fixes_go_by_the_deployment_where_the_switch_may_not_be_read(sound: PodProxy, run: Run) -> None:
    about = {
        "name": "serried",
        "namespace": "serried-system",
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "gangs"},
    }
    sound.answer(DEPLOYMENT, {"metadata": about})
    refused = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "eve cannot get configmaps"}
    sound.answer(f"{HOME}/configmaps/serried-hold", refused, status=403)
    sound.answer("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"status": {"allowed": False}})
    found = json.loads(run("check", "--only", "rights", "-o", "json").out)
    assert any(each["fix"].startswith("helm upgrade gangs -n serried-system") for each in found)


@pytest.mark.parametrize(
    ("area", "missed"),
    [
        pytest.param("nodes", "the topology keys that groups ask for", id="nodes, whose keys it knows"),
        pytest.param("scheduler", "the extender's flags", id="the scheduler's configuration, which its flags go with"),
        pytest.param("rights", "the extender's flags", id="rights, which go by its flags and API level"),
        pytest.param("policies", "the extender's flags", id="policies, which go by its flags and API level"),
        pytest.param("cluster", "the extender's flags", id="the cluster, whose autoscalers matter by its flags"),
    ],
)
def test_what_only_a_silent_extender_knows_is_unknown(sound: PodProxy, run: Run, area: str, missed: str) -> None:
    sound.answer_debug("serried-0:8912", "selfcheck", {"kind": "Status", "code": 503, "message": "refused"}, status=503)
    found = json.loads(run("check", "--only", area, "-o", "json").out)
    (unknown,) = [each for each in found if each["severity"] == "unknown"]
    assert missed in unknown["where"]
    assert "pod serried-system/serried-0 does not answer: refused" in unknown["what"]


def test_no_api_server_ends_with_3(run: Run) -> None:
    ended = run("check", "--context", "away", "--server", "http://127.0.0.1:1")
    assert ended.code == 3
    assert "the API server http://127.0.0.1:1 (context away of " in ended.err
    assert "does not answer: nothing listens at this address (connection refused)" in ended.err


@pytest.mark.parametrize("folder", ["scheduler", "isolated"])
def test_a_file_is_checked_without_a_cluster(run: Run, folder: str) -> None:
    path = MANIFESTS / "kustomize" / folder / "scheduler-config.yaml"
    ended = run("check", "--only", "scheduler", "--scheduler-config", str(path), "--context", "away")
    assert (ended.code, ended.out) == (0, "No mistakes found.\n")


def test_of_a_file_that_calls_by_tls_the_extender_is_asked_for_its_flags(sound: PodProxy, run: Run) -> None:
    path = str(MANIFESTS / "kustomize" / "control-plane" / "scheduler-config.yaml")
    asked = ("check", "--only", "scheduler", "--scheduler-config", path)
    ended = run(*asked, "--context", "away")
    assert (ended.code, ended.out) == (3, "")
    assert f"{path} calls the extender by TLS, so the check has to ask the extender for its flags: the API" in ended.err
    run(*asked)
    assert any("debug/config" in each for each in sound.asked)


def test_a_mistake_in_a_file_is_named_with_the_file(run: Run, tmp_path: Path) -> None:
    document = read_shipped()
    document["extenders"][0]["ignorable"] = True
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    ended = run("check", "--only", "scheduler", "--scheduler-config", str(path))
    assert ended.code == 1
    assert f"{path}: extenders[0].ignorable" in ended.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("kind: Pod", "holds no KubeSchedulerConfiguration", id="another kind"),
        pytest.param("a: [", "while parsing", id="no YAML"),
        pytest.param(None, "No such file", id="no file"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_wrong_command_line(
    run: Run, tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    ended = run("check", "--scheduler-config", str(path))
    assert ended.code == 2
    assert said in ended.err


def test_where_no_extender_is_asked_its_defaults_are_those_of_its_settings() -> None:
    settings = {each.flag: each.default for each in describe_settings(extender_settings([], {}))}
    assert dict(DEFAULT_FLAGS) == {flag: settings[f"--{flag}"] for flag in DEFAULT_FLAGS}
