package terminal

import (
	"fmt"
	"time"

	"etcd-wrapper/readiness/status"
)

// renewed are the leases that the member renews, and what keeps it from that.
func renewed(all []status.Lease, now time.Time) (facts []fact) {
	for i, lease := range all {
		name := "leases"
		if i > 0 {
			name = ""
		}
		facts = append(facts, fact{name, leaseLine(lease, now)})
		if trouble := lease.Trouble; trouble != nil {
			facts = append(facts, fact{"lease trouble", trouble.Message},
				fact{"", fmt.Sprintf("since %s, %s%s", ago(trouble.Since, now), often(trouble.Times), nextTry(trouble.NextTry, now))})
		}
	}
	return facts
}

func leaseLine(lease status.Lease, now time.Time) string {
	if lease.Renewed.IsZero() {
		return lease.Name + ", not renewed yet"
	}
	return fmt.Sprintf("%s says %s, renewed %s", lease.Name, lease.Holder, ago(lease.Renewed, now))
}
