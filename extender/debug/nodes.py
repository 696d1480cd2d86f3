"""``/debug/nodes``: what each node has, and what is used of it."""

from fastapi import APIRouter, Response

from extender.core import Core
from extender.debug.view import View, exemplify, write_list


class NodeView(View):
    """A node: what it has, and what bound, assumed and reserved pods take of it."""

    name: str
    allocatable: dict[str, int]
    used: dict[str, int]
    unschedulable: bool
    labels: dict[str, str]


_EXAMPLE = NodeView(
    name="node-7",
    allocatable={"cpu": 16_000, "memory": 68_719_476_736, "pods": 110},
    used={"cpu": 14_000, "memory": 8_589_934_592, "pods": 3},
    unschedulable=False,
    labels={"kubernetes.io/hostname": "node-7", "topology.kubernetes.io/rack": "rack-2"},
)


def nodes_routes(core: Core) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/nodes", response_model=list[NodeView], responses=exemplify([_EXAMPLE]))
    async def list_nodes(prefix: str = "", limit: int = 500) -> Response:
        """Nodes by name, with what bound, assumed and reserved pods use of them.

        `prefix` chooses those whose name begins so, `limit` the first ones. Amounts are in the API's units, CPU in
        thousandths of a core.
        """
        names = sorted(name for name in core.store.nodes if name.startswith(prefix))
        # Between two of them one may go.
        return await write_list(_view_node(core, name) for name in names[: max(0, limit)] if name in core.store.nodes)

    return router


def _view_node(core: Core, name: str) -> NodeView:
    node = core.store.nodes[name]
    return NodeView(
        name=name,
        allocatable=dict(node.allocatable),
        used=dict(core.store.occupancy.used.get(name, {})),
        unschedulable=node.unschedulable,
        labels=dict(node.labels),
    )
