package format

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

const (
	// window is the zstd window of encoders in bytes. The window determines how much memory an encoder uses.
	window = 1 << 20
	// maxWindow is the largest window that decoders accept, in bytes. The zstd command has the same limit by default.
	maxWindow = 8 << 20
)

// encoders and decoders are pooled, because each of them has several megabytes of tables.
var (
	encoders = sync.Pool{New: func() any {
		encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true))
		if err != nil {
			panic(err) // the options are constant
		}
		return encoder
	}}
	decoders = sync.Pool{New: func() any {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			panic(err) // the options are constant
		}
		return decoder
	}}
)

// Seal returns a writer that compresses its input, encrypts it if there are recipients, and writes it to w. Close
// writes the rest of the output but does not close w.
func (k *Keys) Seal(w io.Writer) (io.WriteCloser, error) {
	sealed := &sealWriter{}
	keys, err := k.recipients()
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		if sealed.encrypted, err = age.Encrypt(w, keys...); err != nil {
			return nil, fmt.Errorf("--backup-recipients: cannot encrypt: %w", err)
		}
		w = sealed.encrypted
	}
	sealed.encoder = encoders.Get().(*zstd.Encoder)
	sealed.encoder.Reset(w)
	return sealed, nil
}

type sealWriter struct {
	encoder   *zstd.Encoder
	encrypted io.WriteCloser // nil without recipients
}

func (s *sealWriter) Write(p []byte) (int, error) { return s.encoder.Write(p) }

func (s *sealWriter) Close() error {
	if s.encoder == nil {
		return nil
	}
	err := s.encoder.Close()
	if s.encrypted != nil {
		err = errors.Join(err, s.encrypted.Close())
	}
	s.encoder.Reset(nil)
	encoders.Put(s.encoder)
	s.encoder = nil
	return err
}

// Open returns a reader for the output of Seal. The reader consumes r completely and returns io.EOF only if
// everything is intact. Errors from r are returned unchanged; other errors are ErrDamaged or ErrNoIdentity. Close
// does not close r.
func (k *Keys) Open(r io.Reader, encrypted bool) (io.ReadCloser, error) {
	opened := &openReader{source: &errorReader{Reader: r, limit: math.MaxInt64}}
	opened.plain = opened.source
	if encrypted {
		decrypted, err := k.decrypt(opened.source)
		if err != nil {
			return nil, err
		}
		opened.plain = &errorReader{Reader: decrypted, limit: math.MaxInt64}
	}
	opened.decoder = decoders.Get().(*zstd.Decoder)
	if err := opened.decoder.Reset(opened.plain); err != nil {
		return nil, errors.Join(opened.source.classify(err), opened.Close())
	}
	return opened, nil
}

func (k *Keys) decrypt(r *errorReader) (io.Reader, error) {
	keys, err := k.identities()
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: --backup-identities is not set", ErrNoIdentity)
	}
	decrypted, err := age.Decrypt(r, keys...) // reads at most 2 MiB of headers
	var none *age.NoIdentityMatchError
	switch {
	case err == nil:
		return decrypted, nil
	case errors.As(err, &none):
		return nil, fmt.Errorf("%w: no key in --backup-identities matches a recipient", ErrNoIdentity)
	default:
		return nil, r.classify(err)
	}
}

type openReader struct {
	source, plain *errorReader // errors before and after decryption
	decoder       *zstd.Decoder
}

func (o *openReader) Read(p []byte) (int, error) {
	n, err := o.decoder.Read(p)
	switch {
	case err == nil:
		return n, nil
	case !Ended(err):
		return n, o.source.classify(err)
	case o.plain.failed != nil: // zstd treats some read errors as the end of the stream
		return n, o.source.classify(o.plain.failed)
	case o.plain.size == 0:
		return n, fmt.Errorf("%w: no data", ErrDamaged)
	}
	return n, io.EOF
}

func (o *openReader) Close() error {
	if o.decoder != nil {
		_ = o.decoder.Reset(nil) // cannot fail
		decoders.Put(o.decoder)
		o.decoder = nil
	}
	return nil
}

// errorReader records the error of a reader to distinguish it from errors in higher layers.
type errorReader struct {
	io.Reader
	limit  int64 // maximum number of bytes, to protect against decompression bombs
	size   int64 // bytes read so far
	failed error // error other than io.EOF
}

func (n *errorReader) Read(p []byte) (int, error) {
	read, err := n.Reader.Read(p)
	if n.size += int64(read); n.size > n.limit {
		err = fmt.Errorf("%w: more records than the manifest states", ErrDamaged)
	}
	if err != nil && !Ended(err) {
		n.failed = err
	}
	return read, err
}

func (n *errorReader) classify(err error) error {
	if n.failed != nil {
		return n.failed
	}
	return Damaged(err)
}
