"""Admission of the pods in manifests: a dry run asks the API server whether it accepts them, and how it changes them.

`admit` is called by ``serried whatif`` before it asks the extender. The API server applies LimitRanges, overhead of
RuntimeClasses, quotas and all webhooks. The requests use the user's own credentials, because the extender may not
create pods.

A dry run checks one pod. Whether the quotas have room for all pods of a manifest together is computed here. Usage and
scopes follow kube-apiserver 1.37 (pkg/quota/v1/evaluator/core/pods.go). For the scope CrossNamespacePodAffinity, only
the dry run counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cli.output import CommandError
from cli.rights import Right, has_right
from cli.target import Target, find_credentials
from cli.transport import open_client
from serried.api.job import decode_job
from serried.api.kinds import PARENTS
from serried.api.layouts import LAYOUTS
from serried.api.names import (
    Malformed,
    Raw,
    read_map,
    read_objects,
    read_text,
    read_texts,
)
from serried.api.parent import decode_parent
from serried.api.resources import PODS as COUNTED_PODS
from serried.api.resources import is_extended, parse_cpu, parse_quantity, pod_requests
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, Invalid, NotFound
from serried.kube.wire import EVERYTHING, PODS, Resource, write_json

Decoded = TypeVar("Decoded")

_QUOTAS = Resource("", "v1", "resourcequotas")
_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")

_DEPENDENCY_KINDS = frozenset({"Namespace", "ServiceAccount", "RuntimeClass", "PriorityClass", "LimitRange"})
"""Kinds in a manifest that pods may depend on: a dry run does not find objects that do not exist yet."""

_ALL_REST = "defaults, LimitRanges, RuntimeClasses, quotas and admission"


_QUOTA_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class PodCount:
    """A pod, and how many equal ones the manifest creates."""

    pod: Raw
    """One of the pods, as admission returned it."""

    count: int


class Quotas:
    """The quotas of one namespace, and what the pods charged so far leave of them. Lives for one dry run."""

    def __init__(self, quotas: Iterable[Raw]) -> None:
        self._quotas = list(quotas)
        self._left = [_list_left(each) for each in self._quotas]

    def charge(self, wanted: Iterable[PodCount]) -> str:
        """Charge pods to all quotas.

        If one has no room, charge nothing and return a sentence about it; else return "".
        """
        asked = list(wanted)
        needs = [_sum_usage(quota, asked) for quota in self._quotas]
        for quota, left, need in zip(self._quotas, self._left, needs, strict=True):
            for name, amount in need.items():
                if name in left and amount > left[name]:
                    return _describe(quota, name, amount, left[name], sum(each.count for each in asked))
        for left, need in zip(self._left, needs, strict=True):
            for name in left.keys() & need.keys():
                left[name] -= need[name]
        return ""


def _list_left(quota: Raw) -> dict[str, int]:
    status = read_map(quota, "status")
    used = read_map(status, "used")
    return {name: _parse(name, hard) - _parse(name, used.get(name, "0")) for name, hard in _list_hard(quota)}


def _list_hard(quota: Raw) -> Iterable[tuple[str, Any]]:
    return (read_map(read_map(quota, "status"), "hard") or read_map(read_map(quota, "spec"), "hard")).items()


def _parse(name: str, quantity: object) -> int:
    return parse_cpu(str(quantity)) if _is_cpu(name) else parse_quantity(str(quantity))


def _is_cpu(name: str) -> bool:
    return name in {"cpu", "requests.cpu", "limits.cpu"}


def _sum_usage(quota: Raw, wanted: Iterable[PodCount]) -> dict[str, int]:
    """Return what the pods use of a quota, by resource. Pods outside the quota's scopes use nothing."""
    total: dict[str, int] = {}
    for each in wanted:
        if _applies(quota, each.pod):
            for name, amount in _list_usage(each.pod):
                total[name] = total.get(name, 0) + amount * each.count
    return total


def _list_usage(pod: Raw) -> Iterator[tuple[str, int]]:
    """Yield what one pod uses, by the resource names of quotas."""
    yield "count/pods", 1
    for name, amount in pod_requests(pod):
        if name in _QUOTA_RESOURCES or name.startswith("hugepages-") or name == COUNTED_PODS:
            yield name, amount
        if name in _QUOTA_RESOURCES or name.startswith("hugepages-") or is_extended(name):
            yield f"requests.{name}", amount
    overhead = dict(pod_requests({"spec": {"overhead": read_map(read_map(pod, "spec"), "overhead")}}))
    for name, amount in pod_requests(_copy_limits_to_requests(pod)):
        if name in _QUOTA_RESOURCES:
            yield f"limits.{name}", amount + overhead.get(name, 0)


def _copy_limits_to_requests(pod: Raw) -> dict[str, Any]:
    """Return a pod whose requests are the limits of this one, so that the code for requests can add up limits."""
    spec = read_map(pod, "spec")
    turned: dict[str, Any] = {"resources": {"requests": read_map(read_map(spec, "resources"), "limits")}}
    for name in ("containers", "initContainers"):
        turned[name] = [
            {**each, "resources": {"requests": read_map(read_map(each, "resources"), "limits")}}
            for each in read_objects(spec, name)
        ]
    return {"spec": turned}


def _applies(quota: Raw, pod: Raw) -> bool:
    spec = read_map(quota, "spec")
    selectors = [{"scopeName": name, "operator": "Exists"} for name in read_texts(spec, "scopes")]
    selectors += [dict(each) for each in read_objects(read_map(spec, "scopeSelector"), "matchExpressions")]
    return all(_matches(each, pod) for each in selectors)


def _matches(selector: Raw, pod: Raw) -> bool:
    spec = read_map(pod, "spec")
    best_effort = read_text(read_map(pod, "status"), "qosClass") == "BestEffort"
    terminating = spec.get("activeDeadlineSeconds") is not None
    match read_text(selector, "scopeName"):
        case "Terminating":
            return terminating
        case "NotTerminating":
            return not terminating
        case "BestEffort":
            return best_effort
        case "NotBestEffort":
            return not best_effort
        case "PriorityClass":
            return _matches_class(selector, read_text(spec, "priorityClassName"))
    return False


def _matches_class(selector: Raw, name: str) -> bool:
    values = read_texts(selector, "values")
    matches: Mapping[str, bool] = {
        "Exists": bool(name),
        "DoesNotExist": not name,
        "In": name in values,
        "NotIn": name not in values,
    }
    return matches.get(read_text(selector, "operator"), False)


def _describe(quota: Raw, name: str, amount: int, left: int, pods: int) -> str:
    where = read_text(read_map(quota, "metadata"), "name")
    whole = dict(_list_hard(quota)).get(name)
    return (
        f"quota {where} has {_show(name, left)} of {whole} {name} left, and its {pods} pods need {_show(name, amount)}"
    )


def _show(name: str, amount: int) -> str:
    return f"{amount / 1000:g}" if _is_cpu(name) else str(amount)


@dataclass(slots=True)
class Admitted:
    """The objects of the manifests after the dry run: changed by admission, rejected, or not checked."""

    objects: list[Any] = field(default_factory=list)
    """The objects in their order, with the pod specs that admission returned; None where the pods are rejected.

    After them come the existing ResourceClaimTemplates that the pods name, which the extender does not watch.
    """

    refused: list[str] = field(default_factory=list)
    """A sentence for each object whose pods are rejected: the object and the reason."""

    unchecked: list[str] = field(default_factory=list)
    """A sentence for each thing that could not be checked, with the reason."""


async def admit(target: Target, objects: Sequence[Any], namespace: str) -> Admitted:
    """Send all pods of these objects to the API server as a dry run. ``namespace`` is for objects that name none."""
    try:
        credentials = find_credentials(replace(target, server=""))
    except CommandError as error:
        return Admitted(list(objects), unchecked=[f"{_ALL_REST}: {error}"])
    async with open_client(credentials) as client:
        dry_run = _AdmissionDryRun(client, namespace, objects)
        for each in objects:
            await dry_run.admit_object(each)
    dry_run.admitted.objects += dry_run.claim_templates
    return dry_run.admitted


class _RejectedError(Exception):
    """The API server would reject the pods of an object."""


class _UncheckedError(Exception):
    """The check of an object's pods is not possible."""


class _Template(NamedTuple):
    """A pod template in an object, with the number of its pods."""

    path: tuple[str | int, ...]
    pods: int

    quorum: int
    """Number of pods that the gang needs to start."""


class _NamespaceState(NamedTuple):
    """The state of a namespace, read once."""

    obstacle: str
    """The reason why no dry run is possible, "" for none."""

    quotas: Quotas


class _AdmissionDryRun:
    """Admits one object after the other, and collects the result. Lives for one call of `admit`."""

    def __init__(self, client: ApiClient, namespace: str, objects: Sequence[Any]) -> None:
        self.admitted = Admitted()
        self.claim_templates: list[Any] = []
        self._known_templates = {_identify_claim_template(each, namespace) for each in objects}
        self._client = client
        self._namespace = namespace
        self._namespaces: dict[str, _NamespaceState] = {}
        self._dependencies = [name for name in map(_find_dependency, objects) if name]
        """The names of the objects in the manifests that pods may depend on."""

    async def admit_object(self, obj: Any) -> None:
        templates = list(_list_templates(obj)) if isinstance(obj, dict) else []
        if not templates:
            self.admitted.objects.append(obj)
            return
        metadata = read_map(obj, "metadata")
        home = read_text(metadata, "namespace") or self._namespace
        source = f"{obj['kind']} {home}/{metadata.get('name') or metadata.get('generateName')}"
        try:
            obj = await self._admit_pods(obj, home, templates)
        except _RejectedError as problem:
            self.admitted.refused.append(f"{source}: {problem}")
            obj = None
        except _UncheckedError as problem:
            self._add_unchecked(str(problem))
        self.admitted.objects.append(obj)

    def _add_unchecked(self, sentence: str) -> None:
        if sentence not in self.admitted.unchecked:
            self.admitted.unchecked.append(sentence)

    async def _admit_pods(self, obj: Any, namespace: str, templates: Sequence[_Template]) -> Any:
        home = await self._read_namespace(namespace)
        if home.obstacle:
            raise _UncheckedError(home.obstacle)
        pods = []
        for template in templates:
            pod = await self._dry_run_pod(namespace, _value_at(obj, template.path))
            obj = _replace_at(obj, template.path, _merge_admitted(_value_at(obj, template.path), pod))
            pods.append(pod)
            await self._read_claim_templates(namespace, pod)
        self._charge_quotas(home.quotas, templates, pods)
        return obj

    async def _read_claim_templates(self, namespace: str, pod: Mapping[str, Any]) -> None:
        """Read the ResourceClaimTemplates that a pod names. A missing one is left to the extender to report."""
        for claim in read_objects(read_map(pod, "spec"), "resourceClaims"):
            name = read_text(claim, "resourceClaimTemplateName")
            if not name or (namespace, name) in self._known_templates:
                continue
            self._known_templates.add((namespace, name))
            try:
                found = await self._client.get(_CLAIM_TEMPLATES, namespace, name)
            except NotFound:
                continue
            except ApiError as error:
                said = f"devices of ResourceClaimTemplate {name} in namespace {namespace}"
                self._add_unchecked(f"{said}: {error.message or error}")
                continue
            about = {"apiVersion": _CLAIM_TEMPLATES.api_version, "kind": "ResourceClaimTemplate"}
            metadata = {"name": name, "namespace": namespace}
            self.claim_templates.append({**about, "metadata": metadata, "spec": found.get("spec")})

    def _charge_quotas(self, quotas: Quotas, templates: Sequence[_Template], pods: Sequence[Mapping[str, Any]]) -> None:
        """Charge all pods to the quotas, or at least the pods that the gang needs."""
        pairs = list(zip(pods, templates, strict=True))
        problem = quotas.charge(PodCount(pod, template.pods) for pod, template in pairs)
        if problem and quotas.charge(PodCount(pod, template.quorum) for pod, template in pairs):
            raise _RejectedError(problem)
        if problem:
            self._add_unchecked(f"whether all pods are made: {problem}; it has room for those that the gang needs")

    async def _dry_run_pod(self, namespace: str, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pod that the API server would create."""
        metadata = {key: value for key, value in read_map(template, "metadata").items() if key in _KEPT}
        spec = {key: value for key, value in read_map(template, "spec").items() if key != "nodeName"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "generateName": "whatif-"}, "spec": spec}
        try:
            how = {"params": {"dryRun": "All"}, "body": write_json(pod)}
            return await self._client.ask_object("POST", PODS.path(namespace), **how)
        except (Forbidden, Invalid) as error:
            brought = next((name for name in self._dependencies if f'"{name}"' in error.message), "")
            if "dry run" in error.message:
                raise _UncheckedError(f"{_ALL_REST} in namespace {namespace}: {error.message}") from error
            if brought:
                said = f"{error.message}; {brought} comes with these manifests"
                raise _UncheckedError(f"{_ALL_REST} in namespace {namespace}: {said}") from error
            raise _RejectedError(f"the API server would refuse its pods: {error.message}") from error
        except ApiError as error:
            raise _UncheckedError(f"{_ALL_REST} in namespace {namespace}: {error}") from error

    async def _read_namespace(self, namespace: str) -> _NamespaceState:
        if namespace not in self._namespaces:
            obstacle = await self._find_obstacle(namespace)
            self._namespaces[namespace] = _NamespaceState(
                obstacle, Quotas([] if obstacle else await self._list_quotas(namespace))
            )
        return self._namespaces[namespace]

    async def _find_obstacle(self, namespace: str) -> str:
        try:
            allowed = await has_right(self._client, Right("create", PODS, namespace=namespace))
        except ApiError as error:
            return f"{_ALL_REST} in namespace {namespace}: {error}"
        return "" if allowed else f"{_ALL_REST} in namespace {namespace}: that takes the right to create pods there"

    async def _list_quotas(self, namespace: str) -> list[Any]:
        try:
            return [each async for each in self._client.items(_QUOTAS, replace(EVERYTHING, namespace=namespace))]
        except ApiError as error:
            self._add_unchecked(f"quotas in namespace {namespace} for more than one pod: {error.message or error}")
            return []


_KEPT = ("labels", "annotations")


def _identify_claim_template(obj: Any, namespace: str) -> tuple[str, str]:
    """Return namespace and name of a ResourceClaimTemplate, ("", "") for other objects."""
    metadata = obj.get("metadata") if isinstance(obj, dict) and obj.get("kind") == "ResourceClaimTemplate" else None
    if not isinstance(metadata, dict):
        return "", ""
    return str(metadata.get("namespace") or namespace), str(metadata.get("name") or "")


def _find_dependency(obj: Any) -> str:
    if not isinstance(obj, dict) or obj.get("kind") not in _DEPENDENCY_KINDS:
        return ""
    metadata = obj.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _value_at(obj: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        obj = obj[step]
    return obj


def _replace_at(obj: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of the object with another value at the path."""
    if not path:
        return value
    first, *rest = path
    copy = list(obj) if isinstance(obj, list) else dict(obj)
    copy[first] = _replace_at(obj[first], rest, value)  # type: ignore[index]
    return copy


def _merge_admitted(template: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod template with the changes that admission made to its pod."""
    admitted = read_map(pod, "metadata")
    metadata = {**read_map(template, "metadata"), **{key: admitted[key] for key in _KEPT if key in admitted}}
    return {**template, "metadata": metadata, "spec": pod.get("spec")}


# --- templates -------------------------------------------------------------------------------------------------------


def _list_templates(obj: Mapping[str, Any]) -> Iterator[_Template]:
    """Yield the pod templates of an object; none if the extender does not read the kind or rejects the object."""
    lister = _LISTERS.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
    if lister is None:
        return
    metadata = obj.get("metadata")
    name = {"name": "whatif", **metadata} if isinstance(metadata, dict) else {}
    try:
        found = list(lister({**obj, "metadata": {**name, "uid": "whatif"}}))
        specs = [read_map(read_map({"": _value_at(obj, each.path)}, ""), "spec") for each in found]
    except (ValueError, LookupError, TypeError):
        return
    if all(specs):
        yield from found


def _list_pod(_: Mapping[str, Any]) -> Iterator[_Template]:
    yield _Template((), 1, 1)


def _list_job(obj: Mapping[str, Any]) -> Iterator[_Template]:
    job = _read(decode_job(obj))
    yield _Template(("spec", "template"), job.at_once, min(job.min_count or job.at_once, job.at_once))


def _list_parent(kind: str, obj: Mapping[str, Any]) -> Iterator[_Template]:
    _read(decode_parent(kind, obj))
    layout = LAYOUTS[kind](obj)
    pods: Counter[tuple[str | int, ...]] = Counter()  # stages may share a template
    for source in layout.sources:
        pods[source.pod_path] += layout.copies * source.stage.size
    for path, count in pods.items():
        yield _Template(path, count, count)


def _read(found: Decoded | Malformed) -> Decoded:
    if isinstance(found, Malformed):
        raise ValueError(found.problem)  # noqa: TRY004 - what people have sent
    return found


_LISTERS: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Iterator[_Template]]] = {
    ("v1", "Pod"): _list_pod,
    ("batch/v1", "Job"): _list_job,
    **{(row.api_version, row.kind): partial(_list_parent, row.kind) for row in PARENTS.values()},
}
