"""Events after which kube-scheduler retries a pod (EventsToRegister, 1.37.1), and our test case for each.

A story has a gang that waits by what the plugin is about, and a change after which it fits. The events that concern no
gang, or that Serried does not follow, are in `NO_STORY` with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from serried.api.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from serried.api.names import Key
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.rule import KindState
from tests.support.builders import RACK, Builder, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.composites import CompositeBuilder, composite
from tests.support.devices import claim, claiming, device_class, devices, taint_rule
from tests.support.extender_harness import SCHEDULER, Harness
from tests.support.volumes import csi_driver, csi_node, storage_capacity, storage_class, volume, volume_claim

ZONE = "topology.kubernetes.io/zone"
GPU = "example.com/gpu"
DISK = "disk.example.com"
HERE = {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["r0"]}]}
RESTARTS = "RestartAllContainersOnContainerExits"

Step = Callable[[Harness], object]


class Event(NamedTuple):
    """An event that a plugin registers: the plugin's folder, the resource and one action type."""

    plugin: str
    resource: str
    action: str


@dataclass(frozen=True)
class Story:
    """A gang waits in what ``build`` makes, and fits after the ``change``. ``events`` are those that it tells of."""

    sentence: str
    build: Step
    change: Step
    events: tuple[Event, ...] = ()


_KINDS = (
    *(VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode),
    *(DeviceClass, ResourceSlice, ResourceClaim, DeviceTaintRule),
)
_ADDED = (NodeBuilder, PodBuilder, PodGroupBuilder, CompositeBuilder)


def show(*builders: Builder) -> Step:
    """Let the watches report these objects as created or changed."""

    def step(world: Harness) -> None:
        for builder in builders:
            if isinstance(builder, _ADDED):
                world.add(builder)
            else:
                world.store.put_object(builder.value())  # type: ignore[attr-defined]

    return step


def waiting(*builders: Builder, member: PodBuilder | None = None) -> Step:
    """Add these objects and a gang of one member, with all kinds synced."""

    def build(world: Harness) -> None:
        for kind in _KINDS:
            world.store.note_state(kind, KindState.KNOWN)
        show(*builders)(world)
        world.add(pod_group("g").gang(1), member or make_member())

    return build


def make_member() -> PodBuilder:
    """The gang's member."""
    return pod("m0").cpu(1).scheduler(SCHEDULER).in_group("g").label("app", "w")


def second(name: str = "m1") -> PodBuilder:
    """The gang's second member."""
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group("g")


def delete(name: str) -> Step:
    """Delete a pod."""
    return lambda world: world.delete(name)


def drop(kind: type, key: Key | str) -> Step:
    """Delete an object."""
    return lambda world: world.store.drop_object(kind, key)


def edit(name: str, change: Callable[[PodBuilder], PodBuilder]) -> Step:
    """Change a pod."""

    def step(world: Harness) -> None:
        key = world.pod_key(name)
        world.api.pods[key] = change(PodBuilder(world.api.pods[key])).raw()
        world.sync_pods()

    return step


def relabel(name: str, value: str) -> Step:
    """Change the label ``app`` of a pod."""
    return edit(name, lambda each: each.label("app", value))


def resize(name: str, cpus: int) -> Step:
    """Change the CPU request of a pod."""
    return edit(name, lambda each: each.cpu(cpus))


# --- what is there at the beginning -----------------------------------------------------------------------------------


def spread(**fields: Any) -> Step:
    """Two zones hold one such pod each; the third zone holds none, but is full."""
    nodes = [node(name).cpu(cpus).label(ZONE, name) for name, cpus in (("a", 4), ("b", 4), ("c", 1))]
    counted = [pod(f"x-{name}").label("app", "w").cpu(1).on(name) for name in "ab"]
    full = pod("full").cpu(1).on("c")
    return waiting(*nodes, *counted, full, member=make_member().spread({"app": "w"}, ZONE, **fields))


APART = waiting(
    *(node(name).cpu(1).rack("r0") for name in ("r0a", "r0b")),
    pod("noise").label("app", "noise").cpu(1).on("r0a"),
    member=make_member().anti_affinity({"app": "noise"}, RACK),
)
"""A pod on the full node of the only rack keeps the gang off its free node."""

KEPT_OFF = waiting(
    *(node(name).cpu(1).rack("r0") for name in ("r0a", "r0b")),
    pod("lonely").anti_affinity({"app": "w"}, RACK).cpu(1).on("r0a"),
)
"""The reverse: the rule of a running pod keeps the gang off."""

BESIDE = waiting(
    *(node("r0a").cpu(1).rack("r0"), node("r1a").cpu(1).rack("r1")),
    *(pod("cache").label("app", "cache").cpu(1).on("r0a"), pod("cousin").label("app", "other").on("r1a")),
    member=make_member().affinity({"app": "cache"}, RACK),
)
"""The gang must be in the rack of a cache pod, and that rack is full."""


def move_to(rack: str) -> Step:
    """Move the node of that cache pod to another rack."""
    return show(node("r0a").cpu(1).rack(rack).version("2"))


FULL = waiting(node("a").cpu(1), pod("full").cpu(1).on("a"))
TAINTED = waiting(node("a").cpu(1).taint("x"))
CORDONED = waiting(node("a").cpu(1).cordoned())


def lack_room_together(world: Harness) -> None:
    """A member has the port of the only node to itself, another one most of the CPU that is left; they lack one CPU."""
    waiting(node("a").cpu(4), pod("full").cpu(1).on("a"), member=make_member().cpu(1).host_port(8080))(world)
    world.add(pod_group("g").gang(2), second().cpu(3))


AFFINE = waiting(node("a").cpu(1).rack("r9"), member=make_member().node_affinity(HERE))
PORT_TAKEN = waiting(
    node("a").cpu(4), pod("web").host_port(8080).priority(1000).on("a"), member=make_member().host_port(8080)
)
MOUNTING = make_member().mounting("c")
PLACES = (node("a").cpu(1).label(ZONE, "a"), node("b").cpu(1).label(ZONE, "b"))
LOCAL = (volume("v").local_to("z").available("static"), storage_class("static"))


def unbound(*builders: Builder, of: str) -> Step:
    """An unbound claim of this class, which none of these volumes satisfies."""
    return waiting(*PLACES, *builders, volume_claim("c").requesting(of), member=MOUNTING)


NO_CLASS = unbound(of="plain")
NOT_ALLOWED = unbound(storage_class("plain", DISK).allowed_topology(ZONE, "z"), of="plain")
NO_CAPACITY = unbound(storage_class("plain", DISK), csi_driver(DISK), of="plain")
NO_VOLUME = unbound(storage_class("static"), of="static")
NOT_INSTALLED = waiting(
    *PLACES,
    *(storage_class("plain", DISK), csi_driver(DISK).with_field(False, "spec", "storageCapacity")),  # noqa: FBT003
    *(volume_claim("c").requesting("plain"), csi_node("a", other=1)),
    member=MOUNTING,
)
BOUND = volume_claim("c").bound_to("v")


def lack_a_volume(world: Harness) -> None:
    """Two members have one claim each, and only one volume exists."""
    waiting(
        node("a").cpu(4).label("kubernetes.io/hostname", "a"),
        *(storage_class("static"), volume("v").local_to("a").available("static")),
        *(volume_claim(name).requesting("static") for name in "cd"),
        member=MOUNTING,
    )(world)
    world.add(pod_group("g").gang(2), second().mounting("d"))


ZONED = waiting(
    node("a").cpu(1).label(ZONE, "a"), volume("v").label(ZONE, "z"), volume_claim("c").bound_to("v"), member=MOUNTING
)
"""The claim's volume is in a zone without nodes."""

ATTACHED = (
    *(volume(name).with_field({"driver": DISK, "volumeHandle": name}, "spec", "csi") for name in ("v", "w")),
    *(volume_claim("c").bound_to("v"), volume_claim("d").bound_to("w")),
)
AT_LIMIT = waiting(
    node("a").cpu(4), csi_node("a", disk=1), *ATTACHED, pod("user").mounting("d").on("a"), member=MOUNTING
)
ONCE = waiting(
    node("a").cpu(4),
    *(
        volume("v"),
        volume_claim("c").bound_to("v").read_write_once_pod(),
        pod("user").mounting("c").priority(1000).on("a"),
    ),
    member=MOUNTING,
)

CLAIMING = make_member().with_field(claiming("c"), "spec", "resourceClaims")
CLASS = device_class("gpu")


def lacking(*builders: Builder, member: PodBuilder = CLAIMING) -> Step:
    """A node, these objects, and a member that claims devices."""
    return waiting(node("a").cpu(4), *builders, member=member)


HELD = lacking(CLASS, devices("a", 1), claim("c", 1), claim("other", 1).allocated("a", "gpu-0"))
NO_DEVICE = lacking(CLASS, claim("c", 1))
PROVIDED = make_member().request(GPU, 1)
NOT_PROVIDED = lacking(CLASS, devices("a", 1), member=PROVIDED)
GENERATED = make_member().with_field([{"name": "r", "resourceClaimTemplateName": "t"}], "spec", "resourceClaims")

RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}


def restarting(made: PodBuilder, *rules: dict[str, Any]) -> PodBuilder:
    """A pod with these container restart rules."""
    (container,) = made.raw()["spec"]["containers"]
    return made.with_field([{**container, "restartPolicyRules": list(rules)}], "spec", "containers")


def declaring(name: str, *features: str) -> NodeBuilder:
    """A node that declares features."""
    return node(name).cpu(1).with_field(list(features), "status", "declaredFeatures")


UNDECLARED = waiting(declaring("a", "Other"), member=restarting(make_member(), RULE))


def two_members(*first: Builder) -> Step:
    """A gang that needs two members, and these of it."""

    def build(world: Harness) -> None:
        world.add(node("a").cpu(4), *first)

    return build


def _tell(plugin: str, resource: str, *actions: str) -> tuple[Event, ...]:
    return tuple(Event(plugin, resource, action) for action in actions)


def _story(plugin: str, resource: str, action: str, sentence: str, build: Step, change: Step) -> Story:
    return Story(f"{plugin}: {sentence}", build, change, _tell(plugin, resource, action))


_ROOM = [
    _story("noderesources", "AssignedPod", "Delete", "a pod goes", FULL, delete("full")),
    _story("noderesources", "Node", "Add", "a node comes", FULL, show(node("b").cpu(1))),
    _story("noderesources", "Node", "UpdateNodeAllocatable", "a node grows", FULL, show(node("a").cpu(2).version("2"))),
    _story("noderesources", "AssignedPod", "UpdatePodScaleDown", "a pod asks for less", FULL, resize("full", 0)),
    _story("noderesources", "TargetPod", "UpdatePodScaleDown", "the member asks for less",
           waiting(node("a").cpu(1), member=make_member().cpu(2)), resize("m0", 1)),
    _story("noderesources", "DeviceClass", "Add", "a class comes that provides the resource",
           NOT_PROVIDED, show(device_class("other").extended_resource(GPU))),
    _story("noderesources", "DeviceClass", "Update", "a class provides the resource by now",
           NOT_PROVIDED, show(CLASS.extended_resource(GPU))),
    _story("nodeunschedulable", "Node", "Add", "another node comes", CORDONED, show(node("b").cpu(1))),
    _story("nodeunschedulable", "Node", "UpdateNodeTaint", "the node is opened",
           CORDONED, show(node("a").cpu(1).version("2"))),
    _story("nodeunschedulable", "TargetPod", "UpdatePodToleration", "the member tolerates it",
           CORDONED, edit("m0", lambda each: each.tolerating("node.kubernetes.io/unschedulable"))),
    _story("tainttoleration", "Node", "Add", "another node comes", TAINTED, show(node("b").cpu(1))),
    _story("tainttoleration", "Node", "UpdateNodeTaint", "the taint goes",
           TAINTED, show(node("a").cpu(1).version("2"))),
    _story("tainttoleration", "TargetPod", "UpdatePodToleration", "the member tolerates it",
           TAINTED, edit("m0", lambda each: each.tolerating("x"))),
    _story("nodeaffinity", "Node", "Add", "a node of the rack comes", AFFINE, show(node("b").cpu(1).rack("r0"))),
    _story("nodeaffinity", "Node", "UpdateNodeLabel", "the node gets into the rack",
           AFFINE, show(node("a").cpu(1).rack("r0").version("2"))),
    _story("nodeports", "AssignedPod", "Delete", "the pod with the port goes", PORT_TAKEN, delete("web")),
    _story("nodeports", "Node", "Add", "a node comes where the port is free", PORT_TAKEN, show(node("b").cpu(1))),
    Story("members of two kinds fit on one node, where neither has a slot more than before", lack_room_together,
          delete("full")),
]  # fmt: skip

_NEIGHBOURS = [
    _story("podtopologyspread", "Node", "Delete", "the node of the empty zone goes",
           spread(), lambda world: world.store.drop_node("c")),
    _story("podtopologyspread", "Node", "UpdateNodeTaint", "it is tainted, and that counts",
           spread(nodeTaintsPolicy="Honor"), show(node("c").cpu(1).label(ZONE, "c").taint("x").version("2"))),
    _story("podtopologyspread", "Node", "UpdateNodeLabel", "it gets another zone",
           spread(), show(node("c").cpu(1).label(ZONE, "a").version("2"))),
    _story("podtopologyspread", "Node", "Add", "another node of the empty zone comes",
           spread(), show(node("d").cpu(1).label(ZONE, "c"))),
    _story("podtopologyspread", "AssignedPod", "Delete", "a pod that counts goes", spread(), delete("x-a")),
    _story("podtopologyspread", "AssignedPod", "Add", "a pod that counts comes to the empty zone",
           spread(), show(pod("x-c").label("app", "w").on("c"))),
    Story("a pod that counts begins to end", spread(), edit("x-a", lambda each: each.deleting())),
    _story("podtopologyspread", "AssignedPod", "UpdatePodLabel", "a pod that counts gets another label",
           spread(), relabel("x-a", "z")),
    _story("podtopologyspread", "TargetPod", "UpdatePodLabel", "the member does not count itself any more",
           spread(maxSkew=1), relabel("m0", "z")),
    _story("podtopologyspread", "TargetPod", "UpdatePodToleration", "the member goes where the taint was",
           waiting(node("a").cpu(4).label(ZONE, "a"), node("c").cpu(4).label(ZONE, "c").taint("x"),
                   pod("x-a").label("app", "w").on("a"), member=make_member().spread({"app": "w"}, ZONE)),
           edit("m0", lambda each: each.tolerating("x"))),
    _story("interpodaffinity", "Node", "UpdateNodeLabel", "the node of the pod in the way gets another rack",
           APART, move_to("r9")),
    _story("interpodaffinity", "AssignedPod", "UpdatePodLabel", "the pod in the way gets another label",
           APART, relabel("noise", "quiet")),
    _story("interpodaffinity", "AssignedPod", "Delete", "the pod in the way goes", APART, delete("noise")),
    _story("interpodaffinity", "Node", "Add", "a node of another rack comes", APART, show(node("b").cpu(1).rack("r1"))),
    _story("interpodaffinity", "TargetPod", "UpdatePodLabel", "the member has another label than is kept off",
           KEPT_OFF, relabel("m0", "z")),
    Story("the pod in the way, which has the same rule, goes",
          waiting(*(node(name).cpu(1).rack("r0") for name in ("r0a", "r0b")), pod("full").cpu(1).on("r0a"),
                  pod("twin").label("app", "noise").anti_affinity({"app": "noise"}, RACK).on("r0a"),
                  member=make_member().anti_affinity({"app": "noise"}, RACK)),
          delete("twin")),
    Story("the pod goes that shares its node with no pod of the label that the member has",
          waiting(node("a").cpu(4).label("kubernetes.io/hostname", "a"),
                  pod("alone").label("app", "w").anti_affinity({"app": "w"}).priority(1000).on("a")),
          delete("alone")),
    Story("another cache comes, which has to be beside caches, too",
          BESIDE, show(pod("cache2").label("app", "cache").affinity({"app": "cache"}, RACK).on("r1a"))),
    Story("a pod that is spread by the same rule comes to the empty zone",
          spread(), show(pod("x-c").label("app", "w").spread({"app": "w"}, ZONE).on("c"))),
    Story("the node of a pod that keeps others off gets another rack", KEPT_OFF, move_to("r9")),
    Story("the node of the cache gets the rack of a free one", BESIDE, move_to("r1")),
    Story("a pod in the free rack gets the label of the cache", BESIDE, relabel("cousin", "cache")),
    _story("interpodaffinity", "AssignedPod", "Add", "another cache comes",
           BESIDE, show(pod("cache2").label("app", "cache").on("r1a"))),
]  # fmt: skip

_VOLUMES = [
    _story("volumebinding", "StorageClass", "Add", "the class comes", NO_CLASS, show(storage_class("plain", DISK))),
    _story("volumebinding", "StorageClass", "Update", "the class allows a zone that there is",
           NOT_ALLOWED, show(storage_class("plain", DISK).allowed_topology(ZONE, "b"))),
    _story("volumebinding", "PersistentVolumeClaim", "Add", "the claim comes",
           waiting(*PLACES, volume("v"), member=MOUNTING), show(BOUND)),
    _story("volumebinding", "PersistentVolumeClaim", "Update", "the claim is bound",
           waiting(*PLACES, volume("v"), storage_class("plain", DISK).immediate(),
                   volume_claim("c").requesting("plain"),
                   member=MOUNTING),
           show(volume_claim("c").requesting("plain").bound_to("v"))),
    _story("volumebinding", "PersistentVolume", "Add", "a volume comes",
           NO_VOLUME, show(volume("v").available("static"))),
    Story("as many volumes are there as members, all in one place", lack_a_volume,
          show(volume("w").local_to("a").available("static"))),
    _story("volumebinding", "PersistentVolume", "Update", "a volume becomes free",
           unbound(storage_class("static"), volume("v").available("static").with_field("Released", "status", "phase"),
                   of="static"),
           show(volume("v").available("static"))),
    _story("volumebinding", "Node", "Add", "the node of the volume comes",
           unbound(*LOCAL, of="static"), show(node("z").cpu(1).label("kubernetes.io/hostname", "z"))),
    _story("volumebinding", "Node", "UpdateNodeLabel", "a node gets what the volume wants",
           unbound(*LOCAL, of="static"),
           show(node("a").cpu(1).label("kubernetes.io/hostname", "z").version("2"))),
    _story("volumebinding", "CSINode", "Add", "the driver that has to be there is installed on a node",
           waiting(*PLACES, storage_class("plain", DISK),
                   csi_driver(DISK).with_field({"preventPodSchedulingIfMissing": True}, "spec"),
                   volume_claim("c").requesting("plain"), member=MOUNTING),
           show(csi_node("a", disk=9))),
    _story("volumebinding", "CSINode", "Update", "it is added to those of a node",
           waiting(*PLACES, storage_class("plain", DISK),
                   csi_driver(DISK).with_field({"preventPodSchedulingIfMissing": True}, "spec"),
                   *(csi_node(name, other=1) for name in "ab"),
                   volume_claim("c").requesting("plain"), member=MOUNTING),
           show(csi_node("a", disk=9))),
    _story("volumebinding", "CSIDriver", "Update", "the driver does not tell its capacity any more",
           NO_CAPACITY, show(csi_driver(DISK).with_field({"storageCapacity": False}, "spec"))),
    _story("volumebinding", "CSIStorageCapacity", "Add", "capacity comes",
           NO_CAPACITY, show(storage_capacity("s", "plain", "4Gi"))),
    _story("volumebinding", "CSIStorageCapacity", "Update", "there is more capacity",
           unbound(storage_class("plain", DISK), csi_driver(DISK), storage_capacity("s", "plain", "1Mi"), of="plain"),
           show(storage_capacity("s", "plain", "4Gi"))),
    _story("volumezone", "StorageClass", "Add", "the class comes that waits for its consumer",
           NO_CLASS, show(storage_class("plain", DISK).allowed_topology(ZONE, "a"))),
    _story("volumezone", "Node", "Add", "a node of the zone comes", ZONED, show(node("z").cpu(1).label(ZONE, "z"))),
    _story("volumezone", "Node", "UpdateNodeLabel", "a node gets into the zone",
           ZONED, show(node("a").cpu(1).label(ZONE, "z").version("2"))),
    _story("volumezone", "PersistentVolumeClaim", "Add", "the claim of the zone comes",
           waiting(*PLACES, volume("v").label(ZONE, "a"), member=MOUNTING), show(BOUND)),
    _story("volumezone", "PersistentVolumeClaim", "Update", "the claim is bound to a volume of another zone",
           waiting(*PLACES, volume("v").label(ZONE, "z"), volume("w").label(ZONE, "a"), BOUND, member=MOUNTING),
           show(volume_claim("c").bound_to("w"))),
    _story("volumezone", "PersistentVolume", "Add", "the volume of the claim comes",
           waiting(*PLACES, BOUND, member=MOUNTING), show(volume("v").label(ZONE, "a"))),
    _story("volumezone", "PersistentVolume", "Update", "the volume gets another zone",
           ZONED, show(volume("v").label(ZONE, "a"))),
    _story("volumerestrictions", "AssignedPod", "Delete", "the pod goes that has the claim for itself",
           ONCE, delete("user")),
    _story("volumerestrictions", "Node", "Add", "a node comes",
           waiting(node("a").cpu(1), pod("full").cpu(1).on("a"), volume("v"), BOUND.read_write_once_pod(),
                   member=MOUNTING),
           show(node("b").cpu(1))),
    _story("volumerestrictions", "PersistentVolumeClaim", "Add", "the claim comes that is one pod's",
           waiting(*PLACES, volume("v"), member=MOUNTING), show(BOUND.read_write_once_pod())),
    _story("nodevolumelimits", "CSINode", "Add", "a node with the driver comes to be known",
           waiting(node("a").cpu(4), node("b").cpu(4), csi_node("a", disk=0), *ATTACHED,
                   csi_driver(DISK).with_field({"preventPodSchedulingIfMissing": True}, "spec"), member=MOUNTING),
           show(csi_node("b", disk=1))),
    _story("nodevolumelimits", "CSINode", "Update", "the node takes one more", AT_LIMIT, show(csi_node("a", disk=2))),
    _story("nodevolumelimits", "AssignedPod", "Delete", "the pod with the last one goes", AT_LIMIT, delete("user")),
    _story("nodevolumelimits", "PersistentVolumeClaim", "Add", "the claim comes",
           waiting(node("a").cpu(4), csi_node("a", disk=1), ATTACHED[0], member=MOUNTING), show(BOUND)),
]  # fmt: skip

_DEVICES = [
    _story("dynamicresources", "Node", "Add", "the node of the devices comes",
           lacking(CLASS, claim("c", 1), devices("b", 1)), show(node("b").cpu(1))),
    _story("dynamicresources", "Node", "UpdateNodeLabel", "a node gets the label by which devices are reached",
           lacking(CLASS, claim("c", 1), devices("z", 1).nodes_field(nodeSelector={"nodeSelectorTerms": [HERE]})),
           show(node("a").cpu(4).rack("r0").version("2"))),
    _story("dynamicresources", "Node", "UpdateNodeAllocatable", "a node shows the resource itself by now",
           lacking(CLASS.extended_resource(GPU), member=PROVIDED),
           show(node("a").cpu(4).allocatable(GPU, 1).version("2"))),
    _story("dynamicresources", "ResourceClaim", "Add", "the claim comes",
           lacking(CLASS, devices("a", 1)), show(claim("c", 1))),
    _story("dynamicresources", "ResourceClaim", "Update", "another claim gives its device back",
           HELD, show(claim("other", 1))),
    _story("dynamicresources", "ResourceClaim", "Delete", "the claim that holds the device goes",
           HELD, drop(ResourceClaim, Key("default", "other"))),
    _story("dynamicresources", "TargetPod", "UpdatePodGeneratedResourceClaim", "the claim of the member is made",
           lacking(CLASS, devices("a", 1), claim("m0-r", 1), member=GENERATED),
           edit("m0", lambda each: each.with_field(
               [{"name": "r", "resourceClaimName": "m0-r"}], "status", "resourceClaimStatuses"))),
    _story("dynamicresources", "DeviceClass", "Add", "the class comes",
           lacking(devices("a", 1), claim("c", 1)), show(CLASS)),
    _story("dynamicresources", "DeviceClass", "Update", "the class means the devices by now",
           lacking(CLASS.cel_selectors("false"), devices("a", 1), claim("c", 1)), show(CLASS)),
    _story("dynamicresources", "ResourceSlice", "Add", "devices come", NO_DEVICE, show(devices("a", 1))),
    _story("dynamicresources", "ResourceSlice", "Update", "there is one device more",
           lacking(CLASS, claim("c", 2), devices("a", 1)), show(devices("a", 2))),
    Story("the rule goes that keeps claims off the devices",
          lacking(CLASS, claim("c", 1), devices("a", 1), taint_rule("t", driver="gpu.example.com")),
          drop(DeviceTaintRule, "t")),
    _story("nodedeclaredfeatures", "Node", "Add", "a node comes that declares it",
           UNDECLARED, show(declaring("b", RESTARTS))),
    _story("nodedeclaredfeatures", "Node", "UpdateNodeDeclaredFeature", "a node declares it by now",
           UNDECLARED, show(declaring("a", RESTARTS).version("2"))),
    Story("the last node goes that declares anything, so nobody asks any more",
          waiting(declaring("a", "Other"), node("b").cpu(1), member=restarting(make_member(), RULE)),
          lambda world: world.store.drop_node("a")),
    _story("nodedeclaredfeatures", "TargetPod", "Update", "the member does not need it any more",
           UNDECLARED, edit("m0", restarting)),
]  # fmt: skip

_GANGS = [
    _story("gangscheduling", "UnscheduledPod", "Add", "the second member comes",
           two_members(pod_group("g").gang(2), make_member()), show(second())),
    _story("gangscheduling", "AssignedPod", "Add", "a second member comes that has its node",
           two_members(pod_group("g").gang(2), make_member()), show(second().on("a"))),
    _story("gangscheduling", "PodGroup", "Add", "the PodGroup comes",
           two_members(make_member()), show(pod_group("g").gang(1))),
    _story("gangscheduling", "PodGroup", "Update", "one member is enough by now",
           two_members(pod_group("g").gang(2), make_member()), show(pod_group("g").gang(1))),
    _story("schedulinggates", "TargetPod", "UpdatePodSchedulingGatesEliminated", "the gate of the member goes",
           two_members(pod_group("g").gang(1), make_member().gate("example.com/quota")),
           edit("m0", lambda each: each.with_field([], "spec", "schedulingGates"))),
]  # fmt: skip

STORIES = [*_ROOM, *_NEIGHBOURS, *_VOLUMES, *_DEVICES, *_GANGS]

TREE = Story(
    "gangscheduling: the CompositePodGroup comes",
    two_members(pod_group("g").gang(1).child_of("root"), make_member()),
    show(composite("root").gang(1)),
    _tell("gangscheduling", "CompositePodGroup", "Add"),
)
"""Like the others, but the planned gang is the tree of the root."""

NO_STORY = {
    Event("nodename", "Node", "Add"): "a pod that names its node does not wait for one",
    Event("nodevolumelimits", "VolumeAttachment", "Delete"): "VolumeAttachments are not watched (decision 40)",
    Event("defaultpreemption", "AssignedPod", "Delete"): "members have no candidates of kube-scheduler's preemption",
    **dict.fromkeys(
        (
            *_tell("deferredpodscheduling", "Node", "UpdateNodePreemptionPolicy", "Add"),
            *_tell("noderesources", "AssignedPod", "UpdatePodScaleUp"),
            *_tell("noderesources", "TargetPod", "UpdatePodScaleUp"),
        ),
        "the gate InPlacePodVerticalScalingSchedulerPreemption is off by default, and these pods have their nodes",
    ),
}
"""The events without a test case, and the reason for each."""
