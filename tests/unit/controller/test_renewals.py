"""A suspended Job whose wish has changed gets its objects anew: once for each change."""

import pytest

from controller.diff.changes import Observed
from controller.diff.owner import DesiredAction
from controller.reconciler import Renewals
from serried.api.job import Job
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import JobBuilder, job, pod, pod_group, workload

MADE, LEFT, ANEW = ("w", "g"), ("w",), ("w-anew",)
"""The existing objects: as created, after half of the deletes, and after another client has created new ones."""


def observe(names: tuple[str, ...]) -> Observed:
    workloads = [workload(name).for_job("j").gang_template("t", 2).value() for name in names[:1]]
    return Observed(workloads, [pod_group(name).from_template("w", "t").value() for name in names[1:]])


def begin(renewals: Renewals, owner: Job, *looks: tuple[str, ...]) -> list[bool]:
    return [renewals.try_begin(owner, observe(names), DesiredAction.START) for names in looks]


def suspended() -> JobBuilder:
    return job("j").size(2).scheduler("serried").suspended()


@pytest.mark.parametrize(
    ("looks", "begun"),
    [
        pytest.param([MADE], [True], id="they are given up"),
        pytest.param([MADE, MADE], [True, True], id="as long as they are there"),
        pytest.param([MADE, LEFT], [True, True], id="also when only some of them are left"),
        pytest.param([MADE, ANEW], [True, False], id="those that were made since stay"),
    ],
)
def test_the_objects_of_a_job(looks: list[tuple[str, ...]], begun: list[bool]) -> None:
    assert begin(Renewals(Store(["serried"], rules=RULES)), suspended().value(), *looks) == begun


def test_with_the_next_change_they_are_given_up_again() -> None:
    renewals = Renewals(Store(["serried"], rules=RULES))
    assert begin(renewals, suspended().value(), MADE, ANEW) == [True, False]
    assert begin(renewals, suspended().topology().value(), ANEW) == [True]


def test_while_pods_of_it_are_there_they_stay() -> None:
    store = Store(["serried"], rules=RULES)
    store.put_pod(pod("p").of_job("j", 0).value())
    assert begin(Renewals(store), suspended().value(), MADE) == [False]
