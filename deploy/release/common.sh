# What image.sh and release.sh share.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=$root/bin/tools

# build_tools builds the pinned tools of this module, for this machine.
build_tools() {
  mkdir -p "$tools"
  (cd "$root/deploy/release" && GOFLAGS='' GOOS='' GOARCH='' CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$tools/" tool ./roots)
}

# setting prints a build setting of a binary, such as GOOS.
setting() { go version -m "$1" | sed -n "s/^\tbuild\t$2=//p"; }

# static rejects a binary that needs a C library.
static() {
  local cgo
  cgo=$(setting "$1" CGO_ENABLED)
  [ "$cgo" = 0 ] || { echo "$1 is built with CGO_ENABLED=$cgo: it would need a C library" >&2; exit 1; }
}

# bill_of_materials prints the CycloneDX document of a binary, without the checksum of the tool that wrote it: that
# differs from machine to machine.
bill_of_materials() {
  "$tools/cyclonedx-gomod" bin -json -noserial -notimestamp -std -version "$VERSION" "$1" | sed '/^    "tools": \[$/,/^    \],$/d'
}

# pack prints a tar archive of files in a folder with nothing of this machine in it: pack FOLDER TIME FILE...
pack() {
  tar --format=ustar --sort=name --mtime="@$2" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$1" -cf - "${@:3}"
}
