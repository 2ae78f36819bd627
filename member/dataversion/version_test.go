package dataversion

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"
)

func TestVersion_parseAndLess(t *testing.T) {
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

// The test is not parallel because the announced version is global.
func TestAnnounce(t *testing.T) {
	t.Cleanup(func() { version.Version = Embedded })
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Version{}), "a new cluster")
	require.Equal(t, version.Version, "3.5.27+"+Embedded)
	require.Equal(t, Embedded, Announce(Of3_5, Of3_6), "etcd would die on such data")
	require.Equal(t, version.Version, Embedded)
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Of3_5))
	require.Equal(t, "3.5.27+"+Embedded, Announce(Of3_5, Version{3, 4}))
	require.Equal(t, Embedded, Announce(Of3_6, Of3_5))
}

func TestActualVersion(t *testing.T) {
	t.Cleanup(func() { version.Version = Embedded })
	require.Equal(t, Embedded, ActualVersion(Announce(Of3_5, Of3_5)))
	require.Equal(t, Embedded, ActualVersion(Announce(Of3_6, Of3_6)))
	require.Equal(t, "3.5.27", ActualVersion("3.5.27"))
	require.Equal(t, "3.5.27+vendor", ActualVersion("3.5.27+vendor"))
	require.Empty(t, ActualVersion(""))
}
