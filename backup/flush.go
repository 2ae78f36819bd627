package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/capture"
)

const (
	// hanging is how long it takes, after its context has ended, until what goes on is taken to hang.
	hangGrace = 500 * time.Millisecond
	// secondChance is what a store has to answer that was in trouble before: a pod is not to stop slowly because of it.
	recoveryLimit = 3 * time.Second
)

var errStillUnreachable = errors.New("the store was in trouble before, and still is")

// Flush brings what etcd took on until it was closed into the store: everything that it acknowledged is there when the error
// is nil. It is for after End has returned; what had not ended then is waited for. Whoever wrote the backups may have ended before
// the last writes, so each member brings what it has and the store lacks; several at once do no harm. Only the one that wrote them
// copies the whole database where there is no chain to go on with: for others the error is writer.ErrNoChain. writer.ErrRowsOnly says
// that all revisions are there, and that another member goes on with the rest. ErrNotRunning says that backups had not begun. It
// returns soon after ctx has ended even if a volume or a network file system hangs, and leaves a goroutine behind then: the process
// is about to end.
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
		return fmt.Errorf("%w: the store or the volume does not answer", context.Cause(ctx))
	}
}

// bring looks at the database that etcd has closed.
func (b *Backups) flushClosed(ctx context.Context, r *running, database string) error {
	identity := r.etcd.Identity()
	identity.Members = r.etcd.Members()
	identity.Leader = true // it brings what it has, whoever leads
	closed, err := capture.OpenClosed(database, identity)
	if err != nil {
		return err
	}
	defer closed.Close()
	facts := r.facts()
	previous := previousRun{wrote: r.isWriter(), reconciled: facts.Role == writer.Writing || facts.Role == writer.Watching, hadProblem: facts.Trouble != nil}
	if !previous.hadProblem {
		previous.writer = r.writer.Load()
	}
	return b.flushDatabase(ctx, closed, r.data, previous)
}

// former is what is known of the backups that were made while etcd ran.
type previousRun struct {
	wrote      bool           // this member did, so that a full may be made where there is no chain
	reconciled bool           // its data were seen to be those of the chain
	hadProblem bool           // something kept them from being made
	writer     *writer.Writer // that made them, and has ended; nil if there is none, or it was in trouble
}

// bringFrom is for a database that nobody has open. No full is due there by any schedule.
func (b *Backups) flushDatabase(ctx context.Context, closed *capture.Closed, data Data, previous previousRun) error {
	options := b.writerOptions(closed, data)
	options.Previous = previous.writer
	options.Release = previous.wrote && closed.Members() == 1
	options.Reconciled, options.SegmentsOnly, options.Schedule = previous.reconciled, !previous.wrote, func(string, time.Time) time.Time { return time.Time{} }
	last, err := writer.New(options)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	go func() {
		defer close(over)
		last.Run(running)
	}()
	err = flush(ctx, last, previous.hadProblem)
	stop()
	<-over
	return err
}

// writes tells whether it is this member's to begin a chain. One that became the leader at the end may not have heard of it.
func (r *running) isWriter() bool {
	return r.facts().Role == writer.Writing || r.etcd.Identity().Leader
}

// facts are the writer's, if there is one.
func (r *running) facts() writer.Facts {
	if s := r.writer.Load(); s != nil {
		return s.Facts()
	}
	return writer.Facts{Role: writer.Unknown}
}

// flush waits until everything is stored, but not for a store that was in trouble and has not recovered.
func flush(ctx context.Context, last *writer.Writer, troubled bool) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if troubled {
		defer time.AfterFunc(recoveryLimit, func() {
			if facts := last.Facts(); facts.Generation == 0 || facts.Trouble != nil {
				giveUp(errStillUnreachable)
			}
		}).Stop()
	}
	return last.Flush(ctx)
}

// FlushAtRest brings what the database of a data directory has into the store, for a cluster of one whose etcd does not run
// and will not run again on these data. The error says what is missing.
func (b *Backups) FlushAtRest(ctx context.Context, dataDir string, member, cluster uint64) error {
	closed, err := capture.OpenClosed(filepath.Join(dataDir, "member", "snap", "db"), capture.Identity{
		MemberID: fmt.Sprintf("%x", member), ClusterID: fmt.Sprintf("%x", cluster), Leader: true,
	})
	if err != nil {
		return err
	}
	defer closed.Close()
	if err := b.flushDatabase(ctx, closed, Data{Dir: dataDir}, previousRun{wrote: true}); err != nil {
		return err
	}
	return b.FlushSpool(ctx, archive.Identity{}, 0) // it keeps the last segment, for an etcd that goes on from there
}

const (
	// segmentPatience is how long the store may take for one segment, which is small.
	segmentTimeout = 2 * time.Minute
	// overtakings is how often another member may store a segment first, before that is an error.
	maxConflicts = 10
)

// errApart says that what waits cannot be added to what the store has.
var errMismatch = errors.New("it does not go on from there")

// spooled is what an earlier run has left in the spool.
type spoolFlush struct {
	*Backups
	waiting  *writer.Spool
	torn     bool          // some of it cannot be read
	matches  bool          // the store has gone the same way
	head     *archive.Head // of the store; nil if it must be looked at
	writable int           // the generation that this process may add to; 0 if it was not asked yet
}

// FlushSpool brings what an earlier run has left in the spool into the store, and empties the spool when the store has it. What data
// have as well that are of an identity and reach a revision stays where it is; one of no cluster says that there are no data of use. It is for the
// time before Begin, and may be repeated: it goes on where it ended. What lies behind a part that cannot be read, or belongs to
// a generation that a restore has ended, is set aside with a warning. Of the errors, those that a store gets over are
// store.ErrUnavailable and the like, and context.DeadlineExceeded after two minutes for one segment.
func (b *Backups) FlushSpool(ctx context.Context, data archive.Identity, reach int64) error {
	inData := func(last format.Manifest) bool {
		return data.Known() && (last.Cluster != data.Cluster || last.Generation != data.Generation || last.End <= reach)
	}
	if last, known := writer.LastSpooled(b.options.SpoolDir, b.options.Keys); known && inData(last) {
		return nil // so that a start need not read all of it
	}
	waiting, torn, err := writer.OpenSpool(b.options.SpoolDir, b.options.SpoolLimit, b.options.Keys)
	if err != nil {
		return err
	}
	for _, reason := range torn {
		b.options.Log.Warn().Err(reason).Msg("backups: what waited for the store cannot be read, and is preserved")
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
		return nil // the store goes further, but that it has these rows is not known
	}
	return waiting.Clear()
}

// bring stores a segment, or what the store lacks of it.
func (s *spoolFlush) upload(ctx context.Context, entry writer.Spooled) error {
	for range maxConflicts {
		if err := s.store(ctx, entry); !errors.Is(err, store.ErrExists) {
			return err
		}
		s.head = nil // another member was first, whose segment may have all of it, or a part
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
		return nil // the store has it
	case 0:
		if entry.After != s.head.Before {
			return s.mismatch(entry.Manifest)
		}
		s.matches = true
		return nil
	}
	content, end, err := s.remainder(entry)
	if err != nil {
		return err
	}
	defer content.Close() // nothing was written
	if entry.Before == s.head.Before && s.head.Outdates(entry.Manifest) {
		s.matches = true
		return nil // the store knows better
	}
	if err := s.mayAdd(ctx, entry.Generation); err != nil {
		return err
	}
	if err := s.archive.PutStored(ctx, entry.Generation, s.head.Position, content); err != nil {
		return err
	}
	s.head.Start, s.head.Segment, s.matches = end.Start(), &end, true
	return nil
}

// look finds out where the backups end, unless that is known.
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

// mayAdd asks whether this process may add to a generation. Where that cannot be read, others say so, and what waits is kept all the same.
func (s *spoolFlush) mayAdd(ctx context.Context, generation int) error {
	if s.writable == generation {
		return nil
	}
	all, _ := s.archive.Generations(ctx) // see above
	for _, candidate := range all {
		if candidate.Number != generation {
			continue
		}
		if err := s.archive.MayAdd(candidate); err != nil {
			return err
		}
		s.writable = generation
	}
	return nil
}

// beyond is what the store lacks of a segment, as it is stored, and what the next one goes on from.
func (s *spoolFlush) remainder(entry writer.Spooled) (content io.ReadCloser, end format.Manifest, err error) {
	switch from := s.head; {
	case from.Ending() != nil || entry.Cluster != from.Cluster || entry.Position.Revision > from.Position.Revision:
		return nil, end, s.mismatch(entry.Manifest)
	case entry.Position != from.Position:
		rest, err := s.buildRemainder(entry)
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
	return fmt.Errorf("what waits for %s from revision %d of cluster %s on, while its backups end at revision %d: %w",
		s.archive, manifest.Position.Revision, manifest.Cluster, max(0, s.head.Revision()), errMismatch)
}

// leave sets aside what cannot be added to what the store has and never will be, from one segment on, and what came before it. It
// leaves everything where it is if that waits for another store. Otherwise people have to say what is to become of it.
func (s *spoolFlush) preserve(ctx context.Context, from writer.Spooled, why error) error {
	over, known, err := s.generationEnded(ctx, from)
	switch {
	case err != nil:
		return err
	case !known:
		s.options.Log.Warn().Err(why).Msg("backups: what waits on the volume is not for this store, and stays there")
		return nil
	case !over && !s.torn:
		return why
	}
	where, err := s.waiting.Preserve(func(writer.Spooled) bool { return true })
	if err == nil {
		s.options.Log.Warn().Err(why).Str("moved_to", where).Int64("from_revision", from.Position.Revision).
			Msg("backups: what waited for the store can no longer go there, and is preserved")
	}
	return err
}

// outlived tells whether the store knows the generation that a segment is of, and whether a restore has ended that.
func (s *spoolFlush) generationEnded(ctx context.Context, entry writer.Spooled) (over, known bool, err error) {
	generations, err := s.archive.Generations(ctx)
	at := slices.IndexFunc(generations, func(g archive.Generation) bool {
		return g.Number == entry.Generation && g.Cluster == entry.Cluster
	})
	return at < len(generations)-1, at >= 0, err
}

// rest makes a segment of what one that waits has beyond the backups in the store, after another member has stored a part of it.
func (s *spoolFlush) buildRemainder(entry writer.Spooled) (format.Object, error) {
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

// split reads a segment: the rows up to a revision continue a chain, and everything behind them goes into another segment.
func split(from *format.SegmentReader, revision int64, stored *format.Chain, beyond *format.SegmentBuilder) error {
	_, err := from.Next()
	for err == nil {
		var record format.Record
		if record, err = from.Record(); err == nil {
			err = addRecord(record, revision, stored, beyond)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func addRecord(record format.Record, revision int64, stored *format.Chain, beyond *format.SegmentBuilder) error {
	switch record := record.(type) {
	case *format.Row:
		at, err := record.Revision()
		if err != nil {
			return err
		}
		if at <= revision {
			return stored.Add(*record)
		}
		return beyond.Row(*record)
	case *format.Marker:
		if record.Revision <= revision {
			return nil
		}
		return beyond.Marker(*record)
	case *format.CompactionHash:
		return beyond.CompactionHash(*record)
	case *format.Bucket:
		return beyond.Bucket(record)
	}
	return nil
}
