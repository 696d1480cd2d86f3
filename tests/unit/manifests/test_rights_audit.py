"""The API server's audit log, as the stories of rights read it."""

import json
from pathlib import Path

import pytest

from tests.e2e.roles.audit import Audit
from tests.e2e.roles.rights import Grant

WATCH_NODES = Grant("serried", "watch", "", "nodes")
BIND = Grant("serried", "create", "", "pods/binding")
UPDATE_LEASE = Grant("serried-scheduler", "update", "coordination.k8s.io", "leases", "serried")


def line(number: int, grant: Grant, code: int, stage: str = "ResponseComplete") -> str:
    """A line as kube-apiserver writes it at level Metadata."""
    resource, _, subresource = grant.resource.partition("/")
    target = {"resource": resource, "subresource": subresource, "apiGroup": grant.group, "name": grant.name}
    event = {
        "kind": "Event",
        "auditID": f"id-{number}",
        "stage": stage,
        "verb": grant.verb,
        "user": {"username": f"system:serviceaccount:serried-system:{grant.account}"},
        "objectRef": {name: value for name, value in target.items() if value},
        "responseStatus": {"metadata": {}, "code": code},
    }
    return json.dumps(event) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def test_a_request_that_is_refused_counts_once_in_how_many_lines_it_stands(log: Path) -> None:
    log.write_text(line(1, WATCH_NODES, 403, "ResponseStarted") + line(1, WATCH_NODES, 403) + line(2, WATCH_NODES, 403))
    assert Audit(log).count_refused(0, WATCH_NODES) == 2


def test_what_is_answered_in_another_way_is_not_refused(log: Path) -> None:
    log.write_text(line(1, WATCH_NODES, 422) + line(2, WATCH_NODES, 200, "ResponseStarted"))
    assert Audit(log).count_refused(0, WATCH_NODES) == 0
    assert Audit(log).find_unused(0, [WATCH_NODES, BIND]) == [BIND]


def test_a_right_without_a_name_is_about_every_object_and_one_with_a_name_about_that(log: Path) -> None:
    other = UPDATE_LEASE._replace(name="other")
    log.write_text(line(1, BIND._replace(name="ring-0"), 201) + line(2, other, 200))
    assert Audit(log).find_unused(0, [BIND, UPDATE_LEASE]) == [UPDATE_LEASE]


def test_what_was_there_before_does_not_count_nor_does_half_a_line(log: Path) -> None:
    log.write_text(line(1, BIND, 403))
    audit = Audit(log)
    mark = audit.mark()
    with log.open("a") as more:
        more.write(line(2, BIND, 403) + line(3, BIND, 403)[:40])
    assert audit.count_refused(mark, BIND) == 1


def test_a_request_for_no_object_is_nobody_s_right(log: Path) -> None:
    event = {"auditID": "id", "verb": "get", "user": {"username": "a"}, "responseStatus": {"code": 200}}
    log.write_text(json.dumps(event) + "\n")
    assert Audit(log).find_unused(0, [BIND]) == [BIND]
