{{/* The name of all objects: that of the release, or nameOverride. As a dependency of another chart, which names its own objects after
the release, RELEASE-etcd. */}}
{{- define "etcd.name" -}}
{{- $default := .Release.Name -}}
{{- if not .Chart.IsRoot }}{{ $default = printf "%s-%s" .Release.Name .Chart.Name }}{{ end -}}
{{- .Values.nameOverride | default $default -}}
{{- end }}

{{/* Labels by which Services, the PodDisruptionBudget and NetworkPolicies select the pods. They cannot be changed later. */}}
{{- define "etcd.selector" -}}
app.kubernetes.io/part-of: {{ include "etcd.name" . | quote }}
app.kubernetes.io/component: etcd-statefulset
{{- end }}

{{/* Labels of all objects. They differ from those of etcd-druid, which would manage the objects otherwise. */}}
{{- define "etcd.labels" -}}
app.kubernetes.io/part-of: {{ include "etcd.name" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "etcd.tls" -}}
{{- if ne .Values.tls.source "none" }}yes{{ end -}}
{{- end }}

{{- define "etcd.scheme" -}}
{{- if include "etcd.tls" . }}https{{ else }}http{{ end -}}
{{- end }}

{{/* The name of a TLS Secret. The argument is a list of the context and server, client or peer. */}}
{{- define "etcd.secret" -}}
{{- $kind := index . 1 -}}
{{- with index . 0 -}}
{{- get .Values.tls.secrets $kind | default (printf "%s-%s-tls" (include "etcd.name" .) $kind) -}}
{{- end -}}
{{- end }}

{{/* The suffix of the members' names. It contains the namespace, because members in other namespaces may have the same name. */}}
{{- define "etcd.domain" -}}
{{ include "etcd.name" . }}-peer.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Not empty if the backups are on their own volume, because store.url is not set. */}}
{{- define "etcd.onVolume" -}}
{{- if not .Values.store.url }}yes{{ end -}}
{{- end }}

{{/* The URL of the store. A bucket without a prefix gets one, so that two releases can share it. */}}
{{- define "etcd.store" -}}
{{- if include "etcd.onVolume" . -}}
file:///var/etcd/backups
{{- else -}}
{{- $parts := splitn "?" 2 .Values.store.url -}}
{{- if regexMatch "^(s3|gs|azblob)://[^/]+/?$" $parts._0 -}}
{{- trimSuffix "/" $parts._0 }}/{{ .Release.Namespace }}/{{ include "etcd.name" . -}}
{{- else -}}
{{- $parts._0 -}}
{{- end -}}
{{- $keys := $parts._1 -}}
{{- if .Values.store.ca.secret }}{{ $keys = join "&" (compact (list $keys (printf "ca=/var/etcd/store-ca/%s" .Values.store.ca.key))) }}{{ end -}}
{{- with $keys }}?{{ . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The Secrets to mount for access to the store, as a YAML list of names and Secrets. */}}
{{- define "etcd.storeFolders" -}}
{{- range $name, $secret := dict "signing" .Values.store.signing.secret "store-ca" .Values.store.ca.secret "google" .Values.store.googleKey.secret }}
{{- with $secret }}
- {name: {{ $name }}, secret: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "etcd.googleKey" -}}
{{- with .Values.store.googleKey -}}
{{- if .secret -}}
- name: GOOGLE_APPLICATION_CREDENTIALS
  value: /var/etcd/google/{{ .key }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The sidecar's settings of the store, as YAML: provider, container, prefix, variable and the path of the credentials. */}}
{{- define "etcd.sidecarStore" -}}
{{- if include "etcd.onVolume" . -}}
{provider: Local, container: backups, prefix: {{ include "etcd.name" . }}}
{{- else -}}
{{- $url := urlParse (include "etcd.store" .) -}}
{{- $kind := get (dict
  "s3" "provider: S3, variable: AWS_APPLICATION_CREDENTIALS, path: /var/etcd-backup, value: /var/etcd-backup"
  "gs" "provider: GCS, variable: GOOGLE_APPLICATION_CREDENTIALS, path: /var/.gcp, value: /var/.gcp/serviceaccount.json"
  "azblob" "provider: ABS, variable: AZURE_APPLICATION_CREDENTIALS, path: /var/etcd-backup, value: /var/etcd-backup") $url.scheme -}}
{ {{- $kind }}, container: {{ $url.host }}, prefix: {{ trimPrefix "/" $url.path -}} }
{{- end -}}
{{- end }}

{{/* A quantity in bytes. */}}
{{- define "etcd.bytes" -}}
{{- $unit := get (dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) (regexFind "[MGT]i$" .) -}}
{{- mul (regexFind "^[0-9]+" . | int64) $unit -}}
{{- end }}

{{/* The names of the leases of a component: members or backups. */}}
{{- define "etcd.memberLeases" -}}
{{- $name := include "etcd.name" . -}}
{{- range until (int .Values.replicas) }}
- {{ $name }}-{{ . }}
{{- end }}
{{- end }}

{{- define "etcd.backupLeases" -}}
{{- $name := include "etcd.name" . }}
- {{ $name }}-full-snap
- {{ $name }}-delta-snap
{{- end }}

{{- define "etcd.hasLeases" -}}
{{- if or .Values.leases .Values.sidecar.enabled }}yes{{ end -}}
{{- end }}

{{/* Not empty if members leave the cluster when they are stopped by a scale-down. */}}
{{- define "etcd.follows" -}}
{{- if not (or .Values.sidecar.enabled (include "etcd.onVolume" .)) }}yes{{ end -}}
{{- end }}

{{/* Not empty if the members need a token for the API server. */}}
{{- define "etcd.asks" -}}
{{- if or .Values.events (include "etcd.hasLeases" .) (include "etcd.follows" .) }}yes{{ end -}}
{{- end }}

{{- define "etcd.image" -}}
{{- with .Values.image }}{{ with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}{{ end -}}
{{- end }}

{{/* The Secret with the credentials of the bucket. */}}
{{- define "etcd.credentials" -}}
{{- .Values.store.secret | default (printf "%s-backup-credentials" (include "etcd.name" .)) -}}
{{- end }}

{{/* A checksum of the configuration. The pods restart when it changes. Scaling must not restart them, so the checksum does not
depend on the number of members, except with sidecars, which read the list of members from the configuration. */}}
{{- define "etcd.checksum" -}}
{{- $of := . -}}
{{- if not .Values.sidecar.enabled -}}
{{- $of = merge (dict "Values" (merge (dict "replicas" 5) .Values)) . -}}
{{- end -}}
{{- include "etcd.configuration" $of | sha256sum -}}
{{- end }}

{{/* etcd's configuration, one for all members, in the operator's format: docs/configuration.md. Each member finds its own URLs by
the name of its pod. etcdConfig overrides all keys. */}}
{{- define "etcd.configuration" -}}
{{- $name := include "etcd.name" . -}}
{{- $scheme := include "etcd.scheme" . -}}
{{- $initial := list -}}
{{- $peers := dict -}}
{{- $clients := dict -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $host := printf "%s://%s-%d.%s" $scheme $name $i (include "etcd.domain" $) -}}
{{- $initial = append $initial (printf "%s-%d=%s:2380" $name $i $host) -}}
{{- $_ := set $peers (printf "%s-%d" $name $i) (list (printf "%s:2380" $host)) -}}
{{- $_ = set $clients (printf "%s-%d" $name $i) (list (printf "%s:2379" $host)) -}}
{{- end -}}
{{- $all := dict
  "name" "etcd-config"
  "data-dir" "/var/etcd/data/new.etcd"
  "metrics" "extensive"
  "snapshot-count" 10000
  "quota-backend-bytes" (include "etcd.bytes" .Values.quota | int64)
  "auto-compaction-mode" "periodic"
  "auto-compaction-retention" "30m"
  "listen-client-urls" (printf "%s://0.0.0.0:2379" $scheme)
  "listen-peer-urls" (printf "%s://0.0.0.0:2380" $scheme)
  "listen-metrics-urls" (printf "%s://0.0.0.0:2381" $scheme)
  "initial-cluster-token" (printf "%s/%s" .Release.Namespace $name)
  "initial-cluster-state" "new"
  "initial-cluster" (join "," $initial)
  "initial-advertise-peer-urls" $peers
  "advertise-client-urls" $clients -}}
{{- if include "etcd.tls" . -}}
{{- range $part, $folder := dict "client-transport-security" "server" "peer-transport-security" "peer" -}}
{{- $_ := set $all $part (dict
  "cert-file" (printf "/var/etcd/ssl/%s/tls.crt" $folder)
  "key-file" (printf "/var/etcd/ssl/%s/tls.key" $folder)
  "trusted-ca-file" (printf "/var/etcd/ssl/%s/ca.crt" $folder)
  "client-cert-auth" true) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := .Values.etcdConfig -}}
{{- $_ := set $all $key $value -}}
{{- end -}}
{{- toYaml $all -}}
{{- end }}

{{/* Environment variables of the container etcd. */}}
{{- define "etcd.variables" -}}
{{- $name := include "etcd.name" . -}}
{{- $tls := include "etcd.tls" . -}}
{{- $v := .Values -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- $kubernetes := list }}
{{- if $v.events }}
{{- $kubernetes = append $kubernetes "events" }}
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
{{- end }}
{{- if and $v.leases (not $v.sidecar.enabled) }}
{{- $kubernetes = append $kubernetes "leases" }}
{{- end }}
{{- if and (include "etcd.follows" .) (not $v.sidecar.enabled) }}
{{- $kubernetes = append $kubernetes "replicas" }}
{{- end }}
{{- with $kubernetes }}
- name: ETCD_WRAPPER_KUBERNETES
  value: {{ join "," . }}
{{- end }}
{{- if $tls }}
# With these flags the wrapper serves TLS from the start, as etcd will.
- name: ETCD_WRAPPER_ETCD_CLIENT_CERT_PATH
  value: /var/etcd/ssl/client/tls.crt
- name: ETCD_WRAPPER_ETCD_CLIENT_KEY_PATH
  value: /var/etcd/ssl/client/tls.key
{{- end }}
{{- with $v.dataVersion }}
- name: ETCD_WRAPPER_ETCD_DATA_VERSION
  value: {{ . | quote }}
{{- end }}
{{- if not $v.sidecar.enabled }}
# `backup verify` restores to this directory, which needs as much space as the database. The root is read-only.
# Files that a killed command leaves here are removed later.
- name: TMPDIR
  value: /var/etcd/data
- name: ETCD_WRAPPER_BACKUP_STORE
  value: {{ include "etcd.store" . | quote }}
{{- with include "etcd.googleKey" . }}
{{ . }}
{{- end }}
{{- with $v.auth.rootPassword }}
{{- if .secret }}
- name: ETCD_WRAPPER_ROOT_PASSWORD_FILE
  value: /var/etcd/root-password/{{ .key }}
{{- end }}
{{- end }}
- name: ETCD_WRAPPER_CLUSTER_NAME
  value: {{ printf "%s/%s" .Release.Namespace $name | quote }}
{{- range $variable, $value := dict
  "BACKUP_ACK" $v.store.ack
  "BACKUP_INTERVAL" $v.store.interval
  "BACKUP_FULL_SCHEDULE" $v.store.fullSchedule
  "BACKUP_KEEP" $v.store.keep
  "BACKUP_SPOOL_LIMIT" $v.store.spoolLimit
  "RESTORE_TO" $v.restore.to
  "RESTORE_ID" $v.restore.id
  "ADOPT" $v.restore.adopt }}
{{- with $value }}
- name: ETCD_WRAPPER_{{ $variable }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if $v.store.encryption.secret }}
{{- range $variable, $file := dict "RECIPIENTS" $v.store.encryption.recipients "IDENTITIES" $v.store.encryption.identities }}
{{- with $file }}
- name: ETCD_WRAPPER_BACKUP_{{ $variable }}
  value: /var/etcd/encryption/{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- if $v.store.signing.secret }}
{{- range $variable, $file := dict "SIGNING_KEY" $v.store.signing.key "TRUSTED_KEYS" $v.store.signing.trusted }}
{{- with $file }}
- name: ETCD_WRAPPER_BACKUP_{{ $variable }}
  value: /var/etcd/signing/{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
