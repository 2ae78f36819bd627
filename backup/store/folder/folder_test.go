package folder

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/storetest"
)

func TestFolderKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open: func(t *testing.T) store.Store { return open(t) }, Missing: missing, SinglePiece: true,
	})
}

func open(t *testing.T) *Store {
	s, err := New(filepath.Join(t.TempDir(), "back ups"))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(s.directory, 0o700))
	return s
}

func TestRead_translatesErrors(t *testing.T) {
	_, err := reader{io.NewSectionReader(brokenFile{syscall.EIO}, 0, 10)}.Read(make([]byte, 1))
	require.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorIs(t, err, syscall.EIO)
}

type brokenFile struct{ err error }

func (b brokenFile) ReadAt([]byte, int64) (int, error) { return 0, b.err }

func missing(t *testing.T) store.Store {
	s, err := New(filepath.Join(t.TempDir(), "not", "mounted"))
	require.NoError(t, err)
	return s
}

// appendOnly is the inode flag of `chattr +a`: names can be added to the directory but not removed.
const appendOnly = 0x20

// makeAppendOnly makes the directories of a store append-only until the test ends.
func makeAppendOnly(t *testing.T, s *Store) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(s.directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if err := mark(path, appendOnly); err != nil {
			t.Skipf("SKIPPED: cannot make a directory append-only: %v", err)
		}
		t.Cleanup(func() { assert.NoError(t, mark(path, 0)) })
		return nil
	}))
}

func mark(path string, flags int) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	defer directory.Close()
	return unix.IoctlSetPointerInt(int(directory.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

func TestPut_withoutPermissionToDelete(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(t.Context(), "probe/first", strings.NewReader("x")))
	makeAppendOnly(t, s)
	abilities, err := store.Probe(t.Context(), s)
	require.NoError(t, err)
	assert.True(t, abilities.CreateIfAbsent)
	assert.ErrorIs(t, abilities.Delete, store.ErrDenied)
	require.NoError(t, s.Put(t.Context(), "probe/second", strings.NewReader("y")))
	assert.ErrorIs(t, s.Put(t.Context(), "probe/second", strings.NewReader("z")), store.ErrExists)
	assert.ErrorIs(t, s.Delete(t.Context(), "probe/second"), store.ErrDenied)
	assert.Len(t, list(t, s, "", ""), 3)
}

func list(t *testing.T, s *Store, prefix, after string) (names []string) {
	for object, err := range s.List(t.Context(), prefix, after) {
		require.NoError(t, err)
		names = append(names, object.Name)
	}
	return names
}

func TestPut_filesArePrivate(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(t.Context(), "a/b/c", strings.NewReader("x")))
	found := 0
	require.NoError(t, filepath.WalkDir(s.directory, func(_ string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = fs.ModeDir | 0o700
		}
		found++
		assert.Equal(t, want, info.Mode(), entry.Name())
		return nil
	}))
	assert.Equal(t, 4, found, "no temporary file may remain")
}

// If root runs a restore test, the service must be able to read the result.
func TestPut_rootKeepsDirectoryOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can create files for another user")
	}
	s := open(t)
	require.NoError(t, os.Chown(s.directory, 65532, 65533))
	require.NoError(t, s.Put(t.Context(), "a/b/c", strings.NewReader("x")))
	require.NoError(t, filepath.WalkDir(s.directory, func(_ string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		owner := info.Sys().(*syscall.Stat_t)
		assert.Equal(t, []uint32{65532, 65533}, []uint32{owner.Uid, owner.Gid}, entry.Name())
		return nil
	}))
}

// requireNoContent checks that a name is treated as an object without content: reading it returns no bytes, and
// creating it returns ErrExists.
func requireNoContent(t *testing.T, s *Store, name string) {
	t.Helper()
	content, err := s.Get(t.Context(), name, 0, -1)
	require.NoError(t, err, name)
	read, err := io.ReadAll(content)
	require.NoError(t, err, name)
	assert.Empty(t, read, name)
	require.NoError(t, content.Close())
	_, err = store.PutOnce(t.Context(), s, name, strings.NewReader("y"))
	assert.ErrorIs(t, err, store.ErrExists, name)
}

func TestSymbolicLinks_areNotFollowed(t *testing.T) {
	s := open(t)
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("x"), 0o600))
	require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
	for name, target := range map[string]string{"linked": outside, "file": secret, "inside": "a", "dangling": "nothing"} {
		require.NoError(t, os.Symlink(target, filepath.Join(s.directory, name)))
		requireNoContent(t, s, name)
	}
	_, err := s.Get(t.Context(), "linked/secret", 0, -1)
	assert.Error(t, err)
	assert.Error(t, s.Put(t.Context(), "linked/new", strings.NewReader("y")))
	assert.Error(t, s.Delete(t.Context(), "linked/secret"))
	assert.Equal(t, []string{"a", "dangling", "file", "inside", "linked"}, list(t, s, "", ""))
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Len(t, left, 1)
	content, err := os.ReadFile(secret)
	require.NoError(t, err)
	assert.Equal(t, "x", string(content))
}

// Creating an object must fail with store.ErrExists if the name belongs to a pipe or a directory, because a retry
// cannot succeed.
func TestPipesAndDirectories_haveNoContent(t *testing.T) {
	s := open(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(s.directory, "pipe"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(s.directory, "directory"), 0o700))
	requireNoContent(t, s, "pipe")
	requireNoContent(t, s, "directory")
	_, err := s.Get(t.Context(), "pipe/below", 0, -1)
	assert.ErrorIs(t, err, store.ErrNotFound)
	for object, err := range s.List(t.Context(), "", "") {
		require.NoError(t, err)
		assert.Equal(t, "pipe", object.Name, "an empty directory must not be listed")
		assert.Zero(t, object.Size)
	}
	require.NoError(t, s.Delete(t.Context(), "pipe"))
	assert.Empty(t, list(t, s, "", ""))
}

func TestSweep_removesOldTemporaryFiles(t *testing.T) {
	s := open(t)
	removed, err := store.Sweep(t.Context(), s)
	require.NoError(t, err)
	assert.Zero(t, removed, "an empty store has no temporary files")
	require.NoError(t, s.Put(t.Context(), "a/b", strings.NewReader("x")))
	for name, age := range map[string]time.Duration{".new-old": 61 * time.Minute, ".new-young": 59 * time.Minute, ".other": 9e13} {
		path := filepath.Join(s.directory, "a", name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
	}
	removed, err = store.Sweep(t.Context(), s)
	require.NoError(t, err)
	assert.Equal(t, 1, removed)
	assert.NoFileExists(t, filepath.Join(s.directory, "a", ".new-old"))
	assert.FileExists(t, filepath.Join(s.directory, "a", ".new-young"))
	assert.FileExists(t, filepath.Join(s.directory, "a", ".other"))
}

func TestList_manyPages(t *testing.T) {
	defer func(size int) { pageSize = size }(pageSize)
	pageSize = 700 // the directory has two and a half pages
	s := open(t)
	require.NoError(t, os.MkdirAll(filepath.Join(s.directory, "d"), 0o700))
	var want []string
	for i := range 2*pageSize + pageSize/2 {
		name := fmt.Sprintf("d/%06d", i*7919%1_000_003)
		require.NoError(t, os.WriteFile(filepath.Join(s.directory, name), nil, 0o600))
		want = append(want, name)
	}
	slices.Sort(want)
	assert.True(t, slices.Equal(want, list(t, s, "", "")))
	assert.True(t, slices.Equal(want[pageSize+3:], list(t, s, "d/", want[pageSize+2])))
}

func TestFileSystemErrors_areTranslated(t *testing.T) {
	for number, want := range map[syscall.Errno]error{
		syscall.ENOSPC: store.ErrUnavailable, syscall.EDQUOT: store.ErrUnavailable, syscall.EIO: store.ErrUnavailable,
		syscall.ESTALE: store.ErrUnavailable, syscall.EROFS: store.ErrDenied, syscall.EACCES: store.ErrDenied,
		syscall.EPERM: store.ErrDenied, syscall.ENOENT: store.ErrNotFound, syscall.ENOTDIR: store.ErrNotFound,
	} {
		err := open(t).failed("cannot create a", &fs.PathError{Op: "write", Path: "a", Err: number})
		assert.ErrorIs(t, err, want)
		assert.ErrorIs(t, err, number)
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestNextStep_deniedByFolder(t *testing.T) {
	s := open(t)
	require.NoError(t, os.Chmod(s.directory, 0o750))
	denied := s.failed("cannot create a", &fs.PathError{Op: "write", Path: "a", Err: syscall.EACCES})
	assert.Regexp(t, fmt.Sprintf("^grant user %d and group %d access to %s .*; the directory is owned by user %[1]d and group %[2]d \\(mode drwxr-x---\\)$",
		os.Geteuid(), os.Getegid(), s.directory), store.NextStep(denied))
	readOnly := s.failed("cannot create a", &fs.PathError{Op: "write", Path: "a", Err: syscall.EROFS})
	assert.Equal(t, "mount the volume of "+s.directory+" read-write", store.NextStep(readOnly))
	missing := s.failed("cannot create a", fmt.Errorf("%w: not mounted", store.ErrNoBucket))
	assert.Equal(t, "create the bucket or correct --backup-store", store.NextStep(missing))
}

func TestPut_fullDisk(t *testing.T) {
	mounted := t.TempDir()
	if err := syscall.Mount("tmpfs", mounted, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIPPED: cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(mounted, 0)) })
	s, err := New(mounted)
	require.NoError(t, err)
	err = s.Put(t.Context(), "a/b", storetest.Pattern(1, 2<<20))
	assert.ErrorIs(t, err, store.ErrUnavailable)
	assert.ErrorContains(t, err, "no space left on device")
	left, err := os.ReadDir(filepath.Join(s.directory, "a"))
	require.NoError(t, err)
	assert.Empty(t, left)
	require.NoError(t, s.Put(t.Context(), "a/b", storetest.Pattern(1, 1<<18)), "the failed upload must not take up space")
	require.NoError(t, syscall.Mount("", mounted, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	assert.ErrorIs(t, s.Put(t.Context(), "a/c", strings.NewReader("x")), store.ErrDenied)
	assert.ErrorIs(t, s.Delete(t.Context(), "a/b"), store.ErrDenied)
	assert.Equal(t, []string{"a/b"}, list(t, s, "", ""))
}

const writerVariable = "FOLDER_TEST_WRITES_INTO"

// TestMain runs an endless writer if a test started this process in order to kill it.
func TestMain(m *testing.M) {
	if directory := os.Getenv(writerVariable); directory != "" {
		write(directory)
	}
	os.Exit(m.Run())
}

const written = 200_000 // size of each object in bytes

func write(directory string) {
	s, err := New(directory)
	for i := 0; err == nil; i++ {
		err = s.Put(context.Background(), fmt.Sprintf("%02d/object-%04d", i%10, i), storetest.Pattern(byte(i), written))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestPut_killedWriter(t *testing.T) {
	s := open(t)
	for kill := range 5 {
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writerVariable+"="+s.directory)
		require.NoError(t, writer.Start())
		deadline := time.After(time.Minute)
		for i := kill * 7; len(list(t, s, "", "")) < i+3; {
			select {
			case <-deadline:
				t.Fatal("the writer does not create any objects")
			case <-time.After(time.Millisecond):
			}
		}
		require.NoError(t, writer.Process.Kill())
		_ = writer.Wait()
		for _, name := range list(t, s, "", "") {
			var i int
			_, err := fmt.Sscanf(name[3:], "object-%d", &i)
			require.NoError(t, err)
			_, err = store.PutOnce(t.Context(), s, name, storetest.Pattern(byte(i), written))
			require.NoError(t, err, "every listed object must be complete")
			require.NoError(t, s.Delete(t.Context(), name))
		}
	}
}

// A store must not create a missing directory or treat it as empty, because the volume may not be mounted.
func TestMissingDirectory_isNotAnEmptyStore(t *testing.T) {
	s, err := New(filepath.Join(t.TempDir(), "backups"))
	require.NoError(t, err)
	assert.ErrorIs(t, s.Put(t.Context(), "a", strings.NewReader("x")), store.ErrNoBucket)
	assert.ErrorIs(t, s.Delete(t.Context(), "a"), store.ErrNoBucket)
	assert.NoDirExists(t, s.directory)
	require.NoError(t, os.Mkdir(s.directory, 0o700))
	assert.Empty(t, list(t, s, "", ""))
	require.NoError(t, s.Put(t.Context(), "a", strings.NewReader("x")))
	assert.Equal(t, []string{"a"}, list(t, s, "", ""))
}

// An error must mention the directory only as part of the store's URL.
func TestErrorsNameTheDirectoryOnce(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "backups")
	s, err := New(directory)
	require.NoError(t, err)
	_, err = s.Get(t.Context(), "a", 0, -1)
	assert.Equal(t, "cannot read a in file://"+directory+": bucket not found: create the directory or mount its volume", err.Error())
	require.NoError(t, os.WriteFile(directory, nil, 0o600))
	_, err = s.Get(t.Context(), "a", 0, -1)
	assert.ErrorIs(t, err, store.ErrNoBucket)
	assert.Equal(t, "cannot read a in file://"+directory+": bucket not found: not a directory", err.Error())
}
