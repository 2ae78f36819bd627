package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Full is the manifest of a snapshot of the whole database.
type Full struct {
	format.Heading
	Cluster    string          `json:"cluster"`           // the store's
	Generation int             `json:"generation"`        //
	Revision   int64           `json:"revision"`          // read in the transaction that the database comes from
	Next       format.Position `json:"next"`              // where the segment behind it begins
	Behind     *Link           `json:"behind,omitempty"`  // where the generation went on when this one began a chain; nil if it began none, or the first of all
	Session    string          `json:"session,omitempty"` // of the process that wrote it: random, hexadecimal
	Compacted  int64           `json:"compacted"`         // etcd's scheduled compaction in that transaction; 0 before the first one
	Time       time.Time       `json:"time"`              // of that transaction, cut to the second
	Chain      format.Digest   `json:"chain"`             // the chain's digest at Revision: that of the segments before, or format.Seed
	Last       format.Digest   `json:"last,omitzero"`     // over the rows of the last revision with rows; zero if unknown
	Data       format.Body     `json:"data"`              // the object beside the manifest
	Database   format.Body     `json:"database"`          // the database alone, without the digest that follows it in a snapshot
	Hash       *Hash           `json:"hash,omitempty"`    // etcd's own, if it was asked
	Buckets    []string        `json:"buckets,omitempty"` // names of the small buckets inside
	Term       uint64          `json:"term"`              // raft's
	Applied    uint64          `json:"applied,omitzero"`  // raft's index that its writer had applied once the transaction was open; 0 if unknown
	Member     string          `json:"member"`            // who wrote it: etcd's member id, hexadecimal
	Reason     string          `json:"reason"`            // why it was made: a clause
	Encrypted  bool            `json:"encrypted,omitzero"`
}

// Hash is what etcd's HashKV answered.
type Hash struct {
	Revision  int64  `json:"revision"`
	Compacted int64  `json:"compact"`
	Hash      uint32 `json:"hash"`
}

const fullKind = "full"

// Name names the full within its generation.
func (f Full) Name() string { return FullName(f.Revision, f.Time) }

// Since is from when on its revision was certainly the present, or past: Time is cut to the second.
func (f Full) Since() time.Time { return f.Time.Add(time.Second) }

// BeginsChain tells whether no segment before it leads to it.
func (f Full) BeginsChain() bool {
	return f.Chain == format.Seed(f.Cluster, f.Generation, f.Revision)
}

// Start is what the segment behind it goes on from.
func (f Full) Start() format.Start {
	return format.Start{Cluster: f.Cluster, Generation: f.Generation, Position: f.Next, Before: f.Chain, Last: f.Last, Applied: f.Applied}
}

// mostCompressed is how many bytes zstd makes one of at best: a block of 128 KiB is four bytes at least.
const mostCompressed = 32 << 10

// check finds what contradicts itself.
func (f Full) check() error {
	switch {
	case f.Cluster == "" || f.Generation <= 0 || f.Revision <= 0:
		return fmt.Errorf("the full of revision %d doesn't say what it is of", f.Revision)
	case !f.Next.Valid() || f.Next.Revision > f.Revision+1:
		return fmt.Errorf("the full of revision %d goes on at %s", f.Revision, f.Next)
	case f.Data.Bytes <= 0 || f.Database.Bytes <= 0 || f.Database.Bytes/mostCompressed > f.Data.Bytes:
		return fmt.Errorf("the full of revision %d has %d bytes of a database of %d", f.Revision, f.Data.Bytes, f.Database.Bytes)
	}
	return nil
}

// PutData stores a full's data, sealed on the way, and returns what Commit makes a full of it with. It reads the database alone;
// Heading, Data, Database, Encrypted and, if it is zero, Next are filled in. After an error the data have to be put under another
// name, at a later Time, since what is encrypted twice is not the same.
func (w *Writer) PutData(ctx context.Context, full Full, database io.Reader) (Full, error) {
	full = w.completed(full)
	var err error
	full.Data, err = w.putFilled(ctx, DataName(full.Generation, full.Name()), func(into io.Writer) (err error) {
		full.Database, err = w.SealSnapshot(into, func(to io.Writer) (int64, error) { return io.Copy(to, database) })
		return err
	})
	return full, err
}

// PutSealedData is PutData for what SealSnapshot wrote; Database must be what it returned. It may be repeated with the same
// content.
func (w *Writer) PutSealedData(ctx context.Context, full Full, data io.Reader) (Full, error) {
	full = w.completed(full)
	digest, err := store.PutOnce(ctx, w.reader.store, DataName(full.Generation, full.Name()), data)
	full.Data = format.Body{Bytes: digest.Size, SHA256: digest.SHA256}
	return full, err
}

// completed fills in what doesn't depend on the content.
func (w *Writer) completed(full Full) Full {
	full.Heading, full.Encrypted = heading(fullKind), w.reader.keys.Encrypts()
	full.Time = full.Time.UTC().Truncate(time.Second)
	if full.Next.IsZero() {
		full.Next = format.After(full.Revision)
	}
	return full
}

// Commit makes a full of data that is there. It may be repeated until it succeeds, within half a day: what has no manifest may be
// deleted a day after it was put.
func (w *Writer) Commit(ctx context.Context, full Full) error {
	if err := full.check(); err != nil {
		return err
	}
	return w.state(ctx, ManifestName(full.Generation, full.Name()), full)
}

// SealSnapshot writes what a full's data object holds: a stock snapshot, compressed and encrypted. database writes that alone, and
// says how many bytes it has. What SealSnapshot returns goes into Full.Database. It is for those who cannot keep a copy of the database
// until it is uploaded.
func (w *Writer) SealSnapshot(into io.Writer, database func(to io.Writer) (bytes int64, err error)) (format.Body, error) {
	sealed, err := w.reader.keys.Seal(into)
	if err != nil {
		return format.Body{}, err
	}
	hash := sha256.New()
	size, err := database(io.MultiWriter(sealed, hash))
	if err != nil {
		_ = sealed.Close() // which fails in the same way
		return format.Body{}, err
	}
	body := format.Body{Bytes: size, SHA256: format.Digest(hash.Sum(nil))}
	_, err = sealed.Write(body.SHA256[:])
	return body, errors.Join(err, sealed.Close())
}

// putFilled stores an object of what fill writes.
func (w *Writer) putFilled(ctx context.Context, name string, fill func(io.Writer) error) (format.Body, error) {
	reader, writer := io.Pipe()
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		_ = writer.CloseWithError(fill(writer))
	}()
	digest, err := store.PutOnce(ctx, w.reader.store, name, reader)
	_ = reader.Close() // fill fails if it is not done
	<-filled
	return format.Body{Bytes: digest.Size, SHA256: digest.SHA256}, err
}

// Full returns a full's manifest by its name.
func (r *Reader) Full(ctx context.Context, generation int, name string) (Full, error) {
	var full Full
	object := ManifestName(generation, name)
	if _, err := r.statement(ctx, object, fullKind, &full); err != nil {
		return Full{}, err
	}
	if full.Generation != generation || full.Name() != name {
		return Full{}, r.damaged(object)
	}
	if err := full.check(); err != nil {
		return Full{}, r.named(object, format.Damaged(err))
	}
	return full, nil
}

// OpenFull reads a full's data as a stock snapshot: the database, and 32 bytes that are its SHA-256. io.EOF says that what is stored, and
// these 32 bytes, are as the manifest says; that they are the database's whoever reads it compares, as with any snapshot. What was read
// before another error counts for nothing. What is missing or damaged is a Fault.
func (r *Reader) OpenFull(ctx context.Context, full Full) (io.ReadCloser, error) {
	name := DataName(full.Generation, full.Name())
	content, err := r.fetch(ctx, name, 0, nil)
	if err != nil {
		return nil, faulty(err, name, format.Position{})
	}
	data := full.Data.Reader(content)
	plain, err := r.keys.Open(data, full.Encrypted)
	if err != nil {
		return nil, errors.Join(faulty(r.named(name, err), name, format.Position{}), content.Close())
	}
	trailer := format.Body{Bytes: sha256.Size, SHA256: sha256.Sum256(full.Database.SHA256[:])}
	all := io.MultiReader(io.LimitReader(plain, full.Database.Bytes), trailer.Reader(plain), nothing{plain}, nothing{data}, nothing{content})
	return &snapshot{reader: r, name: name, all: all, plain: plain, content: content}, nil
}

type snapshot struct {
	reader         *Reader
	name           string
	all            io.Reader
	plain, content io.Closer
}

func (s *snapshot) Read(p []byte) (int, error) {
	n, err := s.all.Read(p)
	if err != nil && !format.Ended(err) {
		err = faulty(s.reader.named(s.name, err), s.name, format.Position{})
	}
	return n, err
}

func (s *snapshot) Close() error { return errors.Join(s.plain.Close(), s.content.Close()) }

// nothing fails if there is anything to read.
type nothing struct{ of io.Reader }

func (n nothing) Read([]byte) (int, error) {
	var one [1]byte
	read, err := n.of.Read(one[:])
	if read > 0 {
		err = format.Damaged(errors.New("something follows its end"))
	}
	return 0, err
}

// Outcome is what a test restore showed.
type Outcome string

// The outcomes. What kept a test restore from being done is none of them.
const (
	Verified Outcome = "verified"
	Failed   Outcome = "failed"
)

// Result is what a test restore showed.
type Result struct {
	format.Heading
	Cluster    string      `json:"cluster"`
	Generation int         `json:"generation"`
	Full       string      `json:"full"`     // the full's name that it began with
	Revision   int64       `json:"revision"` // that was restored: the full's, or that of a restore test
	Segments   bool        `json:"segments"` // whether segments behind it were restored, too
	Outcome    Outcome     `json:"outcome"`
	Why        string      `json:"why,omitempty"` // it failed: a sentence
	At         time.Time   `json:"at"`            // to the second
	Seconds    float64     `json:"seconds"`       // how long it took
	Database   format.Body `json:"database,omitzero"`
	Hash       *Hash       `json:"hash,omitempty"` // etcd's own that was compared with; nil if there was none
	Member     string      `json:"member"`         // who did it: etcd's member id, hexadecimal
}

const resultKind = "result"

// sameSecond is how many results may be given within a second.
const sameSecond = 10

// PutResult stores a result. Heading is filled in. There may be several of a full: the newest counts. Of those of the same
// second the later ones are put down to the seconds behind it.
func (w *Writer) PutResult(ctx context.Context, result Result) (err error) {
	result.Heading, result.At = heading(resultKind), result.At.UTC().Truncate(time.Second)
	for range sameSecond {
		if err = w.state(ctx, resultName(result), result); !errors.Is(err, store.ErrExists) {
			return err
		}
		result.At = result.At.Add(time.Second)
	}
	return err
}

func resultName(v Result) string {
	if v.Segments {
		return testPrefix(v.Generation) + v.At.Format(second) + ".json"
	}
	return resultPrefix(v.Generation) + v.Full + "_" + v.At.Format(second) + ".json"
}

func (r *Reader) result(ctx context.Context, name string) (Result, error) {
	var result Result
	_, err := r.statement(ctx, name, resultKind, &result)
	if err == nil && (resultName(result) != name || result.Outcome != Verified && result.Outcome != Failed) {
		err = r.damaged(name)
	}
	return result, err
}

// RestoreTests returns the results of tests in a generation since a time, oldest first, but for those that are not to be believed:
// anybody may have put them there.
func (r *Reader) RestoreTests(ctx context.Context, generation int, since time.Time) (tests []Result, err error) {
	prefix := testPrefix(generation)
	for object, err := range r.store.List(ctx, prefix, prefix+since.UTC().Format(second)) {
		if err != nil {
			return nil, err
		}
		test, err := r.result(ctx, object.Name)
		if NotVerified(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		tests = append(tests, test)
	}
	return tests, nil
}
