{{- define "specgate.frontLabels" -}}
{{ include "specgate.labels" . }}
app.kubernetes.io/component: front
{{- end }}

{{- define "specgate.frontConfig" -}}
{{- if .Values.configFile }}{{ .Values.configFile }}
{{- else if .Values.config }}{{ toYaml .Values.config }}
{{- else }}{{ fail "say which engines: config, or --set-file configFile=specgate.yaml, which `specgate front URL... --write specgate.yaml` writes" }}
{{- end }}
{{- end }}

{{- define "specgate.Deployment" -}}
{{- $values := .root.Values.front }}
{{- $name := include "specgate.name" .root }}
{{- $labels := fromYaml (include "specgate.frontLabels" .root) }}
{{- $config := include "specgate.frontConfig" .root }}
{{- $spec := .object.spec }}
{{- $_ := set $spec "selector" (dict "matchLabels" $labels) }}
{{- $annotations := merge (dict "checksum/config" (sha256sum $config)) $values.podAnnotations }}
{{- $_ := set $spec.template "metadata" (dict "labels" $labels "annotations" $annotations) }}
{{- if $values.autoscaling.enabled }}{{ $_ := unset $spec "replicas" }}{{ else }}{{ $_ := set $spec "replicas" $values.replicas }}{{ end }}
{{- $pod := $spec.template.spec }}
{{- $_ := set (index $pod.topologySpreadConstraints 0) "labelSelector" (dict "matchLabels" $labels) }}
{{- $_ := set (index $pod.volumes 0) "configMap" (dict "name" $name) }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $field }}{{ $_ := set $pod $field . }}{{ end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- if $values.endpoints }}
{{- $_ := set $pod "serviceAccountName" $name }}
{{- $_ := set $pod "automountServiceAccountToken" true }}
{{- end }}
{{- $container := index $pod.containers 0 }}
{{- $_ := set $container "image" (include "specgate.image" .root) }}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy }}
{{- $_ := set $container "env" (concat $container.env $values.env) }}
{{- $_ := mergeOverwrite $container.resources $values.resources }}
{{- end }}

{{- define "specgate.Service" -}}
{{- $values := .root.Values.front.service }}
{{- $_ := set .object.spec "selector" (fromYaml (include "specgate.frontLabels" .root)) }}
{{- $_ := set .object.spec "type" $values.type }}
{{- $_ := set (index .object.spec.ports 0) "port" $values.port }}
{{- with $values.annotations }}{{ $_ := set $.object.metadata "annotations" . }}{{ end }}
{{- end }}

{{- define "specgate.HorizontalPodAutoscaler" -}}
{{- $values := .root.Values.front.autoscaling }}
{{- $_ := set .object.spec.scaleTargetRef "name" (include "specgate.name" .root) }}
{{- $_ := set .object.spec "minReplicas" $values.minReplicas }}
{{- $_ := set .object.spec "maxReplicas" $values.maxReplicas }}
{{- $_ := set (index .object.spec.metrics 0).resource.target "averageUtilization" $values.targetCPU }}
{{- if not $values.enabled }}{{ range $field := keys .object }}{{ $_ := unset $.object $field }}{{ end }}{{ end }}
{{- end }}

{{- define "specgate.ServiceAccount" -}}{{- end }}
{{- define "specgate.Role" -}}{{- end }}
{{- define "specgate.RoleBinding" -}}
{{- $name := include "specgate.name" .root }}
{{- $_ := set .object.roleRef "name" $name }}
{{- $_ := set (index .object.subjects 0) "name" $name }}
{{- end }}
