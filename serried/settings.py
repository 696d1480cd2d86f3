"""The settings: flags, then environment variables ``SERRIED_*`` of the same name, then defaults.

The only reader of both processes' command line and environment. A field is a flag: its type says which values it takes
and what ``--help`` calls them. A bad value ends the process with a sentence that names where the value came from.
"""

import argparse
import ipaddress
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import Field, PlainValidator, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from serried import __version__
from serried.api.names import Key

Environ = Mapping[str, str]
S = TypeVar("S", bound="CommonSettings")

_PREFIX = "SERRIED_"
_BIND_TIMEOUT_SECONDS = 900.0
"""httpTimeout of the bind entry in the shipped scheduler config: a barrier must end before it."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Address(NamedTuple):
    """Where a listener listens."""

    host: str
    """A name or an address; "" for every address, IPv4 and IPv6."""

    port: int
    """0 for any free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine, or this pod, reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


# --- parsers of values -----------------------------------------------------------------------------------------


def _parse_names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names or not all(_SUBDOMAIN.fullmatch(name) for name in names):
        raise ValueError("must be one or more scheduler names, separated by commas")
    return names


def _parse_profiles(text: str) -> frozenset[str]:
    return _parse_names(text) if text else frozenset()


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:8910 or [::1]:8910")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("must have its IPv6 address in brackets, for example [::1]:8910")
    return Address(host.strip("[]"), int(port))


def _parse_open_address(text: str) -> Address:
    """An address that may be every address: only for listeners that know who may see what."""
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


def _parse_callers(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _parse_required(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _parse_endpoint(text: str) -> str:
    if text and not re.match(r"https?://[^/]+", text):
        raise ValueError("must be a URL with http:// or https://, or empty")
    return text


def _parse_ip(text: str) -> str:
    if text:
        ipaddress.ip_address(text)  # its ValueError says what is wrong
    return text


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _parse_percent(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 3) or not 1 <= int(text) <= 100:
        raise ValueError("must be a whole number from 1 to 100")
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
    if seconds >= _BIND_TIMEOUT_SECONDS:
        raise ValueError(f"must be less than {_BIND_TIMEOUT_SECONDS:g}, the httpTimeout of the scheduler's bind entry")
    return seconds


# --- types of flags --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shown:
    """What ``--help`` calls the value of a flag."""

    metavar: str


Names = Annotated[frozenset[str], PlainValidator(_parse_names), _Shown("NAME[,NAME...]")]
Profiles = Annotated[frozenset[str], PlainValidator(_parse_profiles), _Shown("NAME[,NAME...]")]
Callers = Annotated[frozenset[str], PlainValidator(_parse_callers), _Shown("NAME[,NAME...]")]
ListenAddress = Annotated[Address, PlainValidator(_parse_address), _Shown("HOST:PORT")]
OpenAddress = Annotated[Address, PlainValidator(_parse_open_address), _Shown("[HOST]:PORT")]
ObjectName = Annotated[Key, PlainValidator(_parse_key), _Shown("NAMESPACE/NAME")]
LeaseName = Annotated[Key | None, PlainValidator(_parse_lease), _Shown("NAMESPACE/NAME")]
HolderName = Annotated[str, PlainValidator(str), _Shown("TEXT")]
File = Annotated[str | None, PlainValidator(_parse_optional), _Shown("FILE")]
Text = Annotated[str, PlainValidator(_parse_required), _Shown("TEXT")]
Endpoint = Annotated[str, PlainValidator(_parse_endpoint), _Shown("URL")]
IpAddress = Annotated[str, PlainValidator(_parse_ip), _Shown("IP")]
Count = Annotated[int, PlainValidator(_parse_count), _Shown("COUNT")]
Percent = Annotated[int, PlainValidator(_parse_percent), _Shown("PERCENT")]
Seconds = Annotated[float, PlainValidator(_parse_seconds), _Shown("SECONDS")]
SecondsOrNone = Annotated[float, PlainValidator(_parse_span), _Shown("SECONDS|0")]
SecondsOrOff = Annotated[float, PlainValidator(_parse_ageing), _Shown("SECONDS|off")]
BarrierSeconds = Annotated[float, PlainValidator(_parse_barrier), _Shown("SECONDS")]


def _flag(default: str, text: str, name: str | None = None) -> Any:
    """A field that is a flag; ``name`` is the flag's where the field has another one."""
    return Field(default, description=text, alias=name)


_EVERYWHERE = "without a host: all addresses, IPv4 and IPv6"

# --- the settings ----------------------------------------------------------------------------------------------


class CommonSettings(BaseSettings):
    """The settings of both processes."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_prefix_target="all",
        enable_decoding=False,
        frozen=True,
        validate_default=True,
        defer_build=True,
    )

    kubeconfig: File = _flag(
        "", "kubeconfig file; default: the service account in a pod, otherwise the default kubeconfig"
    )
    """None for in-cluster credentials, or else the default kubeconfig."""

    log_level: Literal["debug", "info", "warning", "error"] = _flag("info", "lowest level that is logged")
    api: Literal["auto", "native", "fallback"] = _flag(
        "auto", "API of Workloads and PodGroups: that of Kubernetes (native), or Serried's CRDs (fallback)"
    )

    schedulers: Names = _flag(
        "serried", "schedulerName of the pods that Serried schedules; may be repeated", "scheduler_name"
    )
    """The schedulerNames of the pods that Serried places; alike for both processes."""

    gang_jobs: Literal["by-shape", "asked", "none"] = _flag(
        "by-shape",
        "which Jobs are gangs: by their shape, or only if they ask, or none. Set it alike for extender and controller",
    )

    tls_cert_file: File = _flag(
        "", "certificate of the TLS listeners, in PEM; without it the operations listener signs its own"
    )
    """Read anew for each connection when it has changed, as the other files of certificates."""

    tls_private_key_file: File = _flag("", "key of that certificate")
    ops_auth: Literal["remote", "always", "off"] = _flag(
        "remote",
        "who needs a token for metrics and debug pages: callers over the network, or also on loopback, or nobody",
    )
    ops_auth_cache: Seconds = _flag("30", "how long the API server's answer about a token is used")

    @field_validator("*", mode="before")
    @classmethod
    def _strip(cls, text: str) -> str:
        return text.strip()

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            raise ValueError("--tls-cert-file and --tls-private-key-file have to be set together")
        return self


class ExtenderSettings(CommonSettings):
    """The extender's settings; durations in seconds."""

    filter_listen: ListenAddress = _flag("127.0.0.1:8910", "address for filter, prioritize and preempt calls")
    bind_listen: ListenAddress = _flag("127.0.0.1:8911", "address for bind calls")
    client_ca_file: File = _flag("", "authority of the callers' certificates; turns on TLS for filter and bind calls")
    client_names: Callers = _flag("", "names that these certificates may have; empty: any name")
    insecure_verbs: Literal["off", "on"] = _flag(
        "off", "allow plain HTTP on other addresses than loopback for filter and bind calls, from anybody"
    )
    ops_listen: OpenAddress = _flag(":8912", f"address of probes, metrics and debug pages; {_EVERYWHERE}")
    traces: Endpoint = _flag("", "OTLP/HTTP address for traces of gangs; empty: no traces")
    """Needs the extra ``traces``."""

    lease: LeaseName = _flag("serried-system/serried", "Lease of the scheduler; empty: always active")
    """None for an instance that is always active."""

    lease_mode: Literal["follow", "hold"] = _flag(
        "follow", "follow the Lease of the scheduler in the same pod, or hold the Lease if other schedulers call"
    )
    endpoint_slice: LeaseName = _flag(
        "", "EndpointSlice in which the leader writes its address, if a scheduler calls a Service of that name"
    )
    """None where nobody writes it; then readiness shows who leads."""

    endpoint_address: IpAddress = _flag("", "the address of this pod in that EndpointSlice")
    scheduler_livez: Endpoint = _flag("", "address of the scheduler's /livez; empty: it is not checked")
    """Asked by ``/livez/pair``, on loopback."""

    lease_holder_prefix: Text = Field(
        description="how the Lease's holder begins if it is the scheduler in the same pod"
    )
    hold: Literal["auto", "filter", "gate"] = _flag(
        "auto", "how waiting members are held: by the answer to filter, or by a scheduling gate"
    )
    hold_limit: Count = _flag("500", "with auto: number of pods held by filter above which gates are used")
    hold_switch: ObjectName = _flag("serried-system/serried-hold", "ConfigMap that the policy of the gate reads")
    barrier_deadline: BarrierSeconds = _flag(
        "300", "longest time from the first call about a member until minCount members are at bind"
    )
    barrier_idle: Seconds = _flag(
        "60", "longest time without a new member at bind, while the scheduler is idle or refuses members"
    )
    bind_concurrency: Count = _flag("64", "Bindings in flight at the start")
    stamp: Literal["auto", "always", "never"] = _flag("auto", "which planned pods are nominated to their node")
    stamp_window: Count = _flag("512", "number of planned pods that are nominated before the scheduler tries them")
    job_unknown_deadline: Seconds = _flag(
        "30", "how long a pod waits to see its Job, before the API server is asked whether there is one"
    )
    backfill: Literal["forecast", "off"] = _flag(
        "forecast", "keep room for the first gang that does not fit, by a forecast"
    )
    backfill_patience: Seconds = _flag("600", "how long that room is kept after the forecast")
    backfill_share: Percent = _flag("80", "largest share of all nodes that is kept for gangs of one namespace")
    exclusive_share: Percent = _flag(
        "80", "largest share of the domains of a key for the exclusive gangs of one namespace"
    )
    backfill_plain: Literal["pass", "wait"] = _flag(
        "pass", "whether plain pods may use these nodes, or wait like the gangs behind it"
    )
    queue_ageing: SecondsOrOff = _flag("86400", "waiting time after which a gang counts as one priority higher, or off")
    """Infinite for off."""

    repair_seconds: SecondsOrNone = _flag(
        "120", "how long the place of a dead member is kept for its replacement; 0: not at all"
    )
    repair_share: Percent = _flag(
        "80", "largest share of all nodes on which places of dead members are kept for gangs of one namespace"
    )
    broken_grace: Seconds = _flag("300", "how long a gang may have fewer than minCount members until that is reported")
    broken_gangs: Literal["report", "evict"] = _flag("report", "whether the rest of such a gang is evicted")
    disrupted_gangs: Literal["keep", "preempted", "any"] = _flag(
        "preempted",
        "when a gang of disruption mode all ends with one of its members: never, after a preemption, always",
    )
    preemption: Literal["off", "advice", "on"] = _flag(
        "on", "whether pods of lower priority are evicted for a gang; advice: only say which would be"
    )
    preempt_by: Literal["eviction", "deletion"] = _flag(
        "eviction", "evict these pods, so that PodDisruptionBudgets count, or delete them"
    )
    preemption_timeout: Seconds = _flag(
        "600", "how long they may take to end, beyond their grace periods, until the gang is planned anew"
    )
    preemption_spare: SecondsOrNone = _flag(
        "0", "how long pods that have just started are spared from gangs of the next higher priority; 0: not at all"
    )
    other_profiles: Profiles = _flag(
        "", "schedulerName of another profile of the same kube-scheduler, whose pods may be evicted; may be repeated"
    )
    isolated: Literal["off", "on"] = _flag("off", "set it if the scheduler asks about marked pods only")

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.endpoint_slice is not None and not (self.endpoint_address and self.lease_mode == "hold"):
            raise ValueError("--endpoint-slice needs --endpoint-address and --lease-mode hold")
        return self

    @model_validator(mode="after")
    def _check_verbs(self) -> Self:
        if self.client_ca_file is not None:
            if self.tls_cert_file is None:
                raise ValueError("--client-ca-file needs --tls-cert-file and --tls-private-key-file")
            return self
        if self.client_names:
            raise ValueError("--client-names needs --client-ca-file")
        if self.insecure_verbs == "off":
            for flag, address in (("filter", self.filter_listen), ("bind", self.bind_listen)):
                if not address.is_loopback:
                    raise ValueError(_OPEN_VERBS.format(flag=flag, address=_write_value(address)))
        return self


_OPEN_VERBS = (
    "--{flag}-listen: everybody who reaches {address!r} could bind pods. Set --client-ca-file, --tls-cert-file "
    "and --tls-private-key-file, or --insecure-verbs on"
)


class ControllerSettings(CommonSettings):
    """The controller's settings."""

    ops_listen: OpenAddress = _flag(":8913", f"address of probes and metrics; {_EVERYWHERE}")
    lease: LeaseName = _flag(
        "serried-system/serried-controller", "Lease of the active controller; empty: always active"
    )
    """None for one that works without."""

    lease_holder: HolderName = Field(description="name of the holder in the Lease; empty: the name of the host")
    """An earlier process of the same Pod is gone for certain. "" where that is not known."""

    workers: Count = _flag("32", "number of Jobs that are reconciled at a time")
    elastic_jobs: Literal["follow", "refuse"] = _flag(
        "follow", "whether minCount follows when the parallelism of a gang changes, or the change is refused"
    )
    suspended_jobs: Literal["keep", "delete"] = _flag(
        "keep", "what happens to the objects of a suspended Job without pods"
    )
    track_jobs: Literal["gangs", "all"] = _flag(
        "gangs", "which Jobs get a Workload and a PodGroup: gangs, or all Jobs (others with policy basic)"
    )


_REMOVED = {"profiling": "/debug/profile is gone; take profiles with py-spy (docs/debugging.md), and leave this out"}
"""Flags of earlier releases, and what to do instead."""


class Setting(NamedTuple):
    """A setting as it was read. Values are written as on the command line, "" for none."""

    flag: str
    variable: str
    value: str
    default: str

    about: str
    """What ``--help`` says of it."""


def describe_settings(settings: CommonSettings) -> list[Setting]:
    """Every setting, in the order of ``--help``."""
    fields = type(settings).model_fields
    return [
        Setting(
            flag=f"--{_hyphenate(field.alias or name)}",
            variable=_PREFIX + (field.alias or name).upper(),
            value=_write_value(getattr(settings, name)),
            default="" if field.is_required() else str(field.default),
            about=field.description or "",
        )
        for name, field in fields.items()
    ]


def _write_value(value: object) -> str:
    match value:
        case None:
            return ""
        case Address(host, port):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case frozenset():
            return ",".join(sorted(value))
        case float():
            return "off" if math.isinf(value) else f"{value:.12g}"
    return str(value)


# --- reading ---------------------------------------------------------------------------------------------------


def extender_settings(argv: Sequence[str], environ: Environ = os.environ) -> ExtenderSettings:
    """The settings of ``serried extender``; exits with status 2 on a bad value, 0 after --help."""
    holder = environ.get("POD_NAME") or socket.gethostname()
    return _read(ExtenderSettings, "extender", argv, environ, {"lease_holder_prefix": holder})


def controller_settings(argv: Sequence[str], environ: Environ = os.environ) -> ControllerSettings:
    """The settings of ``serried controller``; exits with status 2 on a bad value, 0 after --help."""
    return _read(ControllerSettings, "controller", argv, environ, {"lease_holder": environ.get("POD_NAME", "")})


def _read(settings: type[S], command: str, argv: Sequence[str], environ: Environ, found: Mapping[str, str]) -> S:
    """The settings in flags, environment and defaults; ``found`` are defaults that depend on the machine."""
    fields = {field.alias or name: field for name, field in settings.model_fields.items()}
    defaults = {name: field.default for name, field in fields.items()} | dict(found)
    parser = _make_parser(command, fields, defaults)
    for name, instead in _REMOVED.items():
        flag, variable = f"--{_hyphenate(name)}", _PREFIX + name.upper()
        if variable in environ or any(word.partition("=")[0] == flag for word in argv):
            parser.error(f"{flag}, {variable}: {instead}")
    given = vars(parser.parse_args(argv))
    flags = {name: ",".join(text) if isinstance(text, list) else text for name, text in given.items()}
    variables = _read_variables(settings, environ)
    values = defaults | variables | flags
    try:
        return settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            parser.error(str(first["ctx"]["error"]))
        name = str(first["loc"][0])
        is_variable = name in variables and name not in flags
        origin = _PREFIX + name.upper() if is_variable else f"--{_hyphenate(name)}"
        choices = get_args(fields[name].annotation)
        wrong = first["ctx"]["error"] if first["type"] == "value_error" else f"must be one of {', '.join(choices)}"
        parser.error(f"{origin}: {values[name]!r} {wrong}")


def _read_variables(settings: type[CommonSettings], environ: Environ) -> dict[str, str]:
    source = EnvSettingsSource(settings)
    source.env_vars = {name.lower(): text for name, text in environ.items() if name.isupper()}
    return source()


def _make_parser(command: str, fields: Mapping[str, FieldInfo], defaults: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"serried {command}",
        description="Each flag is also an environment variable, for example SERRIED_LOG_LEVEL for --log-level.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"serried {__version__}")
    for name, field in fields.items():
        parser.add_argument(
            f"--{_hyphenate(name)}",
            dest=name,
            action="append" if field.annotation == frozenset[str] else "store",
            metavar=_show_value(field),
            help=f"{field.description} (default: {defaults[name] or 'none'})".replace("%", "%%"),
        )
    return parser


def _show_value(field: FieldInfo) -> str:
    shown = [each.metavar for each in field.metadata if isinstance(each, _Shown)]
    return shown[0] if shown else f"{{{','.join(get_args(field.annotation))}}}"


def _hyphenate(name: str) -> str:
    return name.replace("_", "-")
