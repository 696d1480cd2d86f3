"""Render the templates of the chart: the files of the kustomizations, with references to the chart's values.

A file of a kustomization becomes a file of the chart, and keeps its comments. Objects that only some shapes have are
put into a condition. Deployments lose their comments: kustomizations patch them, so they are rendered from the patched
objects. The entry is `render_templates`.
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
"""By text of the kustomizations: the template text that replaces it."""

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
"""The files that Helm keeps when it uninstalls the chart, because users have objects of these CRDs."""

_SELECTED = frozenset({"monitoring/podmonitor.yaml", "monitoring/rules.yaml"})
"""The files whose objects Prometheus selects by labels."""

_KEEP = "\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n"

_MARK = re.compile(r"^(?P<indent> *)(?:- )?'@(?P<lines>\d+)@'(?:: null)?$|'@(?P<inline>\d+)@'", re.MULTILINE)
"""Matches a mark that `_Template` puts into the YAML: as a whole line, or as a value."""

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
    """Return the folder of each shape's kustomization."""
    return {shape: kustomize / ("base" if shape == "base" else f"overlays/{shape}") for shape in SHAPES}


def render_templates(kustomize: Path) -> dict[str, str]:
    """Return the files of the chart that come from files of the kustomizations: the text by path in the chart."""
    shapes = {shape: build(overlay) for shape, overlay in list_overlays(kustomize).items()}
    files: dict[str, str] = {}
    for source in sorted({item.source for items in shapes.values() for item in items}):
        name = str(source.relative_to(kustomize.resolve()))
        if source.parent.name == "crds":
            files[name] = f"---\n{source.read_text()}"  # helm show crds of Helm 3 puts nothing between them
        elif source.name == "scheduler-config.yaml":
            files[f"files/{name}"] = _set_values(source.read_text())
        elif source.name != "namespace.yaml":  # helm install --create-namespace creates it before the chart
            files[f"templates/{name}"] = _MADE % name + _render_file(source, shapes)
    return files | _render_options(kustomize)


def _render_options(kustomize: Path) -> dict[str, str]:
    """Return the files that are switched on by other values than the shape: the text by path in the chart."""
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
    """Return a text of the kustomizations with references to values. Template syntax in the text is escaped."""
    text = re.sub(r"\{\{.*?\}\}", lambda found: f"{{{{ `{found[0]}` }}}}", text)
    for written, of_values in _OF_VALUES.items():
        text = text.replace(written, of_values)
    return text.replace(_FIRST_CONDITION, _wrap(_FIRST_CONDITION, "not .Values.labelledNamespaces.enabled"))


def _add_labels(text: str, more: str = "dict") -> str:
    """Return the text of objects with the chart's common labels, and with those of the expression ``more``."""

    def put(found: re.Match[str]) -> str:
        before, header, after = found[0].partition("  labels:\n")
        return before + (header or "  labels:\n") + f"    {_LABELS.format(more=more)}" + after

    return _METADATA.sub(put, text)


def _in_shapes(shapes: Sequence[str]) -> str:
    """Return the template condition for these shapes, "" for all shapes."""
    if set(shapes) == set(SHAPES):
        return ""
    names = [f'"{shape}"' for shape in SHAPES if shape in shapes]
    return f"eq .Values.shape {names[0]}" if len(names) == 1 else f"has .Values.shape (list {' '.join(names)})"


def _wrap(text: str, condition: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n" if condition else text


def _render_deployments(found: Mapping[str, Item]) -> Iterator[tuple[str, str]]:
    """Yield a template of the Deployment and its condition, for each set of shapes that differ only in arguments."""
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
    """Makes one template from the Deployments of some shapes. `render` may be called once.

    A YAML dumper cannot write template actions. So they are kept in a list, marks like ``@3@`` are put into the object,
    and the marks in the dumped text are replaced.
    """

    def __init__(self, contents: Mapping[str, Json]) -> None:
        self._contents = contents
        """The Deployment by shape. They differ only in the arguments of containers."""

        self._texts: list[str] = []
        """The template text of each mark."""

    def render(self) -> str:
        """Return the text of the template."""
        deployment = copy.deepcopy(next(iter(self._contents.values())))
        containers = _list_containers(deployment)
        name = containers[0]["name"]
        deployment["spec"]["replicas"] = self._mark(f"{{{{ .Values.{name}.replicas }}}}")
        self._set_metadata(deployment["spec"]["template"]["metadata"])
        self._set_pod(deployment["spec"]["template"]["spec"], name, deployment["spec"]["selector"]["matchLabels"])
        for number, container in enumerate(containers):
            self._set_container(container, number)
        text = yaml.dump(deployment, Dumper=_NoAliases, sort_keys=False, width=1000)
        return _MARK.sub(self._replace_mark, _add_labels(_set_values(text)))

    def _set_metadata(self, metadata: Json) -> None:
        """Add the labels and annotations of the values to the pod template's metadata."""
        metadata["labels"] = {**metadata["labels"], self._mark(_POD_LABELS): None}
        if "annotations" in metadata:
            metadata["annotations"][self._mark(_MORE.format(path="podAnnotations"))] = None
        else:
            metadata[self._mark(_BLOCK_IF_SET.format(path="podAnnotations", key="annotations"))] = None

    def _set_pod(self, pod: Json, name: str, labels: Mapping[str, str]) -> None:
        """Put values into the spec of the pods. ``name`` is the first container's, ``labels`` select the pods."""
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
        """Append the certificate and the process's own value (like ``extraVolumes``) to a list, which may be absent."""
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
        """Yield the arguments of a container: those of the shapes, in conditions where needed, and those of values."""
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
        """Return a mark, which `render` replaces by the template text."""
        self._texts.append(text.rstrip())
        return f"@{len(self._texts) - 1}@"

    def _replace_mark(self, found: re.Match[str]) -> str:
        if found["inline"]:
            return self._texts[int(found["inline"])]
        level = len(found["indent"])
        text = self._texts[int(found["lines"])].replace("LEVEL", str(level)).replace("INDENT", str(level + 2))
        return textwrap.indent(text, found["indent"])


class _NoAliases(yaml.SafeDumper):
    """A YAML dumper that writes an object in full wherever it occurs, without anchors."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True
