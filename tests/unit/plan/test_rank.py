"""The order in which the members of a gang get their nodes."""

from itertools import permutations

import pytest

from serried.api.parent import OwnerKey, Parent, owner_key_of
from serried.plan.quorum import order_by_rank
from tests.support.builders import PodBuilder, pod
from tests.support.parents import JobSetBuilder, job_set, leader_worker_set


def training() -> JobSetBuilder:
    """Return a JobSet whose replicated Jobs are not in the order of their names."""
    return job_set("s").replicated("workers", replicas=2, pods=2).replicated("driver")


def in_set(name: str, stage: str, job: int = 0, index: int = 0) -> PodBuilder:
    return pod(name).of_job_set("s", stage, index, job)


CASES: list[tuple[str, list[Parent], list[PodBuilder]]] = [
    ("by completion index, not by name", [], [pod("b").of_job("j", 2), pod("a").of_job("j", 10)]),
    ("Job by Job", [], [pod("z").of_job("a", 7), pod("a").of_job("b", 0)]),
    ("of one index by name", [], [pod("a").of_job("j", 1), pod("b").of_job("j", 1)]),
    ("without an index by the number at the end of the name", [], [pod("m2"), pod("m10"), pod("n1")]),
    ("names of one number in a fixed order, too", [], [pod("m01"), pod("m1")]),
    ("those without an index before the others of their Job", [],
     [pod("z").controlled_by("Job", "j"), pod("a").of_job("j", 0)]),
    ("a leader before its workers", [leader_worker_set("s").size(2, 3).value()],
     [pod("z").of_replica("s", 0), pod("y").of_replica("s", 0, 1), pod("x").of_replica("s", 0, 2)]),
    ("replica by replica", [],
     [pod("z").of_replica("s", 2, 1), pod("y").of_replica("s", 10), pod("x").of_replica("s", 10, 1)]),
    ("a JobSet's pods as it lists their replicated Jobs, then Job by Job", [training().value()],
     [in_set("z", "workers", 0, 0), in_set("y", "workers", 0, 1), in_set("x", "workers", 1, 0), in_set("a", "driver")]),
    ("those of a JobSet that is not known by the names of its replicated Jobs", [],
     [in_set("z", "driver"), in_set("y", "workers", 0, 1), in_set("x", "workers", 1, 0)]),
    ("of any kinds together in some order", [],
     [pod("m1"), pod("a").of_job("j", 0), in_set("z", "driver"), pod("b").of_replica("t", 0)]),
]  # fmt: skip


@pytest.mark.parametrize(("parents", "ordered"), [pytest.param(p, o, id=sentence) for sentence, p, o in CASES])
def test_members_stand_in_order(parents: list[Parent], ordered: list[PodBuilder]) -> None:
    known: dict[OwnerKey, Parent] = {owner_key_of(parent): parent for parent in parents}
    names = [builder.value().name for builder in ordered]
    for arrival in permutations([builder.value() for builder in ordered]):
        assert [member.name for member in sorted(arrival, key=order_by_rank(known))] == names
