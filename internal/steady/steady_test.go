package steady_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/internal/steady"
)

const size = 40 << 20 // bytes

func TestWriter_writesEverything(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	path := written(t, content)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
}

func TestRemoveLeavesNothing(t *testing.T) {
	for name, ctx := range map[string]context.Context{"context active": t.Context(), "context canceled": canceled(t)} {
		t.Run(name, func(t *testing.T) {
			path := written(t, make([]byte, size))
			require.NoError(t, steady.Remove(ctx, path))
			require.NoFileExists(t, path)
			require.ErrorIs(t, steady.Remove(ctx, path), os.ErrNotExist)
		})
	}
}

func TestRemove_unwritableDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty directory")
	require.NoError(t, os.Mkdir(path, 0o500))
	require.NoError(t, steady.Remove(t.Context(), path))
	require.NoDirExists(t, path)
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func written(t *testing.T, content []byte) (path string) {
	path = filepath.Join(t.TempDir(), "large")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	_, err = io.Copy(&steady.Writer{File: file, Drop: true}, bytes.NewReader(content))
	require.NoError(t, err)
	return path
}
