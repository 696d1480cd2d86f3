"""Bindings in the API server's audit log, and the ones that are defects."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.audit import AuditLog
from bench.failover.bindings import Answer, find_binding_defects, make_binding_log_flags
from bench.failover.witness import Witness

CREATED, CONFLICT, FAILED = 201, 409, 500


def line(pod: str, node: str, status: int, namespace: str = "ns") -> str:
    """A Binding as kube-apiserver writes it at level Request."""
    event = {
        "stage": "ResponseComplete",
        "verb": "create",
        "objectRef": {"resource": "pods", "subresource": "binding", "namespace": namespace, "name": pod},
        "requestObject": {"kind": "Binding", "metadata": {"name": pod, "uid": f"uid-{pod}"}, "target": {"name": node}},
        "responseStatus": {"metadata": {}, "code": status},
    }
    return json.dumps(event) + "\n"


class BoundPods:
    """An API server with pods, each on a node."""

    def __init__(self, nodes: dict[str, str]) -> None:
        self.nodes = nodes
        self.made_anew = False

    def post(self, path: str, body: object) -> None:
        pass

    def get(self, path: str) -> dict[str, Any]:
        nodes = dict.fromkeys(self.nodes, "") if self.made_anew else self.nodes
        prefix = "another" if self.made_anew else "uid"
        return {
            "items": [
                {"metadata": {"name": name, "uid": f"{prefix}-{name}"}, "spec": {"nodeName": node}}
                for name, node in nodes.items()
            ]
        }


@dataclass
class Noted:
    """A cluster that has its pods bound already, and an audit log."""

    spec: Spec
    api: BoundPods


def watch(spec: Spec, pods: BoundPods) -> Witness:
    return Witness(cast("Cluster", Noted(spec, pods)), "ns")


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return Spec(name="noted", server_flags=make_binding_log_flags(tmp_path))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def witness(spec: Spec, log: Path) -> Witness:
    """Two members of gang ring are bound, as was seen."""
    log.write_text(line("ring-0", "a", CREATED) + line("ring-0", "a", CREATED))
    made = watch(spec, BoundPods({"ring-0": "a", "ring-1": "b"}))
    assert made.count_bound("ring") == 2
    return made


def add(log: Path, *lines: str) -> None:
    with log.open("a") as more:
        more.writelines(lines)


def test_a_pod_for_which_two_bindings_are_accepted_is_a_defect(witness: Witness, log: Path) -> None:
    add(log, line("ring-0", "a", CREATED), line("ring-1", "b", CREATED), line("ring-0", "a", CREATED))
    assert witness.find_defects() == ("pod ring-0 was bound by 2 Bindings",)
    assert witness.count_accepted() == {"uid-ring-0": 2, "uid-ring-1": 1}


def test_one_that_is_sent_once_more_and_refused_is_counted_and_no_defect(witness: Witness, log: Path) -> None:
    add(log, line("ring-0", "a", CREATED), line("ring-1", "b", CREATED), line("ring-0", "a", CONFLICT))
    assert witness.find_defects() == ()
    assert witness.count_refused() == 1
    assert witness.count_accepted() == {"uid-ring-0": 1, "uid-ring-1": 1}


def test_one_that_is_refused_and_names_another_node_shows_that_the_pod_was_planned_twice(
    witness: Witness, log: Path
) -> None:
    add(log, line("ring-0", "a", CREATED), line("ring-1", "b", CREATED), line("ring-0", "b", CONFLICT))
    assert witness.find_defects() == ("pod ring-0 was on a, and a Binding to b was refused",)


def test_what_was_before_it_and_what_is_elsewhere_is_none_of_its_business(witness: Witness, log: Path) -> None:
    # Before it, ring-0 of the same namespace was bound twice.
    add(log, line("ring-0", "a", CREATED), line("ring-1", "b", CREATED), line("ring-0", "a", CREATED, "elsewhere"))
    assert witness.find_defects() == ()


def test_a_pod_that_is_made_anew_is_a_defect(spec: Spec, log: Path) -> None:
    pods = BoundPods({"ring-0": "a"})
    witness = watch(spec, pods)
    witness.count_bound("ring")
    pods.made_anew = True
    witness.count_bound("ring")
    add(log, line("ring-0", "a", CREATED))
    assert witness.find_defects() == ("pod ring-0 was made anew",)


def test_a_log_that_does_not_show_who_bound_a_pod_is_not_taken_for_a_good_one() -> None:
    answers = [Answer("ring-0", "0", "a", CREATED), Answer("ring-1", "1", "b", CONFLICT)]
    assert find_binding_defects(answers, {"0": "a", "1": "b", "2": "c"}) == [
        "pod ring-1 is bound, and the audit log has no Binding",
        "pod 2 is bound, and the audit log has no Binding",
    ]


def test_a_binding_whose_client_died_may_have_bound_the_pod_whatever_was_answered() -> None:
    assert (
        find_binding_defects([Answer("ring-0", "0", "a", FAILED), Answer("ring-0", "0", "a", CONFLICT)], {"0": "a"})
        == []
    )


def test_a_cluster_whose_api_server_notes_nothing_is_refused() -> None:
    with pytest.raises(ClusterError, match="cluster silent has no audit log"):
        AuditLog.of(Spec(name="silent"))


def test_a_line_that_is_being_written_at_the_mark_is_none_of_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log, begun, later = AuditLog(path), line("begun", "n1", CREATED), line("later", "n1", CREATED)
    path.write_text(line("before", "n1", CREATED) + begun[:40])
    mark = log.mark()
    path.write_text(line("before", "n1", CREATED) + begun + later)
    assert [event["objectRef"]["name"] for event in log.read(mark)] == ["later"]
