package status

import (
	"slices"

	"etcd-wrapper/exitcode/printable"
)

// printable returns the document with every text that may quote a stranger made fit for a terminal. What is shared with
// others is left alone.
func (d Document) printable() Document {
	for _, text := range []*string{&d.State, &d.Reason, &d.SidecarWord, &d.Pod, &d.MemberID, &d.Name, &d.LastExit, &d.LastExitReason} {
		*text = printable.Line(*text)
	}
	if d.LastError != nil {
		shown := *d.LastError
		shown.Message = printable.Line(shown.Message)
		d.LastError = &shown
	}
	if d.Validation != nil {
		shown := *d.Validation
		shown.Reason = printable.Line(shown.Reason)
		d.Validation = &shown
	}
	d.Backup, d.Recovery = d.Backup.printable(), d.Recovery.printable()
	d.Upkeep = d.Upkeep.printable()
	d.Checks = shown(d.Checks, func(c *Check) *string { return &c.Reason })
	d.Certificates = shown(d.Certificates, func(c *Certificate) *string { return &c.Path })
	d.Peers = shown(d.Peers, func(p *Peer) *string { return &p.Name })
	for i := range d.Peers {
		d.Peers[i].URLs = shown(d.Peers[i].URLs, func(url *string) *string { return url })
	}
	d.Transitions = shown(d.Transitions, func(t *Transition) *string { return &t.Reason })
	return d
}

// shown is a copy whose texts are printable.
func shown[T any](all []T, text func(*T) *string) []T {
	all = slices.Clone(all)
	for i := range all {
		is := text(&all[i])
		*is = printable.Line(*is)
	}
	return all
}
