"""Measure for how long one watch event blocks the event loop, for each kind of object that the rules use.

The cache of one process has 5,000 nodes, 50,000 pods and devices of 64 sorts. A gang waits for each sort of device, and
one gang has rules about other pods. Then one object is added, changed or deleted. The cache updates the objects that
this affects in pieces, and the extender answers verbs between two pieces; so a verb waits for one piece at most. Some
of the changes are those by which a tenant could slow down the extender. Times are processor time.

    python -m bench.events                 JSON to bench/results/, a table to standard output; milliseconds
    python -m bench.events --only device   the changes with this word in their name
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import describe_machine, measure_noise
from serried.api.device import DeviceClass, ResourceClaim, ResourceSlice
from serried.api.interpod import Namespace, decode_namespace
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.cache import EndedMembers, Store
from serried.cluster.rule import KindState
from serried.rules.all import RULES
from tests.support.builders import PodBuilder, node, pod, pod_group, require_valid
from tests.support.devices import claim, claiming, device_class, devices, mark_devices_listed, taint_rule
from tests.support.rules import run_deferred_work
from tests.support.volumes import csi_driver, csi_node, storage_class, volume, volume_claim

RESULTS = Path(__file__).with_name("results")
RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
WANTED_LONGEST = 20.0
"""The longest piece that is allowed, in milliseconds."""

NODES, PODS, SORTS = 5_000, 50_000, 64
_DEVICES, _PER_RACK, _APPS, _NAMESPACES = 8, 50, 500, 100


@dataclass(frozen=True, slots=True)
class Case:
    """One change of the cluster."""

    name: str
    prepare: Callable[[Store], Callable[[], None]]
    """Adds the objects that the change needs, and returns the call to time."""


def build_store(nodes: int = NODES, pods: int = PODS, sorts: int = SORTS) -> Store:
    """Return a Store with nodes, running pods, a waiting gang for each sort of device, and one gang with rules.

    Each node has devices of one sort, and a CSI driver.
    """
    store = Store(["serried"], ended=EndedMembers.KEEP_SLOTS, rules=RULES)
    mark_devices_listed(store)
    for kind in (Namespace, VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode):
        store.note_state(kind, KindState.KNOWN)
    for sort in range(sorts):
        store.put_object(device_class(f"class-{sort}").cel_selectors(_select(sort)).value())
    for index in range(nodes):
        store.put_node(_node(index).value())
        store.put_object(_slice(index, sorts).value())
        store.put_object(csi_node(f"n{index}", disk=20).value())
    for index in range(_NAMESPACES):
        store.put_object(_namespace(index, "a"))
    for index in range(pods):
        store.put_pod(_running(index, nodes).value())
    store.put_object(storage_class("local").value())
    for sort in range(sorts):
        _put_claiming(store, f"claims-{sort}", sort)
    store.put_group(pod_group("ruled").gang(2).topology(RACK).value())
    for index in range(2):
        ruled = (
            _member("ruled", index)
            .anti_affinity({"app": "app-1"}, HOST, namespaceSelector={})
            .affinity({"app": "app-2"}, RACK)
        )
        store.put_pod(ruled.spread({"app": "app-3"}, RACK).value())
    return store


def _select(sort: int, extra: str = "") -> str:
    return f"device.attributes['gpu.example.com'].model == 'model-{sort}'{extra}"


def _node(index: int) -> Any:
    built = node(f"n{index}").cpu(64).memory("256Gi").pods(110).label(HOST, f"n{index}")
    return built.label(RACK, f"rack-{index // _PER_RACK}")


def _slice(index: int, sorts: int = SORTS) -> Any:
    return devices(f"n{index}", _DEVICES).attribute("model", {"string": f"model-{index % sorts}"})


def _namespace(index: int, team: str) -> Namespace:
    raw = {"metadata": {"name": f"team-{index}", "uid": f"ns-{index}", "labels": {"team": team}}}
    return require_valid(decode_namespace(raw))


def _running(index: int, nodes: int = NODES) -> PodBuilder:
    built = pod(f"p{index}").namespace(f"team-{index % _NAMESPACES}").label("app", f"app-{index % _APPS}").cpu("500m")
    return built.on(f"n{index % nodes}")


def _member(group: str, index: int) -> PodBuilder:
    return pod(f"{group}-{index}").scheduler("serried").in_group(group).cpu(1)


def _put_claiming(store: Store, group: str, sort: int) -> None:
    """Add a gang that waits for its second member. The first member claims a device of the sort."""
    claimed = claim(group).request("r", deviceClassName=f"class-{sort}", count=1)
    store.put_group(pod_group(group).gang(2).value())
    store.put_object(claimed.value())
    store.put_pod(_member(group, 0).with_field(claiming(group), "spec", "resourceClaims").value())


# --- the changes -----------------------------------------------------------------------------------------------------


def _put(*items: Any) -> Callable[[Store], Callable[[], None]]:
    """Return the `prepare` of a case that puts these objects into the Store; only the last one is timed."""

    def prepare(store: Store) -> Callable[[], None]:
        calls = [_find_put(store, each) for each in items]
        for call in calls[:-1]:
            call()
        return calls[-1]

    return prepare


def _find_put(store: Store, item: Any) -> Callable[[], None]:
    if isinstance(item, Pod):
        return lambda: store.put_pod(item)
    if isinstance(item, Node):
        return lambda: store.put_node(item)
    return lambda: store.put_object(item)


def _call(act: Callable[[Store], None]) -> Callable[[Store], Callable[[], None]]:
    return lambda store: lambda: act(store)


def _keep_all_off(built: PodBuilder) -> Pod:
    """Return a pod whose anti-affinity selects every pod of every namespace."""
    every_app = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    term = {"topologyKey": RACK, "labelSelector": every_app, "namespaceSelector": {}}
    path = ("spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return built.with_field([term], *path).value()


def _foreign(name: str) -> PodBuilder:
    return pod(name).namespace("other").label("app", "other").scheduler("default-scheduler").cpu(1)


def _with_claim(built: PodBuilder, name: str) -> Pod:
    return built.with_field(claiming(name), "spec", "resourceClaims").value()


def _odd_claim(name: str, namespace: str = "default") -> ResourceClaim:
    wish = [{"cel": {"expression": _select(7, f" && '{name}' != 'x'")}}]
    return claim(name).namespace(namespace).request("r", deviceClassName="class-7", count=1, selectors=wish).value()


ODD_CLAIM = _odd_claim("odd", "other")
ALLOCATED = claim("claims-1").request("r", deviceClassName="class-1", count=1).allocated("n1", "gpu-0")
TAINTED = taint_rule("r").with_field({}, "spec", "deviceSelector")
BY_MODEL = pod_group("ruled").gang(2).topology("gpu.example.com/model")

CASES = (
    Case("a pod starts", _put(_running(PODS).value())),
    Case("a pod gets a label that a rule means", _put(_running(7).label("app", "app-1").value())),
    Case("a pod ends", _call(lambda store: store.drop_pod("pod-p11"))),
    Case("a member comes", _put(_member("ruled", 9).value())),
    Case("a member comes whose rule is new", _put(_member("ruled", 9).affinity({"app": "app-9"}, RACK).value())),
    Case("a member comes whose rule means every pod", _put(_keep_all_off(_member("ruled", 9)))),
    Case("a foreign pod runs that keeps every pod off", _put(_keep_all_off(_foreign("odd").on("n1")))),
    Case("a foreign pod waits that keeps every pod off", _put(_keep_all_off(_foreign("odd")))),
    Case("a foreign pod waits with a claim of a new sort", _put(ODD_CLAIM, _with_claim(_foreign("f"), "odd"))),
    Case("a member waits with a claim of a new sort", _put(_odd_claim("own"), _with_claim(_member("ruled", 9), "own"))),
    Case("a node's heartbeat", _put(_node(1).version("2").value())),
    Case("a node comes", _put(node("new").cpu(64).label(RACK, "rack-1").value())),
    Case("a node gets another rack", _put(_node(1).label(RACK, "rack-7").value())),
    Case("a node gets a taint", _put(_node(1).taint("sick").value())),
    Case("a node goes", _call(lambda store: store.drop_node("n17"))),
    Case("a namespace comes", _put(_namespace(_NAMESPACES, "a"))),
    Case("a namespace gets another label", _put(_namespace(1, "b"))),
    Case("a namespace goes", _call(lambda store: store.drop_object(Namespace, "team-2"))),
    Case("a PersistentVolume comes", _put(volume("v").local_to("n3").available("local").value())),
    Case("a PersistentVolumeClaim comes", _put(volume_claim("c").requesting("local").value())),
    Case("a StorageClass comes", _put(storage_class("fast", "disk.example.com").value())),
    Case("a CSINode changes", _put(csi_node("n5", disk=10).value())),
    Case("a CSIDriver comes", _put(csi_driver("disk.example.com").value())),
    Case("a ResourceSlice of another model comes", _put(_slice(12).attribute("model", {"string": "model-3"}).value())),
    Case("a ResourceSlice that all nodes reach comes", _put(devices("wide", 8).nodes_field(allNodes=True).value())),
    Case("a ResourceSlice goes", _call(lambda store: store.drop_object(ResourceSlice, "n9-0"))),
    Case("a DeviceTaintRule for every device comes", _put(TAINTED.value())),
    Case("a DeviceClass comes", _put(device_class("class-new").value())),
    Case("a DeviceClass gets another selector", _put(device_class("class-5").cel_selectors(_select(6)).value())),
    Case("a DeviceClass goes", _call(lambda store: store.drop_object(DeviceClass, "class-6"))),
    Case("a claim gets its device", _put(ALLOCATED.value())),
    Case("a group asks for another topology key", _call(lambda store: store.put_group(BY_MODEL.value()))),
)


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(case: Case, store: Store) -> dict[str, Any]:
    """Return the times of one change, in milliseconds: the event itself, the longest piece, and all pieces together."""
    act = case.prepare(store)
    run_deferred_work(store)
    gc.collect()
    gc.disable()  # the garbage of earlier cases would be charged to this one
    pieces = [_time(act)[0]]
    while True:
        took, more = _time(store.apply_rule_changes)
        pieces.append(took)
        if not more:
            break
    gc.enable()
    return {
        "change": case.name,
        "at_once": round(pieces[0], 2),
        "longest_piece": round(max(pieces), 2),
        "pieces": len(pieces) - 1,
        "in_all": round(sum(pieces), 1),
    }


def _time(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a call in milliseconds, and the call's result."""
    begun = time.process_time()
    found = act()
    return (time.process_time() - begun) * 1000, found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every change and write the result. Return 1 if a piece was longer than `WANTED_LONGEST`, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.events", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="changes with this in their name")
    parser.add_argument("--name", default="events", help="how the file's name begins")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows = measure_noise(), []
    store = build_store()
    print("| change | at once, ms | longest piece, ms | pieces | in all, ms |\n|---|---|---|---|---|")
    for case in CASES:
        if options.only in case.name:
            rows.append(measure(case, store))
            print("|", " | ".join(map(str, rows[-1].values())), "|", flush=True)
    machine = {**describe_machine(), "busy_with_other_work_before": round(noise, 2)}
    ground = {"nodes": NODES, "pods": PODS, "sorts_of_devices": SORTS}
    result = {"date": options.date, "machine": machine, **ground, "rows": rows}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    missed = [row for row in rows if row["longest_piece"] > WANTED_LONGEST]
    for row in missed:
        print(f"missed: {row['change']}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
