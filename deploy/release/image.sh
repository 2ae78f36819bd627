#!/usr/bin/env bash
# Packs static binaries of etcd-wrapper into an OCI image for their platforms, without a daemon and without a base image.
# `make image` calls it: image.sh BINARY..., with these variables:
#   OUT                 directory for the OCI layout; OUT.tar contains only the image
#   TAG                 tag of the image in OUT and OUT.tar
#   PUSH                REGISTRY/REPOSITORY:TAG to which the image is pushed; empty to push nothing
#   VERSION, REVISION   version and commit of the program
#   CREATED             time of the commit, in seconds since 1970
source "$(dirname "$0")/common.sh"
build_tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

created=$(date -u -d "@$CREATED" +%Y-%m-%dT%H:%M:%SZ)
labels=(
  org.opencontainers.image.title=etcd-wrapper
  "org.opencontainers.image.description=entrypoint of an etcd pod: decides whether the data may be opened, and runs etcd"
  "org.opencontainers.image.version=$VERSION"
  "org.opencontainers.image.revision=$REVISION"
  "org.opencontainers.image.created=$created"
  org.opencontainers.image.licenses=Apache-2.0
)
layer=application/vnd.oci.image.layer.v1.tar+gzip
bill=application/vnd.cyclonedx+json
json_labels=$(printf '%s\n' "${labels[@]}" | sed 's/^\([^=]*\)=\(.*\)$/"\1": "\2"/' | paste -sd ,)

# The base layer is the same for every version: certificates to verify an object store with, where Go looks for them
# first, and a home directory for the copy of etcd's configuration. 65532 is the user of distroless images and of the
# operator.
mkdir -p base/etc/ssl/certs base/home/nonroot
"$tools/roots" > base/etc/ssl/certs/ca-certificates.crt
pack base 0 --exclude=home/nonroot etc home > base.tar
tar --format=ustar --mtime=@0 --owner=65532 --group=65532 --numeric-owner --mode=0700 -C base -rf base.tar home/nonroot
gzip -n9k base.tar

digest() { echo "sha256:$(sha256sum "$1" | cut -d ' ' -f 1)"; }

# oras runs oras on OCI layouts and prints nothing but a digest.
oras() { "$tools/oras" "$@" --oci-layout --no-tty --format go-template --template '{{.digest}}'; }

# add_image adds the image of a binary and its bill of materials to the layout, and prints the image's digest.
add_image() {
  local os architecture image
  static "$1"
  os=$(setting "$1" GOOS) architecture=$(setting "$1" GOARCH)
  rm -rf program
  mkdir program
  cp "$1" "$root/LICENSE" program/
  notices "$1" > program/NOTICES
  pack program 0 etcd-wrapper LICENSE NOTICES > program.tar
  gzip -n9kf program.tar
  cat > config.json <<JSON
{
  "created": "$created", "os": "$os", "architecture": "$architecture",
  "config": {
    "Entrypoint": ["/etcd-wrapper"], "User": "65532:65532", "Env": ["HOME=/home/nonroot"], "WorkingDir": "/home/nonroot",
    "ExposedPorts": {"2379/tcp": {}, "2380/tcp": {}, "9095/tcp": {}}, "Labels": {$json_labels}
  },
  "rootfs": {"type": "layers", "diff_ids": ["$(digest base.tar)", "$(digest program.tar)"]},
  "history": [{"created": "$created", "created_by": "make image"}, {"created": "$created", "created_by": "make image"}]
}
JSON
  image=$(oras push layout --annotation "org.opencontainers.image.created=$created" \
    --config config.json:application/vnd.oci.image.config.v1+json base.tar.gz:$layer program.tar.gz:$layer)
  bill_of_materials "$1" > bill.cdx.json
  oras attach "layout@$image" --annotation "org.opencontainers.image.created=$created" --artifact-type $bill bill.cdx.json:$bill > /dev/null
  echo "$image"
}

for binary in "$@"; do
  images+=("$(add_image "$binary")")
done
"$tools/oras" manifest index create --oci-layout "layout:$TAG" "${images[@]}" "${labels[@]/#/--annotation=}" > /dev/null

# Programs that load a file take one image and refuse more. containerd names it after an annotation of its own, which
# the folder gets as well.
named="\"org.opencontainers.image.ref.name\":\"$TAG\",\"io.containerd.image.name\":\"docker.io/library/etcd-wrapper:$TAG\""
sed -i "s|\"org.opencontainers.image.ref.name\":\"$TAG\"|$named|" layout/index.json
"$tools/oras" cp --no-tty --from-oci-layout "layout:$TAG" --to-oci-layout "alone:$TAG" > /dev/null
grep -o '{"mediaType":"application/vnd.oci.image.index.v1+json","digest":[^}]*}}' layout/index.json |
  sed 's/.*/{"schemaVersion":2,"manifests":[&]}/' > alone/index.json
rm -rf "$OUT" layout/ingest alone/ingest
cp -r layout "$OUT"
pack alone 0 blobs index.json oci-layout > "$OUT.tar"
index=$("$tools/oras" resolve --oci-layout "layout:$TAG")
echo "$OUT holds etcd-wrapper $VERSION, $index"

if [ -n "$PUSH" ]; then
  "$tools/oras" cp --no-tty --recursive --from-oci-layout "layout:$TAG" "$PUSH" > /dev/null
  echo "pushed as $PUSH, to be named $PUSH@$index"
fi
