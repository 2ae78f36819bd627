package dataversion

import (
	"testing"

	"etcd-wrapper/exitcode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheckUpgrade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		recorded string
		others   bool
		refused  string
	}{
		{"", true, ""},
		// A new cluster has no version until its last member has started.
		{"3.0.0", true, ""},
		{"3.1.0", true, "upgrade all members to etcd 3.5.26"},
		{"3.4.0", true, "upgrade all members to etcd 3.5.26"},
		{"3.4.0", false, ""},
		{"3.5.0", true, ""},
		{"3.6.0", true, ""},
		{"3.7.0", true, "an etcd-wrapper with etcd 3.7"},
		{"3.7.0", false, "an etcd-wrapper with etcd 3.7"},
		{"3.8.0", true, "an etcd-wrapper with etcd 3.8"},
		{"4.0.0", true, "an etcd-wrapper with etcd 4.0"},
	} {
		err := CheckUpgrade(Parse(c.recorded), c.others)
		if c.refused == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		require.Equal(t, exitcode.BadConfig, exitcode.StatusOf(err, exitcode.EtcdFailed), "%+v", c)
		assert.ErrorContains(t, err, c.refused)
	}
}
