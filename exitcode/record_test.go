package exitcode_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/exitcode"
)

func recordIn(t *testing.T) (*exitcode.Record, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exit_code")
	return exitcode.NewRecord(path), path
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestRecord_cleanWords(t *testing.T) {
	for _, word := range []exitcode.Word{exitcode.Terminated, exitcode.Interrupted} {
		record, path := recordIn(t)
		require.NoError(t, record.Write(word))
		read, err := record.Read()
		require.NoError(t, err)
		assert.Equal(t, word, read)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode(), "a regular file that only its owner can access")
	}
}

// Only a small regular file that contains exactly one of the words is a clean record. Any other file must not
// prevent a clean record from being written later.
func TestRead_unclean(t *testing.T) {
	for name, put := range map[string]func(t *testing.T, path string){
		"no file":                  func(*testing.T, string) {},
		"an empty file":            func(t *testing.T, path string) { write(t, path, "") },
		"an incomplete word":       func(t *testing.T, path string) { write(t, path, "termin") },
		"a word and a newline":     func(t *testing.T, path string) { write(t, path, "terminated\n") },
		"an unknown word":          func(t *testing.T, path string) { write(t, path, "crashed") },
		"a word in the wrong case": func(t *testing.T, path string) { write(t, path, "Terminated") },
		"a word and trailing data": func(t *testing.T, path string) { write(t, path, "terminated"+strings.Repeat("\x00", 1<<20)) },
		"a directory":              func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) },
		"a directory with content": func(t *testing.T, path string) {
			require.NoError(t, os.Mkdir(path, 0o700))
			write(t, filepath.Join(path, "kept"), "precious")
		},
		"a FIFO": func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o600)) },
		"a link to a clean record": func(t *testing.T, path string) {
			write(t, path+".target", "terminated")
			require.NoError(t, os.Symlink(path+".target", path))
		},
		"a dangling link": func(t *testing.T, path string) { require.NoError(t, os.Symlink("nowhere", path)) },
	} {
		t.Run(name, func(t *testing.T) {
			record, path := recordIn(t)
			put(t, path)
			_, err := record.Read()
			require.ErrorContains(t, err, "no clean exit record")
			assert.ErrorContains(t, err, path)

			require.NoError(t, record.Remove())
			_, err = os.Lstat(path)
			require.ErrorIs(t, err, os.ErrNotExist)

			put(t, path)
			if name != "a directory with content" {
				if name == "a directory" {
					require.NoError(t, os.Remove(path)) // rename(2) cannot replace a directory with a file
				}
				require.NoError(t, record.Write(exitcode.Terminated))
				word, err := record.Read()
				require.NoError(t, err)
				assert.Equal(t, exitcode.Terminated, word)
			}
		})
	}
}

func TestRemove_movesADirectoryWithContent(t *testing.T) {
	record, path := recordIn(t)
	require.NoError(t, os.Mkdir(path, 0o700))
	write(t, filepath.Join(path, "kept"), "precious")
	require.NoError(t, record.Remove())
	kept, err := filepath.Glob(path + ".aside-*/kept")
	require.NoError(t, err)
	assert.Len(t, kept, 1)
}

func TestRemove_keepsTheTargetOfALink(t *testing.T) {
	record, path := recordIn(t)
	write(t, path+".target", "terminated")
	require.NoError(t, os.Symlink(path+".target", path))
	require.NoError(t, record.Remove())
	assert.FileExists(t, path+".target")
}

func TestRestore(t *testing.T) {
	t.Run("a record without a note", func(t *testing.T) {
		record, _ := recordIn(t)
		require.NoError(t, record.Write(exitcode.Interrupted))
		require.NoError(t, record.Remove())
		require.NoError(t, record.Restore())
		word, err := record.Read()
		require.NoError(t, err)
		assert.Equal(t, exitcode.Interrupted, word)
	})
	t.Run("a record with a note", func(t *testing.T) {
		record, path := recordIn(t)
		record.Describe(func() []byte { return []byte("at the close") })
		require.NoError(t, record.Write(exitcode.Terminated))
		record.Describe(func() []byte { return []byte("after the restart") })
		require.NoError(t, record.Remove())
		assert.NoFileExists(t, path+".data")
		require.NoError(t, record.Restore())
		note, err := record.Note()
		require.NoError(t, err)
		assert.Equal(t, "at the close", string(note))
		assert.FileExists(t, path)
	})
	t.Run("not a record whose note cannot be read", func(t *testing.T) {
		record, path := recordIn(t)
		require.NoError(t, record.Write(exitcode.Terminated))
		require.NoError(t, os.Mkdir(path+".data", 0o700))
		require.NoError(t, record.Remove())
		require.NoError(t, record.Restore())
		assert.NoFileExists(t, path)
	})
	t.Run("not an unclean record", func(t *testing.T) {
		record, path := recordIn(t)
		write(t, path, "garbage")
		require.NoError(t, record.Remove())
		require.NoError(t, record.Restore())
		assert.NoFileExists(t, path)
	})
}

// Once another process has had the data open for writing, no clean record may be written.
func TestInvalidate(t *testing.T) {
	for name, before := range map[string]func(*testing.T, *exitcode.Record){
		"before the removal": func(*testing.T, *exitcode.Record) {},
		"after the removal":  func(t *testing.T, r *exitcode.Record) { require.NoError(t, r.Remove()) },
		"twice":              func(t *testing.T, r *exitcode.Record) { require.NoError(t, r.Invalidate()) },
	} {
		t.Run(name, func(t *testing.T) {
			record, path := recordIn(t)
			require.NoError(t, record.Write(exitcode.Terminated))
			require.False(t, record.Invalid())
			before(t, record)
			require.NoError(t, record.Invalidate())
			assert.True(t, record.Invalid())
			assert.NoFileExists(t, path)
			require.NoError(t, record.Restore())
			assert.NoFileExists(t, path)
			require.NoError(t, record.Write(exitcode.Terminated), "a clean shutdown after Invalidate is no error")
			assert.NoFileExists(t, path)
		})
	}
}

func TestInvalidate_failedRemovalIsRepeatedByWrite(t *testing.T) {
	record, path := recordIn(t)
	moved := filepath.Dir(path) + ".moved"
	require.NoError(t, record.Write(exitcode.Terminated))
	require.NoError(t, os.Rename(filepath.Dir(path), moved))
	require.ErrorContains(t, record.Invalidate(), "cannot remove the exit record")
	assert.True(t, record.Invalid())
	require.Error(t, record.Restore())
	require.Error(t, record.Write(exitcode.Terminated))
	require.NoError(t, os.Rename(moved, filepath.Dir(path)))
	require.NoError(t, record.Write(exitcode.Terminated))
	assert.NoFileExists(t, path)
}

func TestRemove_missingDirectory(t *testing.T) {
	record := exitcode.NewRecord(filepath.Join(t.TempDir(), "missing", "exit_code"))
	assert.ErrorContains(t, record.Remove(), "cannot remove the exit record", "the removal may not be durable")
	assert.ErrorContains(t, record.Write(exitcode.Terminated), "cannot write the exit record")
}

func TestWrite_leftoverOfAnInterruptedWrite(t *testing.T) {
	record, path := recordIn(t)
	require.NoError(t, os.Symlink("/dev/full", path+".tmp"))
	require.NoError(t, record.Write(exitcode.Terminated))
	word, err := record.Read()
	require.NoError(t, err)
	assert.Equal(t, exitcode.Terminated, word)
	assert.NoFileExists(t, path+".tmp")
}

// Write must not write the word if the note cannot be written, because the record would look like one that never had
// a note.
func TestRecord_requiresItsNote(t *testing.T) {
	record, path := recordIn(t)
	record.Describe(func() []byte { return []byte("at the close") })
	require.NoError(t, os.MkdirAll(filepath.Join(path+".data", "something"), 0o700))
	require.ErrorContains(t, record.Write(exitcode.Terminated), "cannot record the fingerprint of the data files")
	assert.NoFileExists(t, path)
}

func FuzzRecord_cleanWords(f *testing.F) {
	for _, seed := range []string{"terminated", "interrupt", "terminated\n", "", "interrup"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		record, path := recordIn(t)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		word, err := record.Read()
		clean := string(content) == "terminated" || string(content) == "interrupt"
		assert.Equal(t, clean, err == nil)
		if clean {
			assert.Equal(t, string(content), string(word))
		}
	})
}
