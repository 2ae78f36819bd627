package format_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
		begins  string
		message string
	}{
		{"recipients that are none", format.KeyFiles{Recipients: none}, "--backup-recipients: " + none, "does not contain valid age recipients"},
		{"recipients of an empty file", format.KeyFiles{Recipients: empty}, "--backup-recipients: " + empty, "no recipients found"},
		{"recipients too many", format.KeyFiles{Recipients: large}, "--backup-recipients: cannot read " + large, "larger than 1048576 bytes"},
		{"identities instead of recipients", format.KeyFiles{Recipients: pair.Identities}, "--backup-recipients: ", "does not contain valid age recipients"},
		{"recipients instead of identities", format.KeyFiles{Identities: pair.Recipients}, "--backup-identities: ", "does not contain valid age identities"},
		{"a public key that shall sign", format.KeyFiles{SigningKey: pair.TrustedKeys}, "--backup-signing-key: ", "is not an ed25519 private key"},
		{"text that shall sign", format.KeyFiles{SigningKey: none}, "--backup-signing-key: ", "is not an ed25519 private key"},
		{"a private key that shall be trusted", format.KeyFiles{TrustedKeys: pair.SigningKey}, "--backup-trusted-keys: ", "contains a PRIVATE KEY block that is not"},
		{"text that shall be trusted", format.KeyFiles{TrustedKeys: none}, "--backup-trusted-keys: ", "contains no ed25519 public key"},
		{"a file that is not there", format.KeyFiles{TrustedKeys: none + "x"}, "--backup-trusted-keys: cannot read " + none + "x", "no such file"},
		{"a directory", format.KeyFiles{Identities: t.TempDir()}, "--backup-identities: cannot read ", "not a regular file"},
		{"a pipe into which nobody writes", format.KeyFiles{SigningKey: silentPipe(t)}, "--backup-signing-key: ", "not a regular file"},
		{"a device without an end", format.KeyFiles{SigningKey: "/dev/zero"}, "--backup-signing-key: cannot read /dev/zero", "not a regular file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, test.files)
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), test.begins), err.Error())
			assert.Contains(t, err.Error(), test.message)
			assert.NotContains(t, err.Error(), "\n", "one sentence")
		})
	}
}

// load calls LoadKeys with a time limit.
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
		require.Fail(t, "it waits for ever")
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
	assert.NotContains(t, err.Error(), strings.TrimSpace(string(secret))[len("# kept in the safe\nAGE-SECRET-KEY-1"):][:8])
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
	assert.ErrorIs(t, err, os.ErrNotExist, "a trusted key that was withdrawn is not trusted any longer")
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

func TestCheckOwn(t *testing.T) {
	ours, theirs := formattest.NewKeys(t), formattest.NewKeys(t)
	require.NoError(t, (&format.Keys{}).CheckSigning())
	require.NoError(t, ours.Load(t).CheckSigning())
	require.NoError(t, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey}).CheckSigning())
	rotated := formattest.JoinFiles(t, theirs.TrustedKeys, ours.TrustedKeys)
	require.NoError(t, formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: rotated}).CheckSigning())

	unsigned := formattest.LoadKeys(t, format.KeyFiles{TrustedKeys: ours.TrustedKeys}).CheckSigning()
	require.ErrorContains(t, unsigned, "--backup-trusted-keys: ")
	strange := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).CheckSigning()
	require.ErrorContains(t, strange, "--backup-signing-key: ")
	_, err := formattest.LoadKeys(t, format.KeyFiles{SigningKey: ours.SigningKey, TrustedKeys: theirs.TrustedKeys}).Sign(format.Heading{})
	require.Equal(t, strange, err, "nothing is signed that nobody could use")
}

func TestWeaknesses(t *testing.T) {
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
		weak := ours.Load(t).Warnings()
		require.Len(t, weak, 1)
		assert.Contains(t, weak[0], flag+secret+" is world-readable")
		require.NoError(t, os.Chmod(secret, 0o440))
	}
}
