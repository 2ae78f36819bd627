package datadir

import (
	"bytes"
	"fmt"
	"iter"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

// zeros are compared in one step: the file may have its zeros on the disk.
var zeros [64 << 10]byte

// word is the alignment of frames, in bytes: etcd pads them to a multiple of it.
const word = 8

// validRecord is an intact record behind the place where a segment becomes unreadable.
type validRecord struct {
	record

	at      int64 // in bytes
	checked bool  // whether its data are known to be whole
}

// validRecords yields the intact records behind the place where s ends. Their positions are unknown, so it accepts any
// frame whose checksum the next one continues. That proves the data of the next one to be intact; those of the first
// remain unproven. It searches on behind further damage.
func (s *segment) validRecords() iter.Seq[validRecord] {
	return func(yield func(validRecord) bool) {
		if s.isSingleFrame() {
			return
		}
		for at := s.nextData(s.at); at >= 0; at = s.nextData(at) {
			chain, more := s.chain(at, yield)
			if !more {
				return
			}
			at = max(chain, at+word)
		}
	}
}

// isSingleFrame reports whether nothing but zeros follows the unreadable frame, as after a power loss. The content
// of that frame is not searched: a value may be anything, records of a log included.
func (s *segment) isSingleFrame() bool {
	last := segment{content: s.content, at: s.at}
	_, whole := last.nextFrame()
	return whole && s.nextData(last.at) < 0
}

// chain yields the records from that position on while each continues the checksum of the one before, and returns
// where they end. It yields none unless there are two.
func (s *segment) chain(at int64, yield func(validRecord) bool) (end int64, more bool) {
	rest := segment{content: s.content, at: at}
	f, whole := rest.nextFrame()
	before, ok := f.parseCanonical()
	if !whole || !ok || !isExpected(before) {
		return at, true
	}
	end, before.sum = at, before.crc
	for f := range rest.frames() {
		r, err := f.check(before.sum)
		if err != nil || !isExpected(r) {
			break
		}
		if end == at && !yield(validRecord{record: before, at: at}) || !yield(validRecord{record: r, at: f.at, checked: true}) {
			return end, false
		}
		before, end = r, rest.at
	}
	return end, true
}

// isExpected reports whether etcd writes such a record after the first ones of a segment.
func isExpected(r record) bool {
	return len(r.data) > 0 && (r.kind == wal.EntryType || r.kind == wal.StateType || r.kind == wal.SnapshotType)
}

// nextData returns the position of the first word from at on that is not zero, -1 if there is none. It skips the
// holes of the file, which are usually most of the segment.
func (s *segment) nextData(at int64) int64 {
	for size := int64(len(s.content)); at < size; {
		piece := s.content[at:min(at+int64(len(zeros)), size)]
		if !bytes.Equal(piece, zeros[:len(piece)]) {
			skipped := len(piece) - len(bytes.TrimLeft(piece, "\x00"))
			return at + int64(skipped-skipped%word)
		}
		at += int64(len(piece))
		switch data, err := unix.Seek(int(s.file.Fd()), at, unix.SEEK_DATA); err {
		case nil:
			at = max(at, data-data%word)
		case unix.ENXIO:
			return -1
		} // otherwise the file system cannot report holes
	}
	return -1
}

// cut is the place where etcd cuts the log off when it starts, and what would be lost behind it.
//
// A power loss leaves such a place, too, and then no entry behind it was acknowledged, because the file was not
// flushed. Two things prove that it was flushed, and that the disk has lost data:
//
// For any member: wal.Save writes entries, then the hard state, and flushes the file if there was an entry;
// wal.SaveSnapshot flushes it, too. Both hold a lock meanwhile. So an entry is on the disk as soon as anything
// follows the hard state after the entry. A follower acknowledges its entries to the leader before it continues.
//
// For a single member of etcd 3.6: its commit index covers an entry. There a leader counts itself only after its
// entries were flushed (appendEntry in raft 3.6: "The leader needs to self-ack the entries just appended once they
// have been durably persisted"). A leader of etcd 3.5 counts itself at once (maybeCommit in appendEntry in raft 3.5),
// and a follower of any version learns of entries and of their commitment in one message: both write an entry and the
// commit index that covers it before one flush.
type cut struct {
	at        int64  // in bytes
	last      uint64 // index of the last entry before
	committed uint64 // the highest index that a record behind it says is committed
	flushed   bool   // an entry behind it was on the disk before what follows was written

	lost, ended bool // an entry was lost, and all that was written with it has been seen
}

// cutIn searches behind the place where the segment becomes unreadable. written is the history up to there.
func cutIn(s *segment, written *history) cut {
	c := cut{at: s.at, last: written.last}
	for r := range s.validRecords() {
		c.add(r)
	}
	return c
}

// add applies the rules above. Of a record that is not proven to be intact it uses the type and the index only.
func (c *cut) add(r validRecord) {
	c.flushed = c.flushed || c.ended || c.lost && r.kind == wal.SnapshotType
	switch r.kind {
	case wal.EntryType:
		c.lost = c.lost || c.contains(entryIndex(r.data), r.at)
	case wal.StateType:
		var state raftpb.HardState
		if r.checked && state.Unmarshal(r.data) == nil && c.contains(state.Commit, r.at) {
			c.committed, c.lost = max(c.committed, state.Commit), true
		}
		c.ended = c.lost
	}
}

// reaches reports whether an entry of that index can have been lost between the cut and another position. Even the
// smallest takes more than two words: a record that implies more is part of a value that looks like a log.
func (c *cut) contains(index uint64, at int64) bool {
	return index > c.last && index-c.last <= uint64(at-c.at)/(2*word)+1 //nolint:gosec // never negative
}

// proven reports whether an acknowledged entry would be lost. single means that the member is alone in its cluster
// and that etcd 3.6 wrote its log.
func (c *cut) isLoss(single bool) bool { return c.flushed || single && c.committed > c.last }

// commitment returns, as a clause, the commit index in the records behind the cut; empty if none has one.
func (c *cut) commitClause() string {
	if c.committed == 0 {
		return ""
	}
	return fmt.Sprintf(", where index %d was committed", c.committed)
}
