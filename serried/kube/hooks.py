"""What this room tells the metrics. `observe.metrics` has an object of this shape; here nobody knows prometheus."""

from typing import Protocol


class Hooks(Protocol):
    """Called at the moment of what they count; must not block or raise."""

    def watch_restarted(self, resource: str, cause: str) -> None:
        """A watch ended, for one of the causes in `reflector.Cause`."""

    def watch_received(self, resource: str, count: int) -> None:
        """So many changes were applied."""

    def malformed(self, resource: str) -> None:
        """A watched object could not be used (each sighting counts)."""

    def wrote(self, verb: str, resource: str) -> None:
        """A write was sent (each attempt counts)."""

    def event_dropped(self) -> None:
        """A core/v1 Event was not written because the queue was full or the server refused it."""


class Silent:
    """Hooks that count nothing."""

    def watch_restarted(self, resource: str, cause: str) -> None:
        """Count nothing."""

    def watch_received(self, resource: str, count: int) -> None:
        """Count nothing."""

    def malformed(self, resource: str) -> None:
        """Count nothing."""

    def wrote(self, verb: str, resource: str) -> None:
        """Count nothing."""

    def event_dropped(self) -> None:
        """Count nothing."""


SILENT = Silent()
