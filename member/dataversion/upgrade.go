package dataversion

import "fmt"

// undecided is the version of a cluster some of whose members have not started yet (MinClusterVersion in etcd's
// api/version).
var undecided = Version{3, 0}

// CheckUpgrade returns an *UpgradeError if the embedded etcd must not open the data of a cluster. recorded is the highest
// version in the data, and others reports whether the cluster has more members than this one.
//
// etcd supports one minor version at a time. An etcd 3.4 panics over the first entry that an etcd 3.6 proposes, and at each of
// its starts from then on, because the entry stays in its log. A member that is alone has no other to agree with: its data may
// be as old as 3.0. No etcd opens data of a newer one.
func CheckUpgrade(recorded Version, others bool) error {
	if Parse(Embedded).Less(recorded) {
		return &UpgradeError{fmt.Sprintf("the data are of a cluster at etcd %s, which etcd %s cannot open; start the etcd-wrapper that "+
			"has etcd %s, or downgrade the cluster with that one first", recorded, Embedded, recorded)}
	}
	if !others || recorded == undecided {
		return nil
	}
	return CheckOldest(recorded)
}

// CheckOldest returns an *UpgradeError if a cluster of that version, or with a member of it, cannot have the embedded etcd.
func CheckOldest(oldest Version) error {
	if oldest == (Version{}) || !oldest.Less(Of3_5) {
		return nil
	}
	return &UpgradeError{fmt.Sprintf("the cluster runs etcd %s, and a member of etcd %s would make its other members crash, as etcd is "+
		"upgraded one minor version at a time; start this member with its old etcd again, upgrade all members to etcd 3.5.26 or a later 3.5, "+
		"and then replace them by etcd-wrapper", oldest, Embedded)}
}

// UpgradeError means that the embedded etcd cannot open the data, or join the cluster. Its text names the way out.
type UpgradeError struct{ text string }

func (e *UpgradeError) Error() string { return e.text }
