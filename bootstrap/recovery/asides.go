package recovery

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/rebuild"
)

// asideTime is how the names of what is set aside tell when that was. They sort by it.
const asideTime = "20060102T150405.000Z"

// aside is a data directory that was set aside.
type aside struct {
	path string
	at   time.Time
}

// asides are those beside the data directory, the oldest first. What people have given a name of that kind is none.
func (r *run) asides() (all []aside) {
	prefix := r.member.DataDir + asideInfix
	paths, _ := filepath.Glob(prefix + "*") // the pattern is well-formed, and what can't be listed is not there
	slices.Sort(paths)
	for _, path := range paths {
		if at, err := time.Parse(asideTime, strings.TrimPrefix(path, prefix)); err == nil {
			all = append(all, aside{path, at})
		}
	}
	return all
}

// makeRoom lets go of what was set aside until there is room for what the source leads to, the oldest first: that and
// nothing else is what data directories are ever deleted for. The newest stays until a backup was verified that is younger.
func (r *run) makeRoom(source rebuild.Source) error {
	err := r.measure(r.seed(), source)
	if !errors.Is(err, rebuild.ErrNoRoom) {
		return err
	}
	all := r.asides()
	if newest := len(all) - 1; newest >= 0 && !r.verifiedSince(all[newest].at) {
		all = all[:newest]
	}
	for _, old := range all {
		r.options.Log.Warn().Err(err).Str("deleted", old.path).Msg("recovery: what was set aside is deleted, as there is no room for it any more")
		if removed := os.RemoveAll(old.path); removed != nil {
			return removed
		}
		if err = r.measure(r.seed(), source); !errors.Is(err, rebuild.ErrNoRoom) {
			break
		}
	}
	return err
}

// verifiedSince tells whether a backup that was made after that time has been restored to test it.
func (r *run) verifiedSince(at time.Time) bool {
	if r.options.Archive == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	history, err := r.options.Archive.History(ctx)
	if err != nil || history.Newest() == nil {
		return false
	}
	return slices.ContainsFunc(history.Newest().Fulls, func(full archive.KeptFull) bool {
		return full.Err == nil && full.Time.After(at) && full.Verdict != nil && full.Verdict.Outcome == archive.Verified
	})
}

// relieve makes room where etcd starts with data that are in order, if the volume would not hold the database once more: etcd
// needs that much when it is defragmented, and stops when it has none.
func (r *run) relieve() {
	if len(r.asides()) == 0 {
		return
	}
	info, err := os.Stat(filepath.Join(r.member.DataDir, "member", "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return // it comes from the other members
	}
	if err == nil {
		err = r.makeRoom(rebuild.Source{DatabaseBytes: info.Size()})
	}
	if err != nil {
		r.options.Log.Warn().Err(err).Msg("recovery: the volume is nearly full")
	}
}
