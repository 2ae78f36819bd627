package dataversion

import (
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/version"

	"etcd-wrapper/exitcode"
)

// Version is a minor version of etcd. The zero value means unknown or not wanted.
type Version struct{ Major, Minor int64 }

// Of3_5 and Of3_6 are the versions that a user may request.
var (
	Of3_5 = Version{3, 5}
	Of3_6 = Version{3, 6}
)

// Less reports whether v is older than other. An unknown version is older than any other.
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

// Embedded is the version of the etcd in this program, regardless of the announced version. Unlike etcd's own
// variable, it may be read at any time.
var Embedded = version.Version

// readerVersion is the etcd 3.5 release that is tested to read the data of an etcd that announces it.
const readerVersion = "3.5.27"

// Announce makes the embedded etcd present itself as 3.5.27+3.6.16, a 3.5 followed by the true version, if 3.5 is
// wanted and nothing is recorded that 3.5 could not read. Otherwise it presents itself as it is. It returns the
// announced name. The name belongs to the process and must not change under a running etcd, so call it before one is
// opened.
//
// In etcd 3.6.16 the announced name has these other effects:
//
//   - /version, `etcdctl endpoint status`, the X-Server-Version of peers and etcd's first log line show 3.5.27+3.6.16.
//     The metric etcd_server_version is set earlier and shows 3.6.16, like all output of this program. In semantic
//     versioning the part after the plus is build metadata, which etcd's and Kubernetes' parsers accept. kube-apiserver
//     requires 3.5.13 for progress notifications of watches.
//   - Peers compare major and minor version and talk to any of 3.0 and above.
//   - etcd checks the schema of the database against it at the start: 3.5 may be older than the data by the changes that
//     etcd can undo, which are all changes of 3.6.
//   - `etcdctl downgrade` goes by the cluster's version: at 3.5 it offers 3.4. The Keeper leaves that alone and warns.
//
// The cluster's version, which is 3.5 then, has one effect: leases' checkpoints are written to the database from 3.6 on
// only. That matters with etcd's feature LeaseCheckpoint, which is off by default, and its own switch
// LeaseCheckpointPersist turns it on. Nothing else in etcd depends on 3.6.
func Announce(wanted, recorded Version) string {
	name := Embedded
	if wanted == Of3_5 && !Of3_5.Less(recorded) {
		name = readerVersion + "+" + Embedded
	}
	if version.Version != name { // tests run several members that all want the same version
		version.Version = name
	}
	return name
}

// ActualVersion returns the real version of an etcd that announces a name composed by Announce.
func ActualVersion(announced string) string {
	if _, build, older := strings.Cut(announced, "+"); older && Parse(build) != (Version{}) {
		return build
	}
	return announced
}

// undecided is the version of a cluster in which some members have not started yet (MinClusterVersion in etcd's
// api/version).
var undecided = Version{3, 0}

// CheckUpgrade returns an error if the embedded etcd must not open the data of a cluster. recorded is the highest
// version in the data, and others reports whether the cluster has more members than this one.
//
// etcd supports one minor version at a time. An etcd 3.4 panics over the first entry that an etcd 3.6 proposes, and at
// each of its starts from then on, because the entry stays in its log. A member that is alone has no other to agree
// with: its data may be as old as 3.0. No etcd opens data of a newer one.
func CheckUpgrade(recorded Version, others bool) error {
	if Parse(Embedded).Less(recorded) {
		return upgradeError("the data are of a cluster at etcd %s, which etcd %s cannot open; start the etcd-wrapper that "+
			"has etcd %s, or downgrade the cluster with that one first", recorded, Embedded, recorded)
	}
	if !others || recorded == undecided {
		return nil
	}
	return CheckOldest(recorded)
}

// CheckOldest returns an error if a cluster of the given version, or with a member of that version, must not
// contain the embedded etcd.
func CheckOldest(oldest Version) error {
	if oldest == (Version{}) || !oldest.Less(Of3_5) {
		return nil
	}
	return upgradeError("the cluster runs etcd %s, and a member of etcd %s would make its other members crash, as etcd is "+
		"upgraded one minor version at a time; start this member with its old etcd again, upgrade all members to etcd 3.5.26 or a later 3.5, "+
		"and then replace them with etcd-wrapper", oldest, Embedded)
}

// upgradeError returns an error that only a different version of the program can resolve. Its text contains the way
// out.
func upgradeError(format string, parts ...any) error {
	return &exitcode.FinalError{Status: exitcode.BadConfig, Err: fmt.Errorf(format, parts...)}
}
