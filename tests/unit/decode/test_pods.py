import pytest

from serried.api.names import KUEUE_COUNT, KUEUE_GROUP, KUEUE_GROWING, GroupKey, Malformed
from serried.api.pod import COMPLETION_INDEX, HELD_GATE, ControllerRef, Link, Phase, Pod, decode_pod
from serried.api.selectors import NodeSelectorTerm, Requirement, Toleration
from tests.support.builders import PodBuilder, pod


def test_a_pod_of_nothing_but_a_name_is_pending_and_in_no_group() -> None:
    decoded = pod("p").value()
    assert (decoded.namespace, decoded.name, decoded.uid) == ("default", "p", "pod-p")
    assert decoded.pending
    assert (decoded.group, decoded.link, decoded.owner, decoded.index) == (None, None, None, None)
    assert decoded.scheduler == "default-scheduler"


def test_every_field_arrives() -> None:
    decoded = (
        pod("p").namespace("ns").uid("u").version("7").scheduler("serried").on("n1").nominated("n2").priority(5)
        .gate().gate("other").of_job("j", 3, "ju").deleting().phase("Running").value()
    )  # fmt: skip
    assert decoded == Pod(
        namespace="ns",
        name="p",
        uid="u",
        labels={"batch.kubernetes.io/job-name": "j"},
        shape=decoded.shape,
        scheduler="serried",
        node="n1",
        nominated="n2",
        priority=5,
        phase=Phase.ACTIVE,
        owner=ControllerRef("Job", "j", "ju"),
        gates=(HELD_GATE, "other"),
        index=3,
        deleting=True,
        ends=1767225600,
        version="7",
    )


@pytest.mark.parametrize(
    ("builder", "group", "link"),
    [
        pytest.param(pod("p").in_group("g"), GroupKey("default", "g"), Link.FIELD, id="by field"),
        pytest.param(pod("p").labelled_group("g"), GroupKey("default", "g"), Link.LABEL, id="by label"),
        pytest.param(
            pod("p").labelled_group("l").in_group("g"),
            GroupKey("default", "g"),
            Link.FIELD,
            id="the field before the label",
        ),
        pytest.param(
            pod("p").labelled_group("l").in_group(""),
            GroupKey("default", "l"),
            Link.LABEL,
            id="an empty field is no field",
        ),
        pytest.param(pod("p").labelled_group(""), None, None, id="an empty label is no group"),
        pytest.param(pod("p").of_job("j", 0), None, None, id="a Job is not named by the pod itself"),
    ],
)
def test_a_pod_names_its_group(builder: PodBuilder, group: GroupKey | None, link: Link | None) -> None:
    decoded = builder.value()
    assert (decoded.group, decoded.link) == (group, link)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("", Phase.ACTIVE), ("Pending", Phase.ACTIVE), ("Running", Phase.ACTIVE), ("Unknown", Phase.ACTIVE),
     ("Succeeded", Phase.SUCCEEDED), ("Failed", Phase.FAILED)],
)  # fmt: skip
def test_phases_are_reduced_to_what_counts(phase: str, expected: Phase) -> None:
    assert pod("p").phase(phase).value().phase is expected


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        pytest.param(pod("p"), False, id="a fresh pod was not tried"),
        pytest.param(pod("p").unschedulable(), True, id="no node would do"),
        pytest.param(pod("p").unschedulable("SchedulerError"), True, id="its Binding failed"),
        pytest.param(pod("p").unschedulable("SchedulingGated"), False, id="a gated pod was not tried"),
    ],
)
def test_a_pod_that_was_tried_in_vain_is_known(builder: PodBuilder, expected: bool) -> None:  # noqa: FBT001
    assert builder.value().unschedulable is expected


@pytest.mark.parametrize(
    ("builder", "refusal"),
    [
        pytest.param(pod("p").on("n").kubelet_rejected("OutOfcpu"), "OutOfcpu", id="no room"),
        pytest.param(pod("p").on("n").kubelet_rejected("OutOfexample.com/gpu"), "OutOfexample.com/gpu", id="no device"),
        pytest.param(pod("p").on("n").kubelet_rejected("NodeAffinity"), "NodeAffinity", id="the node's labels changed"),
        pytest.param(
            pod("p")
            .on("n")
            .kubelet_rejected("NodeShutdown")
            .with_field("Pod was rejected: node is shutting down", "status", "message"),
            "NodeShutdown",
            id="any reason, if the message says that it was rejected",
        ),
        pytest.param(pod("p").on("n").kubelet_rejected("Evicted"), "", id="one that was evicted ran before"),
        pytest.param(pod("p").on("n").phase("Failed"), "", id="one that failed ran before"),
        pytest.param(pod("p").on("n").with_field("OutOfcpu", "status", "reason"), "", id="one that may still run"),
    ],
)
def test_a_pod_that_its_kubelet_refused_is_known(builder: PodBuilder, refusal: str) -> None:
    assert builder.value().refusal == refusal


@pytest.mark.parametrize(
    ("builder", "index"),
    [
        pytest.param(pod("p").annotation(COMPLETION_INDEX, "12"), 12, id="from the annotation"),
        pytest.param(pod("p").label(COMPLETION_INDEX, "12"), 12, id="from the label"),
        pytest.param(pod("p").of_replica("s", 1, 12), 12, id="a worker has its worker index"),
        pytest.param(pod("p").of_replica("s", 1), 0, id="a leader is worker 0"),
        pytest.param(pod("p").of_replica("s", 1, 2).index(7), 2, id="whatever else it carries"),
        pytest.param(pod("p").annotation(COMPLETION_INDEX, "-1"), None, id="a negative one is none"),
        pytest.param(pod("p").annotation(COMPLETION_INDEX, "first"), None, id="a word is none"),
        pytest.param(pod("p").annotation(COMPLETION_INDEX, "9" * 5000), None, id="an endless one is none"),
    ],
)
def test_the_number_of_a_pod_among_its_like(builder: PodBuilder, index: int | None) -> None:
    assert builder.value().index == index


def test_only_the_controlling_reference_is_the_owner() -> None:
    decoded = pod("p").owned_by("PodGroup", "g").controlled_by("Job", "j", "u").value()
    assert decoded.owner == ControllerRef("Job", "j", "u")


def test_what_decides_where_it_fits_is_in_the_shape() -> None:
    term = {
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
    }
    shape = (
        pod("p")
        .cpu(1)
        .node_selector("z", "1")
        .node_selector("a", "2")
        .node_affinity(term)
        .tolerating("t", "", "v")
        .value()
        .shape
    )
    assert shape.requests == (("cpu", 1000), ("pods", 1))
    assert shape.node_selector == (("a", "2"), ("z", "1"))
    labels = (Requirement("zone", "In", ("a", "b")),)
    fields = (Requirement("metadata.name", "In", ("n1",)),)
    assert shape.node_terms == (NodeSelectorTerm(labels, fields),)
    assert shape.tolerations == (Toleration("t", "Equal", "v", ""),)


@pytest.mark.parametrize(
    ("builder", "terms"),
    [
        pytest.param(pod("p"), None, id="no affinity is none"),
        pytest.param(pod("p").with_field({}, "spec", "affinity", "podAffinity"), None, id="affinity to pods is none"),
        pytest.param(
            pod("p").with_field(
                [], "spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution"
            ),
            None,
            id="a preference is none",
        ),
        pytest.param(pod("p").node_affinity(), (), id="a selector without terms is kept: it matches nothing"),
        pytest.param(pod("p").node_affinity({}), (NodeSelectorTerm(),), id="an empty term is kept: it matches nothing"),
    ],
)
def test_required_node_affinity(builder: PodBuilder, terms: tuple[NodeSelectorTerm, ...] | None) -> None:
    assert builder.value().shape.node_terms == terms


def test_twins_share_one_shape() -> None:
    first, second = (pod(name).cpu(2).memory("1Gi").tolerating().value() for name in ("a", "b"))
    assert first.shape is second.shape


@pytest.mark.parametrize(
    ("raw", "key", "problem"),
    [
        pytest.param([], "", "not a JSON object", id="a list"),
        pytest.param({}, "", "name is missing", id="nothing"),
        pytest.param(pod("p").uid("").raw(), "default/p", "uid is missing", id="without uid"),
        pytest.param(pod("p").namespace("").raw(), "p", "namespace is missing", id="without namespace"),
        pytest.param(pod("p").cpu("much").raw(), "default/p", "'much' is not a quantity", id="a bad quantity"),
        pytest.param(
            pod("p").with_field("x", "spec", "nodeSelector").raw(),
            "default/p",
            "nodeSelector is not an object",
            id="a selector that is a word",
        ),
        pytest.param(
            pod("p").with_field(["x"], "spec", "containers").raw(),
            "default/p",
            "containers is not a list of objects",
            id="containers that are words",
        ),
    ],
)
def test_a_pod_that_cannot_be_used_says_why(raw: object, key: str, problem: str) -> None:
    assert decode_pod(raw) == Malformed("Pod", key, problem)


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        pytest.param(pod("p").unschedulable(), "", id="nobody ends it"),
        pytest.param(pod("p").unschedulable().disrupted(), "PreemptionByScheduler", id="a scheduler preempts it"),
        pytest.param(pod("p").disrupted("EvictionByEvictionAPI"), "EvictionByEvictionAPI", id="it is drained"),
        pytest.param(pod("p").disrupted(status="False"), "", id="it was to be ended, and was not"),
        pytest.param(pod("p").disrupted(""), "Disrupted", id="somebody ends it and does not say why"),
    ],
)
def test_who_ends_a_pod_beside_its_owner_is_known(builder: PodBuilder, expected: str) -> None:
    assert builder.value().disruption == expected


@pytest.mark.parametrize(
    ("builder", "victim", "follower"),
    [
        pytest.param(pod("p"), False, False, id="nobody ends it"),
        pytest.param(pod("p").disrupted(message="serried: preempted by PodGroup a/g"), True, False, id="for a gang"),
        pytest.param(pod("p").disrupted(message="serried: q is disrupted"), False, True, id="it goes with another one"),
        pytest.param(pod("p").disrupted(message="default-scheduler: preempting"), False, False, id="for a plain pod"),
        pytest.param(
            pod("p").disrupted("EvictionByEvictionAPI", message="serried: "), False, False, id="it is evicted by now"
        ),
    ],
)
def test_what_serried_has_written_on_a_pod_that_is_to_end_is_known(
    builder: PodBuilder,
    victim: bool,  # noqa: FBT001
    follower: bool,  # noqa: FBT001
) -> None:
    assert (builder.value().is_marked_victim, builder.value().is_marked_follower) == (victim, follower)


@pytest.mark.parametrize(
    ("builder", "seconds"),
    [
        pytest.param(pod("p"), 30, id="nobody has said how long"),
        pytest.param(pod("p").grace_period(600), 600, id="longer"),
        pytest.param(pod("p").grace_period(0), 0, id="at once"),
        pytest.param(pod("p").grace_period(-1), 0, id="before it begins"),
    ],
)
def test_how_long_it_may_take_to_end(builder: PodBuilder, seconds: int) -> None:
    assert builder.value().grace == seconds


def bound_as(gang: str, *apis: str) -> Pod:
    """A pod whose Binding has named this gang, where groups of these APIs are read."""
    found = decode_pod(pod("p").annotation("scheduling.serried.dev/gang", gang).raw(), apis)
    assert isinstance(found, Pod)
    return found


def test_a_pod_is_stranded_when_the_api_of_its_gang_is_not_read() -> None:
    assert bound_as("a/v1 g", "b/v1").stranded
    assert bound_as("a/v1 g", "b/v1").told
    assert bound_as("a word that is no API", "b/v1").stranded
    assert not bound_as("a/v1 g", "a/v1", "b/v1").stranded
    assert not bound_as("", "b/v1").stranded
    assert not bound_as("", "b/v1").told
    assert not pod("p").annotation("scheduling.serried.dev/gang", "a/v1 g").value().stranded


@pytest.mark.parametrize(
    ("builder", "unstarted", "ready"),
    [
        pytest.param(pod("p").phase("Pending"), True, False, id="it has no node"),
        pytest.param(pod("p").on("n1").phase("Pending"), True, False, id="its image is pulled"),
        pytest.param(pod("p").on("n1").phase("Running").ready("False"), False, False, id="it runs and is not Ready"),
        pytest.param(pod("p").on("n1").phase("Running").ready(), False, True, id="it is Ready"),
        pytest.param(pod("p").on("n1").phase("Unknown"), False, False, id="its node is silent"),
        pytest.param(pod("p").on("n1").phase("Failed"), False, False, id="it is over"),
    ],
)
def test_how_far_a_pod_has_come(builder: PodBuilder, unstarted: bool, ready: bool) -> None:  # noqa: FBT001
    assert (builder.value().unstarted, builder.value().ready) == (unstarted, ready)


def counted(count: str = "3") -> PodBuilder:
    """A pod of a pod group of Kueue."""
    return pod("p").in_counted_group("train", count)


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        pytest.param(counted(), "kueue:train:3", id="that of its label, with the number of its annotation"),
        pytest.param(
            pod("p").annotation(KUEUE_GROUP, "train").annotation(KUEUE_COUNT, "3"),
            "kueue:train:3",
            id="that of its annotation, where the name is too long for a label",
        ),
        pytest.param(pod("p").label(KUEUE_GROUP, "train"), None, id="none without a number"),
        pytest.param(pod("p").annotation(KUEUE_COUNT, "3"), None, id="none without a name"),
        pytest.param(counted("0"), None, id="none of no pods"),
        pytest.param(counted("-3"), None, id="none of fewer"),
        pytest.param(counted("3.0"), None, id="none of a fraction"),
        pytest.param(counted("9999999"), None, id="none of more pods than any cluster has"),
        pytest.param(counted().annotation(KUEUE_GROWING[0], "true"), None, id="none for a pod that serves"),
        pytest.param(counted().annotation(KUEUE_GROWING[1], "true"), None, id="none where one pod admits the others"),
        pytest.param(counted().in_group("other"), "other", id="the PodGroup that it names, which counts first"),
        pytest.param(counted().in_compatible_group("other"), "compatible:other", id="that of scheduler-plugins first"),
        pytest.param(counted().of_job("train", 0), None, id="none for a pod of a Job, whose gang it is in"),
    ],
)
def test_the_pod_group_of_kueue_is(builder: PodBuilder, expected: str | None) -> None:
    found = builder.value().group
    assert (found.encoded if found is not None else None) == expected
