"""kube-scheduler's filters as a program: how it is built, and that its answers are kube-scheduler's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import oracle
from bench.oracle import Oracle
from tests.support.builders import Raw, node, pod
from tests.support.devices import claim, claiming, counters, device_class, devices


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def scheduler() -> Iterator[Oracle]:
    program = oracle.find()
    if program is None:
        pytest.skip("needs kube-scheduler's filters: `make oracle` builds them, with Go")
    with Oracle(program) as found:
        yield found


@pytest.mark.usefixtures("empty_cache")
def test_without_go_it_is_said_where_to_get_it() -> None:
    assert oracle.find() is None
    with pytest.raises(oracle.OracleError, match="built with Go, and there is no 'go' in PATH"):
        oracle.build()


def test_a_build_that_fails_is_told_in_gos_words_and_leaves_no_program(empty_cache: Path) -> None:
    (empty_cache / "go").write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    (empty_cache / "go").chmod(0o755)
    with pytest.raises(oracle.OracleError, match="failed:\nno such module"):
        oracle.build()
    assert oracle.find() is None


def kind(name: str, raw: Raw) -> Raw:
    return {"kind": name, **raw}


def waiting(name: str, *claims: str, **spec: Any) -> Raw:
    raw = pod(name).with_field([{"name": "main", "image": "none"}], "spec", "containers").raw()
    raw["spec"] |= {"resourceClaims": claiming(*claims), **spec} if claims else spec
    return kind("Pod", raw)


NODES = [kind("Node", node(name).raw()) for name in ("n1", "n2")]


def test_a_node_with_a_taint_is_rejected_by_the_plugin_that_looks_at_taints(scheduler: Oracle) -> None:
    tainted = {**NODES[0], "spec": {"taints": [{"key": "sick", "value": "very", "effect": "NoSchedule"}]}}
    (found,) = scheduler.ask([tainted, NODES[1]], [(waiting("p"), None)])
    assert found.rejected == {"n1": "TaintToleration: node(s) had untolerated taint(s)"}


def test_what_the_api_server_refuses_is_no_question(scheduler: Oracle) -> None:
    (found,) = scheduler.ask(NODES, [(waiting("p", restartPolicy="Sometimes"), None)])
    assert "spec.restartPolicy: Unsupported value" in found.invalid
    assert not found.rejected


def test_two_that_keep_apart_do_not_come_to_one_node(scheduler: Oracle) -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pods = [waiting(name, affinity=apart) for name in ("first", "second", "third")]
    for each in pods:
        each["metadata"]["labels"] = {"app": "a"}
    hosts = [
        {**each, "metadata": {**each["metadata"], "labels": {"kubernetes.io/hostname": each["metadata"]["name"]}}}
        for each in NODES
    ]
    first, second = scheduler.ask(hosts, [(pods[0], "n1"), (pods[1], "n1"), (pods[2], "n2")])
    assert not first.rejected
    assert second.rejected.keys() == {"n1"}  # and the third is not asked about


def test_a_device_that_a_member_has_is_no_other_members(scheduler: Oracle) -> None:
    there = [kind("DeviceClass", device_class("gpu").raw()), kind("ResourceSlice", devices("n1", 1).raw())]
    claims = [kind("ResourceClaim", claim(name, 1).raw()) for name in ("c1", "c2")]
    steps = [(waiting("m1", "c1"), "n1"), (waiting("m2", "c2"), None)]
    first, second = scheduler.ask([*NODES, *there, *claims], steps)
    assert first.rejected.keys() == {"n2"}
    assert second.rejected.keys() == {"n1", "n2"}


def test_an_error_about_one_node_ends_the_attempt(scheduler: Oracle) -> None:
    halved = counters("n2", {"a": {"memory": 1}}).pool(1, 3)
    slices = [kind("ResourceSlice", each.raw()) for each in (devices("n1", 1), devices("n2", 1).pool(1, 3), halved)]
    asked = kind("ResourceClaim", claim("c1").request("r", allocationMode="All").raw())
    there = [kind("DeviceClass", device_class("gpu").raw()), *slices]
    (found,) = scheduler.ask([*NODES, *there, asked], [(waiting("m1", "c1"), None)])
    assert found.failed.endswith("resource pool gpu.example.com/n2 is currently being updated")
    assert found.rejected.keys() == {"n2"}


def test_what_cannot_be_read_is_an_error_and_the_next_question_has_its_answer(scheduler: Oracle) -> None:
    with pytest.raises(oracle.OracleError, match='no kind "Unheard"'):
        scheduler.ask([{"kind": "Unheard"}], [])
    assert scheduler.ask(NODES, []) == []
