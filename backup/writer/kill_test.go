package writer

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store/folder"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/cmd/suites/etcdtest"
	"etcd-wrapper/member/maintenance"
)

var kills = flag.Int("kills", 3, "how often a process that makes backups is killed")

// TestMain doubles as the process that is killed: `<test binary> child <directory> <client URL> <peer URL> <revision>`.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "child" {
		if err := child(os.Args[2], os.Args[3], os.Args[4], os.Args[5] == "end"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "8") // unless the command line says otherwise: these tests wait more than they compute
	os.Exit(m.Run())
}

// child runs etcd with backups into a folder and prints each revision that it was told is in the store. It writes until it is
// killed; or flushes and ends.
func child(dir, client, peer string, end bool) error {
	clientURL, _ := url.Parse(client)
	peerURL, _ := url.Parse(peer)
	etcd, err := embed.StartEtcd(etcdtest.Config(filepath.Join(dir, "data"), *clientURL, *peerURL))
	if err != nil {
		return err
	}
	defer etcd.Close()
	<-etcd.Server.ReadyNotify()
	places, err := folder.New(filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	writer, err := New(Options{
		Archive: archive.New(places, keys), Etcd: Server(etcd.Server), Interval: 20 * time.Millisecond, SpoolDir: filepath.Join(dir, "spool"), SpoolLimit: 1 << 30,
		DataDir: filepath.Join(dir, "data"), Session: archive.NewID(), Gate: &maintenance.Gate{}, Now: time.Now,
		Schedule: func(_ string, after time.Time) time.Time { return after.Add(300 * time.Millisecond) }, Log: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go writer.Run(ctx)
	defer func() { cancel(); <-writer.ended }()
	if end {
		flush, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return writer.Flush(flush)
	}
	return writeForEver(ctx, client, writer)
}

func writeForEver(ctx context.Context, endpoint string, writer *Writer) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		answer, err := client.Put(ctx, fmt.Sprint("key", i%50), fmt.Sprint(i))
		if err != nil {
			return err
		}
		if i%100 == 99 {
			writer.BeforeCompaction(ctx)
			if _, err := client.Compact(ctx, answer.Header.Revision-20); err != nil {
				return err
			}
		}
		fmt.Println(writer.Facts().Stored)
	}
}

// victim starts the child and returns its output.
func victim(t *testing.T, dir string, client, peer url.URL, mode string) (*exec.Cmd, io.Reader) {
	t.Helper()
	command := exec.Command(os.Args[0], "child", dir, client.String(), peer.String(), mode)
	command.Stderr = t.Output()
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	return command, output
}

func TestNothingThatWasStoredIsLostHoweverOftenTheProcessIsKilled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "store"), 0o700))
	client, peer := etcdtest.FreeURL(t), etcdtest.FreeURL(t)
	places, err := folder.New(filepath.Join(dir, "store"))
	require.NoError(t, err)
	var stored int64
	for range *kills {
		command, output := victim(t, dir, client, peer, "write")
		lines := bufio.NewScanner(output)
		for left := 50 + rand.IntN(500); left > 0 && lines.Scan(); left-- {
			var told int64
			_, err := fmt.Sscan(lines.Text(), &told)
			require.NoError(t, err)
			stored = max(stored, told)
		}
		require.NoError(t, command.Process.Kill())
		_, _ = io.Copy(io.Discard, output)
		require.ErrorContains(t, command.Wait(), "killed")
		if stored > 0 {
			path, err := archive.New(places, keys).Find(t.Context(), archive.Target{})
			require.NoError(t, err)
			assert.GreaterOrEqual(t, path.Revision, stored)
		}
	}
	command, _ := victim(t, dir, client, peer, "end")
	require.NoError(t, command.Wait())

	history, err := archive.New(places, keys).History(t.Context())
	require.NoError(t, err)
	assert.Len(t, history.Newest().Chains, 1)
	found, _, path := kept(t, places, archive.Target{})
	own := etcdtest.Rows(t, filepath.Join(dir, "data", "member", "snap", "db"))
	own = own[len(own)-20:] // the ones before may be compacted in one place and not in the other
	require.GreaterOrEqual(t, len(found), len(own))
	etcdtest.RequireSameRows(t, own, found[len(found)-len(own):])
	assert.GreaterOrEqual(t, path.Revision, stored)
}

// What it asked for at that moment happens or not, and nothing is heard of it.
func TestNothingIsLostWhereverItDiesAndTheChainGoesOn(t *testing.T) {
	s := newStand(t)
	s.options.Interval = 20 * time.Millisecond
	for _, happens := range []bool{false, true} {
		for last := 1; s.died(last, happens) >= last; last++ {
		}
	}
}

// died runs it on an empty store until the call, then on, and returns how many calls the first run made.
func (s *stand) died(last int, happens bool) int {
	s.Helper()
	s.store = memory.New()
	if happens {
		s.store.Inject(memory.Fault{After: last - 1, Times: 1, Hang: true, ReplyLost: true})
	}
	s.store.Inject(memory.Fault{After: last - 1, Hang: true})
	s.options.SpoolDir = filepath.Join(s.TempDir(), "spool")
	s.run()
	var confirmed int64
	for i := range 4 {
		written := s.put("a", fmt.Sprint(last, i))
		s.eventually(func(f Facts) bool { return f.Stored >= written || len(s.store.Calls()) >= last }, "it dies or goes on")
		confirmed = max(confirmed, s.Facts().Stored)
	}
	calls := len(s.store.Calls())
	s.end()
	s.store.Heal()
	found, err := s.backups().Find(s.Context(), archive.Target{})
	if confirmed > 0 {
		require.NoError(s, err)
		assert.GreaterOrEqual(s, found.Revision, confirmed, "what was stored is there, call %d", last)
	}
	s.run()
	written := s.put("a", "afterwards")
	s.requireWhole()
	s.end()
	assert.GreaterOrEqual(s, s.Facts().Stored, written)
	s.requireNothingLoose()
	return calls
}
