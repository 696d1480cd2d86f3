"""The fallback API takes and refuses what scheduling.k8s.io does, and says why."""

import pytest

from serried.api.level import READY
from serried.api.names import OWNER
from tests.e2e.manifests.endpoint import Endpoint, ours
from tests.e2e.manifests.objects import (
    JOB,
    REF,
    branch,
    composite,
    gang,
    largest,
    template,
    topology,
    tree,
    workload,
)
from tests.e2e.manifests.rules import (
    ALLOWED,
    BAD,
    BAD_STATUS,
    CLAIMING,
    CONDITION,
    GOOD,
    REFUSED,
    Bad,
    BadStatus,
    Change,
)
from tests.e2e.manifests.server import GROUP, Json, Server, changed

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="session")
def api(server: Server) -> Endpoint:
    return ours(server.cluster)


def test_good_objects_are_taken_as_they_are(api: Endpoint) -> None:
    for item in GOOD:
        taken = api.rehearse(item)["spec"]
        assert {**taken, "disruptionMode": None} == {**item["spec"], "disruptionMode": None}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.sentence)
def test_a_bad_object_is_refused_with_a_reason(api: Endpoint, bad: Bad) -> None:
    assert bad.message in api.refusal(bad.item)


@pytest.mark.parametrize("item", CLAIMING, ids=["a PodGroup", "a template", "a template at the bottom"])
def test_claims_that_nobody_would_make_are_refused_and_the_sentence_says_what_to_do(api: Endpoint, item: Json) -> None:
    said = api.refusal(item)
    assert "nothing would make the claims. Name ResourceClaims in the pods instead, or use scheduling.k8s.io" in said


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.sentence)
def test_a_change_of_what_is_fixed_is_refused_with_a_reason(api: Endpoint, change: Change) -> None:
    stored = api.keep(change.item)
    assert change.message in api.refusal(changed(stored, change.path, change.value), "replace")


@pytest.mark.parametrize("change", ALLOWED, ids=lambda change: change.sentence)
def test_what_may_change_may_be_changed(api: Endpoint, change: Change) -> None:
    wanted = changed(api.keep(change.item), change.path, change.value)
    assert api.rehearse(wanted, "replace")["spec"] == wanted["spec"]


def test_a_change_names_the_version_that_it_changes(api: Endpoint) -> None:
    stored = api.keep(gang("versioned"))
    del stored["metadata"]["resourceVersion"]
    assert "metadata.resourceVersion: Invalid value" in api.refusal(stored, "replace")


@pytest.mark.parametrize("item", [gang("late"), composite("late")], ids=lambda item: item["kind"])
def test_a_priority_may_be_filled_in_once(server: Server, api: Endpoint, item: Json) -> None:
    stored = api.keep(item)
    server.write("replace", changed(stored, "priority", 5))
    assert "priority is immutable once set" in api.refusal(changed(api.keep(item), "priority", 6), "replace")


def test_an_unknown_priority_class_is_taken_and_an_empty_one_refused(api: Endpoint) -> None:
    api.rehearse(gang(priorityClassName="nobody"))
    assert "priorityClassName" in api.refusal(workload(template(priorityClassName="")))


def test_the_largest_tree_stays_within_the_budget_of_its_rules(api: Endpoint) -> None:
    item = largest()
    assert api.rehearse(item)["spec"] == item["spec"]
    last = ".".join(["compositePodGroupTemplates.7"] * 3)
    twice = changed(item, f"{last}.podGroupTemplates.7.name", "c0")
    assert "key c0 already exists evaluating rule: names of templates must be unique" in api.refusal(twice)


# --- defaults, status, columns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [gang("modest"), composite("modest")], ids=lambda item: item["kind"])
def test_the_disruption_mode_is_single_unless_said(api: Endpoint, item: Json) -> None:
    assert api.rehearse(item)["spec"]["disruptionMode"] == {"single": {}}


def test_a_template_has_no_default(api: Endpoint) -> None:
    item = tree(branch("c", template()))
    assert api.rehearse(item)["spec"] == item["spec"]


@pytest.mark.parametrize("bad", BAD_STATUS, ids=lambda bad: bad.sentence)
def test_a_bad_status_is_refused_with_a_reason(api: Endpoint, bad: BadStatus) -> None:
    assert bad.message in api.status_refusal({**api.keep(bad.item), "status": bad.status})


@pytest.mark.parametrize("item", [gang("two-halves"), composite("two-halves")], ids=lambda item: item["kind"])
def test_spec_and_status_are_written_apart(api: Endpoint, item: Json) -> None:
    status = {"conditions": [CONDITION]}
    stored = api.keep({**item, "status": status})
    assert "status" not in stored
    written = api.write_status({**changed(stored, "schedulingConstraints", topology("a")), "status": status})
    assert (written["spec"], written["status"]) == (stored["spec"], status)
    assert written["metadata"]["generation"] == 1
    assert api.rehearse({**written, "status": {}}, "replace")["status"] == status


SHORT = {
    "workloads": "swl",
    "podgroups": "spg",
    "compositepodgroups": "scpg",
    "reservations": "srsv",
    "topologylevels": "stl",
}


def test_kinds_have_short_names_a_category_and_a_status_of_their_own(api: Endpoint) -> None:
    kinds = {kind["name"]: kind for kind in api.kinds()}
    assert {name: kinds[name]["shortNames"] for name in SHORT} == {name: [short] for name, short in SHORT.items()}
    assert all(kinds[name]["categories"] == ["serried"] for name in SHORT)
    with_status = {"podgroups", "compositepodgroups", "topologylevels"}
    assert {name for name in kinds if "/" in name} == {f"{name}/status" for name in with_status}


def shown(server: Server, short: str, *options: str) -> dict[str, str]:
    """Return the cells that kubectl prints for the object "shown", by column; no cell here has a space in it."""
    header, row = server.run("get", short, "shown", *options).splitlines()
    return dict(zip(header.split(), row.split(), strict=True))


def test_a_workload_shows_its_controller(api: Endpoint, server: Server) -> None:
    api.keep(workload(template(), name="shown", controllerRef=JOB))
    columns = shown(server, "swl")
    assert [*columns] == ["NAME", "CONTROLLER", "AGE"]
    assert columns["CONTROLLER"] == "train"


def test_a_pod_group_shows_whose_it_is_how_far_it_is_and_why_it_waits(api: Endpoint, server: Server) -> None:
    item = gang("shown", workloadRef=REF)
    api.keep({**item, "metadata": {**item["metadata"], "annotations": {OWNER: "job/train"}}})
    path = f"/apis/{GROUP}/v1beta1/namespaces/default/podgroups/shown"
    ready = {**CONDITION, "type": READY, "reason": "NoDomainFits", "message": "0/4"}
    server.patch_status(path, {"conditions": [CONDITION, ready]})
    columns = shown(server, "spg")
    assert [*columns] == ["NAME", "OWNER", "READY", "REASON", "AGE"]
    assert [*columns.values()][:4] == ["shown", "job/train", "0/4", "NoDomainFits"]
    wide = shown(server, "spg", "-o", "wide")
    assert (wide["WORKLOAD"], wide["MESSAGE"]) == ("w", "NoCapacity")


def test_a_composite_pod_group_shows_how_many_of_its_groups_stand(api: Endpoint, server: Server) -> None:
    api.keep(composite("shown"))
    path = f"/apis/{GROUP}/v1beta1/namespaces/default/compositepodgroups/shown"
    server.patch_status(path, {"conditions": [{**CONDITION, "type": READY, "reason": "NoCapacity", "message": "1/2"}]})
    columns = shown(server, "scpg")
    assert [*columns] == ["NAME", "READY", "REASON", "AGE"]
    assert [*columns.values()][:3] == ["shown", "1/2", "NoCapacity"]


def test_a_reservation_is_kept_whole(server: Server) -> None:
    record = {
        "apiVersion": f"{GROUP}/v1beta1", "kind": "Reservation", "metadata": {"name": "g", "namespace": "default"},
        "spec": {
            "podGroup": "g", "podGroupUID": "u", "phase": "Planned", "domain": "r1", "term": "me", "minCount": 0,
            "slots": [{"node": "n1", "class": "c", "members": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]}],
        },
    }  # fmt: skip
    (written,) = server.write("apply", record)
    assert written["spec"] == record["spec"]
    assert "Unsupported value" in server.refusal("replace", changed(record, "phase", "Guessed"))
