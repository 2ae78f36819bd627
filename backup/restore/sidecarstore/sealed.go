package sidecarstore

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
)

// sealed reads what has its SHA-256 at its end, and returns io.EOF only if that is right. The digest is read as well if keepSum.
type sealed struct {
	from    *bufio.Reader
	hash    hash.Hash
	keepSum bool
	sum     []byte // of the digest, what is still to be read; nil before the end
}

func newSealed(from io.Reader) *sealed {
	return &sealed{from: bufio.NewReaderSize(from, 64<<10), hash: sha256.New()}
}

func (s *sealed) Read(p []byte) (int, error) {
	if s.sum == nil {
		if _, err := s.from.Peek(sha256.Size + 1); err == io.EOF {
			if err := s.verify(); err != nil {
				return 0, err
			}
		} else if err != nil {
			return 0, err
		}
	}
	if s.sum != nil {
		return s.readSum(p)
	}
	n, err := s.from.Read(p[:min(len(p), s.from.Buffered()-sha256.Size)])
	s.hash.Write(p[:n])
	return n, err
}

// verify is called when no more than the digest is left.
func (s *sealed) verify() error {
	left, err := io.ReadAll(s.from)
	if err != nil {
		return err
	}
	if !bytes.Equal(left, s.hash.Sum(nil)) {
		return errSum
	}
	s.sum = left
	return nil
}

func (s *sealed) readSum(p []byte) (int, error) {
	if !s.keepSum || len(s.sum) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.sum)
	s.sum = s.sum[n:]
	return n, nil
}
