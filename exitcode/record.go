package exitcode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"etcd-wrapper/internal/disk"
)

// A Word is the content of a clean exit record. gardener/etcd-wrapper uses the same words, so either program can
// take over a volume from the other.
type Word string

// Words that a clean record may contain. If the record is missing or has any other content, a full validation is
// required.
const (
	Terminated  Word = "terminated" // stopped by SIGTERM or POST /stop
	Interrupted Word = "interrupt"  // stopped by SIGINT
)

// Read limits in bytes. maxRecord is larger than either word, so that longer content is recognized as invalid.
const (
	maxRecord = 32
	maxNote   = 1 << 20
)

// A Record is the exit record of a volume, a small file that states that the last etcd instance on the volume was
// closed cleanly. A note next to the record describes the data files at that time.
//
// A clean record exists only if the last etcd instance on the volume has been closed and no other has been started
// since. Remove and Write therefore make their changes durable before they return. A Record is not safe for
// concurrent use.
type Record struct {
	path        string
	describe    func() []byte // returns a description of the data, or nil if it is unknown
	removed     Word          // word that Remove deleted, for Restore; empty if there was no clean record
	removedNote []byte        // note that Remove deleted; nil if there was none
	forfeited   bool          // set by Invalidate; if true, no clean record may be written
}

// NewRecord returns the record at path, which must be on the volume that the record describes.
func NewRecord(path string) *Record { return &Record{path: path} }

// Describe sets the function that creates the note for Write.
func (r *Record) Describe(describe func() []byte) { r.describe = describe }

// Read returns the word, or an error if there is no clean record. Read does not follow symbolic links and does not
// block on special files such as FIFOs.
func (r *Record) Read() (Word, error) {
	content, err := disk.ReadHere(r.path, maxRecord)
	if err != nil {
		return "", fmt.Errorf("no clean exit record: %s: %w", r.path, err)
	}
	switch word := Word(content); word {
	case Terminated, Interrupted:
		return word, nil
	default:
		return "", fmt.Errorf("no clean exit record: unrecognized content in %s (%d bytes)", r.path, len(content))
	}
}

// Note returns the description of the data at the time of the clean exit. If there is no note, Note returns
// fs.ErrNotExist. gardener/etcd-wrapper does not write notes.
func (r *Record) Note() ([]byte, error) {
	note, err := disk.ReadHere(r.notePath(), maxNote)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", r.notePath(), err)
	}
	return note, nil
}

func (r *Record) notePath() string { return r.path + ".data" }

// Remove durably removes the record: once Remove has returned nil, the record cannot reappear after a crash. Remove
// must succeed before etcd opens the data directory.
func (r *Record) Remove() error {
	word, readErr := r.Read()
	note, noteErr := r.Note()
	if err := disk.Remove(r.path); err != nil {
		return fmt.Errorf("cannot remove the exit record: %w", err)
	}
	if readErr == nil && (noteErr == nil || errors.Is(noteErr, fs.ErrNotExist)) {
		r.removed, r.removedNote = word, note
	}
	_ = os.Remove(r.notePath()) // if the removal fails: without a record, the note is ignored
	return nil
}

// Restore puts back the record that Remove deleted. Call Restore only at the end of a run that has not opened etcd.
func (r *Record) Restore() error {
	if r.forfeited {
		return r.Remove()
	}
	if r.removed == "" {
		return nil
	}
	return r.put(r.removed, r.removedNote)
}

// Invalidate permanently removes the record. After Invalidate, Restore and Write never write a record, but retry the
// removal in case it failed. Call Invalidate as soon as another process is found to have the data open for writing,
// because this process cannot know whether the other one closes the data cleanly.
func (r *Record) Invalidate() error {
	r.forfeited = true
	return r.Remove()
}

// Invalid reports whether Invalidate has been called.
func (r *Record) Invalid() bool { return r.forfeited }

// Write durably writes the word and a note about the data files. Call Write only after etcd has been closed. After
// Invalidate, Write does not write a record and retries the removal instead.
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

// put writes the note before the word, so that a word never exists without its note, even after a crash.
func (r *Record) put(word Word, note []byte) error {
	if note != nil {
		if err := disk.Replace(r.notePath(), note); err != nil {
			return fmt.Errorf("cannot record the fingerprint of the data files: %w", err)
		}
	}
	if err := disk.Replace(r.path, []byte(word)); err != nil {
		return fmt.Errorf("cannot write the exit record: %w", err)
	}
	return nil
}
