package member_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLostData(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"all":          os.RemoveAll,
		"the database": func(dir string) error { return os.Remove(filepath.Join(dir, "member", "snap", "db")) },
		"the log":      func(dir string) error { return os.RemoveAll(filepath.Join(dir, "member", "wal")) },
		"the log's segments": func(dir string) error {
			segments, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
			for _, segment := range segments {
				err = errors.Join(err, os.Remove(segment))
			}
			return err
		},
		"replaced": func(dir string) error {
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(dir+".old"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBench(t)
			require.NoError(t, b.LostData())
			require.NoError(t, remove(b.config.Dir))
			require.Eventually(t, func() bool { return b.LostData() != nil }, patience, tick)
			require.ErrorContains(t, b.LostData(), "was removed or replaced while etcd was running")
			_, err := b.Close()
			require.ErrorIs(t, err, b.LostData(), "a stop must not look clean")
		})
	}
}

func TestClose_lostData(t *testing.T) {
	b := openBench(t)
	require.NoError(t, os.RemoveAll(b.config.Dir))
	_, err := b.Close()
	require.Error(t, err, "etcd may also crash of it")
}

func TestLostData_defragmentation(t *testing.T) {
	b := openBench(t)
	_, err := b.client(t).Defragment(soon(t), endpoint(b.config))
	require.NoError(t, err)
	b.mustClose(t)
}
