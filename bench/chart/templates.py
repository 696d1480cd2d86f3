"""The templates of the chart: what the kustomization writes, with the values in their places.

A file of the kustomization becomes a file of the chart with the same comments. What only some shapes have stands in a
condition. A Deployment is written anew, because kustomizations patch it: its comments stay behind.
"""

import copy
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.chart.kustomization import Item, Json, build, read_documents
from bench.chart.values import SHAPES

_MADE = "{{- /* Made from manifests/kustomize/%s by python -m bench.chart: change that, not this. */ -}}\n"
_NAMESPACE = "serried-system"
_CONFIG = "serried-scheduler-config"

_PORTS = """\
    - ports:
        - protocol: TCP
          port: 443
        - protocol: TCP
          port: 6443
"""
_PORTS_OF_VALUES = """\
    - ports:
        {{- range .Values.networkPolicy.apiServerPorts }}
        - protocol: TCP
          port: {{ . }}
        {{- end }}
"""

_PROFILE = "  - schedulerName: serried\n"
_PROFILES_OF_VALUES = """\
  {{- range .Values.scheduler.names }}
  - schedulerName: {{ . }}
  {{- end }}
"""

_OF_VALUES = {
    _NAMESPACE: "{{ .Release.Namespace }}",
    "system-cluster-critical": "{{ .Values.priorityClassName }}",
    "['serried']": '[{{ include "serried.quotedNames" . }}]',
    _PROFILE: _PROFILES_OF_VALUES,
    _PORTS: _PORTS_OF_VALUES,
    "  replaced: default-scheduler\n": '  replaced: {{ join "," .Values.labelledNamespaces.replaced | quote }}\n',
    "  scheduler: serried\n": "  scheduler: {{ first .Values.scheduler.names }}\n",
    "      interval: 15s\n": "      interval: {{ .Values.monitoring.interval }}\n",
    ": serried-verbs-tls\n": ': {{ include "serried.tlsSecret" . | default "serried-verbs-tls" }}\n',
}
"""What values replace in the text of the kustomization."""

_FIRST_CONDITION = """\
    # The first condition: ../namespaces takes it away.
    - name: scheduled-by-serried
      expression: object.spec.schedulerName in [{{ include "serried.quotedNames" . }}]
"""

_METADATA = re.compile(r"^metadata:\n(?:  .*\n)+", re.MULTILINE)
_LABELS = '{{{{- include "serried.labels" (list . {more}) | nindent 4 }}}}\n'

_ACCOUNTS = frozenset({"serried", "serried-controller"})
"""The ServiceAccounts of the processes."""

_ACCOUNT_ANNOTATIONS = """\
  {{- with .Values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
"""

_KEPT = frozenset({"compatible/podgroups.yaml"})
"""What Helm leaves when it uninstalls the chart, because people's objects are of it."""

_SELECTED = frozenset({"monitoring/podmonitor.yaml", "monitoring/rules.yaml"})
"""What Prometheus selects by labels."""

_KEEP = "\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n"

_MARK = re.compile(r"^(?P<indent> *)(?:- )?'@(?P<lines>\d+)@'(?:: null)?$|'@(?P<inline>\d+)@'", re.MULTILINE)
"""A mark that is a line of its own, or a value."""

_FLAG = re.compile("^(?:- )?(--[a-z-]+)", re.MULTILINE)

_IF_SET = """\
{{{{- with .Values.{path} }}}}
{key}: {{{{ . }}}}
{{{{- end }}}}"""

_BLOCK_IF_SET = """\
{{{{- with .Values.{path} }}}}
{key}:
  {{{{- toYaml . | nindent INDENT }}}}
{{{{- end }}}}"""

_MORE_ARGUMENTS = """\
{{{{- include "serried.refuseFlags" (list "{name}" .Values.{name}.extraArgs (list {flags})) }}}}
{{{{- range .Values.{name}.extraArgs }}}}
- {{{{ . | quote }}}}
{{{{- end }}}}"""

_OTHER_NAMESPACE = f"""\
{{{{- if ne .Release.Namespace "{_NAMESPACE}" }}}}
- --hold-switch={{{{ .Release.Namespace }}}}/serried-hold
{{{{- end }}}}"""

_REFUSE_CHANGES = """\
{{- if eq .Values.elasticJobs "refuse" }}
- --elastic-jobs=refuse
{{- end }}"""

_NAMES = """\
{{- if ne (join "," .Values.scheduler.names) "serried" }}
- --scheduler-name={{ join "," .Values.scheduler.names }}
{{- end }}"""

_CERTIFICATE = """\
{{{{- if include "serried.tlsSecret" . }}}}
{{{{- $flags := list "--tls-cert-file" "--tls-private-key-file" }}}}
{{{{- include "serried.refuseFlags" (list "{name}" .Values.{name}.extraArgs $flags) }}}}
- --tls-cert-file=/var/run/serried/tls/tls.crt
- --tls-private-key-file=/var/run/serried/tls/tls.key
{{{{- end }}}}"""

_MOUNT = """\
{{- if include "serried.tlsSecret" . }}
- name: tls
  mountPath: /var/run/serried/tls
  readOnly: true
{{- end }}"""

_VOLUME = """\
{{- with include "serried.tlsSecret" . }}
- name: tls
  secret:
    secretName: {{ . }}
{{- end }}"""

_MORE = """\
{{{{- with .Values.{path} }}}}
{{{{- toYaml . | nindent LEVEL }}}}
{{{{- end }}}}"""

_POD_LABELS = """\
{{- with merge (dict) .Values.podLabels .Values.commonLabels }}
{{- toYaml . | nindent LEVEL }}
{{- end }}"""

_AFFINITY = """\
{{- with .Values.affinity }}
{{- toYaml . | nindent LEVEL }}
{{- else }}"""

_SPREAD = """\
{{{{- range .Values.topologySpreadConstraints }}}}
- {{{{- include "serried.spread" (list . (dict {labels})) | nindent INDENT }}}}
{{{{- else }}}}"""

_END = "{{- end }}"


def list_overlays(kustomize: Path) -> dict[str, Path]:
    """The kustomization of each shape."""
    return {shape: kustomize / ("base" if shape == "base" else f"overlays/{shape}") for shape in SHAPES}


def render_templates(kustomize: Path) -> dict[str, str]:
    """The files of the chart that are made of files of the kustomization, by their path in the chart."""
    shapes = {shape: build(overlay) for shape, overlay in list_overlays(kustomize).items()}
    files: dict[str, str] = {}
    for source in sorted({item.source for items in shapes.values() for item in items}):
        name = str(source.relative_to(kustomize.resolve()))
        if source.parent.name == "crds":
            files[name] = f"---\n{source.read_text()}"  # helm show crds of Helm 3 puts nothing between them
        elif source.name == "scheduler-config.yaml":
            files[f"files/{name}"] = _set_values(source.read_text())
        elif source.name != "namespace.yaml":  # Helm can make it before anything of the chart
            files[f"templates/{name}"] = _MADE % name + _render_file(source, shapes)
    return files | _render_parts(kustomize)


def _render_parts(kustomize: Path) -> dict[str, str]:
    """What other values than the shape bring."""
    fenced, watched = ".Values.networkPolicy.enabled", ".Values.monitoring.enabled"
    labelled = ".Values.labelledNamespaces.enabled"
    parts = {
        "rbac/namespace.yaml": ".Values.namespace.create",
        "compatible/podgroups.yaml": ".Values.compatible.enabled",
        "namespaces/policy.yaml": labelled,
        "namespaces/replaced.yaml": labelled,
        "elastic-refuse/policy.yaml": 'eq .Values.elasticJobs "refuse"',
        "network-policy/policies.yaml": fenced,
        "network-policy-control-plane/policy.yaml": f"and {fenced} ({_in_shapes(['control-plane'])})",
        "monitoring/podmonitor.yaml": watched,
        "monitoring/reader.yaml": watched,
        "monitoring/rules.yaml": watched,
        "volumes-and-devices/rbac.yaml": ".Values.volumesAndDevices.enabled",
    }
    files = {"files/dashboard.json": (kustomize / "monitoring" / "dashboard.json").read_text()}
    for name, condition in parts.items():
        more = ".Values.monitoring.labels" if name in _SELECTED else "dict"
        text = _add_labels(_set_values((kustomize / name).read_text()), more)
        if name in _KEPT:
            text = text.replace("\nmetadata:\n", _KEEP, 1)
        files[f"templates/{name}"] = _MADE % name + _wrap(text, condition)
    return files


def _render_file(source: Path, shapes: Mapping[str, Sequence[Item]]) -> str:
    written: list[tuple[str, str]] = []
    for text in read_documents(source):
        identity = Item(source, text, yaml.safe_load(text)).identity
        found = {
            shape: item
            for shape, items in shapes.items()
            for item in items
            if (item.source, item.identity) == (source, identity)
        }
        if identity[0] == "Deployment":
            written += _render_deployments(found)
        elif found:
            made = _add_labels(_set_values(next(iter(found.values())).text))
            if identity[0] == "ServiceAccount" and identity[1] in _ACCOUNTS:
                made = _METADATA.sub(lambda metadata: metadata[0] + _ACCOUNT_ANNOTATIONS, made)
            written.append((made, _in_shapes(list(found))))
    if len({condition for _, condition in written}) == 1:
        return _wrap("---\n".join(text for text, _ in written), written[0][1])
    return "".join(f"---\n{_wrap(text, condition)}" for text, condition in written)


def _set_values(text: str) -> str:
    """A text of the kustomization with values in their places."""
    text = re.sub(r"\{\{.*?\}\}", lambda found: f"{{{{ `{found[0]}` }}}}", text)
    for written, of_values in _OF_VALUES.items():
        text = text.replace(written, of_values)
    return text.replace(_FIRST_CONDITION, _wrap(_FIRST_CONDITION, "not .Values.labelledNamespaces.enabled"))


def _add_labels(text: str, more: str = "dict") -> str:
    """Objects with the labels that Helm's charts have, and those of the value ``more``."""

    def put(found: re.Match[str]) -> str:
        before, header, after = found[0].partition("  labels:\n")
        return before + (header or "  labels:\n") + f"    {_LABELS.format(more=more)}" + after

    return _METADATA.sub(put, text)


def _in_shapes(shapes: Sequence[str]) -> str:
    """The condition that the shape is one of these; "" if it always is."""
    if set(shapes) == set(SHAPES):
        return ""
    names = [f'"{shape}"' for shape in SHAPES if shape in shapes]
    return f"eq .Values.shape {names[0]}" if len(names) == 1 else f"has .Values.shape (list {' '.join(names)})"


def _wrap(text: str, condition: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n" if condition else text


def _render_deployments(found: Mapping[str, Item]) -> Iterator[tuple[str, str]]:
    """A Deployment for all shapes in which only its arguments differ, with the condition for these shapes."""
    alike: dict[str, dict[str, Json]] = {}
    for shape, item in found.items():
        alike.setdefault(yaml.safe_dump(_without_arguments(item.content)), {})[shape] = item.content
    for contents in alike.values():
        yield _Template(contents).render(), _in_shapes(list(contents))


def _without_arguments(deployment: Json) -> Json:
    bare = copy.deepcopy(deployment)
    for container in _list_containers(bare):
        container.pop("args", None)
    return bare


def _list_containers(deployment: Json) -> list[Json]:
    pod = deployment["spec"]["template"]["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


class _Template:
    """A Deployment as it is in some shapes, which becomes a template.

    YAML has no place for what a template says. So the content gets marks, for which text is put into the YAML.
    """

    def __init__(self, contents: Mapping[str, Json]) -> None:
        self._contents = contents
        """The Deployment by shape. Only arguments of containers differ."""

        self._texts: list[str] = []
        """What stands for each mark."""

    def render(self) -> str:
        """The template."""
        deployment = copy.deepcopy(next(iter(self._contents.values())))
        containers = _list_containers(deployment)
        name = containers[0]["name"]
        deployment["spec"]["replicas"] = self._mark(f"{{{{ .Values.{name}.replicas }}}}")
        self._set_metadata(deployment["spec"]["template"]["metadata"])
        self._set_pod(deployment["spec"]["template"]["spec"], name, deployment["spec"]["selector"]["matchLabels"])
        for number, container in enumerate(containers):
            self._set_container(container, number)
        text = yaml.dump(deployment, Dumper=_NoAliases, sort_keys=False, width=1000)
        return _MARK.sub(self._fill, _add_labels(_set_values(text)))

    def _set_metadata(self, metadata: Json) -> None:
        """The labels and annotations of the pods."""
        metadata["labels"] = {**metadata["labels"], self._mark(_POD_LABELS): None}
        if "annotations" in metadata:
            metadata["annotations"][self._mark(_MORE.format(path="podAnnotations"))] = None
        else:
            metadata[self._mark(_BLOCK_IF_SET.format(path="podAnnotations", key="annotations"))] = None

    def _set_pod(self, pod: Json, name: str, labels: Mapping[str, str]) -> None:
        """The pod of a Deployment with these labels, whose first container has this name."""
        for volume in pod.get("volumes", ()):
            if volume.get("configMap", {}).get("name") == _CONFIG:
                volume["configMap"]["name"] = self._mark('{{ include "serried.schedulerConfigName" . }}')
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        term["matchExpressions"][-1]["values"] = self._mark("{{ toJson .Values.architectures }}")
        pod["affinity"] = {self._mark(_AFFINITY): None, **pod["affinity"], self._mark(_END): None}
        own = " ".join(f'"{key}" "{value}"' for key, value in labels.items())
        spread = self._mark(_SPREAD.format(labels=own))
        pod["topologySpreadConstraints"] = [spread, *pod["topologySpreadConstraints"], self._mark(_END)]
        self._extend(pod, "volumes", name, _VOLUME)
        pod.pop("tolerations")
        for key in ("imagePullSecrets", "nodeSelector", "tolerations"):
            pod[self._mark(_BLOCK_IF_SET.format(path=key, key=key))] = None

    def _set_container(self, container: Json, number: int) -> None:
        name = container["name"]
        image = "schedulerImage" if name == "scheduler" else "image"
        container["image"] = self._mark(f'{{{{ include "serried.{image}" . | quote }}}}')
        container[self._mark(_IF_SET.format(path="imagePullPolicy", key="imagePullPolicy"))] = None
        container.pop("resources")
        container[self._mark(_BLOCK_IF_SET.format(path=f"{name}.resources", key="resources"))] = None
        if "args" in container:
            container["args"] = list(self._list_arguments(name, number))
            container["env"].append(self._mark(_MORE.format(path=f"{name}.extraEnv")))
            self._extend(container, "volumeMounts", name, _MOUNT)

    def _extend(self, place: Json, key: str, name: str, certificate: str) -> None:
        """Add to a list, which may not be there, the certificate and what the values of a process add."""
        items = place.get(key, [])
        extra = f"{name}.extra{key[0].upper()}{key[1:]}"
        own = [] if any(each["name"] == "tls" for each in items) else [certificate]
        marks = [self._mark(text) for text in (*own, _MORE.format(path=extra))]
        if items:
            place[key] = [*items, *marks]
            return
        place[self._mark(f'{{{{- if or (include "serried.tlsSecret" .) .Values.{extra} }}}}')] = None
        place[key] = marks
        place[self._mark(_END)] = None

    def _list_arguments(self, name: str, number: int) -> Iterator[str]:
        """The arguments of all shapes, each for the shapes that have it, and those of the values."""
        by_shape = {shape: _list_containers(content)[number]["args"] for shape, content in self._contents.items()}
        every = max(by_shape.values(), key=len)
        for argument in every:
            having = [shape for shape, own in by_shape.items() if argument in own]
            everywhere = len(having) == len(by_shape)
            yield argument if everywhere else self._mark(_wrap(f"- {argument}", _in_shapes(having)))
        conditional = [_REFUSE_CHANGES if name == "controller" else _OTHER_NAMESPACE, _NAMES]
        yield from map(self._mark, conditional)
        flags = " ".join(f'"{flag}"' for flag in _FLAG.findall("\n".join([*every, *conditional])))
        if "--tls-cert-file" not in flags:
            yield self._mark(_CERTIFICATE.format(name=name))
        yield self._mark(_MORE_ARGUMENTS.format(name=name, flags=flags))

    def _mark(self, text: str) -> str:
        """What to put into the YAML where the text is to stand."""
        self._texts.append(text.rstrip())
        return f"@{len(self._texts) - 1}@"

    def _fill(self, found: re.Match[str]) -> str:
        if found["inline"]:
            return self._texts[int(found["inline"])]
        level = len(found["indent"])
        text = self._texts[int(found["lines"])].replace("LEVEL", str(level)).replace("INDENT", str(level + 2))
        return textwrap.indent(text, found["indent"])


class _NoAliases(yaml.SafeDumper):
    """Writes what stands in several places in full."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True
