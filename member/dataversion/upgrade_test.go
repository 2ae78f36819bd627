package dataversion

import (
	"errors"
	"testing"
	"time"

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
		{"3.0.0", true, ""}, // not decided yet: a new cluster whose last member is late
		{"3.1.0", true, "upgrade all members to etcd 3.5.26"},
		{"3.4.0", true, "upgrade all members to etcd 3.5.26"},
		{"3.4.0", false, ""},
		{"3.5.0", true, ""},
		{"3.6.0", true, ""},
		{"3.7.0", true, "the etcd-wrapper that has etcd 3.7"},
		{"3.7.0", false, "the etcd-wrapper that has etcd 3.7"},
		{"3.8.0", true, "the etcd-wrapper that has etcd 3.8"},
		{"4.0.0", true, "the etcd-wrapper that has etcd 4.0"},
	} {
		err := CheckUpgrade(Parse(c.recorded), c.others)
		if c.refused == "" {
			assert.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorAs(t, err, new(*UpgradeError), "%+v", c)
		assert.ErrorContains(t, err, c.refused)
	}
}

func TestNewMemberDoesNotJoinOldPeers(t *testing.T) {
	t.Parallel()
	for server, refused := range map[string]bool{"3.4.34": true, "3.5.27": false, "3.5.27+3.6.16": false, "3.7.1": false, "odd": false} {
		// The peers have not decided on a version, because this member has not started yet.
		url := serving(t, voice(server, "3.0.0", 0))
		_, err := joins(t, silent(t), peer(t, "3.6.0", 0), url).await(t.Context(), time.Minute, func(string) { t.Error("it waits") })
		assert.Equal(t, refused, errors.As(err, new(*UpgradeError)), "%s: %v", server, err)
	}
}
