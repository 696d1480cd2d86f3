"""Nodes that kube-scheduler finds for random pods in random small clusters, beside those that the planner would take.

Each cluster comes from a number, its seed. A difference is shown with the whole cluster, so that it can be tried by
hand. The rules that the planner is held to in `tests/property/test_interpod.py` are asked the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pytest
import yaml

from tests.e2e.truth.stage import TruthStage
from tests.support.truth.ours import SerriedPlanner
from tests.support.truth.rules import Cluster, Raw, has_empty_selector, list_feasible
from tests.support.truth.storage import StorageDraws
from tests.support.truth.worlds import ALL, COUNTED, Draws

PODS_OF_A_CLUSTER = 20

SHORT = range(6)
"""The seeds of `make test`: some ten seconds."""

LONG = range(100, 212)
"""The seeds of `make test-full`: 2,000 pods, and some with what the planner does not count."""

ODD = 10
"""The divisor of the seeds whose cluster has everything, so that the rules are asked."""

MOST_SHOWN = 3


@dataclass(frozen=True)
class Difference:
    """A pod for which somebody takes other nodes than kube-scheduler does."""

    seed: int
    cluster: Cluster
    pod: Raw
    whose: str
    nodes: frozenset[str]
    expected: frozenset[str]

    def __str__(self) -> str:
        said = f"seed {self.seed}: {self.whose} {sorted(self.nodes)}, kube-scheduler {sorted(self.expected)}"
        objects = [*self.cluster.nodes, *self.cluster.storage, *self.cluster.pods, self.pod]
        return f"# {said}\n{yaml.safe_dump_all([_strip(each) for each in objects])}"


@pytest.mark.parametrize("seeds", [SHORT, pytest.param(LONG, marks=pytest.mark.full)], ids=["short", "long"])
def test_the_planner_takes_the_nodes_that_kube_scheduler_finds(truth: TruthStage, seeds: Sequence[int]) -> None:
    check([difference for seed in seeds for difference in compare(truth, seed)])


@pytest.mark.parametrize("seeds", [SHORT, pytest.param(LONG, marks=pytest.mark.full)], ids=["short", "long"])
def test_the_planner_takes_the_nodes_that_volumes_leave_a_pod(truth: TruthStage, seeds: Sequence[int]) -> None:
    check([difference for seed in seeds for difference in compare_volumes(truth, seed)])


def check(differences: Sequence[Difference]) -> None:
    shown = "\n".join(map(str, differences[:MOST_SHOWN]))
    assert not differences, f"{len(differences)} differences, of which the first ones:\n{shown}"


def compare(truth: TruthStage, seed: int) -> Iterator[Difference]:
    """The differences in one cluster. The planner is asked only where it knows all that was drawn."""
    features = COUNTED if seed % ODD else ALL
    draws = Draws(Random(seed), features)  # noqa: S311 - not for secrets
    cluster = truth.put(draws.cluster())
    ours = SerriedPlanner(cluster)
    for pod, found in truth.ask([draws.pod(f"p{index}") for index in range(PODS_OF_A_CLUSTER)]):
        answers = {"the rules": list_feasible(cluster, pod)}
        # The planner counts as 1.37 does (docs/api-levels.md).
        if features <= COUNTED and not (cluster.empty_counts and has_empty_selector(pod)):
            answers["the planner"] = ours.list_feasible(pod)
        for whose, nodes in answers.items():
            if nodes != found:
                yield Difference(seed, cluster, pod, whose, nodes, found)
    truth.clear(cluster)


def compare_volumes(truth: TruthStage, seed: int) -> Iterator[Difference]:
    """The differences in one cluster with volumes."""
    draws = StorageDraws(Random(seed))  # noqa: S311 - not for secrets
    cluster = truth.put(draws.cluster())
    ours = SerriedPlanner(cluster)
    for pod, found in truth.ask([draws.pod(f"p{index}") for index in range(PODS_OF_A_CLUSTER)]):
        nodes = ours.list_feasible(pod)
        if nodes != found:
            yield Difference(seed, cluster, pod, "the planner", nodes, found)
    truth.clear(cluster)


def _strip(obj: Raw) -> Raw:
    """Return the part of an object that is needed to create it again."""
    kept = ("name", "namespace", "labels", "annotations", "finalizers")
    metadata = {key: obj["metadata"][key] for key in kept if key in obj["metadata"]}
    rest = {key: value for key, value in obj.items() if key not in {"metadata", "status"}}
    status = {key: value for key, value in obj.get("status", {}).items() if key in {"allocatable", "phase"}}
    return {**rest, "metadata": metadata, "status": status}
