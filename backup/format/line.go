package format

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	// MaxLine is the maximum size of a signed line in bytes, including the newline.
	MaxLine = 1 << 20
	// Format is the version of the backup format.
	Format = 1

	checksum = `,"sha256":"` // followed by the checksum of all preceding bytes
	tail     = len(checksum) + 2*sha256.Size + len("\"}\n")
)

// Heading contains the common fields of all statements.
type Heading struct {
	Format int    `json:"format"`
	Kind   string `json:"kind"` // kind of the statement
}

// signedLine is a statement with its signature.
type signedLine struct {
	Statement json.RawMessage `json:"statement"`
	Signature []byte          `json:"signature,omitempty"` // ed25519 signature of Statement
	Key       string          `json:"key,omitempty"`       // key ID: first 8 bytes of the public key's SHA-256 in hexadecimal
}

// Sign returns the signed line for a statement, a JSON object that starts with a [Heading].
func (k *Keys) Sign(statement any) ([]byte, error) {
	stated, err := json.Marshal(statement)
	if err != nil {
		return nil, err
	}
	line := signedLine{Statement: stated}
	key, err := k.signingKey()
	if err != nil {
		return nil, err
	}
	if key != nil {
		line.Signature, line.Key = ed25519.Sign(key, stated), keyName(key.Public().(ed25519.PublicKey))
		if err := k.trust(line); err != nil { // an untrusted object would be unusable but still occupy its name
			return nil, fmt.Errorf("--backup-signing-key: the public key is not in --backup-trusted-keys: %.200s", err.Error())
		}
	}
	written, err := json.Marshal(line)
	if err != nil {
		return nil, err
	}
	if len(written)+tail > MaxLine {
		return nil, fmt.Errorf("line of %d bytes exceeds the limit of %d bytes", len(written)+tail, MaxLine)
	}
	return withChecksum(written[:len(written)-1]), nil
}

// withChecksum completes a line that has no closing brace yet.
func withChecksum(line []byte) []byte {
	sum := sha256.Sum256(line)
	return fmt.Appendf(line, "%s%x\"}\n", checksum, sum)
}

// Check verifies a line and decodes its statement, which must be of the given kind.
func (k *Keys) Check(line []byte, kind string, into any) error {
	if len(line) > MaxLine || len(line) < tail {
		return fmt.Errorf("%w: invalid line length: %d bytes", ErrDamaged, len(line))
	}
	begin := line[:len(line)-tail]
	if !bytes.Equal(withChecksum(bytes.Clone(begin)), line) {
		return fmt.Errorf("%w: line checksum mismatch", ErrDamaged)
	}
	var read signedLine
	if err := json.Unmarshal(append(bytes.Clone(begin), '}'), &read); err != nil {
		return Damaged(err)
	}
	if err := k.trust(read); err != nil {
		return err
	}
	if err := checkKind(read.Statement, kind); err != nil {
		return err
	}
	if err := json.Unmarshal(read.Statement, into); err != nil {
		return Damaged(err)
	}
	return nil
}

func checkKind(statement []byte, kind string) error {
	var heading Heading
	if err := json.Unmarshal(statement, &heading); err != nil {
		return Damaged(err)
	}
	if heading.Format > Format {
		return fmt.Errorf("%w: format %d", ErrNewer, heading.Format)
	}
	if heading.Format != Format || heading.Kind != kind {
		return fmt.Errorf("%w: found %q with format %d, expected %q", ErrDamaged, heading.Kind, heading.Format, kind)
	}
	return nil
}

// Signed reports whether a verified line has a signature from any key.
func Signed(line []byte) bool {
	var read signedLine
	return json.Unmarshal(line, &read) == nil && read.Signature != nil
}

func (k *Keys) trust(line signedLine) error {
	if !k.Trusts() {
		return nil
	}
	keys, err := k.trustedKeys()
	if err != nil {
		return err
	}
	key, known := keys[line.Key]
	switch {
	case line.Signature == nil:
		return fmt.Errorf("%w: no signature", ErrUntrusted)
	case !known:
		return fmt.Errorf("%w: unknown key %.16q", ErrUntrusted, line.Key)
	case !ed25519.Verify(key, line.Statement, line.Signature):
		return fmt.Errorf("%w: invalid signature", ErrUntrusted)
	}
	return nil
}

// ReadLine reads a line including the newline, or returns io.EOF at the end.
func ReadLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > MaxLine:
			return nil, fmt.Errorf("%w: line exceeds %d bytes", ErrDamaged, MaxLine)
		case err == nil:
			return line, nil
		case Ended(err) && len(line) > 0:
			return nil, fmt.Errorf("%w: the last line is incomplete", ErrDamaged)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// keyName returns the ID of a public key.
func keyName(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}
