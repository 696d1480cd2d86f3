"""What kube-scheduler alone can count: devices that pods claim, resources that nodes do not show.

A plan takes them for unlimited. What the scheduler says decides: a member that it has refused on every node is not
planned, and leaves the cycle that it is in, until the scheduler says something else of it. It tries such a pod again by
itself whenever something changes that could help it, and at the latest after five minutes. A member that asks for what
no node has and no DeviceClass provides is refused from the start, unless the scheduler offers it a node.
"""

from collections.abc import Collection, Iterable, Mapping

from extender.scheduling.cycle import BindingCycle
from serried.cluster.members import Members
from serried.cluster.store import Store
from serried.cluster.uncounted import Uncounted
from serried.decode.objections import is_partly_checked
from serried.model.group import GroupKey
from serried.model.pod import Pod
from serried.model.verdict import Reason, Verdict
from serried.plan.quorum import GroupMembers

_MAX_LETTERS = 200
"""How much of the scheduler's reason is told."""


def find_refused(
    cycle: BindingCycle, uids: Iterable[str], pods: Mapping[str, Pod], members: Members, tried: Collection[str] = ()
) -> list[str]:
    """Those of these members that have a slot and for whom the scheduler has found no node since the cycle began; UIDs.

    ``tried`` are those of them that it has tried since then for certain: of these it counts, too, if some nodes lacked
    nothing but room, for the planned one was no such node.

    A member that has come to filter, or to its bind call, since then is none: what is said of it is older. Nor is one
    for which others (had to) end, if some nodes had no room when it was tried: that may be the ones that they leave.
    """
    planned = [pods[uid] for uid in uids if uid in cycle.reservation.slots and uid in pods]
    refused = [pod.uid for pod in planned if pod.refused and pod.pending]
    if cycle.preempted:
        refused = [uid for uid in refused if not is_partly_checked(pods[uid].objection)]
    refused += [pod.uid for pod in planned if pod.uid in tried and pod.objection and pod.pending]
    refused = list(dict.fromkeys(refused))
    if not refused:
        return []
    left = [uid for uid in refused if uid not in cycle.reservation.committed and not cycle.member(uid).reached]
    return [uid for uid in left if members.group_of(uid) == cycle.reservation.group]


def describe_refused(
    group_members: GroupMembers, need: int, uncounted: Uncounted, dropped: Collection[Pod] = (), beside: str = ""
) -> Verdict:
    """The verdict of a gang that would have ``need`` members if the scheduler did not refuse some of them.

    ``dropped`` are members that it has refused though they may be tried again, ``beside`` a phrase that says when.
    """
    unclaimed = next((pod for pod in group_members.refused if pod.unclaimed), None)
    if unclaimed is not None:
        exist = group_members.placed + len(group_members.waiting) + len(group_members.refused)
        detail = f"{unclaimed.name} has no ResourceClaim from template {unclaimed.unclaimed} yet"
        return Verdict(Reason.QUORUM_MISSING, have=exist, need=need, detail=detail)
    pod = next(iter((*dropped, *group_members.refused)))
    lost = {each.uid for each in dropped}
    have = group_members.placed + sum(each.uid not in lost for each in group_members.waiting)
    # The same before and after the scheduler has said it, too: nobody is told twice.
    nowhere = [name for name in pod.missing if not pod.objection or f"Insufficient {name}" in pod.objection]
    if nowhere:
        names = " and ".join(nowhere)
        detail = f"{pod.name} asks for {names}, which no node has and no DeviceClass provides"
        return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=detail)
    missing, provided = _sort_uncounted([pod], uncounted)
    counted = [*provided, *(["the devices that are claimed"] if pod.device_claims else [])]
    said = [f"no node has {', '.join(missing)}"] if missing else []
    said += [f"only the scheduler can count {' and '.join(counted)}"] if counted else []
    words = pod.objection if len(pod.objection) <= _MAX_LETTERS else pod.objection[:_MAX_LETTERS] + "..."
    said = [", ".join(said)] if said else []
    detail = "; ".join([*said, f"the scheduler refuses {pod.name} on every node{beside}: {words}"])
    return Verdict(Reason.NO_CAPACITY, have=have, need=need, detail=detail)


def describe_uncounted(members: Collection[Pod], store: Store) -> list[str]:
    """What a plan for these members takes for unlimited, a phrase for each kind."""
    missing, provided = _sort_uncounted(members, store.uncounted)
    said = [f"{_count(members, name)} members ask for {name}, which no node has" for name in missing]
    said += [f"{_count(members, name)} members ask for {name}, which only the scheduler can count" for name in provided]
    if claiming := sum(bool(pod.device_claims) for pod in members):
        said.append(f"{claiming} members claim devices, which only the scheduler can count")
    keys = {_pod_group_of(pod, store.members) for pod in members}
    groups = [store.groups.get(key) for key in keys if key is not None]
    if any(group is not None and group.device_claims for group in groups):
        said.append("the PodGroup claims devices, which only the scheduler can count")
    return said


def _pod_group_of(pod: Pod, members: Members) -> GroupKey | None:
    """The PodGroup of a member."""
    group = members.group_of(pod.uid)
    return group.leaf(members.leaf_of(pod.uid)) if group is not None else None


def _sort_uncounted(pods: Iterable[Pod], uncounted: Uncounted) -> tuple[list[str], list[str]]:
    """The resources that no node has and no DeviceClass provides, and those that one provides."""
    names = sorted({name for pod in pods for name in pod.uncounted})
    provided = [name for name in names if uncounted.is_provided(name)]
    return [name for name in names if name not in provided], provided


def _count(pods: Iterable[Pod], name: str) -> int:
    return sum(name in pod.uncounted for pod in pods)
