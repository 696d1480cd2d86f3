"""Each mistake, made once in the shipped installation, is found, named and has a fix; the shipped one has none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from cli.check.checks import POLICIES
from cli.check.command import run_checks
from cli.check.durations import format_duration, parse_duration
from cli.check.observed import (
    CONTROLLER,
    ELECTING_NEEDS,
    EXTENDER,
    NEEDS,
    Area,
    Finding,
    Need,
    Observed,
    Right,
    Severity,
    decode_scheduler_config,
    list_rights,
)
from extender.look.routes import describe_certificates
from serried import __version__
from serried.api.topology import LabelCount, LevelTable, Pool
from serried.ops.tls import Use
from tests.support.installations import (
    RACK,
    ZONE,
    Mistake,
    change_config,
    change_entry,
    change_selfcheck,
    control_plane_installation,
    set_flag,
    shipped_installation,
)
from tests.unit.manifests.shipped import MANIFESTS, read_all

ERROR = Severity.ERROR
WARNING = Severity.WARNING
MARKER = "scheduling.serried.dev/member"
BIND_MARKER = "scheduling.serried.dev/member-bind"
LEASES = "coordination.k8s.io"
DAY = 86_400.0


def deny(*rights: Right) -> Mistake:
    return lambda seen: replace(seen, denied=frozenset(rights))


def relabel(**labels: dict[str, str]) -> Mistake:
    return lambda seen: replace(seen, nodes={**(seen.nodes or {}), **labels})


def without_policy(name: str) -> Mistake:
    return lambda seen: replace(seen, policies=(seen.policies or frozenset()) - {name})


def set_many(*, percentage: int | None, stamp: str) -> Mistake:
    """Two hundred nodes, and a sample of them."""
    nodes = {f"n{number}": {RACK: "r", ZONE: "z"} for number in range(200)}

    def make(seen: Observed) -> Observed:
        changed = change_config(lambda document: document.update(percentageOfNodesToScore=percentage))(seen)
        return set_flag(stamp=stamp)(replace(changed, nodes=nodes))

    return make


def define(**releases: str | None) -> Mistake:
    """CRDs of these releases; None for one that is missing."""

    def make(seen: Observed) -> Observed:
        found = {**(seen.definitions or {}), **releases}
        return replace(seen, definitions={plural: each for plural, each in found.items() if each is not None})

    return make


LEVEL_TABLE = LevelTable(
    {},
    (
        Pool("", 12, {"rack": LabelCount(RACK, 12), "zone": LabelCount(ZONE, 12)}),
        Pool("nvidia.com/gpu", 4, {"nvlink": LabelCount("nvidia.com/gpu.clique", 4), "zone": LabelCount(ZONE, 4)}),
        Pool("rdma/hca", 4, {"rack": LabelCount(RACK, 4), "zone": LabelCount(ZONE, 4)}),
    ),
)

MISTAKES = [
    pytest.param(
        define(reservations=None),
        ERROR,
        "no gang starts",
        "manifests/kustomize/crds",
        id="no CRD of Reservations",
    ),
    pytest.param(
        define(topologylevels=None), WARNING, "name a level of the topology wait", "crds", id="no CRD of levels"
    ),
    pytest.param(
        define(workloads=None), WARNING, "the CRD does not exist", "crds", id="no CRD of the API level not in use"
    ),
    pytest.param(
        define(reservations="0.1.0"),
        ERROR,
        "its release is 0.1.0, not ",
        "manifests/kustomize/crds",
        id="an older CRD",
    ),
    pytest.param(
        define(reservations=""), ERROR, "its release is unknown, not ", "crds", id="a CRD that names no release"
    ),
    pytest.param(
        define(reservations="9.0.0"),
        WARNING,
        "an upgrade was not finished",
        "upgrade Serried to 9.0.0",
        id="a newer CRD",
    ),
    pytest.param(
        change_config(lambda document: document.pop("extenders")),
        ERROR,
        "kube-scheduler knows no extender",
        "manifests/scheduler-config.yaml",
        id="a scheduler that knows no extender",
    ),
    pytest.param(
        change_entry(0, filterVerb=None), ERROR, "no entry has a filterVerb", "filterVerb: filter", id="no filter verb"
    ),
    pytest.param(change_entry(1, bindVerb=None), ERROR, "no entry has a bindVerb", "bindVerb: bind", id="no bind verb"),
    pytest.param(
        change_entry(0, preemptVerb=None), WARNING, "without preemptVerb", "preemptVerb: preempt", id="no preempt verb"
    ),
    pytest.param(
        change_entry(0, isolated="on", prioritizeVerb="prioritize"),
        WARNING,
        "kube-scheduler does not call Serried for such pods",
        "remove it",
        id="a prioritize verb for marked pods only",
    ),
    pytest.param(
        change_entry(0, ignorable=True),
        ERROR,
        "gangs start in part",
        "ignorable: false",
        id="an extender to be ignored",
    ),
    pytest.param(
        change_entry(1, ignorable=True), ERROR, "gangs start in part", "ignorable: false", id="a bind to be ignored"
    ),
    pytest.param(
        change_entry(0, nodeCacheCapable=None),
        ERROR,
        "Node objects instead of names",
        "nodeCacheCapable: true",
        id="nodes instead of names",
    ),
    pytest.param(
        change_entry(1, httpTimeout=None),
        ERROR,
        "kube-scheduler ends a bind call after 5 s, before the extender does (--barrier-deadline 300)",
        "httpTimeout: 15m",
        id="the usual timeout for bind",
    ),
    pytest.param(
        change_entry(1, httpTimeout="5m"),
        ERROR,
        "after 300 s",
        "httpTimeout: 15m",
        id="a bind timeout that is no longer",
    ),
    pytest.param(
        change_entry(0, httpTimeout="15m"),
        WARNING,
        "kube-scheduler does nothing else",
        "5s here",
        id="a filter call that may take as long as bind",
    ),
    pytest.param(
        change_entry(0, urlPrefix="http://127.0.0.1:8888"),
        ERROR,
        "kube-scheduler calls http://127.0.0.1:8888, but the extender listens at 127.0.0.1:8910",
        "urlPrefix: http://127.0.0.1:8910",
        id="a wrong port",
    ),
    pytest.param(
        set_flag(filter_listen="0.0.0.0:8910", client_ca_file="/ca.crt"),
        ERROR,
        "calls http://127.0.0.1:8910, but the extender listens at 0.0.0.0:8910 (--filter-listen) by TLS",
        "urlPrefix: https://",
        id="plain HTTP where TLS is spoken",
    ),
    pytest.param(
        change_entry(0, urlPrefix="https://127.0.0.1:8910"),
        ERROR,
        "the extender listens at 127.0.0.1:8910 (--filter-listen) by plain HTTP",
        "urlPrefix: http://127.0.0.1:8910",
        id="TLS where plain HTTP is spoken",
    ),
    pytest.param(
        change_config(lambda document: document.update(percentageOfNodesToScore=30)),
        WARNING,
        "percentageOfNodesToScore is 30",
        "set 100",
        id="a sample of all profiles",
    ),
    pytest.param(
        change_config(lambda document: document["profiles"][0].update(percentageOfNodesToScore=5)),
        WARNING,
        "percentageOfNodesToScore is 5",
        "set 100",
        id="a sample of the profile",
    ),
    pytest.param(
        set_many(percentage=0, stamp="never"),
        ERROR,
        "with --stamp=never",
        "percentageOfNodesToScore: 100",
        id="an adaptive sample, and no nominations",
    ),
    pytest.param(
        change_config(lambda document: document["profiles"][0].update(schedulerName="other")),
        ERROR,
        "no profile is called serried",
        "schedulerName: serried",
        id="no profile of that name",
    ),
    pytest.param(
        change_config(lambda document: document["profiles"].append({"schedulerName": "default-scheduler"})),
        WARNING,
        "pods of default-scheduler lose opportunistic batching",
        "a separate kube-scheduler",
        id="opportunistic batching lost",
    ),
    pytest.param(
        change_config(lambda document: document["leaderElection"].update(resourceName="kube-scheduler")),
        ERROR,
        "holds the Lease serried-system/kube-scheduler, but the extender follows serried-system/serried, so it",
        "resourceName: serried",
        id="another Lease",
    ),
    pytest.param(
        change_config(lambda document: document["leaderElection"].update(leaderElect=False)),
        ERROR,
        "leaderElect is false",
        "leaderElect: true",
        id="no election",
    ),
    pytest.param(
        change_config(lambda document: document.pop("clientConnection")),
        WARNING,
        "qps is 50",
        "set qps to 1000",
        id="a throttled scheduler",
    ),
    pytest.param(
        set_flag(isolated="on"),
        ERROR,
        "calls this entry for every pod",
        f"add {MARKER} ",
        id="an isolated extender, not asked so",
    ),
    pytest.param(
        change_config(lambda _: None, isolated="on"),
        ERROR,
        "does not warn of unmarked members",
        "--isolated=on",
        id="isolated, but not told",
    ),
    pytest.param(
        deny(Right(EXTENDER, "create", "", "pods/binding")),
        ERROR,
        "the account may not create pods/binding: Serried binds no member",
        "kubectl apply -k manifests/kustomize/rbac",
        id="no right to bind",
    ),
    pytest.param(
        deny(Right(EXTENDER, "list", "", "persistentvolumes"), Right(EXTENDER, "list", "", "persistentvolumeclaims")),
        WARNING,
        "may not list persistentvolumeclaims, list persistentvolumes: only kube-scheduler's rejections",
        "manifests/kustomize/volumes-and-devices",
        id="no right that is vital",
    ),
    pytest.param(
        deny(Right(CONTROLLER, "create", "scheduling.k8s.io", "podgroups")),
        ERROR,
        "create podgroups.scheduling.k8s.io: Jobs get no PodGroup",
        "manifests/kustomize/rbac",
        id="a controller that may make no PodGroups",
    ),
    pytest.param(
        relabel(bare={ZONE: "z0"}),
        WARNING,
        "1 of 13 nodes lack this label (bare)",
        f"kubectl label nodes bare {RACK}=VALUE",
        id="a node without the label",
    ),
    pytest.param(
        lambda seen: replace(seen, keys=("example.com/none",)),
        ERROR,
        "no node has it: none of these gangs starts",
        "kubectl label nodes",
        id="a key that no node has",
    ),
    pytest.param(
        relabel(astray={ZONE: "z1", RACK: "r0"}),
        WARNING,
        f"r0 lies in z0, z1 of {ZONE}",
        f"give each domain of {RACK} a unique value",
        id="keys that do not nest",
    ),
    pytest.param(
        lambda seen: replace(relabel(astray={ZONE: "z1", RACK: "r0"})(seen), keys=(), levels=LEVEL_TABLE),
        WARNING,
        f"r0 of {RACK} lies in several domains of {ZONE}: rack is not within zone here",
        "set labels that nest for both in TopologyLevels default, or give each rack one zone",
        id="levels that do not nest",
    ),
    pytest.param(
        lambda seen: replace(seen, skew_seconds=-7.0),
        WARNING,
        "7 s behind the API server's",
        "NTP",
        id="a clock that is behind",
    ),
    pytest.param(
        lambda seen: replace(seen, skew_seconds=60.0), ERROR, "60 s ahead of", "NTP", id="a clock that is far ahead"
    ),
    pytest.param(
        lambda seen: replace(seen, silence="no pod runs"),
        ERROR,
        "no pod runs",
        "--server",
        id="no extender that answers",
    ),
    pytest.param(
        change_selfcheck(active=False, leaseHolder="other"),
        ERROR,
        "held by other",
        "read that kube-scheduler's log",
        id="an extender without Lease",
    ),
    pytest.param(
        change_selfcheck(obstacle="reservations are not served"),
        ERROR,
        "not served",
        "manifests/kustomize/crds",
        id="no records",
    ),
    pytest.param(
        change_selfcheck(
            api={"level": "native", "group": "scheduling.k8s.io", "version": "v1beta1", "podsKeepTheirGroup": False}
        ),
        ERROR,
        "drops the field of pods that names one",
        "GenericWorkload",
        id="a gate that is on in some API servers only",
    ),
    pytest.param(
        change_selfcheck(
            api={"level": "native", "group": "scheduling.k8s.io", "version": "v1beta1", "refused": ["v1 is odd"]}
        ),
        WARNING,
        "v1 is odd; Serried uses scheduling.k8s.io/v1beta1 instead",
        "a release of Serried",
        id="a newer version of the API that is not known",
    ),
    pytest.param(
        change_selfcheck(
            api={"level": "fallback", "group": "scheduling.serried.dev", "version": "v1beta1", "refused": ["v1 is odd"]}
        ),
        ERROR,
        "v1 is odd; Serried uses scheduling.serried.dev/v1beta1 instead",
        "a release of Serried",
        id="no version of the cluster's own API that is known",
    ),
    pytest.param(
        change_selfcheck(watches={"podgroups": {"served": False, "malformed": 0}}),
        ERROR,
        "does not serve them",
        "manifests/kustomize/crds",
        id="no PodGroups",
    ),
    pytest.param(
        change_selfcheck(watches={"nodes": {"served": True, "malformed": 2}}),
        WARNING,
        "Serried cannot read 2 of them",
        "reason=Malformed",
        id="objects that cannot be read",
    ),
    pytest.param(
        change_selfcheck(hold={"mode": "gate", "obstacle": "there is no ConfigMap"}),
        ERROR,
        "there is no ConfigMap",
        "manifests/kustomize/gate",
        id="no switch for the gate",
    ),
    pytest.param(
        change_selfcheck(isolation={"isolated": True, "unmarkedMembers": 3}),
        ERROR,
        "3 members have no marker",
        "manifests/kustomize/marker",
        id="members without markers",
    ),
    pytest.param(
        change_selfcheck(certificates=describe_certificates({Use.SERVING: 2 * DAY}, DAY)),
        WARNING,
        "the certificate in --tls-cert-file expires in 1.0 days; then",
        "replace the file; no restart is needed",
        id="a certificate that expires soon",
    ),
    pytest.param(
        without_policy("serried-controller-groups"),
        WARNING,
        "the policy does not exist: the controller may change and delete any group of users",
        "manifests/kustomize/policies",
        id="no policy for the controller",
    ),
    pytest.param(
        without_policy("serried-extender-pods"),
        WARNING,
        "the policy does not exist: the extender may change any field of pods",
        "manifests/kustomize/policies",
        id="no policy for the extender",
    ),
    pytest.param(
        without_policy("serried-extender-nodes"),
        WARNING,
        "the policy does not exist: the extender may change any field of nodes",
        "manifests/kustomize/policies",
        id="no policy for the nodes that the extender protects",
    ),
    pytest.param(
        without_policy("serried-extender-pod-status"),
        WARNING,
        "the policy does not exist: the extender may change any field of a pod's status",
        "manifests/kustomize/policies",
        id="no policy for the statuses that the extender writes",
    ),
    pytest.param(
        without_policy("serried-reservations"),
        WARNING,
        "does not exist: the administrator of any namespace may create a Reservation that stops all planning",
        "manifests/kustomize/policies",
        id="no policy for the Reservations",
    ),
    pytest.param(
        lambda seen: replace(seen, bound_policies=seen.bound_policies - {"serried-pod-group-label"}),
        WARNING,
        "the policy has no binding",
        "manifests/kustomize/policies",
        id="a policy without binding",
    ),
    pytest.param(
        lambda seen: replace(
            without_policy("serried-group-priority")(seen),
            selfcheck={**(seen.selfcheck or {}), "api": {"level": "fallback", "group": "scheduling.serried.dev"}},
        ),
        WARNING,
        "may give it any priority",
        "manifests/kustomize/policies",
        id="no policy for priorities at the fallback level",
    ),
    pytest.param(
        lambda seen: set_flag(hold="gate")(without_policy("serried-gate")(seen)),
        ERROR,
        "no pod gets the scheduling gate",
        "manifests/kustomize/gate",
        id="gates without policy",
    ),
    pytest.param(
        lambda seen: replace(
            seen, flags={**seen.flags, "hold": "gate"}, selfcheck={**(seen.selfcheck or {}), "schedulesGangs": True}
        ),
        ERROR,
        "holds a whole group while one of its pods has a scheduling gate",
        "--hold=filter",
        id="gates beside native gang scheduling",
    ),
    pytest.param(
        lambda seen: replace(
            seen,
            selfcheck={
                **(seen.selfcheck or {}),
                "schedulers": ["serried"],
                "objects": {"podsOfOtherSchedulers": 12},
            },
        ),
        WARNING,
        "Serried does not evict 12 running pods of other schedulers than serried for a gang",
        "schedulerName: serried",
        id="pods of another scheduler",
    ),
    pytest.param(
        lambda seen: replace(
            seen, selfcheck={**(seen.selfcheck or {}), "treesInvalidIn138": {"default/root": "it has 5 levels"}}
        ),
        WARNING,
        "kube-scheduler 1.38 with its own gang scheduling rejects every pod of this tree: it has 5 levels",
        "before the upgrade to 1.38",
        id="a tree that 1.38 takes for invalid",
    ),
    pytest.param(
        lambda seen: replace(seen, flags={**seen.flags, "other-profiles": "batch"}),
        ERROR,
        "no profile is called batch (--other-profiles): its scheduler would use",
        "without --other-profiles=batch",
        id="another profile that is none of this scheduler",
    ),
    pytest.param(
        lambda seen: replace(seen, server_version="v1.34.2", scheduler_version=""),
        ERROR,
        "1.34 lacks parts of the API that Serried needs",
        "1.35 or newer",
        id="an older cluster",
    ),
    pytest.param(
        lambda seen: replace(seen, server_version="v1.40.1", scheduler_version="v1.39.4"),
        WARNING,
        f"1.40 is not tested with Serried {__version__}; the newest tested is 1.37",
        "look for a newer release of Serried",
        id="a cluster that is newer than all tests",
    ),
    pytest.param(
        lambda seen: replace(seen, server_version="v1.38.0-beta.0", scheduler_version="v1.38.0-beta.0"),
        WARNING,
        "the newest tested is 1.37, and a pre-release of kube-scheduler 1.38 beside it",
        "try your gangs in a cluster for tests first",
        id="a cluster of which only the scheduler was tested",
    ),
    pytest.param(
        lambda seen: replace(seen, scheduler_version="v1.38.0-beta.0"),
        ERROR,
        "1.38 is newer than the API server (1.37)",
        "newTag: v1.37.x",
        id="the tested scheduler beside the API server that it was tested with",
    ),
    pytest.param(
        lambda seen: replace(seen, server_version="v1.36.4"),
        ERROR,
        "1.37 is newer than the API server (1.36)",
        "newTag: v1.36.x",
        id="a scheduler that is newer than the API server",
    ),
    pytest.param(
        lambda seen: replace(seen, scheduler_version="v1.35.0"),
        WARNING,
        "more than one minor version older",
        "newTag: v1.37.x",
        id="a scheduler that is too old",
    ),
]


@pytest.mark.parametrize("isolated", ["off", "on"])
def test_the_shipped_installation_has_no_mistake(isolated: str) -> None:
    assert run_checks(shipped_installation(isolated)) == []


def test_beside_the_cluster_s_scheduler_only_the_other_profile_s_batching_is_named() -> None:
    (finding,) = run_checks(control_plane_installation())
    assert finding.severity is WARNING
    assert finding.what.endswith("pods of default-scheduler lose opportunistic batching")


@pytest.mark.parametrize(
    ("right", "without"),
    [
        pytest.param(("create", LEASES, "leases", ""), "no extender starts to lead", id="the first Lease"),
        pytest.param(("update", LEASES, "leases", "serried-extender"), "no extender starts to lead", id="its Lease"),
        pytest.param(
            ("patch", "discovery.k8s.io", "endpointslices", "serried-verbs"),
            "the Service leads to no extender",
            id="the address of the leader",
        ),
    ],
)
def test_extenders_that_elect_their_leader_need_more_rights(right: tuple[str, str, str, str], without: str) -> None:
    verb, group, resource, name = right
    taken = deny(Right(EXTENDER, verb, group, resource, name, home=True))
    assert run_checks(taken(shipped_installation())) == []
    (finding,) = find(taken(control_plane_installation()), without)
    assert (finding.severity, finding.area) == (ERROR, Area.RIGHTS)
    assert "manifests/kustomize/overlays/control-plane" in finding.fix


def test_every_policy_that_all_installations_have_is_missed_where_it_is_gone() -> None:
    shipped = (MANIFESTS / "kustomize" / "policies").glob("*.yaml")
    objects = [each for path in shipped for each in yaml.safe_load_all(path.read_text())]
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"}
    assert names == {*POLICIES, "serried-group-priority"}  # which is checked at the fallback level alone


def find(seen: Observed, what: str) -> list[Finding]:
    """Return the findings with this text; there may be one for each of the two entries."""
    found = [finding for finding in run_checks(seen) if what in finding.what]
    assert found, run_checks(seen)
    return found


@pytest.mark.parametrize(("make", "severity", "what", "fix"), MISTAKES)
def test_a_mistake_is_found_with_its_fix(make: Mistake, severity: Severity, what: str, fix: str) -> None:
    for finding in find(make(shipped_installation()), what):
        assert finding.severity is severity
    assert any(fix in finding.fix for finding in find(make(shipped_installation()), what))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        pytest.param(
            change_entry(1, isolated="on", managedResources=None),
            "calls this entry for every pod",
            id="bind without its marker",
        ),
        pytest.param(
            change_entry(0, isolated="on", managedResources=[{"name": "example.com/x", "ignoredByScheduler": True}]),
            "pods that request example.com/x, which no member does",
            id="another resource",
        ),
        pytest.param(
            change_entry(0, isolated="on", managedResources=[{"name": BIND_MARKER, "ignoredByScheduler": True}]),
            f"pods that request {BIND_MARKER}",
            id="the marker of the other entry",
        ),
        pytest.param(
            change_entry(0, isolated="on", managedResources=[{"name": MARKER}]),
            "not ignoredByScheduler",
            id="a marker that counts",
        ),
        pytest.param(without_policy("serried-marker"), "members get no markers", id="no policy that marks"),
    ],
)
def test_a_mistake_in_an_isolated_installation_is_found(make: Mistake, what: str) -> None:
    assert all(finding.fix for finding in find(make(shipped_installation("on")), what))


def test_of_the_api_level_that_is_not_in_use_no_right_is_needed() -> None:
    unused = deny(Right(EXTENDER, "list", "scheduling.serried.dev", "podgroups"))
    assert run_checks(unused(shipped_installation())) == []


def test_adaptive_sampling_is_no_mistake_where_members_are_nominated() -> None:
    assert run_checks(set_many(percentage=0, stamp="auto")(shipped_installation())) == []
    assert run_checks(set_many(percentage=100, stamp="never")(shipped_installation())) == []


def test_a_scheduler_that_is_one_minor_version_older_is_no_mistake() -> None:
    assert run_checks(replace(shipped_installation(), scheduler_version="v1.36.0")) == []


def test_what_could_not_be_read_is_said() -> None:
    seen = replace(shipped_installation(), denied=None, unread=((Area.RIGHTS, "rights", "403"),))
    (finding,) = run_checks(seen)
    assert (finding.severity, finding.where) == (Severity.UNKNOWN, "rights")
    assert run_checks(seen, [Area.NODES]) == []


def test_what_each_level_means_is_a_note_and_other_devices_are_named_where_they_differ() -> None:
    (note,) = run_checks(replace(shipped_installation(), levels=LEVEL_TABLE))
    assert (note.severity, note.where) == (Severity.NOTE, "levels")
    assert note.what == (
        f"host nothing, nvlink nothing, rack means {RACK} on 12 of 12, block nothing, spine nothing, zone means {ZONE} "
        "on 12 of 12; with nvidia.com/gpu: nvlink means nvidia.com/gpu.clique on 4 of 4, rack nothing, "
        f"zone means {ZONE} on 4 of 4"
    )


def test_keys_that_stand_for_levels_are_told_of_once_as_levels() -> None:
    found = run_checks(relabel(astray={ZONE: "z1", RACK: "r0"})(replace(shipped_installation(), levels=LEVEL_TABLE)))
    assert [each.where for each in found] == ["levels rack, zone", "levels"]


def test_errors_stand_before_warnings() -> None:
    seen = replace(change_entry(0, ignorable=True, preemptVerb=None)(shipped_installation()), skew_seconds=-7.0)
    assert [finding.severity for finding in run_checks(seen)] == [ERROR, WARNING, WARNING]


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5.0), ("15m", 900.0), ("1m30s", 90.0), ("500ms", 0.5)])
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(86400.0, "24h"), (5400.0, "90m"), (45.5, "45.5s"), (0.0, "0s")])
def test_durations_are_written_as_go_reads_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(None, id="an empty file"),
        pytest.param({"kind": "Pod"}, id="another kind"),
        pytest.param({"kind": "KubeSchedulerConfiguration", "extenders": "x"}, id="extenders that are none"),
        pytest.param({"kind": "KubeSchedulerConfiguration", "extenders": [{"httpTimeout": "5 min"}]}, id="no duration"),
    ],
)
def test_a_document_that_is_no_configuration_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_scheduler_config("file", document)


@pytest.mark.parametrize(
    ("needs", "roles"),
    [
        pytest.param(NEEDS, set(), id="beside a scheduler of their own"),
        pytest.param(ELECTING_NEEDS, {"serried-extender-election"}, id="beside the cluster's"),
    ],
)
def test_the_rights_are_those_of_the_shipped_roles(needs: Mapping[str, tuple[Need, ...]], roles: set[str]) -> None:
    """Each role of the extender and the controller, verb by verb."""
    everywhere = {"serried-extender", "serried-extender-volumes-and-devices"}
    granted = {right for role in roles | everywhere for right in read_rights(EXTENDER, role)}
    followed = {right for right in granted if right.name == "serried"}
    assert len(followed) == 2  # the Lease of the scheduler, which is nobody's where the extenders elect
    wanted = granted if needs is NEEDS else granted - followed
    assert set(list_rights(needs)) == wanted | read_rights(CONTROLLER, "serried-controller")


def read_rights(account: str, role: str) -> set[Right]:
    """Return the rights that a Role and a ClusterRole of this name grant."""
    return {
        Right(account, verb, group, resource, name, home=each.kind == "Role")
        for each in read_all()
        if each.kind in {"Role", "ClusterRole"} and each.name == role
        for rule in each.content["rules"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
