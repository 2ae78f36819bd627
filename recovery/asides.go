package recovery

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore"
	"etcd-wrapper/internal/preserved"
)

// asides is what was set aside beside the data directory and the spool, the oldest first, but for the newest of each if that
// has to stay.
func (r *run) asides(stays func(newest preserved.Copy) bool) (all []preserved.Copy) {
	for _, path := range []string{r.member.DataDir, r.options.SpoolDir} {
		own := preserved.Copies(path)
		if newest := len(own) - 1; newest >= 0 && stays(own[newest]) {
			own = own[:newest]
		}
		all = append(all, own...)
	}
	slices.SortFunc(all, func(a, b preserved.Copy) int { return a.At.Compare(b.At) })
	return all
}

// makeRoom lets go of what was set aside until there is room for what the source leads to, the oldest first: that and
// nothing else is what it is ever deleted for. The newest stays until a backup was verified that is younger.
// The store is asked about that for so long at most.
func (r *run) makeRoom(source restore.Source, most time.Duration) error {
	err := r.measure(r.seed(), source)
	if !errors.Is(err, restore.ErrNoRoom) {
		return err
	}
	ctx, cancel := context.WithTimeout(r.ctx, most)
	defer cancel()
	for _, old := range r.asides(func(newest preserved.Copy) bool { return !r.verifiedSince(ctx, newest.At) }) {
		r.options.Log.Warn().Err(err).Str("deleted", old.Path).Msg("recovery: what was set aside is deleted, as there is no room for it any more")
		if removed := os.RemoveAll(old.Path); removed != nil {
			return removed
		}
		if err = r.measure(r.seed(), source); !errors.Is(err, restore.ErrNoRoom) {
			break
		}
	}
	return err
}

// verifiedSince tells whether a backup that was made after that time has been restored to test it.
func (r *run) verifiedSince(ctx context.Context, at time.Time) bool {
	if r.options.Archive == nil {
		return false
	}
	history, err := r.options.Archive.History(ctx)
	if err != nil || history.Newest() == nil {
		return false
	}
	return slices.ContainsFunc(history.Newest().Fulls, func(full archive.KeptFull) bool {
		return full.Err == nil && full.Time.After(at) && full.Result != nil && full.Result.Outcome == archive.Verified
	})
}

// relieving is how long a start whose data are in order waits for the store at most, to learn whether more may go.
const relieving = 5 * time.Second

// relieve makes room where etcd starts with data that are in order, if the volume would not hold the database once more: etcd
// needs that much when it is defragmented, and stops when it has none.
func (r *run) relieve() {
	if len(r.asides(func(preserved.Copy) bool { return false })) == 0 {
		return
	}
	info, err := os.Stat(filepath.Join(r.member.DataDir, "member", "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return // it comes from the other members
	}
	if err == nil {
		err = r.makeRoom(restore.Source{DatabaseBytes: info.Size()}, relieving)
	}
	if err != nil {
		r.options.Log.Warn().Err(err).Msg("recovery: the volume is nearly full")
	}
}
