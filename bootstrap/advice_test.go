package bootstrap_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap"
)

func TestAnErrorOfTheOperatingSystemSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	full := &os.PathError{Op: "write", Path: filepath.Join(dir, "exit_code"), Err: syscall.ENOSPC}
	for err, said := range map[error]string{
		fmt.Errorf("cannot write: %w", full):                               "no space left on device \\(" + dir + " has \\d+ MiB free of \\d+ MiB; enlarge the volume or make room on it\\)$",
		errors.New("wal: open /data/0.wal: permission denied"):             fmt.Sprintf("this process is user %d, group %d\\)$", os.Geteuid(), os.Getegid()),
		errors.New("etcd: wal: no space left on device"):                   "device \\(" + dir + " has \\d+ MiB free of .*\\)$",
		errors.New("etcd: failed to repair WAL: unexpected EOF"):           "EOF \\(" + dir + " has \\d+ MiB free of .* room for a copy .*\\)$",
		&os.SyscallError{Syscall: "bind", Err: syscall.EADDRINUSE}:         "\\(end the process that listens there\\)$",
		&os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}:         fmt.Sprintf("this process is user %d, group %d\\)$", os.Geteuid(), os.Getegid()),
		errors.New("entry 7 conflict with committed entry [committed(9)]"): "\\(the data contradict those of the other members.*--recover=auto.*\\)$",
		errors.New("failed to update; member unknown"):                     "\\(the data contradict those of the other members.*--recover=auto.*\\)$",
		errors.New("tocommit(9) is out of range [lastIndex(7)]"):           "\\(the data lack what this member has confirmed .*--recover=auto.*\\)$",
		errors.New("cannot fetch cluster info from peer urls"):             "\\(none of the members .* answered; the next start asks them again\\)$",
		errors.New("a member that was removed from its cluster"):           "\\(.*if this one was removed, do not start it again, or, .*--recover=auto.*\\)$",
	} {
		advised := bootstrap.ExplainError(err, dir)
		assert.Regexp(t, said, advised.Error())
		assert.ErrorIs(t, advised, err)
		assert.Equal(t, advised, bootstrap.ExplainError(advised, dir), "once is enough")
	}
	for _, text := range []string{"other", "cannot read cluster.json in s3://bucket/etcd/: HTTP status 403 (AccessDenied): permission denied"} {
		other := errors.New(text)
		assert.Equal(t, other, bootstrap.ExplainError(other, dir))
	}
	require.NoError(t, bootstrap.ExplainError(nil, dir))
}
