"""``serried top``: how full the racks are."""

import json
from typing import Any

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

GPU = "example.com/gpu"


def domain(name: str, groups: int = 0, **used: int) -> dict[str, Any]:
    has = {"cpu": 64000, "memory": 2**38, "pods": 110, GPU: 8, "hugepages-2Mi": 0}
    names = {key: used.get(key.rpartition("/")[2], 0) for key in has}
    return {
        "domain": name,
        "nodes": 2,
        "unschedulable": 1,
        "resources": {key: {"allocatable": amount, "used": names[key]} for key, amount in has.items()},
        "groups": [{"namespace": "a", "name": f"g{n}", "kind": "PodGroup", "members": n + 1} for n in range(groups)],
    }


def answer(proxy: PodProxy, *domains: dict[str, Any], unlabelled: int = 0) -> dict[str, Any]:
    document = {"key": "rack", "keys": ["rack"], "unlabelled": unlabelled, "domains": list(domains)}
    proxy.answer_debug("serried-0:8912", "domains", document)
    return document


def test_free_and_whole_of_each_resource_that_gangs_fight_for(proxy: PodProxy, run: Run) -> None:
    answer(proxy, domain("r1", cpu=1500, memory=2**30, gpu=8))
    header, row = [line for line in run("top").out.splitlines() if "DOMAIN" in line or "r1" in line]
    assert "pods" not in header.lower()
    assert "hugepages" not in header.lower()
    assert row.split("  ")[0] == "r1"
    assert "62.5 of 64" in row
    assert "255Gi of 256Gi" in row
    assert "0 of 8" in row


def test_the_gangs_of_a_domain_are_named_and_the_rest_counted(proxy: PodProxy, run: Run) -> None:
    answer(proxy, domain("r1", groups=7))
    assert "a/g0 (1), a/g1 (2), a/g2 (3), a/g3 (4), a/g4 (5) and 2 more" in run("top").out


def test_gangs_of_namespaces_that_the_reader_may_not_list_are_not_named(proxy: PodProxy, run: Run) -> None:
    answer(proxy, domain("r1", groups=2))
    proxy.listable = frozenset({"team"})
    assert "a/g" not in run("top").out


def test_nodes_without_the_label_are_told_of(proxy: PodProxy, run: Run) -> None:
    answer(proxy, domain("r1"), unlabelled=3)
    assert "3 nodes have no such label" in run("top").out


def test_a_key_that_no_node_has_is_said(proxy: PodProxy, run: Run) -> None:
    answer(proxy)
    assert run("top", "--key", "rack").out == "No node has the label rack: set --key to another.\n"
    assert proxy.asked[-1].endswith("/debug/domains?key=rack")


def test_programs_get_the_document_of_debug(proxy: PodProxy, run: Run) -> None:
    assert json.loads(run("top", "-o", "json").out or "null") is None
    document = answer(proxy, domain("r1"))
    assert json.loads(run("top", "-o", "json").out) == document
