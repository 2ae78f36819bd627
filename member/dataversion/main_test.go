package dataversion_test

import (
	"context"
	"encoding/json"
	"flag"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/member"
	"etcd-wrapper/member/dataversion"
	"etcd-wrapper/recovery/peers"
)

// all also runs the tests that are slow or need etcd 3.5.
var all = flag.Bool("downgrade", false, "run also the tests that take long or start etcd 3.5 on the data")

// asMember is the environment variable that makes the test binary run a member with the given configuration.
const asMember = "DATAVERSION_TEST_MEMBER"

func TestMain(m *testing.M) {
	if configuration := os.Getenv(asMember); configuration != "" {
		os.Exit(runMember(configuration))
	}
	os.Exit(m.Run())
}

// settings configure a member process.
type settings struct {
	Name, Dir, Client, Peer, Cluster, State, Wanted string
}

// runMember runs a member in this process until SIGTERM, then closes it cleanly.
func runMember(configuration string) int {
	var s settings
	if err := json.Unmarshal([]byte(configuration), &s); err != nil {
		panic(err)
	}
	log := zerolog.New(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := s.etcd()
	m := member.New(config, member.Options{
		Log: log, DataVersion: dataversion.Parse(s.Wanted),
		Crash: func(reason error) {
			log.Error().Err(reason).Msg("crashed")
			os.Exit(2)
		},
		AwaitPeers: func(ctx context.Context, report func(string)) (dataversion.Version, error) {
			others, err := peers.New(config, peers.Options{})
			if err != nil {
				panic(err)
			}
			defer others.Close()
			return others.AwaitVersion(ctx, peers.DowngradeWait, report)
		},
	})
	err := m.Open(ctx)
	if err == nil {
		err = m.Watch(ctx)
	}
	_, closed := m.Close()
	if ctx.Err() == nil || closed != nil {
		log.Error().AnErr("closed", closed).Err(err).Msg("ended")
		return 70
	}
	return 0
}

func (s settings) etcd() *embed.Config {
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialCluster, config.ClusterState = s.Name, s.Dir, s.Cluster, s.State
	client, peer := parse(s.Client), parse(s.Peer)
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.UnsafeNoFsync = true // data survives a killed process even without fsync
	return config
}

func parse(raw string) []url.URL {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return []url.URL{*u}
}
