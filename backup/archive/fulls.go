package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Full is the manifest of a full snapshot.
type Full struct {
	format.Heading
	Cluster    string          `json:"cluster"`           // the store's
	Generation int             `json:"generation"`        //
	Revision   int64           `json:"revision"`          // read in the same transaction as the database
	Next       format.Position `json:"next"`              // position of the next segment
	Behind     *Link           `json:"behind,omitempty"`  // where the previous chain ended if this snapshot starts a new one; nil otherwise, or for the first chain
	Session    string          `json:"session,omitempty"` // writer process: random, hexadecimal
	Compacted  int64           `json:"compacted"`         // etcd's scheduled compaction in the same transaction; 0 if there was none
	Time       time.Time       `json:"time"`              // time of the transaction, truncated to seconds
	Chain      format.Digest   `json:"chain"`             // digest of the chain at Revision: that of the segments before it, or format.Seed
	Last       format.Digest   `json:"last,omitzero"`     // digest of the rows of the last revision with rows; zero if unknown
	Data       format.Body     `json:"data"`              // the object next to the manifest
	Database   format.Body     `json:"database"`          // only the database, without the digest that follows it in a snapshot
	Hash       *format.Hash    `json:"hash,omitempty"`    // etcd's own hash, if it was requested
	Buckets    []string        `json:"buckets,omitempty"` // names of the included small buckets
	Term       uint64          `json:"term"`              // raft's
	Applied    uint64          `json:"applied,omitzero"`  // raft index that the writer had applied when the transaction was open; 0 if unknown
	Member     string          `json:"member"`            // etcd member ID of the writer, hexadecimal
	Reason     string          `json:"reason"`            // reason for the snapshot, as a clause
	Encrypted  bool            `json:"encrypted,omitzero"`
}

const fullKind = "full"

// Name returns the name of the full snapshot within its generation.
func (f Full) Name() string { return FullName(f.Revision, f.Time) }

// ValidFrom returns a time at which the revision was certainly already reached, because Time is truncated to
// seconds.
func (f Full) ValidFrom() time.Time { return f.Time.Add(time.Second) }

// StartsChain reports whether the full snapshot starts a chain, so that no segment leads to it.
func (f Full) StartsChain() bool {
	return f.Chain == format.Seed(f.Cluster, f.Generation, f.Revision)
}

// Start returns the start of the next segment.
func (f Full) Start() format.Start {
	return format.Start{Cluster: f.Cluster, Generation: f.Generation, Position: f.Next, Before: f.Chain, Last: f.Last, Applied: f.Applied}
}

// maxCompression is the highest ratio that zstd reaches: 4 bytes for a block of 128 KiB.
const maxCompression = 32 << 10

// check returns an error if fields contradict each other.
func (f Full) check() error {
	switch {
	case f.Cluster == "" || f.Generation <= 0 || f.Revision <= 0:
		return fmt.Errorf("the full snapshot of revision %d lacks its cluster or generation", f.Revision)
	case !f.Next.Valid() || f.Next.Revision > f.Revision+1:
		return fmt.Errorf("the full snapshot of revision %d has the invalid next position %s", f.Revision, f.Next)
	case f.Data.Bytes <= 0 || f.Database.Bytes <= 0 || f.Database.Bytes/maxCompression > f.Data.Bytes:
		return fmt.Errorf("the full snapshot of revision %d has implausible sizes: %d bytes for a database of %d", f.Revision, f.Data.Bytes, f.Database.Bytes)
	}
	return nil
}

// PutData compresses, encrypts and stores the data of a full snapshot, and returns the manifest for Commit. It
// reads only the database, and sets Heading, Data, Database, Encrypted and, if zero, Next. After an error, the data
// must be stored under a different name, with a later Time, because encrypting twice yields different bytes.
func (a *Archive) PutData(ctx context.Context, full Full, database io.Reader) (Full, error) {
	full = a.withDefaults(full)
	var err error
	full.Data, err = a.putStream(ctx, DataName(full.Generation, full.Name()), func(into io.Writer) (err error) {
		full.Database, err = a.SealSnapshot(into, func(to io.Writer) (int64, error) { return io.Copy(to, database) })
		return err
	})
	return full, err
}

// PutSealedData stores the output of SealSnapshot; full.Database must be the value that SealSnapshot returned. It
// may be repeated with the same content.
func (a *Archive) PutSealedData(ctx context.Context, full Full, data io.Reader) (Full, error) {
	full = a.withDefaults(full)
	digest, err := store.PutOnce(ctx, a.store, DataName(full.Generation, full.Name()), data)
	full.Data = format.Body{Bytes: digest.Size, SHA256: digest.SHA256}
	return full, err
}

// withDefaults sets the fields that do not depend on the content.
func (a *Archive) withDefaults(full Full) Full {
	full.Heading, full.Encrypted = newHeader(fullKind), a.keys.Encrypts()
	full.Time = full.Time.UTC().Truncate(time.Second)
	if full.Next.IsZero() {
		full.Next = format.After(full.Revision)
	}
	return full
}

// Commit stores the manifest, which turns stored data into a full snapshot. It may be repeated for half a day,
// because data without a manifest may be deleted after a day.
func (a *Archive) Commit(ctx context.Context, full Full) error {
	if err := full.check(); err != nil {
		return err
	}
	return a.putStatement(ctx, ManifestName(full.Generation, full.Name()), full)
}

// SealSnapshot writes the content of a data object: a stock snapshot, compressed and encrypted. database writes
// only the database and returns its size in bytes. The result must be assigned to Full.Database. It is for callers
// that cannot keep a copy of the database until it is uploaded.
func (a *Archive) SealSnapshot(into io.Writer, database func(to io.Writer) (bytes int64, err error)) (format.Body, error) {
	sealed, err := a.keys.Seal(into)
	if err != nil {
		return format.Body{}, err
	}
	hash := sha256.New()
	size, err := database(io.MultiWriter(sealed, hash))
	if err != nil {
		_ = sealed.Close() // returns the same error
		return format.Body{}, err
	}
	body := format.Body{Bytes: size, SHA256: format.Digest(hash.Sum(nil))}
	_, err = sealed.Write(body.SHA256[:])
	return body, errors.Join(err, sealed.Close())
}

// putStream stores the data that fill writes.
func (a *Archive) putStream(ctx context.Context, name string, fill func(io.Writer) error) (format.Body, error) {
	reader, writer := io.Pipe()
	var filling sync.WaitGroup
	filling.Go(func() { _ = writer.CloseWithError(fill(writer)) })
	digest, err := store.PutOnce(ctx, a.store, name, reader)
	_ = reader.Close() // makes fill return an error if it is still writing
	filling.Wait()
	return format.Body{Bytes: digest.Size, SHA256: digest.SHA256}, err
}

// Full returns the manifest of a full snapshot.
func (r *objectStore) Full(ctx context.Context, generation int, name string) (Full, error) {
	var full Full
	object := ManifestName(generation, name)
	if _, err := r.readStatement(ctx, object, fullKind, &full); err != nil {
		return Full{}, err
	}
	if full.Generation != generation || full.Name() != name {
		return Full{}, r.mismatchError(object)
	}
	if err := full.check(); err != nil {
		return Full{}, r.wrapName(object, format.Damaged(err))
	}
	return full, nil
}

// OpenFull reads a full snapshot as a stock snapshot: the database followed by its 32-byte SHA-256. io.EOF reports
// that the stored bytes and the SHA-256 match the manifest; the caller must compare the SHA-256 with the database,
// as for any snapshot. After any other error, the data read so far must not be used. A missing or damaged object is
// reported as a Fault.
func (r *objectStore) OpenFull(ctx context.Context, full Full) (io.ReadCloser, error) {
	name := DataName(full.Generation, full.Name())
	content, err := Fetch(ctx, r.store, name)
	if err != nil {
		return nil, asFault(err, name, format.Position{})
	}
	data := full.Data.Reader(content)
	plain, err := r.keys.Open(data, full.Encrypted)
	if err != nil {
		return nil, errors.Join(asFault(r.wrapName(name, err), name, format.Position{}), content.Close())
	}
	trailer := format.Body{Bytes: sha256.Size, SHA256: sha256.Sum256(full.Database.SHA256[:])}
	all := io.MultiReader(io.LimitReader(plain, full.Database.Bytes), trailer.Reader(plain), endReader{plain}, endReader{data}, endReader{content})
	return &snapshot{reader: r, name: name, all: all, plain: plain, content: content}, nil
}

type snapshot struct {
	reader         *objectStore
	name           string
	all            io.Reader
	plain, content io.Closer
}

func (s *snapshot) Read(p []byte) (int, error) {
	n, err := s.all.Read(p)
	if err != nil && !format.Ended(err) {
		err = asFault(s.reader.wrapName(s.name, err), s.name, format.Position{})
	}
	return n, err
}

func (s *snapshot) Close() error { return errors.Join(s.plain.Close(), s.content.Close()) }

// An endReader fails if there is anything left to read.
type endReader struct{ of io.Reader }

func (n endReader) Read([]byte) (int, error) {
	var one [1]byte
	read, err := n.of.Read(one[:])
	if read > 0 {
		err = format.Damaged(errors.New("unexpected data after its end"))
	}
	return 0, err
}

// An Outcome is the result of a test restore.
type Outcome string

// Outcomes. A test restore that could not be performed has none.
const (
	Verified Outcome = "verified"
	Failed   Outcome = "failed"
)

// A Result describes a test restore.
type Result struct {
	format.Heading
	Cluster    string       `json:"cluster"`
	Generation int          `json:"generation"`
	Full       string       `json:"full"`     // name of the full snapshot that was restored
	Revision   int64        `json:"revision"` // restored revision
	Segments   bool         `json:"segments"` // segments after the full snapshot were restored as well
	Outcome    Outcome      `json:"outcome"`
	Why        string       `json:"why,omitempty"` // reason of a failure, as a sentence
	At         time.Time    `json:"at"`            // truncated to seconds
	Seconds    float64      `json:"seconds"`       // duration of the test
	Database   format.Body  `json:"database,omitzero"`
	Hash       *format.Hash `json:"hash,omitempty"` // etcd's own hash that was compared; nil if there was none
	Member     string       `json:"member"`         // etcd member ID of the tester, hexadecimal
}

const resultKind = "result"

// maxSameSecond limits the number of results within one second.
const maxSameSecond = 10

// PutResult stores a result and sets Heading. The newest result of a full snapshot counts; further results of the
// same second get later seconds.
func (a *Archive) PutResult(ctx context.Context, result Result) (err error) {
	result.Heading, result.At = newHeader(resultKind), result.At.UTC().Truncate(time.Second)
	for range maxSameSecond {
		if err = a.putStatement(ctx, resultName(result), result); !errors.Is(err, store.ErrExists) {
			return err
		}
		result.At = result.At.Add(time.Second)
	}
	return err
}

func resultName(v Result) string {
	if v.Segments {
		return testPrefix(v.Generation) + v.At.Format(nameTime) + ".json"
	}
	return resultPrefix(v.Generation) + v.Full + "_" + v.At.Format(nameTime) + ".json"
}

func (r *objectStore) result(ctx context.Context, name string) (Result, error) {
	var result Result
	_, err := r.readStatement(ctx, name, resultKind, &result)
	if err == nil && (resultName(result) != name || result.Outcome != Verified && result.Outcome != Failed) {
		err = r.mismatchError(name)
	}
	return result, err
}

// RestoreTests returns the verifiable results of restore tests of a generation since a time, oldest first.
func (r *objectStore) RestoreTests(ctx context.Context, generation int, since time.Time) (tests []Result, err error) {
	prefix := testPrefix(generation)
	for object, err := range r.store.List(ctx, prefix, prefix+since.UTC().Format(nameTime)) {
		if err != nil {
			return nil, err
		}
		switch test, err := r.result(ctx, object.Name); {
		case err == nil:
			tests = append(tests, test)
		case !NotVerified(err):
			return nil, err
		}
	}
	return tests, nil
}

// A StoredFull is a full snapshot in a listing. If its manifest cannot be verified, only Generation, Revision and Time
// are set, from its name.
type StoredFull struct {
	Full
	Size   int64     // total size of its objects in bytes
	Stored time.Time // creation time of its manifest, by the store's clock
	Result *Result   // newest verifiable result; nil if there is none
	Err    error     // why its manifest cannot be verified
	Passed bool      // the previous chain continues past it, and no segment continues from it

	fault error // why its data is unusable
}

// Usable reports whether a restore may start with the full snapshot: its manifest is verified, and no test restore
// of it has failed.
func (f StoredFull) Usable() bool { return f.rejectReason() == nil }

// rejectReason returns why a restore must not start with the full snapshot, or nil if it may.
func (f StoredFull) rejectReason() error {
	switch {
	case f.Err != nil:
		return f.Err
	case f.fault != nil:
		return f.fault
	case f.Result != nil && f.Result.Outcome == Failed:
		return fmt.Errorf("full snapshot %s failed its restore test: %s", f.Name(), f.Result.Why)
	}
	return nil
}

// A Link is the position at which the sequence continues before a full snapshot that starts a chain. The snapshot
// counts only after an empty segment at that position names it. Otherwise a chain could start in a generation that
// has ended.
type Link struct {
	format.Position
	Before format.Digest `json:"before"` // digest of the chain at that position
}

// listSnapshots lists full snapshots without reading them, and the objects that belong to no full snapshot.
func (r *objectStore) listSnapshots(ctx context.Context, generation int) (fulls []StoredFull, orphans []store.Object, err error) {
	prefix := fullPrefix(generation)
	var waiting []store.Object // data objects that wait for their manifest, which sorts after them
	of := ""
	for object, err := range r.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, nil, err
		}
		label, part, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "/")
		if label != of {
			orphans, waiting, of = append(orphans, waiting...), nil, label
		}
		revision, at, err := ParseFullName(label)
		if err != nil || part != "manifest.json" {
			waiting = append(waiting, object)
			continue
		}
		full := StoredFull{Full: Full{Generation: generation, Revision: revision, Time: at}, Stored: object.Modified, Size: object.Size}
		for _, other := range waiting {
			full.Size += other.Size
		}
		fulls, waiting = append(fulls, full), nil
	}
	return fulls, append(orphans, waiting...), nil
}
