"""Objects of one API group, written straight to the API server: the refusals read here are its own, not kubectl's."""

from typing import Literal

import pytest

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from tests.e2e.manifests.server import GROUP, Json

UPSTREAM = "scheduling.k8s.io"
Rehearsed = Literal["create", "replace"]


class Endpoint:
    """Workloads, PodGroups and CompositePodGroups of one group; each object says its kind only."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._api = cluster.api
        self._group = group

    def rehearse(self, item: Json, verb: Rehearsed = "create") -> Json:
        """Return the object that the API server would store: a dry run, in which an unknown field is an error."""
        path, method = (self._list(item), "POST") if verb == "create" else (self._object(item), "PUT")
        return self._request(method, f"{path}?dryRun=All&fieldValidation=Strict", self._versioned(item))

    def refusal(self, item: Json, verb: Rehearsed = "create") -> str:
        """Return the message with which the object is refused, as invalid, forbidden or not even readable."""
        with pytest.raises(ApiError) as refused:
            self.rehearse(item, verb)
        assert refused.value.status in {400, 403, 422}, refused.value
        return str(refused.value)

    def keep(self, item: Json) -> Json:
        """The object as stored, created if it is not there."""
        try:
            return self._request("POST", self._list(item), self._versioned(item))
        except ApiError as error:
            if error.status != 409:
                raise
        return self._request("GET", self._object(item))

    def write_status(self, stored: Json) -> Json:
        """The object after a write of its status, and of nothing else."""
        return self._request("PUT", f"{self._object(stored)}/status", stored)

    def status_refusal(self, stored: Json) -> str:
        """Return the message with which this status is refused."""
        with pytest.raises(ApiError) as refused:
            self.write_status(stored)
        assert refused.value.status == 422, refused.value
        return str(refused.value)

    def kinds(self) -> list[Json]:
        """Return the API server's description of the kinds of the group."""
        return list(self._request("GET", f"/apis/{self._group}/v1beta1")["resources"])

    def _request(self, method: str, path: str, body: object = None) -> Json:
        return dict(self._api.request(method, path, body))

    def _versioned(self, item: Json) -> Json:
        return {**item, "apiVersion": f"{self._group}/{self._version(item)}"}

    def _version(self, item: Json) -> str:
        """Upstream's composite groups are alpha still."""
        return "v1alpha3" if (self._group, item["kind"]) == (UPSTREAM, "CompositePodGroup") else "v1beta1"

    def _list(self, item: Json) -> str:
        plural = f"{item['kind'].lower()}s"
        return f"/apis/{self._group}/{self._version(item)}/namespaces/default/{plural}"

    def _object(self, item: Json) -> str:
        return f"{self._list(item)}/{item['metadata']['name']}"


def ours(cluster: Cluster) -> Endpoint:
    """The fallback API."""
    return Endpoint(cluster, GROUP)


def upstream(cluster: Cluster) -> Endpoint:
    """The native API."""
    return Endpoint(cluster, UPSTREAM)
