package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
)

// reserve keeps the store's reservation ahead of etcd's revisions: a restore continues above it.
func (c *tasks) reserve(ctx context.Context) error {
	facts := c.writer.Facts()
	reservation, err := c.backups.archive.Reserved(ctx)
	if errors.Is(err, store.ErrNotFound) || err == nil && facts.Revision+archive.Renewal > reservation.Revision {
		err = c.backups.archive.Reserve(ctx, archive.Reservation{
			Cluster: facts.Cluster, Generation: facts.Generation, Revision: facts.Revision + archive.Margin, Created: c.backups.options.Now(),
		})
	}
	if err == nil || errors.Is(err, store.ErrExists) {
		return nil
	}
	return fmt.Errorf("cannot reserve revisions for a restore: %w", err)
}

const (
	// mergeTimeout bounds one run of the merger.
	mergeTimeout = 15 * time.Minute
	// mergeBatch is the number of new segments that are merged soon. Fewer wait for idleMergeEvery, since each run
	// costs listings; an idle writer makes fewer in the time after which they are merged into one object.
	mergeBatch     = 60
	idleMergeEvery = 30 * time.Minute
)

// merge merges small segments, if enough are new.
func (c *tasks) merge(ctx context.Context) error {
	facts := c.writer.Facts()
	count := facts.Segments - c.mergedSegments
	wait := mergeEvery
	if count < mergeBatch {
		wait = idleMergeEvery
	}
	if facts.Trouble != nil || facts.FullRunning != nil || time.Since(c.mergedAt) < wait || count == 0 && !c.unmerged {
		return nil
	}
	c.mergedAt, c.mergedSegments = time.Now(), facts.Segments
	limited, cancel := context.WithTimeout(ctx, mergeTimeout)
	defer cancel()
	done, err := c.merger.Run(limited, facts.Generation)
	if c.unmerged = done.Left || err != nil; done.Holes > 0 {
		c.lossSuspected, c.due["list"], c.due["restore test"] = true, time.Time{}, time.Time{}
	}
	if err != nil && ctx.Err() == nil { // not a problem: everything is stored
		c.backups.options.Log.Warn().Err(err).Msg("backups: merging small segments failed; retrying later")
	}
	return nil
}
