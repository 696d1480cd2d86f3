"""What was found out about an installation, before anything is said of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serried.cli.check.findings import Area
from serried.cli.check.roles import Right
from serried.decode.fields import Raw, read_flag, read_int, read_map, read_objects, read_text

_USUAL_EXTENDER_SECONDS = 5.0
"""kube-scheduler's ``httpTimeout`` where none is said (upstream's pkg/scheduler/extender.go)."""

_USUAL_LEASE = "kube-system/kube-scheduler"
_USUAL_QPS = 50
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Managed(NamedTuple):
    """One of ``managedResources``."""

    name: str
    ignored: bool
    """``ignoredByScheduler``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One of ``extenders``."""

    place: int
    """Its index in the list."""

    url: str = ""
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    ignorable: bool = False
    node_cache: bool = False
    timeout_seconds: float = _USUAL_EXTENDER_SECONDS
    managed: tuple[Managed, ...] = ()


class Profile(NamedTuple):
    """One of ``profiles``."""

    scheduler: str

    percentage: int | None
    """``percentageOfNodesToScore``; None where nothing is said."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """A KubeSchedulerConfiguration, as far as Serried depends on it."""

    source: str
    """The file or ConfigMap."""

    entries: tuple[Entry, ...] = ()
    profiles: tuple[Profile, ...] = (Profile("default-scheduler", None),)

    percentage: int | None = None
    """``percentageOfNodesToScore`` of all profiles that say nothing."""

    elects: bool = True
    lease: str = _USUAL_LEASE
    """Namespace and name."""

    qps: float = _USUAL_QPS


@dataclass(frozen=True, slots=True)
class Observed:
    """An installation. What is None was not looked at, or could not be: `unread` says which and why."""

    config: SchedulerConfig | None = None

    flags: Mapping[str, str] = field(default_factory=dict)
    """The extender's flags, without dashes before the name: from its ``/debug/config``, else the defaults.

    Of the defaults ``isolated`` is left out: the scheduler's configuration shows it.
    """

    selfcheck: Raw | None = None
    """The extender's ``/debug/selfcheck``."""

    silence: str = ""
    """Why the extender gives no answer; "" where it does, or was not asked. What only it knows is in `unread` then."""

    skew_seconds: float | None = None
    """By how much the extender's clock is ahead of the API server's."""

    denied: frozenset[Right] | None = None
    """The rights that the shipped roles would grant, and nobody grants."""

    nodes: Mapping[str, Mapping[str, str]] | None = None
    """The labels of each node."""

    keys: tuple[str, ...] = ()
    """The topology keys that groups ask for."""

    policies: frozenset[str] | None = None
    """The names of all admission policies."""

    bound_policies: frozenset[str] = frozenset()
    """The names of those that have a binding."""

    autoscalers: tuple[str, ...] | None = None

    server_version: str = ""
    """Of the API server, for example v1.37.1."""

    scheduler_version: str = ""
    """Of the kube-scheduler beside the extender; "" where its image does not say."""

    unread: tuple[tuple[Area, str, str], ...] = ()
    """What could not be looked at: area, what, why."""

    @property
    def extenders_elect(self) -> bool:
        """Whether the extenders elect their leader themselves, because the cluster's own scheduler calls them."""
        return self.flags.get("lease-mode") == "hold"


def decode_scheduler_config(source: str, document: Any) -> SchedulerConfig:
    """The configuration in a parsed document. Raises ValueError for any other."""
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        raise ValueError(f"{source} holds no KubeSchedulerConfiguration")
    election = read_map(document, "leaderElection")
    namespace = read_text(election, "resourceNamespace", "kube-system")
    profiles = tuple(
        Profile(read_text(each, "schedulerName", "default-scheduler"), _read_percentage(each))
        for each in read_objects(document, "profiles")
    )
    qps = read_map(document, "clientConnection").get("qps")
    return SchedulerConfig(
        source=source,
        entries=tuple(_decode_entry(place, each) for place, each in enumerate(read_objects(document, "extenders"))),
        profiles=profiles or (Profile("default-scheduler", None),),
        percentage=_read_percentage(document),
        elects=election.get("leaderElect") is not False,
        lease=f"{namespace}/{read_text(election, 'resourceName', 'kube-scheduler')}",
        qps=float(qps) if isinstance(qps, int | float) and qps else _USUAL_QPS,
    )


def _decode_entry(place: int, entry: Raw) -> Entry:
    managed = read_objects(entry, "managedResources")
    timeout = read_text(entry, "httpTimeout")
    return Entry(
        place=place,
        url=read_text(entry, "urlPrefix"),
        filter_verb=read_text(entry, "filterVerb"),
        prioritize_verb=read_text(entry, "prioritizeVerb"),
        preempt_verb=read_text(entry, "preemptVerb"),
        bind_verb=read_text(entry, "bindVerb"),
        ignorable=read_flag(entry, "ignorable"),
        node_cache=read_flag(entry, "nodeCacheCapable"),
        timeout_seconds=parse_duration(timeout) if timeout else _USUAL_EXTENDER_SECONDS,
        managed=tuple(Managed(read_text(each, "name"), read_flag(each, "ignoredByScheduler")) for each in managed),
    )


def _read_percentage(obj: Raw) -> int | None:
    return read_int(obj, "percentageOfNodesToScore") if obj.get("percentageOfNodesToScore") is not None else None


def parse_duration(text: str) -> float:
    """The seconds in a duration as Go writes it. Raises ValueError for anything else."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 15m or 5s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
