"""With which tool Serried was installed, and so with which command a part of it is put right."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from serried.api.names import Raw, read_map, read_objects, read_text
from serried.api.parent import MANAGED_BY

INSTALLER = "serried-install"
"""The field manager of ``serried install``."""

_RELEASE = "meta.helm.sh/release-name"


class Tool(StrEnum):
    """What has installed it."""

    HELM = "helm"
    SERRIED = "serried"

    KUBECTL = "kubectl"
    """``kubectl apply -k``, or a tool that does as it does."""


class Piece(StrEnum):
    """A part of an installation; the value is its folder in ``manifests/kustomize``."""

    CRDS = "crds"
    RBAC = "rbac"
    POLICIES = "policies"
    MARKER = "marker"
    GATE = "gate"
    ISOLATED = "overlays/isolated"
    VOLUMES_AND_DEVICES = "volumes-and-devices"
    CONTROL_PLANE = "overlays/control-plane"


_VALUES: Mapping[Piece, str] = {
    Piece.MARKER: " --set shape=isolated",
    Piece.ISOLATED: " --set shape=isolated",
    Piece.GATE: " --set shape=gate",
    Piece.VOLUMES_AND_DEVICES: " --set volumesAndDevices.enabled=true",
    Piece.CONTROL_PLANE: " --set shape=control-plane",
}
_SHAPES: Mapping[Piece, str] = {
    Piece.MARKER: " --shape isolated",
    Piece.ISOLATED: " --shape isolated",
    Piece.GATE: " --shape gate",
}


class Way(NamedTuple):
    """How an installation was made."""

    tool: Tool = Tool.KUBECTL

    release: str = ""
    """The name of Helm's release, and its namespace behind a blank and ``-n``."""

    image: str = ""
    """Serried's image."""

    def put(self, piece: Piece) -> str:
        """The command that puts a part into the cluster as it is shipped."""
        if self.tool is Tool.HELM and piece is Piece.CRDS:
            return "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -"
        if self.tool is Tool.HELM:
            return f"helm upgrade {self.release} CHART --reuse-values{_VALUES.get(piece, '')}"
        if self.tool is Tool.SERRIED:
            return f"serried install --image {self.image}{_SHAPES.get(piece, '')}"
        return f"kubectl apply -k manifests/kustomize/{piece}"

    def use_scheduler(self, minor: int) -> str:
        """What gives it a kube-scheduler of another minor version."""
        if self.tool is Tool.HELM:
            return f"helm upgrade {self.release} CHART --reuse-values --set scheduler.image.tag=v1.{minor}.x"
        if self.tool is Tool.SERRIED:
            return f"serried install --image {self.image} --scheduler-version 1.{minor}.x"
        return f"set newTag: v1.{minor}.x for kube-scheduler in manifests/kustomize/base/kustomization.yaml"


KUBECTL = Way()
"""How an installation was made of which nothing else is known."""


def read_way(deployment: Raw) -> Way:
    """How the installation was made to which the extender's Deployment belongs."""
    metadata = read_map(deployment, "metadata")
    pod = read_map(read_map(read_map(deployment, "spec"), "template"), "spec")
    containers = [*read_objects(pod, "initContainers"), *read_objects(pod, "containers")]
    image = next((read_text(each, "image") for each in containers if each.get("name") == "extender"), "IMAGE")
    if read_text(read_map(metadata, "labels"), MANAGED_BY) == "Helm":
        name = read_text(read_map(metadata, "annotations"), _RELEASE, "RELEASE")
        return Way(Tool.HELM, release=f"{name} -n {read_text(metadata, 'namespace')}")
    if any(each.get("manager") == INSTALLER for each in read_objects(metadata, "managedFields")):
        return Way(Tool.SERRIED, image=image)
    return KUBECTL
