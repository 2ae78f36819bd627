package format_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format"
	. "etcd-wrapper/backup/format/formattest"
)

func TestPosition_partsAreLimited(t *testing.T) {
	last := start()
	last.Position.Part = 999_999_999
	object := Build(t, &format.Keys{}, last, nil)
	_, err := format.NewSegmentBuilder(&format.Keys{}, object.Start())
	assert.ErrorContains(t, err, "a full snapshot is needed")
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
