"""What the controller measures."""

from typing import Protocol


class Metrics(Protocol):
    """Sink of the process's measures (`observe.metrics.ControllerMetrics`)."""

    def created(self, result: str, seconds: float) -> None:
        """The API server has answered the create of a gang Job's Workload."""

    def synced(self, result: str, seconds: float) -> None:
        """One look at a Job ended: success, retry (the API server refused) or error (a defect of ours)."""
