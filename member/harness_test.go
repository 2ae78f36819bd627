package member_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"etcd-wrapper/cmd/suites/harness"
	"etcd-wrapper/cmd/suites/ports"
	"etcd-wrapper/internal/logtest"
	"etcd-wrapper/member"
	"etcd-wrapper/member/maintenance"
)

// TestMain runs more parallel tests than there are CPUs, because these tests mostly wait.
func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// patience is the timeout for each wait in these tests.
const patience = 3 * time.Minute

// tick is the polling interval of the tests.
const tick = 5 * time.Millisecond

// bench is a member under test, with its log and the reason for its crash, if any.
type bench struct {
	*member.Member
	config  *embed.Config
	log     *logtest.Lines
	crashed chan error

	unwanted atomic.Bool // the member must leave, because the cluster was scaled down

	closing sync.Once
	opened  bool
	closed  error
}

// Close closes the member. Further calls return the result of the first one.
func (b *bench) Close() (opened bool, err error) {
	b.closing.Do(func() { b.opened, b.closed = b.Member.Close() })
	return b.opened, b.closed
}

// mustClose closes the member and fails the test if the close is not clean.
func (b *bench) mustClose(t *testing.T) {
	t.Helper()
	_, err := b.Close()
	require.NoError(t, err)
}

func newBench(t *testing.T, dir string) *bench {
	t.Helper()
	return benchWith(t, config(t, dir))
}

// openBench opens a new member that is closed when the test ends.
func openBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, newDir(t))
	require.NoError(t, b.Open(soon(t)))
	t.Cleanup(func() { _, _ = b.Close() })
	return b
}

func benchWith(t *testing.T, config *embed.Config) *bench {
	t.Helper()
	return benchMaintained(t, config, maintenance.Options{})
}

// benchMaintained returns a bench with the given maintenance options.
func benchMaintained(t *testing.T, config *embed.Config, options maintenance.Options) *bench {
	t.Helper()
	return benchOptions(config, func(o *member.Options) { o.Maintenance = options })
}

// benchOptions returns a bench whose options have been modified by change.
func benchOptions(config *embed.Config, change func(*member.Options)) *bench {
	b := &bench{config: config, log: &logtest.Lines{}, crashed: make(chan error, 1)}
	options := member.Options{
		Log: zerolog.New(b.log), Crash: func(reason error) { b.crashed <- reason }, CloseTimeout: 16 * time.Second, DataInUse: func() {},
		Unwanted: func(context.Context) bool { return b.unwanted.Load() },
	}
	change(&options)
	b.Member = member.New(config, options)
	return b
}

// newDir returns a path for a data directory, without creating it.
func newDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "new.etcd")
}

// clusterConfigs returns configurations for the members of a new cluster.
func clusterConfigs(t *testing.T, count int) (all []*embed.Config) {
	t.Helper()
	var names []string
	for i := range count {
		c := config(t, newDir(t))
		c.Name = fmt.Sprintf("etcd-%d", i)
		names = append(names, c.InitialClusterFromName(c.Name))
		all = append(all, c)
	}
	for _, c := range all {
		c.InitialCluster = strings.Join(names, ",")
		c.ElectionMs = 5000 // prevents unwanted elections on a busy machine
	}
	return all
}

// openAll opens all members of a cluster concurrently.
func openAll(t *testing.T, members []*bench) {
	t.Helper()
	opened := make(chan error, len(members))
	for _, b := range members {
		go func() { opened <- b.Open(soon(t)) }()
	}
	for range members {
		require.NoError(t, <-opened)
	}
}

// config returns the configuration of a single-member cluster on free loopback ports.
func config(t *testing.T, dir string) *embed.Config {
	t.Helper()
	config := embed.NewConfig()
	config.Dir, config.Name = dir, "etcd-0"
	client, peer := freeURL(t), freeURL(t)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.BcryptCost = 4 // with the default cost, hashing a password can take a minute on a busy machine
	return config
}

func freeURL(t *testing.T) url.URL {
	t.Helper()
	return url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Lease(t))}
}

func (b *bench) client(t *testing.T) *clientv3.Client {
	t.Helper()
	return connect(t, "", "", b)
}

// connect returns a client for the given members that authenticates as user, or an anonymous client if user is empty.
func connect(t *testing.T, user, password string, members ...*bench) *clientv3.Client {
	t.Helper()
	config := clientv3.Config{Username: user, Password: password, DialTimeout: patience, Logger: zap.NewNop()}
	for _, b := range members {
		config.Endpoints = append(config.Endpoints, endpoint(b.config))
	}
	client, err := clientv3.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
