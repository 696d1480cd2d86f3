"""Filter plugins of kube-scheduler against what docs/placement.md says of them: a new one has to have its row.

So has a new feature of the kubelet that the plugin NodeDeclaredFeatures looks for.
"""

import re
from pathlib import Path

import pytest

from tests.support.clusters import NEXT_SCHEDULER
from tests.support.go_modules import locate

pytestmark = [pytest.mark.e2e, pytest.mark.full]

PLACEMENT = Path(__file__).parents[3] / "docs" / "placement.md"
_FILTER = re.compile(r"^func \(\w+ \*?\w+\) Filter\(", re.MULTILINE)

TOLD = {
    "dynamicresources": "ResourceClaims of pods",
    "interpodaffinity": "as InterPodAffinity",
    "nodeaffinity": "as NodeAffinity",
    "nodedeclaredfeatures": "as NodeDeclaredFeatures",
    "nodeports": "host ports",
    "noderesources": "requests of containers",
    "nodeunschedulable": "NodeUnschedulable",
    "nodevolumelimits": "how many volumes of a driver a node takes",
    "podtopologyspread": "as PodTopologySpread",
    "tainttoleration": "TaintToleration",
    "volumebinding": "claims that wait for their first consumer",
    "volumerestrictions": "ReadWriteOncePod",
    "volumezone": "zone labels",
}
"""The folder of each plugin, and the words by which its row is found."""

OF_NO_GANG = {
    "nodename": "a pod that names its node is bound already",
    "deferredpodscheduling": "pods that have a node, and wait for room to grow there (gate off by default)",
}


@pytest.mark.parametrize("version", ["v1.35.4", "v1.36.4", "v1.37.1", f"v{NEXT_SCHEDULER}"])
def test_each_filter_of_a_version_has_a_row(version: str) -> None:
    folder = locate("k8s.io/kubernetes", version) / "pkg" / "scheduler" / "framework" / "plugins"
    sources = (path for path in folder.glob("*/*.go") if not path.name.endswith("_test.go"))
    filters = {path.parent.name for path in sources if _FILTER.search(path.read_text())}
    assert filters <= TOLD.keys() | OF_NO_GANG.keys()
    assert len(filters) > 10, "they are written as this test reads them"


READ = {
    "podcertificatesmldsa": "certificates for ML-DSA keys",
    "restartallcontainers": "`RestartAllContainers`",
    "securityprofileoci": "seccomp profiles of type `OCI`",
    "usernamespaceshostnetwork": "`hostUsers: false` with `hostNetwork`",
    "volumebindmountoptions": "`bindMountOptions`",
}
"""The folder of each feature of the kubelet that NodeDeclaredFeatures wants for new pods, and its words in the row."""

OF_NO_NEW_POD = {
    "dranodeallocatableresources",
    "draoptionalnodeoperations",
    "extendwebsocketstokubelet",
    "inplacepodresize",
}
"""Features that its InferForScheduling answers with false, whatever the pod."""


@pytest.mark.parametrize("version", ["v0.35.4", "v0.36.4", "v0.37.1", f"v0.{NEXT_SCHEDULER.removeprefix('1.')}"])
def test_each_feature_that_a_node_declares_for_new_pods_is_in_the_row(version: str) -> None:
    folder = locate("k8s.io/component-helpers", version) / "nodedeclaredfeatures" / "features"
    features = {path.name for path in folder.iterdir() if path.is_dir()}
    assert features <= READ.keys() | OF_NO_NEW_POD
    assert "restartallcontainers" in features, "they lie where this test looks for them"


@pytest.mark.parametrize("words", [*TOLD.values(), *READ.values()])
def test_each_row_is_there(words: str) -> None:
    assert words in PLACEMENT.read_text()
