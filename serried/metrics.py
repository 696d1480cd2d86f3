"""What the processes count, one class a process. These count nothing; those of `observe.prometheus` fill ``/metrics``.

Each method is called at the moment of what it counts, and must not block or raise. Whatever is counted in the hot
paths goes through here, so that nothing but `observe` knows prometheus.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HeldRoom:
    """What reservations hold at one instant."""

    phases: Mapping[str, int] = field(default_factory=dict)
    """How many reservations there are of each phase."""

    bound: int = 0
    """Slots whose members are bound."""

    waiting: int = 0
    """Slots whose members are not bound yet."""

    idle: Mapping[str, float] = field(default_factory=dict)
    """What the waiting ones ask for by resource, in cores, bytes or pieces: held, and used by nobody."""

    oldest_seconds: float = 0.0
    """For how long the oldest reservation has waited."""


class Metrics:
    """What both processes count: watches, writes, Events."""

    def watch_restarted(self, resource: str, cause: str) -> None:
        """A watch ended, for one of the causes in `kube.reflector.Cause`."""

    def watch_received(self, resource: str, count: int) -> None:
        """``count`` changes were applied."""

    def malformed(self, resource: str) -> None:
        """A watched object could not be used (each sighting counts)."""

    def wrote(self, verb: str, resource: str) -> None:
        """A write was sent (each attempt counts)."""

    def failed(self, method: str, status: int) -> None:
        """The API server has refused a request (each attempt counts); status 0 if no answer came."""

    def event_dropped(self) -> None:
        """A core/v1 Event was not written because the queue was full or the server refused it."""

    def cached(self, resource: str, count: int) -> None:
        """``count`` objects of a resource are in the cache now."""

    def silent(self, resource: str, seconds: float) -> None:
        """The watch of a resource has said nothing for ``seconds`` now, not even a bookmark."""

    def certificates(self, expiries: Mapping[str, float]) -> None:
        """When the certificates of each use expire, in seconds since 1970."""


class ExtenderMetrics(Metrics):
    """What the extender counts; times in seconds."""

    def verb(self, name: str, seconds: float) -> None:
        """One call of kube-scheduler was answered."""

    def planned(self, outcome: str, seconds: float) -> None:
        """A plan was made or refused."""

    def burst(self, seconds: float, members: int) -> None:
        """The Bindings of one commit have all been answered."""

    def bound(self, outcome: str) -> None:
        """One Binding has this outcome."""

    def promised(self, wait: float) -> None:
        """The head of the queue got its first forecast, which is ``wait`` ahead."""

    def settled(self, outcome: str, error: float | None) -> None:
        """A head's forecast has come out: placed ``error`` later (earlier if negative), None without a forecast."""

    def repaired(self, outcome: str, seconds: float) -> None:
        """A kept slot was filled, or given up, ``seconds`` after its member had ended."""

    def searched(self, outcome: str, seconds: float) -> None:
        """A search for victims has ended: Found, Fits, Unfinished, or what is in the way."""

    def preemption_ended(self, outcome: str) -> None:
        """A preemption has ended: Cleared, Withdrawn, or the reason why it was given up."""

    def evicted(self, kind: str) -> None:
        """A victim was evicted: Group if its whole group is, Member of a group, or Plain."""

    def head(self, seconds: float) -> None:
        """The head's forecast is ``seconds`` ahead now; not a number without one."""

    def vacancies(self, count: int) -> None:
        """``count`` slots are kept now."""

    def held(self, by: str, count: int) -> None:
        """``count`` pods are held now by filter or gate."""

    def unmarked(self, count: int) -> None:
        """``count`` members that wait for a node lack the markers now."""

    def groups(self, state: str, count: int) -> None:
        """``count`` groups are in this state now."""

    def waited(self, reason: str, seconds: float) -> None:
        """A group has another reason now, after it had this one for ``seconds``."""

    def started(self, seconds: float) -> None:
        """A group's quorum is bound, ``seconds`` after the group was first seen, or had lost its quorum."""

    def active(self, count: int) -> None:
        """1 while this process may plan and bind, else 0."""

    def partial(self, count: int) -> None:
        """``count`` gangs have bound members now, and fewer than minCount."""

    def gangs(self, counts: Mapping[tuple[str, str], int]) -> None:
        """How many gangs there are now, by API level and by the kind of their owner."""

    def reservations(self, held: "HeldRoom") -> None:
        """The room that reservations hold now."""

    def fragmentation(self, free: int, largest: Mapping[str, int]) -> None:
        """How many members like those planned last the cluster has room for, and one domain of each key at most."""


class ControllerMetrics(Metrics):
    """What the controller counts; times in seconds."""

    def synced(self, result: str, seconds: float) -> None:
        """One look at a Job ended: success, retry (the API server refused) or error (a defect of ours)."""

    def created(self, result: str, seconds: float) -> None:
        """The API server has answered the create of a gang Job's Workload."""

    def active(self, count: int) -> None:
        """1 for the controller that works, 0 for one that stands by."""

    def queued(self, length: int) -> None:
        """``length`` Jobs wait now."""


UNCOUNTED = Metrics()
"""For whoever has no use for the numbers."""
