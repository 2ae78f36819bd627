package format

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

const (
	// window is how far back zstd looks, in bytes: what an encoder and a decoder keep in memory.
	window = 1 << 20
	// maxWindow is what a decoder accepts, in bytes: that of zstd's own tool without options.
	maxWindow = 8 << 20
)

// encoders and decoders are kept, since each has some megabytes of tables.
var (
	encoders = sync.Pool{New: func() any {
		encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true))
		if err != nil {
			panic(err) // the options are constants
		}
		return encoder
	}}
	decoders = sync.Pool{New: func() any {
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			panic(err) // the options are constants
		}
		return decoder
	}}
)

// Seal compresses what is written, encrypts it if there are recipients, and writes it to w. Nothing is complete before Close,
// which doesn't close w.
func (k *Keys) Seal(w io.Writer) (io.WriteCloser, error) {
	sealed := &sealing{}
	keys, err := k.recipients.keys()
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

type sealing struct {
	encoder   *zstd.Encoder
	encrypted io.WriteCloser // nil without recipients
}

func (s *sealing) Write(p []byte) (int, error) { return s.encoder.Write(p) }

func (s *sealing) Close() error {
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

// Open undoes Seal. It reads r to its end, and returns io.EOF only if all is as it was written. Errors of r come through as
// they are; everything else that is wrong is ErrDamaged or ErrNoIdentity. Close doesn't close r.
func (k *Keys) Open(r io.Reader, encrypted bool) (io.ReadCloser, error) {
	opened := &opening{source: &noting{Reader: r}}
	opened.plain = opened.source
	if encrypted {
		decrypted, err := k.decrypt(opened.source)
		if err != nil {
			return nil, err
		}
		opened.plain = &noting{Reader: decrypted}
	}
	opened.decoder = decoders.Get().(*zstd.Decoder)
	if err := opened.decoder.Reset(opened.plain); err != nil {
		return nil, errors.Join(opened.source.explain(err), opened.Close())
	}
	return opened, nil
}

func (k *Keys) decrypt(r *noting) (io.Reader, error) {
	keys, err := k.identities.keys()
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: it is encrypted, and there is no --backup-identities", ErrNoIdentity)
	}
	decrypted, err := age.Decrypt(r, keys...) // which reads a header of 2 MiB at most
	var none *age.NoIdentityMatchError
	switch {
	case err == nil:
		return decrypted, nil
	case errors.As(err, &none):
		return nil, fmt.Errorf("%w: it is encrypted to others than --backup-identities", ErrNoIdentity)
	default:
		return nil, r.explain(err)
	}
}

type opening struct {
	source, plain *noting // before and behind age
	decoder       *zstd.Decoder
}

func (o *opening) Read(p []byte) (int, error) {
	n, err := o.decoder.Read(p)
	switch {
	case err == nil:
		return n, nil
	case !Ended(err):
		return n, o.source.explain(err)
	case o.plain.failed != nil: // zstd takes some of these for the end
		return n, o.source.explain(o.plain.failed)
	case o.plain.size == 0:
		return n, fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	return n, io.EOF
}

func (o *opening) Close() error {
	if o.decoder != nil {
		_ = o.decoder.Reset(nil) // to nothing; that cannot fail
		decoders.Put(o.decoder)
		o.decoder = nil
	}
	return nil
}

// noting tells errors of what it reads from those of the layers above it.
type noting struct {
	io.Reader
	size   int64
	failed error // other than io.EOF
}

func (n *noting) Read(p []byte) (int, error) {
	read, err := n.Reader.Read(p)
	n.size += int64(read)
	if err != nil && !Ended(err) {
		n.failed = err
	}
	return read, err
}

func (n *noting) explain(err error) error {
	if n.failed != nil {
		return n.failed
	}
	return Damaged(err)
}
