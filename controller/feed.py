"""The controller's watches: Jobs, Workloads, PodGroups, and of all pods only those of Indexed Jobs."""

from typing import Any

from serried.cluster.store import Store
from serried.decode.pods import COMPLETION_INDEX
from serried.kube.changes import Sink
from serried.kube.client import ApiClient
from serried.kube.feed import Feed, Kind, OnChange
from serried.kube.reflector import Reflector
from serried.kube.wire import PODS, Selection
from serried.model.level import ApiLevel

KINDS = (Kind.PODS, Kind.JOBS, Kind.POD_GROUPS, Kind.WORKLOADS)

JOB_PODS = Selection(labels=COMPLETION_INDEX)
"""The pods of Indexed Jobs: only these can be gangs.

Kube-controller-manager labels each of these pods itself, in 1.35 to 1.37 without a gate.
``batch.kubernetes.io/job-name`` would miss some: the API server puts it into the Job's template, and not where
``manualSelector`` is set.
"""


class JobFeed(Feed):
    """As `Feed`, for KINDS. A pod that loses the label looks like one that went."""

    _take_pod: Sink

    def __init__(self, client: ApiClient, level: ApiLevel, store: Store, on_change: OnChange) -> None:
        super().__init__(client, level, store, KINDS, on_change)
        job_pods = Reflector(client, PODS, self._take_pod, selection=JOB_PODS)
        self.reflectors = {**self.reflectors, Kind.PODS: job_pods}

    def _sink(self, kind: Kind, channel: Any) -> Sink:
        sink = super()._sink(kind, channel)
        if kind is Kind.PODS:
            self._take_pod = sink
        return sink
