package folder

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
)

func TestFolderKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Subject{Open: func(t *testing.T) store.Store { return open(t) }, Missing: missing, Whole: true})
}

func open(t *testing.T) *Store {
	s, err := New(filepath.Join(t.TempDir(), "back ups"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(s.directory, 0o700))
	return s
}

func missing(t *testing.T) store.Store {
	s, err := New(filepath.Join(t.TempDir(), "not", "mounted"))
	require.NoError(t, err)
	return s
}
