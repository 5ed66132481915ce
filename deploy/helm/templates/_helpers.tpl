{{- define "kandev.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* Labels by which Pods of the release are selected: they never change. */ -}}
{{- define "kandev.selector" -}}
app.kubernetes.io/name: kandev
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kandev.labels" -}}
{{ include "kandev.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kandev.image" -}}
{{- $repository := required "Set image.repository to the image that deploy/Dockerfile builds" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end -}}
{{- end -}}

{{- define "kandev.claim" -}}
{{- default (printf "%s-data" (include "kandev.name" .)) .Values.data.existingClaim -}}
{{- end -}}

{{- /* What every container of the control plane may do: nothing but run as its own user. */ -}}
{{- define "kandev.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What every Pod has. OnRootMismatch: the files of the data directory keep their modes when a Pod starts. */ -}}
{{- define "kandev.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A disk of one node: its Pods run together. The first of them may run anywhere. */ -}}
{{- define "kandev.placement" -}}
{{- if eq .Values.data.accessMode "ReadWriteOnce" }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
{{- include "kandev.selector" . | nindent 12 }}
          matchExpressions:
            - {key: app.kubernetes.io/component, operator: In, values: [web, supervisor, worker]}
{{- end }}
{{- end -}}

{{- define "kandev.environment" -}}
- {name: KANDEV_DATA_DIR, value: /var/lib/kandev/data}
- {name: KANDEV_REPOSITORY_ROOTS, value: /var/lib/kandev/repositories}
- {name: KANDEV_HOST_NAME, value: {{ default (include "kandev.name" .) .Values.hostName | quote }}}
{{- if not (hasKey .Values.settings "KANDEV_LOG_FORMAT") }}
- {name: KANDEV_LOG_FORMAT, value: json}
{{- end }}
{{- $host := required "Set site.host to the name that browsers call" .Values.site.host }}
{{- if .Values.serviceMonitor.enabled }}
# Prometheus calls each Pod by its address.
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: KANDEV_ALLOWED_HOSTS, value: "{{ $host }},$(POD_IP)"}
{{- else }}
- {name: KANDEV_ALLOWED_HOSTS, value: {{ $host | quote }}}
{{- end }}
- name: KANDEV_TRUSTED_ORIGINS
  value: {{ default (printf "https://%s" .Values.site.host) .Values.site.origin | quote }}
{{- with .Values.site.trustedProxies }}
- {name: KANDEV_TRUSTED_PROXIES, value: {{ join "," . | quote }}}
{{- end }}
{{- with .Values.sessions.image }}
- {name: KANDEV_AGENTCTL_IMAGE, value: {{ . | quote }}}
{{- end }}
- {name: KANDEV_SECRET_KEY_FILE, value: /run/kandev/secret-key}
- {name: KANDEV_DATABASE_URL_FILE, value: /run/kandev/database-url}
- {name: KANDEV_REDIS_URL_FILE, value: /run/kandev/redis-url}
{{- if .Values.secrets.metricsToken.name }}
- {name: KANDEV_METRICS_TOKEN_FILE, value: /run/kandev/metrics-token}
{{- end }}
{{- range $setting, $secret := .Values.secrets.more }}
- {name: {{ $setting }}_FILE, value: /run/kandev/{{ $setting }}}
{{- end }}
{{- range $setting, $value := .Values.settings }}
- {name: {{ $setting }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "kandev.mounts" -}}
- {name: data, mountPath: /var/lib/kandev}
- {name: secrets, mountPath: /run/kandev, readOnly: true}
- {name: scratch, mountPath: /tmp}
{{- end -}}

{{- define "kandev.secretSource" -}}
- secret:
    name: {{ .secret.name }}
    items:
      - {key: {{ .secret.key }}, path: {{ .path }}}
{{- end -}}

{{- define "kandev.volumes" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
{{- include "kandev.secretSource" (dict "secret" .Values.secrets.secretKey "path" "secret-key") | nindent 6 }}
{{- include "kandev.secretSource" (dict "secret" .Values.secrets.databaseUrl "path" "database-url") | nindent 6 }}
{{- include "kandev.secretSource" (dict "secret" .Values.secrets.redisUrl "path" "redis-url") | nindent 6 }}
{{- if .Values.secrets.metricsToken.name }}
{{- include "kandev.secretSource" (dict "secret" .Values.secrets.metricsToken "path" "metrics-token") | nindent 6 }}
{{- end }}
{{- range $setting, $secret := .Values.secrets.more }}
{{- include "kandev.secretSource" (dict "secret" $secret "path" $setting) | nindent 6 }}
{{- end }}
- name: scratch
  emptyDir: {sizeLimit: 1Gi}
{{- end -}}

{{- define "kandev.dataVolume" -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ include "kandev.claim" . }}
{{- end -}}
