package lifecycle_test

import (
	"slices"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// promises are what must hold at every instant.
var promises = []struct {
	what string
	kept func(place, truth, Facts) bool
}{
	{"I1: etcd is opened only after Successful was read", func(p place, t truth, _ Facts) bool {
		return p.action() != OpenEtcd || t.word == bootstrap.Successful && !t.triggered
	}},
	{"I1: a configuration that came early is checked only after Successful was read", func(p place, t truth, _ Facts) bool {
		return p.action() != CheckEtcdConfig || t.word == bootstrap.Successful && !t.triggered
	}},
	{"I9: a configuration is checked only if it was asked for after the verdict, or shortly before it and nothing can have changed it", func(p place, t truth, _ Facts) bool {
		return p.action() != CheckEtcdConfig || t.usable
	}},
	{"I9: no early configuration comes once one was chosen", func(p place, _ truth, _ Facts) bool {
		return !p.aside || !slices.Contains([]Action{CheckEtcdConfig, ServeReadyz, LockData, RemoveRecord, OpenEtcd}, p.action())
	}},
	{"R8: once somebody else had the data open for writing, no clean record comes back", func(_ place, t truth, _ Facts) bool {
		return !t.stranger || !t.recorded
	}},
	{"after Failed the next initialization is full", func(p place, t truth, _ Facts) bool {
		return p.action() != AskInit || !t.failed
	}},
	{"I2: a clean record means that the last etcd was closed", func(_ place, t truth, _ Facts) bool {
		return !t.recorded || !t.opened || t.closed
	}},
	{"I3: no initialization while an etcd may hold the data", func(p place, t truth, _ Facts) bool {
		return !asksInit(p) || !t.opened
	}},
	{"I3: nothing is asked without the volume's lock", func(p place, t truth, _ Facts) bool {
		return !asksInit(p) && p.action() != AskStatus || t.locked
	}},
	{"I4: a stop has a budget", func(p place, _ truth, f Facts) bool {
		return f.Ending == "" || p.core.State == Terminated || p.timer
	}},
	{"I4: whatever a state waits for ends, or its job is to go on", func(p place, _ truth, _ Facts) bool { return holdsBound(p) }},
	{"I5: nothing is served again after the end has begun", func(p place, _ truth, f Facts) bool {
		return f.Ending == "" || p.core.State == Terminating || p.core.State == Terminated
	}},
	{"I5: Serving means that etcd was opened", func(p place, t truth, _ Facts) bool { return p.core.State != Serving || t.opened }},
	{"I6: status 0 only for a stop that was asked for", func(p place, _ truth, f Facts) bool {
		return !endedClean(p) || f.Ending == Signal || f.Ending == StopPosted
	}},
	{"I6: status 0 only if etcd was closed or never opened", func(p place, t truth, _ Facts) bool {
		return !endedClean(p) || !t.opened || t.closed
	}},
	{"R4, R5, R8: status 0 means that the record is clean, unless somebody else had the data open for writing", func(p place, t truth, _ Facts) bool {
		return !endedClean(p) || t.recorded != t.stranger
	}},
	{"R1: a run that failed leaves no record once etcd was opened", func(p place, t truth, f Facts) bool {
		failed := f.Ending != "" && f.Ending != Signal && f.Ending != StopPosted
		return p.core.State != Terminated || !failed || !t.opened || !t.recorded
	}},
}

// holdsBound holds a place against what its state says about the end of a visit.
func holdsBound(p place) bool {
	switch boundOf(p.core.State) {
	case ByTimer:
		return p.timer
	case ByCalls, NoBound:
		return p.timer || p.chain != ""
	case AtEnd:
		return !p.timer
	}
	return false
}

func asksInit(p place) bool { return p.action() == AskInit || p.action() == AskFullInit }

func endedClean(p place) bool {
	return p.core.State == Terminated && p.core.Facts.Status == exitcode.Clean
}
