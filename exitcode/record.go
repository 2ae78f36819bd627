package exitcode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"etcd-wrapper/internal/disk"
)

// Word is the content of a clean exit record. Both words are those of gardener/etcd-wrapper, so that either program can
// take over a volume from the other.
type Word string

// The two clean words. Anything else, and a missing record, requires full validation.
const (
	Terminated  Word = "terminated" // ended by SIGTERM or POST /stop
	Interrupted Word = "interrupt"  // ended by SIGINT
)

// Bounds of what is read, in bytes: of a record more than either word, so that a longer content shows.
const (
	maxRecord = 32
	maxNote   = 1 << 20
)

// Record is the exit record of one volume: a small file that vouches for an orderly close of the last etcd there. A
// note next to it describes the data files at that time.
//
// A clean record exists only if the last etcd on the volume was closed, its close returned, and no other was started
// since. Remove and Write are therefore durable before they return. One goroutine at a time may use a Record.
type Record struct {
	path        string
	describe    func() []byte // what the data look like; nil if that is not known
	removed     Word          // the clean word that Remove has removed, for Restore
	removedNote []byte        // its note; nil if there was none
	forfeited   bool          // no clean record can be written any more, after Invalidate
}

// NewRecord returns the record that lives at path, whose directory must be on the volume it speaks for.
func NewRecord(path string) *Record { return &Record{path: path} }

// Describe makes Write store the result of describe as the note.
func (r *Record) Describe(describe func() []byte) { r.describe = describe }

// Read returns the clean word, or an error with the reason why there is none. It follows no symbolic link and never
// blocks on what it finds at the path, such as a FIFO.
func (r *Record) Read() (Word, error) {
	content, err := disk.ReadHere(r.path, maxRecord)
	if err != nil {
		return "", fmt.Errorf("no clean exit record: %s: %w", r.path, err)
	}
	switch word := Word(content); word {
	case Terminated, Interrupted:
		return word, nil
	default:
		return "", fmt.Errorf("no clean exit record: %s has %d bytes that are not a known word", r.path, len(content))
	}
}

// Note returns what was noted of the data when the word was written. The error is fs.ErrNotExist if there is no note: the
// reference program writes none.
func (r *Record) Note() ([]byte, error) {
	note, err := disk.ReadHere(r.notePath(), maxNote)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", r.notePath(), err)
	}
	return note, nil
}

func (r *Record) notePath() string { return r.path + ".data" }

// Remove makes the record absent, durably: when it returns nil, no crash brings the record back. It must succeed before
// etcd opens the data.
func (r *Record) Remove() error {
	word, unclean := r.Read()
	note, unknown := r.Note()
	if err := disk.Remove(r.path); err != nil {
		return fmt.Errorf("cannot remove exit record: %w", err)
	}
	if unclean == nil && (unknown == nil || errors.Is(unknown, fs.ErrNotExist)) {
		r.removed, r.removedNote = word, note
	}
	_ = os.Remove(r.notePath()) // without a record it has no meaning
	return nil
}

// Restore writes the record again that Remove has removed. It is only for the end of a run in which etcd was never
// opened.
func (r *Record) Restore() error {
	if r.forfeited {
		return r.Remove()
	}
	if r.removed == "" {
		return nil
	}
	return r.put(r.removed, r.removedNote)
}

// Invalidate removes the record like Remove, and for good: from now on Restore and Write leave none behind, even if this
// removal fails. It is to be called as soon as another process is seen to have the data open for writing: how that
// ends will not be known.
func (r *Record) Invalidate() error {
	r.forfeited = true
	return r.Remove()
}

// Invalid reports whether Invalidate was called.
func (r *Record) Invalid() bool { return r.forfeited }

// Write writes the word durably, with a note of the data files. It must be called only after etcd's close has
// returned. A record that was forfeited stays absent, which is not an error.
func (r *Record) Write(word Word) error {
	if r.forfeited {
		return r.Remove()
	}
	var note []byte
	if r.describe != nil {
		note = r.describe()
	}
	return r.put(word, note)
}

// put writes the note first: no crash leaves a word that lacks the note which goes with it.
func (r *Record) put(word Word, note []byte) error {
	if note != nil {
		if err := disk.Replace(r.notePath(), note); err != nil {
			return fmt.Errorf("cannot record the state of the data's files: %w", err)
		}
	}
	if err := disk.Replace(r.path, []byte(word)); err != nil {
		return fmt.Errorf("cannot write exit record: %w", err)
	}
	return nil
}
