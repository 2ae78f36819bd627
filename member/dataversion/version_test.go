package dataversion

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"
)

func TestOnlyTheTwoVersionsCanBeWanted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"3.5", "3.6"} {
		var v Version
		require.NoError(t, v.UnmarshalText([]byte(text)))
		require.Equal(t, text, v.String())
	}
	for _, text := range []string{"", "3", "3.4", "3.7", "3.5.0", "v3.5", " 3.5", "3.5 "} {
		var v Version
		require.ErrorContains(t, v.UnmarshalText([]byte(text)), "use 3.5 or 3.6", "%q", text)
	}
}

func TestVersionsAreReadAndCompared(t *testing.T) {
	t.Parallel()
	require.Equal(t, Of3_5, Parse("3.5.0"))
	require.Equal(t, Of3_6, Parse("3.6"))
	require.Equal(t, Version{}, Parse("not_decided"))
	require.Equal(t, Version{}, Parse(""))
	require.True(t, Of3_5.Less(Of3_6))
	require.False(t, Of3_5.Less(Of3_5))
	require.True(t, Version{3, 9}.Less(Version{3, 10}))
	require.True(t, Version{}.Less(Version{3, 0}))
	require.True(t, Version{3, 7}.Less(Version{4, 0}))
}

// It changes a name that belongs to the process, so that no other test runs at the same time.
func TestAnOlderVersionIsAnnouncedOnlyWhereTheDataAllowIt(t *testing.T) {
	t.Cleanup(func() { version.Version = Embedded })
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Version{}), "a new cluster")
	require.Equal(t, version.Version, "3.5.27+"+Embedded)
	require.Equal(t, Embedded, Announce(Of3_5, Of3_6), "etcd would die on such data")
	require.Equal(t, version.Version, Embedded)
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Of3_5))
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Version{3, 4}))
	require.Equal(t, Embedded, Announce(Of3_6, Of3_5))
}

func TestWhatIsBehindAnAnnouncedNameIsKnown(t *testing.T) {
	t.Cleanup(func() { version.Version = Embedded })
	require.Equal(t, Embedded, Truth(Announce(Of3_5, Of3_5)))
	require.Equal(t, Embedded, Truth(Announce(Of3_6, Of3_6)))
	require.Equal(t, "3.5.27", Truth("3.5.27"))
	require.Equal(t, "3.5.27+vendor", Truth("3.5.27+vendor"))
	require.Empty(t, Truth(""))
}
