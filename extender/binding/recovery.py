"""The start of a term: committed Reservations are rolled forward, planned ones taken up again or dropped.

Runs once all caches are listed and before the first plan: a plan made earlier would not see the slots that an
earlier term has promised. First of all each record gets this term's name (`Records.take_over`), so that no earlier
leader can write it any more; whether its members may still be bound, the door says (`extender.scheduling.permit`).
"""

import asyncio
import logging
from collections.abc import Callable

from extender.binding.nominator import Nominator
from extender.binding.reservations import Records
from extender.binding.run import CycleRunner
from extender.scheduling.cycle import BindingCycle, CycleStage
from extender.scheduling.endings import CycleEndings
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.group_state import GroupState
from extender.scheduling.groups import Groups
from extender.scheduling.permit import find_misfit
from extender.scheduling.term import Term
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import PODS
from serried.model.group import PodGroup, Policy
from serried.model.pod import Pod
from serried.model.reservation import Reservation
from serried.observe.log import name_group

log = logging.getLogger(__name__)

FIELD_MANAGER = "serried"

_READERS = 16
"""So many pods with stray stamps are looked at at the same time."""


class Adoption:
    """Rebuilds the ledger from the records of earlier terms."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        groups: Groups,
        term: Term,
        *,
        endings: CycleEndings,
        group_scheduler: GroupScheduler,
        runner: CycleRunner,
        nominator: Nominator,
        records: Records,
        client: ApiClient,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._groups = groups
        self._term = term
        self._endings = endings
        self._group_scheduler = group_scheduler
        self._runner = runner
        self._nominator = nominator
        self._records = records
        self._client = client
        self._clock = clock

    async def adopt(self) -> bool:
        """Take every record over, then take stray stamps off; whether the term has lasted until the end of it.

        If not, others may have led meanwhile: what was read is outdated. Raises ApiError if the records cannot be read.
        """
        self._endings.leave_all()  # of an attempt that failed: the records are read anew
        self._runner.carry_out()
        self._term.adopting = True  # its cycles are driven on before anybody may plan
        try:
            for reservation in await self._records.take_over():
                if not self._term.leads():
                    return False
                if not self._take(reservation):
                    await self._records.remove(reservation)
            await self._clear_stray_stamps()
            return self._term.leads()
        finally:
            self._term.adopting = False

    def _take(self, reservation: Reservation) -> bool:
        """Hold a record's slots and drive its cycle on; whether there was anything left to drive."""
        group = self._find_group(reservation)
        pods = {uid: pod for uid in reservation.slots if (pod := self._store.pods.get(uid)) is not None and pod.pending}
        committed = bool(reservation.committed)
        if group is None or not pods:
            return False
        if not committed and len(pods) < len(reservation.slots):
            return False
        bound = {uid for uid in reservation.slots if (pod := self._store.pods.get(uid)) is not None and pod.bound}
        self._ledger.reserve(reservation, pods)
        if not committed and find_misfit(group, reservation, pods, self._store) is not None:
            self._ledger.unreserve(reservation.group)
            return False
        now = self._clock()
        cycle = BindingCycle(group, reservation, now, now, CycleStage.BINDING if committed else CycleStage.GATHERING)
        if committed:
            self._roll_on(cycle, bound)
        log.info("took up a reservation", extra=name_group(reservation.group) | {"phase": reservation.phase})
        self._group_scheduler.start(self._groups.states.setdefault(reservation.group, GroupState(now)), cycle)
        self._runner.carry_out()
        return True

    def _roll_on(self, cycle: BindingCycle, bound: set[str]) -> None:
        """Tell the cycle of a commit how far an earlier term came, and where the gang runs by now."""
        cycle.bound |= bound
        cycle.begun = any(not self._store.pods[uid].deleting for uid in bound)
        key = cycle.group.topology_key
        homes = (self._store.nodes.get(self._store.pods[uid].node) for uid in bound)
        here = {home.labels.get(key, "") for home in homes if home is not None} if key is not None else set[str]()
        if len(here) == 1:
            # Its nodes may have got another label meanwhile: the others follow those that run.
            self._ledger.rename_domain(cycle.reservation, here.pop())

    def _find_group(self, reservation: Reservation) -> PodGroup | None:
        """The record's own PodGroup, not one made anew under its name.

        A committed record outlives it: its members are bound as was committed, in the domain of the nodes it names.
        """
        found = self._store.groups.get(reservation.group)
        if found is not None and found.uid == reservation.group_uid:
            return found
        if not reservation.committed:
            return None
        key = self._find_key(reservation) if reservation.domain else None
        return PodGroup(reservation.group, reservation.group_uid, Policy(len(reservation.committed)), key)

    def _find_key(self, reservation: Reservation) -> str:
        """The topology key that a record's domain belongs to; one that no node carries if it cannot be told.

        The record names the domain only. The key is a label with that value on all of its nodes: of several, any keeps
        the gang together.
        """
        nodes = (self._store.nodes.get(slot.node) for slot in reservation.slots.values())
        labels = [node.labels.items() for node in nodes if node is not None]
        shared = set(labels[0]).intersection(*labels) if labels else set()
        return min((key for key, value in shared if value == reservation.domain), default="")

    async def _clear_stray_stamps(self) -> None:
        """Take our stamps off pods that hold no slot: left by a process that died between stamp and record's end."""
        strays = [
            pod
            for pod in self._store.pods.values()
            if pod.pending
            and pod.nominated
            and self._store.members.group_of(pod.uid) is not None
            and self._is_free(pod)
        ]
        few = asyncio.Semaphore(_READERS)
        async with asyncio.TaskGroup() as tasks:
            for pod in strays:
                tasks.create_task(self._clear_stray(pod, few))

    async def _clear_stray(self, pod: Pod, few: asyncio.Semaphore) -> None:
        async with few:
            if await self._is_ours(pod) and self._is_free(pod) and self._term.leads():
                self._nominator.release([pod.uid], [pod])

    def _is_free(self, pod: Pod) -> bool:
        return self._ledger.of_pod(pod.uid) is None

    async def _is_ours(self, pod: Pod) -> bool:
        # The scheduler nominates members too (preemption); only the field's manager tells the two apart.
        try:
            found = await self._client.get(PODS, pod.namespace, pod.name)
        except (NotFound, ApiError):
            return False
        managers = found["metadata"].get("managedFields") or []
        return any(
            entry.get("manager") == FIELD_MANAGER
            and "f:nominatedNodeName" in (entry.get("fieldsV1") or {}).get("f:status", {})
            for entry in managers
        )
