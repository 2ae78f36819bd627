package member_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
)

func TestOpen_changedNameOrAddress(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(config, before *embed.Config){
		"its name":    func(config, before *embed.Config) { config.AdvertisePeerUrls = before.AdvertisePeerUrls },
		"its address": func(config, before *embed.Config) { config.Name = before.Name },
		"both":        func(_, _ *embed.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _, before := stoppedMember(t)
			config := renamed(t, dir)
			change(config, before)
			config.InitialCluster = config.InitialClusterFromName(config.Name)
			b := benchWith(t, config)
			require.NoError(t, b.Open(soon(t)))
			b.mustClose(t)
			assert.Equal(t, name == "both", strings.Contains(b.log.String(), "a different name and peer URLs"), "it is warned of")
		})
	}
}

// renamed returns a configuration with a different name and the same data directory.
func renamed(t *testing.T, dir string) *embed.Config {
	t.Helper()
	other := config(t, dir)
	other.Name = "etcd-1"
	other.InitialCluster = other.InitialClusterFromName(other.Name)
	return other
}
