"""The objects of the core that features may use, such as queue, ledger and API client (`Parts`).

A feature is an optional part of scheduling, such as preemption. The core calls it at extension points
(`extender.core.feature`), as kube-scheduler calls its plugins. By `Parts` the feature can also use the core.
"""

from dataclasses import dataclass

from extender.autoscalers import Autoscalers
from extender.core.binding.nominator import Nominator
from extender.core.binding.records import Records
from extender.core.scheduling.effects import Context
from extender.core.scheduling.planning_tasks import PlanningTasks
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.reassignments import Reassignments
from serried.kube.client import ApiClient


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects of one core that features may use, such as its queue, planning tasks and API client.

    A feature is an optional part of scheduling, such as preemption. The ``context`` has caches, ledger and states of
    groups. Objects of the core that are not listed here are private. `extender.wiring` creates the `Parts` before the
    features, and passes it to each of them.
    """

    context: Context
    client: ApiClient
    planning_tasks: PlanningTasks
    queue: Queue
    reassignments: Reassignments
    nominator: Nominator
    records: Records
    autoscalers: Autoscalers
