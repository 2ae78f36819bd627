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

// largeContent exceeds the capacity of a pipe (64 KiB), so writing it blocks until the content is read.
var largeContent = bytes.Repeat([]byte("x"), 1<<18)

func TestWithPipe_largeContent(t *testing.T) {
	err := withPipe(largeContent, func(path string) error {
		content, err := os.ReadFile(path)
		assert.Equal(t, largeContent, content)
		return err
	})
	require.NoError(t, err)
}

func TestWithPipe_contentNotRead(t *testing.T) {
	failure := errors.New("failure")
	require.ErrorIs(t, withPipe(largeContent, func(string) error { return failure }), failure)
	require.Panics(t, func() { _ = withPipe(largeContent, func(string) error { panic("etcd") }) })
}

func TestKeyIn(t *testing.T) {
	for message, key := range map[string]string{
		"cannot set --foo and --memory-mlock at the same time": "memory-mlock",
		"--discovery-endpoints must not contain":               "discovery-config",
		"unrecognized feature gate: Foo":                       "feature-gates",
		"no flag":                                              "",
	} {
		assert.Equal(t, key, keyIn(errors.New(message)), message)
	}
}

func TestQuote_hidesPasswordsAndShortens(t *testing.T) {
	for value, want := range map[string]string{
		"":                             `""`,
		"http://a:b@c:1":               `"http://redacted@c:1"`,
		"n=https://a:b@c@d":            `"n=https://redacted@d"`,
		"a:b@c":                        `"://redacted@c"`,
		strings.Repeat("ü", maxQuoted): `"` + strings.Repeat("ü", maxQuoted) + `"`,
		strings.Repeat("ü", 99):        `"` + strings.Repeat("ü", maxQuoted) + `…"`,
	} {
		assert.Equal(t, want, quote(value))
	}
}
