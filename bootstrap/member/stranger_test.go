package member_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
)

func TestTheDataOfAnotherMemberAreRefused(t *testing.T) {
	dir, _ := born(t)
	before := tree(t, dir)
	b := benchWith(t, renamed(t, dir))
	require.ErrorContains(t, b.Open(soon(t)), `is that of member "etcd-0" at ["http://127.0.0.1:`)
	opened, _ := b.Close()
	assert.True(t, opened, "the next start must not take them for good")
	assert.Equal(t, before, tree(t, dir))
}

// A member may get another name, or another address, and with force-new-cluster both.
func TestAMemberMayChange(t *testing.T) {
	for name, change := range map[string]func(config, before *embed.Config){
		"its name":    func(config, before *embed.Config) { config.AdvertisePeerUrls = before.AdvertisePeerUrls },
		"its address": func(config, before *embed.Config) { config.Name = before.Name },
		"all":         func(config, _ *embed.Config) { config.ForceNewCluster = true },
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, before := bornOf(t)
			config := renamed(t, dir)
			change(config, before)
			config.InitialCluster = config.InitialClusterFromName(config.Name)
			b := benchWith(t, config)
			require.NoError(t, b.Open(soon(t)))
			_, err := b.Close()
			require.NoError(t, err)
		})
	}
}

// renamed is the configuration of another member on the same directory.
func renamed(t *testing.T, dir string) *embed.Config {
	t.Helper()
	other := config(t, dir)
	other.Name = "etcd-1"
	other.InitialCluster = other.InitialClusterFromName(other.Name)
	return other
}
