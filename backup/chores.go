package backup

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer"
)

// How often the chores are looked at and done. None of them is urgent, and each listing costs requests.
const (
	glance     = time.Second
	listEvery  = 10 * time.Minute
	pruneEvery = time.Hour
	daily      = 24 * time.Hour

	// A chore that failed is tried again sooner than that: its trouble is told until then.
	firstRetry   = 5 * time.Second
	longestRetry = time.Minute
)

const inDoubt = "nothing is deleted while something is in doubt"

// chores are what is done beside shipping. One goroutine owns them, the one that calls run.
type chores struct {
	backups *Backups
	shipper *writer.Shipper
	member  string // etcd's id, hexadecimal

	listed  int64 // fulls that were stored when the last listing was made
	due     map[string]time.Time
	history *archive.History
	judged  string             // the full that this process has a verdict on, whether or not the store gives that back
	doubt   *Unable            // that kept everything from being deleted when it was last looked at; nil if there was none
	failing map[string]*Unable // chores that are not done, by their names

	replaced map[string]time.Time // when a full was last made for a reason

	holes   int64 // that the shipper had found when it was last looked
	suspect bool  // the store may have lost something that the latest revision needs
}

func newChores(b *Backups, s *writer.Shipper, member string) *chores {
	return &chores{backups: b, shipper: s, member: member, listed: -1, due: map[string]time.Time{}, replaced: map[string]time.Time{}, failing: map[string]*Unable{}}
}

// chore is one of them, with what has to be so for it to be done.
type chore struct {
	name  string
	every time.Duration
	ours  bool // only the member that writes the backups does it
	do    func(*chores, context.Context) error
}

// all are the chores in the order in which they are done when several are due.
func all() []chore {
	return []chore{
		{"list", listEvery, false, (*chores).list},
		{"verify", glance, true, (*chores).verify},
		{"drill", daily, true, (*chores).drill},
		{"prune", pruneEvery, true, (*chores).prune},
		{"sweep", daily, true, (*chores).sweep},
	}
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
	if facts.Holes != c.holes {
		c.holes, c.suspect, c.due["list"], c.due["drill"] = facts.Holes, true, time.Time{}, time.Time{}
	}
	for _, chore := range all() {
		switch {
		case chore.ours && facts.Role != writer.Writing:
			c.note(chore.name, nil, 0) // it is another member's now
		case ctx.Err() == nil && !time.Now().Before(c.due[chore.name]):
			c.perform(ctx, chore)
		}
	}
}

func (c *chores) perform(ctx context.Context, chore chore) {
	pause := chore.every
	err := chore.do(c, ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		pause = c.soon(chore.name)
	}
	c.due[chore.name] = later(c.due[chore.name], time.Now().Add(pause))
	c.note(chore.name, err, pause)
}

// soon is how long a chore that has failed once more waits.
func (c *chores) soon(name string) time.Duration {
	wait := firstRetry
	if before := c.failing[name]; before != nil {
		wait <<= min(before.Times, 10)
	}
	return min(wait, longestRetry)
}

// note has everybody told of a chore that is not done, and when it is tried again. The log has it once.
func (c *chores) note(name string, err error, pause time.Duration) {
	before := c.failing[name]
	delete(c.failing, name)
	if err != nil {
		if before == nil || before.Text != err.Error() {
			c.backups.options.Log.Warn().Err(err).Str("chore", name).Dur("next_try_ms", pause).Msg("backups: a chore is not done")
		}
		c.failing[name] = before.again(err, pause)
	}
	var told *Unable
	for _, chore := range all() {
		if told == nil {
			told = c.failing[chore.name]
		}
	}
	c.backups.undone.Store(cmp.Or(told, c.doubt))
}

// prune lets go what need not be kept.
func (c *chores) prune(ctx context.Context) error {
	plan, err := retention.Look(ctx, c.backups.archive, c.backups.options.Policy, time.Now(), c.shipper.Facts().Stored)
	if err != nil {
		return err
	}
	c.doubts(strings.Join(plan.Doubts, "; "))
	done, err := plan.Execute(ctx, c.backups.archive, nil)
	if done.Objects > 0 {
		c.backups.options.Log.Info().Int("objects", done.Objects).Int64("bytes", done.Bytes).Msg("backups: what need not be kept is deleted")
	}
	return err
}

// doubts has everybody told what keeps old backups, or that nothing does. The log has it once.
func (c *chores) doubts(text string) {
	before := c.doubt
	if c.doubt = nil; text == "" {
		return
	}
	c.doubt = before.again(errors.New(inDoubt+": "+text), pruneEvery)
	if before == nil || before.Text != c.doubt.Text {
		c.backups.options.Log.Warn().Str("doubt", text).Msg("backups: " + inDoubt)
	}
}

// sweep removes the remains of uploads that were cut off.
func (c *chores) sweep(ctx context.Context) error {
	removed, err := store.Sweep(ctx, c.backups.options.Store)
	if removed > 0 {
		c.backups.options.Log.Info().Int("uploads", removed).Msg("backups: the remains of uploads that were cut off are removed")
	}
	return err
}
