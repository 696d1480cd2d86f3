"""The walk-throughs can be typed as they stand where that takes no provider; their labels keep a gang together."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Spec
from bench.cluster.release import HELM_VERSIONS
from tests.e2e.examples.stage import ExampleStage
from tests.e2e.manifests.charts import RELEASE, find_helm
from tests.e2e.manifests.server import NAMESPACE, Server
from tests.support.cluster_stage import RACK
from tests.support.clusters import run_cluster
from tests.support.written import ROOT, find_code_blocks

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "walkthroughs.md").read_text()
INTRODUCTION, *PARTS = PAGE.split("\n## ")
BLOCKS = {part.split("\n", 1)[0]: block for part in PARTS for block in find_code_blocks(part, "sh")}
LABELS = sorted(set(re.findall(r"`([a-z0-9.]+/[a-z0-9-]+)`", INTRODUCTION)))
PROVIDERS = {"aws", "az", "docker", "gcloud", "kind", "oc"}
ELSEWHERE = {*PROVIDERS, "serried"}
"""Commands that are not run here: those of providers, and those that tests/unit/docs and tests/e2e/commands check."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster without anything of ours, and without racks."""
    spec = Spec("walkthroughs", nodes=4, racks=2, blocks=1, api="fallback", hold="filter", serried=False)
    with run_cluster(spec, tmp_path_factory) as cluster:
        cluster.kubectl("label", "nodes", "--all", f"{RACK}-")
        yield Server(cluster, tmp_path_factory.mktemp("objects"))


@pytest.fixture
def shell(bare: Server) -> Iterator[str]:
    """kubectl and helm with the credentials of the cluster, as functions of a shell; the release goes afterwards."""
    helm = find_helm(HELM_VERSIONS[0])
    kubeconfig = bare.cluster.kubeconfig
    yield "\n".join(
        f'{name}() {{ "{program}" --kubeconfig "{kubeconfig}" "$@"; }}'
        for name, program in (("kubectl", bare.cluster.kubectl_program), ("helm", helm.program))
    )
    helm.run("uninstall", RELEASE, "--no-hooks", "--namespace", NAMESPACE, "--wait", "--kubeconfig", str(kubeconfig))
    bare.run("delete", "jobs", "--all", "--timeout=60s")
    bare.run("delete", "namespace", NAMESPACE, "--timeout=60s")


def test_each_cluster_of_the_table_has_its_commands() -> None:
    clusters = re.findall(r"^\| (\w+) \|", INTRODUCTION, re.MULTILINE)[1:]
    assert clusters == [heading.split(":")[0] for heading in BLOCKS][1:]
    programs = {shlex.split(line, comments=True)[0] for block in BLOCKS.values() for line in block.splitlines()}
    assert programs == {*ELSEWHERE, "kubectl", "helm", "sed"}


@pytest.mark.tools
@pytest.mark.parametrize("heading", BLOCKS)
def test_its_commands_install_serried_and_make_a_job(bare: Server, shell: str, heading: str) -> None:
    nodes = [node["metadata"]["name"] for node in bare.get("nodes")["items"]]
    lines = [line for line in BLOCKS[heading].splitlines() if line.split()[0] not in ELSEWHERE]
    written = re.sub(r"NODE-(\d)", lambda match: nodes[int(match[1]) - 1], "\n".join(lines))

    done = run(f"set -eo pipefail\n{shell}\n{written}")

    assert done.returncode == 0, done.stderr
    bare.run("-n", NAMESPACE, "rollout", "status", "deploy/serried", "deploy/serried-controller", "--timeout=60s")
    assert len(bare.get("jobs")["items"]) == 1


@pytest.mark.parametrize("label", LABELS)
def test_a_gang_stays_among_nodes_with_one_value_of_the_label(stage: ExampleStage, label: str) -> None:
    with stage.labelled(label):
        stage.create_job("train", 6, cpu="8", key=label)
        stage.await_bound("train", 6)
        assert len(stage.racks("train")) == 1
        stage.delete_job("train")


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a shell in the checkout."""
    return subprocess.run(["bash", "-c", script], cwd=Path(ROOT), capture_output=True, text=True, check=False)
