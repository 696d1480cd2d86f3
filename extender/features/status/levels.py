"""Writes which label stands for each level of the topology, into the status of TopologyLevels ``default``.

The controller, which follows no nodes, resolves the levels that Jobs name by it. People read it.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import NoReturn

from serried.api.topology import DEFAULT, LevelTable, decides_otherwise, write_table
from serried.cluster.levels import Levels
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError
from serried.kube.retry import Backoff
from serried.kube.wire import TOPOLOGY_LEVELS

log = logging.getLogger(__name__)

_RETRY = Backoff(first=1.0, cap=60.0)
"""The seconds between two looks, and more after failures: one write a second while what levels mean changes."""

_COUNTS_SECONDS = 30.0
"""The time between two writes of which only how many nodes there are is new."""


class LevelReport:
    """Keeps the status right while ``may_write`` says so."""

    def __init__(
        self, client: ApiClient, levels: Levels, may_write: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._levels = levels
        self._may_write = may_write
        self._clock = clock
        """The monotonic time in seconds."""
        self._written = -math.inf
        """When the status was last written."""
        self._failures = 0
        """How many looks in a row ended with a refusal of the API server."""

    @property
    def delay(self) -> float:
        """The seconds until the next look."""
        return _RETRY.delay(self._failures + 1)

    async def run(self) -> NoReturn:
        """Look at it until cancelled."""
        while True:
            await asyncio.sleep(self.delay)
            if self._may_write():
                await self.settle()

    async def settle(self) -> None:
        """Write the status if it says anything else; create the object if there is none."""
        try:
            await self._write()
        except AlreadyExists:
            self._failures += 1  # the watch will show it, and does not where it is behind
        except ApiError as error:
            if not self._failures:
                log.error("cannot write TopologyLevels", extra={"err": str(error)})
            self._failures += 1
        else:
            self._failures = 0

    async def _write(self) -> None:
        declared = self._levels.declared.get(DEFAULT)
        table = self._levels.table
        if declared is None:
            body = {"apiVersion": TOPOLOGY_LEVELS.api_version, "kind": "TopologyLevels", "metadata": {"name": DEFAULT}}
            await self._client.create(TOPOLOGY_LEVELS, "", body)
        elif declared.status != table and self._is_due(declared.status, table):
            await self._client.patch_merge(TOPOLOGY_LEVELS, "", DEFAULT, {"status": write_table(table)}, "status")
            self._written = self._clock()

    def _is_due(self, old: LevelTable | None, new: LevelTable) -> bool:
        return decides_otherwise(old, new) or self._clock() >= self._written + _COUNTS_SECONDS
