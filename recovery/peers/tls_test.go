package peers

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/cmd/suites/certificates"
)

func autoTLS(config *embed.Config) { config.PeerAutoTLS = true }

// etcd creates its certificates when it starts. Before that, members use self-signed certificates, which are equally
// trustworthy.
func TestAutoTLS_members(t *testing.T) {
	all := rolledWith(t, "https", autoTLS)
	for _, p := range all {
		require.NotNil(t, p)
		p.Publish(Self{Volume: Nothing})
	}
	c := all[0].Query(t.Context(), Self{Volume: Nothing})
	assert.NoError(t, c.Missing)
	assert.Equal(t, Founding, c.Membership)
	all[1].Publish(Self{Volume: Data})
	c = all[0].Query(t.Context(), Self{Volume: Nothing})
	assert.Equal(t, Unknown, c.Membership)
	require.NoError(t, all[2].requestOwnURLs(t.Context(), all[2].urls))
}

// The status must be encrypted in transit.
func TestAutoTLS_noPlainText(t *testing.T) {
	all := rolledWith(t, "https", autoTLS)
	all[0].Publish(Self{Volume: Nothing})
	at, err := url.Parse(all[0].urls[0])
	require.NoError(t, err)
	at.Scheme = "http"
	_, err = fetch(t.Context(), http.DefaultClient, at.String()+statusPath, &Status{})
	require.Error(t, err)
}

// Configured certificates take precedence over auto-tls, including those of the other members.
func TestAutoTLS_withCertificates(t *testing.T) {
	strange := httptest.NewTLSServer(http.NotFoundHandler())
	defer strange.Close()
	pair := certificates.NewAuthority(t, "peers").Issue("peer")
	all := rolledWith(t, "https", func(config *embed.Config) {
		config.PeerAutoTLS, config.ClientAutoTLS = true, true
		config.PeerTLSInfo.CertFile, config.PeerTLSInfo.KeyFile = pair.Cert, pair.Key
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = pair.Cert, pair.Key
	})
	for _, by := range []*http.Client{all[0].peer, all[0].client} {
		var unknown *tls.CertificateVerificationError
		_, err := fetch(t.Context(), by, strange.URL, nil)
		assert.ErrorAs(t, err, &unknown)
	}
}

// Without auto-tls, a self-signed certificate must not be trusted.
func TestAutoTLS_selfSignedCertificates(t *testing.T) {
	strange := httptest.NewTLSServer(http.NotFoundHandler())
	defer strange.Close()
	for _, test := range []struct{ peer, client bool }{{false, false}, {true, false}, {false, true}} {
		all := rolledWith(t, "https", func(config *embed.Config) { config.PeerAutoTLS, config.ClientAutoTLS = test.peer, test.client })
		for _, from := range []struct {
			by       *http.Client
			believes bool
		}{{all[0].peer, test.peer}, {all[0].client, test.client}} {
			var unknown *tls.CertificateVerificationError
			_, err := fetch(t.Context(), from.by, strange.URL, nil)
			if from.believes {
				assert.ErrorContains(t, err, "status 404")
			} else {
				assert.ErrorAs(t, err, &unknown)
			}
		}
	}
}

// Secrets may be renewed while a member is waiting, but TLS reads the CA bundle only once.
func TestQuery_replacedCAs(t *testing.T) {
	right, wrong := certificates.NewAuthority(t, "peers"), certificates.NewAuthority(t, "others")
	pair, bundle := right.Issue("peer"), filepath.Join(t.TempDir(), "bundle.pem")
	renew := func(by *certificates.Authority) {
		content, err := os.ReadFile(by.Bundle())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(bundle, content, 0o600))
	}
	renew(wrong)
	all := rolledWith(t, "https", func(config *embed.Config) {
		config.PeerTLSInfo = transport.TLSInfo{CertFile: pair.Cert, KeyFile: pair.Key, TrustedCAFile: bundle, ClientCertAuth: true}
	})
	survey := func() (last Survey) {
		for _, p := range all {
			last = p.Query(t.Context(), Self{Volume: Nothing})
		}
		return last
	}
	assert.ErrorContains(t, survey().Missing, "unknown authority")
	require.NoError(t, os.WriteFile(bundle, nil, 0o600)) // the bundle may be empty for a moment while it is renewed
	survey()
	renew(right)
	survey()
	c := survey()
	assert.NoError(t, c.Missing)
	assert.Equal(t, Founding, c.Membership)
}
