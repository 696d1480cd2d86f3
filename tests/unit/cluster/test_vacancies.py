from collections.abc import Sequence

import pytest

from serried.api.names import GroupKey
from serried.cluster.cache import EndedMembers, Store
from serried.cluster.usage import Vacancy, match_replacements
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, pod, pod_group

GROUP = GroupKey("default", "g")


def matched(dead: Sequence[PodBuilder], waiting: Sequence[PodBuilder]) -> dict[str, str]:
    """Return the names of the waiting pods by the names of the deleted ones that they replace."""
    vacancies = [Vacancy(GROUP, each.value()) for each in dead]
    return {
        vacancy.pod.name: replacement.name
        for vacancy, replacement in match_replacements(vacancies, [each.value() for each in waiting])
    }


def of_set(name: str) -> PodBuilder:
    return pod(name).controlled_by("ReplicaSet", "s")


@pytest.mark.parametrize(
    ("dead", "waiting", "expected"),
    [
        pytest.param([pod("a"), pod("b")], [pod("b").uid("new")], {"b": "b"}, id="one of the same name"),
        pytest.param(
            [pod("a").of_job("j", 0), pod("b").of_job("j", 1)],
            [pod("c").of_job("j", 1)],
            {"b": "c"},
            id="one of the same index",
        ),
        pytest.param(
            [pod("a").of_job("j", 0)], [pod("c").of_job("k", 0)], {}, id="but not the same index of another Job"
        ),
        pytest.param([pod("a").of_job("j", 0)], [pod("c").of_job("j", 1)], {}, id="nor another index of the same"),
        pytest.param([of_set("a")], [of_set("b"), of_set("c")], {"a": "b"}, id="the first of the same owner and shape"),
        pytest.param([of_set("a").cpu(1)], [of_set("b").cpu(2)], {}, id="but none of another shape"),
        pytest.param([of_set("a")], [pod("b")], {}, id="nor one of nobody"),
        pytest.param(
            [pod("a").cpu(1), pod("b").cpu(1)],
            [pod("c").cpu(1), pod("a").uid("new").cpu(1)],
            {"a": "a", "b": "c"},
            id="a name goes before a shape",
        ),
        pytest.param([pod("a").cpu(1)], [pod("a").uid("new").cpu(2)], {"a": "a"}, id="and needs no equal shape"),
    ],
)
def test_in_a_dead_members_place_comes(
    dead: list[PodBuilder], waiting: list[PodBuilder], expected: dict[str, str]
) -> None:
    assert matched(dead, waiting) == expected


def test_who_places_nobody_keeps_no_slots() -> None:
    store = Store(["default-scheduler"], rules=RULES)
    store.put_group(pod_group("g").gang(1).value())
    store.put_pod(pod("p").in_group("g").on("n").value())
    store.drop_pod("pod-p")
    assert (len(store.vacancies), store.occupancy.used) == (0, {})


def test_a_vacancy_is_found_by_the_member_that_left_it() -> None:
    vacancies = Store(["default-scheduler"], ended=EndedMembers.KEEP_SLOTS, rules=RULES).vacancies
    for name in ("a", "b"):
        vacancies.open(GroupKey("default", f"gang-{name}"), pod(name).on("n1").value(), "refused")
    found = vacancies.find(pod("b").value().uid)
    assert found is not None
    assert found.pod.name == "b"
    assert vacancies.find("nobody") is None
