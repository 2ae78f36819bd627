package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/format/segment"
	"etcd-wrapper/backup/store"
)

// SealSnapshot writes what a full's data object holds: a stock snapshot, compressed and encrypted. It reads the database alone,
// and returns what goes into Full.Database. It is for those who cannot keep a copy of the database until it is uploaded.
func (a *Archive) SealSnapshot(w io.Writer, database io.Reader) (segment.Body, error) {
	sealed, err := a.keys.Seal(w)
	if err != nil {
		return segment.Body{}, err
	}
	hash := sha256.New()
	size, err := io.Copy(io.MultiWriter(sealed, hash), database)
	if err != nil {
		_ = sealed.Close() // which fails in the same way
		return segment.Body{}, err
	}
	body := segment.Body{Bytes: size, SHA256: segment.Digest(hash.Sum(nil))}
	_, err = sealed.Write(body.SHA256[:])
	return body, errors.Join(err, sealed.Close())
}

// putFilled stores an object of what fill writes.
func (a *Archive) putFilled(ctx context.Context, name string, fill func(io.Writer) error) (segment.Body, error) {
	reader, writer := io.Pipe()
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		_ = writer.CloseWithError(fill(writer))
	}()
	digest, err := store.PutOnce(ctx, a.store, name, reader)
	_ = reader.Close() // fill fails if it is not done
	<-filled
	return segment.Body{Bytes: digest.Size, SHA256: digest.SHA256}, err
}

// OpenFull reads a full's data as a stock snapshot: the database, and 32 bytes that are its SHA-256. io.EOF says that all of it
// was as the manifest says; what was read before another error counts for nothing. What is missing or damaged is a Fault.
func (a *Archive) OpenFull(ctx context.Context, full Full) (io.ReadCloser, error) {
	name := DataName(full.Generation, full.Name())
	content, err := a.fetch(ctx, name, 0, nil)
	if err != nil {
		return nil, faulty(err, name, segment.Position{})
	}
	data := full.Data.Reader(content)
	plain, err := a.keys.Open(data, full.Encrypted)
	if err != nil {
		return nil, errors.Join(faulty(a.named(name, err), name, segment.Position{}), content.Close())
	}
	trailer := segment.Body{Bytes: sha256.Size, SHA256: sha256.Sum256(full.Database.SHA256[:])}
	all := io.MultiReader(full.Database.Reader(plain), trailer.Reader(plain), nothing{plain}, nothing{data}, nothing{content})
	return &snapshot{archive: a, name: name, all: all, closers: []io.Closer{plain, content}}, nil
}

type snapshot struct {
	archive *Archive
	name    string
	all     io.Reader
	closers []io.Closer
}

func (s *snapshot) Read(p []byte) (int, error) {
	n, err := s.all.Read(p)
	if err != nil && !seal.Ended(err) {
		err = faulty(s.archive.named(s.name, err), s.name, segment.Position{})
	}
	return n, err
}

func (s *snapshot) Close() (err error) {
	for _, closer := range s.closers {
		err = errors.Join(err, closer.Close())
	}
	return err
}

// nothing fails if there is anything to read.
type nothing struct{ of io.Reader }

func (n nothing) Read([]byte) (int, error) {
	var one [1]byte
	switch read, err := n.of.Read(one[:]); {
	case read > 0:
		return 0, seal.Damaged(errors.New("something follows its end"))
	default:
		return 0, err
	}
}
