package retention

import (
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
)

// Look makes a plan of what lies in the archive now. known is a revision that the caller knows to be stored in the newest
// generation, 0 if it knows none. The store's clock is asked only if something would go, since that creates an object.
func Look(ctx context.Context, a *archive.Archive, policy Policy, now time.Time, known int64) (Plan, error) {
	history, err := a.History(ctx) // by names alone a segment that is lost would not be missed
	if err != nil {
		return Plan{}, fmt.Errorf("cannot list what is kept: %w", err)
	}
	facts := Facts{History: history, Now: now, Store: now, Known: known}
	if newest := history.Newest(); newest != nil {
		if facts.RestoreTests, err = a.RestoreTests(ctx, newest.Number, now.Add(-week)); err != nil {
			return Plan{}, fmt.Errorf("cannot list what tests showed: %w", err)
		}
	}
	plan := Make(policy, facts)
	if len(plan.Goes()) == 0 {
		return plan, nil
	}
	if facts.Store, err = StoreClock(ctx, a.Store()); err != nil {
		plan.Doubts = append(plan.Doubts, err.Error())
		return plan, nil
	}
	return Make(policy, facts), nil
}
