package datadir

import (
	"context"
	"path/filepath"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// Findings are what one look at the data of an etcd that does not run has found. Inspect and ClusterVersions judge them.
type Findings struct {
	*member

	contents    contents
	contentsErr error

	read       map[string]*history // by segments, of those that etcd replays
	versions   []string
	versionErr error
}

// Look reads what has to be known right before etcd opens the data, and no more than that: a start waits for it. Of the
// database it reads what that says of itself. Of the log it walks through the segments that etcd replays, but only in the
// last one, which etcd mends without a word, does it look into every record. walDir is where the log is, if that is not in
// the data directory, and empty otherwise.
func Look(dataDir, walDir string) *Findings {
	f := &Findings{member: survey(dataDir, walDir), read: map[string]*history{}}
	f.contentsErr = readDatabase(f.database, func(tx *bolt.Tx) (err error) {
		f.contents, err = readContents(tx)
		return err
	})
	f.versions, f.versionErr = f.versionsReplayed()
	return f
}

// hasLogElsewhere says that the log is not where the member's directory is.
func (f *Findings) hasLogElsewhere() bool { return filepath.Dir(f.wal.path) != f.dir.path }

// tail is the history of the last segment, up to where it can't be read on, and nil if there is none. The segment's name
// tells what the ones before end with; damage there makes etcd give up.
func (f *Findings) tail() *history {
	segments := f.segments()
	if len(segments) == 0 {
		return nil
	}
	newest := segments[len(segments)-1]
	if _, _, ok := parseSegmentName(newest); !ok || f.read[newest].unread != nil {
		return nil
	}
	return f.read[newest]
}

// histories are those of segments, of which each is read once, and all that have not been at the same time: this is what a
// start on a long log waits for.
func (f *Findings) histories(segments []string) (histories []*history) {
	all, reading := f.segments(), sync.WaitGroup{}
	for _, name := range segments {
		if f.read[name] == nil {
			_, before, _ := parseSegmentName(name)
			read := &history{last: before}
			f.read[name] = read
			reading.Go(func() { read.look(f.segment(name), name == all[len(all)-1]) })
		}
		histories = append(histories, f.read[name])
	}
	reading.Wait()
	return histories
}

// look reads a segment: the last one record for record, of any other only what it says of versions and snapshots.
func (h *history) look(path string, isLast bool) {
	h.unread = readSegment(path, func(s *segment) error {
		if isLast {
			_ = h.takeTail(context.Background(), s) // what comes before the error is what counts
		} else {
			h.skim(s)
		}
		return nil
	})
}
