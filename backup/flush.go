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
	// hangGrace is the time after its deadline at which a call counts as hung.
	hangGrace = 500 * time.Millisecond
	// recoveryLimit is the time for a store with an earlier problem to recover: a pod must not stop slowly because of
	// it.
	recoveryLimit = 3 * time.Second
)

var errStillUnreachable = errors.New("the store has not recovered from an earlier failure")

// Flush uploads everything that etcd acknowledged before it was closed, and returns nil once it is stored. It is
// called after End and waits until the writer has ended. The writer may have ended before the last writes, so each
// member uploads what the store lacks; several may do so at the same time. If there is no chain to extend, the
// member that wrote the backups copies the whole database, and others return writer.ErrNoChain. writer.ErrRowsOnly
// means that all revisions are stored and another member uploads the rest. ErrNotRunning means that backups had not
// started. Flush returns soon after ctx is done even if a volume or a network file system hangs. It then leaves a
// goroutine behind, since the process is about to exit.
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

// flushClosed flushes the database that etcd has closed.
func (b *Backups) flushClosed(ctx context.Context, r *running, database string) error {
	identity := r.etcd.Identity()
	identity.Members = r.etcd.Members()
	identity.Leader = true // it uploads its data whether or not it is the leader
	closed, err := capture.OpenClosed(database, identity)
	if err != nil {
		return err
	}
	defer closed.Close()
	shipped, options := b.Facts().Shipped, b.writerOptions(closed, r.dir, r.owner)
	wrote := shipped.Role == facts.Writer || r.etcd.Identity().Leader // a member elected during shutdown may not know that it writes
	options.Reconciled, options.SegmentsOnly = shipped.Role != facts.Waiting, !wrote
	options.Release = wrote && identity.Members == 1
	if shipped.Problem == nil {
		options.Previous = r.writer.Load()
	}
	return flush(ctx, options, shipped.Problem != nil)
}

// flush uploads a closed database, without a schedule for full snapshots. If the store had a problem, flush waits
// only for recoveryLimit until it has recovered.
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

// FlushAtRest uploads what the store lacks of the database in a data directory. It is for a single-member cluster whose
// etcd does not run and will not run again on this data. The error describes what is missing.
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
	return b.FlushSpool(ctx, archive.Identity{}, 0) // the writer keeps the last segment for an etcd that continues
}

const (
	// segmentTimeout bounds the upload of one segment, which is small.
	segmentTimeout = 2 * time.Minute
	// maxConflicts limits how often another member may store a segment first.
	maxConflicts = 10
)

// errMismatch reports that cannot append the spool to the backups in the store.
var errMismatch = errors.New("cannot append the spool to the backups")

// spoolFlush uploads the spool of an earlier run.
type spoolFlush struct {
	*Backups
	waiting  *writer.Spool
	torn     bool          // part of the data cannot be read
	matches  bool          // the store has the same history
	head     *archive.Head // head of the store; nil if it must be read again
	writable int           // generation to which this process may add objects; 0 until it is verified
}

// FlushSpool uploads the spool of an earlier run and clears it once it is stored. data is the identity of the data
// on the volume, unknown if there is no usable data, and reach its last revision. If the newest segment belongs to
// other data or ends at or before reach, the spool is left to the writer. FlushSpool is called before Begin and may
// be called again after an error, such as store.ErrUnavailable, or context.DeadlineExceeded after two minutes for
// one segment. Segments after an unreadable part, or of a generation that a restore has ended, are preserved with a
// warning.
func (b *Backups) FlushSpool(ctx context.Context, data archive.Identity, reach int64) error {
	inData := func(last format.Manifest) bool {
		return data.Known() && (last.Cluster != data.Cluster || last.Generation != data.Generation || last.End <= reach)
	}
	if last, known := writer.LastSpooled(b.options.SpoolDir, b.options.Keys); known && inData(last) {
		return nil // avoids reading the whole spool at the start
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
		return nil // the store has later revisions, but possibly with different rows
	}
	return waiting.Clear()
}

// upload stores a segment, or the part of it that the store lacks.
func (s *spoolFlush) upload(ctx context.Context, entry writer.Spooled) error {
	for range maxConflicts {
		if err := s.store(ctx, entry); !errors.Is(err, store.ErrExists) {
			return err
		}
		s.head = nil // another member stored a segment first, which may contain all or part of this one
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
		return nil // already stored
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
	defer content.Close() // the file was only read
	if entry.Before == s.head.Before && s.head.IsNewer(entry.Manifest) {
		s.matches = true
		return nil // the store has newer leases and users
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

// readHead reads the end of the backups unless it is known.
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

// mayAdd checks whether this process may add to the generation of a segment. It allows it if the generations cannot be
// read: other requests report that, and the spool is kept.
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

// generation returns the generation of a segment, nil if the store does not know it, and whether a restore has
// ended it.
func (s *spoolFlush) generation(ctx context.Context, entry writer.Spooled) (found *archive.Generation, ended bool, err error) {
	all, err := s.archive.Generations(ctx)
	for i := range all {
		if all[i].Number == entry.Generation && all[i].Cluster == entry.Cluster {
			return &all[i], i < len(all)-1, err
		}
	}
	return nil, false, err
}

// remaining returns the part of a segment that the store lacks, as it will be stored, and its manifest, which the
// next segment extends.
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
	return fmt.Errorf("%w: the segment at revision %d of cluster %s does not follow the backups in %s, which end at revision %d",
		errMismatch, manifest.Position.Revision, manifest.Cluster, s.archive, max(0, s.head.Revision()))
}

// preserve preserves the spool if its generation has ended or part of it is unreadable. It leaves the spool where it
// is if it belongs to another store. Otherwise it returns the error: an operator must decide.
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

// buildRemaining makes a segment of the records after the end of the backups, if another member has stored the first
// part of this one.
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

// split reads a segment: rows up to a revision extend a chain, and the other records go into another segment.
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
