{{- define "serried.image" -}}
{{- $image := .Values.image -}}
{{- $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "serried.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{- $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (include "serried.schedulerTag" .) }}{{ end }}
{{- end }}

{{- /* The version of the API server without the suffix of a vendor, such as v1.37.1. */ -}}
{{- define "serried.clusterVersion" -}}
v{{ regexFind "[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version }}
{{- end }}

{{- /* The tag of kube-scheduler for this API server: it keeps the suffix of a pre-release, which has an image, too. */ -}}
{{- define "serried.schedulerTag" -}}
v{{ regexFind "[0-9]+\\.[0-9]+\\.[0-9]+(-(alpha|beta|rc)\\.[0-9]+)?" .Capabilities.KubeVersion.Version }}
{{- end }}

{{- /* A warning if Serried is not tested with this version of Kubernetes, otherwise empty. */ -}}
{{- define "serried.untested" -}}
{{- $newest := index .Chart.Annotations "scheduling.serried.dev/newest-tested" -}}
{{- $minor := regexFind "^v[0-9]+\\.[0-9]+" (include "serried.clusterVersion" .) | trimPrefix "v" -}}
{{- if gt (semver $minor).Minor (semver $newest).Minor -}}
Kubernetes {{ $minor }} is not tested with Serried {{ .Chart.AppVersion }}; the newest tested is {{ $newest }}.
{{- end -}}
{{- end }}

{{- define "serried.schedulerConfig" -}}
{{- $folder := get (dict "base" "scheduler" "gate" "scheduler") .Values.shape | default .Values.shape -}}
{{- tpl (.Files.Get (printf "files/%s/scheduler-config.yaml" $folder)) . -}}
{{- end }}

{{- /* The name has the hash of the file, so that a changed file rolls out the Deployment. */ -}}
{{- define "serried.schedulerConfigName" -}}
serried-scheduler-config-{{ include "serried.schedulerConfig" . | sha256sum | trunc 10 }}
{{- end }}

{{- /* The labels of an object: Helm's own, those of commonLabels, and those that the caller passes. */ -}}
{{- define "serried.labels" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" -}}
{{- $own := dict "helm.sh/chart" $chart "app.kubernetes.io/instance" $root.Release.Name "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- toYaml (merge $own (index . 1) $root.Values.commonLabels) -}}
{{- end }}

{{- /* The names of the schedulers as CEL strings, separated by commas. */ -}}
{{- define "serried.quotedNames" -}}
'{{ join "', '" .Values.scheduler.names }}'
{{- end }}

{{- /* The name of the Secret with the certificate of the listeners; "" if the processes create their own certificates. */ -}}
{{- define "serried.tlsSecret" -}}
{{- .Values.tls.secretName | default (empty .Values.tls.issuer.name | ternary "" "serried-tls") -}}
{{- end }}

{{- /* A topology spread constraint. Without a labelSelector of its own it selects pods with these labels. */ -}}
{{- define "serried.spread" -}}
{{- $own := dict "labelSelector" (dict "matchLabels" (index . 1)) -}}
{{- toYaml (hasKey (index . 0) "labelSelector" | ternary (index . 0) (merge $own (index . 0))) -}}
{{- end }}

{{- define "serried.refuseFlags" -}}
{{- $name := index . 0 -}}
{{- $set := index . 2 -}}
{{- range index . 1 -}}
{{- $flag := first (splitList "=" .) -}}
{{- if has $flag $set -}}
{{- fail (printf "%s.extraArgs may not contain %s: the chart sets this flag. Leave it out." $name $flag) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Checks of values that a JSON schema cannot express. Each one fails with a message. */ -}}
{{- define "serried.refuse" -}}
{{- include "serried.refuseKeys" . -}}
{{- include "serried.refuseNamespace" . -}}
{{- include "serried.refuseVersions" . -}}
{{- include "serried.refuseOldDefinitions" . -}}
{{- include "serried.refuseForeignPodGroups" . -}}
{{- include "serried.refuseWithoutOperators" . -}}
{{- end }}

{{- /* Users may not set labels and annotations with these prefixes: selectors, Helm and the commands depend on them. */ -}}
{{- define "serried.refuseKeys" -}}
{{- $monitoring := .Values.monitoring -}}
{{- $values := dict "commonLabels" .Values.commonLabels "podLabels" .Values.podLabels "podAnnotations" .Values.podAnnotations -}}
{{- $values = merge $values (dict "serviceAccount.annotations" .Values.serviceAccount.annotations "monitoring.labels" $monitoring.labels) -}}
{{- $values = merge $values (dict "monitoring.dashboard.labels" $monitoring.dashboard.labels "monitoring.dashboard.annotations" $monitoring.dashboard.annotations) -}}
{{- range $value, $map := $values -}}
{{- range $key, $_ := $map -}}
{{- if regexMatch "^((app|kubectl)\\.kubernetes\\.io|helm\\.sh|scheduling\\.serried\\.dev)/" $key -}}
{{- fail (printf "%s may not contain %s: the chart sets names of this prefix. Leave it out." $value $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "serried.refuseNamespace" -}}
{{- $namespace := .Release.Namespace -}}
{{- if has $namespace (list "default" "kube-system" "kube-public" "kube-node-lease") -}}
{{- fail (printf "Serried needs a separate namespace, but %s is shared, and Serried's ResourceQuota would count all its pods. Add --namespace serried-system --create-namespace." $namespace) -}}
{{- end -}}
{{- if and .Values.namespace.create (lookup "v1" "Namespace" "" "kube-system") -}}
{{- fail (printf "namespace.create is for helm template only: helm install needs the namespace before. Leave the value out, add --create-namespace, and then run: kubectl label namespace %s pod-security.kubernetes.io/enforce=restricted" $namespace) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" $namespace) -}}
{{- fail (printf "The namespace must begin with a letter, and %s does not. Choose another one with --namespace." $namespace) -}}
{{- end -}}
{{- end }}

{{- define "serried.refuseVersions" -}}
{{- $version := include "serried.clusterVersion" . -}}
{{- if and (ne .Values.shape "base") (semverCompare "<1.36.0" $version) -}}
{{- fail (printf "The shape %s needs Kubernetes 1.36, and this cluster has %s. Set shape=base." .Values.shape $version) -}}
{{- end -}}
{{- if and .Values.labelledNamespaces.enabled (semverCompare "<1.36.0" $version) -}}
{{- fail (printf "labelledNamespaces.enabled needs Kubernetes 1.36, and this cluster has %s. Leave it out, and set schedulerName in the templates of pods." $version) -}}
{{- end -}}
{{- $tag := .Values.scheduler.image.tag -}}
{{- if regexMatch "^v?[0-9]+\\.[0-9]+\\.[0-9]+" $tag -}}
{{- $behind := sub (semver $version).Minor (semver $tag).Minor -}}
{{- if lt $behind 0 -}}
{{- fail (printf "scheduler.image.tag: kube-scheduler %s is newer than the API server (%s), which Kubernetes does not support. Leave it out, or set an older one." $tag $version) -}}
{{- else if gt $behind 1 -}}
{{- fail (printf "scheduler.image.tag: kube-scheduler %s is more than one minor version older than the API server (%s), which Kubernetes does not support. Leave it out, or set a newer one." $tag $version) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Helm creates the CRDs in crds/ but never updates them. With old CRDs the API server would drop new fields. */ -}}
{{- define "serried.refuseOldDefinitions" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $upgrade := .Release.IsUpgrade -}}
{{- $wanted := .Chart.AppVersion -}}
{{- range list "compositepodgroups" "podgroups" "reservations" "topologylevels" "workloads" -}}
{{- $name := printf "%s.scheduling.serried.dev" . -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name -}}
{{- $version := dig "metadata" "labels" "app.kubernetes.io/version" "0.0.0" $found -}}
{{- if and (or $found $upgrade) (semverCompare (printf "<%s" $wanted) $version) -}}
{{- fail (printf "The CRD %s in the cluster is older than %s, or missing. Update the CRDs first: helm show crds CHART --version %s | kubectl apply --server-side --force-conflicts -f -" $name $wanted $wanted) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Without this check Helm fails, too, but its message does not name the value. */ -}}
{{- define "serried.refuseForeignPodGroups" -}}
{{- if .Values.compatible.enabled -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "podgroups.scheduling.x-k8s.io" -}}
{{- if and $found (ne (dig "metadata" "annotations" "meta.helm.sh/release-namespace" "" $found) .Release.Namespace) -}}
{{- fail "compatible.enabled: the cluster has the CRD podgroups.scheduling.x-k8s.io already. Leave the value out: Serried reads the PodGroups that are there." -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Not checked without a cluster: helm template then knows only the CRDs of --api-versions. */ -}}
{{- define "serried.refuseWithoutOperators" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $served := .Capabilities.APIVersions -}}
{{- if and .Values.monitoring.enabled (not (and ($served.Has "monitoring.coreos.com/v1/PodMonitor") ($served.Has "monitoring.coreos.com/v1/PrometheusRule"))) -}}
{{- fail "monitoring.enabled needs the Prometheus operator, whose CRDs PodMonitor and PrometheusRule (monitoring.coreos.com/v1) are not in the cluster. Install them first, or leave the value out." -}}
{{- end -}}
{{- if and .Values.tls.issuer.name (not ($served.Has "cert-manager.io/v1/Certificate")) -}}
{{- fail "tls.issuer.name needs cert-manager, whose CRD Certificate (cert-manager.io/v1) is not in the cluster. Install it first, or create the Secret yourself and name it in tls.secretName." -}}
{{- end -}}
{{- end -}}
{{- end }}
