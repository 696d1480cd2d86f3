"""PodGroups of scheduler-plugins, and what names them."""

import math

import pytest

from serried.api.group import BASIC, Policy, decode_compatible_group
from serried.api.job import is_gang_job
from serried.api.names import COMPATIBLE_API, GroupKey, GroupKind, Malformed, ObjectReference, OwnerRef
from serried.api.pod import Link
from serried.api.reservation import name_record
from tests.support.builders import RACK, CompatibleGroupBuilder, PodBuilder, compatible_group, job, pod

THEIRS = GroupKey("default", "g", GroupKind.COMPATIBLE)
OURS = GroupKey("default", "h")
TEMPLATE_LABEL = ("spec", "template", "metadata", "labels", "scheduling.x-k8s.io/pod-group")


def test_a_group_has_its_quorum_its_key_its_patience_and_its_owner() -> None:
    group = compatible_group("g").gang(3).topology().timeout(30).controlled_by("PyTorchJob", "t", "u").value()
    assert (group.key, group.uid) == (THEIRS, "compatible-g")
    assert (group.policy, group.topology_key, group.timeout) == (Policy(3), RACK, 30)
    assert group.owners == (OwnerRef("PyTorchJob", "t", "u", controller=True),)


def test_references_name_the_object_by_its_own_name() -> None:
    group = compatible_group("g").gang(3).value()
    assert group.object_reference("scheduling.k8s.io/v1beta1") == ObjectReference(COMPATIBLE_API, "PodGroup", "g")


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(compatible_group("g"), id="without minMember"),
        pytest.param(compatible_group("g").gang(0), id="with minMember 0"),
        pytest.param(compatible_group("g").with_field(None, "spec"), id="without spec"),
    ],
)
def test_members_of_a_group_without_quorum_go_one_by_one_as_with_the_coscheduling_plugin(
    builder: CompatibleGroupBuilder,
) -> None:
    assert builder.value().policy == BASIC


@pytest.mark.parametrize("seconds", [0, -1, None])
def test_a_timeout_that_nobody_could_keep_is_none(seconds: object) -> None:
    group = compatible_group("g").gang(2).with_field(seconds, "spec", "scheduleTimeoutSeconds").value()
    assert group.timeout == math.inf


@pytest.mark.parametrize(
    ("phase", "ran"),
    [("", False), ("Pending", False), ("Scheduling", False), ("Unknown", False),
     ("Running", True), ("Finished", True), ("Failed", True)],
)  # fmt: skip
def test_its_phase_says_whether_it_has_run(phase: str, ran: bool) -> None:  # noqa: FBT001 - a column of the table
    assert compatible_group("g").gang(2).phase(phase).value().scheduled is ran


def test_a_quorum_that_is_a_word_is_malformed() -> None:
    raw = compatible_group("g").with_field("many", "spec", "minMember").raw()
    assert decode_compatible_group(raw) == Malformed("PodGroup", "default/g", "minMember is not an integer")


@pytest.mark.parametrize(
    ("builder", "group", "link"),
    [
        pytest.param(pod("p").in_compatible_group("g"), THEIRS, Link.COMPATIBLE, id="by their label"),
        pytest.param(
            pod("p").in_compatible_group("g").labelled_group("h"), OURS, Link.LABEL, id="our label before theirs"
        ),
        pytest.param(pod("p").in_compatible_group("g").in_group("h"), OURS, Link.FIELD, id="the field before theirs"),
        pytest.param(pod("p").in_compatible_group(""), None, None, id="an empty label is no group"),
        pytest.param(pod("p").in_compatible_group("g").of_job("j", 0), THEIRS, Link.COMPATIBLE, id="before the Job"),
    ],
)
def test_a_pod_names_its_group(builder: PodBuilder, group: GroupKey | None, link: Link | None) -> None:
    decoded = builder.value()
    assert (decoded.group, decoded.link) == (group, link)


def test_a_job_whose_template_names_such_a_group_is_not_ours_to_make_one_for() -> None:
    asked = job("j").size(4).scheduler("serried").gang_policy("JobAsGang")
    assert is_gang_job(asked.value(), ["serried"])
    assert not is_gang_job(asked.with_field("g", *TEMPLATE_LABEL).value(), ["serried"])


def test_groups_of_one_name_and_two_kinds_have_records_of_their_own() -> None:
    ours, theirs = name_record(GroupKey("default", "g")), name_record(THEIRS)
    assert ours == "g"
    assert theirs.startswith("compatible.g-")
    assert theirs != name_record(GroupKey("default", "compatible.g"))
