package format_test

import (
	"bytes"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
	"etcd-wrapper/backup/store"
)

func sealed(t *testing.T, keys *format.Keys, content string) string {
	t.Helper()
	var all bytes.Buffer
	w, err := keys.Seal(&all)
	require.NoError(t, err)
	_, err = io.WriteString(w, content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return all.String()
}

func open(t *testing.T, keys *format.Keys, content string, encrypted bool) string {
	t.Helper()
	r, err := keys.Open(strings.NewReader(content), encrypted)
	require.NoError(t, err)
	defer r.Close()
	all, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(all)
}

func TestSeal_isReadByStockAgeAndZstd(t *testing.T) {
	pair := formattest.NewKeys(t)
	content := strings.Repeat("row of a database ", 100_000)
	identities, err := age.ParseIdentities(strings.NewReader(read(t, pair.Identities)))
	require.NoError(t, err)
	decrypted, err := age.Decrypt(strings.NewReader(sealed(t, pair.Load(t), content)), identities...)
	require.NoError(t, err)
	decoder, err := zstd.NewReader(decrypted)
	require.NoError(t, err)
	defer decoder.Close()
	all, err := io.ReadAll(decoder)
	require.NoError(t, err)
	assert.Equal(t, content, string(all))
}

func TestOpen_needsAMatchingIdentity(t *testing.T) {
	pair := formattest.NewKeys(t)
	content := sealed(t, pair.Load(t), "hello")
	assert.NotContains(t, content, "hello")
	for message, keys := range map[string]*format.Keys{
		"--backup-identities is not set":                    {},
		"no key in --backup-identities matches a recipient": formattest.NewKeys(t).Load(t),
	} {
		_, err := keys.Open(strings.NewReader(content), true)
		assert.ErrorIs(t, err, format.ErrNoIdentity)
		assert.ErrorContains(t, err, message)
	}
}

func TestOpen_findsDamage(t *testing.T) {
	pair := formattest.NewKeys(t)
	keys := pair.Load(t)
	content := sealed(t, keys, strings.Repeat("hello", 1000))
	for cut := range len(content) {
		assert.Error(t, opened(keys, content[:cut], true), "cut at %d", cut)
	}
	for bit := range 8 * len(content) {
		changed := []byte(content)
		changed[bit/8] ^= 1 << (bit % 8)
		assert.Error(t, opened(keys, string(changed), true), "bit %d", bit)
	}
	assert.ErrorIs(t, opened(keys, content+"more", true), format.ErrDamaged)
}

func opened(keys *format.Keys, content string, encrypted bool) error {
	r, err := keys.Open(strings.NewReader(content), encrypted)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

func TestOpen_returnsErrorsOfItsSource(t *testing.T) {
	broken := &store.Unavailable{Cause: io.EOF} // the connection failed, but the object is intact
	pair := formattest.NewKeys(t)
	keys := pair.Load(t)
	content := sealed(t, keys, strings.Repeat("hello", 100_000))
	for _, encrypted := range []bool{true, false} {
		if !encrypted {
			content = sealed(t, new(format.Keys), strings.Repeat("hello", 100_000))
		}
		for _, length := range []int{0, 10, len(content) - 10} {
			lost := io.MultiReader(strings.NewReader(content[:length]), iotest.ErrReader(broken))
			r, err := keys.Open(lost, encrypted)
			if err == nil {
				_, err = io.Copy(io.Discard, r)
			}
			assert.ErrorIs(t, err, broken, "after %d", length)
			assert.NotErrorIs(t, err, format.ErrDamaged)
		}
	}
}

func TestOpen_limitsMemory(t *testing.T) {
	var wide bytes.Buffer
	encoder, err := zstd.NewWriter(&wide, zstd.WithWindowSize(64<<20), zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	_, err = io.Copy(encoder, io.LimitReader(zeros{}, 65<<20))
	require.NoError(t, err)
	require.NoError(t, encoder.Close())
	r, err := new(format.Keys).Open(&wide, false)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	assert.ErrorIs(t, err, format.ErrDamaged, "a window of 64 MiB")

	keys := formattest.NewKeys(t).Load(t)
	header := io.MultiReader(strings.NewReader("age-encryption.org/v1\n"), &repeated{text: "-> X25519 a\n\n"})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = keys.Open(header, true)
	runtime.ReadMemStats(&after)
	assert.ErrorIs(t, err, format.ErrDamaged, "an endless header")
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))

	long := "age-encryption.org/v1\n-> X25519 a\n" + strings.Repeat("!", 1<<20) + "\n"
	_, err = keys.Open(strings.NewReader(long), true)
	assert.ErrorIs(t, err, format.ErrDamaged)
	assert.Less(t, len(err.Error()), 300, "the error quotes only part of a long line")
}

func TestOpen_findsTruncationAtABoundary(t *testing.T) {
	assert.ErrorIs(t, opened(new(format.Keys), "", false), format.ErrDamaged)

	pair := formattest.NewKeys(t)
	recipients, err := age.ParseRecipients(strings.NewReader(read(t, pair.Recipients)))
	require.NoError(t, err)
	var all bytes.Buffer
	encrypted, err := age.Encrypt(&all, recipients...)
	require.NoError(t, err)
	chunk := 64 << 10 // chunk size of age; zstd frames are padded to multiples of this size
	for range 2 {
		encoder, err := zstd.NewWriter(encrypted, zstd.WithEncoderPadding(chunk), zstd.WithEncoderConcurrency(1))
		require.NoError(t, err)
		_, err = io.WriteString(encoder, "hello")
		require.NoError(t, err)
		require.NoError(t, encoder.Close())
	}
	require.NoError(t, encrypted.Close())
	header := all.Len() - 2*(chunk+16)
	require.NoError(t, opened(pair.Load(t), all.String(), true))
	assert.ErrorIs(t, opened(pair.Load(t), all.String()[:header+chunk+16], true), format.ErrDamaged)
}

// repeated is a reader that repeats the same string forever.
type repeated struct {
	text string
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at%len(r.text)]
		r.at++
	}
	return len(p), nil
}

func TestSeal_concurrent(t *testing.T) {
	keys := formattest.NewKeys(t).Load(t)
	for i := range 8 {
		t.Run("parallel", func(t *testing.T) {
			t.Parallel()
			for range 20 {
				content := strings.Repeat(string(rune('a'+i)), 10_000)
				assert.Equal(t, content, open(t, keys, sealed(t, keys, content), true))
			}
		})
	}
}
