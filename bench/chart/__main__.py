"""Generate the Helm chart, and the objects that `serried install` applies, from the kustomizations.

    python -m bench.chart            prints the names of generated files that are out of date
    python -m bench.chart --write    writes these files

The command also copies the version from `serried/__init__.py` to all other files that have it. Tests compare the chart
with the generated one, and the objects that Helm renders with those of `kubectl kustomize`.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.chart.kustomization import build
from bench.chart.templates import list_overlays, render_templates
from bench.chart.values import list_values, render_schema, render_table, render_values
from bench.generated import ROOT
from serried import IMAGE, REGISTRY, __version__
from serried.api.level import NEWEST_MINOR, OLDEST_MINOR

KUSTOMIZE = ROOT / "manifests" / "kustomize"
CHART = ROOT / "manifests" / "helm" / "serried"

INSTALLED = ROOT / "cli" / "manifests.json"
"""The file with the objects that `serried install` applies: one object in each line, with the shapes that have it."""

BY_HAND = frozenset(
    {"_helpers.tpl", "NOTES.txt", "certificate.yaml", "dashboard.yaml", "scheduler-config.yaml", "uninstall.yaml"}
)
"""The templates that are written by hand, and not generated from a kustomization."""

_ABOUT = """\
apiVersion: v2
name: serried
description: Gang scheduling and topology-aware placement for a stock kube-scheduler
type: application
version: {version}
appVersion: {version}
kubeVersion: ">=1.{oldest}.0-0"
home: https://github.com/serried/serried
sources: [https://github.com/serried/serried]
maintainers: [{{name: The maintainers of Serried, url: https://github.com/serried}}]
keywords: [scheduler, gang-scheduling, topology, batch, gpu, kube-scheduler]
annotations:
  # A newer Kubernetes is not refused. The chart's notes say that it has not been tested.
  scheduling.serried.dev/newest-tested: "1.{newest}"
"""

_README = """\
# Serried

Gang scheduling and topology-aware placement for a stock kube-scheduler. How to install, upgrade and remove it:
[Install](../../../docs/install.md#how-do-i-install-it-with-helm).

## Values

The chart refuses all values that are not in this table.

"""

_VERSION = r"\d+\.\d+\.\d+"
_VERSIONED = {
    "README.md": "(?<=serried:)|(?<=--version )",
    "Dockerfile": "(?<=serried:)",
    "docs/install.md": "(?<=serried\n    newTag: )|(?<=--version )|(?<=download/v)|(?<=serried_cli-)",
    "docs/walkthroughs.md": "(?<=serried:)",
    "manifests/kustomize/base/kustomization.yaml": f"(?<=name: {IMAGE}\n    newTag: )",
    **{
        str(path.relative_to(ROOT)): "(?<=app.kubernetes.io/version: )"
        for path in sorted((KUSTOMIZE / "crds").glob("*s.yaml"))
    },
}
"""By file: a regular expression that matches before each place of the version."""

_PUBLISHED = r"ghcr\.io/[a-z0-9-]+(?=/(?:charts/)?serried\b)"
_WITH_REGISTRY = [
    *("README.md", "docs/index.md", "docs/install.md", "docs/walkthroughs.md"),
    *(f"manifests/kustomize/base/{name}.yaml" for name in ("kustomization", "serried", "controller")),
]
"""The files that name the registry of releases."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files that are out of date, or without ``--write`` print their names and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m bench.chart", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the files")
    write = parser.parse_args(arguments).write
    if write:
        for path, text in render_versions().items():
            path.write_text(text)
    stale = list_stale()
    if not write:
        sys.stdout.writelines(f"{path.relative_to(ROOT)}\n" for path in stale)
        return 1 if stale else 0
    made = render_chart() | render_installed()
    for path in stale:
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path])
        else:
            path.unlink()
    return 0


def list_stale() -> list[Path]:
    """Return the files that differ from the generated text, that are missing, or that are no longer generated."""
    made = render_chart() | render_versions() | render_installed()
    existing = {path for path in CHART.rglob("*") if path.is_file()}
    by_hand = {CHART / "templates" / name for name in BY_HAND}
    differing = [path for path, text in made.items() if not path.is_file() or path.read_text() != text]
    return sorted({*differing, *(existing - made.keys() - by_hand)})


def render_chart() -> dict[Path, str]:
    """Return the generated files of the chart: the text by path."""
    values = list_values(build(list_overlays(KUSTOMIZE)["isolated"]))
    files = {
        "Chart.yaml": _ABOUT.format(version=__version__, oldest=OLDEST_MINOR, newest=NEWEST_MINOR),
        "README.md": _README + render_table(values),
        "values.yaml": render_values(values),
        "values.schema.json": render_schema(values),
        **render_templates(KUSTOMIZE),
    }
    return {CHART / name: text for name, text in files.items()}


def render_installed() -> dict[Path, str]:
    """Return the file with the objects that `serried install` applies: its text by path.

    The shape control-plane is left out: a command cannot change the cluster's own scheduler.
    """
    shapes = {shape: build(folder) for shape, folder in list_overlays(KUSTOMIZE).items() if shape != "control-plane"}
    lines: dict[str, list[str]] = {}
    for shape, items in shapes.items():
        for item in items:
            lines.setdefault(json.dumps(item.content, separators=(",", ":")), []).append(shape)
    rows = (f'{{"shapes":{json.dumps(names)},"object":{text}}}' for text, names in lines.items())
    return {INSTALLED: "[\n" + ",\n".join(rows) + "\n]\n"}


def render_versions() -> dict[Path, str]:
    """Return the files that have the version or the registry, with those of this release: the text by path."""
    texts = {name: re.sub(_PUBLISHED, REGISTRY, (ROOT / name).read_text()) for name in _WITH_REGISTRY}
    for name, before in _VERSIONED.items():
        text = texts.get(name) or (ROOT / name).read_text()
        texts[name] = re.sub(f"({before}){_VERSION}", __version__, text)
    return {ROOT / name: text for name, text in texts.items()}


if __name__ == "__main__":
    sys.exit(main())
