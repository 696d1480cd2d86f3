"""Which autoscalers the cluster has, and what Karpenter's NodePools may add: found by discovery, again and again.

`Autoscalers.run` looks every ten seconds while this instance leads, as a task of the process. What it has found
last is `Autoscalers.seen`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from extender.options import Autoscaling
from serried.api.names import read_name, read_objects
from serried.api.node_pool import NodePool, decode_node_pool
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import Resource

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""The pause between two looks: what NodePools may still add changes with each node."""

_FIRST_SECONDS = 1.0
"""The pause before the first look that is answered."""

KARPENTER = "karpenter.sh"
NODE_POOLS = Resource(KARPENTER, "v1", "nodepools", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps")
STATUS = ("kube-system", "cluster-autoscaler-status")
"""The ConfigMap in which Cluster Autoscaler tells how it is, by namespace and name."""

PROVISIONING = "autoscaling.x-k8s.io"
"""The API group of ProvisioningRequests, which Cluster Autoscaler carries out."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The autoscalers of the cluster, as of one look."""

    karpenter: bool = False
    cluster_autoscaler: bool = False

    provisioning: bool = False
    """Whether ProvisioningRequests are served in version v1: Cluster Autoscaler 1.30 and before has v1beta1 alone."""

    pools: tuple[NodePool, ...] = ()
    """Karpenter's NodePools that add nodes for pods."""

    unknown: str = ""
    """Why the NodePools could not be read, a phrase; "" if they were, or there is no Karpenter."""

    def __bool__(self) -> bool:
        return self.karpenter or self.cluster_autoscaler

    @property
    def names(self) -> str:
        """The names of the autoscalers, for people."""
        found = ("Karpenter" if self.karpenter else "", "Cluster Autoscaler" if self.cluster_autoscaler else "")
        return " and ".join(filter(None, found))


NOBODY = Seen()


class Autoscalers:
    """Finds the autoscalers of one cluster. One instance lives as long as the core that it was made for."""

    def __init__(self, client: ApiClient, wanted: Autoscaling, changed: Callable[[], None]) -> None:
        """``changed`` is called after each look that has found something else."""
        self._client = client
        self._changed = changed

        self.listeners: list[Callable[[], None]] = []
        """Called after each look that has found something else, before ``changed``."""

        self.seen: Seen = NOBODY

        self.found: list[str] = []
        """The names of the autoscalers of ``seen``; always the same list, so that others may look at it for less."""

        self.known: bool = wanted is Autoscaling.NONE
        """Whether there was a look since this instance leads; without it nothing may be concluded from ``seen``."""

        self._wanted = wanted
        self._told = ""

    async def run(self, is_active: Callable[[], bool]) -> None:
        """Look until cancelled; only the active instance does."""
        while self._wanted is not Autoscaling.NONE:
            if is_active():
                await self.look()
            else:
                self.known = False
            await asyncio.sleep(LOOK_SECONDS if self.known else _FIRST_SECONDS)

    async def look(self) -> None:
        """Look once. While the API server does not answer, what was found before holds."""
        try:
            seen = await self._find()
        except ApiError as error:
            self._tell(f"it is not known which autoscalers there are: {error}")
            return
        self._tell(seen.unknown)
        self.note(seen)

    def note(self, seen: Seen) -> None:
        """Note what a look has found."""
        before, self.seen = (self.seen, self.known), seen
        self.found[:] = [seen.names] if seen else []
        self.known = True
        if before == (seen, True):
            return
        if not before[1] or before[0].names != seen.names:
            log.info("autoscalers", extra={"found": seen.names or "none", "nodePools": len(seen.pools)})
        for tell in self.listeners:
            tell()
        self._changed()

    async def _find(self) -> Seen:
        groups = {
            read_name(each, "name"): {read_name(version, "version") for version in read_objects(each, "versions")}
            for each in read_objects(await self._client.read("/apis"), "groups")
        }
        karpenter = KARPENTER in groups
        pools, unknown = await self._read_pools() if karpenter else ((), "")
        return Seen(karpenter, await self._has_status(), "v1" in groups.get(PROVISIONING, ()), pools, unknown)

    async def _read_pools(self) -> tuple[tuple[NodePool, ...], str]:
        try:
            found = [decode_node_pool(each) for each in await self._client.list_all(NODE_POOLS)]
        except (Forbidden, NotFound) as error:
            return (), f"the NodePools cannot be read: {error}"
        return tuple(
            sorted(
                (each for each in found if isinstance(each, NodePool) and each.adds_nodes), key=lambda each: each.name
            )
        ), ""

    async def _has_status(self) -> bool:
        try:
            await self._client.get(CONFIG_MAPS, *STATUS)
        except NotFound:
            return False
        except Forbidden as error:
            self._tell(f"it is not known whether there is a Cluster Autoscaler: {error}")
            return False
        return True

    def _tell(self, what: str) -> None:
        """Log what keeps this instance from knowing, once."""
        if what and what != self._told:
            log.warning("cannot look for autoscalers", extra={"err": what})
        self._told = what or self._told
