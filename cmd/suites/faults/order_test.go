package faults_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"etcd-wrapper/cmd/suites/harness"
)

// order records in which order a process closes the database and writes the exit record. It uses inotify, because the
// log of a killed process may be incomplete.
type order struct {
	t      *testing.T
	events int    // inotify file descriptor
	record string // file name of the exit record
}

// The inotify events that the test uses.
const (
	databaseClosed = "a process that had opened the database for writing has closed it"
	recordWritten  = "the exit record has been renamed to its final name"
)

// watchOrder starts recording events, or returns nil if the pod has no database yet.
func watchOrder(p *harness.Pod) *order {
	p.T.Helper()
	if _, err := os.Stat(p.DBPath()); err != nil {
		return nil
	}
	events, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(p.T, err)
	p.T.Cleanup(func() { _ = unix.Close(events) })
	_, err = unix.InotifyAddWatch(events, p.DBPath(), unix.IN_CLOSE_WRITE)
	require.NoError(p.T, err)
	_, err = unix.InotifyAddWatch(events, filepath.Dir(p.RecordPath()), unix.IN_MOVED_TO)
	require.NoError(p.T, err)
	return &order{p.T, events, filepath.Base(p.RecordPath())}
}

// wasClosedFirst reports whether the database was closed before the exit record was written. It returns false if one
// of these events is missing.
func (o *order) wasClosedFirst() bool {
	if o == nil {
		return false
	}
	o.t.Helper()
	events := o.read()
	closed, written := slices.Index(events, databaseClosed), slices.Index(events, recordWritten)
	return closed >= 0 && closed < written
}

func (o *order) read() (events []string) {
	o.t.Helper()
	buffer := make([]byte, 64<<10)
	n, err := unix.Read(o.events, buffer)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	require.NoError(o.t, err)
	for rest := buffer[:n]; len(rest) > 0; {
		length := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
		name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:length], "\x00"))
		switch mask := binary.NativeEndian.Uint32(rest[4:]); {
		case mask&unix.IN_Q_OVERFLOW != 0:
			require.Fail(o.t, "the kernel dropped events")
		case mask&unix.IN_CLOSE_WRITE != 0:
			events = append(events, databaseClosed)
		case mask&unix.IN_MOVED_TO != 0 && name == o.record:
			events = append(events, recordWritten)
		}
		rest = rest[length:]
	}
	return events
}
