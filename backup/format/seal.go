package format

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// What is wrong with something that was read, for errors.Is. Whatever came before such an error counts for nothing.
var (
	// ErrDamaged says that it is not what was written: a checksum, a length or the syntax is wrong, or it ends early.
	ErrDamaged = errors.New("damaged")
	// ErrUntrusted says that it is not signed by one of the keys of --backup-trusted-keys.
	ErrUntrusted = errors.New("not signed by a key of --backup-trusted-keys")
	// ErrNoIdentity says that it is encrypted, and that no identity of --backup-identities opens it.
	ErrNoIdentity = errors.New("no identity opens it")
	// ErrNewer says that it is of a format that this program doesn't know.
	ErrNewer = errors.New("made by a newer etcd-wrapper")
)

// Damaged is an ErrDamaged with what showed it. errors.Is doesn't see the cause, which may be an io.EOF in a wrong place; and of
// its text only the beginning is told, since that may quote what was read.
func Damaged(cause error) error { return fmt.Errorf("%w: %.200s", ErrDamaged, cause.Error()) }

// Ended tells whether err is io.EOF, the end of what was read. An error that wraps it is none: a connection may be lost by one.
func Ended(err error) bool { return err == io.EOF } //nolint:errorlint // see above

// KeyFiles are the paths of key files; an empty one is not given.
type KeyFiles struct {
	Recipients  string // --backup-recipients: age recipients, one a line; what is written is encrypted to all of them
	Identities  string // --backup-identities: age identities, one a line; what is read is opened with any of them
	SigningKey  string // --backup-signing-key: an ed25519 key, PKCS#8 in PEM
	TrustedKeys string // --backup-trusted-keys: ed25519 public keys, PKIX in PEM, one block after the other
}

// Keys are what backups are sealed and opened with. The zero value has none: what is written is neither encrypted nor signed,
// and every signature is ignored. Its methods may be called from any goroutine.
//
// The files are read at every use, so a key that was replaced counts at once. While a file cannot be read, or holds no keys,
// what needs it fails with an error that begins with the flag's name.
type Keys struct {
	recipients recipients
	identities identities
	signing    signing
	trusted    trusted
}

// LoadKeys reads the files for the first time. Its errors begin with the name of the flag.
func LoadKeys(files KeyFiles) (*Keys, error) {
	keys := &Keys{}
	keys.recipients.path = files.Recipients
	keys.identities.path = files.Identities
	keys.signing.path = files.SigningKey
	keys.trusted.path = files.TrustedKeys
	for _, check := range []func() error{
		keys.recipients.check, keys.identities.check, keys.signing.check, keys.trusted.check,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// CheckOwn is an error that begins with a flag's name if what these keys sign is not believed by them. It is for whoever is about
// to write: the first line in a store that nobody believes keeps everybody from using it.
func (k *Keys) CheckOwn() error {
	if !k.Trusts() {
		return nil
	}
	if !k.Signs() {
		return errors.New("--backup-trusted-keys: what this process writes would not be believed, as it is not signed; give --backup-signing-key, too")
	}
	_, err := k.Sign(Heading{Format, "own"})
	return err
}

// Weaknesses are sentences about keys that protect less than their owner may think, each with the flag and the way out.
func (k *Keys) Weaknesses() (all []string) {
	if k.Signs() && !k.Trusts() {
		all = append(all, "--backup-signing-key: backups are signed, and no signature is looked at when they are read; give --backup-trusted-keys, too")
	}
	for _, secret := range []struct{ flag, path string }{{"--backup-identities", k.identities.path}, {"--backup-signing-key", k.signing.path}} {
		if info, err := os.Stat(secret.path); err == nil && info.Mode().Perm()&othersRead != 0 {
			all = append(all, fmt.Sprintf("%s: everybody on this machine can read %s; chmod o-r, or a defaultMode of 0440 in a pod", secret.flag, secret.path))
		}
	}
	return all
}

const othersRead = 0o004

// Encrypts tells whether what is written is encrypted.
func (k *Keys) Encrypts() bool { return k.recipients.path != "" }

// Opens tells whether there are identities, so that what is encrypted may be read.
func (k *Keys) Opens() bool { return k.identities.path != "" }

// Signs tells whether what is written is signed.
func (k *Keys) Signs() bool { return k.signing.path != "" }

// Trusts tells whether only what a trusted key signed is believed.
func (k *Keys) Trusts() bool { return k.trusted.path != "" }
