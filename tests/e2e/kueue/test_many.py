"""A working day in short: many small gangs in three queues, which share 12 nodes of 32 CPU."""

from functools import partial

import pytest

from tests.e2e.kueue.stage import KueueStage
from tests.support.cluster_stage import eventually, pod_spec

pytestmark = [pytest.mark.e2e, pytest.mark.full]

JOBS, QUEUES, SIZE = 500, 3, 2


def test_five_hundred_jobs_in_three_queues_all_end_and_each_has_started_whole(stage: KueueStage) -> None:
    for queue in range(QUEUES):
        stage.create_queue(f"team-{queue}", cpu="120")
    annotations = {"bench.serried.dev/succeed-after": "3s"}
    template = {"metadata": {"annotations": annotations}, "spec": pod_spec("2") | {"restartPolicy": "Never"}}
    sizes = {f"job-{number}": SIZE for number in range(JOBS)}
    for number, name in enumerate(sizes):
        stage.queue_job(f"team-{number % QUEUES}", name, SIZE, "2", template=template)

    for name in sizes:  # a list of all, again and again, would be most of the work
        eventually(f"the end of {name}", partial(stage.has_succeeded, name), 600)
    assert stage.starts(**sizes) == {name: [SIZE] for name in sizes}
    assert stage.evicted() == {}
    # So many take longer to go than the end of a story waits.
    stage.cluster.kubectl("delete", "jobs", "--all", "-n", stage.namespace, "--cascade=foreground")
