"""``serried uninstall``: takes Serried out of a cluster, in an order in which nothing hangs and nothing is left behind.

First the policies and the processes go, so that nobody sets again what is taken away. Then pods and groups are freed,
and last the installation itself is deleted, whether kubectl or Helm has made it. All of it may be repeated.
"""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from serried.api.group import PROTECTION
from serried.api.names import GANG, LABELLED, POD_GROUP_LABEL
from serried.api.parent import MANAGED_BY, MANAGER
from serried.api.pod import HELD_GATE
from serried.cli.access import tell_failure
from serried.cli.output import CommandError, ExitCode, option
from serried.cli.target import Target, find_credentials, reaching
from serried.cli.transport import open_client
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound
from serried.kube.wire import FALLBACK_GROUP, JOBS, JSON, PODS, Resource, Selection

UNINSTALL_EXAMPLES = """
Show what would be done:
  serried uninstall --dry-run

Remove Serried; the cluster's own scheduler starts the pods that wait:
  serried uninstall --hand-to default-scheduler

Remove it with all its objects:
  serried uninstall --purge --yes
"""

_ADMISSION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_FLOW = "flowcontrol.apiserver.k8s.io"
_NATIVE = "scheduling.k8s.io"

_POLICIES = tuple(
    f"serried-{name}"
    for name in (
        *("elastic-refuse", "extender-deletions", "extender-pod-status", "extender-pods"),
        *("group-priority", "job-gang-policy", "pod-group-label", "reservations"),
    )
)
_MUTATIONS = ("serried-gate", "serried-marker", "serried-namespaces")
_ROLES = tuple(
    f"serried-{name}" for name in ("controller", "debug-reader", "edit", "extender", "metrics-reader", "view")
)
_BINDINGS = tuple(
    f"serried-{name}"
    for name in (
        *("controller", "debug-reader", "extender", "metrics-reader"),
        *("scheduler", "scheduler-volumes", "sidecar-scheduler", "sidecar-scheduler-volumes"),
    )
)


def _cluster_wide(group: str, version: str, plural: str) -> Resource:
    return Resource(group, version, plural, namespaced=False)


DEFINITIONS = _cluster_wide("apiextensions.k8s.io", "v1", "customresourcedefinitions")
NAMESPACES = _cluster_wide("", "v1", "namespaces")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
MUTATING = _cluster_wide(_ADMISSION, "v1", "mutatingadmissionpolicies")
MUTATING_BINDINGS = _cluster_wide(_ADMISSION, "v1", "mutatingadmissionpolicybindings")

FIRST: Mapping[Resource, Sequence[str]] = {
    MUTATING_BINDINGS: _MUTATIONS,
    MUTATING: _MUTATIONS,
    _cluster_wide(_ADMISSION, "v1", "validatingadmissionpolicybindings"): _POLICIES,
    _cluster_wide(_ADMISSION, "v1", "validatingadmissionpolicies"): _POLICIES,
}
"""What changes or refuses writes, by kind: it goes before anything else."""

LAST: Mapping[Resource, Sequence[str]] = {
    _cluster_wide(_FLOW, "v1", "flowschemas"): ("serried-bindings", "serried-leader-election", "serried-scheduler"),
    _cluster_wide(_FLOW, "v1", "prioritylevelconfigurations"): ("serried",),
    _cluster_wide(_RBAC, "v1", "clusterrolebindings"): _BINDINGS,
    _cluster_wide(_RBAC, "v1", "clusterroles"): _ROLES,
}
"""The rest that is in no namespace."""

ELSEWHERE = tuple(
    (Resource(_RBAC, "v1", "rolebindings"), "kube-system", f"serried-{name}-authentication-reader")
    for name in ("scheduler", "sidecar-scheduler")
)
"""What is in another namespace than Serried's own."""

PURGED = tuple(f"{name}.{FALLBACK_GROUP}" for name in ("compositepodgroups", "podgroups", "reservations", "workloads"))
"""The CRDs."""

_KICK = f"{FALLBACK_GROUP}/kick"
"""An annotation of pods that were woken, and a label of some."""

TAKEN = (GANG, LABELLED, _KICK)
"""The annotations that pods lose. Rank and domain stay, because containers may read them when they start again."""

_HANDOVER = "serried-handover"
_SCHEDULER = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_SECONDS = 60.0
_PAUSE = 0.5
_SETTLE = 3.0

HandTo = Annotated[
    str,
    option(
        "SCHEDULER",
        "The scheduler that starts the waiting pods, for example default-scheduler. They are made anew. "
        "By default they go on waiting.",
    ),
]
Schedulers = Annotated[
    list[str] | None, option("NAME", "A schedulerName that Serried serves. Default: serried. May be repeated.")
]
Purge = Annotated[
    bool, typer.Option("--purge", help="Delete also the CRDs, and all PodGroups and Workloads of Serried.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Removal:
    """What is asked for."""

    home: str
    """Serried's namespace."""

    schedulers: frozenset[str]
    hand_to: str
    """The scheduler that gets the waiting pods; "" for none."""

    purge: bool
    dry_run: bool


@reaching
def uninstall(
    hand_to: HandTo = "",
    scheduler_name: Schedulers = None,
    *,
    purge: Purge = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> None:
    """Remove Serried from the cluster, and what it has set on pods and groups.

    Running pods run on. Waiting pods lose Serried's scheduling gate and nomination. If the cluster's own scheduler
    calls Serried, take both extenders out of its configuration before. Needs the rights of an administrator.
    """
    for name in (hand_to, *(scheduler_name or ())):
        if name and not _SCHEDULER.fullmatch(name):
            raise CommandError(ExitCode.USAGE, f"{name!r} is not the name of a scheduler")
    removal = Removal(target.home, frozenset(scheduler_name or ["serried"]), hand_to, purge, dry_run)
    if not (yes or dry_run or _agrees(removal.home)):
        raise CommandError(ExitCode.NO, "nothing was done; with --yes nobody is asked")
    asyncio.run(_run(removal, target))


def _agrees(home: str) -> bool:
    try:
        return typer.confirm(f"Remove Serried from namespace {home} and the cluster?")
    except typer.Abort:  # nobody is there to answer
        return False


async def _run(removal: Removal, target: Target) -> None:
    async with open_client(find_credentials(replace(target, server=""))) as client:
        try:
            await Uninstall(client, removal).run()
        except ApiError as error:
            said = f"{tell_failure(error)}; what is done is done: run the command again when this is mended"
            raise CommandError(ExitCode.UNREACHABLE, said) from error


def free_metadata(pod: JSON) -> JSON:
    """The merge patch of a pod's metadata that takes away what Serried has set; {} if there is nothing."""
    metadata = pod["metadata"]
    taken = [key for key in TAKEN if key in (metadata.get("annotations") or {})]
    patch: JSON = {"annotations": dict.fromkeys(taken)} if taken else {}
    labels = [POD_GROUP_LABEL] if LABELLED in taken else []
    labels += [_KICK] if _KICK in (metadata.get("labels") or {}) else []
    return {**patch, "labels": dict.fromkeys(labels)} if labels else patch


class Uninstall:
    """The steps, each of which prints what it does."""

    def __init__(self, client: ApiClient, removal: Removal, say: Callable[[str], Any] = sys.stdout.write) -> None:
        self._client = client
        self._removal = removal
        self._say = say

    async def run(self) -> None:
        """All of it; raises ApiError, or CommandError for what cannot be done or does not end."""
        native = await self._find_native()
        await self._check_handover()
        await self._delete_all(FIRST)
        await self._settle()
        await self._stop()
        await self._free_pods()
        await self._free_groups(native)
        if self._removal.hand_to:
            await self._hand_over()
        if self._removal.purge:
            await self._purge(native)
        for resource, namespace, name in ELSEWHERE:
            await self._delete(resource, namespace, name)
        await self._delete_all(LAST)
        await self._delete_home()

    async def _find_native(self) -> list[Resource]:
        """PodGroups and Workloads of the native API, in the version that is preferred, where they are served."""
        try:
            group = await self._client.read(f"/apis/{_NATIVE}")
        except NotFound:
            return []
        found: dict[str, Resource] = {}
        for version in (each["version"] for each in group["versions"]):
            listed = await self._client.read(f"/apis/{_NATIVE}/{version}")
            names = {each["name"] for each in listed["resources"]}
            for plural in {"podgroups", "workloads"} & names - found.keys():
                found[plural] = Resource(_NATIVE, version, plural)
        return list(found.values())

    async def _check_handover(self) -> None:
        if self._removal.hand_to in self._removal.schedulers:
            raise CommandError(
                ExitCode.USAGE, f"--hand-to {self._removal.hand_to}: nobody serves it when Serried is gone"
            )
        if self._removal.hand_to and await self._list(MUTATING) is None:
            raise CommandError(
                ExitCode.USAGE, "--hand-to needs MutatingAdmissionPolicies, of Kubernetes 1.36 and newer"
            )

    async def _stop(self) -> None:
        for name in ("serried", "serried-controller"):
            await self._delete(DEPLOYMENTS, self._removal.home, name)

        ours = "app.kubernetes.io/name=serried"
        await self._wait("the pods of Serried", lambda: self._list_in(self._removal.home, ours))

    async def _delete_home(self) -> None:
        home = self._removal.home
        if not self._removal.dry_run and await self._list_in(home):
            self._say(
                f"left namespace {home}: there are pods of others; run helm uninstall or kubectl delete -k, too\n"
            )
            return
        await self._delete(NAMESPACES, "", home)
        await self._wait(f"the namespace {home}", lambda: self._find(NAMESPACES, "", home))

    async def _free_pods(self) -> None:
        for pod in await self._list(PODS) or []:
            gates = (pod.get("spec") or {}).get("schedulingGates") or []
            left = [gate for gate in gates if gate["name"] != HELD_GATE]
            patch = {"metadata": metadata} if (metadata := free_metadata(pod)) else {}
            if left != gates:
                patch["spec"] = {"schedulingGates": left}
            if patch:
                await self._patch(PODS, pod, patch, "freed")
            if self._waits(pod) and pod.get("status", {}).get("nominatedNodeName"):
                await self._patch(
                    PODS, pod, {"status": {"nominatedNodeName": None}}, "freed of its nomination", "status"
                )

    def _waits(self, pod: JSON) -> bool:
        spec = pod["spec"]
        return spec.get("schedulerName") in self._removal.schedulers and not spec.get("nodeName")

    async def _free_groups(self, native: Iterable[Resource]) -> None:
        """Nobody may be there to take the finalizer off: not from what is ours, and not from what is being deleted."""
        for resource in (each for each in native if each.plural == "podgroups"):
            for group in await self._list(resource) or []:
                metadata = group["metadata"]
                finalizers = metadata.get("finalizers") or []
                if PROTECTION in finalizers and (_is_ours(group) or metadata.get("deletionTimestamp")):
                    left = [name for name in finalizers if name != PROTECTION]
                    await self._patch(resource, group, {"metadata": {"finalizers": left or None}}, "freed")

    async def _purge(self, native: Iterable[Resource]) -> None:
        for resource in native:
            for each in await self._list(resource) or []:
                if _is_ours(each):
                    await self._delete(resource, each["metadata"]["namespace"], each["metadata"]["name"])
        for name in PURGED:
            await self._delete(DEFINITIONS, "", name)

        async def there() -> bool:
            return any([await self._find(DEFINITIONS, "", name) for name in PURGED])

        await self._wait("the CRDs, with their objects", there)

    async def _hand_over(self) -> None:
        await self._redirect()
        jobs = {job["metadata"]["uid"]: job for job in await self._list(JOBS) or []}
        by_owner: dict[str, list[JSON]] = {}
        for pod in await self._list(PODS) or []:
            owners = [each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")]
            if owners:
                by_owner.setdefault(owners[0]["uid"], []).append(pod)
            elif self._waits(pod):
                self._say(f"left pod {_name(pod)}: nothing would make it anew\n")
        for uid, pods in by_owner.items():
            waiting = [pod for pod in pods if self._waits(pod)]
            if waiting and uid not in jobs:
                for pod in waiting:
                    await self._delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
            elif waiting and len(waiting) == len(pods):
                await self._restart(jobs[uid])
            elif waiting:
                self._say(f"left {len(waiting)} waiting pods of job {_name(jobs[uid])}: others of it run\n")

    async def _redirect(self) -> None:
        """New pods get the other scheduler, because neither a pod's scheduler nor that of a Job can be changed."""
        names = ", ".join(f"'{name}'" for name in sorted(self._removal.schedulers))
        rules = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        change = f"[JSONPatch{{op: 'replace', path: '/spec/schedulerName', value: '{self._removal.hand_to}'}}]"
        spec = {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [rules]},
            "matchConditions": [
                {"name": "scheduled-by-serried", "expression": f"object.spec.schedulerName in [{names}]"}
            ],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": change}}],
        }
        for resource, kind, content in (
            (MUTATING, "MutatingAdmissionPolicy", spec),
            (MUTATING_BINDINGS, "MutatingAdmissionPolicyBinding", {"policyName": _HANDOVER}),
        ):
            made = {"apiVersion": f"{_ADMISSION}/v1", "kind": kind, "metadata": {"name": _HANDOVER}, "spec": content}
            self._say(f"created {resource} {_HANDOVER}: delete it when no Job or Deployment names {names} any more\n")
            if not self._removal.dry_run:
                await self._client.apply(resource, "", _HANDOVER, made)
        await self._settle()

    async def _restart(self, job: JSON) -> None:
        """Suspend a Job and resume it: pods that are deleted otherwise would count as failures."""
        if job["spec"].get("suspend"):
            return
        metadata = job["metadata"]
        await self._patch(JOBS, job, {"spec": {"suspend": True}}, "suspended")

        async def active() -> bool:
            found = await self._find(JOBS, metadata["namespace"], metadata["name"])
            status = (found or {}).get("status") or {}
            return bool(status.get("active") or status.get("terminating"))

        await self._wait(f"the pods of job {_name(job)}", active)
        await self._patch(JOBS, job, {"spec": {"suspend": False}}, "resumed")

    async def _list(self, resource: Resource) -> list[JSON] | None:
        """The objects of a kind; None if it is not served."""
        try:
            return await self._client.list_all(resource)
        except NotFound:
            return None

    async def _list_in(self, namespace: str, labels: str = "") -> list[JSON]:
        return [pod async for pod in self._client.items(PODS, Selection(namespace=namespace, labels=labels))]

    async def _find(self, resource: Resource, namespace: str, name: str) -> JSON | None:
        try:
            return await self._client.get(resource, namespace, name)
        except NotFound:
            return None

    async def _delete_all(self, named: Mapping[Resource, Sequence[str]]) -> None:
        for resource, names in named.items():
            for name in names:
                await self._delete(resource, "", name)

    async def _delete(self, resource: Resource, namespace: str, name: str) -> None:
        if await self._find(resource, namespace, name) is None:
            return
        self._say(f"deleted {resource} {f'{namespace}/' if namespace else ''}{name}\n")
        if not self._removal.dry_run:
            with suppress(NotFound):  # somebody was faster
                await self._client.delete(resource, namespace, name)

    async def _patch(self, resource: Resource, obj: JSON, patch: JSON, done: str, subresource: str = "") -> None:
        self._say(f"{done} {resource} {_name(obj)}\n")
        if self._removal.dry_run:
            return
        metadata = obj["metadata"]
        with suppress(NotFound):  # it has gone meanwhile
            await self._client.patch_merge(resource, metadata["namespace"], metadata["name"], patch, subresource)

    async def _settle(self) -> None:
        """Until API servers go by the policies that there are now: they look again every second."""
        if not self._removal.dry_run:
            await asyncio.sleep(_SETTLE)

    async def _wait(self, what: str, there: Callable[[], Awaitable[object]]) -> None:
        """Until it is not there any more; raises CommandError if that takes too long."""
        deadline = time.monotonic() + _SECONDS
        while not self._removal.dry_run and await there():
            if time.monotonic() > deadline:
                said = f"{what}: not gone after {_SECONDS:.0f} s; see what keeps it, and run the command again"
                raise CommandError(ExitCode.NO, said)
            await asyncio.sleep(_PAUSE)


def _is_ours(obj: JSON) -> bool:
    return (obj["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER


def _name(obj: JSON) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
