"""``serried install``: installs Serried in a cluster, or changes the version or shape of an installation.

The shape (`Layout`) says for which pods the scheduler calls Serried, and whether they get scheduling gates.

    check the cluster ──▶ apply the objects ──▶ wait until pods are ready ──▶ check the installation

Each step is a method of `Install`; `cli.uninstall` removes what this command applies. The objects are those of the
kustomization, shipped in the package as manifests.json.
"""

import asyncio
import copy
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Any

import typer

from cli.access import describe_failure
from cli.check.command import collect, collect_cluster, draw_findings, run_checks
from cli.check.installed import INSTALLER
from cli.check.observed import Area, Finding, Severity
from cli.output import CommandError, ExitCode, find_width, lay_out, option, print_note
from cli.rights import Right, list_missing
from cli.target import Target, find_credentials, name_api_server, with_target_options
from cli.transport import open_client
from cli.uninstall import DEFINITIONS, DEPLOYMENTS
from serried import IMAGE, __version__
from serried.api.level import OLDEST_MINOR
from serried.api.names import INSTALLATION, name_object
from serried.api.parent import MANAGED_BY
from serried.api.pod import Pod, decode_pod
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import JSON, PODS, Resource, Selection, write_json

INSTALL_EXAMPLES = """
Install Serried, or upgrade what is there:
  serried install

Take the image from a registry of your own:
  serried install --image registry.example.com/serried:0.2.0

Show what would be applied:
  serried install --dry-run > serried.yaml

The same where no cluster answers:
  serried install --dry-run --scheduler-version 1.37.1
"""

HOME = "serried-system"

_LEAST_MINOR_WITH_MUTATIONS = 36
_SCHEDULER_IMAGE = "registry.k8s.io/kube-scheduler"
_CONFIG = "serried-scheduler-config"
_SCHEDULER = "serried"
_VERSION = re.compile(r"v?(\d+\.(\d+)\.\d+(?:-(?:alpha|beta|rc)\.\d+)?)")
"""A release or pre-release at the beginning of a version of Kubernetes; kube-scheduler's image has it as a tag.

Vendors append other words, which are ignored.
"""

_PAUSE = 0.5
_LEADERSHIP_SECONDS = 20.0
"""Seconds until an extender must lead, once all pods are ready.

If the previous holder of the Lease did not release it, 15 s pass before another process can hold it.
"""

_PULL_BACKOFF = "ImagePullBackOff"
_FINAL_PULL_REASONS = frozenset({"ErrImageNeverPull", "InvalidImageName", _PULL_BACKOFF})
"""Reasons of a waiting container by which `serried install` stops waiting: the image will not be pulled soon.

ErrImagePull alone is no such reason: the kubelet tries once more.
"""

_FINAL_PULL_MESSAGES = ("not found", "manifest unknown", "denied", "unauthorized")
"""Parts of registries' error messages that mean the next attempt will fail, too."""

_NEXT = """
Serried {version} runs. A Job is a gang if it is Indexed and its pods all run at once. For example:

kubectl create -f - <<'JOB'
apiVersion: batch/v1
kind: Job
metadata: {{name: first-gang}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  template:
    spec:
      schedulerName: serried
      restartPolicy: Never
      containers:
      - {{name: worker, image: registry.k8s.io/pause:3.10, resources: {{requests: {{cpu: 100m}}}}}}
JOB
serried explain job/first-gang
"""


class Layout(StrEnum):
    """The shape of an installation, which decides the objects that it consists of.

    ``isolated``: the scheduler calls Serried for pods of gangs only. ``gate``: for all its pods. In both, waiting pods
    may get a scheduling gate. ``base``: for all its pods, and without scheduling gates. ``auto``: isolated, or base on
    Kubernetes 1.35.
    """

    AUTO = "auto"
    ISOLATED = "isolated"
    GATE = "gate"
    BASE = "base"


Image = Annotated[str, option("IMAGE", f"Serried's image. Default: {IMAGE}:{__version__}.")]
SchedulerImage = Annotated[
    str, option("IMAGE", f"The image of the stock kube-scheduler, without its tag. Default: {_SCHEDULER_IMAGE}.")
]
SchedulerVersion = Annotated[
    str, option("VERSION", "The version of kube-scheduler, such as 1.37.1. Default: that of the API server.")
]
ShapeOption = Annotated[
    Layout,
    typer.Option(
        "--shape",
        show_default=False,
        help="isolated: the scheduler calls Serried for pods of gangs only. gate: for all its pods. base: for all, and "
        "without scheduling gates. Default: isolated, on Kubernetes 1.35 base.",
    ),
]
Wait = Annotated[
    int, typer.Option("--timeout", min=1, metavar="SECONDS", help="How long to wait until Serried is ready.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be applied as YAML, and do nothing.")]


@dataclass(frozen=True, slots=True)
class Installation:
    """The versions and the shape to install: what the options ask for, or after `plan_installation` what is applied."""

    shape: Layout
    image: str

    scheduler: str
    """The image of kube-scheduler: as asked for without a tag, after `plan_installation` with its tag."""

    scheduler_version: str


@with_target_options
def install(
    image: Image = "",
    scheduler_image: SchedulerImage = _SCHEDULER_IMAGE,
    scheduler_version: SchedulerVersion = "",
    shape: ShapeOption = Layout.AUTO,
    timeout: Wait = 300,
    *,
    dry_run: DryRun = False,
    target: Target,
) -> None:
    """Install Serried beside the cluster's own scheduler, or upgrade it.

    It checks the cluster, applies the manifests, waits until the pods are ready, and checks the installation. Needs the
    rights of an administrator. For other shapes, values or components use Helm or kustomize (docs/install.md).
    """
    if target.home != HOME:
        raise CommandError(ExitCode.USAGE, f"--serried-namespace {target.home}: install knows {HOME} only; use Helm")
    if scheduler_version and not _VERSION.fullmatch(scheduler_version):
        raise CommandError(ExitCode.USAGE, f"--scheduler-version {scheduler_version}: a version like 1.37.1 is needed")
    asked = Installation(shape, image or f"{IMAGE}:{__version__}", scheduler_image, scheduler_version.removeprefix("v"))
    asyncio.run(_run(asked, target, timeout, dry_run=dry_run))


async def _run(asked: Installation, target: Target, seconds: float, *, dry_run: bool) -> None:
    if dry_run:
        sys.stdout.write(_write_yaml(render(await _plan_dry_run(asked, target))))
        return
    credentials = find_credentials(replace(target, server=""))
    server = name_api_server(target, credentials)
    async with open_client(credentials) as client:
        try:
            plan = plan_installation(asked, await client.read("/version"))
            objects = render(plan)
            work = Install(client, plan, server)
            await work.check_before(objects)
            await work.apply(objects)
            await work.await_ready(seconds)
        except ApiError as error:
            said = (
                f"{server}: {describe_failure(error)}; fix this and run the command again: the command continues "
                "from there"
            )
            raise CommandError(ExitCode.UNREACHABLE, said) from error
    await check_after(target)
    sys.stdout.write(_NEXT.format(version=__version__))


async def _plan_dry_run(asked: Installation, target: Target) -> Installation:
    """Return the installation that a dry run prints: for the Kubernetes version of the cluster, if the cluster answers.

    Otherwise it is for the version given by the user. Raises CommandError if the user has given none.
    """
    try:
        credentials = find_credentials(replace(target, server=""))
        server = name_api_server(target, credentials)
        async with open_client(credentials) as client:
            try:
                version = await client.read("/version")
            except ApiError as error:
                raise CommandError(ExitCode.UNREACHABLE, f"{server}: {describe_failure(error)}") from error
    except CommandError:
        if not asked.scheduler_version:
            raise
        plan = plan_installation(asked, {"gitVersion": f"v{asked.scheduler_version}"})
        print_note(f"rendered for Kubernetes {plan.scheduler_version}, shape {plan.shape}: no cluster has answered")
        return plan
    return plan_installation(asked, version)


def plan_installation(asked: Installation, version: JSON) -> Installation:
    """Return the installation to apply to a cluster: ``asked`` with the shape and the scheduler's image filled in.

    ``version`` is the API server's answer to ``/version``. Raises CommandError if the cluster is too old for Serried or
    for the shape, or if the answer names no version.
    """
    found = _VERSION.match(str(version.get("gitVersion")))
    if found is None:
        raise CommandError(ExitCode.UNREACHABLE, f"the API server names no version: {version.get('gitVersion')!r}")
    minor = int(found[2])
    if minor < OLDEST_MINOR:
        raise CommandError(ExitCode.NO, f"the cluster has Kubernetes {found[1]}; 1.{OLDEST_MINOR} or newer is needed")
    has_mutations = minor >= _LEAST_MINOR_WITH_MUTATIONS
    if asked.shape in {Layout.ISOLATED, Layout.GATE} and not has_mutations:
        said = f"--shape {asked.shape} needs Kubernetes 1.{_LEAST_MINOR_WITH_MUTATIONS}, and the cluster has {found[1]}"
        raise CommandError(ExitCode.USAGE, f"{said}; use --shape base")
    usual = Layout.ISOLATED if has_mutations else Layout.BASE
    chosen = asked.scheduler_version or found[1]
    return Installation(
        usual if asked.shape is Layout.AUTO else asked.shape, asked.image, f"{asked.scheduler}:v{chosen}", chosen
    )


def read_shipped() -> list[tuple[list[str], JSON]]:
    """Return all objects of the kustomization in the order of their creation.

    The result has pairs: the names of the installation's shapes (`Layout`) that the object belongs to, and the object.
    """
    text = files("cli").joinpath("manifests.json").read_text()
    return [(each["shapes"], each["object"]) for each in json.loads(text)]


def render(plan: Installation) -> list[JSON]:
    """Return the objects to apply, with the images of ``plan``.

    The name of the scheduler's ConfigMap gets a hash of its content, so that a change of it restarts the pods.
    """
    objects = [copy.deepcopy(each) for shapes, each in read_shipped() if plan.shape in shapes]
    config = next(each for each in objects if _identify(each) == ("ConfigMap", _CONFIG))
    digest = hashlib.sha256(write_json(config["data"])).hexdigest()[:10]
    config["metadata"]["name"] = f"{_CONFIG}-{digest}"
    images = {IMAGE: plan.image, _SCHEDULER_IMAGE: plan.scheduler}
    for each in objects:
        if each["kind"] == "Deployment":
            spec = each["spec"]["template"]["spec"]
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                container["image"] = images[container["image"]]
            for volume in spec.get("volumes", ()):
                if volume.get("configMap", {}).get("name") == _CONFIG:
                    volume["configMap"]["name"] = config["metadata"]["name"]
    return objects


def list_obsolete(plan: Installation) -> list[JSON]:
    """Return the shipped objects that do not belong to the shape (`Layout`) of the installation ``plan``.

    An earlier installation of another shape may have left them, so they are deleted.
    """
    kept = {_identify(each) for shapes, each in read_shipped() if plan.shape in shapes}
    return [each for _, each in read_shipped() if _identify(each) not in kept]


class Install:
    """The steps of one run of ``serried install``. Each step prints what it does."""

    def __init__(
        self, client: ApiClient, plan: Installation, server: str, say: Callable[[str], Any] = sys.stdout.write
    ) -> None:
        self._client = client
        self._plan = plan
        self._server = server
        """The API server's name in messages."""
        self._say = say
        self._kinds: dict[str, Mapping[str, Resource]] = {}
        """The resources by kind, for each API version that was read."""
        self._earlier: frozenset[str] = frozenset()
        """UIDs of the pods of an earlier installation."""

    async def check_before(self, objects: Iterable[JSON]) -> None:
        """Check the cluster before anything is applied, and print the findings. ``objects`` are those to apply.

        Raises CommandError if a finding is an error.
        """
        seen = await collect_cluster(self._client, HOME, self._server)
        # The policies come with the installation: none of them is missing yet.
        seen = replace(seen, scheduler_version=self._plan.scheduler_version, policies=None)
        found = [
            *run_checks(seen, (Area.CLUSTER,)),
            *await self._check_owners(objects),
            *await self._check_rights(objects),
            *await self._check_waiting(),
        ]
        _draw(found, "Before the installation:")
        if any(each.severity is Severity.ERROR for each in found):
            raise CommandError(ExitCode.NO, "nothing was installed: see the errors above")

    async def _check_owners(self, objects: Iterable[JSON]) -> list[Finding]:
        """Return an error for each other installation whose objects this one would change or delete.

        Also return an error if Helm has installed one of these objects. ``objects`` are those to apply.
        """
        found: dict[str, Finding] = {}
        for each in (*objects, *list_obsolete(self._plan)):
            there = await self._find_existing(each) if each["kind"] != "Namespace" else None
            labels = (there or {"metadata": {}})["metadata"].get("labels") or {}
            where, home = f"{each['kind'].lower()} {each['metadata']['name']}", labels.get(INSTALLATION, HOME)
            if labels.get(MANAGED_BY) == "Helm":
                what = "Helm installed Serried, and would revert changes made without Helm"
                fix = "use helm upgrade, or run helm uninstall first"
                found.setdefault("Helm", Finding(Severity.ERROR, Area.CLUSTER, where, what, fix))
            elif home != HOME:
                what = f"it belongs to the installation in namespace {home}, which would lose it"
                fix = f"remove that installation first: serried uninstall --serried-namespace {home}"
                found.setdefault(home, Finding(Severity.ERROR, Area.CLUSTER, where, what, fix))
        return list(found.values())

    async def _find_existing(self, obj: JSON) -> JSON | None:
        """Return the object in the cluster with the kind, namespace and name of ``obj``, None if there is none."""
        resource, metadata = await self._resolve(obj), obj["metadata"]
        return await self._find(resource, metadata.get("namespace", ""), metadata["name"]) if resource else None

    async def _check_rights(self, objects: Iterable[JSON]) -> list[Finding]:
        resources = {await self._find_resource(each) for each in objects}
        rights = [Right(verb, each) for each in resources for verb in ("create", "patch")]
        names = ", ".join(sorted({str(each.resource) for each in await list_missing(self._client, rights)}))
        if not names:
            return []
        what = f"you may not write {names}, which the installation needs"
        return [
            Finding(
                Severity.ERROR,
                Area.RIGHTS,
                "your rights",
                what,
                ("run the command as an administrator (cluster-admin)"),
            )
        ]

    async def _check_waiting(self) -> list[Finding]:
        """Return a warning for each owner, such as a Job, whose pods already wait for Serried's scheduler.

        Only in the isolated shape of an installation. There an admission policy adds to each new member the extended
        resource by which kube-scheduler knows that it must call Serried. The pods that already wait were created
        before, without this resource, so kube-scheduler would place them one by one.
        """
        if self._plan.shape is not Layout.ISOLATED:
            return []  # in other shapes the scheduler calls Serried for every pod
        selection = Selection(fields=f"spec.schedulerName={_SCHEDULER},spec.nodeName=")
        try:
            found = [decode_pod(each) async for each in self._client.items(PODS, selection)]
        except Forbidden:
            return []  # the check of rights reports it
        waiting = [
            each for each in found if isinstance(each, Pod) and each.pending and each.may_be_member and not each.marked
        ]
        counts = Counter(f"{each.namespace}/{_name_owner(each)}" for each in waiting)
        fix = "create them again once Serried runs, or install with --shape base, which schedules them as a gang"
        return [
            Finding(Severity.WARNING, Area.CLUSTER, where, _describe_early(count), fix)
            for where, count in counts.items()
        ]

    async def apply(self, objects: Sequence[JSON]) -> None:
        """Apply the objects by server-side apply, and delete the objects of other shapes.

        Raises CommandError if an object cannot be applied, and ApiError if another request fails.
        """
        self._earlier = frozenset([each["metadata"]["uid"] for each in await self._list_pods()])
        for each in objects:
            resource, metadata = await self._find_resource(each), each["metadata"]
            namespace, name = metadata.get("namespace", ""), metadata["name"]
            there = await self._find(resource, namespace, name)
            wanted = _without_label(each) if there is not None and _is_foreign_namespace(there) else each
            try:
                made = await self._client.apply(resource, namespace, name, wanted, manager=INSTALLER)
            except ApiError as error:
                said = f"{resource} {_place(namespace, name)} was refused: {describe_failure(error)}"
                raise CommandError(ExitCode.NO, f"{said}. Fix this and run the command again") from error
            if there is None or _read_content(there) != _read_content(made):
                self._say(f"{'created' if there is None else 'changed'} {resource} {_place(namespace, name)}\n")
        for each in list_obsolete(self._plan):
            if served := await self._resolve(each):
                name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "")
                with suppress(NotFound):
                    await self._client.delete(served, namespace, name)
                    self._say(f"deleted {served} {_place(namespace, name)}\n")

    async def await_ready(self, seconds: float) -> None:
        """Wait until the API server serves the CRDs and all pods are ready.

        Raises CommandError after ``seconds``, or at once if an image cannot be pulled. It names what is missing.
        """
        begun = time.monotonic()
        deadline = begun + seconds
        missing = await self._list_missing()
        if missing:
            self._say("waiting until the pods are ready\n")
        while missing:
            await self._check_images()
            if time.monotonic() > deadline:
                said = f"not ready after {seconds:g} s: {'; '.join(missing)}"
                raise CommandError(ExitCode.NO, f"{said}. Fix this and run the command again")
            await asyncio.sleep(_PAUSE)
            missing = await self._list_missing()
        self._say(f"all pods are ready (after {time.monotonic() - begun:.0f} s)\n")

    async def _list_missing(self) -> list[str]:
        missing = [
            f"CRD {each['metadata']['name']} is not served"
            for each in await self._client.list_all(DEFINITIONS)
            if each["metadata"]["name"].endswith(".scheduling.serried.dev") and not _is_served(each)
        ]
        for name in ("serried", "serried-controller"):
            deployment = await self._find(DEPLOYMENTS, HOME, name)
            if deployment is None or not _is_rolled_out(deployment):
                missing.append(f"deployment {HOME}/{name} is not ready{await self._explain(name)}")
        return missing

    async def _explain(self, deployment: str) -> str:
        """Return why the pods of a Deployment are not ready, in brackets; "" if their status does not show it."""
        pods = await self._list_pods()
        own = [each for each in pods if re.fullmatch(rf"{deployment}-[0-9a-z]+-[0-9a-z]+", each["metadata"]["name"])]
        reasons = dict.fromkeys(reason for pod in own for reason in _list_reasons(pod))
        return f" ({', '.join(reasons)})" if reasons else ""

    async def _check_images(self) -> None:
        """Raise CommandError if the kubelet of a node reports that it cannot pull an image of this installation.

        ImagePullBackOff of a pod from before the run is ignored, because the image may have been pushed since.
        """
        options = {self._plan.image: "--image", self._plan.scheduler: "--scheduler-image"}
        for pod in await self._list_pods():
            spec, old = pod["spec"], pod["metadata"]["uid"] in self._earlier
            images = {each["name"]: each["image"] for each in (*spec.get("initContainers", ()), *spec["containers"])}
            for name, waiting in _list_waiting(pod):
                image, reason = images[name], waiting.get("reason")
                if image in options and _cannot_be_pulled(waiting) and not (old and reason == _PULL_BACKOFF):
                    said = f"the nodes cannot pull {image} ({_describe_waiting(name, waiting)})"
                    fix = f"Push it there, or name another one with {options[image]}, and run the command again"
                    raise CommandError(ExitCode.NO, f"{said}. {fix}")

    async def _list_pods(self) -> list[JSON]:
        labels = "app.kubernetes.io/name=serried"
        return [pod async for pod in self._client.items(PODS, Selection(namespace=HOME, labels=labels))]

    async def _find(self, resource: Resource, namespace: str, name: str) -> JSON | None:
        try:
            return await self._client.get(resource, namespace, name)
        except NotFound:
            return None

    async def _find_resource(self, obj: JSON) -> Resource:
        """Return the API resource (group, version, plural) of an object's kind.

        Raises CommandError if the kind is not served, and NotFound if the API server lacks the whole API version.
        """
        found = await self._resolve(obj)
        if found is None:
            said = f"{self._server} does not serve {obj['kind']} of {obj['apiVersion']}"
            raise CommandError(ExitCode.NO, said)
        return found

    async def _resolve(self, obj: JSON) -> Resource | None:
        """Return the API resource (group, version, plural) of an object's kind; None if it is not served.

        Raises NotFound if the API server lacks the whole API version.
        """
        version = obj["apiVersion"]
        if version not in self._kinds:
            group, _, short = version.rpartition("/")
            listed = await self._client.read(f"/apis/{version}" if group else f"/api/{version}")
            self._kinds[version] = {
                each["kind"]: Resource(group, short, each["name"], namespaced=each["namespaced"])
                for each in listed["resources"]
                if "/" not in each["name"]
            }
        return self._kinds[version].get(obj["kind"])


async def check_after(target: Target) -> None:
    """Check the new installation repeatedly until there are no errors, for at most `_LEADERSHIP_SECONDS`.

    In that time an extender becomes the leader. Print the findings of the last check. Raises CommandError if an error
    remains.
    """
    deadline = time.monotonic() + _LEADERSHIP_SECONDS
    while True:
        found = run_checks(await collect(target, "", tuple(Area)))
        errors = [each for each in found if each.severity is Severity.ERROR]
        if not errors or time.monotonic() > deadline:
            break
        await asyncio.sleep(_PAUSE)
    _draw(found, "After the installation:")
    if errors:
        raise CommandError(ExitCode.NO, "Serried is installed, but does not work as it should: see the errors above")


def _draw(found: Sequence[Finding], title: str) -> None:
    if found:
        sys.stdout.writelines(f"{line}\n" for line in lay_out([title, *draw_findings(found)], find_width()))


def _name_owner(pod: Pod) -> str:
    return name_object(pod.owner.kind, pod.owner.name) if pod.owner is not None else name_object("pod", pod.name)


def _describe_early(count: int) -> str:
    return (
        f"{count} of its pods have waited for the scheduler {_SCHEDULER} since before the installation: they have no "
        "markers, so they are no gang, and kube-scheduler places them one by one"
    )


def _write_yaml(objects: Iterable[JSON]) -> str:
    import yaml  # noqa: PLC0415 - an installation needs none

    print_note("nothing was changed: the command would apply these objects")
    return str(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120))


def _identify(obj: JSON) -> tuple[str, str]:
    return str(obj["kind"]), str(obj["metadata"]["name"])


def _is_foreign_namespace(there: JSON) -> bool:
    """Return whether the object is a namespace that existed before Serried was installed.

    Such a namespace does not get the installation's label, so that uninstall does not delete it.
    """
    return there.get("kind") == "Namespace" and INSTALLATION not in (there["metadata"].get("labels") or {})


def _without_label(obj: JSON) -> JSON:
    labels = {key: value for key, value in obj["metadata"]["labels"].items() if key != INSTALLATION}
    return obj | {"metadata": obj["metadata"] | {"labels": labels}}


def _read_content(obj: JSON) -> JSON:
    """Return an object without its status and without the metadata that changes with every write.

    Two contents differ only if applying changed the object.
    """
    kept = {name: value for name, value in obj.items() if name != "status"}
    own = {"resourceVersion", "managedFields", "generation"}
    return kept | {"metadata": {name: value for name, value in obj["metadata"].items() if name not in own}}


def _place(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _is_served(definition: JSON) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _is_rolled_out(deployment: JSON) -> bool:
    """Return whether all replicas of a Deployment are updated and ready, as ``kubectl rollout status`` decides it."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    counts = [int(status.get(name) or 0) for name in ("updatedReplicas", "readyReplicas", "replicas")]
    seen = int(status.get("observedGeneration") or 0) >= int(deployment["metadata"]["generation"])
    return seen and counts == [wanted] * 3


def _list_reasons(pod: JSON) -> Iterable[str]:
    for name, waiting in _list_waiting(pod):
        yield _describe_waiting(name, waiting)
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            yield str(each.get("message") or each.get("reason"))


def _list_waiting(pod: JSON) -> Iterable[tuple[str, JSON]]:
    """Yield each container of the pod that waits: its name, and ``state.waiting`` of its status."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if waiting := (each.get("state") or {}).get("waiting"):
            yield each["name"], waiting


def _cannot_be_pulled(waiting: JSON) -> bool:
    """Return whether a container waits for an image that the kubelet will not be able to pull soon.

    ``waiting`` is ``state.waiting`` of the container's status.
    """
    reason, said = waiting.get("reason"), str(waiting.get("message") or "").lower()
    return reason in _FINAL_PULL_REASONS or (
        reason == "ErrImagePull" and any(word in said for word in _FINAL_PULL_MESSAGES)
    )


def _describe_waiting(name: str, waiting: JSON) -> str:
    return f"{name}: {waiting.get('reason')} {waiting.get('message') or ''}".strip()
