{{/* Invalid combinations of values, each with a message that says what to do. */}}
{{- define "etcd.checks" -}}
{{- $v := .Values -}}
{{- $name := include "etcd.name" . -}}
{{- if gt (len $name) 46 -}}
{{- fail (printf "nameOverride: %s is too long: at most 46 characters leave room for the names of pods and their labels" $name) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "nameOverride: %s is no name of a Service, which begins with a letter and has letters, digits and dashes: set nameOverride" $name) -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) (include "etcd.onVolume" .) -}}
{{- fail (printf "store.url: %d members need a bucket, as only one of them could mount a volume for backups: set store.url" (int $v.replicas)) -}}
{{- end -}}
{{- if and $v.store.url (ne (int $v.replicas) 1) (hasPrefix "file:" $v.store.url) -}}
{{- fail "store.url: a folder is in one pod, and several members need a bucket" -}}
{{- end -}}
{{- if and (eq $v.store.ack "stored") (or (gt (int $v.replicas) 1) (include "etcd.onVolume" .)) -}}
{{- fail "store.ack: stored is for one member with a bucket: set replicas=1 and store.url, or leave store.ack out" -}}
{{- end -}}
{{- if and (eq $v.persistence "none") (ne $v.store.ack "stored") -}}
{{- fail "persistence: without a volume only store.ack=stored loses nothing with the pod: set it, or leave persistence out" -}}
{{- end -}}
{{- if and $v.store.ca.secret (not (regexMatch "^(s3|gs|azblob):" $v.store.url)) -}}
{{- fail "store.ca: only a bucket has a certificate: set store.url, or leave store.ca out" -}}
{{- end -}}
{{- if and $v.store.googleKey.secret (not (hasPrefix "gs:" $v.store.url)) -}}
{{- fail "store.googleKey: only gs:// takes a key file: set store.url, or leave store.googleKey out" -}}
{{- end -}}
{{- if and $v.copy.to (include "etcd.onVolume" .) (not $v.sidecar.enabled) -}}
{{- fail "copy.to: backups on a volume of the member's own are in no other pod's reach: set store.url" -}}
{{- end -}}
{{- if and $v.copy.to (eq (trimSuffix "/" $v.copy.to) (include "etcd.store" .)) -}}
{{- fail "copy.to: the backups are there already: name another bucket or prefix" -}}
{{- end -}}
{{- if ne (not $v.restore.to) (not $v.restore.id) -}}
{{- fail "restore: restore.to says what to go back to and restore.id names that restore, so that it is done once: set both or neither" -}}
{{- end -}}
{{- if and $v.store.encryption.secret (not $v.store.encryption.recipients) -}}
{{- fail "store.encryption: without a file of recipients nothing would be encrypted: set store.encryption.recipients" -}}
{{- end -}}
{{- if and $v.store.signing.secret (not (or $v.store.signing.key $v.store.signing.trusted)) -}}
{{- fail "store.signing: neither a key to sign with nor trusted ones are named: set store.signing.key, store.signing.trusted or both" -}}
{{- end -}}
{{- range $key, $_ := $v.etcdConfig -}}
{{- if has (lower $key) (list "data-dir" "wal-dir") -}}
{{- fail (printf "etcdConfig: %s is the chart's own: leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- $needed := div (mul 11 (add (mul 3 (include "etcd.bytes" $v.quota | int64)) 2147483648)) 10 -}}
{{- if lt (include "etcd.bytes" $v.volume.size | int64) $needed -}}
{{- fail (printf "volume.size: %s is too small for a quota of %s: at least %dMi is required: 1.1 × (3 × quota + 2Gi)" $v.volume.size $v.quota (div $needed 1048576)) -}}
{{- end -}}
{{- if and $v.auth.rootPassword.secret (gt (int $v.replicas) 1) (eq $v.tls.source "none") -}}
{{- fail "auth.rootPassword: several members need TLS: one that joins sends the password to the others, and never in clear; set tls.source" -}}
{{- end -}}
{{- if and (eq $v.tls.source "none") (or $v.tls.secrets.server $v.tls.secrets.client $v.tls.secrets.peer) -}}
{{- fail "tls.secrets: nothing mounts them without tls.source: set tls.source=secrets" -}}
{{- end -}}
{{- if and $v.tls.issuer.name (ne $v.tls.source "cert-manager") -}}
{{- fail "tls.issuer: only cert-manager knows issuers: set tls.source=cert-manager" -}}
{{- end -}}
{{- if and $v.tls.names (ne $v.tls.source "cert-manager") -}}
{{- fail "tls.names: the certificates of your own Secrets have the names that you gave them: only tls.source=cert-manager adds any" -}}
{{- end -}}
{{- if and (or $v.networkPolicy.clients $v.networkPolicy.clientCIDRs $v.networkPolicy.scrapers) (not $v.networkPolicy.enabled) -}}
{{- fail "networkPolicy: clients, clientCIDRs and scrapers limit nothing without networkPolicy.enabled=true" -}}
{{- end -}}
{{- if $v.sidecar.enabled -}}
{{- if $v.leases -}}
{{- fail "leases: with sidecar.enabled=true the sidecar renews them: leave leases out" -}}
{{- end -}}
{{- range $key, $set := dict "restore" $v.restore.to "restore.adopt" $v.restore.adopt "copy" $v.copy.to "store.ack" $v.store.ack "store.interval" $v.store.interval "store.fullSchedule" $v.store.fullSchedule "store.keep" $v.store.keep "store.spoolLimit" $v.store.spoolLimit "store.ca" $v.store.ca.secret "store.googleKey" $v.store.googleKey.secret "store.encryption" $v.store.encryption.secret "store.signing" $v.store.signing.secret -}}
{{- if $set -}}
{{- fail (printf "%s: with sidecar.enabled=true the sidecar makes and restores backups, and knows nothing of this value: leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- if $v.auth.rootPassword.secret -}}
{{- fail "auth.rootPassword: with sidecar.enabled=true authentication would lock the sidecar out: leave it out" -}}
{{- end -}}
{{- if eq $v.dataVersion "3.6" -}}
{{- fail "dataVersion: the sidecar's etcd 3.5 has to be able to read the data: leave dataVersion out" -}}
{{- end -}}
{{- if or (contains "?" $v.store.url) (hasPrefix "file:" $v.store.url) -}}
{{- fail "store.url: the sidecar takes s3://, gs:// or azblob:// with a bucket and a prefix, and reads all else from its Secret" -}}
{{- end -}}
{{- else if $v.sidecar.extraArgs -}}
{{- fail "sidecar.extraArgs: there is no sidecar without sidecar.enabled=true" -}}
{{- end -}}
{{- range $key := list "app.kubernetes.io/part-of" "app.kubernetes.io/component" -}}
{{- if hasKey $v.podLabels $key -}}
{{- fail (printf "podLabels: %s is the chart's own: leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "kubectl.kubernetes.io/default-container" "checksum/configuration" -}}
{{- if hasKey $v.podAnnotations $key -}}
{{- fail (printf "podAnnotations: %s is the chart's own: leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- $set := dict -}}
{{- range include "etcd.variables" . | fromYamlArray -}}
{{- if hasKey $set .name -}}
{{- fail (printf "extraEnv: %s is there twice, or set by the chart already" .name) -}}
{{- end -}}
{{- $_ := set $set .name true -}}
{{- end -}}
{{- end }}
