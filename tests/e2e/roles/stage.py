"""A stage for stories about single rights: short ones, each of which ends only where the right is granted."""

import json
from typing import Any
from urllib.parse import urlsplit

import httpx

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from bench.cluster.components import Name
from tests.e2e.compatible.stage import API as THEIRS
from tests.e2e.compatible.stage import CRD, LABEL
from tests.e2e.kinds.stage import JOB_SETS, SETS
from tests.e2e.priorities.stage import PriorityStage
from tests.e2e.roles.rights import NAMESPACE
from tests.support import foreign_autoscalers
from tests.support.addresses import find_address
from tests.support.cluster_stage import RACK, Raw, eventually, names, pod_spec
from tests.support.foreign_levels import FOLLOWED

WHOLE_NODE = "30"
HIGH = "roles-high"
START_SECONDS = 120.0
"""The time that a process may take to start: a machine with other work needs half a minute for the imports alone."""

_PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
_VOLUMES = "/api/v1/persistentvolumes"
_STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
_CSI_DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
_DEVICE_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/serried-verbs"
_SIZE = {"storage": "1Gi"}
_LEVELS = "/apis/scheduling.serried.dev/v1beta1/topologylevels"


class RoleStage(PriorityStage):
    """A namespace of one such story."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self._parents: set[str] = set()
        """The kinds of which there are some here that make Jobs or pods."""
        self._everybodys: list[str] = []
        """The objects of the story that are in no namespace."""

    def await_ready(self) -> None:
        """The extender leads, follows all kinds that there are, and holds as the cluster does."""
        eventually("the extender at work", self._is_at_work, START_SECONDS)

    def _is_at_work(self) -> bool:
        try:
            found = self.selfcheck()
        except httpx.TransportError:
            return False
        watches = found.get("watches", {})
        kinds = (JOB_SETS, SETS) if self.native else (CRD, *FOLLOWED)
        followed = all(watches.get(kind, {}).get("listed") for kind in kinds)
        return bool(followed and found["planning"] and found["hold"]["way"] == self.cluster.spec.hold)

    def clear(self) -> None:
        """All pods go, after what makes them."""
        for kind in self._parents:
            self.cluster.kubectl("delete", kind, "--all", "-n", self.namespace, "--cascade=foreground")
        self.delete_all(self._jobs())
        self.delete_all_pods()

    def close(self) -> None:
        """Clear the stage, of what makes pods first."""
        self.clear()
        super().close()
        if self._everybodys:
            self.delete_all(self._claims())
        for path in self._everybodys:
            self._delete(path)

    def _post_for_all(self, path: str, name: str, body: Raw) -> None:
        """An object in no namespace, which goes with the stage."""
        self._post(path, {"metadata": {"name": name}, **body})
        self._everybodys.append(f"{path}/{name}")

    def create_karpenter_objects(self) -> None:
        """Karpenter's API is served, with one NodePool, as long as the story lasts."""
        self._everybodys += foreign_autoscalers.create_karpenter_objects(self.cluster)

    def create_cluster_autoscaler_objects(self) -> None:
        """Cluster Autoscaler tells of itself, and serves ProvisioningRequests, as long as the story lasts."""
        self._everybodys += foreign_autoscalers.create_cluster_autoscaler_objects(self.cluster)

    def provisioning_requests(self) -> list[Raw]:
        """The ProvisioningRequests of the namespace."""
        found: list[Raw] = self.cluster.api.get(self._provisioning_requests())["items"]
        return found

    def refuse_provisioning(self, message: str) -> None:
        """Cluster Autoscaler refuses every ProvisioningRequest."""
        condition = {"type": "Failed", "status": "True", "reason": "CapacityIsNotFound", "message": message}
        for each in self.provisioning_requests():
            path = f"{self._provisioning_requests()}/{each['metadata']['name']}"
            self.cluster.api.patch(path, {"status": {"conditions": [condition]}})

    def _provisioning_requests(self) -> str:
        return f"/apis/autoscaling.x-k8s.io/v1/namespaces/{self.namespace}/provisioningrequests"

    def say_of_pod(self, name: str, component: str, message: str) -> None:
        """Another component says something of a pod."""
        pod = self.cluster.api.get(f"{self._pods()}/{name}")["metadata"]
        event = {
            "metadata": {"name": f"{name}.said"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace}
            | {"name": name, "uid": pod["uid"]},
            "source": {"component": component},
            "type": "Warning",
            "reason": "FailedScheduling",
            "message": message,
            "lastTimestamp": pod["creationTimestamp"],
        }
        self._post(f"/api/v1/namespaces/{self.namespace}/events", event)

    # --- priorities and preemption -----------------------------------------------------------------------------

    def create_high_class(self) -> None:
        """A PriorityClass above all others, made where it does not exist."""
        if all(item["metadata"]["name"] != HIGH for item in self.cluster.api.get(_PRIORITY_CLASSES)["items"]):
            self._post(_PRIORITY_CLASSES, {"metadata": {"name": HIGH}, "value": 1000})
        eventually("the API server's own look at the class", lambda: self._admits(HIGH))

    def run_low(self, end_after: str = "0s") -> None:
        """Plain pods of priority 0, one on each node, that take this long to end."""
        for name in names("low", self.cluster.spec.nodes):
            annotations = {"bench.serried.dev/end-after": end_after}
            metadata = {"name": name, "annotations": annotations, "labels": {"low": "yes"}}
            spec = pod_spec(WHOLE_NODE) | {"terminationGracePeriodSeconds": 60}
            self._post(self._pods(), {"metadata": metadata, "spec": spec})
        self.await_bound("low", self.cluster.spec.nodes, 60)

    def keep_low(self) -> None:
        """A PodDisruptionBudget lets none of them go, and its controller has seen it."""
        budgets = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"low": "yes"}}}
        self._post(budgets, {"metadata": {"name": "low"}, "spec": spec})
        path = f"{budgets}/low"
        eventually("the budget", lambda: self.cluster.api.get(path).get("status", {}).get("observedGeneration"))

    def submit_high(self, name: str, size: int) -> None:
        """A gang of the highest priority, each member on a node of its own."""
        self.create_gang(name, size, priorityClassName=HIGH)
        self.create_pods(names(name, size), name, cpu=WHOLE_NODE, priorityClassName=HIGH)

    def preempted(self) -> list[str]:
        """The low pods that say that they are preempted; the API server says of evicted ones that they are evicted."""
        said = {pod["metadata"]["name"]: pod["status"].get("conditions", []) for pod in self.pods("low")}
        return [name for name, each in said.items() if any(c.get("reason") == "PreemptionByScheduler" for c in each)]

    # --- volumes and devices -----------------------------------------------------------------------------------

    def create_volume(self, name: str, nodes: list[str]) -> None:
        """A volume that these nodes reach, and a claim of this name that is bound to it."""
        full = f"{self.namespace}-{name}"
        binding = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
        self._post_for_all(_STORAGE_CLASSES, full, binding)
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
        reach = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
        common: Raw = {"accessModes": ["ReadWriteMany"], "storageClassName": full}
        local = {"capacity": _SIZE, "nodeAffinity": reach, "local": {"path": "/mnt/data"}}
        self._post_for_all(_VOLUMES, full, {"spec": common | local})
        claim = common | {"volumeName": full, "resources": {"requests": _SIZE}}
        self._post(self._claims(), {"metadata": {"name": name}, "spec": claim})
        path = f"{self._claims()}/{name}"
        eventually("a bound claim", lambda: self.cluster.api.get(path).get("status", {}).get("phase") == "Bound")

    def create_claim_without_storage(self, name: str) -> None:
        """A claim of a class whose driver tells that it has nothing left anywhere."""
        driver = f"{self.namespace}.example.com"
        self._post_for_all(_CSI_DRIVERS, driver, {"spec": {"storageCapacity": True}})
        binding = {"provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer"}
        self._post_for_all(_STORAGE_CLASSES, f"{self.namespace}-{name}", binding)
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": f"{self.namespace}-{name}"}
        self._post(self._claims(), {"metadata": {"name": name}, "spec": spec | {"resources": {"requests": _SIZE}}})

    def create_claims_that_no_node_takes(self, *claims: str) -> None:
        """Claims of a class of whose driver no node takes a volume."""
        driver = f"{self.namespace}.example.com"
        binding = {"provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer"}
        self._post_for_all(_STORAGE_CLASSES, f"{self.namespace}-none", binding)
        limited = {each["metadata"]["name"] for each in self.cluster.api.get(_CSI_NODES)["items"]}
        for node in self.cluster.api.get("/api/v1/nodes")["items"]:
            host = node["metadata"]["name"]
            limit = {"name": driver, "nodeID": host, "topologyKeys": None, "allocatable": {"count": 0}}
            drivers = {"spec": {"drivers": [limit]}}
            if host in limited:  # by a stage that is still there
                self.cluster.api.patch(f"{_CSI_NODES}/{host}", drivers)
            else:
                self._post_for_all(_CSI_NODES, host, drivers)
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": f"{self.namespace}-none"}
        for name in claims:
            self._post(self._claims(), {"metadata": {"name": name}, "spec": spec | {"resources": {"requests": _SIZE}}})

    def _claims(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"

    @property
    def device_resource(self) -> str:
        """The resource of this story's DeviceClass."""
        return f"{self.namespace}.example.com/gpu"

    def create_device_class(self) -> None:
        """A DeviceClass that provides a resource, of which no node has any."""
        selector = {"cel": {"expression": f"device.driver == '{self.namespace}.example.com'"}}
        spec = {"selectors": [selector], "extendedResourceName": self.device_resource}
        self._post_for_all(_DEVICE_CLASSES, f"gpu-{self.namespace}", {"spec": spec})

    def nodes_of_a_rack(self) -> list[str]:
        """The names of the nodes of one rack."""
        nodes: list[dict[str, Any]] = self.cluster.api.get("/api/v1/nodes")["items"]
        rack = min(node["metadata"]["labels"][RACK] for node in nodes)
        return sorted(node["metadata"]["name"] for node in nodes if node["metadata"]["labels"][RACK] == rack)

    # --- Jobs and other owners ---------------------------------------------------------------------------------

    def create_job_set(self, name: str) -> None:
        """A JobSet of two Jobs of one pod each, which is one gang."""
        template = {"spec": pod_spec("1") | {"restartPolicy": "Never"}}
        spec = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "template": template}
        jobs = [{"name": "workers", "replicas": 2, "template": {"spec": spec}}]
        self._create_parent("jobset.x-k8s.io/v1alpha2", "JobSet", name, "JobSetAsGang", {"replicatedJobs": jobs})

    def create_set(self, name: str) -> None:
        """A LeaderWorkerSet of one replica of two pods, which is a gang."""
        template = {"size": 2, "workerTemplate": {"spec": pod_spec("1")}}
        spec = {"replicas": 1, "leaderWorkerTemplate": template}
        self._create_parent("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, "ReplicaAsGang", spec)

    def _create_parent(self, api: str, kind: str, name: str, policy: str, spec: Raw) -> None:
        plural = f"{kind.lower()}s"
        self._parents.add(plural)
        annotations = {"scheduling.serried.dev/gang-policy": policy}
        body = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "annotations": annotations}, "spec": spec}
        self._post(f"/apis/{api}/namespaces/{self.namespace}/{plural}", body)

    def resize_job(self, name: str, size: int) -> None:
        """An Indexed Job is elastic if both change together."""
        self.change_job(name, parallelism=size, completions=size)

    def group_of(self, owner: str) -> str:
        """The name of the PodGroup that an owner controls; "" while there is none."""
        return next((str(group["metadata"]["name"]) for group in self.groups_of(owner)), "")

    def counts(self, job: str) -> list[int]:
        """minCount of a Job's Workload and PodGroup."""
        parts = [item["spec"] for item in self.groups_of(job)]
        parts += [part for item in self.workloads_of(job) for part in item["spec"]["podGroupTemplates"]]
        return [part["schedulingPolicy"]["gang"]["minCount"] for part in parts]

    def count_workloads(self) -> int:
        """Count the Workloads that the extender knows; 0 before it has found an API."""
        return int(str(self.checked("objects", "workloads") or 0))

    # --- PodGroups of scheduler-plugins ------------------------------------------------------------------------

    def create_their_group(self, name: str, members: int) -> None:
        """A PodGroup of scheduler-plugins."""
        body = {"apiVersion": THEIRS, "kind": "PodGroup", "metadata": {"name": name}, "spec": {"minMember": members}}
        self._post(f"/apis/{THEIRS}/namespaces/{self.namespace}/podgroups", body)

    def create_their_pod(self, name: str, group: str) -> None:
        """A member of it."""
        self._post(self._pods(), {"metadata": {"name": name, "labels": {LABEL: group}}, "spec": pod_spec("1")})

    # --- levels of the topology --------------------------------------------------------------------------------

    @property
    def level_label(self) -> str:
        """A label of this story's own."""
        return f"example.com/{self.namespace}"

    def name_level(self, level: str) -> None:
        """An administrator gives a level the label of this story."""
        entry = {"name": level, "labels": [self.level_label]}
        self.cluster.api.patch(f"{_LEVELS}/default", {"spec": {"levels": [entry]}})

    def remove_levels(self) -> None:
        """An administrator deletes the table."""
        self._delete(f"{_LEVELS}/default")

    def name_level_elsewhere(self, path: str, kind: str, level: Raw) -> None:
        """Another project's object says something of a level."""
        api = path.removeprefix("/apis/").rpartition("/")[0]
        self._post_for_all(path, self.namespace, {"apiVersion": api, "kind": kind, "spec": {"levels": [level]}})

    def labels_for(self, level: str) -> list[str]:
        """The labels that may stand for a level, as the extender has written them."""
        found = self.cluster.api.get(_LEVELS)["items"]
        said = [entry for each in found for entry in each.get("status", {}).get("levels", ())]
        return [label for entry in said if entry["name"] == level for label in entry["labels"]]

    # --- records -----------------------------------------------------------------------------------------------

    def refuse_records(self) -> None:
        """The API server takes no new Reservations in this namespace."""
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        kinds = (("scheduling.serried.dev", "reservations"), ("", "configmaps"))
        rules = [
            {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [plural]}
            for group, plural in kinds
        ]
        matched = {"namespaceSelector": here, "resourceRules": rules}
        spec = {"matchConstraints": matched, "validations": [{"expression": "false", "message": "not now"}]}
        self._post_for_all(_POLICIES, self.namespace, {"spec": spec})
        binding = {"policyName": self.namespace, "validationActions": ["Deny"]}
        self._post_for_all(_POLICY_BINDINGS, self.namespace, {"spec": binding})
        eventually("the refusal", lambda: not self._takes_config_maps())

    def allow_records(self) -> None:
        """Allow the API server to store new Reservations again."""
        for path in (_POLICY_BINDINGS, _POLICIES):
            self._delete(f"{path}/{self.namespace}")
        eventually("the end of the refusal", self._takes_config_maps)

    def _takes_config_maps(self) -> bool:
        """Return whether new ConfigMaps are allowed: the refusal of Reservations holds for them, too."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps?dryRun=All"
        try:
            self._post(path, {"metadata": {"name": "probe"}})
        except ApiError as error:
            if "not now" not in str(error):
                raise
            return False
        return True

    # --- what people see ---------------------------------------------------------------------------------------

    def message(self, group: str) -> str:
        """Return the message about a group on ``/debug``."""
        return str(self.debug_page(group).get("message", ""))

    def hurdles(self, group: str) -> set[str]:
        """The kinds of what keeps the members of a group off nodes; none if it does not wait for room."""
        found = self.debug_page(group).get("diagnosis") or {}
        return {str(hurdle["kind"]) for hurdle in found.get("hurdles", ())}

    def lacks(self, group: str, what: str) -> bool:
        """Return whether nodes have too little of a resource with this prefix."""
        found = self.debug_page(group).get("diagnosis") or {}
        return any(str(hurdle["name"]).startswith(what) for hurdle in found.get("hurdles", ()))

    def count_event(self, about: str, reason: str) -> int:
        """Return the largest count of the events with this reason about an object; 0 if there is none."""
        items = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        found = [e for e in items if (e["involvedObject"]["name"], e["reason"]) == (about, reason)]
        return max((int(e.get("count") or 0) for e in found), default=0)

    def checked(self, part: str, field: str) -> object:
        """A field of a part of what the extender says of itself; None before it has found an API."""
        return self.selfcheck().get(part, {}).get(field)

    def bind_nobody(self) -> str:
        """Return the extender's answer to a Binding of a pod that does not exist."""
        request = {"PodName": "nobody", "PodNamespace": self.namespace, "PodUID": "u", "Node": "node-00000"}
        answer = httpx.post(f"{self.cluster.bind_url}/bind", content=json.dumps(request).encode(), timeout=20.0)
        return str(answer.json()["Error"])

    # --- Serried's own -----------------------------------------------------------------------------------------

    def end(self, process: Name, *paths: str) -> None:
        """A process is gone at once, and after it these objects of its election."""
        self.cluster.kill(process)
        for path in paths:
            self._delete(path)

    @staticmethod
    def lease(name: str) -> str:
        """The path of a Lease of Serried."""
        return f"{_LEASES}/{name}"

    @staticmethod
    def endpoint_slice() -> str:
        """The path of the EndpointSlice that names the extender that leads."""
        return _SLICE

    def endpoints(self) -> list[str]:
        """The addresses in it; none where it does not exist."""
        try:
            found = self.cluster.api.get(_SLICE)
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        return [address for each in found.get("endpoints") or () for address in each["addresses"]]

    def open_up(self, process: Name) -> None:
        """A process listens on every address, where who comes has to show a token."""
        self.cluster.restart(process, f"--ops-listen=:{self._port(process)}", "--ops-auth-cache=1")

    def make_reader_token(self) -> str:
        """Return the token of the account that is shipped for readers of the debug pages."""
        return self.cluster.kubectl("create", "token", "serried-debug-reader", "-n", NAMESPACE).strip()

    def metrics_status(self, process: Name, token: str) -> int:
        """The status of the answer to one who comes over the network with a token."""
        url = f"https://{find_address()}:{self._port(process)}/metrics"
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(verify=False, timeout=20, trust_env=False) as http:  # noqa: S501 - it is signed by itself
            return http.get(url, headers=headers).status_code

    def _port(self, process: Name) -> int:
        url = self.cluster.ops_url if process == "extender" else self.cluster.controller_url
        return int(urlsplit(url).port or 0)
