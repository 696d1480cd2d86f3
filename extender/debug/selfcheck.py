"""``/debug/selfcheck``: what this process found, and how it stands."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from extender.core import Core
from extender.debug.view import exemplify
from extender.endpoint_slice import EndpointSlice
from extender.gate_switch import HoldSwitch
from extender.isolation import Isolation
from extender.leader import Leadership
from serried import __version__
from serried.callers.certificates import Use, list_expiries
from serried.decode.times import write_time
from serried.feed import Feed
from serried.kube.client import ApiClient
from serried.kube.discovery import keeps_group
from serried.model.level import NATIVE, ApiLevel

log = logging.getLogger(__name__)

_SOON_SECONDS = 7 * 86_400.0
"""How long before the end of a certificate there is a warning: time to find out why nobody renews it."""

_FLAGS = {Use.SERVING: "--tls-cert-file", Use.CLIENT_CA: "--client-ca-file"}
"""Where the certificates are."""

_OUTCOMES = {
    Use.SERVING: "callers that check it cannot call",
    Use.CLIENT_CA: "nobody can call filter and bind",
}
"""What comes of it when they expire."""


class SelfCheck:
    """Reads the state of the extender, and changes nothing."""

    def __init__(
        self,
        core: Core,
        feed: Feed,
        level: ApiLevel,
        leadership: Leadership,
        *,
        holding: HoldSwitch,
        isolation: Isolation,
        endpoint_slice: EndpointSlice | None,
    ) -> None:
        self._core = core
        self._feed = feed
        self._level = level
        self._leadership = leadership
        self._holding = holding
        self._isolation = isolation
        self._endpoint_slice = endpoint_slice
        self._refused = level.refused
        self._pods_keep_group: bool | None = None

    def note_refused(self, refused: Sequence[str]) -> None:
        """For other reasons than before, or other versions, cannot be used."""
        self._refused = tuple(refused)

    async def check_group_field(self, client: ApiClient, namespace: str) -> None:
        """Find out whether pods keep what they say of their PodGroup; asked once, with a dry run in ``namespace``."""
        self._pods_keep_group = await keeps_group(client, self._level, namespace)
        if self._pods_keep_group is False and self._level.name == NATIVE.name:
            log.error("the API server drops what pods say of their PodGroup: is GenericWorkload on everywhere?")

    def describe(self) -> dict[str, Any]:
        """The document."""
        now = time.time()
        return {
            "version": __version__,
            "now": write_time(now),
            "api": {
                "level": self._level.name,
                "group": self._level.group,
                "version": self._level.version,
                "shape": self._level.shape,
                "refused": list(self._refused),
                "podsKeepTheirGroup": self._pods_keep_group,
            },
            "schedulers": sorted(self._core.store.schedulers),
            "schedulesGangs": self._core.store.schedules_gangs,
            "active": self._leadership.active,
            "leaseHolder": self._leadership.holder,
            "planning": self._core.term.plans,
            "obstacle": self._core.term.obstacle,
            "synced": self._feed.synced.is_set(),
            "hold": self._describe_hold(),
            "endpointSlice": self._describe_endpoint_slice(),
            "isolation": self._isolation.describe(),
            "certificates": describe_certificates(list_expiries(), now),
            "objects": self._count_objects(),
            "watches": self._describe_watches(),
        }

    def _describe_hold(self) -> dict[str, Any]:
        return {
            "mode": self._holding.mode,
            "way": self._holding.way,
            "obstacle": self._holding.obstacle,
            "heldByFilter": len(self._core.held),
        }

    def _describe_endpoint_slice(self) -> dict[str, str] | None:
        """None for an extender that writes none."""
        return None if self._endpoint_slice is None else {"obstacle": self._endpoint_slice.obstacle}

    def _count_objects(self) -> dict[str, int]:
        store = self._core.store
        return {
            "nodes": len(store.nodes),
            "pods": len(store.pods),
            "podsOfOtherSchedulers": store.running_elsewhere,
            "podGroups": len(store.groups),
            "workloads": len(store.workloads),
            "jobs": len(store.jobs),
            "reservations": len(self._core.ledger),
        }

    def _describe_watches(self) -> dict[str, Any]:
        return {
            kind.value: {
                "listed": reflector.listed.is_set(),
                "served": kind not in self._feed.unserved,
                "malformed": self._feed.malformed[kind],
                "silentSeconds": round(time.monotonic() - reflector.last_event_monotonic, 1),
            }
            for kind, reflector in self._feed.reflectors.items()
        }


def describe_certificates(expiries: Mapping[Use, float], now: float) -> dict[str, dict[str, str]]:
    """When the certificates of each use expire; with a warning if that is soon, or was."""
    return {
        use.value: {"expires": write_time(expiry), "warning": _warn(use, expiry - now)}
        for use, expiry in expiries.items()
    }


def _warn(use: Use, seconds: float) -> str:
    if seconds > _SOON_SECONDS:
        return ""
    when = "has expired: " if seconds <= 0 else f"expires in {seconds / 86_400:.1f} days; then "
    return f"the certificate in {_FLAGS[use]} {when}{_OUTCOMES[use]}. Replace the file; no restart is needed"


_EXAMPLE = {
    "version": __version__,
    "now": "2026-08-01T12:00:00Z",
    "api": {
        "level": "native",
        "group": "scheduling.k8s.io",
        "version": "v1beta1",
        "shape": "v1beta1",
        "refused": [],
        "podsKeepTheirGroup": True,
    },
    "schedulers": ["serried"],
    "schedulesGangs": False,
    "active": True,
    "leaseHolder": "serried-5c9f_6d0a",
    "planning": True,
    "obstacle": "",
    "synced": True,
    "hold": {"mode": "auto", "way": "filter", "obstacle": "", "heldByFilter": 8},
    "endpointSlice": {"obstacle": ""},
    "objects": {
        "nodes": 64,
        "pods": 512,
        "podsOfOtherSchedulers": 0,
        "podGroups": 12,
        "workloads": 12,
        "jobs": 12,
        "reservations": 1,
    },
    "certificates": {"serving": {"expires": "2026-10-30T12:00:00Z", "warning": ""}},
    "watches": {"pods": {"listed": True, "served": True, "malformed": 0, "silentSeconds": 0.3}},
}


def selfcheck_routes(describe: Callable[[], dict[str, Any]]) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/selfcheck", responses=exemplify(_EXAMPLE))
    async def check() -> dict[str, Any]:
        """What the process has found in the cluster, whether it leads, and how its watches stand."""
        return describe()

    return router
