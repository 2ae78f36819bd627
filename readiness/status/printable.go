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
	d.LastError = copied(d.LastError, func(e *Error) []*string { return []*string{&e.Message} })
	d.Validation = copied(d.Validation, func(v *Validation) []*string { return []*string{&v.Reason} })
	d.DataVersion = copied(d.DataVersion, func(v *DataVersion) []*string { return []*string{&v.Reason} })
	d.Backup, d.Recovery = d.Backup.printable(), d.Recovery.printable()
	d.Upkeep = d.Upkeep.printable()
	d.Leases = slices.Clone(d.Leases)
	for i, lease := range d.Leases {
		d.Leases[i] = lease.printable()
	}
	d.Checks = shown(d.Checks, func(c *Check) *string { return &c.Reason })
	d.Certificates = shown(d.Certificates, func(c *Certificate) *string { return &c.Path })
	d.Peers = shown(d.Peers, func(p *Peer) *string { return &p.Name })
	for i := range d.Peers {
		d.Peers[i].URLs = shown(d.Peers[i].URLs, func(url *string) *string { return url })
	}
	d.Transitions = shown(d.Transitions, func(t *Transition) *string { return &t.Reason })
	return d
}

// copied is a copy with texts that are printable; nil of nothing.
func copied[T any](of *T, texts func(*T) []*string) *T {
	if of == nil {
		return nil
	}
	told := *of
	for _, is := range texts(&told) {
		*is = printable.Line(*is)
	}
	return &told
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
