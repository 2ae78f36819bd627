package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"etcd-wrapper/backup/store"
)

// clocks is how names of objects begin that are created to learn the time.
const clocks = "probe/clock-"

// StoreClock is the time by the store's clock: that of an object which is created for it, and deleted. Older ones of its kind,
// which were locked, are deleted as soon as they may be.
func StoreClock(ctx context.Context, s store.Store) (at time.Time, err error) {
	name := fmt.Sprintf("%s%d", clocks, time.Now().UnixNano())
	if err := s.Put(ctx, name, strings.NewReader("")); err != nil {
		return at, fmt.Errorf("cannot learn the store's time: %w", err)
	}
	all := map[string]time.Time{}
	for object, err := range s.List(ctx, clocks, "") {
		if err != nil {
			return at, fmt.Errorf("cannot learn the store's time: %w", err)
		}
		all[object.Name] = object.Modified
	}
	at = all[name]
	for other, modified := range all {
		if other != name && at.Sub(modified) < time.Hour {
			continue // somebody looks at it
		}
		if err := s.Delete(ctx, other); err != nil && !errors.Is(err, store.ErrLocked) {
			return at, fmt.Errorf("cannot learn the store's time: %w", err)
		}
	}
	return at, nil
}
