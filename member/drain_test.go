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
			_, err = b.Close()
			require.NoError(t, err)
			assert.Less(t, watch.Duration(), 5*time.Second, "etcd alone waits 7 s in plain text, and for ever over TLS")
			if secure {
				assert.Contains(t, b.log.String(), "does not read its response to KV/Range: its connection is closed")
			}
		})
	}
}
