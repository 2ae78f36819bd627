package recovery

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/etcdconf"
)

func TestWhatAConfigurationSaysOfAMember(t *testing.T) {
	for name, of := range map[string]struct {
		yaml         string
		alone, joins bool
		members      int
	}{
		"alone":                      {"initial-cluster: m-0=http://127.0.0.1:1", true, false, 1},
		"added to one that exists":   {"initial-cluster: m-0=http://127.0.0.1:1\ninitial-cluster-state: existing", false, true, 1},
		"one of several":             {"initial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2", false, false, 2},
		"one that is to be found":    {"discovery-srv: cluster.invalid", false, false, 0},
		"that are found and exist":   {"discovery-srv: cluster.invalid\ninitial-cluster-state: existing", false, true, 0},
		"alone, and nothing is said": {"initial-cluster-state: new", true, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			checked, err := etcdconf.Parse([]byte("name: m-0\ndata-dir: /data\ninitial-advertise-peer-urls: http://127.0.0.1:1\n" + of.yaml))
			require.NoError(t, err)
			member := MemberOf(checked, "/data")
			assert.Equal(t, of.alone, member.Alone)
			assert.Equal(t, of.joins, member.Joins)
			assert.Len(t, member.Members, of.members)
		})
	}
}
