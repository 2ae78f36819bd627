package terminal

import (
	"fmt"
	"time"

	"etcd-wrapper/readiness/status"
)

// recovered is what came back from the store, or comes, or why it does not.
func recovered(r *status.Recovery) (all []fact) {
	if r == nil {
		return nil
	}
	all = append(all, fact{"recovery", r.State + ": " + r.Reason})
	if r.Loss != "" {
		all = append(all, fact{"", r.Loss})
	}
	if r.Seconds > 0 {
		left := Rounded(time.Duration(r.Seconds * float64(time.Second)))
		all = append(all, fact{"", fmt.Sprintf("%.1f of %.1f MiB, %.1f MiB/s, %s left", mib(r.Bytes), mib(r.Of), r.Rate/(1<<20), left)})
	}
	return all
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
