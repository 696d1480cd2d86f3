"""The pages of ``/debug`` about nodes and topology domains: their resources, and how much is used or reserved."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from fastapi import Response

from extender.look.document import View, write_list
from extender.look.names import GroupName, name_group
from extender.wiring import Core
from serried.api.names import GroupKey, natural_sort_key
from serried.api.pod import Phase, Pod
from serried.api.resources import add
from serried.ops.slices import one_by_one, pause_if_due

_NODES_BEFORE_BREATH = 100

_USUAL_KEYS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")


class ResourceUseView(View):
    """The amount of one resource on a domain's nodes, and how much of it is used by pods or reserved for members."""

    allocatable: int
    used: int


class DomainGroupView(GroupName):
    """A group that has members in a domain."""

    members: int
    """The number of its members that run in the domain, or have a slot in it."""


class DomainView(View):
    """One domain: its nodes, resources and groups."""

    domain: str
    nodes: int

    unschedulable: int
    """The number of cordoned nodes. They count in `nodes` and `resources`, too."""

    resources: dict[str, ResourceUseView]
    """The resources by name: CPU in thousandths of a core, other resources in their base unit (memory in bytes)."""

    groups: list[DomainGroupView]


class DomainsView(View):
    """The domains of one topology key."""

    key: str
    """The topology key whose domains the document lists."""

    keys: list[str]
    """The topology keys that groups require or prefer at present, the most frequent first."""

    unlabelled: int
    """The number of nodes without the label `key`, which are in no domain."""

    domains: list[DomainView]


def _list_keys(core: Core) -> list[str]:
    asked = Counter[str]()
    for group in core.store.groups.values():
        asked.update({group.topology_key} - {None} if group.topology_key else ())
        asked.update(level.key for level in group.preference.levels)
    return [key for key, _ in sorted(asked.items(), key=lambda entry: (-entry[1], entry[0]))]


def _guess_key(core: Core) -> str:
    labels = {key for node in core.store.nodes.values() for key in node.labels}
    racks = sorted(key for key in labels if key.endswith("/rack"))
    return next((key for key in (*_USUAL_KEYS[:1], *racks, *_USUAL_KEYS[1:]) if key in labels), _USUAL_KEYS[-1])


async def _count_members(core: Core, domains_by_node: Mapping[str, str]) -> Mapping[str, Counter[GroupKey]]:
    found = defaultdict[str, Counter[GroupKey]](Counter)
    for key in core.store.members.groups():
        async for pod in one_by_one(core.store.members.of_group(key)):
            domain = domains_by_node.get(_find_node(core, pod))
            if domain is not None:
                found[domain][key] += 1
        await pause_if_due()
    return found


def _find_node(core: Core, pod: Pod) -> str:
    if pod.phase is not Phase.ACTIVE:
        return ""
    slot = core.ledger.slot_of(pod.uid)
    return pod.node or (slot.node if slot is not None else "")


async def _view_domain(core: Core, domain: str, names: list[str], groups: Counter[GroupKey]) -> DomainView:
    allocatable: Mapping[str, int] = {}
    used: Mapping[str, int] = {}
    cordoned = 0
    for count, name in enumerate(names, 1):
        node = core.store.nodes.get(name)
        if node is not None:
            allocatable = add(allocatable, node.allocatable)
            used = add(used, core.store.occupancy.used.get(name, {}))
            cordoned += node.unschedulable
        if count % _NODES_BEFORE_BREATH == 0:
            await pause_if_due()
    await pause_if_due()
    return DomainView(
        domain=domain,
        nodes=len(names),
        unschedulable=cordoned,
        resources={
            key: ResourceUseView(allocatable=amount, used=used.get(key, 0))
            for key, amount in allocatable.items()
            if ":" not in key
        },
        groups=[
            DomainGroupView(**name_group(core, key), members=groups[key])
            for key in sorted(groups, key=lambda key: natural_sort_key(str(key)))
        ],
    )


class NodeView(View):
    """A node: its resources, and how much of them is used by bound and assumed pods or reserved for members."""

    name: str
    allocatable: dict[str, int]
    used: dict[str, int]
    unschedulable: bool
    labels: dict[str, str]


def _view_node(core: Core, name: str) -> NodeView:
    node = core.store.nodes[name]
    return NodeView(
        name=name,
        allocatable=dict(node.allocatable),
        used=dict(core.store.occupancy.used.get(name, {})),
        unschedulable=node.unschedulable,
        labels=dict(node.labels),
    )


class NodePages:
    """The handlers of the pages about nodes and domains. One instance per core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list_domains(self, key: str = "") -> DomainsView:
        """Return the domains of the topology key `key`, sorted by name.

        Without `key`, the domains of the key that most groups require or prefer are returned; without such groups,
        those of a rack or zone label that nodes have.
        """
        core = self._core
        keys = _list_keys(core)
        chosen = key or next(iter(keys), "") or _guess_key(core)
        domains_by_node = {
            name: node.labels[chosen] for name, node in core.store.nodes.items() if chosen in node.labels
        }
        nodes = defaultdict[str, list[str]](list)
        for name, domain in domains_by_node.items():
            nodes[domain].append(name)
        groups = await _count_members(core, domains_by_node)
        domains = [
            await _view_domain(core, domain, nodes[domain], groups[domain])
            for domain in sorted(nodes, key=natural_sort_key)
        ]
        return DomainsView(
            key=chosen, keys=keys, unlabelled=len(core.store.nodes) - len(domains_by_node), domains=domains
        )

    async def list_nodes(self, prefix: str = "", limit: int = 500) -> Response:
        """Return the nodes, sorted by name, with how much of each is used by bound and assumed pods or reserved.

        `prefix` selects the nodes whose names begin with it. `limit` is the largest number of nodes that are returned.
        Amounts are in base units (memory in bytes), CPU in thousandths of a core.
        """
        nodes = self._core.store.nodes
        names = sorted(name for name in nodes if name.startswith(prefix))
        # The list is made in steps, in which a node may be deleted.
        return await write_list(_view_node(self._core, name) for name in names[: max(0, limit)] if name in nodes)
