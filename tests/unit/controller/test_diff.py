from typing import TypeVar

import pytest

from controller.diff.changes import (
    Change,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    Observed,
    ReportAmbiguous,
    SetMinCount,
)
from controller.diff.objects import desired_count, job_template, successor_name, workload_name
from controller.diff.owner import DesiredAction, MinCountUpdate, make_pod_group_create
from controller.diff.owner import diff as changes_of
from serried.api.group import BASIC, Policy
from serried.api.parent import JOB_UID, MANAGED_BY, MANAGER, Owner
from tests.support.builders import PodGroupBuilder, WorkloadBuilder, job, pod_group, workload

B = TypeVar("B", PodGroupBuilder, WorkloadBuilder)

GANG = job("train").size(3).scheduler("serried")
OURS = workload("train-x").for_job("train").gang_template("train-pgt-0", 3)
GROUP = pod_group("train-g").gang(3).from_template("train-x", "train-pgt-0")


def diff(owner: Owner, found: Observed, action: DesiredAction, update: MinCountUpdate) -> list[Change]:
    return list(changes_of(owner, found, action, update))


def test_a_gang_gets_its_workload_first() -> None:
    gang = GANG.value()
    assert diff(gang, Observed(), DesiredAction.START, MinCountUpdate.PATCH) == [
        CreateWorkload(gang, workload_name(gang), (job_template(gang, Policy(3)),))
    ]


@pytest.mark.parametrize("action", [DesiredAction.START, DesiredAction.COMPLETE])
def test_a_workload_without_pod_group_is_completed(action: DesiredAction) -> None:
    (change,) = diff(GANG.value(), Observed([OURS.value()]), action, MinCountUpdate.PATCH)
    assert isinstance(change, CreatePodGroup)
    assert change.workload == OURS.value()
    assert change.name.startswith("train-x-train-pgt-0-")


@pytest.mark.parametrize(
    ("found", "action"),
    [
        pytest.param(Observed(), DesiredAction.COMPLETE, id="nothing is begun for a Job that runs"),
        pytest.param(Observed(), DesiredAction.NONE, id="nothing is begun for a Job of others"),
        pytest.param(Observed([OURS.value()]), DesiredAction.NONE, id="nothing is completed for a Job of others"),
        pytest.param(Observed([OURS.value()], [GROUP.value()]), DesiredAction.START, id="all is there"),
        pytest.param(
            Observed([OURS.value()], [GROUP.gang(7).value()]), DesiredAction.START, id="what differs is not changed"
        ),
        pytest.param(
            Observed([workload("theirs").for_job("train").basic_template("t").value()], [GROUP.value()]),
            DesiredAction.START,
            id="a foreign Workload and PodGroup are used as they are",
        ),
        pytest.param(
            Observed([OURS.value(), OURS.value()]), DesiredAction.NONE, id="ambiguity of others' Jobs is not ours"
        ),
    ],
)
def test_nothing_is_to_be_done(found: Observed, action: DesiredAction) -> None:
    assert diff(GANG.value(), found, action, MinCountUpdate.PATCH) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(
            Observed([OURS.value(), workload("theirs").for_job("train").gang_template("t", 2).value()]),
            ["train-x, theirs"],
            id="two Workloads",
        ),
        pytest.param(
            Observed([OURS.gang_template("more", 2).value()]), ["train-x", "2 PodGroup templates"], id="two templates"
        ),
        pytest.param(
            Observed([workload("theirs").for_job("train").value()]), ["theirs", "0 PodGroup"], id="no template"
        ),
        pytest.param(
            Observed([OURS.value()], [GROUP.value(), pod_group("other").value()]),
            ["train-g, other"],
            id="two PodGroups",
        ),
    ],
)
def test_ambiguity_is_told_by_name(found: Observed, words: list[str]) -> None:
    (change,) = diff(GANG.value(), found, DesiredAction.START, MinCountUpdate.PATCH)
    assert isinstance(change, ReportAmbiguous)
    assert all(word in change.problem for word in words)


def test_what_we_made_beside_two_workloads_of_users_goes() -> None:
    gang = GANG.value()
    theirs = [workload(name).for_job("train").gang_template("t", 2).value() for name in ("one", "two")]
    told, *deletes = diff(
        gang, Observed(theirs, outdated=[MADE_GROUP, MADE]), DesiredAction.START, MinCountUpdate.PATCH
    )
    assert isinstance(told, ReportAmbiguous)
    assert deletes == [Delete(gang, MADE_GROUP), Delete(gang, MADE)]


@pytest.mark.parametrize(
    ("parallelism", "completions", "count"),
    [
        pytest.param(8, 8, 8, id="a gang of all"),
        pytest.param(8, 5, 5, id="no more than there is to complete"),
        pytest.param(3, 9, 3, id="no more than run at a time"),
    ],
)
def test_the_quorum_is_the_smaller_of_parallelism_and_completions(
    parallelism: int, completions: int, count: int
) -> None:
    assert desired_count(job("a").size(parallelism, completions).value()) == count


def ours(builder: B) -> B:
    """Add the labels that name the controller as author, and the Job."""
    return builder.label(MANAGED_BY, MANAGER).label(JOB_UID, "job-train")


LARGER = job("train").size(5).scheduler("serried").value()
MADE, MADE_GROUP = ours(OURS).value(), ours(GROUP).value()
FOLLOWED_GROUP = ours(GROUP.gang(5)).value()
FOLLOWED = ours(workload("train-x").for_job("train").gang_template("train-pgt-0", 5)).value()


@pytest.mark.parametrize(
    ("found", "follow", "actions"),
    [
        pytest.param(
            Observed([MADE], [MADE_GROUP]),
            MinCountUpdate.PATCH,
            [SetMinCount(LARGER, MADE, 5), SetMinCount(LARGER, MADE_GROUP, 5)],
            id="both are changed where minCount can be",
        ),
        pytest.param(
            Observed([FOLLOWED], [MADE_GROUP]),
            MinCountUpdate.PATCH,
            [SetMinCount(LARGER, MADE_GROUP, 5)],
            id="the one that lags behind",
        ),
        pytest.param(
            Observed([MADE], [MADE_GROUP]),
            MinCountUpdate.REPLACE,
            [CreateWorkload(LARGER, successor_name(LARGER, 5), (job_template(LARGER, Policy(5)),), replaces=MADE.uid)],
            id="else its Workload gets a successor",
        ),
        pytest.param(
            Observed([FOLLOWED], outdated=[MADE_GROUP, MADE]),
            MinCountUpdate.REPLACE,
            [make_pod_group_create(LARGER, FOLLOWED, FOLLOWED.templates[0])],
            id="whose PodGroup comes next",
        ),
        pytest.param(
            Observed([FOLLOWED], [FOLLOWED_GROUP], [MADE_GROUP, MADE]),
            MinCountUpdate.REPLACE,
            [Delete(LARGER, MADE_GROUP), Delete(LARGER, MADE)],
            id="and then the predecessors go",
        ),
        pytest.param(
            Observed([MADE], [MADE_GROUP], [FOLLOWED]),
            MinCountUpdate.REPLACE,
            [Delete(LARGER, FOLLOWED)],
            id="and they go before there is a third generation",
        ),
        pytest.param(
            Observed([FOLLOWED], [FOLLOWED_GROUP], [GROUP.value(), OURS.value()]),
            MinCountUpdate.REPLACE,
            [],
            id="others' predecessors are left to them",
        ),
        pytest.param(
            Observed([MADE], [MADE_GROUP]), MinCountUpdate.NEVER, [], id="nothing follows where that is refused"
        ),
        pytest.param(
            Observed([OURS.value()], [GROUP.value()]), MinCountUpdate.PATCH, [], id="others' objects never follow"
        ),
        pytest.param(
            Observed([MADE], [GROUP.value()]),
            MinCountUpdate.PATCH,
            [SetMinCount(LARGER, MADE, 5)],
            id="nor a PodGroup that a user has made from our Workload",
        ),
        pytest.param(
            Observed([OURS.value()], [MADE_GROUP]),
            MinCountUpdate.PATCH,
            [],
            id="nor what we made from a user's Workload",
        ),
    ],
)
def test_min_count_follows_an_elastic_job(found: Observed, follow: MinCountUpdate, actions: list[Change]) -> None:
    assert diff(LARGER, found, DesiredAction.COMPLETE, follow) == actions


def test_a_gang_whose_parallelism_is_0_stays_what_it_was() -> None:
    paused = job("train").size(0, 3).scheduler("serried").value()
    assert diff(paused, Observed([MADE], [MADE_GROUP]), DesiredAction.COMPLETE, MinCountUpdate.PATCH) == []


def test_a_released_job_loses_its_pod_group_and_then_its_workload() -> None:
    gang = GANG.value()
    assert diff(gang, Observed([MADE], [MADE_GROUP]), DesiredAction.RELEASE, MinCountUpdate.PATCH) == [
        Delete(gang, MADE_GROUP)
    ]
    assert diff(gang, Observed([MADE]), DesiredAction.RELEASE, MinCountUpdate.PATCH) == [Delete(gang, MADE)]
    assert diff(gang, Observed(), DesiredAction.RELEASE, MinCountUpdate.PATCH) == []


def test_a_released_job_loses_what_was_replaced_first() -> None:
    gang, found = GANG.value(), Observed([OURS.value()], [GROUP.value()], [MADE_GROUP, MADE])
    assert diff(gang, found, DesiredAction.RELEASE, MinCountUpdate.PATCH) == [
        Delete(gang, MADE_GROUP),
        Delete(gang, MADE),
    ]


def test_a_release_leaves_the_objects_of_others() -> None:
    assert (
        diff(GANG.value(), Observed([OURS.value()], [GROUP.value()]), DesiredAction.RELEASE, MinCountUpdate.PATCH) == []
    )


def test_a_tracked_job_gets_a_workload_with_policy_basic() -> None:
    tracked = GANG.not_indexed().value()
    (change,) = diff(tracked, Observed(), DesiredAction.TRACK, MinCountUpdate.PATCH)
    assert change == CreateWorkload(tracked, workload_name(tracked), (job_template(tracked, BASIC),))
    basic = ours(workload("train-x").for_job("train").basic_template("t")).value()
    assert diff(tracked, Observed([basic], [MADE_GROUP]), DesiredAction.COMPLETE, MinCountUpdate.NEVER) == []
