package dataversion

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/version"
)

// Version is a minor version of etcd. The zero value stands for one that is not known, or not wanted.
type Version struct{ Major, Minor int64 }

// Of3_5 and Of3_6 are the versions that may be wanted.
var (
	Of3_5 = Version{3, 5}
	Of3_6 = Version{3, 6}
)

// Less reports whether v is older than other. An unknown version is older than any other.
func (v Version) Less(other Version) bool {
	return v.Major < other.Major || v.Major == other.Major && v.Minor < other.Minor
}

// String is "3.5", and "unknown" for the zero value.
func (v Version) String() string {
	if v == (Version{}) {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}

// MarshalText implements encoding.TextMarshaler.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads a wanted version, as a flag has it: 3.5 or 3.6. Anything else is an error that names both.
func (v *Version) UnmarshalText(text []byte) error {
	for _, wanted := range []Version{Of3_5, Of3_6} {
		if string(text) == wanted.String() {
			*v = wanted
			return nil
		}
	}
	return fmt.Errorf("%q is not a version that data can be kept at: use %s or %s", text, Of3_5, Of3_6)
}

// Parse reads the minor version out of what etcd calls a version, such as 3.5.0; the zero Version if it is none.
func Parse(text string) Version {
	var v Version
	if n, _ := fmt.Sscanf(text, "%d.%d", &v.Major, &v.Minor); n != 2 {
		return Version{}
	}
	return v
}

// Embedded is the version of the etcd in this program, whatever it announces. It may be read at any time, unlike
// etcd's own variable.
var Embedded = version.Version

// reader is the etcd 3.5 whose word for it is tested: what Announce names, it can read.
const reader = "3.5.27"

// What else looks at the announced name, in etcd 3.6.16:
//
//   - Whoever asks: /version, `etcdctl endpoint status`, the X-Server-Version of peers and etcd's first log line show
//     3.5.27+3.6.16. The metric etcd_server_version is set before this and says 3.6.16; so does all that this program says.
//     The part behind the plus is what semantic versioning calls build metadata, which etcd's and Kubernetes' parsers
//     accept. kube-apiserver asks for 3.5.13 at least before it uses progress notifications of watches, and gets them.
//   - Peers compare major and minor version and talk to any of 3.0 and above.
//   - The schema of the database is checked against it when etcd starts: 3.5 may be older than the data by what etcd
//     knows how to take back, which is all of 3.6.
//   - `etcdctl downgrade` goes by the cluster's version: at 3.5 it offers 3.4. The Keeper leaves that alone and warns.
//
// And what looks at the cluster's version, which then is 3.5: leases' checkpoints are written to the database from 3.6 on
// only. That matters where etcd's feature LeaseCheckpoint is on, which it is not by default, and its own switch
// LeaseCheckpointPersist brings it back. Nothing else in etcd waits for 3.6: its APIs answer as ever.

// Announce makes the embedded etcd present itself as 3.5.27+3.6.16, a 3.5 followed by the true version, if 3.5 is
// wanted and nothing is recorded that 3.5 could not read. Otherwise it presents itself as it is. It returns the
// announced name. The name belongs to the process and must not change under a running etcd, so call it before one is
// opened.
func Announce(wanted, recorded Version) string {
	name := Embedded
	if wanted == Of3_5 && !Of3_5.Less(recorded) {
		name = reader + "+" + Embedded
	}
	if version.Version != name { // tests run several members, which all want the same
		version.Version = name
	}
	return name
}

// Truth returns the version of the etcd that presents itself by that name, which Announce may have given it.
func Truth(announced string) string {
	if _, build, older := strings.Cut(announced, "+"); older && Parse(build) != (Version{}) {
		return build
	}
	return announced
}
