package member

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

func TestDescribeUnreachable(t *testing.T) {
	const here, other = "http://etcd-1.example.org:2380", "http://10.0.0.1:2380"
	for name, c := range map[string]struct {
		name, configured, proxy, excepted, want string
	}{
		"by its log":                    {"etcd-1", here, "", "", "etcd-1 (http://etcd-1.example.org:2380)"},
		"not named yet":                 {"", "", "", "", "http://etcd-1.example.org:2380"},
		"with another address":          {"etcd-1", other, "", "", "etcd-1 (http://etcd-1.example.org:2380, according to etcd's log; initial-cluster has http://10.0.0.1:2380)"},
		"through a proxy":               {"etcd-1", here, "http://user:secret@proxy:3128", "", "etcd-1 (http://etcd-1.example.org:2380, through the proxy http://user:xxxxx@proxy:3128: add etcd-1.example.org to NO_PROXY)"},
		"with an exception for members": {"etcd-1", here, "http://proxy:3128", ".example.org", "etcd-1 (http://etcd-1.example.org:2380)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HTTP_PROXY", c.proxy)
			t.Setenv("http_proxy", c.proxy)
			t.Setenv("NO_PROXY", c.excepted)
			t.Setenv("no_proxy", c.excepted)
			var configured types.URLs
			if c.configured != "" {
				var err error
				configured, err = types.NewURLs([]string{c.configured})
				require.NoError(t, err)
			}
			m := &membership.Member{RaftAttributes: membership.RaftAttributes{PeerURLs: []string{here}}, Attributes: membership.Attributes{Name: c.name}}
			assert.Equal(t, c.want, describeUnreachable(m, configured))
		})
	}
}
