"""The settings of extender and controller: a flag, else the environment variable ``SERRIED_*``, else a default.

`extender_settings` and `controller_settings` read them; nothing else reads command line or environment. Each field of
the classes is a flag: ``log_level`` is ``--log-level`` and SERRIED_LOG_LEVEL. The type of the field says which values
are valid, and its docstring is the text of ``--help``. An invalid value ends the process with a sentence that names the
flag or variable.
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
    """A host name or an IP address; "" for all addresses of the machine, IPv4 and IPv6."""

    port: int
    """The port; 0 for any free port, which the kernel chooses."""

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
    """The settings that ``serried extender`` and ``serried controller`` have in common."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True, defer_build=True)

    kubeconfig: File = None
    """path of a kubeconfig file; none: the ServiceAccount of the pod, or else the default kubeconfig"""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """lowest level of log lines that are written"""
    api: Literal["auto", "native", "fallback"] = "auto"
    """API of Workloads and PodGroups: that of Kubernetes (native) or Serried's CRDs (fallback); auto: native if the
    API server serves it"""

    schedulers: Names = Field(frozenset({"serried"}), alias="scheduler_name")
    """schedulerName of the pods that Serried schedules; repeat the flag for more names"""

    gang_jobs: Literal["by-shape", "asked", "none"] = "by-shape"
    """Jobs that are gangs: Indexed Jobs with as many completions as parallelism (by-shape), only Jobs that ask for it
    (asked), or none. Set the same value for extender and controller"""

    tls_cert_file: File = None
    """file with the certificate of the TLS listeners, in PEM; none: the listener of --ops-listen signs its own"""
    tls_private_key_file: File = None
    """file with the key of the certificate in --tls-cert-file, in PEM"""
    ops_auth: Literal["remote", "always", "off"] = "remote"
    """callers that need a token for metrics and debug pages: over the network (remote), also on loopback (always), or
    none (off)"""
    ops_auth_cache: Seconds = 30.0
    """seconds for which the API server's answer about a token is reused"""

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_private_key_file is None):
            raise ValueError("set --tls-cert-file and --tls-private-key-file together")
        return self


class ExtenderSettings(CommonSettings):
    """The extender's settings; durations in seconds."""

    filter_listen: ListenAddress = Address("127.0.0.1", 8910)
    """address of the listener for filter, prioritize and preempt calls of kube-scheduler"""
    bind_listen: ListenAddress = Address("127.0.0.1", 8911)
    """address of the listener for bind calls of kube-scheduler"""
    client_ca_file: File = None
    """file with the CA of the certificates of callers, in PEM; turns on TLS for the calls of kube-scheduler"""
    client_names: Callers = frozenset()
    """names that the certificates of callers may have; none: any name"""
    insecure_verbs: Literal["off", "on"] = "off"
    """allow the calls of kube-scheduler over plain HTTP on other addresses than loopback. Every client that
    reaches the address can then bind pods"""
    ops_listen: OpenAddress = Address("", 8912)
    """address of the listener for probes, metrics and debug pages; without a host: all addresses, IPv4 and IPv6"""
    traces: Endpoint = ""
    """OTLP/HTTP address that gets the traces of gangs (needs the extra "traces"); none: no traces"""
    lease: LeaseName = Key("serried-system", "serried")
    """Lease of kube-scheduler; empty: this instance always leads"""
    lease_mode: Literal["follow", "hold"] = "follow"
    """follow the Lease of the kube-scheduler in the same pod, or hold the Lease if another kube-scheduler calls"""
    endpoint_slice: LeaseName = None
    """EndpointSlice into which the leader writes its address; for a kube-scheduler that calls a Service of this
    name"""
    endpoint_address: IpAddress = ""
    """IP address of this pod, for --endpoint-slice"""
    scheduler_livez: Endpoint = ""
    """URL of kube-scheduler's /livez, which the answer of /livez/pair includes; none: kube-scheduler is not
    checked"""
    lease_holder_prefix: Text
    """prefix of the holder in the Lease if the holder is the kube-scheduler in the same pod"""
    hold: Literal["auto", "filter", "gate"] = "auto"
    """hold waiting members by the answer to filter calls (filter) or by a scheduling gate (gate); auto: see
    --hold-limit"""
    hold_limit: Count = 500
    """number of pods held by filter above which --hold=auto uses gates; with an autoscaler it always uses gates"""
    hold_switch: ObjectName = Key("serried-system", "serried-hold")
    """ConfigMap that switches the admission policy for gates on and off"""
    barrier_deadline: BarrierSeconds = 300.0
    """longest time in seconds from kube-scheduler's first call for a gang until minCount members have called bind;
    less than 900, the httpTimeout of kube-scheduler's bind calls"""
    barrier_idle: Seconds = 60.0
    """longest time in seconds without a bind call of a further member, while kube-scheduler is idle or rejects
    members"""
    bind_concurrency: Count = 64
    """number of Bindings that are written at the same time; fewer while the API server answers 429"""
    stamp: Literal["auto", "always", "never"] = "auto"
    """nominate planned pods to their nodes: always, never, or members that kube-scheduler rejected and gangs in
    nearly full domains (auto)"""
    stamp_window: Count = 512
    """number of planned pods that are nominated before kube-scheduler tries them"""
    job_unknown_deadline: Seconds = 30.0
    """seconds for which a pod waits for its Job to appear in a watch, before Serried asks the API server for the
    Job"""
    backfill: Literal["forecast", "off"] = "forecast"
    """keep free nodes for the first gang in the queue that does not fit, by a forecast"""
    backfill_patience: Seconds = 600.0
    """seconds for which these nodes are kept after the time of the forecast"""
    namespace_share: Percent = 80
    """largest share of all nodes, and of the domains of a topology key, that is kept for gangs of one namespace"""
    backfill_plain: Literal["pass", "wait"] = "pass"
    """let plain pods use the nodes that --backfill keeps (pass), or let plain pods wait, too (wait)"""
    queue_ageing: SecondsOrOff = 86400.0
    """seconds of waiting after which a gang counts as one priority higher; off: never"""
    repair_seconds: SecondsOrNone = 120.0
    """seconds for which the resources of a dead member are kept for its replacement; 0: not kept"""
    broken_grace: Seconds = 300.0
    """seconds after which a running gang with fewer than minCount members is reported as broken"""
    broken_gangs: Literal["report", "evict"] = "report"
    """report broken gangs only, or evict the remaining members, too"""
    disrupted_gangs: Literal["keep", "preempted", "any"] = "preempted"
    """evict all members of a gang of disruption mode all with one member: never (keep), after a preemption by
    kube-scheduler (preempted), or after any disruption (any)"""
    preemption: Literal["off", "advice", "on"] = "on"
    """evict pods of lower priority for a gang; advice: only report which pods it would evict"""
    preempt_by: Literal["eviction", "deletion"] = "eviction"
    """evict pods, so that PodDisruptionBudgets are respected, or delete pods"""
    preemption_timeout: Seconds = 600.0
    """seconds after the grace periods of the evicted pods after which the gang is planned again"""
    preemption_spare: SecondsOrNone = 0.0
    """seconds after their start for which pods are not evicted for gangs of the next higher priority; 0: not
    protected"""
    other_profiles: Profiles = frozenset()
    """schedulerName of another profile of the same kube-scheduler, whose pods may be evicted; repeat the flag for
    more"""
    autoscaler: Literal["auto", "none"] = "auto"
    """ask Karpenter or Cluster Autoscaler for nodes for gangs if the cluster has one (auto), or never (none)"""
    ask_for: Seconds = 600.0
    """seconds for which Serried asks for nodes for one gang before it asks for the next one"""
    provisioning_class: ClassName = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    """class of the ProvisioningRequests by which Serried asks Cluster Autoscaler; empty: Serried makes none"""
    autoscaler_labels: LabelKeys = frozenset()
    """topology key that new nodes have as a label, besides zone, region and the labels of NodePools; repeat the flag
    for more"""
    isolated: Literal["off", "on"] = "off"
    """set to on if kube-scheduler calls Serried for pods of gangs only"""

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
    "--{flag}-listen: every client that reaches {address!r} could bind pods. Set --client-ca-file, --tls-cert-file "
    "and --tls-private-key-file, or --insecure-verbs on"
)


class ControllerSettings(CommonSettings):
    """The controller's settings."""

    ops_listen: OpenAddress = Address("", 8913)
    """address of the listener for probes and metrics; without a host: all addresses, IPv4 and IPv6"""
    lease: LeaseName = Key("serried-system", "serried-controller")
    """Lease of the active controller; empty: this instance is always active"""
    lease_holder: HolderName
    """name of this instance as the holder of the Lease; empty: the name of the host"""
    # A restarted process has the same Pod name, and may use the Lease of the earlier process, which has ended.
    workers: Count = 32
    """number of Jobs that are reconciled at the same time"""
    elastic_jobs: Literal["follow", "refuse"] = "follow"
    """let minCount follow when the parallelism of a gang changes (follow), or reject the change (refuse)"""
    suspended_jobs: Literal["keep", "delete"] = "keep"
    """keep or delete the Workload and PodGroup of a suspended Job without pods"""
    track_jobs: Literal["gangs", "all"] = "gangs"
    """Jobs that get a Workload and a PodGroup: gangs only, or all Jobs (those that are no gangs with policy basic)"""


_ONE_SHARE = "Serried has only one share now: remove this setting, or set --namespace-share (docs/queue.md)"

_REMOVED = {
    "profiling": "/debug/profile was removed: remove this setting, and use py-spy (docs/contributing/debugging.md)",
    "backfill_share": _ONE_SHARE,
    "exclusive_share": _ONE_SHARE,
    "repair_share": _ONE_SHARE,
}
"""The flags of earlier releases that no longer exist (names with underscores), with an advice for their users."""


_MOVED = (
    "A kustomization with `namespace:` changes neither flags nor policies: remove `namespace:`, or install with Helm, "
    "which can use any namespace"
)


class Setting(NamedTuple):
    """One setting with its present value, for the page ``/debug/config``. Values are written as on the command line."""

    flag: str
    """The flag, such as ``--log-level``."""

    variable: str
    """The environment variable, such as SERRIED_LOG_LEVEL."""

    value: str
    """The value in use; "" for none."""

    default: str
    """The default value; "" for none, or if it depends on the machine."""

    about: str
    """The text of ``--help``."""


def describe_settings(settings: CommonSettings) -> list[Setting]:
    """Return all settings with their values in ``settings``, in the order of ``--help``."""
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
    """Return the settings of ``serried extender`` from its arguments ``argv`` and environment variables.

    Exits the process: with status 2 on an invalid flag or value, with 0 after ``--help`` or ``--version``.
    """
    holder = environ.get("POD_NAME") or socket.gethostname()
    return _read(ExtenderSettings, "extender", argv, environ, {"lease_holder_prefix": holder})


def controller_settings(argv: Sequence[str], environ: Environ = os.environ) -> ControllerSettings:
    """Return the settings of ``serried controller`` from its arguments ``argv`` and environment variables.

    Exits the process: with status 2 on an invalid flag or value, with 0 after ``--help`` or ``--version``.
    """
    return _read(ControllerSettings, "controller", argv, environ, {"lease_holder": environ.get("POD_NAME", "")})


def _read(settings: type[S], command: str, argv: Sequence[str], environ: Environ, found: Mapping[str, str]) -> S:
    """Return the settings of the class ``settings`` from flags, environment variables and defaults.

    ``command`` is the subcommand of ``serried``, for error messages. ``found`` has defaults by field name that differ
    from pod to pod, such as the name of the pod. Exits the process with status 2 if a value is invalid.
    """
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
    """Return what is wrong with a value that pydantic has rejected, such as "must be HOST:PORT"."""
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
    """Return the placeholder for a flag's value in ``--help``, such as SECONDS or {on,off}."""
    shown = [each for each in field.metadata if isinstance(each, str)]
    return shown[-1] if shown else f"{{{','.join(get_args(field.annotation))}}}"


def _unwrap(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def _name_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _name_variable(name: str) -> str:
    return _PREFIX + name.upper()
