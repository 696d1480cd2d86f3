"""Finds the tool that installed Serried: Helm, kubectl or ``serried install``. Findings name its repair command."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from serried.api.names import Raw, read_map, read_objects, read_text
from serried.api.parent import MANAGED_BY

INSTALLER = "serried-install"
"""The field manager of ``serried install``."""

_RELEASE = "meta.helm.sh/release-name"
_CONTAINERS = ("initContainers", "containers")


class Tool(StrEnum):
    """The tool that installed Serried."""

    HELM = "helm"
    SERRIED = "serried"

    KUBECTL = "kubectl"
    """``kubectl apply -k``, or any other tool that applies the kustomization."""


class Piece(StrEnum):
    """A part of an installation that a finding may tell the user to install again.

    The value is its folder in ``manifests/kustomize``.
    """

    CRDS = "crds"
    RBAC = "rbac"
    POLICIES = "policies"
    MARKER = "marker"
    GATE = "gate"
    ISOLATED = "overlays/isolated"
    VOLUMES_AND_DEVICES = "volumes-and-devices"
    CONTROL_PLANE = "overlays/control-plane"


_VALUES: Mapping[Piece, str] = {Piece.VOLUMES_AND_DEVICES: " --set volumesAndDevices.enabled=true"}
"""Options of ``helm upgrade`` that turn on a part which is off by default. All other parts need no option."""


class InstallMethod(NamedTuple):
    """The tool by which an installation was made, and its options."""

    tool: Tool = Tool.KUBECTL

    release: str = ""
    """The name of Helm's release and its namespace, as arguments of helm: ``NAME -n NAMESPACE``; "" for other tools."""

    options: str = ""
    """The options of ``serried install`` that would install the same images and shape again; "" for other tools."""

    def command_for(self, piece: Piece) -> str:
        """Return the command that installs a part as it is shipped, for the ``fix`` of a finding."""
        if self.tool is Tool.HELM and piece is Piece.CRDS:
            return "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -"
        if self.tool is Tool.HELM:
            return f"{self._upgrade()}{_VALUES.get(piece, '')}"
        if self.tool is Tool.SERRIED:
            return self._install()
        return f"kubectl apply -k manifests/kustomize/{piece}"

    def use_scheduler(self, minor: int) -> str:
        """Return how to get a kube-scheduler of the API server's minor version, for the ``fix`` of a finding.

        That is a command, or an edit of a file.
        """
        if self.tool is Tool.HELM:
            return f"{self._upgrade()} --set scheduler.image.tag="  # empty: the API server's version
        if self.tool is Tool.SERRIED:
            return self._install()
        return f"set newTag: v1.{minor}.x for kube-scheduler in manifests/kustomize/base/kustomization.yaml"

    def _upgrade(self) -> str:
        return f"helm upgrade {self.release} CHART --reset-then-reuse-values"

    def _install(self) -> str:
        return f"serried install {self.options}"


KUBECTL = InstallMethod()
"""The method that findings assume until `read_method` has found the real one."""


def read_method(deployment: Raw, *, gated: bool = False) -> InstallMethod:
    """Return how the extender's Deployment was installed, by its labels and field managers.

    ``gated`` is True if the installation adds scheduling gates to new members, which the Deployment does not show. An
    empty ``deployment`` counts as installed by kubectl.
    """
    metadata = read_map(deployment, "metadata")
    if read_text(read_map(metadata, "labels"), MANAGED_BY) == "Helm":
        name = read_text(read_map(metadata, "annotations"), _RELEASE, "RELEASE")
        return InstallMethod(Tool.HELM, release=f"{name} -n {read_text(metadata, 'namespace')}")
    if any(each.get("manager") == INSTALLER for each in read_objects(metadata, "managedFields")):
        return InstallMethod(Tool.SERRIED, options=_read_options(deployment, gated=gated))
    return KUBECTL


def _read_options(deployment: Raw, *, gated: bool) -> str:
    pod = read_map(read_map(read_map(deployment, "spec"), "template"), "spec")
    containers = {read_text(each, "name"): each for kind in _CONTAINERS for each in read_objects(pod, kind)}
    extender, scheduler = containers.get("extender", {}), containers.get("scheduler", {})
    isolated = "--isolated=on" in (extender.get("args") or ())
    shape = "isolated" if isolated else "gate" if gated else "base"
    image = read_text(extender, "image", "IMAGE")
    of_scheduler = read_text(scheduler, "image", "IMAGE").rpartition(":v")
    return f"--image {image} --shape {shape} --scheduler-image {of_scheduler[0] or of_scheduler[2]}"
