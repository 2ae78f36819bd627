package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/capture"
)

const (
	// hangGrace is the time after its deadline that Flush waits for an upload to stop before it reports that the store
	// or the volume is not responding.
	hangGrace = 500 * time.Millisecond
	// recoveryLimit is the maximum time that Flush waits for a failing store to recover. It is short so that a broken
	// store does not delay pod shutdown.
	recoveryLimit = 3 * time.Second
)

var errStillUnreachable = errors.New("the store has not recovered from an earlier failure")

// Flush uploads all writes that etcd acknowledged before it was closed, and returns nil once they are stored. Flush
// must be called after End, and waits for the writer to stop. The writer may have stopped before the last writes, so
// every member uploads the changes that are missing from the store, possibly at the same time.
//
// If there is no chain to extend, the member that wrote the backups copies the whole database, and the other members
// return writer.ErrNoChain. Flush returns writer.ErrRowsOnly if all revisions are stored and another member must
// upload the rest, and ErrNotRunning if backups had not started. If a volume or network file system hangs, Flush
// still returns shortly after ctx is done, but leaks a goroutine, which is harmless because the process is about to
// exit.
func (b *Backups) Flush(ctx context.Context, database string) error {
	run := b.running.Load()
	if run == nil {
		return ErrNotRunning
	}
	flushed := make(chan error, 1)
	go func() {
		<-run.done
		flushed <- b.flushClosed(ctx, run, database)
	}()
	select {
	case err := <-flushed:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-flushed:
		return err
	case <-time.After(hangGrace):
		return fmt.Errorf("%w: the store or the volume is not responding", context.Cause(ctx))
	}
}

// flushClosed uploads the remaining changes after etcd has closed the database.
func (b *Backups) flushClosed(ctx context.Context, r *running, database string) error {
	identity := r.etcd.Identity()
	identity.Members = r.etcd.Members()
	identity.Leader = true // for a closed etcd, this means that the member uploads its data
	closed, err := capture.OpenClosed(database, identity)
	if err != nil {
		return err
	}
	defer closed.Close()
	state, options := b.Facts().Writer, b.writerOptions(closed, r.dir, r.owner)
	// A member that was elected during the shutdown may not know yet that it has become the writer.
	wrote := state.Role == facts.Writer || r.etcd.Identity().Leader
	options.Reconciled, options.SegmentsOnly = state.Role != facts.Waiting, !wrote
	options.Release = wrote && identity.Members == 1
	if state.Problem == nil {
		options.Previous = r.writer.Load()
	}
	return flush(ctx, options, state.Problem != nil)
}

// flush uploads a closed database without making scheduled full snapshots. If hadProblem is set, flush gives up unless
// the store recovers within recoveryLimit.
func flush(ctx context.Context, options writer.Options, hadProblem bool) error {
	options.Schedule = func(string, time.Time) time.Time { return time.Time{} }
	last, err := writer.New(options)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var ended sync.WaitGroup
	ended.Go(func() { last.Run(running) })
	defer ended.Wait()
	defer stop()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if hadProblem {
		defer time.AfterFunc(recoveryLimit, func() {
			if facts := last.Facts(); facts.Generation == 0 || facts.Problem != nil {
				giveUp(errStillUnreachable)
			}
		}).Stop()
	}
	return last.Flush(ctx)
}

// FlushAtRest uploads the changes in a data directory that are missing from the store. FlushAtRest is for
// single-member clusters whose etcd is not running and will not use this data again. The error describes what could
// not be uploaded.
func (b *Backups) FlushAtRest(ctx context.Context, dataDir string, member, cluster uint64) error {
	closed, err := capture.OpenClosed(filepath.Join(dataDir, "member", "snap", "db"), capture.Identity{
		MemberID: fmt.Sprintf("%x", member), ClusterID: fmt.Sprintf("%x", cluster), Leader: true,
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	options := b.writerOptions(closed, dataDir, "")
	if err := flush(ctx, options, false); err != nil {
		return err
	}
	// The writer keeps the last stored segment in the spool, in case etcd continues with this data. Remove it.
	return b.FlushSpool(ctx, archive.Identity{}, 0)
}

const (
	// segmentTimeout is the timeout for uploading one segment, which is small.
	segmentTimeout = 2 * time.Minute
	// maxConflicts is the number of attempts to store a segment if other members keep storing segments at the same
	// position.
	maxConflicts = 10
)

// errMismatch is returned if the spool does not continue the backups in the store.
var errMismatch = errors.New("cannot append the spool to the backups")

// spoolFlush is the state of a call of FlushSpool.
type spoolFlush struct {
	*Backups
	waiting  *writer.Spool
	torn     bool          // part of the spool is unreadable
	matches  bool          // the rows in the spool are known to equal or continue those in the store
	head     *archive.Head // end of the backups; nil if it must be read again
	writable int           // number of the generation that this process was found to be allowed to add to; 0 if none
}

// FlushSpool uploads the spool left by an earlier run and clears the spool. data identifies the data on the volume,
// and reach is its last revision. If the volume has no usable data, data is the zero value. If the newest segment
// belongs to other data or ends at or before reach, FlushSpool leaves the spool to the writer.
//
// FlushSpool must be called before Begin. FlushSpool can be called again after an error such as store.ErrUnavailable.
// If a segment takes longer than two minutes to upload, FlushSpool returns context.DeadlineExceeded. FlushSpool
// preserves segments that follow an unreadable part or belong to a generation that was ended by a restore, and logs a
// warning.
func (b *Backups) FlushSpool(ctx context.Context, data archive.Identity, reach int64) error {
	inData := func(last format.Manifest) bool {
		return data.Known() && (last.Cluster != data.Cluster || last.Generation != data.Generation || last.End <= reach)
	}
	if last, known := writer.LastSpooled(b.options.SpoolDir, b.options.Keys); known && inData(last) {
		return nil // without reading the whole spool, which may be large
	}
	waiting, torn, err := writer.OpenSpool(b.options.SpoolDir, b.options.SpoolLimit, b.options.Keys)
	if err != nil {
		return err
	}
	for _, reason := range torn {
		b.options.Log.Warn().Err(reason).Msg("backups: preserved unreadable spool segments")
	}
	s := &spoolFlush{Backups: b, waiting: waiting, torn: len(torn) > 0}
	entries := waiting.Entries()
	if len(entries) == 0 {
		return nil
	}
	if inData(entries[len(entries)-1].Manifest) {
		return nil
	}
	for _, entry := range entries {
		err := s.upload(ctx, entry)
		if errors.Is(err, errMismatch) {
			return s.preserve(ctx, entry, err)
		}
		if err != nil {
			return err
		}
	}
	if !s.matches {
		return nil // the store has later revisions than the spool, so its rows were not compared and may differ
	}
	return waiting.Clear()
}

// upload stores the part of a segment that is missing from the store.
func (s *spoolFlush) upload(ctx context.Context, entry writer.Spooled) error {
	for range maxConflicts {
		if err := s.store(ctx, entry); !errors.Is(err, store.ErrExists) {
			return err
		}
		s.head = nil // another member has stored a segment first, which may contain some or all of these rows
	}
	return fmt.Errorf("segment %s: %w", entry.Position, store.ErrExists)
}

func (s *spoolFlush) store(ctx context.Context, entry writer.Spooled) error {
	ctx, cancel := context.WithTimeout(ctx, segmentTimeout)
	defer cancel()
	if err := s.readHead(ctx, entry.Generation); err != nil {
		return err
	}
	switch entry.Next().Compare(s.head.Position) {
	case -1:
		return nil
	case 0:
		if entry.After != s.head.Before {
			return s.mismatch(entry.Manifest)
		}
		s.matches = true
		return nil
	}
	content, end, err := s.remaining(entry)
	if err != nil {
		return err
	}
	defer content.Close() // the file is only read, so a close error is harmless
	if entry.Before == s.head.Before && s.head.IsNewer(entry.Manifest) {
		s.matches = true
		return nil // the store has the same rows, and newer leases and users
	}
	if err := s.mayAdd(ctx, entry); err != nil {
		return err
	}
	if err := s.archive.PutStored(ctx, entry.Generation, s.head.Position, content); err != nil {
		return err
	}
	s.head.Start, s.head.Segment, s.matches = end.Start(), &end, true
	return nil
}

// readHead reads the end of a generation's backups unless it is already known.
func (s *spoolFlush) readHead(ctx context.Context, generation int) error {
	if s.head != nil && s.head.Generation == generation {
		return nil
	}
	head, err := s.archive.Head(ctx, generation)
	if err := errors.Join(err, head.Damaged); err != nil {
		return err
	}
	s.head = &head
	return nil
}

// mayAdd returns an error if this process must not add to the segment's generation. If the generations cannot be
// read, mayAdd returns nil: other requests report the error, and the spool is kept.
func (s *spoolFlush) mayAdd(ctx context.Context, entry writer.Spooled) error {
	if s.writable == entry.Generation {
		return nil
	}
	generation, _, _ := s.generation(ctx, entry)
	if generation == nil {
		return nil
	}
	if err := s.archive.MayAdd(*generation); err != nil {
		return err
	}
	s.writable = entry.Generation
	return nil
}

// generation returns the generation of a segment, or nil if the store does not contain it, and whether a restore has
// ended that generation.
func (s *spoolFlush) generation(ctx context.Context, entry writer.Spooled) (found *archive.Generation, ended bool, err error) {
	all, err := s.archive.Generations(ctx)
	for i := range all {
		if all[i].Number == entry.Generation && all[i].Cluster == entry.Cluster {
			return &all[i], i < len(all)-1, err
		}
	}
	return nil, false, err
}

// remaining returns the part of a segment that is missing from the store, and the manifest that the next segment must
// follow.
func (s *spoolFlush) remaining(entry writer.Spooled) (content io.ReadCloser, end format.Manifest, err error) {
	switch from := s.head; {
	case from.Ending() != nil || entry.Cluster != from.Cluster || entry.Position.Revision > from.Position.Revision:
		return nil, end, s.mismatch(entry.Manifest)
	case entry.Position != from.Position:
		rest, err := s.buildRemaining(entry)
		if err != nil {
			return nil, end, err
		}
		return io.NopCloser(rest.Reader()), rest.Manifest, nil
	case entry.Before != from.Before:
		return nil, end, s.mismatch(entry.Manifest)
	}
	content, err = s.waiting.Open(entry)
	return content, entry.Manifest, err
}

func (s *spoolFlush) mismatch(manifest format.Manifest) error {
	return fmt.Errorf("%w: the segment of cluster %s that starts at revision %d does not follow the backups in %s, which end at revision %d",
		errMismatch, manifest.Cluster, manifest.Position.Revision, s.archive, max(0, s.head.Revision()))
}

// preserve handles a spool that does not continue the backups in the store. If the generation has ended or part of the
// spool is unreadable, the spool is preserved. A spool that belongs to another store is left in place. Otherwise,
// preserve returns the given error, because an operator must decide what to do.
func (s *spoolFlush) preserve(ctx context.Context, from writer.Spooled, why error) error {
	generation, ended, err := s.generation(ctx, from)
	switch {
	case err != nil:
		return err
	case generation == nil:
		s.options.Log.Warn().Err(why).Msg("backups: the spool on this volume belongs to another store; leaving it in place")
		return nil
	case !ended && !s.torn:
		return why
	}
	where, err := s.waiting.Preserve(func(writer.Spooled) bool { return true })
	if err == nil {
		s.options.Log.Warn().Err(why).Str("moved_to", where).Int64("from_revision", from.Position.Revision).
			Msg("backups: the spool can no longer be uploaded to this store; preserved it")
	}
	return err
}

// buildRemaining builds a segment from the records that are still missing from the store after another member has
// stored the first part of a segment.
func (s *spoolFlush) buildRemaining(entry writer.Spooled) (format.Object, error) {
	file, err := s.waiting.Open(entry)
	if err != nil {
		return format.Object{}, err
	}
	defer file.Close()
	builder, err := format.NewSegmentBuilder(s.options.Keys, s.head.Start)
	if err != nil {
		return format.Object{}, err
	}
	stored := format.Continue(entry.Before, entry.Position)
	if err := split(format.NewSegmentReader(file, s.options.Keys), s.head.Revision(), stored, builder); err != nil {
		return format.Object{}, err
	}
	if digest, _ := stored.End(); digest != s.head.Before {
		return format.Object{}, s.mismatch(entry.Manifest)
	}
	return builder.Finish(format.Source{Compacted: entry.Compacted, Term: entry.Term, Member: entry.Member, Applied: entry.Applied})
}

// split reads a segment. It adds the rows up to the given revision to stored, and the records of later revisions, the
// hashes and the small buckets to beyond.
func split(from *format.SegmentReader, revision int64, stored *format.Chain, beyond *format.SegmentBuilder) error {
	_, err := from.Next()
	for err == nil {
		var record format.Record
		if record, err = from.Record(); err != nil {
			break
		}
		at := revision + 1
		row, isRow := record.(*format.Row)
		if isRow {
			at, err = row.Revision()
		} else if marker, isMarker := record.(*format.Marker); isMarker {
			at = marker.Revision
		}
		switch {
		case err != nil:
		case at > revision:
			err = beyond.Add(record)
		case isRow:
			err = stored.Add(*row)
		}
	}
	if format.Ended(err) {
		return nil
	}
	return err
}
