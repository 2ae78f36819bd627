package format_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
)

func TestLoadKeys_namesTheFlagOfAnInvalidFile(t *testing.T) {
	pair := formattest.NewKeys(t)
	none := formattest.WriteFile(t, "hello\n")
	empty := formattest.WriteFile(t, "")
	large := formattest.WriteFile(t, strings.Repeat("#\n", 1<<20))
	for _, test := range []struct {
		name    string
		files   format.KeyFiles
		prefix  string // expected start of the error
		message string // expected part of the error
	}{
		{"text instead of recipients", format.KeyFiles{Recipients: none}, "--backup-recipients: " + none, "does not contain valid age recipients"},
		{"an empty recipients file", format.KeyFiles{Recipients: empty}, "--backup-recipients: " + empty, "no recipients found"},
		{"a recipients file above the size limit", format.KeyFiles{Recipients: large}, "--backup-recipients: cannot read " + large, "larger than 1048576 bytes"},
		{"identities instead of recipients", format.KeyFiles{Recipients: pair.Identities}, "--backup-recipients: ", "does not contain valid age recipients"},
		{"recipients instead of identities", format.KeyFiles{Identities: pair.Recipients}, "--backup-identities: ", "does not contain valid age identities"},
		{"a public key as the signing key", format.KeyFiles{SigningKey: pair.TrustedKeys}, "--backup-signing-key: ", "is not an ed25519 private key"},
		{"text instead of a signing key", format.KeyFiles{SigningKey: none}, "--backup-signing-key: ", "is not an ed25519 private key"},
		{"a private key as a trusted key", format.KeyFiles{TrustedKeys: pair.SigningKey}, "--backup-trusted-keys: ", "contains a PRIVATE KEY block that is not"},
		{"text instead of trusted keys", format.KeyFiles{TrustedKeys: none}, "--backup-trusted-keys: ", "contains no ed25519 public key"},
		{"a missing file", format.KeyFiles{TrustedKeys: none + "x"}, "--backup-trusted-keys: cannot read " + none + "x", "no such file"},
		{"a directory", format.KeyFiles{Identities: t.TempDir()}, "--backup-identities: cannot read ", "not a regular file"},
		{"an empty pipe that is open for writing", format.KeyFiles{SigningKey: silentPipe(t)}, "--backup-signing-key: ", "not a regular file"},
		{"an endless device", format.KeyFiles{SigningKey: "/dev/zero"}, "--backup-signing-key: cannot read /dev/zero", "not a regular file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, test.files)
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), test.prefix), err.Error())
			assert.Contains(t, err.Error(), test.message)
			assert.NotContains(t, err.Error(), "\n", "the error is a single line")
		})
	}
}

// load calls LoadKeys with a timeout.
func load(t *testing.T, files format.KeyFiles) (keys *format.Keys, err error) {
	t.Helper()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		keys, err = format.LoadKeys(files)
	}()
	select {
	case <-loaded:
		return keys, err
	case <-time.After(30 * time.Second):
		require.Fail(t, "LoadKeys did not return")
		return nil, nil
	}
}

// silentPipe creates a pipe that is open for writing but empty.
func silentPipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = writer.Close() })
	return path
}

func TestLoadKeys_errorsContainNoSecret(t *testing.T) {
	pair := formattest.NewKeys(t)
	secret, err := os.ReadFile(pair.Identities)
	require.NoError(t, err)
	broken := strings.ReplaceAll(string(secret), "AGE-SECRET-KEY-1", "AGE-SECRET-KEY-1Q")
	_, err = format.LoadKeys(format.KeyFiles{Identities: formattest.WriteFile(t, broken)})
	require.Error(t, err)
	assert.NotContains(t, err.Error(), strings.TrimSpace(string(secret))[len("# test identity\nAGE-SECRET-KEY-1"):][:8])
}

func TestKeys_withoutFiles(t *testing.T) {
	keys := formattest.LoadKeys(t, format.KeyFiles{})
	assert.False(t, keys.Encrypts() || keys.Opens() || keys.Signs() || keys.Trusts())
	line, err := keys.Sign(statement(1))
	require.NoError(t, err)
	assert.NotContains(t, string(line), "signature")
	assert.Equal(t, "hello", open(t, keys, sealed(t, keys, "hello"), false))
}

func TestKeys_replacedFilesTakeEffectAtOnce(t *testing.T) {
	old, renewed := formattest.NewKeys(t), formattest.NewKeys(t)
	keys := old.Load(t)
	line, err := keys.Sign(statement(1))
	require.NoError(t, err)

	replace(t, old.TrustedKeys, renewed.TrustedKeys)
	assert.ErrorIs(t, keys.Check(line, "number", new(number)), format.ErrUntrusted)

	replace(t, old.SigningKey, renewed.SigningKey)
	line, err = keys.Sign(statement(2))
	require.NoError(t, err)
	assert.NoError(t, keys.Check(line, "number", new(number)))

	replace(t, old.Recipients, renewed.Recipients)
	bytes := sealed(t, keys, "hello")
	_, err = keys.Open(strings.NewReader(bytes), true)
	assert.ErrorIs(t, err, format.ErrNoIdentity)
	replace(t, old.Identities, renewed.Identities)
	assert.Equal(t, "hello", open(t, keys, bytes, true))
}

func TestKeys_missingAndBrokenFiles(t *testing.T) {
	pair := formattest.NewKeys(t)
	keys := pair.Load(t)
	line, err := keys.Sign(statement(1))
	require.NoError(t, err)
	good, err := os.ReadFile(pair.TrustedKeys)
	require.NoError(t, err)

	require.NoError(t, os.Remove(pair.TrustedKeys))
	err = keys.Check(line, "number", new(number))
	assert.ErrorIs(t, err, os.ErrNotExist, "keys in a removed file are no longer trusted")
	require.NoError(t, os.WriteFile(pair.TrustedKeys, good[:10], 0o600))
	assert.ErrorContains(t, keys.Check(line, "number", new(number)), "--backup-trusted-keys")
	require.NoError(t, os.WriteFile(pair.TrustedKeys, good, 0o600))
	assert.NoError(t, keys.Check(line, "number", new(number)))
}

func TestKeys_rotation(t *testing.T) {
	first, second := formattest.NewKeys(t), formattest.NewKeys(t)
	writer := formattest.LoadKeys(t, format.KeyFiles{Recipients: formattest.JoinFiles(t, first.Recipients, second.Recipients)})
	bytes := sealed(t, writer, "hello")
	for _, reader := range []formattest.Keys{first, second} {
		assert.Equal(t, "hello", open(t, reader.Load(t), bytes, true))
	}
	trusting := formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: formattest.JoinFiles(t, first.TrustedKeys, second.TrustedKeys)})
	for _, signer := range []formattest.Keys{first, second} {
		line, err := signer.Load(t).Sign(statement(7))
		require.NoError(t, err)
		var read number
		require.NoError(t, trusting.Check(line, "number", &read))
		assert.Equal(t, 7, read.Number)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func replace(t *testing.T, path, by string) {
	t.Helper()
	content, err := os.ReadFile(by)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

func TestCheckSigning(t *testing.T) {
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	require.NoError(t, (&format.Keys{}).CheckSigning())
	require.NoError(t, ours.Load(t).CheckSigning())
	require.NoError(t, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey}).CheckSigning())
	rotated := formattest.JoinFiles(t, theirs.TrustedKeys, ours.TrustedKeys)
	require.NoError(t, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: rotated}).CheckSigning())

	unsigned := formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: ours.TrustedKeys}).CheckSigning()
	require.ErrorContains(t, unsigned, "--backup-trusted-keys: ")
	untrusted := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).CheckSigning()
	require.ErrorContains(t, untrusted, "--backup-signing-key: ")
	_, err := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).Sign(format.Heading{})
	require.Equal(t, untrusted, err, "Sign fails too, because no reader would accept the line")
}

func TestWarnings(t *testing.T) {
	assert.Empty(t, (&format.Keys{}).Warnings())
	ours := formattest.NewKeys(t)
	for _, secret := range []string{ours.SigningKey, ours.Identities} {
		require.NoError(t, os.Chmod(secret, 0o440))
	}
	assert.Empty(t, ours.Load(t).Warnings())

	signed := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey}).Warnings()
	require.Len(t, signed, 1)
	assert.Contains(t, signed[0], "set --backup-trusted-keys too")

	for flag, secret := range map[string]string{"--backup-signing-key: ": ours.SigningKey, "--backup-identities: ": ours.Identities} {
		require.NoError(t, os.Chmod(secret, 0o444))
		warnings := ours.Load(t).Warnings()
		require.Len(t, warnings, 1)
		assert.Contains(t, warnings[0], flag+secret+" is world-readable")
		require.NoError(t, os.Chmod(secret, 0o440))
	}
}

type number struct {
	format.Heading
	Number int    `json:"number"`
	Text   string `json:"text,omitempty"`
}

func statement(n int) number {
	return number{Heading: format.Heading{Format: format.Format, Kind: "number"}, Number: n}
}

func TestLine_everyFlippedBitIsFound(t *testing.T) {
	pair := formattest.NewKeys(t)
	for name, keys := range map[string]*format.Keys{
		"signed": pair.Load(t), "signed, without trusted keys": formattest.LoadKeys(t, format.KeyFiles{SigningKey: pair.SigningKey}), "plain": {},
	} {
		t.Run(name, func(t *testing.T) {
			line, err := keys.Sign(statement(1234))
			require.NoError(t, err)
			require.NoError(t, keys.Check(line, "number", new(number)))
			for bit := range 8 * len(line) {
				line[bit/8] ^= 1 << (bit % 8)
				assert.ErrorIs(t, keys.Check(line, "number", new(number)), format.ErrDamaged, "bit %d", bit)
				line[bit/8] ^= 1 << (bit % 8)
			}
		})
	}
}

func TestLine_onlyTrustedSignaturesAreAccepted(t *testing.T) {
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	trusting := formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: ours.TrustedKeys})
	unsigned, err := new(format.Keys).Sign(statement(1))
	require.NoError(t, err)
	foreign, err := theirs.Load(t).Sign(statement(1))
	require.NoError(t, err)
	good, err := ours.Load(t).Sign(statement(1))
	require.NoError(t, err)

	require.NoError(t, trusting.Check(good, "number", new(number)))
	for name, line := range map[string][]byte{"unsigned": unsigned, "signed with another key": foreign, "changed after signing": forge(t, good)} {
		read := statement(0)
		assert.ErrorIs(t, trusting.Check(line, "number", &read), format.ErrUntrusted, name)
		assert.Zero(t, read.Number, name)
	}
	assert.NoError(t, new(format.Keys).Check(foreign, "number", new(number)), "without trusted keys, signatures are ignored")
}

// forge changes a line and corrects the checksum.
func forge(t *testing.T, line []byte) []byte {
	t.Helper()
	changed := strings.Replace(string(line), `"number":1`, `"number":2`, 1)
	require.NotEqual(t, string(line), changed)
	return format.WithChecksum([]byte(changed[:strings.Index(changed, `,"sha256"`)]))
}

func TestLine_rejectsOtherKindsAndFormats(t *testing.T) {
	keys := new(format.Keys)
	line, err := keys.Sign(statement(1))
	require.NoError(t, err)
	assert.ErrorIs(t, keys.Check(line, "segment", new(number)), format.ErrDamaged, "a statement must not pass as another kind")

	newer := statement(1)
	newer.Format = 2
	line, err = keys.Sign(newer)
	require.NoError(t, err)
	err = keys.Check(line, "number", new(number))
	assert.ErrorIs(t, err, format.ErrNewer)
	assert.EqualError(t, err, "written by a newer etcd-wrapper: format 2")
}

func TestLine_isLimited(t *testing.T) {
	keys := new(format.Keys)
	long := statement(1)
	long.Text = strings.Repeat("x", format.MaxLine)
	_, err := keys.Sign(long)
	assert.ErrorContains(t, err, "exceeds the limit")

	long.Text = long.Text[:format.MaxLine-1000]
	line, err := keys.Sign(long)
	require.NoError(t, err)
	read, err := format.ReadLine(bufio.NewReader(strings.NewReader(string(line) + "body")))
	require.NoError(t, err)
	assert.Equal(t, line, read)
	require.NoError(t, keys.Check(read, "number", new(number)))

	_, err = format.ReadLine(bufio.NewReader(io.LimitReader(zeros{}, 1<<40)))
	assert.ErrorIs(t, err, format.ErrDamaged)
	assert.ErrorIs(t, keys.Check(make([]byte, format.MaxLine+1), "number", new(number)), format.ErrDamaged)
	assert.ErrorIs(t, keys.Check(nil, "number", new(number)), format.ErrDamaged)
}

func TestReadLine_truncated(t *testing.T) {
	_, err := format.ReadLine(bufio.NewReader(strings.NewReader(`{"statement"`)))
	assert.ErrorIs(t, err, format.ErrDamaged)
	_, err = format.ReadLine(bufio.NewReader(strings.NewReader("")))
	assert.Equal(t, io.EOF, err)
	broken := errors.New("connection lost")
	_, err = format.ReadLine(bufio.NewReader(iotest.ErrReader(broken)))
	assert.Equal(t, broken, err)
}

func FuzzLine(f *testing.F) {
	pair := formattest.NewKeys(f)
	signed, err := pair.Load(f).Sign(statement(1))
	require.NoError(f, err)
	plain, err := new(format.Keys).Sign(statement(1))
	require.NoError(f, err)
	f.Add(signed)
	f.Add(plain)
	f.Add([]byte(`{"statement":{},"statement":[],"Key":1}`))
	trusting := pair.Load(f)
	f.Fuzz(func(t *testing.T, begin []byte) {
		for _, line := range [][]byte{begin, format.WithChecksum(begin)} {
			var read number
			if new(format.Keys).Check(line, "number", &read) == nil {
				assert.Equal(t, "number", read.Kind)
			}
			if trusting.Check(line, "number", &read) == nil {
				assert.Equal(t, 1, read.Number, "no other statement has been signed")
			}
		}
	})
}

// zeros is a reader that returns zeros forever.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestPosition_partsAreLimited(t *testing.T) {
	last := start()
	last.Position.Part = 999_999_999
	object := formattest.Build(t, &format.Keys{}, last, nil)
	_, err := format.NewSegmentBuilder(&format.Keys{}, object.Start())
	assert.ErrorContains(t, err, "a full snapshot is required")
}

func TestPosition_namesSortLikePositions(t *testing.T) {
	positions := []format.Position{{1, 0}, {1, 1}, {1, 10}, {2, 0}, {10, 0}, {1 << 62, 0}}
	for i, position := range positions {
		parsed, err := format.ParsePosition(position.String())
		require.NoError(t, err)
		assert.Equal(t, position, parsed)
		if i > 0 {
			assert.Positive(t, position.Compare(positions[i-1]))
			assert.Positive(t, strings.Compare(position.String(), positions[i-1].String()))
		}
	}
	for _, bad := range []string{
		"", "1.0", "0000000000000000001", "0000000000000000001.0000000000", "0000000000000000000.000000000", "000000000000000000a.000000000",
		"-000000000000000001.000000000", "0000000000000000001.00000000a", "0000000000000000001.000000000x", "+000000000000000001.000000000",
		"9999999999999999999.000000000",
	} {
		_, err := format.ParsePosition(bad)
		assert.Error(t, err, bad)
	}
}

func TestDigest_text(t *testing.T) {
	digest := format.Seed(cluster, 1, 1)
	text, err := digest.MarshalText()
	require.NoError(t, err)
	var read format.Digest
	require.NoError(t, read.UnmarshalText(text))
	assert.Equal(t, digest, read)
	assert.Error(t, read.UnmarshalText(text[2:]))
	assert.Error(t, read.UnmarshalText(append([]byte("x"), text[1:]...)))
	assert.NotEqual(t, digest, format.Seed(cluster, 2, 1))
	assert.NotEqual(t, digest, format.Seed(cluster, 1, 2))
}
