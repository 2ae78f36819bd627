package backup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"etcd-wrapper/backup/archive"
)

// replaceEvery bounds how often what could not be restored is replaced.
const replaceEvery = time.Hour

// Why a full is made then.
const (
	failedTest   = "the test restore of the last one failed"
	lostSegments = "the store has lost segments"
)

// verify restores the newest full that was not restored yet. One that failed elsewhere, by a command or before this process was
// started, is replaced.
func (c *chores) verify(ctx context.Context) error {
	full := c.newestFull()
	switch {
	case full == nil || full.Err != nil:
		return nil
	case full.Result != nil && full.Result.Outcome == archive.Failed:
		_, err := c.replace(ctx, failedTest)
		return err
	case full.Encrypted && !c.backups.options.Keys.Encrypts():
		return errInTheClear
	case full.Result != nil || full.Label == c.judged:
		return nil
	}
	if !c.canOpen() {
		return errNoIdentities
	}
	return c.judge(ctx, archive.Path{
		Generation: c.history.Newest().Generation, Full: full.Full, Revision: full.Revision, Time: full.Time,
	})
}

// errNoIdentities is what whoever encrypts has to live with who gives the wrapper nothing to open it with.
var errNoIdentities = errors.New("--backup-identities is missing, so what is encrypted is never restored to test it, and nothing is ever deleted")

// errInTheClear is for who has forgotten the flags. It is over with the next full, as it may be meant.
var errInTheClear = errors.New("--backup-recipients is missing: what is stored now is not encrypted, though what was stored before is")

// canOpen tells whether what is written can be read again: without an identity what is encrypted can't.
func (c *chores) canOpen() bool {
	keys := c.backups.options.Keys
	return !keys.Encrypts() || keys.Opens()
}

// newestFull is the last one of the newest generation; nil if there is none.
func (c *chores) newestFull() *archive.KeptFull {
	if c.history == nil || c.history.Newest() == nil || len(c.history.Newest().Fulls) == 0 {
		return nil
	}
	fulls := c.history.Newest().Fulls
	return &fulls[len(fulls)-1]
}

// judge restores a path, keeps the verdict, and answers a failed one with a full.
func (c *chores) judge(ctx context.Context, path archive.Path) error {
	verdict, err := c.backups.options.Verify(ctx, path)
	if err != nil {
		return err
	}
	verdict.Member = c.member
	if err := c.backups.archive.PutResult(ctx, verdict); err != nil {
		return err
	}
	if verdict.Segments {
		c.suspect = false
	} else {
		c.judged = verdict.Full
	}
	log := c.backups.options.Log
	if verdict.Outcome == archive.Verified {
		log.Info().Int64("revision", verdict.Revision).Float64("seconds", verdict.Seconds).Msg("backups: a test restore gave back what etcd had")
		c.due["prune"] = time.Time{}
	} else {
		log.Error().Int64("revision", verdict.Revision).Str("error", verdict.Why).Msg("backups: a test restore has failed; a new full is made, and nothing is deleted")
	}
	err = c.list(ctx) // first of all: a full may take long
	if verdict.Outcome == archive.Verified {
		return err
	}
	_, failed := c.replace(ctx, failedTest)
	return errors.Join(err, failed)
}

// replace makes a full in the place of what could not be restored, but not one after the other.
func (c *chores) replace(ctx context.Context, reason string) (made bool, err error) {
	if time.Since(c.replaced[reason]) < replaceEvery {
		return false, nil
	}
	c.replaced[reason] = time.Now()
	_, err = c.shipper.FullNow(ctx, reason)
	return err == nil, err
}

// drill restores a random revision of the window, with segments; the latest one if something may be missing.
func (c *chores) drill(ctx context.Context) error {
	if c.suspect {
		return c.examine(ctx)
	}
	kept := c.backups.kept.Load()
	if kept == nil || kept.To <= kept.From || !c.canOpen() {
		return nil
	}
	for range drillTries {
		revision := kept.From + 1 + rand.Int64N(kept.To-kept.From)
		path, err := c.backups.archive.Find(ctx, archive.Target{Revision: revision})
		switch {
		case errors.Is(err, archive.ErrNotKept), err == nil && path.Revision == path.Full.Revision:
			continue // a full alone was restored before
		case err != nil:
			return err
		default:
			return c.judge(ctx, path)
		}
	}
	return nil
}

// examine looks whether the latest revision can be gone back to, since whoever writes does not look back. Where a chain just ended and
// another one began, it can. What a listing does not show, such as a segment that is damaged, a test restore does.
func (c *chores) examine(ctx context.Context) error {
	facts := c.shipper.Facts()
	if err := c.list(ctx); err != nil {
		return err
	}
	if kept := c.backups.kept.Load(); kept.To < facts.Stored {
		lost := fmt.Errorf("%s: revision %d is the last one that can be gone back to, and %d was stored", lostSegments, kept.To, facts.Stored)
		if kept.Cut != nil {
			lost = fmt.Errorf("%w: %w", lost, kept.Cut)
		}
		c.note("drill", lost, 0) // before the full, which may take long
		if made, err := c.replace(ctx, lostSegments); !made {
			return errors.Join(lost, err)
		}
		return c.examine(ctx)
	}
	path, err := c.backups.archive.Find(ctx, archive.Target{Generation: facts.Generation, Revision: facts.Stored})
	switch {
	case err != nil:
		return err
	case path.Revision == path.Full.Revision, !c.canOpen(): // nothing is needed but the full, or nobody can tell here, as verify says
		c.suspect = false
		return nil
	default:
		return c.judge(ctx, path)
	}
}

// drillTries is how often a revision is drawn until one needs segments.
const drillTries = 20
