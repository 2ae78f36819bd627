package backup

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/keep"
	"etcd-wrapper/bootstrap/backup/shipper"
	"etcd-wrapper/bootstrap/backup/store"
)

// How often the chores are looked at and done. None of them is urgent, and each listing costs requests.
const (
	glance     = time.Second
	listEvery  = 10 * time.Minute
	pruneEvery = time.Hour
	daily      = 24 * time.Hour

	replaceEvery = time.Hour
	retry        = 5 * time.Minute // after a chore that failed
)

// Kept is what lies in the store, as of the last listing.
type Kept struct {
	At       time.Time         // of the listing; zero if there was none
	Bytes    int64             // of all objects of this cluster
	From, To int64             // the revisions that can be gone back to without a hole; 0 if there are none
	Begin    time.Time         // when From was the present
	End      time.Time         // when To was
	LastFull *archive.KeptFull // the newest
	Verdict  *archive.Verdict  // the newest
}

// chores are what is done beside shipping. One goroutine owns them, the one that calls run.
type chores struct {
	backups *Backups
	shipper *shipper.Shipper
	member  string // etcd's id, hexadecimal

	listed  int64 // fulls that were stored when the last listing was made
	due     map[string]time.Time
	history *archive.History

	replaced time.Time // when a full was last made because a test restore had failed
}

func newChores(b *Backups, s *shipper.Shipper, member string) *chores {
	return &chores{backups: b, shipper: s, member: member, listed: -1, due: map[string]time.Time{}}
}

// chore is one of them, with what has to be so for it to be done.
type chore struct {
	name  string
	every time.Duration
	ours  bool // only the member that writes the backups does it
	do    func(*chores, context.Context) error
}

// all are the chores in the order in which they are done when several are due.
var all = []chore{
	{"list", listEvery, false, (*chores).list},
	{"verify", glance, true, (*chores).verify},
	{"drill", daily, true, (*chores).drill},
	{"prune", pruneEvery, true, (*chores).prune},
	{"sweep", daily, true, (*chores).sweep},
}

// run does the chores until ctx ends.
func (c *chores) run(ctx context.Context) {
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.look(ctx)
		}
	}
}

// look does what is due.
func (c *chores) look(ctx context.Context) {
	facts := c.shipper.Facts()
	if facts.Generation == 0 {
		return // the store is not known to be ours
	}
	if facts.Fulls != c.listed {
		c.listed = facts.Fulls
		c.due["list"] = time.Time{}
	}
	for _, chore := range all {
		if ctx.Err() == nil && !time.Now().Before(c.due[chore.name]) && (!chore.ours || facts.Role == shipper.Writing) {
			c.perform(ctx, chore)
		}
	}
}

func (c *chores) perform(ctx context.Context, chore chore) {
	pause := chore.every
	if err := chore.do(c, ctx); err != nil && ctx.Err() == nil {
		c.backups.options.Log.Warn().Err(err).Str("chore", chore.name).Stringer("next_try", retry).Msg("backups: a chore was not done")
		pause = retry
	}
	c.due[chore.name] = time.Now().Add(pause)
}

// list looks at what is kept.
func (c *chores) list(ctx context.Context) error {
	history, err := c.backups.archive.History(ctx)
	if err != nil {
		return err
	}
	c.history = history
	kept := summary(history)
	c.backups.kept.Store(&kept)
	return nil
}

// summary is what people are told of a history.
func summary(history *archive.History) Kept {
	kept := Kept{At: time.Now()}
	for _, generation := range history.Generations {
		for _, full := range generation.Fulls {
			kept.Bytes += full.Size
		}
		for _, object := range generation.Objects {
			kept.Bytes += object.Size
		}
	}
	newest := history.Newest()
	if newest == nil {
		return kept
	}
	if count := len(newest.Chains); count > 0 {
		chain := newest.Chains[count-1]
		kept.From, kept.To, kept.Begin, kept.End = chain.From, chain.To, chain.Begin, chain.End
	}
	for i := range newest.Fulls {
		full := &newest.Fulls[i]
		kept.LastFull = full
		if full.Verdict != nil {
			kept.Verdict = full.Verdict
		}
	}
	return kept
}

// verify restores the newest full that was not restored yet.
func (c *chores) verify(ctx context.Context) error {
	full := c.unverified()
	if full == nil || !c.canOpen() {
		return nil
	}
	return c.judge(ctx, archive.Path{
		Generation: c.history.Newest().Generation, Full: full.Full, Revision: full.Revision, Time: full.Time,
	})
}

// canOpen tells whether what is written can be read again: without an identity what is encrypted can't.
func (c *chores) canOpen() bool {
	keys := c.backups.options.Keys
	return !keys.Encrypts() || keys.Opens()
}

// unverified is the newest full, if there is no verdict on it.
func (c *chores) unverified() *archive.KeptFull {
	if c.history == nil || c.history.Newest() == nil {
		return nil
	}
	fulls := c.history.Newest().Fulls
	if len(fulls) == 0 {
		return nil
	}
	if newest := &fulls[len(fulls)-1]; newest.Err == nil && newest.Verdict == nil {
		return newest
	}
	return nil
}

// judge restores a path, keeps the verdict, and answers a failed one with a full.
func (c *chores) judge(ctx context.Context, path archive.Path) error {
	verdict, err := c.backups.options.Verify(ctx, path)
	if err != nil {
		return err
	}
	verdict.Member = c.member
	if err := c.backups.archive.PutVerdict(ctx, verdict); err != nil {
		return err
	}
	log := c.backups.options.Log
	if verdict.Outcome == archive.Verified {
		log.Info().Int64("revision", verdict.Revision).Float64("seconds", verdict.Seconds).Msg("backups: a test restore gave back what etcd had")
		c.due["prune"] = time.Time{}
	} else {
		log.Error().Int64("revision", verdict.Revision).Str("error", verdict.Why).Msg("backups: a test restore has failed; a new full is made, and nothing is deleted")
		if err := c.replace(ctx); err != nil {
			return err
		}
	}
	return c.list(ctx)
}

// replace makes a full in the place of one that could not be restored, but not one after the other.
func (c *chores) replace(ctx context.Context) error {
	if time.Since(c.replaced) < replaceEvery {
		return nil
	}
	c.replaced = time.Now()
	_, err := c.shipper.FullNow(ctx, "the test restore of the last one failed")
	return err
}

// drill restores a random revision of the window.
func (c *chores) drill(ctx context.Context) error {
	kept := c.backups.kept.Load()
	if kept == nil || kept.To <= kept.From || !c.canOpen() {
		return nil
	}
	revision := kept.From + rand.Int64N(kept.To-kept.From+1)
	path, err := c.backups.archive.Find(ctx, archive.Target{Revision: revision})
	if errors.Is(err, archive.ErrNotKept) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.judge(ctx, path)
}

// prune lets go what need not be kept.
func (c *chores) prune(ctx context.Context) error {
	plan, err := keep.Look(ctx, c.backups.archive, c.backups.options.Policy, time.Now(), c.shipper.Facts().Stored)
	if err != nil {
		return err
	}
	for _, doubt := range plan.Doubts {
		c.backups.options.Log.Debug().Str("doubt", doubt).Msg("backups: nothing is deleted")
	}
	done, err := plan.Execute(ctx, c.backups.archive, nil)
	if done.Objects > 0 {
		c.backups.options.Log.Info().Int("objects", done.Objects).Int64("bytes", done.Bytes).Msg("backups: what need not be kept is deleted")
	}
	return err
}

// sweep removes the remains of uploads that were cut off.
func (c *chores) sweep(ctx context.Context) error {
	removed, err := store.Sweep(ctx, c.backups.options.Store)
	if removed > 0 {
		c.backups.options.Log.Info().Int("uploads", removed).Msg("backups: the remains of uploads that were cut off are removed")
	}
	return err
}
