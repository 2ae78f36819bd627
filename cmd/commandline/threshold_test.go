package commandline

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheThresholdOfDefragmentationIsReadAsPeopleWriteIt(t *testing.T) {
	for text, want := range map[string]Threshold{
		"free=45%,min=100Mi": {Free: 0.45, Min: 100 << 20},
		"min=2Gi,free=99%":   {Free: 0.99, Min: 2 << 30},
		"free=1%,min=4096":   {Free: 0.01, Min: 4096},
		"free=1%,min=100M":   {Free: 0.01, Min: 1e8},
		"free=1%,min=1Ti":    {Free: 0.01, Min: 1 << 40},
		"never":              {},
	} {
		var read Threshold
		require.NoError(t, read.UnmarshalText([]byte(text)), text)
		assert.InDelta(t, want.Free, read.Free, 1e-9, text)
		assert.Equal(t, want.Min, read.Min, text)
	}
}

func TestAThresholdThatMeansNothingIsRefusedWithWhatToWrite(t *testing.T) {
	for text, says := range map[string]string{
		"":                    "neither",
		"free=45%":            "both",
		"min=1Mi":             "both",
		"free=45,min=1Mi":     "no percentage",
		"free=0%,min=1Mi":     "no percentage",
		"free=100%,min=1Mi":   "no percentage",
		"free=45%,min=-1":     "not a size",
		"free=45%,min=1Pi":    "not a size",
		"free=45%,min=0Mi":    "more than 0",
		"free=45%,most=100Mi": "neither",
	} {
		read := Threshold{Min: 7}
		err := read.UnmarshalText([]byte(text))
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, "free=45%,min=100Mi", text)
		assert.Equal(t, Threshold{Min: 7}, read, "what is refused has no effect")
	}
}
