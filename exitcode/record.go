package exitcode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"etcd-wrapper/internal/disk"
)

// A Word is the content of a clean exit record. Both words are those of gardener/etcd-wrapper, so that either program
// can take over a volume from the other.
type Word string

// The two clean words. Anything else, and a missing record, requires full validation.
const (
	Terminated  Word = "terminated" // ended by SIGTERM or POST /stop
	Interrupted Word = "interrupt"  // ended by SIGINT
)

// Limits for reading, in bytes. That of the record is above the length of both words, so that longer content is
// noticed.
const (
	maxRecord = 32
	maxNote   = 1 << 20
)

// A Record is the exit record of a volume: a small file which records that the last etcd on it was closed in order. A
// note next to it describes the data files at that time.
//
// A clean record exists only if the last etcd on the volume was closed, its close returned, and no other etcd was
// started since. Remove and Write are therefore durable before they return. Only one goroutine at a time may use a
// Record.
type Record struct {
	path        string
	describe    func() []byte // returns a description of the data; nil if it is unknown
	removed     Word          // the word that Remove removed, for Restore
	removedNote []byte        // its note; nil if there was none
	forfeited   bool          // set by Invalidate: no clean record can be written any more
}

// NewRecord returns the record at path. It must be on the volume that it describes.
func NewRecord(path string) *Record { return &Record{path: path} }

// Describe makes Write store the result of describe as the note.
func (r *Record) Describe(describe func() []byte) { r.describe = describe }

// Read returns the clean word, or an error with the reason why there is none. It does not follow symbolic links and
// never blocks on a special file such as a FIFO.
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

// Note returns the description of the data from the time when the word was written. The error is fs.ErrNotExist if
// there is no note: the reference program writes none.
func (r *Record) Note() ([]byte, error) {
	note, err := disk.ReadHere(r.notePath(), maxNote)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", r.notePath(), err)
	}
	return note, nil
}

func (r *Record) notePath() string { return r.path + ".data" }

// Remove durably removes the record: once it has returned nil, no crash can restore it. It must succeed before etcd
// opens the data.
func (r *Record) Remove() error {
	word, unclean := r.Read()
	note, unknown := r.Note()
	if err := disk.Remove(r.path); err != nil {
		return fmt.Errorf("cannot remove exit record: %w", err)
	}
	if unclean == nil && (unknown == nil || errors.Is(unknown, fs.ErrNotExist)) {
		r.removed, r.removedNote = word, note
	}
	_ = os.Remove(r.notePath()) // it has no meaning without a record
	return nil
}

// Restore writes the record that Remove removed. Call it only at the end of a run in which etcd was never opened.
func (r *Record) Restore() error {
	if r.forfeited {
		return r.Remove()
	}
	if r.removed == "" {
		return nil
	}
	return r.put(r.removed, r.removedNote)
}

// Invalidate removes the record permanently: from now on Restore and Write write none, even if this removal fails.
// Call it as soon as another process is found to have the data open for writing, because nothing shows how that
// process will end.
func (r *Record) Invalidate() error {
	r.forfeited = true
	return r.Remove()
}

// Invalid reports whether Invalidate was called.
func (r *Record) Invalid() bool { return r.forfeited }

// Write durably writes the word, with a note about the data files. Call it only after etcd's close has returned.
// After Invalidate it writes nothing, which is not an error.
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

// put writes the note first, so that a crash never leaves a word without its note.
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
