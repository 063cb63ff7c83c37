{{- define "specgate.RayService" -}}
{{- $values := .root.Values.engines }}
{{- $spec := .object.spec }}
{{- with .root.Values.serveConfig }}{{ $_ := set $spec "serveConfigV2" . }}{{ end }}
{{- $cluster := $spec.rayClusterConfig }}
{{- include "specgate.ofRelease" (dict "node" $cluster "root" .root) }}
{{- $head := $cluster.headGroupSpec.template.spec }}
{{- $workers := index $cluster.workerGroupSpecs 0 }}
{{- $worker := $workers.template.spec }}
{{- range $field := list "replicas" "minReplicas" "maxReplicas" }}{{ $_ := set $workers $field (int $values.nodes) }}{{ end }}
{{- $_ := mergeOverwrite $workers.rayStartParams $values.worker.rayStartParams }}
{{- with $values.nodeSelector }}{{ $_ := set $worker "nodeSelector" . }}{{ end }}
{{- with $values.tolerations }}{{ $_ := set $worker "tolerations" . }}{{ end }}
{{- $_ := set (index $worker.volumes 1).persistentVolumeClaim "claimName" $values.modelsClaim }}
{{- $_ := mergeOverwrite (index $head.containers 0).resources $values.head.resources }}
{{- $_ := mergeOverwrite (index $worker.containers 0).resources $values.worker.resources }}
{{- range $pod := list $head $worker }}
{{- $container := index $pod.containers 0 }}
{{- $_ := set $container "image" (include "specgate.image" $.root) }}
{{- $_ := set $container "imagePullPolicy" $.root.Values.image.pullPolicy }}
{{- with $.root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- end }}
{{- with $values.headState }}{{ $_ := set $cluster "gcsFaultToleranceOptions" . }}{{ end }}
{{- end }}

{{- define "specgate.PersistentVolumeClaim" -}}
{{- $_ := set .object.metadata "name" .root.Values.engines.modelsClaim }}
{{- $_ := set .object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") }}
{{- end }}

{{- define "specgate.Job" -}}
{{- include "specgate.ofRelease" (dict "node" .object.spec "root" .root) }}
{{- $pod := .object.spec.template.spec }}
{{- $_ := set (index $pod.containers 0) "image" (include "specgate.image" .root) }}
{{- range $volume := $pod.volumes }}
{{- if hasKey $volume "persistentVolumeClaim" }}{{ $_ := set $volume.persistentVolumeClaim "claimName" $.root.Values.engines.modelsClaim }}{{ end }}
{{- end }}
{{- end }}
