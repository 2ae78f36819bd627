package format

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"

	"filippo.io/age"

	"etcd-wrapper/internal/disk"
)

// maxKeyFile limits a key file, in bytes.
const maxKeyFile = 1 << 20

type (
	recipients struct{ file[[]age.Recipient] }
	identities struct{ file[[]age.Identity] }
	signing    struct{ file[ed25519.PrivateKey] }
	trusted    struct {
		file[map[string]ed25519.PublicKey]
	}
)

func (r *recipients) keys() ([]age.Recipient, error) {
	return r.load("--backup-recipients", parseRecipients)
}

func (i *identities) keys() ([]age.Identity, error) {
	return i.load("--backup-identities", parseIdentities)
}

func (s *signing) key() (ed25519.PrivateKey, error) {
	return s.load("--backup-signing-key", parseSigningKey)
}

// keys returns the trusted keys by id.
func (t *trusted) keys() (map[string]ed25519.PublicKey, error) {
	return t.load("--backup-trusted-keys", parseTrustedKeys)
}

func (r *recipients) check() error { _, err := r.keys(); return err }
func (i *identities) check() error { _, err := i.keys(); return err }
func (s *signing) check() error    { _, err := s.key(); return err }
func (t *trusted) check() error    { _, err := t.keys(); return err }

// file caches the parsed content of a key file.
type file[T any] struct {
	path string

	mu      sync.Mutex
	content []byte
	parsed  T
}

// load reads the file, and parses it if it has changed. Without a path it returns nothing.
func (f *file[T]) load(flag string, parse func([]byte) (T, error)) (none T, err error) {
	if f.path == "" {
		return none, nil
	}
	content, err := disk.Read(f.path, maxKeyFile)
	if err != nil {
		return none, fmt.Errorf("%s: cannot read %s: %w", flag, f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.content != nil && bytes.Equal(content, f.content) {
		return f.parsed, nil
	}
	parsed, err := parse(content)
	if err != nil {
		return none, fmt.Errorf("%s: %s %w", flag, f.path, err)
	}
	f.content, f.parsed = content, parsed
	return parsed, nil
}

func parseRecipients(content []byte) ([]age.Recipient, error) {
	keys, err := age.ParseRecipients(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("is not a file of age recipients (one per line, starting with age1): %w", err)
	}
	return keys, nil
}

func parseIdentities(content []byte) ([]age.Identity, error) {
	keys, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil { // the error may contain parts of the key
		return nil, errors.New("is not a file of age identities (one per line, starting with AGE-SECRET-KEY-)")
	}
	return keys, nil
}

func parseSigningKey(content []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(content)
	if block != nil && block.Type == "PRIVATE KEY" {
		parsed, _ := x509.ParsePKCS8PrivateKey(block.Bytes) // the error may contain parts of the key
		if key, is := parsed.(ed25519.PrivateKey); is {
			return key, nil
		}
	}
	return nil, errors.New("is not an ed25519 private key (PKCS#8 in PEM, as of openssl genpkey -algorithm ed25519)")
}

func parseTrustedKeys(content []byte) (map[string]ed25519.PublicKey, error) {
	keys := map[string]ed25519.PublicKey{}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		key, is := parsed.(ed25519.PublicKey)
		if err != nil || !is || block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("has a %s that is not an ed25519 public key (PKIX in PEM, as of openssl pkey -pubout)", block.Type)
		}
		keys[keyName(key)] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("has no ed25519 public key (PKIX in PEM, as of openssl pkey -pubout)")
	}
	return keys, nil
}
