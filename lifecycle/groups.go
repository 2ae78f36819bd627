package lifecycle

import "slices"

// The groups. Every state but the two of the end is either BeforeEtcd or WithEtcd.
var (
	// BeforeVerdict is where this process has not read a verdict on the data yet.
	BeforeVerdict = Group{Query, Trigger, Wait}
	// BeforeEtcd is where nothing of etcd runs yet: a stop has nothing to close and leaves the exit record as it was.
	BeforeEtcd = append(slices.Clone(BeforeVerdict), FetchConfig)
	// WithEtcd is where an etcd may hold the data.
	WithEtcd = Group{StartEtcd, Serving}
	// BeforeEnd is where the end has not begun.
	BeforeEnd = slices.Concat(BeforeEtcd, WithEtcd)
)
