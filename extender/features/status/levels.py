"""The status of the TopologyLevels object ``default``: the node label of each level of the topology.

`LevelReport.run` writes it. The controller reads it to find the label of a level that a Job names, as the controller
does not watch nodes. Users read it, too.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import NoReturn

from serried.api.topology import DEFAULT, LevelTable, may_change_labels, write_table
from serried.cluster.levels import Levels
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError
from serried.kube.retry import Backoff
from serried.kube.wire import TOPOLOGY_LEVELS

log = logging.getLogger(__name__)

_RETRY = Backoff(first=1.0, cap=60.0)
"""The pause between two comparisons of topology and status; it grows after failures.

So there is at most one write a second.
"""

_COUNTS_SECONDS = 30.0
"""The pause between two writes if only the numbers of nodes have changed, in seconds."""


class LevelReport:
    """Keeps the status of the TopologyLevels object ``default`` up to date while ``may_write`` returns True."""

    def __init__(
        self, client: ApiClient, levels: Levels, may_write: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._levels = levels
        self._may_write = may_write
        self._clock = clock
        """Returns the monotonic time in seconds."""
        self._written = -math.inf
        """The time of the last write, by ``_clock``; minus infinity for none."""
        self._failures = 0
        """The number of failed writes in a row."""

    @property
    def delay(self) -> float:
        """The pause before the next comparison of topology and status, in seconds."""
        return _RETRY.delay(self._failures + 1)

    async def run(self) -> NoReturn:
        """Compare the cluster's topology with the status again and again, and write changes. Run until cancelled."""
        while True:
            await asyncio.sleep(self.delay)
            if self._may_write():
                await self.write_if_changed()

    async def write_if_changed(self) -> None:
        """Write the status if it differs from the topology. If the object does not exist, only create it.

        The next call writes the status of a created object. If only numbers of nodes differ, the status is not written
        within 30 s of the last write. Of several errors in a row the first is logged; none is raised.
        """
        try:
            await self._write()
        except AlreadyExists:
            self._failures += 1  # the watch is late, and will show the object
        except ApiError as error:
            if not self._failures:
                text = "cannot write TopologyLevels, so the controller may resolve levels by an old table; trying again"
                log.error(text, extra={"err": str(error)})
            self._failures += 1
        else:
            self._failures = 0

    async def _write(self) -> None:
        declared = self._levels.declared.get(DEFAULT)
        table = self._levels.table
        if declared is None:
            body = {"apiVersion": TOPOLOGY_LEVELS.api_version, "kind": "TopologyLevels", "metadata": {"name": DEFAULT}}
            await self._client.create(TOPOLOGY_LEVELS, "", body)
        elif declared.status != table and self._may_write_now(declared.status, table):
            await self._client.patch_merge(TOPOLOGY_LEVELS, "", DEFAULT, {"status": write_table(table)}, "status")
            self._written = self._clock()

    def _may_write_now(self, old: LevelTable | None, new: LevelTable) -> bool:
        return may_change_labels(old, new) or self._clock() >= self._written + _COUNTS_SECONDS
