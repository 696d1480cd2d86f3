"""``serried check``: reads the facts about an installation from the API server and the extender, and checks them.

`collect` returns the facts as an `Observed`, `run_checks` returns the findings. ``serried install`` uses both.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from cli.access import LABELS, connect_to_extender, describe_failure
from cli.check.checks import (
    DEFINITIONS,
    EXTENDER_SILENT,
    check_cluster,
    check_extender,
    check_nodes,
    check_policies,
    check_rights,
    check_scheduler,
    find_rights,
)
from cli.check.installed import read_method
from cli.check.observed import (
    DEFAULT_FLAGS,
    INTERFERENCES,
    Area,
    Finding,
    Observed,
    Right,
    SchedulerConfig,
    Severity,
    decode_scheduler_config,
)
from cli.check.read_neighbours import read_autoscalers, read_group_demands, read_kueue
from cli.check.webhooks import collect_webhooks
from cli.options import Output
from cli.output import CommandError, ExitCode, OutputFormat, Part, make_table, option, write
from cli.target import Target, find_credentials, name_api_server, with_target_options
from cli.transport import open_client
from serried.api.level import FALLBACK
from serried.api.names import read_map
from serried.api.resources import read_amounts
from serried.api.topology import DEFAULT, TopologyLevels, decode_topology_levels
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import (
    CONFIG_MAPS,
    JSON,
    NODES,
    PODS,
    TOPOLOGY_LEVELS,
    Resource,
    Selection,
    read_json,
    write_json,
)

_CHECKS: Mapping[Area, Callable[[Observed], Iterator[Finding]]] = {
    Area.SCHEDULER: check_scheduler,
    Area.EXTENDER: check_extender,
    Area.RIGHTS: check_rights,
    Area.NODES: check_nodes,
    Area.POLICIES: check_policies,
    Area.CLUSTER: check_cluster,
}

_ORDER = list(Severity)


def run_checks(seen: Observed, areas: Collection[Area] = tuple(Area)) -> list[Finding]:
    """Return the findings in these areas, sorted by severity (errors first), and then by area.

    Each fact that could not be read is a finding, too. If Serried is not installed, that is the only finding.
    """
    if seen.absence is not None:
        return [seen.absence]
    found = [finding for area in Area if area in areas for finding in _CHECKS[area](seen)]
    for area, what, why in seen.unread:
        if area in areas:
            found.append(Finding(Severity.UNKNOWN, area, what, f"it was not checked: {why}", _FIX_UNREAD))
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


_FIX_UNREAD = "run the check as an administrator, or set --server and --scheduler-config"


CHECK_EXAMPLES = """
Check the whole installation:
  serried check

Check a file with the scheduler's configuration, without a cluster:
  serried check --only scheduler --scheduler-config manifests/scheduler-config.yaml

Fail for warnings, too, for example in a pipeline:
  serried check --fail-on warning -o json
"""


class FailOn(StrEnum):
    """The lowest severity for which the exit code is 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


_FAILING = {
    FailOn.ERROR: {Severity.ERROR},
    FailOn.WARNING: {Severity.ERROR, Severity.WARNING},
    FailOn.NEVER: set[Severity](),
}

File = Annotated[
    str, option("FILE", "The scheduler's configuration. Default: the ConfigMap that the extender's pod mounts.")
]
Only = Annotated[list[Area] | None, option("AREA", f"Check this area only: {', '.join(Area)}. May be repeated.")]
Fail = Annotated[FailOn, typer.Option(help="The lowest severity for which the exit code is 1.")]


@with_target_options
def check(
    scheduler_config: File = "",
    only: Only = None,
    fail_on: Fail = FailOn.ERROR,
    output: Output = OutputFormat.TABLE,
    *,
    target: Target,
) -> None:
    """Find mistakes in an installation, and show how to fix them.

    It checks the scheduler's configuration, the extender and its clock, the rights of both ServiceAccounts, labels of
    nodes, admission policies, versions, autoscalers, Kueue, other gang schedulers and admission webhooks. What you may
    not read is listed as unknown.
    """
    areas = tuple(only or Area)
    found = run_checks(asyncio.run(collect(target, scheduler_config, areas)), areas)
    write(
        [asdict(finding) for finding in found],
        output,
        lambda: draw_findings(found),
        lambda: [each.where for each in found],
    )
    if any(finding.severity in _FAILING[fail_on] for finding in found):
        raise typer.Exit(ExitCode.NO.number)


_SEE_ABOVE = "the extender does not answer, see above"


def draw_findings(found: Sequence[Finding]) -> Iterator[Part]:
    """Yield the texts and tables to print for the findings, and last how many there are of each severity.

    Findings that differ only in the object that they are about (``where``) become one table with all these objects.
    """
    if all(finding.severity is Severity.NOTE for finding in found):
        yield "No mistakes found."
    alike: dict[tuple[Severity, str, str], list[str]] = {}
    silence = next((each.what for each in found if each.where == EXTENDER_SILENT), "")
    for finding in found:
        what = (
            finding.what
            if finding.where == EXTENDER_SILENT or not silence
            else finding.what.replace(silence, _SEE_ABOVE)
        )
        places = alike.setdefault((finding.severity, what, finding.fix), [])
        places += [finding.where] if finding.where not in places else []
    for (severity, what, fix), places in alike.items():
        yield make_table((severity.upper(), ", ".join(places)), [("what", what), ("fix", fix)])
    counts = Counter(finding.severity for finding in found)
    if not counts:
        return
    yield ""
    yield ", ".join(_count(counts[severity], severity) for severity in Severity if counts[severity])


def _count(number: int, severity: Severity) -> str:
    return f"{number} {severity}{'' if number == 1 or severity is Severity.UNKNOWN else 's'}"


_GATE_CONFIG_MAP = "serried-hold"
"""The ConfigMap by which the extender turns the scheduling gate of new members on and off.

Only installations whose new members get a scheduling gate have it.
"""

_DEPLOYMENTS = Resource("apps", "v1", "deployments")


_DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)


_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)


_ADMISSION = ("validatingadmissionpolicies", "mutatingadmissionpolicies")


_REVIEWS_AT_A_TIME = 16


_AREAS_THAT_NEED_FLAGS = (Area.SCHEDULER, Area.RIGHTS, Area.POLICIES, Area.CLUSTER)
"""The areas whose checks depend on the extender's flags and API level, which only the extender knows."""


_DEFAULTS = "the check used the default flags instead"


async def collect(target: Target, file: str, areas: Collection[Area]) -> Observed:
    """Read the facts that the checks of these areas need, from the extender and the API server.

    ``file`` is the path of a file with the scheduler's configuration; "" to read the ConfigMap in the cluster. Raises
    CommandError if the file is invalid, or the API server does not answer.
    """
    seen = Observed(flags=DEFAULT_FLAGS)
    if file:
        config = _read_config(file)
        seen = replace(seen, config=config)
        if set(areas) <= {Area.SCHEDULER}:
            # The default flags mean plain HTTP: checks against them would report correct entries as mistakes.
            is_other = any(entry.url.startswith("https://") for entry in config.entries)
            return await _ask_flags(seen, target, file) if is_other else seen
    seen = await _ask_extender(seen, target)
    credentials = find_credentials(replace(target, server=""))
    async with open_client(credentials) as client:
        server = name_api_server(target, credentials)
        collector = _Collector(client, target.home, seen, server)
        # With --server or --scheduler-config, the extender may run outside the cluster.
        if seen.silence and not (target.server or file):
            await collector.record_absence()
        return await collector.collect(areas)


async def collect_cluster(client: ApiClient, home: str, server: str) -> Observed:
    """Read the facts about the cluster that ``serried install`` needs before Serried is installed.

    ``home`` is the namespace for the installation, ``server`` the API server's name in messages. Raises CommandError if
    the API server does not answer.
    """
    return await _Collector(client, home, Observed(flags=DEFAULT_FLAGS), server).collect((Area.CLUSTER,))


async def _ask_flags(seen: Observed, target: Target, file: str) -> Observed:
    found = await _ask_extender(seen, target)
    if found.silence:
        said = f"{file} calls the extender by TLS, so the check has to ask the extender for its flags: {found.silence}"
        raise CommandError(ExitCode.UNREACHABLE, said)
    return found


def _read_config(path: str) -> SchedulerConfig:
    try:
        return decode_scheduler_config(path, yaml.safe_load(Path(path).read_text()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CommandError(ExitCode.USAGE, f"--scheduler-config: {error}") from error


async def _ask_extender(seen: Observed, target: Target) -> Observed:
    try:
        async with connect_to_extender(target) as debug:
            settings = (await debug.get("config"))["settings"]
            keys = tuple((await debug.get("domains"))["keys"])
            return replace(
                seen,
                flags={each["flag"].removeprefix("--"): each["value"] for each in settings},
                keys=keys,
                # Last: its time is compared with the API server's, which is read next.
                selfcheck=await debug.get("selfcheck"),
            )
    except CommandError as error:
        if error.code is ExitCode.USAGE:
            raise
        return _record_silence(seen, str(error))


def _record_silence(seen: Observed, silence: str) -> Observed:
    """Return ``seen`` with the reason why the extender does not answer.

    The facts that only the extender knows are recorded as unread.
    """
    keys = (Area.NODES, "the topology keys that groups ask for", silence)
    rest = ((area, "the extender's flags and API level", f"{_DEFAULTS}: {silence}") for area in _AREAS_THAT_NEED_FLAGS)
    return replace(seen, silence=silence, unread=(*seen.unread, keys, *rest))


class _Collector:
    """Reads the facts about an installation from the API server. Lives for one run of the command."""

    def __init__(self, client: ApiClient, home: str, seen: Observed, server: str) -> None:
        self._client = client
        self._home = home
        self._seen = seen

        self._server = server
        """The API server's name in messages."""

        self._has_listed_nodes = False
        """True once nodes were listed, or could not be."""

    async def collect(self, areas: Collection[Area]) -> Observed:
        """Read the facts that the checks of these areas need, and return them with those given to the collector.

        The latter are the facts that the extender has told, and those from a file. If `record_absence` has found that
        Serried is not installed (`Observed.absence`), nothing is read.

        A fact that cannot be read is recorded in `Observed.unread`. Raises CommandError if the API server does not
        answer.
        """
        if self._seen.absence is not None:
            return self._seen
        parts: list[tuple[tuple[Area, ...], str, Callable[[], Awaitable[None]]]] = [
            # First, right after the self-check (see `_ask_extender`).
            ((Area.EXTENDER, Area.CLUSTER), "the API server's version", self._read_version),
            (tuple(Area), "how it was installed", self._read_method),
            ((Area.EXTENDER,), "the CRDs", self._read_definitions),
            ((Area.SCHEDULER, Area.CLUSTER), "the scheduler's configuration", self._read_scheduler),
            ((Area.NODES, Area.SCHEDULER), "the labels of nodes", self._read_nodes),
            ((Area.RIGHTS,), "rights", self._read_rights),
            ((Area.POLICIES, Area.CLUSTER), "admission policies", self._read_policies),
            ((Area.CLUSTER,), "other schedulers", self._read_neighbours),
            ((Area.CLUSTER,), "autoscalers", self._read_autoscalers),
            ((Area.CLUSTER,), "Kueue", self._read_kueue),
            ((Area.CLUSTER,), "the topology that groups require", self._read_demands),
            ((Area.CLUSTER,), "admission webhooks", self._read_webhooks),
        ]
        for concerned, what, read in parts:
            if not set(concerned).isdisjoint(areas):
                async with self._recording_failures(concerned[0], what):
                    await read()
        return self._seen

    async def record_absence(self) -> None:
        """Find out whether Serried is installed at all, and if not, record that as `Observed.absence`.

        Called if the extender does not answer. Raises CommandError if the API server does not answer.
        """
        async with self._recording_failures(Area.EXTENDER, "whether it is installed"):
            self._seen = replace(self._seen, absence=await self._find_absence())

    @asynccontextmanager
    async def _recording_failures(self, area: Area, what: str) -> AsyncIterator[None]:
        try:
            yield
        except (ApiError, ValueError, yaml.YAMLError) as error:
            if isinstance(error, ApiError) and not error.status:
                said = f"{self._server} does not answer: {describe_failure(error)}"
                raise CommandError(ExitCode.UNREACHABLE, said) from error
            self._seen = replace(self._seen, unread=(*self._seen.unread, (area, what, str(error))))

    async def _find_absence(self) -> Finding | None:
        """Return the finding that Serried is not installed in its namespace; None if pods or the Deployment are there.

        The finding names the other namespace in which Serried is installed, if there is one.
        """
        home, where = self._home, f"namespace {self._home}"
        pods = [pod async for pod in self._client.items(PODS, Selection(namespace=home, labels=LABELS))]
        if pods or await self._find_deployment() is not None:
            return None
        others = [each async for each in self._client.items(_DEPLOYMENTS, Selection(labels=LABELS))]
        what = f"Serried is not installed in {where} of {self._server}"
        if not others:
            return Finding(Severity.ERROR, Area.EXTENDER, where, what, "serried install")
        there = others[0]["metadata"]["namespace"]
        fix = f"serried check --serried-namespace {there}"
        return Finding(Severity.ERROR, Area.EXTENDER, where, f"{what}, but in namespace {there}", fix)

    async def _find_deployment(self) -> JSON | None:
        with suppress(NotFound):
            return await self._client.get(_DEPLOYMENTS, self._home, "serried")
        return None

    async def _read_method(self) -> None:
        with suppress(Forbidden):
            deployment, gated = await self._find_deployment() or {}, self._seen.flags.get("hold") == "gate"
            switch = await self._has_gate_config_map()
            self._seen = replace(
                self._seen, gate_switch=switch, method=read_method(deployment, gated=bool(switch) or gated)
            )

    async def _has_gate_config_map(self) -> bool | None:
        """Return whether the ConfigMap exists that turns the scheduling gate on and off.

        Return None if the user may not read it.
        """
        try:
            await self._client.get(CONFIG_MAPS, self._home, _GATE_CONFIG_MAP)
        except NotFound:
            return False
        except Forbidden:
            return None
        return True

    async def _read_definitions(self) -> None:
        releases: dict[str, str] = {}
        for plural in DEFINITIONS:
            with suppress(NotFound):
                found = await self._client.get(_DEFINITIONS, "", f"{plural}.{FALLBACK.group}")
                releases[plural] = (found["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")
        self._seen = replace(self._seen, definitions=releases)

    async def _read_version(self) -> None:
        answer = await self._client.request("GET", "/version")
        version = read_json(answer.body)
        self._seen = replace(
            self._seen,
            server_version=str(version.get("gitVersion") or ""),
            skew_seconds=_compute_skew(str((self._seen.selfcheck or {}).get("now") or ""), answer.date),
        )

    async def _read_scheduler(self) -> None:
        pods = [pod async for pod in self._client.items(PODS, Selection(namespace=self._home, labels=LABELS))]
        images = [each.get("image", "") for pod in pods for each in pod["spec"].get("containers", ())]
        version = next((image.rpartition(":")[2] for image in images if "kube-scheduler" in image), "")
        self._seen = replace(self._seen, scheduler_version=version)
        if self._seen.config is not None:
            return
        for pod in pods:
            for volume in pod["spec"].get("volumes", ()):
                config = await self._read_config_map(volume.get("configMap", {}).get("name", ""))
                if config is not None:
                    self._seen = replace(self._seen, config=config)
                    return
        raise ValueError(f"no pod of namespace {self._home} mounts a ConfigMap with it")

    async def _read_config_map(self, name: str) -> SchedulerConfig | None:
        if not name:
            return None
        found = await self._client.get(CONFIG_MAPS, self._home, name)
        for key, text in (found.get("data") or {}).items():
            document = yaml.safe_load(text)
            if isinstance(document, dict) and document.get("kind") == "KubeSchedulerConfiguration":
                return decode_scheduler_config(f"ConfigMap {self._home}/{name}, {key}", document)
        return None

    async def _read_nodes(self) -> None:
        await self._list_nodes()
        try:
            levels = decode_topology_levels(await self._client.get(TOPOLOGY_LEVELS, "", DEFAULT))
        except NotFound:
            return
        if isinstance(levels, TopologyLevels):
            self._seen = replace(self._seen, levels=levels.status)

    async def _list_nodes(self) -> None:
        self._has_listed_nodes = True
        nodes = {node["metadata"]["name"]: node for node in await self._list(NODES)}
        self._seen = replace(
            self._seen,
            nodes={name: node["metadata"].get("labels") or {} for name, node in nodes.items()},
            allocatable={name: read_amounts(read_map(node, "status"), "allocatable") for name, node in nodes.items()},
        )

    async def _read_rights(self) -> None:
        turns = asyncio.Semaphore(_REVIEWS_AT_A_TIME)

        async def ask(right: Right) -> bool:
            async with turns:
                return await self._is_granted(right)

        rights = list(find_rights(self._seen))
        granted = await asyncio.gather(*map(ask, rights))
        denied = frozenset(right for right, yes in zip(rights, granted, strict=True) if not yes)
        self._seen = replace(self._seen, denied=denied)

    async def _is_granted(self, right: Right) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
        attributes |= {"namespace": self._home if right.home else "", "name": right.name}
        spec = {
            "user": f"system:serviceaccount:{self._home}:{right.account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{self._home}", "system:authenticated"],
            "resourceAttributes": attributes,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._client.ask("POST", _REVIEWS.path(), body=write_json(body))
        return bool(answer.get("status", {}).get("allowed"))

    async def _read_policies(self) -> None:
        policies: set[str] = set()
        bound: set[str] = set()
        for plural in _ADMISSION:
            version = await self._find_version(plural)
            if not version:
                continue
            policies |= {each["metadata"]["name"] for each in await self._list(_policy(version, plural))}
            bindings = await self._list(_policy(version, plural.replace("policies", "policybindings")))
            bound |= {str(each.get("spec", {}).get("policyName")) for each in bindings}
        self._seen = replace(self._seen, policies=frozenset(policies), bound_policies=frozenset(bound))

    async def _find_version(self, plural: str) -> str:
        """Return the version of admissionregistration.k8s.io in which the API server serves ``plural``, "" for none."""
        group = await self._client.read("/apis/admissionregistration.k8s.io")
        for each in group.get("versions", ()):
            served = await self._client.read(f"/apis/{each['groupVersion']}")
            if any(resource["name"] == plural for resource in served.get("resources", ())):
                return str(each["version"])
        return ""

    async def _read_neighbours(self) -> None:
        names = [
            f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in await self._list(_DEPLOYMENTS)
        ]
        others = ((name, INTERFERENCES[word]) for name in sorted(names) for word in INTERFERENCES if word in name)
        self._seen = replace(self._seen, neighbours=tuple(others))

    async def _read_autoscalers(self) -> None:
        found = await read_autoscalers(self._client, self._recording_failures)
        self._seen = replace(self._seen, autoscalers=found)

    async def _read_kueue(self) -> None:
        kueue = await read_kueue(self._client, self._recording_failures)
        self._seen = replace(self._seen, kueue=kueue)
        if kueue is not None and kueue.quotas and not self._has_listed_nodes:
            async with self._recording_failures(Area.CLUSTER, "the nodes of Kueue's flavors"):
                await self._list_nodes()

    async def _read_demands(self) -> None:
        kueue, autoscalers = self._seen.kueue, self._seen.autoscalers
        api = (self._seen.selfcheck or {}).get("api", {})
        is_needed = (autoscalers is not None and autoscalers.names) or (kueue is not None and kueue.topology_queues)
        # Without its answer the extender's API level is unknown, which another finding says already.
        if is_needed and api.get("group"):
            found = await read_group_demands(self._client, str(api["group"]), str(api["version"]))
            self._seen = replace(self._seen, demands=found)

    async def _read_webhooks(self) -> None:
        found = await collect_webhooks(self._client)
        self._seen = replace(self._seen, neighbours=(*self._seen.neighbours, *found))

    async def _list(self, resource: Resource) -> list[JSON]:
        return await self._client.list_all(resource)


def _compute_skew(ours: str, theirs: str) -> float | None:
    """Return by how many seconds the extender's clock is ahead of the API server's; None if a time is unknown.

    ``ours`` is the extender's time (RFC 3339), ``theirs`` the API server's (HTTP header Date), read right after it.
    """
    if not ours or not theirs:
        return None
    return (datetime.fromisoformat(ours) - parsedate_to_datetime(theirs)).total_seconds()


def _policy(version: str, plural: str) -> Resource:
    return Resource("admissionregistration.k8s.io", version, plural, namespaced=False)
