package format_test

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/format/formattest"
)

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
		"signed": pair.Load(t), "signed, with nobody to trust": formattest.LoadKeys(t, format.KeyFiles{SigningKey: pair.SigningKey}), "plain": {},
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
	for name, line := range map[string][]byte{"unsigned": unsigned, "another's": foreign, "a changed one": forge(t, good)} {
		read := statement(0)
		assert.ErrorIs(t, trusting.Check(line, "number", &read), format.ErrUntrusted, name)
		assert.Zero(t, read.Number, name)
	}
	assert.NoError(t, new(format.Keys).Check(foreign, "number", new(number)), "without trusted keys signatures are not looked at")
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
	assert.ErrorIs(t, keys.Check(line, "segment", new(number)), format.ErrDamaged, "or it could be put in another's place")

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
				assert.Equal(t, 1, read.Number, "nobody signed anything else")
			}
		}
	})
}

// zeros is an endless reader of zeros.
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
