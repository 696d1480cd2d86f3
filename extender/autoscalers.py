"""Find the cluster's autoscalers, Karpenter and Cluster Autoscaler, and the nodes that Karpenter's NodePools may add.

`Autoscalers.run` is a task of the process. While this instance leads, it asks the API server every ten seconds.
`Autoscalers.seen` is the last result.
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

REFRESH_SECONDS = 10.0
"""The pause between two refreshes, in seconds: with each node that is added, NodePools may add less."""

_FIRST_SECONDS = 1.0
"""The pause between tries until the first refresh of a term has succeeded, in seconds."""

KARPENTER = "karpenter.sh"
NODE_POOLS = Resource(KARPENTER, "v1", "nodepools", namespaced=False)
STATUS = ("kube-system", "cluster-autoscaler-status")
"""The namespace and name of the ConfigMap in which Cluster Autoscaler reports its status."""

PROVISIONING = "autoscaling.x-k8s.io"
"""The API group of ProvisioningRequests, which Cluster Autoscaler carries out."""


@dataclass(frozen=True, slots=True)
class FoundAutoscalers:
    """The autoscalers of the cluster at the time of one refresh. ``bool(found)`` is False if there are none."""

    karpenter: bool = False
    cluster_autoscaler: bool = False

    provisioning: bool = False
    """True if the API server serves ProvisioningRequests in v1; those of Cluster Autoscaler up to 1.30 are v1beta1."""

    pools: tuple[NodePool, ...] = ()
    """Karpenter's NodePools that add nodes for pods, sorted by name. NodePools of a fixed size are left out."""

    unknown: str = ""
    """The reason why the API server did not return the NodePools, a phrase; "" if it did, or there is no Karpenter."""

    def __bool__(self) -> bool:
        return self.karpenter or self.cluster_autoscaler

    @property
    def names(self) -> str:
        """The names of the autoscalers found, for messages; "" for none."""
        found = ("Karpenter" if self.karpenter else "", "Cluster Autoscaler" if self.cluster_autoscaler else "")
        return " and ".join(filter(None, found))


NO_AUTOSCALERS = FoundAutoscalers()


class Autoscalers:
    """Finds the autoscalers of one cluster. One instance lives as long as the process.

    ``wanted`` is the setting: with AUTO the API server is asked, with NONE it is not, and no autoscaler is ever found.
    ``changed`` is called after each refresh whose result differs from the one before.
    """

    def __init__(self, client: ApiClient, wanted: Autoscaling, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed

        self.listeners: list[Callable[[], None]] = []
        """The functions that are called before ``changed`` is, after each refresh with a new result."""

        self.seen: FoundAutoscalers = NO_AUTOSCALERS

        self.found: list[str] = []
        """The names of the autoscalers in ``seen``. A refresh changes this list in place: other objects refer to it."""

        self.known: bool = wanted is Autoscaling.NONE
        """True once a refresh has succeeded in this term.

        Until then ``seen`` may be wrong. Always True with setting NONE.
        """

        self._wanted = wanted

        self._logged = ""
        """The last failure that was logged; "" before the first."""

    async def run(self, is_active: Callable[[], bool]) -> None:
        """Call `refresh` every ten seconds while ``is_active`` returns True, i.e. while this instance leads.

        Call it every second until it has succeeded once in a term. Run until cancelled; return at once with the setting
        NONE.
        """
        while self._wanted is not Autoscaling.NONE:
            if is_active():
                await self.refresh()
            else:
                self.known = False
            await asyncio.sleep(REFRESH_SECONDS if self.known else _FIRST_SECONDS)

    async def refresh(self) -> None:
        """Ask the API server for autoscalers, and set ``seen``. On an ApiError, log it and leave ``seen`` unchanged."""
        try:
            seen = await self._find()
        except ApiError as error:
            self._log_once(f"Serried cannot find out which autoscalers the cluster has: {error}")
            return
        self._log_once(seen.unknown)
        self.set_found(seen)

    def set_found(self, seen: FoundAutoscalers) -> None:
        """Set ``seen``, the autoscalers that the API server has shown last.

        If it differs from before, or is the first result of a term, call the functions that other objects have added
        to the list ``listeners``, then ``changed``, the function given to the constructor.
        """
        before, self.seen = (self.seen, self.known), seen
        self.found[:] = [seen.names] if seen else []
        self.known = True
        if before == (seen, True):
            return
        if not before[1] or before[0].names != seen.names:
            log.info(
                "finished the search for autoscalers",
                extra={"found": seen.names or "none", "nodePools": len(seen.pools)},
            )
        for listener in self.listeners:
            listener()
        self._changed()

    async def _find(self) -> FoundAutoscalers:
        groups = {
            read_name(each, "name"): {read_name(version, "version") for version in read_objects(each, "versions")}
            for each in read_objects(await self._client.read("/apis"), "groups")
        }
        karpenter = KARPENTER in groups
        pools, unknown = await self._read_pools() if karpenter else ((), "")
        return FoundAutoscalers(
            karpenter, await self._has_status(), "v1" in groups.get(PROVISIONING, ()), pools, unknown
        )

    async def _read_pools(self) -> tuple[tuple[NodePool, ...], str]:
        try:
            found = [decode_node_pool(each) for each in await self._client.list_all(NODE_POOLS)]
        except (Forbidden, NotFound) as error:
            return (), f"Serried cannot read NodePools: {error}"
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
            self._log_once(f"Serried cannot find out whether the cluster has a Cluster Autoscaler: {error}")
            return False
        return True

    def _log_once(self, failure: str) -> None:
        """Log why a refresh failed, unless the last failure was the same. With "" for no failure nothing is logged."""
        if failure and failure != self._logged:
            log.warning("cannot find out which autoscalers the cluster has", extra={"err": failure})
        self._logged = failure or self._logged
