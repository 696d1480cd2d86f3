"""Find the cluster's autoscalers, Karpenter and Cluster Autoscaler, and the nodes that Karpenter's NodePools may add.

`Autoscalers.run` is a task of the process. It looks every ten seconds while this instance leads; `Autoscalers.seen`
is what it found last.
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
from serried.kube.wire import CONFIG_MAPS, Resource

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""The pause between two looks, in seconds: what NodePools may still add changes with each node."""

_FIRST_SECONDS = 1.0
"""The pause between tries until a first look has succeeded, in seconds."""

KARPENTER = "karpenter.sh"
NODE_POOLS = Resource(KARPENTER, "v1", "nodepools", namespaced=False)
STATUS = ("kube-system", "cluster-autoscaler-status")
"""The namespace and name of the ConfigMap in which Cluster Autoscaler reports its status."""

PROVISIONING = "autoscaling.x-k8s.io"
"""The API group of ProvisioningRequests, which Cluster Autoscaler carries out."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The autoscalers of the cluster, as of one look."""

    karpenter: bool = False
    cluster_autoscaler: bool = False

    provisioning: bool = False
    """True if ProvisioningRequests are served in version v1; Cluster Autoscaler up to 1.30 has only v1beta1."""

    pools: tuple[NodePool, ...] = ()
    """Karpenter's NodePools that add nodes for pods, by name."""

    unknown: str = ""
    """The reason why the NodePools could not be read, a phrase; "" if they were read or there is no Karpenter."""

    def __bool__(self) -> bool:
        return self.karpenter or self.cluster_autoscaler

    @property
    def names(self) -> str:
        """The names of the autoscalers found, for messages; "" for none."""
        found = ("Karpenter" if self.karpenter else "", "Cluster Autoscaler" if self.cluster_autoscaler else "")
        return " and ".join(filter(None, found))


NOBODY = Seen()


class Autoscalers:
    """Finds the autoscalers of one cluster. One instance lives as long as its core.

    ``changed`` is called after each look that found something new.
    """

    def __init__(self, client: ApiClient, wanted: Autoscaling, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed

        self.listeners: list[Callable[[], None]] = []
        """The functions that are called after each look that found something new, before ``changed``."""

        self.seen: Seen = NOBODY

        self.found: list[str] = []
        """The names of the autoscalers in ``seen``. It is always the same list, so that other parts can keep it."""

        self.known: bool = wanted is Autoscaling.NONE
        """True once a look has succeeded since this instance leads. Until then ``seen`` may be wrong."""

        self._wanted = wanted

        self._logged = ""
        """The failure that was logged last."""

    async def run(self, is_active: Callable[[], bool]) -> None:
        """Look again and again while ``is_active``, until cancelled."""
        while self._wanted is not Autoscaling.NONE:
            if is_active():
                await self.look()
            else:
                self.known = False
            await asyncio.sleep(LOOK_SECONDS if self.known else _FIRST_SECONDS)

    async def look(self) -> None:
        """Look once, and update ``seen``. If the API server does not answer, ``seen`` stays as it was."""
        try:
            seen = await self._find()
        except ApiError as error:
            self._log_once(f"it is not known which autoscalers there are: {error}")
            return
        self._log_once(seen.unknown)
        self.note(seen)

    def note(self, seen: Seen) -> None:
        """Set the result of a look, and call the listeners if it is new."""
        before, self.seen = (self.seen, self.known), seen
        self.found[:] = [seen.names] if seen else []
        self.known = True
        if before == (seen, True):
            return
        if not before[1] or before[0].names != seen.names:
            log.info("looked for autoscalers", extra={"found": seen.names or "none", "nodePools": len(seen.pools)})
        for listener in self.listeners:
            listener()
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
            self._log_once(f"it is not known whether there is a Cluster Autoscaler: {error}")
            return False
        return True

    def _log_once(self, failure: str) -> None:
        """Log why a look failed, unless the last failure was the same; "" for no failure."""
        if failure and failure != self._logged:
            log.warning("cannot find out which autoscalers there are", extra={"err": failure})
        self._logged = failure or self._logged
