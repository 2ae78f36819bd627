package recovery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
)

// flushSpool uploads segments that wait on the volume, unless a valid volume has their content itself. If the store
// does not answer for a moment, recovery waits: after a restore they could not be added any more.
func (r *run) flushSpool() (Event, Facts) {
	data := r.identity
	if r.result != nil {
		data = archive.Identity{}
	}
	ctx, cancel := r.beforeServing(math.MaxInt64)
	defer cancel()
	err := r.options.FlushSpool(ctx, data, r.stands.HighestRevision)
	switch {
	case err == nil:
		return "", Facts{}
	case r.ctx.Err() != nil:
		return broke(r.ctx.Err())
	case mayAnswer(err), errors.Is(err, context.DeadlineExceeded):
		return r.silence(fmt.Errorf("what waits for it on the volume: %w", err))
	case is(err, format.ErrUntrusted, format.ErrNoIdentity, archive.ErrUnsigned):
		return Answered, Facts{Told: StoreLocked, Err: err}
	case errors.Is(err, archive.ErrNameless): // it can be restored, and accepts the segments then
		return Answered, Facts{Told: StoreDamaged, Err: err}
	}
	err = fmt.Errorf("what waits on the volume cannot be brought into the store: %w; to go on without it move %s away", err, r.options.SpoolDir)
	var errno syscall.Errno
	if errors.As(err, &errno) || is(err, store.ErrExists, store.ErrNotFound) { // a disk error, or another member has stored or merged an object
		return broke(err)
	}
	return Stuck, Facts{Err: err}
}

// mayAnswer reports whether the store may answer later.
func mayAnswer(err error) bool {
	return is(err, store.ErrUnavailable, store.ErrDenied, store.ErrNoBucket, store.ErrSkewed)
}

// notVerified reports whether the store's answer cannot be verified, so that asking again does not help.
func notVerified(err error) bool {
	return archive.NotVerified(err) || errors.Is(err, format.ErrNewer)
}

// notTold returns the event for a store that does not say what it has. If the volume is valid, nothing has to be
// restored, and this is a problem of backups alone, unless names suggest that the volume was rolled back.
func (r *run) notTold(ctx context.Context, why error) (Event, Facts) {
	if r.asked && r.member.Peers != nil {
		why = fmt.Errorf("%w; if restore %q was done before, take --restore-to away: what this member lacks then comes from the others", why, r.options.Request.ID)
	}
	if !notVerified(why) {
		return r.silence(why)
	}
	if facts := r.core.Facts; (facts.Alone || facts.Unidentified) && facts.Volume == VolumeValid && !r.asked {
		older, err := r.byNames(ctx, why)
		switch {
		case err != nil:
			return r.silence(err)
		case older == nil:
			r.options.Log.Warn().Err(why).Msg("recovery: the store's statements cannot be verified; the volume is valid, and no name in the store shows more than it has, so etcd serves")
			return Answered, Facts{Told: StoreUnverified, Err: why}
		}
		why = older
	}
	r.kept = inStore{} // earlier answers no longer count
	if is(why, format.ErrUntrusted) {
		return Answered, Facts{Told: StoreLocked, Err: why}
	}
	return Answered, Facts{Told: StoreDamaged, Err: why}
}

// byNames returns why a valid volume may have been rolled back, by names in a store that cannot be verified. They
// prove nothing, but a volume that was not rolled back has everything they suggest. Any other error of the store is
// returned unchanged.
func (r *run) byNames(ctx context.Context, why error) (older, err error) {
	if !notVerified(why) {
		return nil, why
	}
	told, err := r.options.Archive.Reported(ctx)
	if err != nil {
		return nil, err
	}
	return r.perhapsPutBack(told, why), nil
}

// perhapsPutBack reports that names suggest more than a valid volume has; nil if they do not.
func (r *run) perhapsPutBack(told int64, why error) error {
	if told <= r.stands.HighestRevision {
		return nil
	}
	return fmt.Errorf("the data end with revision %d, and names in the store tell of revision %d, so the volume was perhaps put back, "+
		"and --recover=never starts it as it is; what has these names is not believed: %w", r.stands.HighestRevision, told, why)
}

// looks is how often a missing object is searched before it counts as lost, for about half a minute. A store may list
// late, as network file systems do, and another member may have merged and deleted it at that moment.
const looks = 5

// errMissing stops building so that an object is searched again.
var errMissing = errors.New("not there yet")

// mayCome reports whether another attempt may succeed, and counts it.
func (r *run) mayCome(why error) bool {
	if r.looked == looks || !errors.Is(why, store.ErrNotFound) && !errors.Is(why, archive.ErrHole) {
		return false
	}
	r.looked++
	return true
}

// untrusted returns why a volume cannot be judged until more keys are trusted: everything that could be restored is
// signed with other keys, or the names of what the volume lacks are.
func (r *run) untrusted(now inStore) error {
	needed := r.asked || r.core.Facts.Volume != VolumeValid || r.behind(now)
	switch {
	case needed && errors.Is(now.notKept, format.ErrUntrusted):
		return now.notKept
	case needed && now.path.Revision > 0: // it would be restored, and the new cluster would write there
		return r.options.Archive.MayAdd(now.Newest())
	case !needed && errors.Is(now.path.PastEnd, format.ErrUntrusted):
		return r.perhapsPutBack(now.path.Reported, now.path.PastEnd)
	}
	return nil
}

// pastEnd returns why objects after the latest revision are not restored; nil if there are none, or if another
// revision is requested.
func (r *run) pastEnd() error {
	path, head := r.kept.path, r.kept.Head
	latest := !r.asked || r.options.Request.Target.Latest()
	if path.PastEnd == nil && latest && path.Generation.Number == r.kept.Newest().Number && head.Revision() > path.Revision {
		return fmt.Errorf("%w: %s has revision %d, and lists what leads to %d", archive.ErrHole, r.options.Archive, head.Revision(), path.Revision)
	}
	return path.PastEnd
}

// goInstead accepts another path because an object of the first one is missing or damaged, and reports the loss.
func (r *run) goInstead(former, other archive.Path, why error) error {
	if other.Revision < former.Revision && r.mayCome(why) {
		return fmt.Errorf("%w: %w", errMissing, why)
	}
	r.options.Log.Warn().Err(why).Str("full", other.Full.Name()).Int64("lost_revisions", former.Revision-other.Revision).
		Msg("recovery: the backups are damaged, and other objects are used in their place")
	r.kept.path = other
	r.sayLoss()
	return nil
}

// unbuilt returns the event for an error of building, by its cause: the store, the keys, the volume or the backups.
func (r *run) unbuilt(err error) (Event, Facts) {
	var fault *archive.Fault
	switch {
	case r.ctx.Err() != nil:
		return broke(r.ctx.Err())
	case errors.Is(err, errMissing):
		return Missing, Facts{Err: err}
	case is(err, format.ErrUntrusted, format.ErrNoIdentity):
		return Answered, Facts{Told: StoreLocked, Err: err}
	case mayAnswer(err):
		return StoreSilent, Facts{Err: err}
	case is(err, restore.ErrNoRoom, syscall.ENOSPC, syscall.EDQUOT):
		return RoomLacking, Facts{Err: err}
	case r.mayCome(err):
		return Missing, Facts{Err: err}
	case errors.As(restore.Blamed(err, r.kept.path), &fault), errors.Is(err, format.ErrNewer):
		return Unbuildable, Facts{Err: err}
	}
	return broke(err)
}

// is reports whether an error is one of several.
func is(err error, several ...error) bool {
	return slices.ContainsFunc(several, func(one error) bool { return errors.Is(err, one) })
}
