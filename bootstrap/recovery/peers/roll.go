package peers

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// patience is how long a quorum of members without data waits for one that cannot be asked, which may have some.
const patience = 30 * time.Second

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

// roll is what a roll call comes to, where no etcd tells of more than a cluster that is being founded. A cluster is begun when
// nobody has data: all have said so, or a quorum has and the rest could not be asked for a while, as when a pod cannot be
// scheduled. The second does not do for a restore, as little as a member that runs and may have data: that was founded once.
func (p *Peers) roll(self Self, founding []*answer, calls []Call) Listing {
	if p.called.IsZero() {
		p.called = p.now()
	}
	if self.Restore != "" {
		return p.together(self, calls)
	}
	without, ruined, all := 1+len(founding), self.Holds == Ruins, 1+len(p.others)
	for _, call := range calls {
		switch call.Holds {
		case Nothing:
			without++
		case Ruins:
			without, ruined = without+1, true
		case Data:
			return Unknown
		}
	}
	switch {
	case self.Holds == Data:
		return Unknown
	case without == all && len(founding) == 0 && ruined:
		return Gone
	case without == all && len(founding) == 0:
		return Founding
	case !ruined && (without == all || without > all/2 && p.now().Sub(p.called) >= patience):
		return Partial
	default:
		return Unknown
	}
}

// together tells whether all ask for the same restore.
func (p *Peers) together(self Self, calls []Call) Listing {
	for _, call := range calls {
		if call.Restore != self.Restore {
			return Unknown
		}
	}
	if len(calls) < len(p.others) {
		return Unknown
	}
	return Asking
}
