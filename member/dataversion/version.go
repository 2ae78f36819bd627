package dataversion

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/exitcode"
)

// Version is an etcd minor version, such as 3.5. The zero value means that the version is unknown or not set.
type Version struct{ Major, Minor int64 }

// Versions that users can request.
var (
	Of3_5 = Version{3, 5}
	Of3_6 = Version{3, 6}
)

// Less reports whether v is older than other. The zero value is older than any other version.
func (v Version) Less(other Version) bool {
	return v.Major < other.Major || v.Major == other.Major && v.Minor < other.Minor
}

// String returns a version such as "3.5", or "unknown" for the zero value.
func (v Version) String() string {
	if v == (Version{}) {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}

// Parse returns the minor version of an etcd version such as 3.5.0, or the zero Version if text is not a version.
func Parse(text string) Version {
	var v Version
	if n, _ := fmt.Sscanf(text, "%d.%d", &v.Major, &v.Minor); n != 2 {
		return Version{}
	}
	return v
}

// Embedded is the actual version of the embedded etcd, regardless of the announced version. Unlike etcd's own
// variable, which Announce overwrites, it can be read at any time.
var Embedded = version.Version

// readerVersion is the etcd 3.5 release that the embedded etcd announces if 3.5 is wanted. The tests read the data
// with this release.
const readerVersion = "3.5.27"

// Announce makes the embedded etcd announce version 3.5.27+3.6.16 if 3.5 is wanted and the recorded cluster version
// is not newer, and its actual version otherwise. Announce returns the announced version. Because the version is
// global and must not change while etcd is running, Announce must be called before etcd is started.
//
// In etcd 3.6.16, the announced version also has these effects:
//
//   - /version, `etcdctl endpoint status`, the X-Server-Version header of peers and etcd's first log line show
//     3.5.27+3.6.16. The etcd_server_version metric, which is set before Announce is called, and all output of this
//     program show 3.6.16. In semantic versioning, the part after the plus sign is build metadata, which the parsers
//     in etcd and Kubernetes accept. For watch progress notifications, kube-apiserver requires at least 3.5.13.
//   - Peers compare only major and minor versions and accept any version from 3.0 on.
//   - At startup, etcd checks the database schema against the announced version. If it announces 3.5, it accepts the
//     3.6 schema, because it can undo all schema changes made in 3.6.
//   - `etcdctl downgrade` depends on the cluster version: at 3.5, users can downgrade to 3.4. The Keeper does not
//     interfere but logs a warning.
//
// At cluster version 3.5, etcd does not persist lease checkpoints unless LeaseCheckpointPersist is enabled. Lease
// checkpoints are off by default (feature LeaseCheckpoint). Nothing else in etcd depends on cluster version 3.6.
func Announce(wanted, recorded Version) string {
	name := Embedded
	if wanted == Of3_5 && !Of3_5.Less(recorded) {
		name = readerVersion + "+" + Embedded
	}
	if version.Version != name { // an unnecessary write would be a data race in tests that run several members
		version.Version = name
	}
	return name
}

// ActualVersion returns the actual version of an etcd server, given the version that it announces.
func ActualVersion(announced string) string {
	if _, build, older := strings.Cut(announced, "+"); older && Parse(build) != (Version{}) {
		return build
	}
	return announced
}

// undecided is the cluster version until all members have started (MinClusterVersion in etcd's api/version).
var undecided = Version{3, 0}

// CheckUpgrade returns an error if the embedded etcd must not open a cluster's data. recorded is the highest version
// in the data. others reports whether the cluster has other members.
//
// etcd must be upgraded one minor version at a time. etcd 3.4 panics on the first entry proposed by etcd 3.6, and
// again on every restart, because the entry stays in its log. The data of a single-member cluster may be as old as
// 3.0. etcd never opens data from a newer version.
func CheckUpgrade(recorded Version, others bool) error {
	if Parse(Embedded).Less(recorded) {
		return upgradeError("the data belongs to a cluster at version %s, which etcd %s cannot open; start an etcd-wrapper release "+
			"that runs etcd %s, or use that release to downgrade the cluster first", recorded, Embedded, recorded)
	}
	if !others || recorded == undecided {
		return nil
	}
	return CheckOldest(recorded)
}

// CheckOldest returns an error if the embedded etcd must not join a cluster in which the cluster or any member has
// the given version.
func CheckOldest(oldest Version) error {
	if oldest == (Version{}) || !oldest.Less(Of3_5) {
		return nil
	}
	return upgradeError("the cluster runs etcd %s, whose members would crash if a member running etcd %s joined: etcd must be "+
		"upgraded one minor version at a time; start this member with its previous etcd version, upgrade all members to etcd 3.5.26 or a later 3.5 release, "+
		"and then replace them with etcd-wrapper", oldest, Embedded)
}

// upgradeError returns a FinalError, because a restart cannot succeed until the user installs another version.
func upgradeError(format string, parts ...any) error {
	return &exitcode.FinalError{Status: exitcode.BadConfig, Err: fmt.Errorf(format, parts...)}
}
