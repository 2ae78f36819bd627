package recovery

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/backup/store"
)

// looks is how often what the store has told of is looked for again before it counts as lost: for half a minute or so. A store may
// list late, as a network file system does, and another member may have merged it and deleted it at that moment.
const looks = 5

// errMissing ends building where something should be looked for again.
var errMissing = errors.New("not there yet")

// mayCome tells whether what was wrong may be over when it is looked at again, and counts.
func (r *run) mayCome(why error) bool {
	if r.looked == looks || !errors.Is(why, store.ErrNotFound) && !errors.Is(why, archive.ErrHole) {
		return false
	}
	r.looked++
	return true
}

// incomplete is why less would come back than the store has told of, if that should not be: what lies beyond is not trusted, or it is
// missing and may come. What is damaged stays so, and is told of.
func (r *run) incomplete() (Event, error) {
	why := r.beyond()
	switch {
	case errors.Is(why, seal.ErrUntrusted):
		return KeysLacking, why
	case why != nil && r.mayCome(why):
		return Missing, why
	}
	return "", nil
}

// untrusted is why nothing can be said of a volume until more keys are trusted: everything that could come back is signed with
// others, or what the volume lacks by the names in the store is.
func (r *run) untrusted(now inStore) error {
	needed := r.asked || r.core.Facts.Condition != Valid || r.behind(now)
	switch {
	case needed && errors.Is(now.notKept, seal.ErrUntrusted):
		return now.notKept
	case needed && now.path.Revision > 0: // it would be restored, and that is written there
		return r.options.Archive.MayAdd(now.newest)
	case !needed && errors.Is(now.path.PastEnd, seal.ErrUntrusted):
		return r.perhapsPutBack(now.path.Reported, now.path.PastEnd)
	}
	return nil
}

// beyond is why what lies behind the latest revision does not come back; nil if nothing does, or if another one is asked for.
func (r *run) beyond() error {
	path, head := r.kept.path, r.kept.head
	latest := !r.asked || r.options.Request.Target.Latest()
	if path.PastEnd == nil && latest && path.Generation.Number == r.kept.newest.Number && head.Revision() > path.Revision {
		return fmt.Errorf("%w: %s has revision %d, and lists what leads to %d", archive.ErrHole, r.options.Archive, head.Revision(), path.Revision)
	}
	return path.PastEnd
}

// goInstead takes another way, since something on the one before is missing or damaged, and says what is lost by it.
func (r *run) goInstead(former, other archive.Path, why error) error {
	if other.Revision < former.Revision && r.mayCome(why) {
		return fmt.Errorf("%w: %w", errMissing, why)
	}
	r.options.Log.Warn().Err(why).Str("full", other.Full.Name()).Int64("lost_revisions", former.Revision-other.Revision).
		Msg("recovery: the backups are damaged, and another way to what they hold is taken")
	r.kept.path = other
	r.sayLoss()
	return nil
}

// unbuilt is the event of an error of building: the trouble is the store's, the keys', the volume's or the backups'.
func (r *run) unbuilt(err error) (Event, Payload) {
	var fault *archive.Fault
	switch {
	case r.ctx.Err() != nil:
		return broke(r.ctx.Err())
	case errors.Is(err, errMissing):
		return Missing, Payload{Err: err}
	case is(err, seal.ErrUntrusted, seal.ErrNoIdentity):
		return KeysLacking, Payload{Err: err}
	case mayAnswer(err):
		return StoreSilent, Payload{Err: err}
	case is(err, restore.ErrNoRoom, syscall.ENOSPC, syscall.EDQUOT):
		return RoomLacking, Payload{Err: err}
	case r.mayCome(err):
		return Missing, Payload{Err: err}
	case errors.As(restore.Blamed(err, r.kept.path), &fault), errors.Is(err, seal.ErrNewer):
		return Unbuildable, Payload{Err: err}
	}
	return broke(err)
}

// is tells whether an error is one of several.
func is(err error, several ...error) bool {
	return slices.ContainsFunc(several, func(one error) bool { return errors.Is(err, one) })
}
