"""scheduling.k8s.io of Kubernetes 1.37 refuses the same objects and changes as the fallback API, in words of its own.

What it lets through, or refuses, other than we do is deliberate, and stands in docs/contributing/workload-api.md.
"""

import pytest

from tests.e2e.manifests.endpoint import Endpoint, upstream
from tests.e2e.manifests.objects import composite, gang, template, workload
from tests.e2e.manifests.rules import ALLOWED, BAD, BAD_STATUS, CLAIMING, GOOD, REFUSED, Bad, BadStatus, Change
from tests.e2e.manifests.server import Server, changed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.parametrize("bare", ["native"], indirect=True, scope="session"),
]


@pytest.fixture(scope="session")
def api(bare: Server) -> Endpoint:
    """With the class that the objects of the tables name: its priority is theirs, as upstream's admission asks."""
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    bare.write("apply", {**high, "value": 1000000000})
    return upstream(bare.cluster)


def test_good_objects_are_taken(api: Endpoint) -> None:
    for item in [*GOOD, *CLAIMING]:
        api.rehearse(item)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.sentence)
def test_a_bad_object_is_refused(api: Endpoint, bad: Bad) -> None:
    assert api.refusal(bad.item)


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.sentence)
def test_a_change_of_what_is_fixed_is_refused(api: Endpoint, change: Change) -> None:
    assert api.refusal(changed(api.keep(change.item), change.path, change.value), "replace")


@pytest.mark.parametrize("change", ALLOWED, ids=lambda change: change.sentence)
def test_what_may_change_may_be_changed(api: Endpoint, change: Change) -> None:
    api.rehearse(changed(api.keep(change.item), change.path, change.value), "replace")


@pytest.mark.parametrize("bad", BAD_STATUS, ids=lambda bad: bad.sentence)
def test_a_bad_status_is_refused(api: Endpoint, bad: BadStatus) -> None:
    assert api.status_refusal({**api.keep(bad.item), "status": bad.status})


@pytest.mark.parametrize("item", [gang("late"), composite("late")], ids=lambda item: item["kind"])
def test_a_priority_is_filled_in_at_once_and_not_later(api: Endpoint, item: dict[str, object]) -> None:
    stored = api.keep(item)
    assert stored["spec"]["priority"] == 0
    assert "immutable" in api.refusal(changed(stored, "priority", 5), "replace")


def test_an_empty_priority_class_is_none_and_an_unknown_one_is_refused(api: Endpoint) -> None:
    api.rehearse(workload(template(priorityClassName="")))
    assert "no PriorityClass with name nobody was found" in api.refusal(gang(priorityClassName="nobody"))
