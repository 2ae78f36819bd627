{{/* Rejects invalid combinations of values with messages that explain the fix. */}}
{{- define "etcd.checks" -}}
{{- $v := .Values -}}
{{- $name := include "etcd.name" . -}}
{{- if gt (len $name) 46 -}}
{{- fail (printf "nameOverride: %s is too long; names of pods and labels limit it to 46 characters" $name) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "nameOverride: %s is not a valid Service name; set a name that starts with a letter and contains only lower-case letters, digits and dashes" $name) -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) (include "etcd.onVolume" .) -}}
{{- fail (printf "store.url: %d members need a bucket, because only one of them could mount a volume for backups; set store.url" (int $v.replicas)) -}}
{{- end -}}
{{- if and $v.store.url (ne (int $v.replicas) 1) (hasPrefix "file:" $v.store.url) -}}
{{- fail "store.url: several members need a bucket, because a folder is in only one pod" -}}
{{- end -}}
{{- if and (eq $v.store.ack "stored") (or (gt (int $v.replicas) 1) (include "etcd.onVolume" .)) -}}
{{- fail "store.ack: stored requires a single member with a bucket; set replicas=1 and store.url, or remove store.ack" -}}
{{- end -}}
{{- if and (eq $v.persistence "none") (ne $v.store.ack "stored") -}}
{{- fail "persistence: without a volume, data is lost with the pod unless store.ack is stored; set store.ack=stored, or remove persistence" -}}
{{- end -}}
{{- if and $v.store.ca.secret (not (regexMatch "^(s3|gs|azblob):" $v.store.url)) -}}
{{- fail "store.ca: only a bucket has a certificate; set store.url, or remove store.ca" -}}
{{- end -}}
{{- if and $v.store.googleKey.secret (not (hasPrefix "gs:" $v.store.url)) -}}
{{- fail "store.googleKey: only gs:// uses a key file; set store.url, or remove store.googleKey" -}}
{{- end -}}
{{- if and $v.copy.to (include "etcd.onVolume" .) (not $v.sidecar.enabled) -}}
{{- fail "copy.to: other pods cannot access backups on the member's own volume; set store.url" -}}
{{- end -}}
{{- if and $v.copy.to (eq (trimSuffix "/" $v.copy.to) (include "etcd.store" .)) -}}
{{- fail "copy.to: must not be the store of the backups; set another bucket or prefix" -}}
{{- end -}}
{{- if ne (not $v.restore.to) (not $v.restore.id) -}}
{{- fail "restore: restore.to and restore.id must be set together, because the ID prevents repeated restores" -}}
{{- end -}}
{{- if and $v.store.encryption.secret (not $v.store.encryption.recipients) -}}
{{- fail "store.encryption: nothing is encrypted without recipients; set store.encryption.recipients" -}}
{{- end -}}
{{- if and $v.store.signing.secret (not (or $v.store.signing.key $v.store.signing.trusted)) -}}
{{- fail "store.signing: no keys are configured; set store.signing.key, store.signing.trusted or both" -}}
{{- end -}}
{{- range $key, $_ := $v.etcdConfig -}}
{{- if has (lower $key) (list "data-dir" "wal-dir") -}}
{{- fail (printf "etcdConfig: %s is set by the chart; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- $needed := div (mul 11 (add (mul 3 (include "etcd.bytes" $v.quota | int64)) 2147483648)) 10 -}}
{{- if lt (include "etcd.bytes" $v.volume.size | int64) $needed -}}
{{- fail (printf "volume.size: %s is too small for a quota of %s; set at least %dMi, which is 1.1 × (3 × quota + 2Gi)" $v.volume.size $v.quota (div $needed 1048576)) -}}
{{- end -}}
{{- if and $v.auth.rootPassword.secret (gt (int $v.replicas) 1) (eq $v.tls.source "none") -}}
{{- fail "auth.rootPassword: several members need TLS, because a joining member sends the password to the others; set tls.source" -}}
{{- end -}}
{{- if and (eq $v.tls.source "none") (or $v.tls.secrets.server $v.tls.secrets.client $v.tls.secrets.peer) -}}
{{- fail "tls.secrets: the Secrets are not used without tls.source=secrets" -}}
{{- end -}}
{{- if and $v.tls.issuer.name (ne $v.tls.source "cert-manager") -}}
{{- fail "tls.issuer: requires tls.source=cert-manager" -}}
{{- end -}}
{{- if and $v.tls.names (ne $v.tls.source "cert-manager") -}}
{{- fail "tls.names: requires tls.source=cert-manager; the certificates in your own Secrets already contain their names" -}}
{{- end -}}
{{- if and (or $v.networkPolicy.clients $v.networkPolicy.clientCIDRs $v.networkPolicy.scrapers) (not $v.networkPolicy.enabled) -}}
{{- fail "networkPolicy: clients, clientCIDRs and scrapers require networkPolicy.enabled=true" -}}
{{- end -}}
{{- if $v.sidecar.enabled -}}
{{- if $v.leases -}}
{{- fail "leases: with sidecar.enabled=true, the sidecar renews the leases; remove leases" -}}
{{- end -}}
{{- range $key, $set := dict "restore" $v.restore.to "restore.adopt" $v.restore.adopt "copy" $v.copy.to "store.ack" $v.store.ack "store.interval" $v.store.interval "store.fullSchedule" $v.store.fullSchedule "store.keep" $v.store.keep "store.spoolLimit" $v.store.spoolLimit "store.ca" $v.store.ca.secret "store.googleKey" $v.store.googleKey.secret "store.encryption" $v.store.encryption.secret "store.signing" $v.store.signing.secret -}}
{{- if $set -}}
{{- fail (printf "%s: with sidecar.enabled=true, the sidecar makes and restores the backups and ignores this value; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- if $v.auth.rootPassword.secret -}}
{{- fail "auth.rootPassword: with sidecar.enabled=true, authentication would lock out the sidecar; remove the value" -}}
{{- end -}}
{{- if eq $v.dataVersion "3.6" -}}
{{- fail "dataVersion: the sidecar's etcd 3.5 must be able to read the data; remove dataVersion" -}}
{{- end -}}
{{- if or (contains "?" $v.store.url) (hasPrefix "file:" $v.store.url) -}}
{{- fail "store.url: the sidecar supports only s3://, gs:// and azblob:// with a bucket and a prefix; all other settings come from its Secret" -}}
{{- end -}}
{{- else if $v.sidecar.extraArgs -}}
{{- fail "sidecar.extraArgs: requires sidecar.enabled=true" -}}
{{- end -}}
{{- range $key := list "app.kubernetes.io/part-of" "app.kubernetes.io/component" -}}
{{- if hasKey $v.podLabels $key -}}
{{- fail (printf "podLabels: %s is set by the chart; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "kubectl.kubernetes.io/default-container" "checksum/configuration" -}}
{{- if hasKey $v.podAnnotations $key -}}
{{- fail (printf "podAnnotations: %s is set by the chart; remove it" $key) -}}
{{- end -}}
{{- end -}}
{{- $set := dict -}}
{{- range include "etcd.variables" . | fromYamlArray -}}
{{- if hasKey $set .name -}}
{{- fail (printf "extraEnv: %s is set twice, or already set by the chart" .name) -}}
{{- end -}}
{{- $_ := set $set .name true -}}
{{- end -}}
{{- end }}
