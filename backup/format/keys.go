package format

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"etcd-wrapper/internal/disk"
)

// maxKeyFile is the maximum size of a key file in bytes.
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

// trustedKeys returns the trusted keys by ID.
func (k *Keys) trustedKeys() (map[string]ed25519.PublicKey, error) {
	return load("--backup-trusted-keys", k.files.TrustedKeys, parseTrustedKeys)
}

// load reads a key file, or returns the zero value if path is empty.
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
		return nil, fmt.Errorf("does not contain valid age recipients (one per line, starting with age1): %w", err)
	}
	return keys, nil
}

func parseIdentities(content []byte) ([]age.Identity, error) {
	keys, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil { // err is not returned, because it may contain parts of the key
		return nil, errors.New("does not contain valid age identities (one per line, starting with AGE-SECRET-KEY-)")
	}
	return keys, nil
}

func parseSigningKey(content []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(content)
	if block != nil && block.Type == "PRIVATE KEY" {
		parsed, _ := x509.ParsePKCS8PrivateKey(block.Bytes) // ignore the error, which may contain parts of the key
		if key, ok := parsed.(ed25519.PrivateKey); ok {
			return key, nil
		}
	}
	return nil, errors.New(`is not an ed25519 private key in PEM format (PKCS#8); create one with "openssl genpkey -algorithm ed25519"`)
}

func parseTrustedKeys(content []byte) (map[string]ed25519.PublicKey, error) {
	keys := map[string]ed25519.PublicKey{}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		key, ok := parsed.(ed25519.PublicKey)
		if err != nil || !ok || block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf(`contains a %s block that is not an ed25519 public key; export the key with "openssl pkey -pubout"`, block.Type)
		}
		keys[keyName(key)] = key
	}
	if len(keys) == 0 {
		return nil, errors.New(`contains no ed25519 public key in PEM format; export the key with "openssl pkey -pubout"`)
	}
	return keys, nil
}

// Errors about invalid content, for use with errors.Is. After one of these errors, callers must discard the content
// that they have read.
var (
	// ErrDamaged means that the content is truncated, does not match its checksum or length, or is malformed.
	ErrDamaged = errors.New("damaged")
	// ErrUntrusted means that no key in --backup-trusted-keys has signed the content.
	ErrUntrusted = errors.New("not signed by a key in --backup-trusted-keys")
	// ErrNoIdentity means that no identity in --backup-identities can decrypt the content.
	ErrNoIdentity = errors.New("cannot decrypt")
	// ErrNewer means that the content has a newer format, which this program does not support.
	ErrNewer = errors.New("written by a newer etcd-wrapper")
)

// Damaged returns an error that wraps ErrDamaged and contains the text of the cause. The cause itself is not wrapped,
// so that damaged content is never mistaken for io.EOF. The text is truncated, because it may quote the content.
func Damaged(cause error) error { return fmt.Errorf("%w: %.200s", ErrDamaged, cause.Error()) }

// Ended reports whether err is io.EOF itself. An error that wraps io.EOF may be a lost connection.
func Ended(err error) bool { return err == io.EOF } //nolint:errorlint // a wrapped io.EOF does not count

// KeyFiles contains the paths of key files. An empty path means that there is no key.
type KeyFiles struct {
	Recipients  string // --backup-recipients: age recipients, one per line; backups are encrypted to all of them
	Identities  string // --backup-identities: age identities, one per line; any of them can decrypt
	SigningKey  string // --backup-signing-key: ed25519 private key (PKCS#8, PEM)
	TrustedKeys string // --backup-trusted-keys: ed25519 public keys (PKIX, PEM), concatenated
}

// Keys encrypts, signs, decrypts and verifies backups. The zero value neither encrypts nor signs, and ignores
// signatures. Keys is safe for concurrent use.
//
// Every operation rereads the key files, so a replaced key takes effect immediately. If a file cannot be read or
// contains no keys, operations that need the file fail with an error that starts with the flag name.
type Keys struct{ files KeyFiles }

// LoadKeys reads the key files once to validate them. Errors start with the flag name.
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

// CheckSigning returns an error that starts with a flag name if there are trusted keys but the signing key is missing
// or not one of them. Writers call CheckSigning first, because readers would reject everything that such a writer
// stores.
func (k *Keys) CheckSigning() error {
	if !k.Trusts() {
		return nil
	}
	if !k.Signs() {
		return errors.New("--backup-trusted-keys: this process would reject its own unsigned backups; set --backup-signing-key too")
	}
	_, err := k.Sign(Heading{Format, "own"})
	return err
}

// Warnings returns warnings about insecure key settings. Each warning names the flag and explains how to fix the
// problem.
func (k *Keys) Warnings() (all []string) {
	if k.Signs() && !k.Trusts() {
		all = append(all, "--backup-signing-key: backups are signed, but signatures are not verified; set --backup-trusted-keys too")
	}
	for _, secret := range []struct{ flag, path string }{{"--backup-identities", k.files.Identities}, {"--backup-signing-key", k.files.SigningKey}} {
		if info, err := os.Stat(secret.path); err == nil && info.Mode().Perm()&othersRead != 0 {
			all = append(all, fmt.Sprintf(`%s: %s is world-readable; run "chmod o-r", or set defaultMode to 0440 in a pod`, secret.flag, secret.path))
		}
	}
	return all
}

const othersRead = 0o004

// Encrypts reports whether backups are encrypted.
func (k *Keys) Encrypts() bool { return k.files.Recipients != "" }

// Opens reports whether encrypted backups can be decrypted.
func (k *Keys) Opens() bool { return k.files.Identities != "" }

// Signs reports whether backups are signed.
func (k *Keys) Signs() bool { return k.files.SigningKey != "" }

// Trusts reports whether backups must be signed by a trusted key.
func (k *Keys) Trusts() bool { return k.files.TrustedKeys != "" }

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
	Kind   string `json:"kind"` // type of the statement, such as "segment"
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
		if err := k.trust(line); err != nil { // readers would reject the object, and its name could not be used again
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

// withChecksum appends the checksum and the closing brace to a line.
func withChecksum(line []byte) []byte {
	sum := sha256.Sum256(line)
	return fmt.Appendf(line, "%s%x\"}\n", checksum, sum)
}

// Check verifies a line and decodes its statement. Check returns an error if the statement is not of the given kind.
func (k *Keys) Check(line []byte, kind string, into any) error {
	if len(line) > MaxLine || len(line) < tail {
		return fmt.Errorf("%w: invalid line length: %d bytes (must be %d to %d)", ErrDamaged, len(line), tail, MaxLine)
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
		return fmt.Errorf("%w: found %q (format %d), expected %q (format %d)", ErrDamaged, heading.Kind, heading.Format, kind, Format)
	}
	return nil
}

// Signed reports whether a verified line has a signature, regardless of the key.
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

// ReadLine reads a line, including the newline. At the end of the input, ReadLine returns io.EOF.
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

// keyName returns a public key's ID.
func keyName(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

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
	source, plain *errorReader // sealed and decrypted data; the same reader without encryption
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

// errorReader records errors of the underlying reader, so that classify can distinguish them from errors in the
// content.
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
