package lifecycle

import (
	"fmt"
	"time"
)

// What the whole process promises about its end. None of these is a flag: of the 30 s that Kubernetes leaves a pod between
// SIGTERM and SIGKILL, StopBudget leaves some to the kubelet.
const (
	// StopBudget is how long a stop takes at most, from the signal to the exit, once etcd was started.
	StopBudget = 25 * time.Second
	// AbortBudget is the same before that, where there is nothing to close.
	AbortBudget = 2 * time.Second
	// TakingDown is the part of either that the command may use after Run has returned.
	TakingDown = 250 * time.Millisecond
	// ClosePatience is how long an orderly close of etcd may take before etcd's server is stopped under it. A close can
	// take etcd's request timeout even then, 7 s, and the exit record has to be written.
	ClosePatience = StopBudget - 9*time.Second

	// lingering bounds the wait for goroutines whose work was cancelled at the end of a run.
	lingering = 300 * time.Millisecond
	// latency is for the goroutines of a busy machine to be scheduled.
	latency = 250 * time.Millisecond

	// stopLimit and abortLimit are what is left of the budgets for a visit of Terminating.
	stopLimit  = StopBudget - TakingDown - lingering - latency
	abortLimit = AbortBudget - TakingDown - lingering - latency
)

// seconds writes a duration as people read it.
func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
