package etcdconf_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/etcdconf"
)

func TestAConfigurationForJoiningHasTheMembersThatThereAre(t *testing.T) {
	document, err := etcdconf.Joining([]byte("# ours\nname: m-0\ninitial-cluster: m-0=http://127.0.0.1:1\nquota-backend-bytes: 8589934592\n"),
		"m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2")
	require.NoError(t, err)
	assert.YAMLEq(t, "name: m-0\ninitial-cluster: m-0=http://127.0.0.1:1,m-1=http://127.0.0.1:2\ninitial-cluster-state: existing\nquota-backend-bytes: 8589934592\n",
		string(document))
	assert.Contains(t, string(document), "8589934592", "an integer stays one")

	_, err = etcdconf.Joining([]byte("- no mapping"), "m-0=http://127.0.0.1:1")
	require.Error(t, err)
}
