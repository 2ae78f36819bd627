package member_test

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"etcd-wrapper/cmd/suites/certificates"
	"etcd-wrapper/cmd/suites/harness"
)

func TestClose_unreadResponse(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain text": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			config, transportSecurity := config(t, t.TempDir()), insecure.NewCredentials()
			if secure {
				authority := certificates.NewAuthority(t, "authority")
				pair := authority.Issue("server")
				config.ClientTLSInfo = transport.TLSInfo{CertFile: pair.Cert, KeyFile: pair.Key}
				config.ListenClientUrls[0].Scheme, config.AdvertiseClientUrls[0].Scheme = "https", "https"
				transportSecurity = credentials.NewTLS(&tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12})
			}
			b := benchWith(t, config)
			require.NoError(t, b.Open(soon(t)))
			for i := range 16 {
				_, err := b.Server().Put(soon(t), &etcdserverpb.PutRequest{Key: []byte{byte(i)}, Value: []byte(strings.Repeat("x", 1<<20))})
				require.NoError(t, err)
			}
			connection, err := grpc.NewClient(config.ListenClientUrls[0].Host, grpc.WithTransportCredentials(transportSecurity))
			require.NoError(t, err)
			defer connection.Close()
			unread, err := connection.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/etcdserverpb.KV/Range")
			require.NoError(t, err)
			require.NoError(t, unread.SendMsg(&etcdserverpb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}))
			_, err = unread.Header()
			require.NoError(t, err, "the response is on its way")

			watch := harness.StartWatch()
			b.mustClose(t)
			assert.Less(t, watch.Duration(), 5*time.Second, "etcd alone waits 7 s in plain text, and for ever over TLS")
			if secure {
				assert.Contains(t, b.log.String(), "is not reading the response to KV/Range")
			}
		})
	}
}

// Two of three members, including the leader, stop at the same time, as if a StatefulSet were scaled from three to
// one.
func TestClose_unwantedMembersLeave(t *testing.T) {
	t.Parallel()
	members := three(t)
	stays, client := members[1], members[1].client(t)
	_, err := client.Put(soon(t), "key", "before")
	require.NoError(t, err)
	closed := make(chan error, 2)
	for _, b := range []*bench{members[0], members[2]} {
		b.unwanted.Store(true)
		go func() {
			_, err := b.Close()
			closed <- err
		}()
	}
	for range 2 {
		require.NoError(t, <-closed)
	}
	left, err := client.MemberList(soon(t))
	require.NoError(t, err)
	require.Len(t, left.Members, 1)
	assert.Equal(t, stays.config.Name, left.Members[0].Name)
	_, err = client.Put(soon(t), "key", "after")
	require.NoError(t, err, "it is its own quorum")
	for _, b := range []*bench{members[0], members[2]} {
		assert.Contains(t, b.log.String(), "left the cluster")
	}
}

// The last member must not remove itself from the cluster.
func TestClose_lastMemberStays(t *testing.T) {
	b := openBench(t)
	b.unwanted.Store(true)
	opened, err := b.Close()
	require.NoError(t, err)
	assert.True(t, opened)
	assert.NotContains(t, b.log.String(), "scaled down")
}
