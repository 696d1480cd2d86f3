"""Beside an autoscaler the room of the head of the queue is protected, by any leader, and no longer than it is kept.

The autoscaler is played by the ConfigMap in which Cluster Autoscaler tells how it is: by that it is found.
"""

from collections.abc import Iterator

import pytest

from serried.api.node import DO_NOT_REMOVE, PROTECTED_BY
from tests.e2e.queue.stage import QueueStage
from tests.support.cluster_stage import eventually

pytestmark = pytest.mark.e2e

_OTHERS_NOTE = {DO_NOT_REMOVE[0]: "true", "example.com/note": "mine"}


@pytest.fixture
def autoscaled(stage: QueueStage) -> Iterator[QueueStage]:
    """The stage beside an autoscaler; one node has an annotation of a person, which stays."""
    with stage.with_autoscaler_configmap():
        stage.annotate_node(stage.list_nodes()[0], _OTHERS_NOTE)
        try:
            yield stage
        finally:
            stage.annotate_node(stage.list_nodes()[0], dict.fromkeys(_OTHERS_NOTE))
            eventually("no protection after the story", lambda: not stage.list_protected(), 60)


def _is_left(stage: QueueStage) -> bool:
    """Return whether a person's annotation on the first node is all that is left on the nodes."""
    first, *others = stage.list_nodes()
    ours = {PROTECTED_BY, *DO_NOT_REMOVE}
    left = [stage.annotations_of_node(name).keys() & ours for name in others]
    return stage.annotations_of_node(first).keys() & ours == {DO_NOT_REMOVE[0]} and not any(left)


def test_nodes_are_protected_while_they_are_kept_and_a_leader_that_comes_after_a_death_ends_it(
    autoscaled: QueueStage,
) -> None:
    stage = autoscaled
    stage.occupy_rack()
    stage.run_gang("large", 4)
    eventually("4 protected nodes", lambda: len(stage.list_protected()) == 4, 60)
    first, *others = stage.list_nodes()
    for name in others:
        found = stage.annotations_of_node(name)
        assert [found[key] for key in DO_NOT_REMOVE] == ["true", "true"]
    assert DO_NOT_REMOVE[0] not in stage.annotations_of_node(first)[PROTECTED_BY]
    assert stage.selfcheck()["nodeProtection"]["obstacle"] == ""

    stage.cluster.kill("extender")
    stage.delete_job("large")
    assert len(stage.list_protected()) == 4
    stage.cluster.start("extender")
    stage.cluster.await_ready("extender")
    eventually("that the next leader takes it off", lambda: _is_left(stage), 90)


def test_protection_ends_when_the_gang_has_started(autoscaled: QueueStage) -> None:
    stage = autoscaled
    stage.occupy_rack()
    stage.run_gang("large", 4)
    eventually("4 protected nodes", lambda: len(stage.list_protected()) == 4, 60)
    stage.delete_job("early")
    stage.await_bound("large", 4)
    eventually("that nothing is left", lambda: _is_left(stage))
