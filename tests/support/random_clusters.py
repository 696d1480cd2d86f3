"""Random clusters for the extender's core, with running, waiting and ended pods. Equal sources give equal clusters."""

from random import Random

from serried.api.names import Disruption
from serried.api.preference import Level
from tests.support.budgets import budget
from tests.support.builders import RACK, Builder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import SCHEDULER

ZONE = "example.com/zone"
HOSTNAME = "kubernetes.io/hostname"


def draw_running_workloads(source: Random) -> list[Builder]:
    """Create nodes with running plain pods and gangs, and budgets for some of them."""
    nodes: list[Builder] = []
    names = [f"n{place}" for place in range(source.randint(1, 6))]
    for name in names:
        each = node(name).cpu(source.randint(2, 8)).label(ZONE, source.choice("xy")).label(HOSTNAME, name)
        each = each.rack(source.choice("ab")) if source.random() < 0.9 else each
        each = each.cordoned() if source.random() < 0.1 else each
        nodes.append(each.taint("dedicated") if source.random() < 0.1 else each)
    plain = [_draw_plain(source, place, names) for place in range(source.randint(0, 6))]
    gangs = [each for place in range(source.randint(0, 2)) for each in _draw_running_gang(source, f"run{place}", names)]
    budgets = (
        [budget("b").selecting(app="web").disruptions_allowed(source.randint(0, 2))] if source.random() < 0.5 else []
    )
    return [*nodes, *plain, *budgets, *gangs]


def draw_gang(source: Random, name: str) -> list[Builder]:
    """Draw a pending gang. It may be a tree of two groups with root ``name``, or have too few members for minCount."""
    if source.random() < 0.15:
        return _draw_tree(source, name)
    count = source.randint(1, 5)
    need = source.randint(1, count + source.choice([0, 0, 0, 1]))
    return [_draw_group(source, name).gang(need), *_draw_members(source, name, count)]


def _draw_plain(source: Random, place: int, names: list[str]) -> PodBuilder:
    each = pod(f"plain{place}").cpu(source.randint(1, 3)).priority(source.randint(0, 5)).on(source.choice(names))
    each = each.started(f"2026-01-01T00:00:{source.randint(10, 59)}Z")
    each = each.controlled_by(source.choice(["DaemonSet", "ReplicaSet", "Job"]), "owner")
    return each.label("app", source.choice(["web", "db"])).label("secret", "of a pod")


def _draw_running_gang(source: Random, name: str, names: list[str]) -> list[Builder]:
    count = source.randint(1, 3)
    group = pod_group(name).gang(source.randint(1, count)).priority(source.randint(0, 5)).condition("True", "Scheduled")
    group = group.disruption(Disruption.ALL) if source.random() < 0.5 else group
    return [group, *[_member(name, place).cpu(source.randint(1, 2)).on(source.choice(names)) for place in range(count)]]


def _draw_group(source: Random, name: str) -> PodGroupBuilder:
    group = pod_group(name).priority(source.randint(0, 6))
    group = group.topology(source.choice([RACK, ZONE])) if source.random() < 0.6 else group
    group = group.preferring(Level(RACK, source.choice([0, 60])), Level(ZONE)) if source.random() < 0.2 else group
    if source.random() < 0.2:
        group = group.annotation("scheduling.serried.dev/exclusive", "true")
    return group.annotation("scheduling.serried.dev/packing", "spread") if source.random() < 0.2 else group


def _draw_members(source: Random, name: str, count: int) -> list[PodBuilder]:
    sizes = [source.randint(1, 3)] if source.random() < 0.7 else [1, 2]
    members = [_member(name, place).cpu(source.choice(sizes)) for place in range(count)]
    if source.random() < 0.3:
        members = [_draw_rule(source, each.label("app", "ring")) for each in members]
    return [each.tolerating("dedicated") for each in members] if source.random() < 0.3 else members


def _draw_rule(source: Random, member: PodBuilder) -> PodBuilder:
    """Return the member with an affinity or spread rule about the pods of its gang or about running pods."""
    labels = {"app": source.choice(["ring", "web", "db"])}
    term = {"topologyKey": source.choice([RACK, ZONE, HOSTNAME]), "labelSelector": {"matchLabels": labels}}
    if source.random() < 0.4:
        rule = {**term, "maxSkew": source.randint(1, 2), "whenUnsatisfiable": "DoNotSchedule"}
        return member.with_field([rule], "spec", "topologySpreadConstraints")
    kind = source.choice(["podAffinity", "podAntiAffinity"])
    return member.with_field([term], "spec", "affinity", kind, "requiredDuringSchedulingIgnoredDuringExecution")


def _draw_tree(source: Random, name: str) -> list[Builder]:
    root = composite(name).gang(source.randint(1, 2))
    root = root.topology(RACK) if source.random() < 0.5 else root
    found: list[Builder] = [root]
    for leaf in ("left", "right"):
        count = source.randint(1, 2)
        found += [
            pod_group(f"{name}-{leaf}").gang(count).child_of(name),
            *_draw_members(source, f"{name}-{leaf}", count),
        ]
    return found


def _member(group: str, place: int) -> PodBuilder:
    return pod(f"{group}-{place}").scheduler(SCHEDULER).in_group(group).index(place)
