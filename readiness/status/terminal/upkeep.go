package terminal

import (
	"fmt"
	"time"

	"etcd-wrapper/readiness/status"
)

// upkeep is how far a defragmentation is or what it waits for, how the last one ended, and who reads the whole database.
func upkeep(u *status.Upkeep, now time.Time) (all []fact) {
	if u == nil {
		return nil
	}
	add := func(name, is string) { all = append(all, fact{name, is}) }
	if u.Phase != "idle" {
		add("defragmentation", u.Phase+progress(u)+": "+u.Reason)
	}
	if last := u.Last; last != nil {
		add("last defragmented", Defragmented(last)+", "+ago(last.At, now))
	}
	for _, reader := range u.Readers {
		add("being read by", reader.What+" since "+ago(reader.Since, now))
	}
	return all
}

func progress(u *status.Upkeep) string {
	if u.Phase != "running" {
		return ""
	}
	return fmt.Sprintf(" (%.0f%%)", 100*u.Progress)
}

// Defragmented is how a defragmentation ended, in a clause.
func Defragmented(d *status.Defragmentation) string {
	if d.Error != "" {
		return "not, by " + d.Origin + ": " + d.Error
	}
	took := Rounded(time.Duration(d.Took * float64(time.Second)))
	return fmt.Sprintf("by %s, in %v: %s are %s now", d.Origin, took, size(d.Before), size(d.After))
}
