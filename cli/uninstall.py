"""``serried uninstall``: removes Serried from a cluster, in an order in which nothing hangs and nothing is left over.

    resume Jobs of an earlier run ─▶ delete policies ─▶ delete Deployments ─▶ free nodes, pods and groups
        ─▶ hand pods over (--hand-to) ─▶ delete CRDs (--purge) ─▶ delete the other objects ─▶ delete the namespace

To free an object is to remove what Serried has set on it: gates, nominations, annotations, labels and finalizers.
Policies and processes are deleted first, so that nothing sets these again.

To hand pods over is to make the owners of waiting pods create them again, for another scheduler. For that, the pods
are deleted. A Job is suspended and then resumed instead, because it would count deleted pods as failures. The next run
resumes the Jobs that an interrupted run left suspended.

Only objects with the label of the installation are deleted (`cli.inventory`), created by kubectl or by Helm. If a step
fails, the command may be run again.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Annotated, Any

import typer

from cli.access import describe_failure
from cli.inventory import Found, Inventory, discover, find_foreign, missing_rights_error, read_inventory
from cli.output import CommandError, ExitCode, option
from cli.rights import Right, list_missing
from cli.target import Target, find_credentials, name_api_server, with_target_options
from cli.transport import open_client
from serried.api.group import PROTECTION
from serried.api.names import GANG, INSTALLATION, LABELLED_BY_BINDING, POD_GROUP_LABEL, count_things, join_some
from serried.api.node import unprotect
from serried.api.parent import JOB_UID, MANAGED_BY, MANAGER, PARENT_UID
from serried.api.pod import HELD_GATE
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound
from serried.kube.wire import EVERYTHING, FALLBACK_GROUP, JOBS, JSON, NAMESPACES, NODES, PODS, Resource, Selection

UNINSTALL_EXAMPLES = """
Show what would be done:
  serried uninstall --dry-run

Remove Serried; the cluster's own scheduler starts the pods that wait:
  serried uninstall --hand-to default-scheduler

Remove it with all its objects:
  serried uninstall --purge --yes
"""

_ADMISSION = "admissionregistration.k8s.io"
_NATIVE = "scheduling.k8s.io"

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments")
MUTATING = Resource(_ADMISSION, "v1", "mutatingadmissionpolicies", namespaced=False)
MUTATING_BINDINGS = Resource(_ADMISSION, "v1", "mutatingadmissionpolicybindings", namespaced=False)

OURS = "app.kubernetes.io/name=serried"
"""The label selector of Serried's Deployments and pods. Unlike the label of the installation, all releases set it."""

_PROCESSES = Selection(
    labels=f"{OURS},app.kubernetes.io/component in (scheduler,controller)",
    fields="status.phase!=Succeeded,status.phase!=Failed",
)
"""Selects the unfinished pods of the extender and the controller, in all namespaces.

Other pods, such as that of the chart's hook, may have the label of `OURS`, too.
"""

SUSPENDED = f"{FALLBACK_GROUP}/suspended"
"""The label of a Job that this command has suspended and must resume, also after a failure."""

_RETRY_KEY = f"{FALLBACK_GROUP}/kick"
"""The key of an annotation, in some pods of a label. Serried changes its value to make kube-scheduler retry the pod."""

REMOVED_ANNOTATIONS = (GANG, LABELLED_BY_BINDING, _RETRY_KEY)
"""The annotations that are removed from pods.

Those with rank and domain stay, because restarted containers may read them.
"""

_HANDOVER = "serried-handover"
_SCHEDULER = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_SECONDS = 60.0
"""Seconds without progress after which a wait fails."""

_PAUSE = 0.5
_PROGRESS_SECONDS = 10.0
"""Seconds between two messages about a wait that goes on."""

_POLICY_SECONDS = 3.0
_MOST_NAMES = 5
"""The largest number of objects that a message names."""

_RELEASE = "meta.helm.sh/release-name"

_PAST_FORMS = {
    "create": "created",
    "delete": "deleted",
    "free": "freed",
    "leave": "left",
    "resume": "resumed",
    "suspend": "suspended",
}
"""The verb of each step, and its past form for the message. A dry run prints ``would`` and the verb instead."""

HandTo = Annotated[
    str,
    option(
        "SCHEDULER",
        "The scheduler that starts the waiting pods, for example default-scheduler. The pods are created "
        "again. By default they keep waiting.",
    ),
]
Schedulers = Annotated[
    list[str] | None, option("NAME", "A schedulerName that Serried serves. Default: serried. May be repeated.")
]
Purge = Annotated[
    bool, typer.Option("--purge", help="Delete also the CRDs, and all PodGroups and Workloads of Serried.")
]
FreeOnly = Annotated[
    bool,
    typer.Option(
        "--free-only",
        help="Delete nothing: only take Serried's gates, nominations, labels, annotations and finalizers off pods, "
        "groups and nodes, when the pods of Serried are gone. The chart's hook does that after helm uninstall. Needs "
        "rights to these only.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclass(frozen=True, slots=True)
class Removal:
    """The options of one run of ``serried uninstall``."""

    home: str
    """The namespace of the installation to remove."""

    schedulers: frozenset[str]
    hand_to: str
    """The scheduler that shall start the pods that wait for Serried, "" if they keep waiting."""

    purge: bool
    dry_run: bool


@with_target_options
def uninstall(
    hand_to: HandTo = "",
    scheduler_name: Schedulers = None,
    *,
    purge: Purge = False,
    free_only: FreeOnly = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> None:
    """Remove Serried from the cluster, and what it has set on nodes, pods and groups.

    Running pods keep running. Waiting pods lose Serried's scheduling gate and nomination. Only objects with the label
    of the installation are deleted, and its namespace if nothing else is in it. If the cluster's own scheduler calls
    Serried, first remove both extenders from its configuration. Needs the rights of an administrator.
    """
    for name in (hand_to, *(scheduler_name or ())):
        if name and not _SCHEDULER.fullmatch(name):
            raise CommandError(ExitCode.USAGE, f"{name!r} is not the name of a scheduler")
    if free_only and (hand_to or purge):
        raise CommandError(ExitCode.USAGE, "--free-only deletes nothing: leave out --hand-to and --purge")
    removal = Removal(target.home, frozenset(scheduler_name or ["serried"]), hand_to, purge, dry_run)
    if not (yes or dry_run or _is_confirmed(removal.home)):
        raise CommandError(ExitCode.NO, "nothing was done: confirm with y, or use --yes")
    asyncio.run(_run(removal, target, free_only=free_only))


def _is_confirmed(home: str) -> bool:
    try:
        return typer.confirm(f"Remove Serried from namespace {home} and the cluster?")
    except typer.Abort:  # standard input is closed
        return False


async def _run(removal: Removal, target: Target, *, free_only: bool) -> None:
    credentials = find_credentials(replace(target, server=""))
    server = name_api_server(target, credentials)
    async with open_client(credentials) as client:
        steps = Uninstall(client, removal, server)
        try:
            await (steps.free_pods_and_groups() if free_only else steps.run())
        except ApiError as error:
            said = (
                f"{server}: {describe_failure(error)}; fix this and run the command again: the command continues "
                "from there"
            )
            raise CommandError(ExitCode.UNREACHABLE, said) from error


def free_metadata(pod: JSON) -> JSON:
    """Return the merge patch of a pod's metadata that removes `REMOVED_ANNOTATIONS` and the labels of Serried.

    Return {} if the pod has none of these.
    """
    metadata = pod["metadata"]
    taken = [key for key in REMOVED_ANNOTATIONS if key in (metadata.get("annotations") or {})]
    patch: JSON = {"annotations": dict.fromkeys(taken)} if taken else {}
    labels = [POD_GROUP_LABEL] if LABELLED_BY_BINDING in taken else []
    labels += [_RETRY_KEY] if _RETRY_KEY in (metadata.get("labels") or {}) else []
    return {**patch, "labels": dict.fromkeys(labels)} if labels else patch


class _ProgressTimeout:
    """The time limit of a wait until objects are gone. It starts anew each time that the number of objects falls."""

    def __init__(self, what: str, say: Callable[[str], Any]) -> None:
        self._what = what
        self._say = say
        self._least: int | None = None
        self._since = self._told = monotonic()

    def is_over(self, left: int) -> bool:
        """Return whether the wait has failed: the number of objects has not fallen for `_SECONDS`.

        ``left`` is that number now. Also prints it every `_PROGRESS_SECONDS`.
        """
        now = monotonic()
        if self._least is None or left < self._least:
            self._least, self._since = left, now
        if left and now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self._say(f"waiting for {self._what}: {left} left\n")
        return now - self._since > _SECONDS


class Uninstall:
    """The steps of one run. Each prints what it does, or in a dry run, what it would do."""

    def __init__(
        self, client: ApiClient, removal: Removal, server: str, say: Callable[[str], Any] = sys.stdout.write
    ) -> None:
        self._client = client
        self._removal = removal
        self._server = server
        """The API server's name in messages."""
        self._say = say

    async def run(self) -> None:
        """Remove the installation, step by step.

        Raises CommandError if a step is not possible or takes too long, ApiError if a request fails.
        """
        inventory = await read_inventory(self._client, self._removal.home)
        native = _pick_native(inventory.kinds)
        self._check_options(inventory)
        await self._check_rights(inventory, native)
        suspended = [job async for job in self._client.items(JOBS, Selection(labels=SUSPENDED))]
        await self._check_installation(inventory, native, suspended)
        await self._resume(suspended)
        await self._delete_all(each for each in inventory.own if each[0].group == _ADMISSION)
        await self._await_policies()
        await self._delete_processes(inventory)
        await self._free_nodes()
        if inventory.others:
            self._report_left_to(inventory.others)
        else:
            await self._free_pods()
            await self._free_groups(native)
            if self._removal.hand_to:
                await self._hand_pods_over()
            if self._removal.purge:
                await self._purge(native)
        rest = [
            each for each in inventory.own if each[0] not in {DEPLOYMENTS, NAMESPACES} and each[0].group != _ADMISSION
        ]
        await self._delete_all(rest)
        await self._delete_home(inventory)

    def _report(self, step: str, what: str) -> None:
        self._say(f"{f'would {step}' if self._removal.dry_run else _PAST_FORMS[step]} {what}\n")

    async def free_pods_and_groups(self) -> None:
        """Remove what Serried has set on nodes, pods and groups, and delete nothing (``--free-only``).

        Called when another tool, such as Helm, deletes the installation. Waits until Serried's pods are gone, so that
        they do not set it again. If another installation runs, all pods and groups are left as they are. Raises
        ApiError and CommandError as `run`.
        """
        await self._wait("the pods of Serried", self._count_pods)
        await self._await_policies()
        await self._free_nodes()
        pods = self._client.items(PODS, _PROCESSES)
        if others := {pod["metadata"]["namespace"] async for pod in pods} - {self._removal.home}:
            self._report_left_to(others)
            return
        await self._free_pods()
        kinds, _ = await discover(self._client)
        await self._free_groups(_pick_native(kinds))

    def _report_left_to(self, others: Collection[str]) -> None:
        self._report("leave", f"pods and groups: the installation in {', '.join(sorted(others))} serves them")

    # ------------------------------------------------------------ before the first step

    def _check_options(self, inventory: Inventory) -> None:
        to = self._removal.hand_to
        if to in self._removal.schedulers:
            raise CommandError(ExitCode.USAGE, f"--hand-to {to}: no scheduler has this name when Serried is gone")
        if to and MUTATING not in inventory.kinds:
            raise CommandError(
                ExitCode.USAGE, "--hand-to needs MutatingAdmissionPolicies, of Kubernetes 1.36 and newer"
            )
        if inventory.own and inventory.others and (to or self._removal.purge):
            said = (
                f"pods, groups and CRDs are also of the installation in namespace {', '.join(sorted(inventory.others))}"
            )
            raise CommandError(ExitCode.USAGE, f"{said}: leave out --purge and --hand-to")

    async def _check_rights(self, inventory: Inventory, native: Iterable[Resource]) -> None:
        rights = {Right("patch", each) for each in (NODES, PODS, JOBS)} | {Right("patch", PODS, "status")}
        rights |= {Right("delete", kind) for kind, _ in inventory.own} | {Right("patch", each) for each in native}
        if self._removal.hand_to:
            rights |= {Right(verb, each) for each in (MUTATING, MUTATING_BINDINGS) for verb in ("create", "patch")}
            rights.add(Right("delete", PODS))
        if self._removal.purge:
            rights |= {Right("delete", each) for each in (*native, DEFINITIONS)}
        if missing := await list_missing(self._client, sorted(rights, key=str)):
            raise missing_rights_error(", ".join(map(str, missing)))

    async def _check_installation(
        self, inventory: Inventory, native: Iterable[Resource], suspended: Sequence[JSON]
    ) -> None:
        """Raise CommandError if there is nothing to remove, or if Serried is installed in another namespace.

        Also raise it if the installation is of an old release that did not label its objects. If only the installation
        itself is gone, the run goes on to remove what it left. ``native`` are the kinds PodGroup and Workload of
        scheduling.k8s.io, ``suspended`` the Jobs that an earlier run has suspended.
        """
        if inventory.own:
            return
        home = self._removal.home
        deployments = [each async for each in self._client.items(DEPLOYMENTS, Selection(labels=OURS))]
        elsewhere = {each["metadata"]["namespace"] for each in deployments} | set(inventory.others)
        if home in elsewhere:
            said = f"the installation in namespace {home} is of a release that did not label its objects"
            fix = "upgrade it to this release by the tool that installed it, and run the command again"
            raise CommandError(ExitCode.USAGE, f"nothing was done: {said}; {fix}")
        if elsewhere:
            said = f"Serried is not installed in namespace {home}, but in {', '.join(sorted(elsewhere))}"
            raise CommandError(ExitCode.USAGE, f"nothing was done: {said} (--serried-namespace)")
        if not suspended and not await self._has_leftovers(native):
            said = f"Serried is not installed in namespace {home} of {self._server}, nor elsewhere in the cluster"
            raise CommandError(ExitCode.USAGE, f"nothing was done: {said}")

    async def _has_leftovers(self, native: Iterable[Resource]) -> bool:
        """Return whether pods, nodes, groups or CRDs still have something of Serried to remove.

        ``native`` are the kinds PodGroup and Workload of scheduling.k8s.io.
        """
        kinds = dict.fromkeys(native, _is_ours if self._removal.purge else _is_protected)
        for kind, is_left in {**kinds, PODS: self._pod_has_leftovers, NODES: self._is_kept_from_autoscalers}.items():
            if any(map(is_left, await self._client.list_all(kind))):
                return True
        return self._removal.purge and bool(await self._list_definitions())

    def _is_kept_from_autoscalers(self, node: JSON) -> bool:
        return bool(unprotect(node["metadata"].get("annotations") or {}, self._removal.home))

    def _pod_has_leftovers(self, pod: JSON) -> bool:
        return any(self._patches_to_free(pod)) or (self._removal.hand_to != "" and self._is_waiting(pod))

    # ------------------------------------------------------------ the steps

    async def _delete_processes(self, inventory: Inventory) -> None:
        await self._delete_all(each for each in inventory.own if each[0] == DEPLOYMENTS)
        if inventory.own:
            await self._wait("the pods of Serried", self._count_pods)

    async def _count_pods(self) -> int:
        selection = Selection(namespace=self._removal.home, labels=OURS)
        return len([pod async for pod in self._client.items(PODS, selection)])

    async def _delete_home(self, inventory: Inventory) -> None:
        """Delete the namespace if the installation created it and no other objects are in it.

        Otherwise print why it stays. Also print how to remove the record of Helm's release, if Helm made the
        installation.
        """
        home = self._removal.home
        if not inventory.own or (namespace := await self._find(NAMESPACES, "", home)) is None:
            return
        foreign, unlisted = await find_foreign(self._client, inventory, home)
        if (namespace["metadata"].get("labels") or {}).get(INSTALLATION) != home:
            self._report("leave", f"namespace {home}: Serried did not create it")
        elif foreign:
            self._report("leave", f"namespace {home}: it contains {join_some(foreign, _MOST_NAMES)}")
        elif unlisted:
            self._report("leave", f"namespace {home}: its content could not be listed: {'; '.join(unlisted)}")
        else:
            await self._delete(NAMESPACES, namespace)

            async def count() -> int:
                return int(await self._find(NAMESPACES, "", home) is not None)

            await self._wait(f"the namespace {home}", count)
        releases = {(each["metadata"].get("annotations") or {}).get(_RELEASE, "") for _, each in inventory.own} - {""}
        for release in sorted(releases):
            remove = f"helm uninstall {release} --namespace {home} --no-hooks"
            self._report("leave", f"the record of Helm's release {release}: {remove}")

    async def _free_pods(self) -> None:
        # Page by page: the chart's hook has little memory.
        changes = [
            ({"metadata": {name: pod["metadata"][name] for name in ("namespace", "name")}}, *change)
            async for pod in self._client.items(PODS, EVERYTHING)
            if any(change := self._patches_to_free(pod))
        ]
        for pod, patch, status in changes:
            if patch:
                await self._patch(PODS, pod, patch, "free")
            if status:
                await self._patch(PODS, pod, status, "free", "status")

    def _patches_to_free(self, pod: JSON) -> tuple[JSON, JSON]:
        """Return two merge patches, of a pod and of its status, that remove what Serried has set.

        The first removes annotations, labels and the scheduling gate, the second the nomination of a waiting pod. A
        patch is {} if there is nothing to remove.
        """
        patch: JSON = {"metadata": metadata} if (metadata := free_metadata(pod)) else {}
        gates = (pod.get("spec") or {}).get("schedulingGates") or []
        left = [gate for gate in gates if gate["name"] != HELD_GATE]
        if left != gates:
            patch["spec"] = {"schedulingGates": left}
        is_nominated = self._is_waiting(pod) and pod.get("status", {}).get("nominatedNodeName")
        return patch, {"status": {"nominatedNodeName": None}} if is_nominated else {}

    def _is_waiting(self, pod: JSON) -> bool:
        spec = pod["spec"]
        return spec.get("schedulerName") in self._removal.schedulers and not spec.get("nodeName")

    async def _free_nodes(self) -> None:
        """Remove the annotations from nodes by which this installation keeps autoscalers from removing the nodes."""
        for node in filter(self._is_kept_from_autoscalers, await self._client.list_all(NODES)):
            annotations = unprotect(node["metadata"]["annotations"], self._removal.home)
            await self._patch(NODES, node, {"metadata": {"annotations": annotations}}, "free")

    async def _free_groups(self, native: Iterable[Resource]) -> None:
        """Remove the finalizer from the PodGroups that Serried's controller has created, because nothing else would.

        ``native`` are the kinds PodGroup and Workload of scheduling.k8s.io. kube-controller-manager uses a finalizer of
        the same name for the PodGroups that it has created. These are not touched.
        """
        for resource in native:
            for group in filter(_is_protected, await self._client.list_all(resource)):
                left = [name for name in group["metadata"]["finalizers"] if name != PROTECTION]
                await self._patch(resource, group, {"metadata": {"finalizers": left or None}}, "free")

    async def _purge(self, native: Iterable[Resource]) -> None:
        for resource in native:
            for each in filter(_is_ours, await self._client.list_all(resource)):
                await self._delete(resource, each)
        for each in await self._list_definitions():
            await self._delete(DEFINITIONS, each)

        async def count() -> int:
            return len(await self._list_definitions())

        await self._wait("the CRDs, with their objects", count)

    async def _list_definitions(self) -> list[JSON]:
        return [each for each in await self._client.list_all(DEFINITIONS) if each["spec"]["group"] == FALLBACK_GROUP]

    async def _hand_pods_over(self) -> None:
        await self._redirect_new_pods()
        jobs = {job["metadata"]["uid"]: job for job in await self._client.list_all(JOBS)}
        by_owner: dict[str, list[JSON]] = {}
        for pod in await self._client.list_all(PODS):
            owners = [each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")]
            if owners and not pod["metadata"].get("deletionTimestamp"):
                by_owner.setdefault(owners[0]["uid"], []).append(pod)
            elif not owners and self._is_waiting(pod):
                self._report("leave", f"pod {_name(pod)}: no controller would create the pod again")
        for pod in (
            each for uid, pods in by_owner.items() if uid not in jobs for each in pods if self._is_waiting(each)
        ):
            await self._delete_waiting(pod)
        suspended = [job for uid, job in jobs.items() if self._could_restart(job, by_owner.get(uid, ()))]
        for job in suspended:  # otherwise the Job would count its deleted pods as failures
            mark = {"metadata": {"labels": {SUSPENDED: "true"}}, "spec": {"suspend": True}}
            await self._patch(JOBS, job, mark, "suspend")
        await self._resume(suspended)

    def _could_restart(self, job: JSON, pods: Sequence[JSON]) -> bool:
        waiting = sum(map(self._is_waiting, pods))
        if 0 < waiting < len(pods):
            self._report("leave", f"{waiting} waiting pods of job {_name(job)}: other pods of it run")
        return 0 < waiting == len(pods) and not job["spec"].get("suspend")

    async def _delete_waiting(self, pod: JSON) -> None:
        """Delete a pod that waits for Serried, so that its owner creates a new one for the other scheduler.

        A pod that was bound or replaced since it was listed is not deleted.
        """
        metadata = pod["metadata"]
        found = await self._find(PODS, metadata["namespace"], metadata["name"])
        if found is not None and found["metadata"]["uid"] == metadata["uid"] and self._is_waiting(found):
            try:
                await self._delete(PODS, found, found["metadata"]["resourceVersion"])
            except Conflict:
                self._report("leave", f"pod {_name(pod)}: it has changed meanwhile; run the command again")

    async def _redirect_new_pods(self) -> None:
        """Create an admission policy that changes the schedulerName of new pods from Serried's to ``--hand-to``.

        The schedulerName of existing pods cannot be changed.
        """
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
            until = f"delete it when no Job or Deployment names {names} any more"
            self._report("create", f"{resource} {_HANDOVER}: {until}")
            if not self._removal.dry_run:
                await self._client.apply(resource, "", _HANDOVER, made)
        await self._await_policies()

    async def _resume(self, jobs: Sequence[JSON]) -> None:
        """Resume the Jobs that this command has suspended, each when its pods are gone.

        If no more pods disappear for `_SECONDS`, resume the others, too.
        """
        timeout = _ProgressTimeout("the pods of suspended Jobs", self._say)
        waiting = list(jobs)
        while waiting:
            active = [await self._count_active(job) for job in waiting]
            is_over = timeout.is_over(sum(active))
            for job, count in zip(tuple(waiting), active, strict=True):
                if count and is_over:
                    pods = count_things(count, "pod")
                    self._report("leave", f"{pods} of job {_name(job)}: none has ended for {_SECONDS:.0f} s")
                if is_over or not count:
                    change = {"metadata": {"labels": {SUSPENDED: None}}, "spec": {"suspend": False}}
                    await self._patch(JOBS, job, change, "resume")
                    waiting.remove(job)
            await asyncio.sleep(_PAUSE if waiting else 0)

    async def _count_active(self, job: JSON) -> int:
        """Return the number of pods of a suspended Job; at least 1 until the Job's controller has seen the suspension.

        Pods that are being deleted do not count: the Job's controller has already released them, so it will not count
        them as failed. Return 0 in a dry run, and if the Job is gone.
        """
        found = await self._find(JOBS, job["metadata"]["namespace"], job["metadata"]["name"])
        if self._removal.dry_run or found is None:
            return 0
        status = found.get("status") or {}
        conditions = status.get("conditions") or ()
        is_seen = any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions)
        return int(status.get("active") or not is_seen)

    # ------------------------------------------------------------ by the API server

    async def _find(self, resource: Resource, namespace: str, name: str) -> JSON | None:
        try:
            return await self._client.get(resource, namespace, name)
        except NotFound:
            return None

    async def _delete_all(self, found: Iterable[Found]) -> None:
        """Delete the objects, bindings of admission policies before the policies."""
        for resource, obj in sorted(found, key=lambda each: "bindings" not in each[0].plural):
            await self._delete(resource, obj)

    async def _delete(self, resource: Resource, obj: JSON, version: str = "") -> None:
        metadata = obj["metadata"]
        self._report("delete", f"{resource} {_name(obj)}")
        if not self._removal.dry_run:
            with suppress(NotFound):  # it was deleted meanwhile
                namespace = metadata.get("namespace", "")
                await self._client.delete(resource, namespace, metadata["name"], metadata["uid"], version)

    async def _patch(self, resource: Resource, obj: JSON, patch: JSON, step: str, subresource: str = "") -> None:
        self._report(step, f"{resource}{subresource and f'/{subresource}'} {_name(obj)}")
        if self._removal.dry_run:
            return
        metadata = obj["metadata"]
        with suppress(NotFound):  # it was deleted meanwhile
            namespace = metadata.get("namespace", "")
            await self._client.patch_merge(resource, namespace, metadata["name"], patch, subresource)

    async def _await_policies(self) -> None:
        """Wait some seconds, until all API servers apply the changed admission policies.

        They read the policies every second.
        """
        if not self._removal.dry_run:
            await asyncio.sleep(_POLICY_SECONDS)

    async def _wait(self, what: str, count: Callable[[], Awaitable[int]]) -> None:
        """Wait until ``count`` returns 0. ``what`` names in messages what is counted.

        Raises CommandError if the number has not fallen for `_SECONDS`. Return at once in a dry run.
        """
        timeout = _ProgressTimeout(what, self._say)
        while not self._removal.dry_run and (left := await count()):
            if timeout.is_over(left):
                said = f"{what}: not gone after {_SECONDS:.0f} s; check its finalizers, and run the command again"
                raise CommandError(ExitCode.NO, said)
            await asyncio.sleep(_PAUSE)


def _pick_native(kinds: Iterable[Resource]) -> list[Resource]:
    return [each for each in kinds if each.group == _NATIVE and each.plural in {"podgroups", "workloads"}]


def _is_ours(obj: JSON) -> bool:
    """Return whether Serried's controller has created the PodGroup or Workload, for a Job or another owner."""
    labels = obj["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY) == MANAGER and not labels.keys().isdisjoint({JOB_UID, PARENT_UID})


def _is_protected(obj: JSON) -> bool:
    """Return whether Serried's controller has created the PodGroup, and its finalizer delays the deletion."""
    return _is_ours(obj) and PROTECTION in (obj["metadata"].get("finalizers") or ())


def _name(obj: JSON) -> str:
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])
