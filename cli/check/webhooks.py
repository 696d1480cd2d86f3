"""Admission webhooks of others that may stop Serried: what it writes of pods fails where they do not answer."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from cli.check.observed import Neighbour
from serried.api.names import Raw, read_map, read_objects, read_required, read_text, read_texts
from serried.kube.client import ApiClient
from serried.kube.wire import Resource, Selection

_KINDS = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")

_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_WRITES: Mapping[tuple[str, str], str] = {
    ("CREATE", "pods/binding"): "no member is bound",
    ("UPDATE", "pods/status"): "members are not nominated, so the scheduler is not steered",
    ("UPDATE", "pods"): "scheduling gates are not lifted, and members not woken",
    ("CREATE", "pods/eviction"): "nobody is evicted for a gang of higher priority",
    ("DELETE", "pods"): "a gang of disruption mode all goes in part",
}
"""What Serried writes of pods, and what follows where it may not; the worst first."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """An admission webhook without whose answer the API server refuses what Serried writes of pods."""

    configuration: str
    """As kubectl names it: validatingwebhookconfiguration/vet."""

    name: str

    writes: tuple[tuple[str, str], ...]
    """Those of `_WRITES` that it is asked about."""

    service: tuple[str, str] | None
    """Namespace and name; None if it has a URL instead."""

    @property
    def place(self) -> str:
        """The configuration and the webhook in it."""
        return f"{self.configuration}: {self.name}"

    def tell(self) -> Neighbour:
        """What may happen."""
        what = f"it is asked about {self._written} first (failurePolicy Fail): while it does not answer, {self._result}"
        return Neighbour(what, "run more than one replica of it, and let its selectors leave out the pods of gangs")

    def tell_silent(self) -> Neighbour:
        """What happens where no pod of its Service is ready."""
        there = "/".join(self.service or ())
        what = f"no pod is ready behind its Service {there}, so {self._written} fails (failurePolicy Fail): "
        return Neighbour(what + self._result, f"start it, or remove it: kubectl delete {self.configuration}")

    @property
    def _written(self) -> str:
        return ", ".join(f"{verb} {resource}" for verb, resource in self.writes)

    @property
    def _result(self) -> str:
        return _WRITES[self.writes[0]]


def decode_webhooks(kind: str, configuration: Raw) -> Iterator[Webhook]:
    """The webhooks of a configuration that may stop Serried. Raises ValueError for what is malformed.

    Selectors and conditions do not count: which pods will be members is not known.
    """
    name = read_required(read_map(configuration, "metadata"), "name")
    for each in read_objects(configuration, "webhooks"):
        rules = read_objects(each, "rules")
        writes = tuple(write for write in _WRITES if any(_concerns(rule, *write) for rule in rules))
        if writes and read_text(each, "failurePolicy", "Fail") == "Fail":
            service = read_map(read_map(each, "clientConfig"), "service")
            there = (read_required(service, "namespace"), read_required(service, "name")) if service else None
            yield Webhook(f"{kind}/{name}", read_required(each, "name"), writes, there)


def _concerns(rule: Raw, verb: str, resource: str) -> bool:
    """As the API server matches them (apiserver/pkg/admission/plugin/webhook/predicates/rules)."""
    return (
        not {"*", ""}.isdisjoint(read_texts(rule, "apiGroups"))
        and not {"*", "v1"}.isdisjoint(read_texts(rule, "apiVersions"))
        and not {"*", verb}.isdisjoint(read_texts(rule, "operations"))
        and read_text(rule, "scope", "*") != "Cluster"
        and any(_covers(pattern, resource) for pattern in read_texts(rule, "resources"))
    )


def _covers(pattern: str, resource: str) -> bool:
    """Whether ``*/*``, ``pods/*`` or ``*/status`` means it, too; ``*`` alone means no subresource."""
    (kind, _, part), (wanted, _, subresource) = pattern.partition("/"), resource.partition("/")
    return kind in {"*", wanted} and part in {"*", subresource}


async def collect_webhooks(client: ApiClient) -> list[tuple[str, Neighbour]]:
    """Those of the cluster. Raises ApiError, and ValueError for what is malformed."""
    return [
        (each.place, each.tell() if await _is_served(client, each) else each.tell_silent())
        async for each in _find_webhooks(client)
    ]


async def _find_webhooks(client: ApiClient) -> AsyncIterator[Webhook]:
    for kind in _KINDS:
        resource = Resource("admissionregistration.k8s.io", "v1", f"{kind}s", namespaced=False)
        for configuration in await client.list_all(resource):
            for webhook in decode_webhooks(kind, configuration):
                yield webhook


async def _is_served(client: ApiClient, webhook: Webhook) -> bool:
    """Whether a pod behind its Service is ready; what a URL leads to is not known."""
    if webhook.service is None:
        return True
    namespace, name = webhook.service
    selection = Selection(namespace=namespace, labels=f"kubernetes.io/service-name={name}")
    found = [
        endpoint async for each in client.items(_SLICES, selection) for endpoint in read_objects(each, "endpoints")
    ]
    return any(read_map(endpoint, "conditions").get("ready") is not False for endpoint in found)
