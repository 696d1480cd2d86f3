"""A stage for stories about the queue: gang Jobs whose pods fill a node each."""

from typing import Any

import httpx

from tests.support.cluster_stage import RACK, ClusterStage, indexed_spec

WHOLE_NODE = "30"
SCHEDULER = "serried"


class QueueStage(ClusterStage):
    """A namespace of gang Jobs whose pods fill a node each."""

    def run_gang(self, name: str, size: int, seconds: int = 0, key: str = "", cpu: str = WHOLE_NODE) -> None:
        """Submit a gang Job of ``size`` pods, which Kubernetes ends after ``seconds`` unless that is 0."""
        lasting: dict[str, Any] = {"activeDeadlineSeconds": seconds} if seconds else {}
        metadata = {"annotations": {"scheduling.serried.dev/required-topology": key}} if key else {}
        spec = indexed_spec(SCHEDULER, cpu) | {"parallelism": size, "completions": size} | lasting
        self.submit_job(name, metadata=metadata, **spec)

    def occupy_rack(self, seconds: int = 0) -> None:
        """A gang takes one of the two racks."""
        self.run_gang("early", 2, seconds, RACK)
        self.await_bound("early", 2)

    def queue(self) -> dict[str, Any]:
        """``/debug/queue``."""
        found: dict[str, Any] = self._debug.get("/debug/queue").json()
        return found

    def outcomes(self) -> dict[str, float]:
        """Return the number of forecasts since the extender started, by outcome."""
        lines = httpx.get(f"{self.cluster.ops_url}/metrics", timeout=10.0).text.splitlines()
        found = [line for line in lines if line.startswith("serried_forecasts_total{")]
        return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in found}
