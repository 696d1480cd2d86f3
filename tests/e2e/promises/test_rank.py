"""The place of a member in its gang, which its Binding tells the pod."""

from typing import Any

import pytest

from serried.api.names import POD_GROUP_LABEL
from serried.api.pod import COMPLETION_INDEX
from tests.support.cluster_stage import RACK, ClusterStage, eventually, indexed_spec, names

pytestmark = pytest.mark.e2e

RANK, DOMAIN = "scheduling.serried.dev/rank", "scheduling.serried.dev/domain"


def downward(name: str, annotation: str) -> dict[str, Any]:
    """A variable of the environment that has the value of an annotation."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}


def create_ranked_job(stage: ClusterStage, size: int) -> None:
    """A gang in one rack, whose containers read rank and domain."""
    spec = indexed_spec("serried", "10")
    (container,) = spec["template"]["spec"]["containers"]
    container["env"] = [downward("RANK", RANK), downward("DOMAIN", DOMAIN)]
    metadata = {"annotations": {"scheduling.serried.dev/required-topology": RACK}}
    stage.submit_job("train", metadata=metadata, **spec | {"parallelism": size, "completions": size})


def told(pod: dict[str, Any]) -> tuple[str | None, str | None]:
    annotations = pod["metadata"].get("annotations", {})
    return annotations.get(RANK), annotations.get(DOMAIN)


def test_a_job_is_told_ranks_and_domain_and_a_replacement_the_rank_of_its_index(stage: ClusterStage) -> None:
    create_ranked_job(stage, 9)
    stage.await_bound("train", 9)
    (rack,) = stage.racks("train")
    for pod in stage.pods("train"):
        assert told(pod) == (pod["metadata"]["annotations"][COMPLETION_INDEX], rack)
    labels = {pod["metadata"]["labels"].get(POD_GROUP_LABEL, "") for pod in stage.pods("train")}
    assert labels == stage.groups()

    lost = next(name for name, rank in stage.ranks("train").items() if rank == "4")
    stage.delete_pods(lost)
    eventually("the lost pod's end", lambda: lost not in stage.ranks("train"))
    eventually("all nine ranks", lambda: sorted(filter(None, stage.ranks("train").values())) == list("012345678"))
    assert stage.racks("train") == {rack}


def test_pods_that_nothing_numbers_are_told_no_rank_and_no_domain_where_there_is_none(stage: ClusterStage) -> None:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring")
    stage.create_pods(["plain-0"])
    stage.await_bound("ring", 2)
    stage.await_bound("plain", 1)
    assert {told(pod) for pod in stage.pods()} == {(None, None)}
