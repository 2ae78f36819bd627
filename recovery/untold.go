package recovery

import (
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format/seal"
)

// disbelieved tells whether the store has answered, and its answer is not believed: asking again does not help.
func disbelieved(err error) bool {
	return archive.NotVerified(err) || errors.Is(err, seal.ErrNewer)
}

// untold is the event of a store that does not tell what it keeps. Of a valid volume nothing has to come back, so that is a
// trouble of backups alone, unless names suggest that the volume was put back.
func (r *run) untold(ctx context.Context, why error) (Event, Payload) {
	if r.asked && r.member.Peers != nil {
		why = fmt.Errorf("%w; if restore %q was done before, take --restore-to away: what this member lacks then comes from the others", why, r.options.Request.ID)
	}
	if !disbelieved(why) {
		return StoreSilent, Payload{Err: why}
	}
	if facts := r.core.Facts; (facts.Alone || facts.Unidentified) && facts.Condition == Valid && !r.asked {
		older, err := r.byNames(ctx, why)
		switch {
		case err != nil:
			return StoreSilent, Payload{Err: err}
		case older == nil:
			r.options.Log.Warn().Err(why).Msg("recovery: what the store says of itself is not believed; the volume is valid, and no name in the store tells of more than it has, so etcd serves")
			return Answered, Payload{Owner: Unknown, Err: why}
		}
		why = older
	}
	r.kept = inStore{} // what was told before is not what the store says now
	if is(why, seal.ErrUntrusted) {
		return KeysLacking, Payload{Err: why}
	}
	return Disbelieved, Payload{Err: why}
}

// byNames says why a valid volume was perhaps put back, by what names in a store tell that is not believed otherwise: they
// prove nothing, but a volume that was not put back has no less than they tell of. Any other trouble with the store is returned.
func (r *run) byNames(ctx context.Context, why error) (older, err error) {
	if !disbelieved(why) {
		return nil, why
	}
	told, err := r.options.Archive.Reported(ctx)
	if err != nil {
		return nil, err
	}
	return r.perhapsPutBack(told, why), nil
}

// perhapsPutBack says that names tell of more than a valid volume has; nil if they do not.
func (r *run) perhapsPutBack(told int64, why error) error {
	if told <= r.stands.HighestRevision {
		return nil
	}
	return fmt.Errorf("the data end with revision %d, and names in the store tell of revision %d, so the volume was perhaps put back, "+
		"and --recover=never starts it as it is; what has these names is not believed: %w", r.stands.HighestRevision, told, why)
}
