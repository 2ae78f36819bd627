package format

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"filippo.io/age"

	"etcd-wrapper/internal/disk"
)

// maxKeyFile limits a key file, in bytes.
const maxKeyFile = 1 << 20

func (k *Keys) recipients() ([]age.Recipient, error) {
	return load("--backup-recipients", k.files.Recipients, parseRecipients)
}

func (k *Keys) identities() ([]age.Identity, error) {
	return load("--backup-identities", k.files.Identities, parseIdentities)
}

func (k *Keys) signingKey() (ed25519.PrivateKey, error) {
	return load("--backup-signing-key", k.files.SigningKey, parseSigningKey)
}

// trustedKeys returns the trusted keys by id.
func (k *Keys) trustedKeys() (map[string]ed25519.PublicKey, error) {
	return load("--backup-trusted-keys", k.files.TrustedKeys, parseTrustedKeys)
}

// load reads a key file. Without a path it returns nothing.
func load[T any](flag, path string, parse func([]byte) (T, error)) (keys T, err error) {
	if path == "" {
		return keys, nil
	}
	content, err := disk.Read(path, maxKeyFile)
	if err != nil {
		return keys, fmt.Errorf("%s: cannot read %s: %w", flag, path, err)
	}
	if keys, err = parse(content); err != nil {
		return keys, fmt.Errorf("%s: %s %w", flag, path, err)
	}
	return keys, nil
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
	return nil, errors.New("is not an ed25519 private key (PKCS#8 in PEM, as written by openssl genpkey -algorithm ed25519)")
}

func parseTrustedKeys(content []byte) (map[string]ed25519.PublicKey, error) {
	keys := map[string]ed25519.PublicKey{}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		key, is := parsed.(ed25519.PublicKey)
		if err != nil || !is || block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("has a %s that is not an ed25519 public key (PKIX in PEM, as written by openssl pkey -pubout)", block.Type)
		}
		keys[keyName(key)] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("has no ed25519 public key (PKIX in PEM, as written by openssl pkey -pubout)")
	}
	return keys, nil
}

// Errors about what was read, for errors.Is. Everything read before such an error must be discarded.
var (
	// ErrDamaged: a checksum, a length or the syntax is wrong, or it is truncated.
	ErrDamaged = errors.New("damaged")
	// ErrUntrusted: it is not signed by a key of --backup-trusted-keys.
	ErrUntrusted = errors.New("not signed by a key of --backup-trusted-keys")
	// ErrNoIdentity: it is encrypted, and no identity of --backup-identities can decrypt it.
	ErrNoIdentity = errors.New("no identity can decrypt it")
	// ErrNewer: its format is newer than this program.
	ErrNewer = errors.New("made by a newer etcd-wrapper")
)

// Damaged returns an ErrDamaged with its cause as text. It does not wrap the cause, which may be an io.EOF, and
// truncates it, since it may quote what was read.
func Damaged(cause error) error { return fmt.Errorf("%w: %.200s", ErrDamaged, cause.Error()) }

// Ended reports whether err is io.EOF itself. An error that wraps io.EOF may be a lost connection.
func Ended(err error) bool { return err == io.EOF } //nolint:errorlint // see above

// KeyFiles are the paths of key files, or empty.
type KeyFiles struct {
	Recipients  string // --backup-recipients: age recipients, one a line; backups are encrypted to all of them
	Identities  string // --backup-identities: age identities, one a line; any of them may decrypt
	SigningKey  string // --backup-signing-key: an ed25519 key, PKCS#8 in PEM
	TrustedKeys string // --backup-trusted-keys: ed25519 public keys, PKIX in PEM, one block after the other
}

// Keys encrypt, sign, decrypt and verify backups. The zero value does not encrypt or sign, and ignores signatures.
// Keys are safe for concurrent use.
//
// The files are read at every use, so a replaced key takes effect immediately. If a file cannot be read, or
// contains no keys, the operations that need it fail with an error that starts with the name of the flag.
type Keys struct{ files KeyFiles }

// LoadKeys reads the files for the first time. Its errors start with the name of the flag.
func LoadKeys(files KeyFiles) (*Keys, error) {
	keys := &Keys{files}
	_, recipients := keys.recipients()
	_, identities := keys.identities()
	_, signing := keys.signingKey()
	_, trusted := keys.trustedKeys()
	if err := cmp.Or(recipients, identities, signing, trusted); err != nil {
		return nil, err
	}
	return keys, nil
}

// CheckSigning returns an error that starts with the name of a flag if these keys would not trust their own
// signature. Writers call it first: an untrusted first line makes a store unusable for everyone.
func (k *Keys) CheckSigning() error {
	if !k.Trusts() {
		return nil
	}
	if !k.Signs() {
		return errors.New("--backup-trusted-keys: unsigned backups of this process would be rejected; set --backup-signing-key as well")
	}
	_, err := k.Sign(Heading{Format, "own"})
	return err
}

// Warnings returns warnings about keys that protect less than expected, each with the flag and the next step.
func (k *Keys) Warnings() (all []string) {
	if k.Signs() && !k.Trusts() {
		all = append(all, "--backup-signing-key: backups are signed, but signatures are not verified on reads; set --backup-trusted-keys as well")
	}
	for _, secret := range []struct{ flag, path string }{{"--backup-identities", k.files.Identities}, {"--backup-signing-key", k.files.SigningKey}} {
		if info, err := os.Stat(secret.path); err == nil && info.Mode().Perm()&othersRead != 0 {
			all = append(all, fmt.Sprintf("%s: every user of this machine can read %s; run chmod o-r, or set defaultMode 0440 in a pod", secret.flag, secret.path))
		}
	}
	return all
}

const othersRead = 0o004

// Encrypts reports whether backups are encrypted.
func (k *Keys) Encrypts() bool { return k.files.Recipients != "" }

// Opens reports whether there are identities for decryption.
func (k *Keys) Opens() bool { return k.files.Identities != "" }

// Signs reports whether backups are signed.
func (k *Keys) Signs() bool { return k.files.SigningKey != "" }

// Trusts reports whether a signature by a trusted key is required.
func (k *Keys) Trusts() bool { return k.files.TrustedKeys != "" }
