"""The objects of the core that features may use, such as queue, ledger and API client, beside the extension points."""

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

    The ``context`` has caches, ledger and states of groups. Other objects of the core are private.
    `extender.wiring` creates them before the features, and passes them to each feature.
    """

    context: Context
    client: ApiClient
    planning_tasks: PlanningTasks
    queue: Queue
    reassignments: Reassignments
    nominator: Nominator
    records: Records
    autoscalers: Autoscalers
