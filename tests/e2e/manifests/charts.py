"""Helm, and what it and kustomize make of the manifests."""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bench import tools
from bench.chart.__main__ import CHART
from bench.cluster import ClusterError, binaries
from bench.cluster.progress import silent
from bench.cluster.spec import DEFAULT_VERSION
from tests.e2e.manifests.server import KUSTOMIZE, NAMESPACE, Json

Objects = dict[tuple[str, str], Json]
"""By kind and name."""

RELEASE = "serried"
_HASHED = re.compile(r"(serried-scheduler-config)-[0-9a-z]{10}\b")


@dataclass(frozen=True, slots=True)
class Helm:
    """One version of Helm."""

    program: Path
    version: str

    def run(self, *arguments: str) -> str:
        """Return what Helm prints. Raises ClusterError with Helm's message if it fails."""
        done = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def template(self, *options: str, kubernetes: str = DEFAULT_VERSION, namespace: str = NAMESPACE) -> str:
        """Return what Helm renders, with the CRDs."""
        return self.run(
            *(
                "template",
                RELEASE,
                str(CHART),
                "--include-crds",
                "--kube-version",
                kubernetes,
                "--namespace",
                namespace,
            ),
            *options,
        )

    def refusal(self, *options: str, kubernetes: str = DEFAULT_VERSION, namespace: str = NAMESPACE) -> str:
        """Return the message with which Helm refuses to render these options."""
        with pytest.raises(ClusterError) as refused:
            self.template(*options, kubernetes=kubernetes, namespace=namespace)
        return str(refused.value)


def find_helm(version: str) -> Helm:
    """Helm of a version; skips the test where it is not built."""
    program = binaries.find_helm(version)
    if program is None:
        pytest.skip(f"Helm {version} is not built: make helm")
    return Helm(program, version)


@contextmanager
def registry() -> Iterator[str]:
    """The address of a registry of images and charts in memory; skips the test where it cannot be built."""
    try:
        with tools.registry() as address:
            yield address
    except tools.ToolError as error:
        pytest.skip(str(error))


def kustomize(folder: Path) -> str:
    """Return what kubectl renders from a kustomization."""
    program = binaries.locate(DEFAULT_VERSION, silent)["kubectl"]
    done = subprocess.run([str(program), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def combine(scratch: Path, overlay: str, components: Sequence[str]) -> Path:
    """A kustomization of an overlay with more components, or with resources that are no components."""
    home = os.path.relpath(KUSTOMIZE, scratch)
    content: dict[str, list[str]] = {"resources": [f"{home}/{overlay}"], "components": []}
    for name in components:
        kind = yaml.safe_load((KUSTOMIZE / name / "kustomization.yaml").read_text())["kind"]
        content["components" if kind == "Component" else "resources"].append(f"{home}/{name}")
    (scratch / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return scratch


def read_objects(text: str, without: Iterable[str] = ()) -> Objects:
    """The objects of such a text but those of some kinds. The hashes in generated names, which differ, are cut off."""
    found = [each for each in yaml.safe_load_all(_HASHED.sub(r"\1", text)) if each is not None]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(objects) == len(found)
    return {key: each for key, each in objects.items() if key[0] not in set(without)}
