#!/usr/bin/env bash
# Writes the release files of a version of etcd-wrapper: an archive and a bill of materials for each platform, the
# image, the chart, a formula, a krew manifest, the provenance, checksums, and their signature. `make release` builds the
# binaries and the image and calls it: release.sh BINARY..., with these variables:
#   OUT                 directory for the release files; existing files in it are deleted
#   LAYOUT              OCI layout of the image; LAYOUT.tar is the image as one file
#   REPOSITORY          URL of the source repository, which also provides the release downloads
#   IMAGE               registry and repository of the image that the chart uses
#   KEY                 SSH private key that signs the checksums; empty for no signature
#   VERSION, REVISION   version, as in v1.0.0, and commit of the source
#   CREATED             time of the commit, in seconds since 1970
source "$(dirname "$0")/common.sh"
build_tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
number=${VERSION#v} # the version as charts and formulas use it
downloads=$REPOSITORY/releases/download/$VERSION
rm -rf "$OUT"
mkdir "$OUT"
cd "$OUT"

sum() { sha256sum "$1" | cut -d ' ' -f 1; }
name() { echo "etcd-wrapper_${VERSION}_$(setting "$1" GOOS)_$(setting "$1" GOARCH)"; }

# The files that every archive contains. The binary for this machine prints the manual page and the shell completions, in
# an environment without settings.
own=
for binary in "$@"; do
  static "$binary"
  [ "$(setting "$binary" GOOS)_$(setting "$binary" GOARCH)" != "$(go env GOHOSTOS)_$(go env GOHOSTARCH)" ] || own=$binary
done
[ -n "$own" ] || { echo 'none of the binaries runs on this machine, which is necessary to print the manual page' >&2; exit 1; }
mkdir -p "$work/archive/completion"
cp -R "$root/LICENSE" "$root/deploy/kubectl-etcd" "$root/deploy/systemd" "$work/archive/"
own() { env -i 'HOME=$HOME' "$own" "$@"; }
own man > "$work/archive/etcd-wrapper.1"
own completion bash > "$work/archive/completion/etcd-wrapper.bash"
own completion zsh > "$work/archive/completion/_etcd-wrapper"
own completion fish > "$work/archive/completion/etcd-wrapper.fish"

for binary in "$@"; do
  cp "$binary" "$work/archive/etcd-wrapper"
  notices "$binary" > "$work/archive/NOTICES"
  pack "$work/archive" "$CREATED" etcd-wrapper kubectl-etcd LICENSE NOTICES etcd-wrapper.1 completion systemd | gzip -n9 > "$(name "$binary").tar.gz"
  bill_of_materials "$binary" > "$(name "$binary").cdx.json"
done

cp "$LAYOUT.tar" "etcd-wrapper_${VERSION}_image.tar"

# replace replaces the one line of a file that equals a pattern: replace FILE PATTERN LINE.
replace() {
  [ "$(grep -cx -- "$2" "$1")" = 1 ] || { echo "$1: there is not exactly one line like \"$2\" to replace" >&2; exit 1; }
  sed -i "s|^$2\$|$3|" "$1"
}
cp -r "$root/deploy/chart" "$work/etcd"
replace "$work/etcd/Chart.yaml" 'version: .*' "version: $number"
replace "$work/etcd/Chart.yaml" 'appVersion: .*' "appVersion: $VERSION"
replace "$work/etcd/values.yaml" '  repository: etcd-wrapper' "  repository: $IMAGE"
replace "$work/etcd/values.yaml" '  tag: ""' "  tag: $VERSION"
replace "$work/etcd/values.yaml" '  runbook: docs/runbook.md#alerts' "  runbook: $REPOSITORY/blob/$VERSION/docs/runbook.md#alerts"
pack "$work" "$CREATED" etcd | gzip -n9 > "etcd-$number.tgz"

# platforms prints the archives of a system for a formula: platforms GOOS BINARY...
platforms() {
  local binary processor
  for binary in "${@:2}"; do
    [ "$(setting "$binary" GOOS)" = "$1" ] || continue
    processor=on_intel
    [ "$(setting "$binary" GOARCH)" != arm64 ] || processor=on_arm
    cat <<RUBY
    $processor do
      url "$downloads/$(name "$binary").tar.gz"
      sha256 "$(sum "$(name "$binary").tar.gz")"
    end
RUBY
  done
}
cat > etcd-wrapper.rb <<RUBY
class EtcdWrapper < Formula
  desc "Entrypoint of an etcd pod, with the commands for its backups"
  homepage "$REPOSITORY"
  version "$number"
  license "Apache-2.0"

  on_macos do
$(platforms darwin "$@")
  end

  on_linux do
$(platforms linux "$@")
  end

  def install
    bin.install "etcd-wrapper"
    bin.install "kubectl-etcd"
    man1.install "etcd-wrapper.1"
    bash_completion.install "completion/etcd-wrapper.bash" => "etcd-wrapper"
    zsh_completion.install "completion/_etcd-wrapper"
    fish_completion.install "completion/etcd-wrapper.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/etcd-wrapper version")
  end
end
RUBY

# krew requires that the manifest has the name of the plugin, which is etcd.
{
  cat <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: etcd
spec:
  version: $VERSION
  homepage: $REPOSITORY
  shortDescription: Look after etcd's members and backups
  description: |
    Finds the pods of a release of the etcd chart and runs etcd-wrapper's commands in one of them. It needs kubectl and the
    right to list pods and to exec into them.
  platforms:
YAML
  for binary in "$@"; do
    cat <<YAML
  - selector:
      matchLabels: {os: $(setting "$binary" GOOS), arch: $(setting "$binary" GOARCH)}
    uri: $downloads/$(name "$binary").tar.gz
    sha256: $(sum "$(name "$binary").tar.gz")
    bin: kubectl-etcd
    files:
    - {from: kubectl-etcd, to: .}
    - {from: LICENSE, to: .}
YAML
  done
} > etcd.yaml

# The provenance is an in-toto statement with an SLSA predicate. It contains neither the time nor the machine, so that it is
# reproducible. It is only as trustworthy as the key that signs the checksums.
image=$("$tools/oras" resolve --oci-layout "$LAYOUT:$VERSION")
toolchain=$(go version -m "$own" | sed -n '1s/.*: //p')
subjects=$(printf '%s\n' * | while read -r file; do
  echo "    {\"name\": \"$file\", \"digest\": {\"sha256\": \"$(sum "$file")\"}},"
done)
cat > provenance.intoto.json <<JSON
{
  "_type": "https://in-toto.io/Statement/v1",
  "subject": [
$subjects
    {"name": "$IMAGE:$VERSION", "digest": {"sha256": "${image#sha256:}"}}
  ],
  "predicateType": "https://slsa.dev/provenance/v1",
  "predicate": {
    "buildDefinition": {
      "buildType": "$REPOSITORY/blob/$VERSION/docs/contributing.md#a-release",
      "externalParameters": {"VERSION": "$VERSION", "REPOSITORY": "$REPOSITORY", "IMAGE": "$IMAGE"},
      "resolvedDependencies": [
        {"uri": "git+$REPOSITORY@refs/tags/$VERSION", "digest": {"gitCommit": "$REVISION"}},
        {"name": "$toolchain", "uri": "https://go.dev/dl/#$toolchain"}
      ]
    },
    "runDetails": {"builder": {"id": "$REPOSITORY/blob/$VERSION/Makefile"}}
  }
}
JSON

sha256sum -- * > "$work/SHA256SUMS"
mv "$work/SHA256SUMS" .
# Signatures by Ed25519 and RSA keys are reproducible.
[ -z "$KEY" ] || ssh-keygen -q -Y sign -n file -f "$KEY" SHA256SUMS
echo "$OUT holds etcd-wrapper $VERSION"
