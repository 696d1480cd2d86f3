"""The fallback API takes and refuses what scheduling.k8s.io/v1beta1 does."""

from typing import Any

import pytest

from tests.e2e.manifests.server import GROUP, Json, Server, changed

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def gang(name: str = "g", count: int = 4, **spec: Any) -> Json:
    return {
        "apiVersion": f"{GROUP}/v1beta1", "kind": "PodGroup", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, **spec},
    }  # fmt: skip


def template(name: str = "t", **fields: Any) -> Json:
    return {"name": name, "schedulingPolicy": {"gang": {"minCount": 2}}, **fields}


def workload(*templates: Json, name: str = "w", **spec: Any) -> Json:
    return {
        "apiVersion": f"{GROUP}/v1beta1", "kind": "Workload", "metadata": {"name": name, "namespace": "default"},
        "spec": {"podGroupTemplates": list(templates), **spec},
    }  # fmt: skip


def topology(*keys: str) -> Json:
    return {"topology": [{"key": key} for key in keys]}


FULL: Json = {
    "schedulingConstraints": topology("topology.kubernetes.io/rack"),
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    "disruptionMode": {"all": {}},
    "priorityClassName": "high",
    "priority": 1000000000,
}
JOB = {"apiGroup": "batch", "kind": "Job", "name": "train"}
REF = {"workloadName": "w", "templateName": "t"}

GOOD = [
    gang("full", workloadRef=REF, **FULL),
    gang("basic", schedulingPolicy={"basic": {}}),
    workload(*(template(f"t{number}") for number in range(8)), name="eight", controllerRef=JOB),
    workload(template(**FULL), name="full"),
]
BAD = [
    (gang(schedulingPolicy={}), "exactly one of basic and gang must be set"),
    (gang(schedulingPolicy={"basic": {}, "gang": {"minCount": 1}}), "exactly one of basic and gang must be set"),
    (gang(count=0), "should be greater than or equal to 1"),
    (gang(schedulingPolicy={"gang": {}}), "minCount: Required value"),
    (gang(disruptionMode={}), "exactly one of single and all must be set"),
    (gang(schedulingConstraints=topology("a", "b")), "must have at most 1 item"),
    (gang(schedulingConstraints=topology("not a key")), "must be a label key"),
    (gang(workloadRef={"workloadName": "w"}), "templateName: Required value"),
    (gang(workloadRef={**REF, "templateName": "a.b"}), "must be a DNS label"),
    (gang(workloadRef={**REF, "workloadName": "A"}), "must be a DNS subdomain"),
    (gang(priority=1000000001), "should be less than or equal to 1000000000"),
    (gang(resourceClaims=[{"name": str(n), "resourceClaimName": "c"} for n in range(5)]), "must have at most 4 items"),
    (gang(resourceClaims=[{"name": "c"}]), "exactly one of resourceClaimName and resourceClaimTemplateName"),
    (workload(), "should have at least 1 items"),
    (workload(*(template(f"t{number}") for number in range(9))), "must have at most 8 items"),
    (workload(template("t"), template("t")), "Duplicate value"),
    (workload(template("a.b")), "must be a DNS label"),
    (workload(template(schedulingPolicy={})), "exactly one of basic and gang must be set"),
    (workload(template(), controllerRef={**JOB, "name": "a/b"}), "must be a path segment"),
    (workload(template(), controllerRef={"kind": "Job"}), "name: Required value"),
    (workload(template("a", priority=1), template("b")), "all templates must have the same"),
]


def test_good_objects_are_taken(server: Server) -> None:
    written = server.write("create", *GOOD, options=("--dry-run=server",))
    assert written[1]["spec"]["disruptionMode"] == {"single": {}}
    assert [item["spec"].keys() - {"disruptionMode"} for item in written] == [
        item["spec"].keys() - {"disruptionMode"} for item in GOOD
    ]


@pytest.mark.parametrize(
    ("wrong", "message"), BAD, ids=lambda value: value if isinstance(value, str) else value["kind"]
)
def test_bad_objects_are_refused_with_a_reason(server: Server, wrong: Json, message: str) -> None:
    assert message in server.refusal("create", wrong)


FROZEN: list[tuple[str, object]] = [
    ("schedulingConstraints", topology("other")),
    ("schedulingConstraints", None),
    ("resourceClaims", None),
    ("disruptionMode", {"single": {}}),
    ("priorityClassName", "low"),
    ("priorityClassName", None),
    ("priority", 5),
    ("priority", None),
    ("schedulingPolicy", {"basic": {}}),
]


@pytest.mark.parametrize(("path", "value"), [*FROZEN, ("workloadRef", None), ("workloadRef.templateName", "other")])
def test_a_pod_group_is_immutable_but_for_min_count(server: Server, path: str, value: object) -> None:
    group = gang("frozen", workloadRef=REF, **FULL)
    server.write("apply", group)
    assert "immutable" in server.refusal("replace", changed(group, path, value))
    (updated,) = server.write("replace", changed(group, "schedulingPolicy.gang.minCount", 7))
    assert updated["spec"]["schedulingPolicy"]["gang"]["minCount"] == 7


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((f"podGroupTemplates.0.{path}", value) for path, value in FROZEN),
        ("controllerRef", None),
        ("controllerRef.name", "other"),
    ],
)
def test_a_workload_is_immutable_but_for_min_count(server: Server, path: str, value: object) -> None:
    item = workload(template(**FULL), name="frozen", controllerRef=JOB)
    server.write("apply", item)
    assert "immutable" in server.refusal("replace", changed(item, path, value))
    server.write("replace", changed(item, "podGroupTemplates.0.schedulingPolicy.gang.minCount", 7))


def test_templates_are_neither_added_nor_removed(server: Server) -> None:
    server.write("apply", workload(template("a"), template("b"), name="templates"))
    for templates in ([template("a")], [template("a"), template("b"), template("c")]):
        refused = server.refusal("replace", workload(*templates, name="templates"))
        assert "templates cannot be added or removed" in refused


def test_priority_may_be_resolved_once(server: Server) -> None:
    server.write("apply", gang("late"))
    server.write("replace", gang("late", priority=5))
    assert "priority is immutable once set" in server.refusal("replace", gang("late", priority=6))


def test_a_pod_group_shows_policy_and_status(server: Server) -> None:
    server.write("apply", gang("shown", workloadRef=REF))
    condition = {
        "type": "PodGroupInitiallyScheduled", "status": "False", "reason": "Unschedulable", "message": "NoCapacity",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    path = f"/apis/{GROUP}/v1beta1/namespaces/default/podgroups/shown"
    server.patch_status(path, {"conditions": [condition]})
    header, row = server.run("get", f"podgroups.{GROUP}", "shown").splitlines()
    assert header.split() == ["NAME", "POLICY", "WORKLOAD", "STATUS", "AGE"]
    assert row.split()[:4] == ["shown", '{"gang":{"minCount":4}}', "w", "Unschedulable"]


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
