package etcdconf

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// longerThanAPipe exceeds the 64 KiB that can be written to a pipe before a write blocks.
var longerThanAPipe = bytes.Repeat([]byte("x"), 1<<18)

func TestThroughPipeCarriesEverything(t *testing.T) {
	err := withPipe(longerThanAPipe, func(path string) error {
		content, err := os.ReadFile(path)
		assert.Equal(t, longerThanAPipe, content)
		return err
	})
	require.NoError(t, err)
}

func TestThroughPipeReturnsWhenNobodyReads(t *testing.T) {
	refusal := errors.New("refusal")
	require.ErrorIs(t, withPipe(longerThanAPipe, func(string) error { return refusal }), refusal)
	require.Panics(t, func() { _ = withPipe(longerThanAPipe, func(string) error { panic("etcd") }) })
}

func TestKeyIn(t *testing.T) {
	for message, key := range map[string]string{
		"cannot set --foo and --memory-mlock at the same time": "memory-mlock",
		"--discovery-endpoints must not contain":               "discovery-config",
		"unrecognized feature gate: Foo":                       "feature-gates",
		"no":                                                   "",
	} {
		assert.Equal(t, key, keyIn(errors.New(message)), message)
	}
}

func TestQuoteHidesAndShortens(t *testing.T) {
	for value, shown := range map[string]string{
		"":                             `""`,
		"http://a:b@c:1":               `"http://redacted@c:1"`,
		"n=https://a:b@c@d":            `"n=https://redacted@d"`,
		"a:b@c":                        `"://redacted@c"`,
		strings.Repeat("ü", maxQuoted): `"` + strings.Repeat("ü", maxQuoted) + `"`,
		strings.Repeat("ü", 99):        `"` + strings.Repeat("ü", maxQuoted) + `…"`,
	} {
		assert.Equal(t, shown, quote(value))
	}
}
