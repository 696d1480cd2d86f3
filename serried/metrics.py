"""What the processes count, one class a process. These count nothing; those of `observe.prometheus` fill ``/metrics``.

Each method is called at the moment of what it counts, and must not block or raise. Whatever is counted in the hot
paths goes through here, so that nothing but `observe` knows prometheus.
"""


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

    def event_dropped(self) -> None:
        """A core/v1 Event was not written because the queue was full or the server refused it."""


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


class ControllerMetrics(Metrics):
    """What the controller counts; times in seconds."""

    def synced(self, result: str, seconds: float) -> None:
        """One look at a Job ended: success, retry (the API server refused) or error (a defect of ours)."""

    def created(self, result: str, seconds: float) -> None:
        """The API server has answered the create of a gang Job's Workload."""

    def queued(self, length: int) -> None:
        """``length`` Jobs wait now."""


UNCOUNTED = Metrics()
"""For whoever has no use for the numbers."""
