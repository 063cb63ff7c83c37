{{- define "specgate.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "specgate.image" -}}
{{- $tag := printf "%s-%s" .Chart.AppVersion (eq .Values.mode "front" | ternary "gateway" "vllm0.32.0") -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default $tag }}
{{- end }}

{{- define "specgate.labels" -}}
app.kubernetes.io/name: specgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The objects of a file that kustomize builds as well, each given to a template that lays the values over it. */}}
{{- define "specgate.objects" -}}
{{- $root := .root }}
{{- range $text := splitList "\n---\n" ($root.Files.Get .file) }}
{{- $object := fromYaml $text }}
{{- $name := $object.metadata.name | replace "specgate" (include "specgate.name" $root) }}
{{- $_ := set $object.metadata "name" $name }}
{{- $_ := set $object.metadata "labels" (fromYaml (include "specgate.labels" $root)) }}
{{- include (printf "specgate.%s" $object.kind) (dict "object" $object "root" $root) }}
{{- if $object }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}

{{/* Adds the release to every set of labels, so that two of them don't select one another's pods. */}}
{{- define "specgate.ofRelease" -}}
{{- $release := .root.Release.Name }}
{{- if kindIs "map" .node }}
{{- if hasKey .node "app.kubernetes.io/name" }}{{ $_ := set .node "app.kubernetes.io/instance" $release }}{{ end }}
{{- range $each := .node }}{{ include "specgate.ofRelease" (dict "node" $each "root" $.root) }}{{ end }}
{{- else if kindIs "slice" .node }}
{{- range $each := .node }}{{ include "specgate.ofRelease" (dict "node" $each "root" $.root) }}{{ end }}
{{- end }}
{{- end }}

{{- define "specgate.PodDisruptionBudget" -}}
{{- if eq .root.Values.mode "front" }}
{{- $_ := set .object.spec.selector "matchLabels" (fromYaml (include "specgate.frontLabels" .root)) }}
{{- end }}
{{- include "specgate.ofRelease" (dict "node" .object.spec "root" .root) }}
{{- end }}

{{- define "specgate.NetworkPolicy" -}}
{{- $isScraped := and .root.Values.podMonitor.enabled (eq .root.Values.mode "front") }}
{{- if $isScraped }}
{{- $_ := set .object.spec "ingress" (append .object.spec.ingress (dict "ports" (list (dict "port" "admin")))) }}
{{- end }}
{{- include "specgate.ofRelease" (dict "node" .object.spec "root" .root) }}
{{- end }}

{{- define "specgate.PodMonitor" -}}
{{- $endpoint := index .object.spec.podMetricsEndpoints 0 }}
{{- if hasKey $endpoint "authorization" }}{{ $_ := set $endpoint.authorization "credentials" .root.Values.podMonitor.key }}{{ end }}
{{- include "specgate.ofRelease" (dict "node" .object.spec "root" .root) }}
{{- end }}
