package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

// A certificate of a stranger, or a URL with a password, ends up in errors, and those in the log.
func TestTheLogShowsNeitherPasswordsNorWhatATerminalObeys(t *testing.T) {
	for _, format := range []string{"json", "console"} {
		var out strings.Builder
		log := (&startCommand{LogFormat: format, LogLevel: "info"}).newLog(&out)
		log.Warn().Str("error", "x509: \x1b[2J\u009b31m").Strs("urls", []string{"http://user:hunter2@etcd:2379", "\u009b31m"}).
			Msg("certificate of \x1b]0;title\a http://user:hunter2@etcd:2379")
		for _, harm := range []string{"\x1b", "\a", "\u009b", "hunter2"} {
			require.NotContains(t, out.String(), harm, format)
		}
		require.Contains(t, out.String(), "redacted@etcd:2379")
	}
}

// The path of a certificate may lead to a pipe that nobody writes to.
func TestACertificateThatBlocksDelaysNobody(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	told := make(chan int, 1)
	go func() {
		c := newCertificates(&startCommand{SidecarCAPath: fifo, EtcdCertPath: os.DevNull}, zerolog.Nop())
		c.add(embed.NewConfig())
		told <- len(c.now())
	}()
	select {
	case count := <-told:
		require.Zero(t, count)
	case <-time.After(10 * time.Second):
		require.Fail(t, "it waits for the other end of the pipe")
	}
}
