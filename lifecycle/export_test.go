package lifecycle

import (
	"slices"
	"strconv"
	"time"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/statemachine"
)

// TakeInOrder takes rows of the table in the given order and returns an error at the first illegal transition, like
// the driver.
func TakeInOrder(table []Row, rows ...int) error {
	legal := statemachine.NewChecker(table, Query)
	for _, row := range rows {
		if err := legal.Take(&table[row]); err != nil {
			return err
		}
	}
	return nil
}

// UrgentFirst posts a completion and then a stop, and reports whether the stop is handled first.
func UrgentFirst(d *Driver) bool {
	d.mailbox <- message{event: Replied}
	d.urgent <- message{event: Signal}
	first, second := d.nextMessage(), d.nextMessage()
	return first.event == Signal && second.event == Replied
}

// NewRules indexes a table and the reactions to events without a row.
func NewRules(table []Row, elsewhere []statemachine.Default) *Rules {
	return statemachine.NewRules[Facts](table, elsewhere, Terminated)
}

// Written is the source of the table.
var Written = written

// SetsTimer reports whether an action only sets the timer.
func SetsTimer(action Action) bool {
	return newTimers(0)[action] != nil
}

// IsBound reports whether the driver implements an action.
func IsBound(action Action) bool {
	_, slow := blocking[action]
	return SetsTimer(action) || slow || IsPrefetchAction(action)
}

// IsPrefetchAction reports whether an action belongs to the prefetch.
func IsPrefetchAction(action Action) bool { return prefetchActions[action] != nil }

// PollingDriver starts a driver whose sidecar always reports Progress. Each call to handleNext handles one event:
// alternately the end of a pause, without waiting for it, and the response to a status query.
func PollingDriver(d *Driver) (handleNext func()) {
	d.handle(message{event: Started})
	return func() {
		if d.core.State == Wait {
			d.handle(message{event: Elapsed, visit: d.visit})
			return
		}
		d.handle(d.nextMessage())
	}
}

// HistoryLength returns the length of the history after the given number of distinct transitions.
func HistoryLength(transitions int) int {
	var kept timeline
	for n := range transitions {
		kept.add(Transition{From: State(strconv.Itoa(n))})
	}
	return len(kept.History)
}

// UnusedHints returns the Next text of each hint that does not apply to any row.
func UnusedHints(table []Row) (unused []string) {
	for _, h := range hints {
		if !slices.ContainsFunc(table, func(row Row) bool { return h.fits(&row) }) {
			unused = append(unused, h.Next)
		}
	}
	return unused
}

// Messages returns the distinct messages of all rows, including the messages that hints replace them with.
func Messages() (all []string) {
	for i := range Table {
		sentences := []string{Table[i].Why}
		for _, h := range hints {
			if h.fits(&Table[i]) {
				sentences = append(sentences, h.Fail)
			}
		}
		for _, sentence := range sentences {
			if sentence != "" && !slices.Contains(all, sentence) {
				all = append(all, sentence)
			}
		}
	}
	return all
}

// IsUsable reports whether a prefetched configuration of the given age is usable. alone means a new single-member
// cluster; logBefore and logAfter mean that the member had a log before and after the validation.
func IsUsable(alone, logBefore, logAfter bool, age time.Duration) bool {
	result := time.Now()
	state := prefetchState{asked: result.Add(-age), result: result, about: bootstrap.ConfigPreview{NewAlone: alone, LogDir: "wal"}}
	if logBefore {
		state.before = []string{"wal"}
	}
	if logAfter {
		state.after = []string{"wal"}
	}
	return state.isUsable()
}
