"""An invented kind of workload, Troupe, which is added to Serried by one table row and one decoder.

It shows that nothing else is needed to support another kind.

To be run as a program, as ``python -m tests.support.sample_kind``: the rows are read when modules are imported. It
prints a JSON document of what each part of the product makes of the kind.
"""

import asyncio
import json
import sys
from typing import Any

from serried.api import kinds

ROW = kinds.OwnerKind(
    kind="Troupe",
    group="stage.example.org",
    version="v2",
    plural="troupes",
    gang="Troupe",
    staged="{owner} starts with its director ({field})",
    labels=kinds.PodLabels(
        name="stage.example.org/troupe", stage="stage.example.org/part", index="stage.example.org/no"
    ),
    followed_pods="stage.example.org/no=0",
    short_names=("tr",),
)
MANIFEST: dict[str, Any] = {
    "apiVersion": "stage.example.org/v2",
    "kind": "Troupe",
    "metadata": {
        "namespace": "default",
        "name": "hamlet",
        "uid": "troupe-hamlet",
        "annotations": {"scheduling.serried.dev/gang-policy": "TroupeAsGang"},
    },
    "spec": {
        "parts": [
            {"name": part, "actors": actors, "template": {"spec": {"schedulerName": "serried", "containers": [{}]}}}
            for part, actors in (("director", 1), ("chorus", 3))
        ]
    },
}


def register() -> None:
    """Add the row and the reader, before anything else of Serried is imported."""
    for table in (kinds.OWNER_KINDS, kinds.PARENTS):
        assert isinstance(table, dict)
        table[ROW.kind] = ROW
    from serried.api.layouts import LAYOUTS  # noqa: PLC0415 - it imports the rows

    assert isinstance(LAYOUTS, dict)
    LAYOUTS[ROW.kind] = decode_sample


def decode_sample(obj: Any) -> Any:
    """Decode a Troupe's spec into a Layout: all code that such a kind needs besides its row."""
    from serried.api.layouts import Layout, Source, Stage  # noqa: PLC0415

    parts = obj["spec"]["parts"]
    return Layout(
        sources=tuple(
            Source(Stage(part["name"], part["actors"]), part["template"], ("spec", "parts", index, "template"))
            for index, part in enumerate(parts)
        ),
        pod_templates=tuple(part["template"] for part in parts),
    )


def make_pod(number: int) -> dict[str, Any]:
    """Return pod ``number`` of the example Troupe, as the kind's controller would create it."""
    said = {"troupe": "hamlet", "part": "chorus" if number else "director", "no": str(number)}
    labels = {f"stage.example.org/{name}": value for name, value in said.items()}
    metadata = {"namespace": "default", "name": f"hamlet-{number}", "uid": f"pod-{number}", "labels": labels}
    return {"metadata": metadata, "spec": {"schedulerName": "serried", "containers": [{"name": "main"}]}}


def list_names() -> dict[str, Any]:
    """Return the names that cache, pages and commands use for the example Troupe, its group and its pods."""
    from cli.names import read_name  # noqa: PLC0415
    from extender.look.names import KINDS, GroupName  # noqa: PLC0415
    from extender.look.routes import describe_gang  # noqa: PLC0415
    from serried.api.group import BASIC, PodGroup  # noqa: PLC0415
    from serried.api.level import FALLBACK  # noqa: PLC0415
    from serried.api.names import GroupKey, GroupKind, OwnerRef, decode_group_key  # noqa: PLC0415
    from serried.api.parent import decode_parent  # noqa: PLC0415
    from serried.api.pod import Pod, decode_pod  # noqa: PLC0415
    from serried.cluster.cache import Store  # noqa: PLC0415
    from serried.rules.all import RULES  # noqa: PLC0415

    store = Store({"serried"}, rules=RULES)
    parent: Any = decode_parent("Troupe", MANIFEST)
    store.put_parent(parent)
    pod = decode_pod(make_pod(2))
    assert isinstance(pod, Pod)
    store.put_pod(pod)
    group = store.membership.resolve(pod)
    assert group is not None
    key = GroupKey("default", "hamlet", GroupKind("Troupe"))
    owners = (OwnerRef("Troupe", "hamlet", "u", controller=True),)
    made = PodGroup(key=GroupKey("default", "g"), uid="g", policy=BASIC, owners=owners)
    return {
        "group": str(group),
        "decoded": decode_group_key("default", group.encoded) == key,
        "rank": store.membership.rank_of(pod),
        "owner": store.membership.name_owner(group),
        "look": "troupe" in KINDS,
        "document": "Troupe" in json.dumps(GroupName.model_json_schema()),
        "metric": describe_gang(made, FALLBACK)[1],
        "commands": [str(read_name(word, "default")) for word in ("troupe/hamlet", "troupes/hamlet", "tr/hamlet")],
    }


def list_required_rights() -> list[str]:
    """Return the rights on Troupes that `serried check` demands, each as account, verb and resource."""
    from cli.check.observed import NEEDS, list_rights  # noqa: PLC0415

    found = [right for right in list_rights(NEEDS) if right.group == ROW.group]
    return sorted(f"{right.account} {right.verb} {right.resource}" for right in found)


def simulate_manifest() -> dict[str, Any]:
    """Return how a what-if question reads a manifest of the kind, and the templates that it sends to an API server."""
    from cli.admission import _list_templates  # noqa: PLC0415
    from extender.look.owners import find_gangs  # noqa: PLC0415
    from serried.cluster.cache import Store  # noqa: PLC0415
    from serried.rules.all import RULES  # noqa: PLC0415

    found = find_gangs([("document 1", MANIFEST)], Store({"serried"}, rules=RULES), "default")
    (gang,) = found.gangs
    return {
        "refused": found.refused,
        "group": gang.source,
        "members": [(pod.name, pod.index) for pod in gang.members],
        "need": gang.group.policy.min_count,
        "templates": [(list(each.path), each.pods) for each in _list_templates(MANIFEST)],
    }


async def run_controller() -> dict[str, Any]:
    """Run the controller on an API server with Troupes. Return what it follows and the PodGroup that it creates."""
    from serried.feed import OPTIONAL_KINDS, SELECTED_PODS, Kind  # noqa: PLC0415
    from serried.kube.wire import owners  # noqa: PLC0415
    from tests.support.apiserver import FakeApiServer  # noqa: PLC0415
    from tests.support.controller_harness import GROUPS, controller_on, wait_until  # noqa: PLC0415

    async with FakeApiServer() as server:
        server.served |= {owners("Troupe")}
        async with controller_on(server) as controller:
            server.add(owners("Troupe"), MANIFEST)
            await wait_until(lambda: bool(server.list_objects(GROUPS)))
            followed = sorted(controller.store.membership.followed)
        (group,) = server.list_objects(GROUPS)
    return {
        "followed": followed,
        "optional": Kind("troupes") in OPTIONAL_KINDS,
        "pods": SELECTED_PODS[Kind("pods.troupes")].labels,
        "minCount": group["spec"]["schedulingPolicy"]["gang"]["minCount"],
        "owner": group["metadata"]["ownerReferences"][0],
    }


if __name__ == "__main__":
    register()
    json.dump(
        {
            "names": list_names(),
            "rights": list_required_rights(),
            "whatif": simulate_manifest(),
            "controller": asyncio.run(run_controller()),
        },
        sys.stdout,
    )
