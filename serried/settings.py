"""What can be set: flags, then environment variables ``SERRIED_*`` of the same name, then defaults.

The only reader of the command line and the environment. A bad value ends the process with a sentence that names where
it came from.
"""

import argparse
import math
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from serried import __version__
from serried.model.group import Key

Environ = Mapping[str, str]

_PREFIX = "SERRIED_"
_BIND_TIMEOUT = 900.0
"""httpTimeout of the bind entry in the shipped scheduler config: a barrier must end before it."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Address(NamedTuple):
    """Where a listener listens; port 0 takes any free one. A ``host`` of "" is every address, of IPv4 and of IPv6."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CommonSettings:
    """What both processes need.

    ``kubeconfig`` None means in-cluster credentials, else the default kubeconfig. ``api`` is auto, native or
    fallback. ``schedulers`` are the schedulerNames whose pods Serried places, ``gang_jobs`` (by-shape, asked or none)
    says which Jobs are gangs: both processes must be told the same.
    """

    kubeconfig: str | None
    log_level: str
    api: str
    schedulers: frozenset[str]
    gang_jobs: str


@dataclass(frozen=True, slots=True)
class ExtenderSettings(CommonSettings):
    """The extender's settings; durations in seconds.

    Without a ``lease`` the instance is always active. ``barrier_deadline`` bounds the wait of a gang at bind, from
    its first member on, ``barrier_idle`` the wait for the next one. ``stamp`` is auto, always or never.
    ``backfill`` is forecast or off; ``queue_ageing`` is infinite for none. ``repair_seconds`` is how long a dead
    member's slot is kept (0: not at all); ``broken_gangs`` (report or evict) says what follows ``broken_grace``.
    ``isolated`` (on or off) is whether the scheduler asks about marked pods only.
    """

    filter_listen: Address
    bind_listen: Address
    ops_listen: Address
    lease: Key | None
    lease_holder_prefix: str
    hold: str
    hold_limit: int
    hold_switch: Key
    barrier_deadline: float
    barrier_idle: float
    bind_concurrency: int
    stamp: str
    stamp_window: int
    job_unknown_deadline: float
    backfill: str
    backfill_patience: float
    queue_ageing: float
    repair_seconds: float
    broken_grace: float
    broken_gangs: str
    isolated: str


@dataclass(frozen=True, slots=True)
class ControllerSettings(CommonSettings):
    """The controller's settings. ``workers`` Jobs are reconciled at a time.

    ``elastic_jobs`` is follow or refuse, ``suspended_jobs`` keep or delete, ``track_jobs`` gangs or all.
    """

    ops_listen: Address
    workers: int
    elastic_jobs: str
    suspended_jobs: str
    track_jobs: str


def extender_settings(argv: Sequence[str], environ: Environ = os.environ) -> ExtenderSettings:
    """The settings of ``serried extender``; exits with status 2 on a bad value, 0 after --help."""
    return ExtenderSettings(**_read("extender", _COMMON + _extender_options(environ), argv, environ))


def controller_settings(argv: Sequence[str], environ: Environ = os.environ) -> ControllerSettings:
    """The settings of ``serried controller``; exits with status 2 on a bad value, 0 after --help."""
    return ControllerSettings(**_read("controller", _COMMON + _CONTROLLER, argv, environ))


@dataclass(frozen=True, slots=True)
class _Option:
    """One flag; ``parse`` raises ValueError with what would be right. ``field`` is the settings' field."""

    flag: str
    parse: Callable[[str], Any]
    default: str
    help: str
    field: str = ""

    @property
    def name(self) -> str:
        return self.field or self.flag.replace("-", "_")

    @property
    def variable(self) -> str:
        return _PREFIX + self.flag.replace("-", "_").upper()


def _read(command: str, options: Sequence[_Option], argv: Sequence[str], environ: Environ) -> dict[str, Any]:
    parser = _make_parser(command, options)
    given = vars(parser.parse_args(argv))
    values = {}
    for option in options:
        text, origin = option.default, f"--{option.flag}"
        if given[option.name] is not None:
            text = ",".join(given[option.name]) if isinstance(given[option.name], list) else given[option.name]
        elif option.variable in environ:
            text, origin = environ[option.variable], option.variable
        try:
            values[option.name] = option.parse(text.strip())
        except ValueError as err:
            parser.error(f"{origin}: {text!r} {err}")
    return values


def _make_parser(command: str, options: Sequence[_Option]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"serried {command}",
        description="Every flag can also be given as an environment variable, for example SERRIED_LOG_LEVEL.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"serried {__version__}")
    for option in options:
        parser.add_argument(
            f"--{option.flag}",
            dest=option.name,
            action="append" if option.parse is _parse_names else "store",
            metavar="VALUE",
            help=f"{option.help} (default: {option.default.replace('%', '%%') or 'none'})",
        )
    return parser


# --- parsers of values -----------------------------------------------------------------------------------------


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return parse


def _parse_names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names or not all(_SUBDOMAIN.fullmatch(name) for name in names):
        raise ValueError("must be one or more scheduler names, separated by commas")
    return names


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:8910 or [::1]:8910")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("must have its IPv6 address in brackets, for example [::1]:8910")
    return Address(host.strip("[]"), int(port))


def _parse_open_address(text: str) -> Address:
    """An address that may be all of them: only for what anybody may ask."""
    address = _parse_address(f"*{text}" if text.startswith(":") else text)
    return address._replace(host="") if address.host == "*" else address


def _parse_key(text: str) -> Key:
    namespace, slash, name = text.partition("/")
    if not slash or not _SUBDOMAIN.fullmatch(namespace) or not _SUBDOMAIN.fullmatch(name):
        raise ValueError("must be NAMESPACE/NAME")
    return Key(namespace, name)


def _parse_lease(text: str) -> Key | None:
    return _parse_key(text) if text else None


def _parse_optional(text: str) -> str | None:
    return text or None


def _parse_required(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("must be a number of seconds greater than 0")
    return seconds


def _parse_ageing(text: str) -> float:
    try:
        return math.inf if text == "off" else _parse_seconds(text)
    except ValueError as err:
        raise ValueError(f"{err}, or off") from None


def _parse_span(text: str) -> float:
    try:
        return 0.0 if text == "0" else _parse_seconds(text)
    except ValueError:
        raise ValueError("must be a number of seconds, or 0") from None


def _parse_barrier(text: str) -> float:
    seconds = _parse_seconds(text)
    if seconds >= _BIND_TIMEOUT:
        raise ValueError(f"must be less than {_BIND_TIMEOUT:g}, the httpTimeout of the scheduler's bind entry")
    return seconds


_EVERYWHERE = "without a host: every address, IPv4 and IPv6"

# --- the options -----------------------------------------------------------------------------------------------

_COMMON = (
    _Option("kubeconfig", _parse_optional, "", "kubeconfig file; without one: in-cluster, then the default one"),
    _Option("log-level", _one_of("debug", "info", "warning", "error"), "info", "debug, info, warning or error"),
    _Option("api", _one_of("auto", "native", "fallback"), "auto", "where Workloads and PodGroups live"),
    _Option(
        "scheduler-name", _parse_names, "serried", "schedulerName of the pods to place; repeatable", field="schedulers"
    ),
    _Option(
        "gang-jobs",
        _one_of("by-shape", "asked", "none"),
        "by-shape",
        "which Jobs are gangs: also unasked, by their shape; those that ask; none. Alike for both processes",
    ),
)

_CONTROLLER = (
    _Option("ops-listen", _parse_open_address, ":8913", f"probes and metrics; {_EVERYWHERE}"),
    _Option("workers", _parse_count, "32", "Jobs reconciled at a time"),
    _Option("elastic-jobs", _one_of("follow", "refuse"), "follow", "minCount when a Job's parallelism changes"),
    _Option("suspended-jobs", _one_of("keep", "delete"), "keep", "the objects of a suspended Job without pods"),
    _Option("track-jobs", _one_of("gangs", "all"), "gangs", "which Jobs get objects: all, with policy basic, or gangs"),
)


def _extender_options(environ: Environ) -> tuple[_Option, ...]:
    holder = environ.get("POD_NAME") or socket.gethostname()
    return (
        _Option("filter-listen", _parse_address, "127.0.0.1:8910", "filter, prioritize and preempt calls"),
        _Option("bind-listen", _parse_address, "127.0.0.1:8911", "bind calls"),
        _Option("ops-listen", _parse_open_address, ":8912", f"probes, metrics and debug; {_EVERYWHERE}"),
        _Option("lease", _parse_lease, "serried-system/serried", "the scheduler's Lease; empty: always active"),
        _Option("lease-holder-prefix", _parse_required, holder, "start of the Lease's holder when it is our scheduler"),
        _Option("hold", _one_of("auto", "filter", "gate"), "auto", "how new members of a gang are held"),
        _Option("hold-limit", _parse_count, "500", "pods held by filter from which on auto turns to gates"),
        _Option("hold-switch", _parse_key, "serried-system/serried-hold", "ConfigMap that the gate's policy reads"),
        _Option(
            "barrier-deadline", _parse_barrier, "300", "seconds that a gang may wait at bind, from its first member on"
        ),
        _Option(
            "barrier-idle",
            _parse_seconds,
            "60",
            "seconds that a gang waits for its next member, but for others before it",
        ),
        _Option("bind-concurrency", _parse_count, "64", "Bindings in flight"),
        _Option("stamp", _one_of("auto", "always", "never"), "auto", "which planned pods get a nominatedNodeName"),
        _Option("stamp-window", _parse_count, "512", "planned pods that are stamped ahead of the scheduler"),
        _Option("job-unknown-deadline", _parse_seconds, "30", "seconds that a pod waits for its Job to be seen"),
        _Option(
            "backfill", _one_of("forecast", "off"), "forecast", "what is kept for the first gang that does not fit"
        ),
        _Option("backfill-patience", _parse_seconds, "600", "seconds for which that is kept beyond its forecast"),
        _Option("queue-ageing", _parse_ageing, "86400", "seconds that count as one priority more, or off"),
        _Option("repair-seconds", _parse_span, "120", "seconds that a dead member's slot is kept; 0: not at all"),
        _Option("broken-grace", _parse_seconds, "300", "seconds below minCount after which a gang is reported"),
        _Option("broken-gangs", _one_of("report", "evict"), "report", "what is done then: also evict the rest of it"),
        _Option("isolated", _one_of("off", "on"), "off", "whether the scheduler asks about marked pods only"),
    )
