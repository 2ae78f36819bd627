package dataversion_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/member/dataversion"
)

func TestNewMember_startsAt3_5(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.ours(dataversion.Of3_5, cluster(n), "new")
	n.ready()
	// etcd may be serving before the leader has set the cluster version.
	first := "not_decided"
	n.eventually("its cluster has a version", func() bool {
		first = n.versions().Cluster
		return first != "not_decided"
	})
	require.Equal(t, "3.5.0", first, "the first version already")
	require.Regexp(t, `^3\.5\.\d+\+3\.6\.\d+$`, n.versions().Server)
	n.awaitWord("the cluster is at version 3.5")
	require.NotContains(t, n.log.String(), `"cluster-version":"3.6"`)
	n.stop()
}

func TestDowngrade_dataAt3_6(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.ours(dataversion.Of3_6, cluster(n), "new")
	n.at(dataversion.Of3_6)
	n.put(0, 5)
	n.kill()

	n.ours(dataversion.Of3_5, cluster(n), "new")
	n.at(dataversion.Of3_5)
	n.awaitWord(`"phase":"holding"`)
	require.Equal(t, "true", n.downgrading(), "until it has been started again")
	n.kill()

	n.ours(dataversion.Of3_5, cluster(n), "new")
	n.holds(5)
	n.eventually("etcd ends the downgrade", func() bool { return n.downgrading() == "false" })
	n.awaitWord(`"phase":"kept"`)
	n.at(dataversion.Of3_5)
	n.stop()

	n.ours(dataversion.Of3_6, cluster(n), "new")
	n.at(dataversion.Of3_6)
	n.holds(5)
	n.stop()
}

func TestDowngrade_endsForTheNewerVersion(t *testing.T) {
	optIn(t)
	n := newNode(t)
	n.ours(dataversion.Of3_6, cluster(n), "new")
	n.at(dataversion.Of3_6)
	n.stop()
	n.ours(dataversion.Of3_5, cluster(n), "new")
	n.at(dataversion.Of3_5)
	n.stop()
	n.ours(dataversion.Of3_6, cluster(n), "new")
	n.at(dataversion.Of3_6)
	require.Equal(t, "false", n.downgrading())
	n.stop()
}
