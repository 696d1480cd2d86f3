"""Measure gangs whose members have rules (affinity, spread, volumes, devices): time of the plan, and time until bound.

Plans are made in this process, for 512 members on 5,000 nodes with 20,000 pods: a first plan and later ones. Live gangs
of 8 members run on a real control plane with 1,000 nodes, one gang at a time. Measured are the seconds from the last
create to the last Binding, and how often kube-scheduler rejected the planned node of a member. In cases with devices,
every node has four, of which two are allocated. JSON goes to `bench/results/`, a table to standard output.

    python -m bench.rules                  both
    python -m bench.rules --nodes 100      a smaller cluster for the live gangs
    python -m bench.rules --ranked         only large gangs with ranks that are spread over zones, on a real cluster
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.nodes import RACK, ZONE, node_name
from bench.cluster.progress import stderr_report
from bench.load.objects import NAMESPACE, POD_GROUP_LABEL, POD_GROUPS
from bench.load.run import IN_FLIGHT, open_client, read_domains
from bench.machine import describe_machine, measure_noise
from serried.api.pod import COMPLETION_INDEX
from serried.api.preference import PREFERRED_TOPOLOGY
from serried.cluster.cache import Store
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.wire import (
    DEVICE_CLASSES,
    JSON,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
    VOLUMES,
)
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, node, pod
from tests.support.devices import claim, claiming, device_class, devices, mark_devices_listed
from tests.support.rules import run_deferred_work

RESULTS = Path(__file__).with_name("results")
HOSTNAME = "kubernetes.io/hostname"
OWN = {"app": "member"}
"""The labels of all members."""

CACHE = {"app": "cache"}
"""The labels of the pod that some rules refer to."""

SIZE = 8
"""The number of members of a live gang."""

_MEMBERS, _NODES, _PODS, _NODES_PER_RACK = 512, 5_000, 20_000, 12
_TIMEOUT_SECONDS = 120.0
_RANKED_SIZES = (64, 512)
_STORAGE_CLASS = "bench-rules"
_DRIVER = "bench.serried.dev"
_DEVICES = 4
_TWO_DEVICES = "two devices each, half of all taken"
_ONE_DOMAIN = "two devices each, all with one value of an attribute"
_POD: JSON = {"apiVersion": "v1", "kind": "Pod"}
_CLUSTER = f"bench-rules-{os.getpid()}"


def _term(labels: Mapping[str, str], key: str) -> JSON:
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}}


def _affinity(kind: str, labels: Mapping[str, str], key: str) -> JSON:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [_term(labels, key)]}}}


def _spread(key: str) -> JSON:
    return {"topologySpreadConstraints": [_term(OWN, key) | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}


CASES: Mapping[str, JSON] = {
    "none": {},
    "spread over 3 zones, maxSkew 1": _spread(ZONE),
    "spread over nodes, maxSkew 1": _spread(HOSTNAME),
    "beside a cache in its rack": _affinity("podAffinity", CACHE, RACK),
    "beside each other in a rack": _affinity("podAffinity", OWN, RACK),
    "apart from each other by node": _affinity("podAntiAffinity", OWN, HOSTNAME),
    "apart from a cache by rack": _affinity("podAntiAffinity", CACHE, RACK),
}
"""By name of the rule: the fields that it adds to the spec of each member."""

# --- plans ------------------------------------------------------------------------------------------------------------


def build_store() -> Store:
    """Return a Store with nodes of 32 CPUs in racks and three zones, running pods of 50 apps, and one cache pod."""
    store = Store(["serried"], rules=RULES)
    for index in range(_NODES):
        name, rack = f"node-{index:05d}", index // 50
        made = node(name).cpu(32).label(RACK, f"rack-{rack:03d}").label(ZONE, f"zone-{rack % 3}").label(HOSTNAME, name)
        store.put_node(made.value())
    for index in range(_PODS):
        made_pod = pod(f"p{index}").cpu(1).label("app", f"app-{index % 50}").on(f"node-{index * 7 % _NODES:05d}")
        store.put_pod(made_pod.value())
    store.put_pod(pod("cache").with_field(CACHE, "metadata", "labels").on("node-00000").value())
    return store


def build_store_with_devices() -> Store:
    """Return the same Store with four devices on each node, two of them allocated, and a claim for each member."""
    store = build_store()
    mark_devices_listed(store)
    store.put_object(device_class("gpu").value())
    for name in list(store.nodes):
        store.put_object(devices(name, _DEVICES).value())
        store.put_object(claim(f"taken-{name}", 2).allocated(name, "gpu-0", "gpu-1").value())
    for index in range(_MEMBERS):
        store.put_object(claim(f"m{index}", 2).value())
    return store


def build_members(rules: JSON) -> list[PodBuilder]:
    """Return builders of a gang's members, whose specs have the fields of ``rules``."""
    made = pod("m").in_group("g").cpu("100m").with_field(OWN, "metadata", "labels")
    for name, value in {**rules, "schedulerName": "serried"}.items():
        made = made.with_field(value, "spec", name)
    return [made.uid(f"m{index}") for index in range(_MEMBERS)]


def build_claiming_members() -> list[PodBuilder]:
    """Return builders of a gang's members, each with a ResourceClaim of its own."""
    made = enumerate(build_members({}))
    return [member.with_field(claiming(f"m{index}"), "spec", "resourceClaims") for index, member in made]


def measure_plan(store: Store, builders: Sequence[PodBuilder]) -> dict[str, Any]:
    """Return the milliseconds of a first plan, the median of five later ones, and the number of waves of the plan.

    The members are in the Store only meanwhile. Raise SystemExit if not all of them fit.
    """
    built = [each.value() for each in builders]
    for member in built:
        store.put_pod(member)
    run_deferred_work(store)
    members = [store.pods[member.uid] for member in built]
    request = PlanRequest(members, _MEMBERS)
    times, waves = [], 0
    for _ in range(6):
        begun = time.perf_counter()
        found = plan_gang(store.snapshots.take(0, members), request, store.capacity)
        times.append((time.perf_counter() - begun) * 1000)
        if not isinstance(found, Plan) or len(found.nodes) < _MEMBERS:
            raise SystemExit(f"refused: {found}")
        waves = len(found.waves)
    for member in built:
        store.drop_pod(member.uid)
    return {
        "first_ms": round(times[0], 1),
        "later_ms": round(statistics.median(times[1:]), 1),
        "waves": waves,
    }


def measure_plans() -> dict[str, dict[str, Any]]:
    """Measure the plans for each rule. Return the rows by name of the rule."""
    store = build_store()
    rows = {name: measure_plan(store, build_members(rules)) for name, rules in CASES.items()}
    rows[_TWO_DEVICES] = measure_plan(build_store_with_devices(), build_claiming_members())
    return rows


# --- live gangs -------------------------------------------------------------------------------------------------------


async def measure_gangs(cluster: Cluster, rounds: int) -> dict[str, dict[str, Any]]:
    """Run ``rounds`` gangs for each rule, one after the other. Return the rows by name of the rule."""
    rows: dict[str, dict[str, Any]] = {}
    async with open_client(cluster.kubeconfig) as client:
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        spec = {"schedulerName": "serried", "containers": [container]}
        cache = {**_POD, "metadata": {"name": "cache", "labels": CACHE}, "spec": {**spec, "nodeName": node_name(0)}}
        await client.create(PODS, NAMESPACE, cache)
        for place, (name, rules) in enumerate(CASES.items()):
            gangs = [f"g{place}-{turn}" for turn in range(rounds)]
            taken = [await _measure_gang(client, gang, [spec | rules] * SIZE) for gang in gangs]
            rows[name] = _sum_up(cluster, name, gangs, taken)
        rows |= await _measure_claims(client, cluster, spec, rounds)
        rows |= await _measure_devices(client, cluster, spec, rounds)
    return rows


def _sum_up(cluster: Cluster, rule: str, gangs: Sequence[str], taken: Sequence[float]) -> dict[str, Any]:
    row: dict[str, Any] = {"median_s": round(statistics.median(taken), 2), "longest_s": round(max(taken), 2)}
    row["refused"] = sum(_count_refusals(cluster, gang) for gang in gangs)
    print(f"{rule}: {row}", file=sys.stderr)
    return row


async def _measure_claims(client: ApiClient, cluster: Cluster, spec: JSON, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure gangs whose members mount a claim each, with one disk in each rack, and gangs that share one claim."""
    racks = sorted(set((await read_domains(client, RACK)).values()))[:SIZE]
    about = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": _STORAGE_CLASS}}
    delayed = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, "", about | delayed)
    rows: dict[str, dict[str, Any]] = {}
    for rule, mode, disks in (
        ("a claim each, one disk a rack", "ReadWriteOnce", [[rack] for rack in racks]),
        ("one claim for all, in any of 8 racks", "ReadWriteMany", [racks]),
    ):
        taken = []
        for turn in range(rounds):
            name = f"c{len(rows)}-{turn}"
            for index, reached in enumerate(disks):
                await client.create(VOLUMES, "", _describe_volume(f"{name}-{index}", mode, reached))
                await client.create(VOLUME_CLAIMS, NAMESPACE, _describe_claim(f"{name}-{index}", mode))
            shared = len(disks) == 1
            mounts = [f"{name}-{0 if shared else index}" for index in range(SIZE)]
            taken.append(await _measure_gang(client, name, [spec | _mount(each) for each in mounts]))
        rows[rule] = _sum_up(cluster, rule, [f"c{len(rows)}-{turn}" for turn in range(rounds)], taken)
    return rows


def _mount(name: str) -> JSON:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


def _describe_volume(name: str, mode: str, racks: Sequence[str]) -> JSON:
    reached = {"nodeSelectorTerms": [{"matchExpressions": [{"key": RACK, "operator": "In", "values": list(racks)}]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "storageClassName": _STORAGE_CLASS,
        "nodeAffinity": {"required": reached},
        "csi": {"driver": "bench.serried.dev", "volumeHandle": name},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def _describe_claim(name: str, mode: str) -> JSON:
    wanted = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": [mode], "storageClassName": _STORAGE_CLASS, "resources": wanted}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


async def _measure_devices(client: ApiClient, cluster: Cluster, spec: JSON, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure gangs whose members claim two devices each: on any nodes, and in one domain of a device attribute."""
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": _DRIVER}}
    selector = {"cel": {"expression": f'device.driver == "{_DRIVER}"'}}
    await client.create(DEVICE_CLASSES, "", about | {"spec": {"selectors": [selector]}})
    waiting = list((await read_domains(client, RACK)).items())
    while waiting:
        batch, waiting = waiting[:IN_FLIGHT], waiting[IN_FLIGHT:]
        await asyncio.gather(*(_add_devices(client, spec, name, rack) for name, rack in batch))
    rows: dict[str, dict[str, Any]] = {}
    topology = {"scheduling.serried.dev/required-topology": f"{_DRIVER}/domain"}
    for rule, annotations in ((_TWO_DEVICES, {}), (_ONE_DOMAIN, topology)):
        taken = []
        gangs = [f"d{len(rows)}-{turn}" for turn in range(rounds)]
        for gang in gangs:
            names = [f"{gang}-{index}" for index in range(SIZE)]
            for each in names:
                await client.create(RESOURCE_CLAIMS, NAMESPACE, _describe_device_claim(each))
            taken.append(await _measure_gang(client, gang, [spec | _claim(each, spec) for each in names], annotations))
        rows[rule] = _sum_up(cluster, rule, gangs, taken)
    return rows


async def _add_devices(client: ApiClient, spec: JSON, node: str, domain: str) -> None:
    """Create four devices on a node, and a running pod there to which two of them are allocated."""
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"bench-{node}"}}
    attributes = {"domain": {"string": domain}}
    listed = [{"name": f"gpu-{index}", "attributes": attributes} for index in range(_DEVICES)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": listed}
    await client.create(RESOURCE_SLICES, "", about | {"spec": slice_spec})
    name = f"taken-{node}"
    await client.create(RESOURCE_CLAIMS, NAMESPACE, _describe_device_claim(name))
    running = spec | _claim(name, spec) | {"nodeName": node}
    made = await client.create(PODS, NAMESPACE, {**_POD, "metadata": {"name": name}, "spec": running})
    held = [{"request": "gpu", "driver": _DRIVER, "pool": node, "device": f"gpu-{index}"} for index in range(2)]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": held}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    user = {"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}
    status = {"status": {"allocation": allocation, "reservedFor": [user]}}
    await client.patch_merge(RESOURCE_CLAIMS, NAMESPACE, name, status, "status")


def _describe_device_claim(name: str) -> JSON:
    request = {"name": "gpu", "exactly": {"deviceClassName": _DRIVER, "count": 2}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return about | {"spec": {"devices": {"requests": [request]}}}


def _claim(name: str, spec: JSON) -> JSON:
    """Return the fields of a pod's spec with which its only container uses a claim."""
    (container,) = spec["containers"]
    resources = container["resources"] | {"claims": [{"name": "gpu"}]}
    containers = [container | {"resources": resources}]
    return {"containers": containers, "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}


async def _measure_gang(
    client: ApiClient,
    name: str,
    specs: Sequence[JSON],
    annotations: Mapping[str, str] | None = None,
    *,
    ranked: bool = False,
) -> float:
    """Create a gang with a member for each spec, wait until all are bound, and delete the members.

    Return the seconds from the last create to the last Binding, or `_TIMEOUT_SECONDS` if it took longer.
    """
    policy = {"gang": {"minCount": len(specs)}}
    kind = POD_GROUPS["fallback"]
    about = {"apiVersion": kind.api_version, "kind": "PodGroup"}
    metadata = {"name": name, "annotations": dict(annotations or {})}
    await client.create(kind, NAMESPACE, about | {"metadata": metadata, "spec": {"schedulingPolicy": policy}})
    names = [f"{name}-{index}" for index in range(len(specs))]
    for rank, (each, spec) in enumerate(zip(names, specs, strict=True)):
        labels = {COMPLETION_INDEX: str(rank)} if ranked else {}
        metadata = {"name": each, "labels": {**OWN, **labels, POD_GROUP_LABEL: name}}
        await client.create(PODS, NAMESPACE, {**_POD, "metadata": metadata, "spec": spec})
    begun = time.monotonic()
    while time.monotonic() < begun + _TIMEOUT_SECONDS:
        pods = [item for item in await client.list_all(PODS) if item["metadata"]["labels"].get(POD_GROUP_LABEL) == name]
        if all(item["spec"].get("nodeName") for item in pods):
            taken = time.monotonic() - begun
            break
        await asyncio.sleep(0.02)
    else:
        taken = _TIMEOUT_SECONDS
    for each in names:
        await client.delete(PODS, NAMESPACE, each)
    return taken


async def measure_ranked(cluster: Cluster, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure large gangs whose members have ranks and are spread over zones.

    They prefer a rack, because only gangs with a preferred level are placed in the order of ranks.
    """
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "serried", "containers": [container]} | _spread(ZONE)
    rows: dict[str, dict[str, Any]] = {}
    async with open_client(cluster.kubeconfig) as client:
        for size in _RANKED_SIZES:
            gangs = [f"r{size}-{turn}" for turn in range(rounds)]
            prefers = {PREFERRED_TOPOLOGY: RACK}
            taken = [await _measure_gang(client, gang, [spec] * size, prefers, ranked=True) for gang in gangs]
            rows[f"{size} with ranks, spread over 3 zones"] = _sum_up(cluster, f"{size} with ranks", gangs, taken)
    return rows


def _count_refusals(cluster: Cluster, name: str) -> int:
    found = httpx.get(f"{cluster.ops_url}/debug/decisions", params={"group": f"{NAMESPACE}/{name}"}, timeout=10.0)
    texts = [each["text"] for each in found.json()]
    if not any(text.startswith("Planned") for text in texts):
        raise SystemExit(f"{name} was not planned by Serried: {texts}")
    return sum("refuse" in text for text in texts)


# --- both -------------------------------------------------------------------------------------------------------------


def render_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with a line for each rule. A figure that a row lacks is shown as `-`."""
    marks = ("later_ms", "step_ms", "waves", "median_s", "longest_s", "refused")
    titles = ("plan, ms", "longest step, ms", "waves", "bound, s", "longest, s", "refused")
    head = [f"| rule | {' | '.join(titles)} |", "|---" * (1 + len(marks)) + "|"]
    lines = [f"| {name} | {' | '.join(str(row.get(mark, '-')) for mark in marks)} |" for name, row in rows.items()]
    return "\n".join([*head, *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure plans and live gangs, and write the result. Return 1 if the cluster failed, else 0."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser().parse_args(arguments)
    noise = measure_noise()
    rows = {} if options.ranked else measure_plans()
    try:
        racks = max(3, options.nodes // _NODES_PER_RACK)
        spec = Spec(_CLUSTER, options.nodes, racks=racks, blocks=3, zones=3, api="fallback")
        cluster = Cluster.up(spec, stderr_report())
        try:
            measure = measure_ranked if options.ranked else measure_gangs
            live = asyncio.run(measure(cluster, options.rounds))
        finally:
            cluster.down()
    except (ClusterError, ApiError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, row in live.items():
        rows.setdefault(name, {}).update(row)
    about = {"date": options.date, "machine": describe_machine(), "note": options.note, "nodes": options.nodes}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            about | {"noise_before": round(noise, 2), "rows": [{"rule": rule, **row} for rule, row in rows.items()]},
            indent=2,
        )
        + "\n"
    )
    print(render_table(rows))
    print(f"written to {path}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.rules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--nodes", type=int, default=1000, help="nodes of the cluster for the live gangs")
    add("--rounds", type=int, default=5, help="gangs of each rule")
    add("--ranked", action="store_true", help="only large gangs with ranks")
    add("--note", default="", help="what a reader of the result has to know of the machine")
    add("--name", default="rules", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
