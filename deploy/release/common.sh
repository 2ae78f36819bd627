# Functions that image.sh and release.sh share.
set -euo pipefail
shopt -s inherit_errexit
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

# bill_of_materials prints the CycloneDX document of a binary. It removes the entry for the tool that wrote the document,
# whose checksum differs between machines.
bill_of_materials() {
  "$tools/cyclonedx-gomod" bin -json -noserial -notimestamp -std -version "$VERSION" "$1" | sed '/^    "tools": \[$/,/^    \],$/d'
}

# notices prints the licence and the notices of Go and of each module that is linked into a binary, as the module cache
# has them.
notices() {
  local modules name version dir file
  mapfile -t modules < <(go version -m "$1" | awk '$1 == "dep" {n++} $1 == "dep" || $1 == "=>" {linked[n] = $2 "@" $3} END {for (i = 1; i <= n; i++) print linked[i]}')
  {
    printf 'std\t%s\t%s\n' "$(go version -m "$1" | sed -n '1s/.*: //p')" "$(go env GOROOT)"
    [ ${#modules[@]} -eq 0 ] || (cd "$root" && GOFLAGS='' go mod download -json "${modules[@]}") |
      sed -n 's/^\t"\(Path\|Version\|Dir\)": "\(.*\)",\{0,1\}$/\2/p' | paste - - -
  } | while IFS=$'\t' read -r name version dir; do
    printf '==== %s %s\n\n' "$name" "$version"
    find "$dir/" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'notice*' -o -iname 'copying*' \) | sort | while read -r file; do
      cat "$file"
      echo
    done
  done
}

# pack prints a tar archive of files in a folder that does not depend on the machine: pack FOLDER TIME FILE...
pack() {
  tar --format=ustar --sort=name --mtime="@$2" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$1" -cf - "${@:3}"
}
