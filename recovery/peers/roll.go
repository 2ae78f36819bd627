package peers

import (
	"cmp"
	"context"
	"fmt"
)

// hear asks a member that runs no etcd how it is.
func (p *Peers) hear(ctx context.Context, name string, urls []string, failed error) (call Call, waits bool) {
	if failed == nil {
		return Call{}, false
	}
	for _, at := range urls {
		if _, err := p.fetch(ctx, p.peer, at+callPath, &call); err == nil && call.Name == name {
			return call, true
		}
	}
	return Call{}, false
}

// both are two errors in one sentence; either may be nil.
func both(first, second error) error {
	if first != nil && second != nil {
		return fmt.Errorf("%w; %w", first, second)
	}
	return cmp.Or(first, second)
}

// roll is what a roll call comes to, where no etcd tells of more than a cluster that is being founded. A cluster is begun, or
// restored, when every member has said that it has no data of use: one that has not may have what all others lack.
func (p *Peers) roll(self Self, founding []*answer, calls []Call) Listing {
	if self.Restore != "" {
		return p.together(self, calls)
	}
	lacks, all := 1+len(founding), 1+len(p.others)
	lost := self.Holds != Nothing
	for _, call := range calls {
		if call.inTheWay(self) {
			return Unknown
		}
		lacks, lost = lacks+1, lost || call.Holds != Nothing
	}
	switch {
	case self.Holds == Data || lacks < all || lost && len(founding) > 0:
		return Unknown
	case lost:
		return Gone
	case len(founding) > 0:
		return Partial
	default:
		return Founding
	}
}

// inTheWay says that a member has data, or is about to. Of those that are about to restore them, the store has one be the
// first.
func (c Call) inTheWay(self Self) bool {
	switch c.Holds {
	case Nothing, Ruins, Older:
		return false
	case Restores:
		return self.Holds != Restores
	case Data:
	}
	return true
}

// together tells whether all ask for the same restore.
func (p *Peers) together(self Self, calls []Call) Listing {
	for _, call := range calls {
		if !call.agrees(self) {
			return Unknown
		}
	}
	if len(calls) < len(p.others) {
		return Unknown
	}
	return Asking
}

// agrees says that a member asks for the same restore, and has not begun it.
func (c Call) agrees(self Self) bool {
	return c.Restore == self.Restore && (c.Holds != Restores || self.Holds == Restores)
}
