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
	Cluster    string          `json:"cluster"`           // cluster ID
	Generation int             `json:"generation"`        // number of the generation
	Revision   int64           `json:"revision"`          // revision of the database, read in the same transaction
	Next       format.Position `json:"next"`              // position of the next segment
	Behind     *Link           `json:"behind,omitempty"`  // end of the previous chain if this snapshot starts a new chain; nil otherwise and for the first chain
	Session    string          `json:"session,omitempty"` // ID of the writer process (random, hexadecimal)
	Compacted  int64           `json:"compacted"`         // revision of etcd's scheduled compaction in that transaction; 0 if none
	Time       time.Time       `json:"time"`              // time of the transaction, truncated to seconds
	Chain      format.Digest   `json:"chain"`             // digest of the chain at Revision, or format.Seed if the snapshot starts a chain
	Last       format.Digest   `json:"last,omitzero"`     // digest of the rows of the last revision with rows; zero if unknown
	Data       format.Body     `json:"data"`              // size and digest of the data object
	Database   format.Body     `json:"database"`          // size and digest of the database, without a snapshot's trailing digest
	Hash       *format.Hash    `json:"hash,omitempty"`    // etcd's own hash; nil if it was not requested
	Buckets    []string        `json:"buckets,omitempty"` // names of the included small buckets
	Term       uint64          `json:"term"`              // raft term
	Applied    uint64          `json:"applied,omitzero"`  // raft index that the writer had applied at the time of the transaction; 0 if unknown
	Member     string          `json:"member"`            // etcd member ID of the writer in hexadecimal
	Reason     string          `json:"reason"`            // why the snapshot was taken, as a clause
	Encrypted  bool            `json:"encrypted,omitzero"`
}

const fullKind = "full"

// Name returns the name of the full snapshot within its generation.
func (f Full) Name() string { return FullName(f.Revision, f.Time) }

// ValidFrom returns a time by which the revision had certainly been reached: Time plus one second, because Time is
// truncated to seconds.
func (f Full) ValidFrom() time.Time { return f.Time.Add(time.Second) }

// StartsChain reports whether the full snapshot starts a chain, that is, whether no segments lead up to it.
func (f Full) StartsChain() bool {
	return f.Chain == format.Seed(f.Cluster, f.Generation, f.Revision)
}

// Start returns the start of the next segment.
func (f Full) Start() format.Start {
	return format.Start{Cluster: f.Cluster, Generation: f.Generation, Position: f.Next, Before: f.Chain, Last: f.Last, Applied: f.Applied}
}

// maxCompression is the highest compression ratio of zstd: 4 bytes for a block of 128 KiB.
const maxCompression = 32 << 10

// check returns an error if fields are invalid or inconsistent.
func (f Full) check() error {
	switch {
	case f.Cluster == "" || f.Generation <= 0 || f.Revision <= 0:
		return fmt.Errorf("full snapshot at revision %d has no valid cluster, generation or revision", f.Revision)
	case !f.Next.Valid() || f.Next.Revision > f.Revision+1:
		return fmt.Errorf("full snapshot at revision %d has an invalid next position: %s (must be at most revision %d)", f.Revision, f.Next, f.Revision+1)
	case f.Data.Bytes <= 0 || f.Database.Bytes <= 0 || f.Database.Bytes/maxCompression > f.Data.Bytes:
		return fmt.Errorf("full snapshot at revision %d has implausible sizes: data %d bytes, database %d bytes", f.Revision, f.Data.Bytes, f.Database.Bytes)
	}
	return nil
}

// PutData compresses, encrypts and stores the database of a full snapshot and returns the manifest for Commit.
// PutData sets Heading, Data, Database, Encrypted and, if zero, Next. After an error, callers must retry with a later
// Time, so that the object gets another name: encrypting the database again yields different bytes, which cannot be
// stored under the same name.
func (a *Archive) PutData(ctx context.Context, full Full, database io.Reader) (Full, error) {
	full = a.withDefaults(full)
	var err error
	full.Data, err = a.putStream(ctx, DataName(full.Generation, full.Name()), func(into io.Writer) (err error) {
		full.Database, err = a.SealSnapshot(into, func(to io.Writer) (int64, error) { return io.Copy(to, database) })
		return err
	})
	return full, err
}

// PutSealedData stores the output of SealSnapshot. full.Database must be the value returned by SealSnapshot.
// Repeated calls with the same content are safe.
func (a *Archive) PutSealedData(ctx context.Context, full Full, data io.Reader) (Full, error) {
	full = a.withDefaults(full)
	digest, err := store.PutOnce(ctx, a.store, DataName(full.Generation, full.Name()), data)
	full.Data = format.Body{Bytes: digest.Size, SHA256: digest.SHA256}
	return full, err
}

// withDefaults returns full after setting the fields that do not depend on the content.
func (a *Archive) withDefaults(full Full) Full {
	full.Heading, full.Encrypted = newHeader(fullKind), a.keys.Encrypts()
	full.Time = full.Time.UTC().Truncate(time.Second)
	if full.Next.IsZero() {
		full.Next = format.After(full.Revision)
	}
	return full
}

// Commit stores the manifest, which completes the full snapshot. Callers may retry Commit for half a day, because
// retention may delete data without a manifest after a day.
func (a *Archive) Commit(ctx context.Context, full Full) error {
	if err := full.check(); err != nil {
		return err
	}
	return a.putStatement(ctx, ManifestName(full.Generation, full.Name()), full)
}

// SealSnapshot writes the content of a data object: a stock snapshot, compressed and encrypted. The database callback
// writes only the database and returns the size in bytes. Callers that upload the sealed data later assign the result
// of SealSnapshot to Full.Database.
func (a *Archive) SealSnapshot(into io.Writer, database func(to io.Writer) (bytes int64, err error)) (format.Body, error) {
	sealed, err := a.keys.Seal(into)
	if err != nil {
		return format.Body{}, err
	}
	hash := sha256.New()
	size, err := database(io.MultiWriter(sealed, hash))
	if err != nil {
		_ = sealed.Close() // Close returns the same error
		return format.Body{}, err
	}
	body := format.Body{Bytes: size, SHA256: format.Digest(hash.Sum(nil))}
	_, err = sealed.Write(body.SHA256[:])
	return body, errors.Join(err, sealed.Close())
}

// putStream stores the output of fill as an object.
func (a *Archive) putStream(ctx context.Context, name string, fill func(io.Writer) error) (format.Body, error) {
	reader, writer := io.Pipe()
	var filling sync.WaitGroup
	filling.Go(func() { _ = writer.CloseWithError(fill(writer)) })
	digest, err := store.PutOnce(ctx, a.store, name, reader)
	_ = reader.Close() // unblocks fill if it is still writing
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

// OpenFull reads a full snapshot as a stock snapshot: the database followed by its 32-byte SHA-256. io.EOF means that
// the stored bytes and the SHA-256 match the manifest. The caller must still verify that the database has this
// SHA-256, as with any snapshot. After any other error, the data read so far must not be used. OpenFull reports a
// missing or damaged object as a Fault.
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

// An endReader returns an error if data is left after the expected end.
type endReader struct{ source io.Reader }

func (n endReader) Read([]byte) (int, error) {
	var one [1]byte
	read, err := n.source.Read(one[:])
	if read > 0 {
		err = format.Damaged(errors.New("unexpected trailing data"))
	}
	return 0, err
}

// An Outcome is the result of a restore test.
type Outcome string

// Outcomes of a restore test.
const (
	Verified Outcome = "verified"
	Failed   Outcome = "failed"
)

// A Result is the record of a restore test.
type Result struct {
	format.Heading
	Cluster    string       `json:"cluster"`
	Generation int          `json:"generation"`
	Full       string       `json:"full"`     // name of the restored full snapshot
	Revision   int64        `json:"revision"` // restored revision
	Segments   bool         `json:"segments"` // whether segments after the full snapshot were restored as well
	Outcome    Outcome      `json:"outcome"`
	Why        string       `json:"why,omitempty"` // why the test failed, as a sentence
	At         time.Time    `json:"at"`            // truncated to seconds
	Seconds    float64      `json:"seconds"`       // duration of the test
	Database   format.Body  `json:"database,omitzero"`
	Hash       *format.Hash `json:"hash,omitempty"` // etcd hash that the database was compared with; nil if none
	Member     string       `json:"member"`         // etcd member ID of the tester in hexadecimal
}

const resultKind = "result"

// maxSameSecond limits the number of results within one second.
const maxSameSecond = 10

// PutResult stores a result and sets Heading. If a result from the same second exists, the new result is stored with
// a later time, because only the newest result of a full snapshot is used.
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

// RestoreTests returns the verifiable results of restore tests that included segments, oldest first. Results from
// before the given time are left out.
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

// A StoredFull is a full snapshot in a listing. If the manifest cannot be verified, only Generation, Revision and
// Time are set, based on the object name.
type StoredFull struct {
	Full
	Size   int64     // total size of the data and the manifest in bytes
	Stored time.Time // creation time of the manifest according to the store's clock
	Result *Result   // newest verifiable result; nil if there is none
	Err    error     // why the manifest cannot be verified
	Passed bool      // the previous chain continues past the snapshot, and no segment continues from the snapshot

	fault error // why the data is unusable
}

// Usable reports whether a restore may start with the full snapshot, that is, the manifest has been verified and the
// last restore test did not fail.
func (f StoredFull) Usable() bool { return f.rejectReason() == nil }

// rejectReason returns why a restore must not start with the full snapshot, or nil if the snapshot is usable.
func (f StoredFull) rejectReason() error {
	switch {
	case f.Err != nil:
		return f.Err
	case f.fault != nil:
		return f.fault
	case f.Result != nil && f.Result.Outcome == Failed:
		return fmt.Errorf("restore test of full snapshot %s failed: %s", f.Name(), f.Result.Why)
	}
	return nil
}

// A Link ties a full snapshot that starts a new chain to the end of the previous chain. The full snapshot is ignored
// until an empty segment at the position of the link names the snapshot. The end marker of a generation occupies that
// position, so no chain can start after the end.
type Link struct {
	format.Position
	Before format.Digest `json:"before"` // digest of the chain at that position
}

// listSnapshots lists the full snapshots and the objects that do not belong to any full snapshot, without reading
// them.
func (r *objectStore) listSnapshots(ctx context.Context, generation int) (fulls []StoredFull, orphans []store.Object, err error) {
	prefix := fullPrefix(generation)
	var waiting []store.Object // data objects that are listed before their manifests
	current := ""
	for object, err := range r.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, nil, err
		}
		label, part, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "/")
		if label != current {
			orphans, waiting, current = append(orphans, waiting...), nil, label
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
