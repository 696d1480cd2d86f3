"""The Helm chart is made from the kustomization, and its schema refuses what the chart does not know."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bench.chart.__main__ import BY_HAND, CHART, KUSTOMIZE, list_stale, main, render_chart
from bench.chart.kustomization import build
from bench.chart.templates import list_overlays
from serried import __version__


def read(name: str) -> str:
    return (CHART / name).read_text()


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return dict(json.loads(read("values.schema.json")))


def test_the_chart_and_every_version_are_those_that_the_script_writes() -> None:
    assert list_stale() == [], "run python -m bench.chart --write"
    assert main([]) == 0


def test_a_file_that_nothing_makes_and_one_that_has_been_changed_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.chart.__main__.CHART", tmp_path)
    monkeypatch.setattr("bench.chart.__main__.ROOT", tmp_path)
    monkeypatch.setattr("bench.chart.__main__.render_versions", dict)
    assert main(["--write"]) == 0
    assert (tmp_path / "values.yaml").read_text() == read("values.yaml")
    (tmp_path / "values.yaml").write_text("shape: base\n")
    (tmp_path / "templates" / "more.yaml").write_text("kind: Pod\n")
    assert main([]) == 1
    assert capsys.readouterr().out.split() == ["templates/more.yaml", "values.yaml"]


def test_chart_and_application_have_the_version_of_the_package() -> None:
    about = yaml.safe_load(read("Chart.yaml"))
    assert (about["version"], about["appVersion"]) == (__version__, __version__)


def test_every_object_of_every_shape_has_its_template() -> None:
    made = {str(path.relative_to(CHART)) for path in render_chart()}
    for overlay in list_overlays(KUSTOMIZE).values():
        sources = {str(item.source.relative_to(KUSTOMIZE)) for item in build(overlay)}
        assert {name for name in sources if not {f"templates/{name}", f"files/{name}", name} & made} == set()
    assert {path.name for path in (CHART / "templates").iterdir() if path.is_file()} == BY_HAND


def test_definitions_stand_where_helm_creates_them_and_neither_changes_nor_deletes_them() -> None:
    shipped = {path.name for path in (KUSTOMIZE / "crds").glob("*s.yaml")}
    assert {path.name for path in (CHART / "crds").iterdir()} == shipped
    for name in shipped:
        definition = yaml.safe_load(read(f"crds/{name}"))
        assert definition["metadata"]["labels"]["app.kubernetes.io/version"] == __version__
        # The chart asks for their version by name.
        assert f'"{definition["spec"]["names"]["plural"]}"' in read("templates/_helpers.tpl")


def test_only_components_that_are_flags_have_no_template() -> None:
    parts = {path.parent.name for path in KUSTOMIZE.glob("*/kustomization.yaml")}
    made = {path.relative_to(CHART).parts[1] for path in render_chart() if path.is_relative_to(CHART / "templates")}
    kept_in_files = {"crds", "scheduler", "isolated"}
    assert parts - made - kept_in_files == {"evict-broken", "evict-disrupted"}


def test_the_defaults_are_values_that_the_schema_allows(schema: dict[str, Any]) -> None:
    jsonschema.validate(yaml.safe_load(read("values.yaml")), schema)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"replicas": 3}, id="unknown"),
        pytest.param({"image": {"name": "serried"}}, id="unknown, deeper"),
        pytest.param({"shape": "insulated"}, id="no shape"),
        pytest.param({"extender": {"replicas": 0}}, id="nobody"),
        pytest.param({"extender": {"replicas": "2"}}, id="a number as text"),
        pytest.param({"extender": {"extraArgs": ["preemption=off"]}}, id="no flag"),
        pytest.param({"extender": {"extraArgs": ["--preemtion=off"]}}, id="a flag misspelt"),
        pytest.param({"extender": {"extraArgs": ["--workers=8"]}}, id="a flag of the controller"),
        pytest.param({"controller": {"extraArgs": ["--preemption=off"]}}, id="a flag of the extender"),
        pytest.param({"controller": {"extraArgs": ["--workers"]}}, id="a flag without its value"),
        pytest.param({"podLabels": {"a": "b c"}}, id="no value of a label"),
        pytest.param({"podAnnotations": {"a": 1}}, id="a number for an annotation"),
        pytest.param({"serviceAccount": {"name": "me"}}, id="a name for two accounts"),
        pytest.param({"affinity": {"x": {}}}, id="no affinity"),
        pytest.param({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, id="half a constraint"),
        pytest.param({"extender": {"extraEnv": [{"NAME": "a"}]}}, id="a variable without a name"),
        pytest.param({"extender": {"extraVolumes": [{"name": "a"}]}}, id="a volume of nothing"),
        pytest.param({"extender": {"extraVolumes": [{"name": "a", "hostPath": {}}]}}, id="a volume that is forbidden"),
        pytest.param({"extender": {"extraVolumes": [{"name": "tls", "emptyDir": {}}]}}, id="a volume of the chart"),
        pytest.param({"controller": {"extraVolumeMounts": [{"name": "a", "mountPath": "a"}]}}, id="no whole path"),
        pytest.param({"scheduler": {"names": []}}, id="no scheduler"),
        pytest.param({"scheduler": {"names": ["default-scheduler"]}}, id="the scheduler of its own pods"),
        pytest.param({"scheduler": {"names": ["Gangs"]}}, id="no name of a scheduler"),
        pytest.param({"tls": {"secretName": "A Secret"}}, id="no name of a Secret"),
        pytest.param({"tls": {"issuer": {"kind": "Vault"}}}, id="no kind of an issuer"),
        pytest.param({"monitoring": {"interval": "15"}}, id="a time without a unit"),
        pytest.param({"monitoring": {"dashboard": {"label": {}}}}, id="misspelt, deeper"),
        pytest.param({"extender": {"extraArgs": "--preemption=off"}}, id="no list"),
        pytest.param({"extender": {"resources": {"request": {"cpu": "1"}}}}, id="misspelt"),
        pytest.param({"extender": {"resources": {"requests": {"cpu": "one"}}}}, id="no quantity"),
        pytest.param({"image": {"digest": "sha256:123"}}, id="half a digest"),
        pytest.param({"imagePullPolicy": "Sometimes"}, id="no policy"),
        pytest.param({"imagePullSecrets": ["regcred"]}, id="a Secret by its name alone"),
        pytest.param({"priorityClassName": ""}, id="no class"),
        pytest.param({"tolerations": [{"key": "a", "operator": "exists"}]}, id="no operator"),
        pytest.param({"networkPolicy": {"apiServerPorts": []}}, id="no way to the API server"),
        pytest.param({"networkPolicy": {"enabled": "yes"}}, id="no switch"),
        pytest.param({"architectures": []}, id="no node"),
        pytest.param({"labelledNamespaces": {"replaced": []}}, id="no name"),
        pytest.param({"labelledNamespaces": {"replaced": ["volcano,kai"]}}, id="two names in one"),
    ],
)
def test_other_values_are_refused(schema: dict[str, Any], values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"global": {"anything": 1}}, id="of a chart around it"),
        pytest.param({"extender": {"resources": {"requests": {"cpu": 2, "memory": "1.5Gi"}}}}, id="quantities"),
        pytest.param({"imagePullSecrets": [{"name": "regcred"}]}, id="a Secret"),
        pytest.param({"nodeSelector": {"pool": "system"}}, id="a pool"),
        pytest.param({"extender": {"extraArgs": ["--preemption=advice", "--traces=http://a/?b=c"]}}, id="flags"),
        pytest.param({"commonLabels": {"example.com/team": "platform", "cost": ""}}, id="labels"),
        pytest.param({"scheduler": {"names": ["serried", "gangs.example.com"]}}, id="two schedulers"),
        pytest.param({"monitoring": {"interval": "1m30s"}}, id="a time"),
    ],
)
def test_these_values_are_allowed(schema: dict[str, Any], values: dict[str, Any]) -> None:
    jsonschema.validate(values, schema)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("namePrefix: my-", "namePrefix is not read", id="a field"),
        pytest.param(
            "patches: [{target: {kind: ConfigMap, name: one}, patch: '{data: {}}'}]", "only JSON patches", id="merging"
        ),
        pytest.param(
            "patches: [{target: {kind: ConfigMap, name: one}, patch: '[{op: copy, path: /a}]'}]", "copy", id="a step"
        ),
    ],
)
def test_a_kustomization_that_is_not_understood_is_an_error(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "one.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}\n")
    (tmp_path / "kustomization.yaml").write_text(f"resources: [one.yaml]\n{line}\n")
    with pytest.raises(ValueError, match=said):
        build(tmp_path)
