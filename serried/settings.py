"""The settings of both processes: flags, then environment variables ``SERRIED_*`` of the same name, then defaults.

`extender_settings` and `controller_settings` read them; nothing else reads command line or environment. Each field is
a flag: its type says which values are valid, and its docstring is the text of ``--help``. A bad value ends the process
with a sentence that names the flag or variable.
"""

import argparse
import ipaddress
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, NoReturn, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from serried import __version__
from serried.api.names import Key, is_label_key

Environ = Mapping[str, str]
S = TypeVar("S", "ExtenderSettings", "ControllerSettings")
T = TypeVar("T")

_PREFIX = "SERRIED_"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_HOST_AND_PORT = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]*):([0-9]{1,5})")


class Address(NamedTuple):
    """The address of a listener."""

    host: str
    """A name or an address; "" for every address, IPv4 and IPv6."""

    port: int
    """The port; 0 for any free one."""

    @property
    def is_loopback(self) -> bool:
        """True if only clients in the same pod, or on the same machine, reach this address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _split(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _check_not_empty(value: T) -> T:
    if not value:
        raise ValueError("must not be empty")
    return value


def _check_names(names: frozenset[str]) -> frozenset[str]:
    if not all(_SUBDOMAIN.fullmatch(name) for name in names):
        raise ValueError("must be one or more scheduler names, separated by commas")
    return names


def _check_keys(keys: frozenset[str]) -> frozenset[str]:
    if not all(map(is_label_key, keys)):
        raise ValueError("must be label keys, separated by commas, for example topology.kubernetes.io/rack")
    return keys


def _parse_address(text: str) -> Address:
    found = _HOST_AND_PORT.fullmatch(text)
    if not found or int(found[2]) > 65535:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:8910 or [::1]:8910")
    return Address(found[1].strip("[]*"), int(found[2]))


def _check_host(address: Address) -> Address:
    if not address.host:
        raise ValueError("must have a host, for example 127.0.0.1:8910 or [::1]:8910")
    return address


def _parse_key(text: str) -> Key:
    parts = text.split("/")
    if len(parts) != 2 or not all(_SUBDOMAIN.fullmatch(part) for part in parts):
        raise ValueError("must be NAMESPACE/NAME")
    return Key(*parts)


def _check_url(text: str) -> str:
    if text and not re.match(r"https?://[^/]+", text):
        raise ValueError("must be a URL with http:// or https://, or empty")
    return text


def _check_class(text: str) -> str:
    if text and not _SUBDOMAIN.fullmatch(text):
        raise ValueError("must be the name of a provisioning class, or empty")
    return text


def _check_ip(text: str) -> str:
    if text:
        ipaddress.ip_address(text)  # raises a ValueError that says why the text is no address
    return text


# The last part of each type is the name of the value in --help.
Callers = Annotated[frozenset[str], BeforeValidator(_split), "NAME[,NAME...]"]
Profiles = Annotated[frozenset[str], BeforeValidator(_split), AfterValidator(_check_names), "NAME[,NAME...]"]
LabelKeys = Annotated[frozenset[str], BeforeValidator(_split), AfterValidator(_check_keys), "KEY[,KEY...]"]
Names = Annotated[Profiles, AfterValidator(_check_not_empty)]
OpenAddress = Annotated[Address, BeforeValidator(_parse_address), "[HOST]:PORT"]
ListenAddress = Annotated[OpenAddress, AfterValidator(_check_host), "HOST:PORT"]
ObjectName = Annotated[Key, BeforeValidator(_parse_key), "NAMESPACE/NAME"]
LeaseName = Annotated[Key | None, BeforeValidator(lambda text: _parse_key(text) if text else None), "NAMESPACE/NAME"]
HolderName = Annotated[str, "TEXT"]
Text = Annotated[str, AfterValidator(_check_not_empty), "TEXT"]
File = Annotated[str | None, BeforeValidator(lambda text: text or None), "FILE"]
Endpoint = Annotated[str, AfterValidator(_check_url), "URL"]
ClassName = Annotated[str, AfterValidator(_check_class), "CLASS"]
IpAddress = Annotated[str, AfterValidator(_check_ip), "IP"]
Count = Annotated[int, Field(ge=1, lt=10**9), "COUNT"]
Percent = Annotated[int, Field(ge=1, le=100), "PERCENT"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), "SECONDS"]
SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False), "SECONDS|0"]
SecondsOrOff = Annotated[
    float, BeforeValidator(lambda text: "inf" if text == "off" else text), Field(gt=0), "SECONDS|off"
]
BarrierSeconds = Annotated[float, Field(gt=0, lt=900, allow_inf_nan=False), "SECONDS"]


class CommonSettings(BaseModel):
    """The settings of both processes."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True, defer_build=True)

    kubeconfig: File = None
    """kubeconfig file; default: the service account in a pod, otherwise the default kubeconfig"""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """lowest level that is logged"""
    api: Literal["auto", "native", "fallback"] = "auto"
    """API of Workloads and PodGroups: that of Kubernetes (native), or Serried's CRDs (fallback)"""

    schedulers: Names = Field(frozenset({"serried"}), alias="scheduler_name")
    """schedulerName of the pods that Serried schedules; may be repeated"""

    gang_jobs: Literal["by-shape", "asked", "none"] = "by-shape"
    """which Jobs are gangs: by their shape, or only if they ask, or none. Set it alike for extender and controller"""

    tls_cert_file: File = None
    """certificate of the TLS listeners, in PEM; without it the operations listener signs its own"""
    tls_private_key_file: File = None
    """key of that certificate"""
    ops_auth: Literal["remote", "always", "off"] = "remote"
    """who needs a token for metrics and debug pages: callers over the network, or also on loopback, or nobody"""
    ops_auth_cache: Seconds = 30.0
    """how long the API server's answer about a token is used"""

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            raise ValueError("--tls-cert-file and --tls-private-key-file have to be set together")
        return self


class ExtenderSettings(CommonSettings):
    """The extender's settings; durations in seconds."""

    filter_listen: ListenAddress = Address("127.0.0.1", 8910)
    """address for filter, prioritize and preempt calls"""
    bind_listen: ListenAddress = Address("127.0.0.1", 8911)
    """address for bind calls"""
    client_ca_file: File = None
    """authority of the callers' certificates; turns on TLS for filter and bind calls"""
    client_names: Callers = frozenset()
    """names that these certificates may have; empty: any name"""
    insecure_verbs: Literal["off", "on"] = "off"
    """allow plain HTTP on other addresses than loopback for filter and bind calls, from anybody"""
    ops_listen: OpenAddress = Address("", 8912)
    """address of probes, metrics and debug pages; without a host: all addresses, IPv4 and IPv6"""
    traces: Endpoint = ""
    """OTLP/HTTP address for traces of gangs (needs the extra "traces"); empty: no traces"""
    lease: LeaseName = Key("serried-system", "serried")
    """Lease of the scheduler; empty: always active"""
    lease_mode: Literal["follow", "hold"] = "follow"
    """follow the Lease of the scheduler in the same pod, or hold the Lease if other schedulers call"""
    endpoint_slice: LeaseName = None
    """EndpointSlice in which the leader writes its address, if a scheduler calls a Service of that name"""
    endpoint_address: IpAddress = ""
    """the address of this pod in that EndpointSlice"""
    scheduler_livez: Endpoint = ""
    """address of the scheduler's /livez, for the answer of /livez/pair; empty: it is not checked"""
    lease_holder_prefix: Text
    """how the Lease's holder begins if it is the scheduler in the same pod"""
    hold: Literal["auto", "filter", "gate"] = "auto"
    """how waiting members are held: by the answer to filter, or by a scheduling gate"""
    hold_limit: Count = 500
    """with auto: number of pods held by filter above which gates are used; beside an autoscaler they always are"""
    hold_switch: ObjectName = Key("serried-system", "serried-hold")
    """ConfigMap that the policy of the gate reads"""
    barrier_deadline: BarrierSeconds = 300.0
    """longest time from the first call about a member until minCount members are at bind; less than 900, the
    httpTimeout of the scheduler's bind entry"""
    barrier_idle: Seconds = 60.0
    """longest time without a new member at bind, while the scheduler is idle or refuses members"""
    bind_concurrency: Count = 64
    """Bindings in flight at the start"""
    stamp: Literal["auto", "always", "never"] = "auto"
    """which planned pods are nominated to their node"""
    stamp_window: Count = 512
    """number of planned pods that are nominated before the scheduler tries them"""
    job_unknown_deadline: Seconds = 30.0
    """how long a pod waits to see its Job, before the API server is asked whether there is one"""
    backfill: Literal["forecast", "off"] = "forecast"
    """keep room for the first gang that does not fit, by a forecast"""
    backfill_patience: Seconds = 600.0
    """how long that room is kept after the forecast"""
    namespace_share: Percent = 80
    """largest share of all nodes, and of the domains of a key, that is kept for gangs of one namespace"""
    backfill_plain: Literal["pass", "wait"] = "pass"
    """whether plain pods may use these nodes, or wait like the gangs behind it"""
    queue_ageing: SecondsOrOff = 86400.0
    """waiting time after which a gang counts as one priority higher, or off"""
    repair_seconds: SecondsOrNone = 120.0
    """how long the place of a dead member is kept for its replacement; 0: not at all"""
    broken_grace: Seconds = 300.0
    """how long a gang may have fewer than minCount members until that is reported"""
    broken_gangs: Literal["report", "evict"] = "report"
    """whether the rest of such a gang is evicted"""
    disrupted_gangs: Literal["keep", "preempted", "any"] = "preempted"
    """when a gang of disruption mode all ends with one of its members: never, after a preemption, always"""
    preemption: Literal["off", "advice", "on"] = "on"
    """whether pods of lower priority are evicted for a gang; advice: only say which would be"""
    preempt_by: Literal["eviction", "deletion"] = "eviction"
    """evict these pods, so that PodDisruptionBudgets count, or delete them"""
    preemption_timeout: Seconds = 600.0
    """how long they may take to end, beyond their grace periods, until the gang is planned anew"""
    preemption_spare: SecondsOrNone = 0.0
    """how long pods that have just started are spared from gangs of the next higher priority; 0: not at all"""
    other_profiles: Profiles = frozenset()
    """schedulerName of another profile of the same kube-scheduler, whose pods may be evicted; may be repeated"""
    autoscaler: Literal["auto", "none"] = "auto"
    """whether gangs ask for nodes where Karpenter or Cluster Autoscaler is found"""
    ask_for: Seconds = 600.0
    """how long one gang asks for nodes before the next one does"""
    provisioning_class: ClassName = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """class of the ProvisioningRequests by which Cluster Autoscaler is asked; empty: none are made"""
    autoscaler_labels: LabelKeys = frozenset()
    """topology key that new nodes have, beside zone, region and what NodePools name; may be repeated"""
    isolated: Literal["off", "on"] = "off"
    """set it if the scheduler asks about marked pods only"""

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

    ops_listen: OpenAddress = Address("", 8913)
    """address of probes and metrics; without a host: all addresses, IPv4 and IPv6"""
    lease: LeaseName = Key("serried-system", "serried-controller")
    """Lease of the active controller; empty: always active"""
    lease_holder: HolderName
    """name of the holder in the Lease; empty: the name of the host"""
    # A restarted process has the same Pod name, and may use the Lease of the earlier process, which has ended.
    workers: Count = 32
    """number of Jobs that are reconciled at a time"""
    elastic_jobs: Literal["follow", "refuse"] = "follow"
    """whether minCount follows when the parallelism of a gang changes, or the change is refused"""
    suspended_jobs: Literal["keep", "delete"] = "keep"
    """what happens to the objects of a suspended Job without pods"""
    track_jobs: Literal["gangs", "all"] = "gangs"
    """which Jobs get a Workload and a PodGroup: gangs, or all Jobs (others with policy basic)"""


_ONE_SHARE = "there is one share now: leave this out, or set --namespace-share (docs/queue.md)"

_REMOVED = {
    "profiling": "/debug/profile is gone; use py-spy (docs/contributing/debugging.md), and leave this out",
    "backfill_share": _ONE_SHARE,
    "exclusive_share": _ONE_SHARE,
    "repair_share": _ONE_SHARE,
}
"""Flags of earlier releases, and the advice for users who still set them."""


_MOVED = (
    "A kustomization with `namespace:` changes neither flags nor the policies that limit what Serried may do: leave it "
    "out, or install with Helm, which can use any namespace"
)


class Setting(NamedTuple):
    """One setting and its value. Values are written as on the command line, "" for none."""

    flag: str
    variable: str
    value: str
    default: str

    about: str
    """The text of ``--help``."""


def describe_settings(settings: CommonSettings) -> list[Setting]:
    """Return every setting, in the order of ``--help``."""
    return [
        Setting(
            flag=_name_flag(field.alias or name),
            variable=_name_variable(field.alias or name),
            value=_write_value(getattr(settings, name)),
            default="" if field.is_required() else _write_value(field.default),
            about=_unwrap(field.description),
        )
        for name, field in type(settings).model_fields.items()
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


def extender_settings(argv: Sequence[str], environ: Environ = os.environ) -> ExtenderSettings:
    """Read the settings of ``serried extender``. Exit with status 2 on a bad value, with 0 after --help."""
    holder = environ.get("POD_NAME") or socket.gethostname()
    return _read(ExtenderSettings, "extender", argv, environ, {"lease_holder_prefix": holder})


def controller_settings(argv: Sequence[str], environ: Environ = os.environ) -> ControllerSettings:
    """Read the settings of ``serried controller``. Exit with status 2 on a bad value, with 0 after --help."""
    return _read(ControllerSettings, "controller", argv, environ, {"lease_holder": environ.get("POD_NAME", "")})


def _read(settings: type[S], command: str, argv: Sequence[str], environ: Environ, found: Mapping[str, str]) -> S:
    """Read settings from flags, environment and defaults; ``found`` are the defaults that depend on the machine."""
    fields = {field.alias or name: field for name, field in settings.model_fields.items()}
    variables = {name: environ[_name_variable(name)] for name in fields if _name_variable(name) in environ}
    parser = _make_parser(command, fields, found)
    for name, instead in _REMOVED.items():
        flag, variable = _name_flag(name), _name_variable(name)
        if variable in environ or any(word.partition("=")[0] == flag for word in argv):
            parser.error(f"{flag}, {variable}: {instead}")
    given = vars(parser.parse_args(argv))
    flags = {name: ",".join(text) if isinstance(text, list) else text for name, text in given.items()}
    values = {name: text.strip() for name, text in {**found, **variables, **flags}.items()}
    try:
        read = settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            parser.error(str(first["ctx"]["error"]))
        name = str(first["loc"][0])
        origin = _name_variable(name) if name in variables and name not in flags else _name_flag(name)
        parser.error(f"{origin}: {values[name]!r} {_describe_error(first, fields[name])}")
    home = environ.get("POD_NAMESPACE", "")
    if home and read.lease is not None and read.lease.namespace != home:
        parser.error(f"--lease: {_write_value(read.lease)!r} is not in the namespace of this pod, {home}. {_MOVED}")
    return read


def _describe_error(error: ErrorDetails, field: FieldInfo) -> str:
    """Return the predicate of a sentence about a bad value, such as "must be HOST:PORT"."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    rule = error["msg"].partition(" should")[2].partition(", unable to parse")[0]
    return f"must{rule}" if error["type"] == "literal_error" else f"must{rule} ({_show_value(field)})"


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints an error in one line, without the usage of all flags before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nRun '{self.prog} --help' for its flags.\n")


def _make_parser(command: str, fields: Mapping[str, FieldInfo], found: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"serried {command}",
        description="Each flag is also an environment variable, for example SERRIED_LOG_LEVEL for --log-level.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"serried {__version__}")
    for name, field in fields.items():
        default = found[name] if field.is_required() else _write_value(field.default)
        parser.add_argument(
            _name_flag(name),
            dest=name,
            action="append" if field.annotation == frozenset[str] else "store",
            metavar=_show_value(field),
            help=f"{_unwrap(field.description)} (default: {default or 'none'})".replace("%", "%%"),
        )
    return parser


def _show_value(field: FieldInfo) -> str:
    """Return the name of a flag's value for ``--help``, such as SECONDS or {on,off}."""
    shown = [each for each in field.metadata if isinstance(each, str)]
    return shown[-1] if shown else f"{{{','.join(get_args(field.annotation))}}}"


def _unwrap(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def _name_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _name_variable(name: str) -> str:
    return _PREFIX + name.upper()
