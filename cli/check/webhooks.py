"""Admission webhooks of other programs that may stop Serried: while they do not answer, its writes to pods fail."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from cli.check.observed import Interference
from serried.api.names import Raw, read_map, read_objects, read_required, read_text, read_texts
from serried.kube.client import ApiClient
from serried.kube.wire import Resource, Selection

_KINDS = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")

_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

_WRITES: Mapping[tuple[str, str], str] = {
    ("CREATE", "pods/binding"): "Serried binds no member",
    ("UPDATE", "pods/status"): "Serried nominates no member, so kube-scheduler may choose other nodes than planned",
    ("UPDATE", "pods"): "Serried removes no scheduling gates, and kube-scheduler retries waiting members late",
    ("CREATE", "pods/eviction"): "Serried evicts no pod for a gang of higher priority",
    ("DELETE", "pods"): "Serried deletes gangs of disruption mode all only in part",
}
"""Serried's writes to pods, as verb and resource, each with what does not work if it fails. The most harmful first."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """An admission webhook with failurePolicy Fail that the API server calls for a write of Serried to pods."""

    configuration: str
    """The configuration in kubectl's form: validatingwebhookconfiguration/vet."""

    name: str

    writes: tuple[tuple[str, str], ...]
    """The keys of `_WRITES` for which the API server calls the webhook."""

    service: tuple[str, str] | None
    """Namespace and name of the webhook's Service; None if it has a URL instead."""

    @property
    def place(self) -> str:
        """The name of the webhook's configuration, and its own name, for findings."""
        return f"{self.configuration}: {self.name}"

    def describe_risk(self) -> Interference:
        """Return what happens if the webhook, which answers now, stops answering, and how to reduce the risk."""
        when = f"the API server calls it for {self._written} (failurePolicy Fail)"
        what = f"{when}: while it does not answer, {self._result}"
        return Interference(what, "run more than one replica of it, and exclude the pods of gangs by its selectors")

    def describe_outage(self) -> Interference:
        """Return what happens because the webhook's Service has no ready pod now, and how to repair it."""
        there = "/".join(self.service or ())
        what = f"no pod is ready behind its Service {there}, so {self._written} fails (failurePolicy Fail): "
        return Interference(
            what + self._result, f"start the webhook, or remove it: kubectl delete {self.configuration}"
        )

    @property
    def _written(self) -> str:
        return ", ".join(f"{verb} {resource}" for verb, resource in self.writes)

    @property
    def _result(self) -> str:
        return _WRITES[self.writes[0]]


def decode_webhooks(kind: str, configuration: Raw) -> Iterator[Webhook]:
    """Yield the webhooks of a configuration that can make writes of Serried fail. ``kind`` is the kind in lower case.

    A webhook counts even if its selectors or matchConditions exclude some pods: which pods will be members is unknown.
    Raises ValueError for a malformed configuration.
    """
    name = read_required(read_map(configuration, "metadata"), "name")
    for each in read_objects(configuration, "webhooks"):
        rules = read_objects(each, "rules")
        writes = tuple(write for write in _WRITES if any(_matches(rule, *write) for rule in rules))
        if writes and read_text(each, "failurePolicy", "Fail") == "Fail":
            service = read_map(read_map(each, "clientConfig"), "service")
            there = (read_required(service, "namespace"), read_required(service, "name")) if service else None
            yield Webhook(f"{kind}/{name}", read_required(each, "name"), writes, there)


def _matches(rule: Raw, verb: str, resource: str) -> bool:
    """Return whether a webhook's rule matches a write of Serried, as the API server decides it.

    ``verb`` and ``resource`` say which write, for instance CREATE and ``pods/binding``. Upstream's code is in
    plugin/webhook/predicates/rules.
    """
    return (
        not {"*", ""}.isdisjoint(read_texts(rule, "apiGroups"))
        and not {"*", "v1"}.isdisjoint(read_texts(rule, "apiVersions"))
        and not {"*", verb}.isdisjoint(read_texts(rule, "operations"))
        and read_text(rule, "scope", "*") != "Cluster"
        and any(_covers(pattern, resource) for pattern in read_texts(rule, "resources"))
    )


def _covers(pattern: str, resource: str) -> bool:
    """Return whether a rule's resource pattern such as ``*/*``, ``pods/*`` or ``*/status`` matches the resource.

    A pattern without a slash, such as ``*``, matches no subresources.
    """
    (kind, _, part), (wanted, _, subresource) = pattern.partition("/"), resource.partition("/")
    return kind in {"*", wanted} and part in {"*", subresource}


async def collect_webhooks(client: ApiClient) -> list[tuple[str, Interference]]:
    """Return a finding for each webhook in the cluster that may stop Serried, each with the webhook's name.

    Raises ApiError, and ValueError for a malformed configuration.
    """
    return [
        (each.place, each.describe_risk() if await _is_served(client, each) else each.describe_outage())
        async for each in _find_webhooks(client)
    ]


async def _find_webhooks(client: ApiClient) -> AsyncIterator[Webhook]:
    for kind in _KINDS:
        resource = Resource("admissionregistration.k8s.io", "v1", f"{kind}s", namespaced=False)
        for configuration in await client.list_all(resource):
            for webhook in decode_webhooks(kind, configuration):
                yield webhook


async def _is_served(client: ApiClient, webhook: Webhook) -> bool:
    """Return whether the webhook's Service has a ready pod; True for a webhook with a URL, which is not tested."""
    if webhook.service is None:
        return True
    namespace, name = webhook.service
    selection = Selection(namespace=namespace, labels=f"kubernetes.io/service-name={name}")
    found = [
        endpoint async for each in client.items(_SLICES, selection) for endpoint in read_objects(each, "endpoints")
    ]
    return any(read_map(endpoint, "conditions").get("ready") is not False for endpoint in found)
