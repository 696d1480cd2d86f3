from collections.abc import Callable
from itertools import permutations

import pytest

from serried.cluster.usage import Occupancy, UsageSource

ONE_CPU = (("cpu", 1000), ("pods", 1))
TWO_CPUS = (("cpu", 2000), ("pods", 1))
ORDERS = list(permutations(UsageSource))


@pytest.mark.parametrize("kinds", ORDERS, ids=lambda kinds: " then ".join(kind.name for kind in kinds))
def test_a_pod_counts_once_in_whatever_order_its_sources_come(kinds: tuple[UsageSource, ...]) -> None:
    occupancy = Occupancy()
    for kind in kinds:
        occupancy.add_usage("p", kind, "n1", ONE_CPU)
        assert occupancy.used == {"n1": {"cpu": 1000, "pods": 1}}


@pytest.mark.parametrize("kinds", ORDERS, ids=lambda kinds: " then ".join(kind.name for kind in kinds))
def test_a_pod_counts_until_its_last_source_is_released_in_whatever_order(kinds: tuple[UsageSource, ...]) -> None:
    occupancy = Occupancy()
    for kind in UsageSource:
        occupancy.add_usage("p", kind, "n1", ONE_CPU)
    for kind in kinds:
        assert occupancy.node_of("p") == "n1"
        occupancy.release("p", kind)
    assert occupancy.node_of("p") is None
    assert occupancy.used == {}


def test_the_highest_source_says_where_a_pod_is() -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.BOUND, "n3", ONE_CPU)
    occupancy.add_usage("p", UsageSource.RESERVED, "n1", ONE_CPU)
    occupancy.add_usage("p", UsageSource.ASSUMED, "n2", ONE_CPU)
    assert set(occupancy.used) == {"n3"}
    occupancy.release("p", UsageSource.BOUND)
    assert set(occupancy.used) == {"n2"}
    occupancy.release("p", UsageSource.ASSUMED)
    assert set(occupancy.used) == {"n1"}


def test_pods_on_one_node_add_up_and_leave_one_by_one() -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)
    occupancy.add_usage("q", UsageSource.RESERVED, "n1", TWO_CPUS)
    assert occupancy.used["n1"] == {"cpu": 3000, "pods": 2}
    occupancy.forget("p")
    assert occupancy.used["n1"] == {"cpu": 2000, "pods": 1}


@pytest.mark.parametrize("kind", [UsageSource.RESERVED, UsageSource.ASSUMED], ids=["its slot", "its bind call"])
def test_what_is_kept_for_a_pod_follows_when_it_is_resized(kind: UsageSource) -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", kind, "n1", ONE_CPU)
    occupancy.resize("p", TWO_CPUS)
    assert occupancy.used == {"n1": {"cpu": 2000, "pods": 1}}
    before = occupancy.freed
    occupancy.resize("p", ONE_CPU)
    assert occupancy.used == {"n1": {"cpu": 1000, "pods": 1}}
    assert occupancy.freed > before
    occupancy.release("p", kind)
    assert occupancy.used == {}


def test_a_slot_that_a_dead_member_left_stays_as_large_as_that_was() -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.VACANT, "n1", ONE_CPU)
    occupancy.resize("p", TWO_CPUS)
    assert occupancy.used == {"n1": {"cpu": 1000, "pods": 1}}


def test_nobody_is_resized_who_counts_nowhere() -> None:
    occupancy = Occupancy()
    occupancy.resize("p", TWO_CPUS)
    assert occupancy.used == {}


def test_a_usage_that_is_added_again_with_other_requests_replaces_the_first() -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)
    occupancy.add_usage("p", UsageSource.BOUND, "n1", TWO_CPUS)
    assert occupancy.used["n1"]["cpu"] == 2000


def test_forgetting_drops_every_source_and_leaves_nothing_behind() -> None:
    occupancy = Occupancy()
    for kind in UsageSource:
        occupancy.add_usage("p", kind, "n1", ONE_CPU)
    occupancy.forget("p")
    assert occupancy.used == {}
    for kind in UsageSource:
        occupancy.release("p", kind)
    assert occupancy.freed == 1


def test_releasing_what_was_never_used_changes_nothing() -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)
    occupancy.release("p", UsageSource.RESERVED)
    occupancy.release("stranger", UsageSource.BOUND)
    occupancy.forget("stranger")
    assert occupancy.used == {"n1": {"cpu": 1000, "pods": 1}}
    assert occupancy.freed == 0


def bind(occupancy: Occupancy) -> None:
    occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)


def leave(occupancy: Occupancy) -> None:
    occupancy.forget("p")


def give_up(occupancy: Occupancy) -> None:
    occupancy.release("p", UsageSource.RESERVED)


def land_elsewhere(occupancy: Occupancy) -> None:
    occupancy.add_usage("p", UsageSource.BOUND, "n2", ONE_CPU)


@pytest.mark.parametrize(
    ("happen", "frees"),
    [
        pytest.param(bind, 0, id="a reserved pod is bound to its node: nothing is freed"),
        pytest.param(leave, 1, id="the pod is gone: its room is free"),
        pytest.param(give_up, 1, id="the reservation is given up: its room is free"),
        pytest.param(land_elsewhere, 1, id="the pod is bound to another node: the reserved room is free"),
    ],
)
def test_freed_counts_when_room_appears_and_only_then(happen: Callable[[Occupancy], None], frees: int) -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.RESERVED, "n1", ONE_CPU)
    happen(occupancy)
    assert occupancy.freed == frees


def test_the_last_lower_sources_go_without_freeing_anything() -> None:
    occupancy = Occupancy()
    occupancy.add_usage("p", UsageSource.RESERVED, "n1", ONE_CPU)
    occupancy.add_usage("p", UsageSource.ASSUMED, "n1", ONE_CPU)
    occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)
    occupancy.release("p", UsageSource.RESERVED)
    occupancy.release("p", UsageSource.ASSUMED)
    assert occupancy.freed == 0


class TestHandingOver:
    def test_the_usage_goes_on_under_the_replacements_uid_and_nothing_is_ever_free(self) -> None:
        occupancy = Occupancy()
        occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)
        occupancy.hand_over("p", UsageSource.BOUND, "q")
        assert (occupancy.node_of("p"), occupancy.node_of("q")) == (None, "n1")
        assert occupancy.used == {"n1": {"cpu": 1000, "pods": 1}}
        assert occupancy.freed == 0

    def test_what_else_was_recorded_goes(self) -> None:
        occupancy = Occupancy()
        occupancy.add_usage("p", UsageSource.VACANT, "n1", ONE_CPU)
        occupancy.add_usage("p", UsageSource.RESERVED, "n2", TWO_CPUS)
        occupancy.hand_over("p", UsageSource.VACANT, "q")
        assert occupancy.used == {"n1": {"cpu": 1000, "pods": 1}}

    def test_a_replacement_that_counts_elsewhere_goes_on_counting_there(self) -> None:
        occupancy = Occupancy()
        occupancy.add_usage("p", UsageSource.BOUND, "n1", ONE_CPU)
        occupancy.add_usage("q", UsageSource.RESERVED, "n2", ONE_CPU)
        occupancy.hand_over("p", UsageSource.BOUND, "q")
        assert set(occupancy.used) == {"n2"}
        occupancy.release("q", UsageSource.RESERVED)
        assert set(occupancy.used) == {"n1"}

    def test_nothing_is_handed_over_where_nothing_is_used(self) -> None:
        occupancy = Occupancy()
        occupancy.add_usage("p", UsageSource.RESERVED, "n1", ONE_CPU)
        occupancy.hand_over("p", UsageSource.BOUND, "q")
        assert (occupancy.node_of("p"), occupancy.node_of("q")) == ("n1", None)
