"""Requests that count as writes while nothing happens."""

import pytest

from tests.chaos.mishaps import Request
from tests.chaos.writes import Writes

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups"
EVENTS = "/apis/events.k8s.io/v1/namespaces/ns/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/serried-system/leases"


@pytest.fixture
def writes() -> Writes:
    found = Writes()
    found.begin()
    return found


@pytest.mark.parametrize(
    ("process", "request_"),
    [
        pytest.param("extender", Request("PATCH", f"{GROUPS}/g/status?fieldManager=serried"), id="a status"),
        pytest.param("extender", Request("POST", EVENTS), id="an Event"),
        pytest.param("controller", Request("POST", f"{GROUPS.removesuffix('podgroups')}workloads"), id="a Workload"),
        pytest.param("scheduler", Request("POST", "/api/v1/namespaces/ns/pods/a/binding"), id="a Binding"),
        pytest.param("scheduler", Request("PATCH", "/api/v1/namespaces/ns/pods/a/status"), id="a pod's status"),
        pytest.param("controller", Request("DELETE", f"{GROUPS}/leases"), id="a group that is called leases"),
        pytest.param("extender", Request("POST", "/apis/coordination.k8s.io/v1beta1/leasecandidates"), id="no Lease"),
    ],
)
def test_a_write_at_rest_is_a_violation_whatever_it_changes(writes: Writes, process: str, request_: Request) -> None:
    writes.take(process, request_)
    writes.take(process, request_)
    subject = f"{process} {request_.method} {request_.target.partition('?')[0]}"
    assert writes.describe() == [{"rule": "write at rest", "subject": subject, "text": "sent 2 times"}]


@pytest.mark.parametrize(
    ("process", "request_"),
    [
        pytest.param("extender", Request("GET", GROUPS), id="a list"),
        pytest.param("controller", Request("PUT", f"{LEASES}/serried-controller"), id="a Lease that is renewed"),
        pytest.param("scheduler", Request("POST", LEASES), id="a Lease that is made"),
        pytest.param("extender", Request("POST", "/apis/authentication.k8s.io/v1/tokenreviews"), id="a token"),
        pytest.param("extender", Request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"), id="a right"),
        pytest.param("scheduler", Request("PATCH", f"{EVENTS}/e"), id="kube-scheduler's look after five minutes"),
    ],
)
def test_what_goes_on_at_rest_is_none(writes: Writes, process: str, request_: Request) -> None:
    writes.take(process, request_)
    assert writes.describe() == []


def test_before_and_after_the_rest_everybody_may_write() -> None:
    writes = Writes()
    writes.take("extender", Request("POST", EVENTS))
    writes.begin()
    writes.end()
    writes.take("extender", Request("POST", EVENTS))
    assert writes.describe() == []
