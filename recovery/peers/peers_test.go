package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/member/dataversion"
)

func TestQuery_membership(t *testing.T) {
	for name, test := range map[string]struct {
		action func(*testCluster)
		want   Membership
	}{
		"all list it":        {func(*testCluster) {}, Started},
		"one is unreachable": {func(tc *testCluster) { tc.fakes[0].unreachable.Store(true) }, NoQuorum},
		"no responses":       {func(tc *testCluster) { tc.fakes[0].unreachable.Store(true); tc.fakes[1].unreachable.Store(true) }, Unknown},
		"no member lists it": {func(tc *testCluster) { tc.list = withoutOwn(tc.list) }, Unlisted},
		"it was added":       {func(tc *testCluster) { tc.list = ownUnstarted(99)(tc.list) }, Added},
		"in a new cluster":   {func(tc *testCluster) { tc.list = ownUnstarted(tc.peers.initialID)(tc.list) }, Expected},
		"one omits it":       {func(tc *testCluster) { tc.changeList(0, withoutOwn) }, NoQuorum},
		"one omits it, one has added it": {func(tc *testCluster) {
			tc.list = withoutOwn(tc.list)
			tc.changeList(0, func(list []Member) []Member { return ownUnstarted(99)(append(list, Member{})) })
		}, NoQuorum},
		"one expects it, one lists it as started": {func(tc *testCluster) { tc.changeList(0, ownUnstarted(tc.peers.initialID)) }, NoQuorum},
		"the cluster IDs differ":                  {func(tc *testCluster) { tc.fakes[0].cluster = "def" }, NoQuorum},
		"one expects it, one is unreachable": {func(tc *testCluster) {
			tc.list = ownUnstarted(tc.peers.initialID)(tc.list)
			tc.fakes[1].unreachable.Store(true)
		}, Unknown},
		"responses without a cluster ID": {func(tc *testCluster) { tc.fakes[0].cluster, tc.fakes[1].cluster = "", "no id" }, Unknown},
		"listed under a former name": {func(tc *testCluster) {
			tc.list[2] = member(ownID, "former", "http://127.0.0.1:1")
		}, Started},
		"listed with another URL": {func(tc *testCluster) { tc.list[2] = member(ownID, "m-2", "http://127.0.0.1:3") }, Started},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t)
			test.action(tc)
			c := tc.query()
			assert.Equal(t, test.want, c.Membership)
			assert.Equal(t, test.want != Unknown && test.want != NoQuorum, c.Cluster != "" && c.Membership != NoQuorum)
		})
	}
}

// Query must count members that are not in the configuration, because a member that replaced a configured member
// appears only in responses.
func TestQuery_membersThatAreNotConfigured(t *testing.T) {
	tc := newTestCluster(t)
	tc.peers.others = map[string][]string{"m-0": tc.peers.others["m-0"]}
	assert.Equal(t, Started, tc.query().Membership)
}

func TestQuery_blocked(t *testing.T) {
	for name, test := range map[string]struct {
		action  func(*testCluster)
		message string // part of the error; empty if nothing blocks a replacement
	}{
		"nothing": {func(*testCluster) {}, ""},
		"another learner": {func(tc *testCluster) {
			joins := member(0xc3, "m-3", "http://127.0.0.1:1/none")
			joins.IsLearner = true
			tc.list = append(tc.list, joins)
		}, "m-3 is still a learner"},
		"a URL that is not in initial-cluster": {func(tc *testCluster) {
			tc.list[0] = member(0xc0, "m-0", "http://m-0.another-namespace")
		}, "m-0 at http://m-0.another-namespace, which is not in initial-cluster, so it may be a different cluster"},
		"this member's name with another URL":         {func(tc *testCluster) { tc.list[2] = member(ownID, "m-2", "http://m-2.another-namespace") }, "it may be a different cluster and is not changed"},
		"only one other voter":                        {func(tc *testCluster) { tc.list[1].IsLearner = true }, "the cluster has 2 voting members: the other members do not form a quorum"},
		"another version":                             {func(tc *testCluster) { tc.fakes[1].version = "3.5.21" }, "runs etcd 3.5.21"},
		"the same version, announced as an older one": {func(tc *testCluster) { tc.fakes[1].version = "3.5.27+" + dataversion.Embedded }, ""},
		"an older version with a vendor suffix":       {func(tc *testCluster) { tc.fakes[1].version = "3.5.27+vendor" }, "runs etcd 3.5.27+vendor"},
		"no version":                                  {func(tc *testCluster) { tc.fakes[1].version = "" }, "runs etcd "},
		"a connection to another process":             {func(tc *testCluster) { tc.fakes[1].metrics = activePeers(0xc1, ownID, 1) }, "m-1 is connected to another process"},
		"a connection that has ended":                 {func(tc *testCluster) { tc.fakes[1].metrics = activePeers(0xc1, ownID, 0) }, ""},
		"a connection between other members":          {func(tc *testCluster) { tc.fakes[1].metrics = activePeers(0xc1, 0xc0, 1) }, ""},
		"another process at this member's URL": {func(tc *testCluster) {
			tc.peers.checkOwnURLs = func(context.Context, []string) error { return errors.New("another process responds") }
		}, "checking for 1m0s whether another process is using this member's data: another process responds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t)
			test.action(tc)
			requireMessage(t, tc.query().Blocked, test.message)
		})
	}
}

func TestCheckPending(t *testing.T) {
	tc := newTestCluster(t)
	added := member(0xc3, "", "http://127.0.0.1:1/none")
	added.ClientURLs = nil
	c := Survey{Membership: Started, Members: append(tc.list, added), Own: tc.list[2]}
	require.ErrorContains(t, checkPending(&c), "none was added but has not started yet")
	c = Survey{Membership: Unlisted, Members: append(tc.list[:2:2], added)}
	require.ErrorContains(t, checkPending(&c), "none was added but has not started yet")
}

// In a cluster of two, the other member's list must be accepted, but this member cannot be replaced, because the
// other member cannot change the cluster alone.
func TestQuery_memberOfTwo(t *testing.T) {
	tc := newClusterOfTwo(t)
	c := tc.query()
	assert.Equal(t, Started, c.Membership)
	require.ErrorIs(t, c.Blocked, ErrTooFew)
	assert.EqualError(t, c.Blocked, "the cluster has 2 voting members: the other members do not form a quorum, so this member cannot be replaced")
}

// Query must return Added for a second voter that was added without --learner, even though there is no quorum until
// this voter has started.
func TestQuery_secondVoterThatWasAdded(t *testing.T) {
	tc := newClusterOfTwo(t)
	tc.list = []Member{tc.list[0], member(99, "", "http://127.0.0.1:1")}
	tc.list[1].ClientURLs = nil
	c := tc.query()
	assert.Equal(t, Added, c.Membership)
	assert.Equal(t, "m-1="+tc.fakes[1].URL+",m-2=http://127.0.0.1:1", c.InitialCluster("m-2"))
}

// If this member is not one of the two voters, the list of one voter must not count as a quorum.
func TestQuery_twoOtherVoters(t *testing.T) {
	tc := newClusterOfTwo(t)
	tc.list = []Member{tc.list[0], member(98, "m-9", "http://127.0.0.1:9")}
	assert.Equal(t, NoQuorum, tc.query().Membership)
}

func TestQuery_dataInUseElsewhere(t *testing.T) {
	type step struct {
		after        time.Duration
		count, bytes int // number of connections, and number of bytes received over them
		free         bool
	}
	for name, test := range map[string]struct {
		ownURLs error // result of the check that this member's URLs lead to this process
		steps   []step
	}{
		// A minute without any sign of another process must be enough.
		"no connections": {errors.New("no such host"), []step{
			{0, 0, 0, false},
			{30 * time.Second, 0, 0, false},
			{20 * time.Second, 1, 0, false},
			{20 * time.Second, 0, 0, false},
			{50 * time.Second, 0, 0, false},
			{10 * time.Second, 0, 0, true},
			{2 * time.Minute, 0, 0, false}, // the previous check was too long ago
		}},
		// etcd overcounts connections after sending a snapshot: it counts existing connections twice, but subtracts
		// only one when a connection ends.
		"silent connection": {nil, []step{
			{0, 1, 100, false},
			{3 * time.Second, 1, 100, false},
			{3 * time.Second, 1, 101, false}, // bytes were received
			{3 * time.Second, 1, 101, false},
			{9 * time.Second, 1, 101, false},
			{1 * time.Second, 1, 101, true},
			{1 * time.Second, 1, 102, false},
		}},
	} {
		tc := newTestCluster(t)
		tc.peers.checkOwnURLs = func(context.Context, []string) error { return test.ownURLs }
		for i, step := range test.steps {
			tc.now = tc.now.Add(step.after)
			tc.fakes[0].metrics = activePeers(0xc0, ownID, step.count) + fmt.Sprintf("etcd_network_peer_received_bytes_total{From=\"%x\"} %d\n", ownID, step.bytes)
			assert.Equal(t, step.free, tc.query().Blocked == nil, "%s, step %d", name, i)
		}
	}
}

func TestQuery_outdatedVolume(t *testing.T) {
	for name, test := range map[string]struct {
		self    Self
		action  func(*testCluster)
		message string
	}{
		"up to date":                        {selfWithData(0xabc, ownID, 3), func(*testCluster) {}, ""},
		"of another member":                 {selfWithData(0xabc, 0xc1, 3), func(*testCluster) {}, "the data belongs to m-1, another member of the cluster: volumes were mixed up"},
		"of a replaced member":              {selfWithData(0xabc, 0xc9, 3), func(*testCluster) {}, "the data belongs to member c9, which was replaced by c2"},
		"from before the others joined":     {selfWithData(0xabc, ownID, 1), func(*testCluster) {}, "it lists this member as the only voter, but the cluster has 3 voting members"},
		"only voter, and removed since":     {selfWithData(0xabc, ownID, 1), func(tc *testCluster) { tc.list = withoutOwn(tc.list) }, "it lists this member as the only voter, but the cluster has 2 voting members"},
		"of a replaced member, added again": {selfWithData(0xabc, 0xc9, 3), func(tc *testCluster) { tc.list = ownUnstarted(ownID)(tc.list) }, "the data belongs to member c9, which was replaced by c2"},
		"added, killed at its first start":  {selfWithData(0xabc, ownID, 3), func(tc *testCluster) { tc.list = ownUnstarted(ownID)(tc.list) }, ""},
		"removed since":                     {selfWithData(0xabc, ownID, 3), func(tc *testCluster) { tc.list = withoutOwn(tc.list) }, "the data belongs to member c2, which is no longer in the cluster"},
		"of another cluster":                {selfWithData(0xdef, 0xc9, 3), func(*testCluster) {}, ""},
		"of a renamed member":               {selfWithData(0xabc, 0xc1, 3), func(tc *testCluster) { tc.list = withoutOwn(tc.list) }, ""},
		"lacks an acknowledged entry":       {selfWithData(0xabc, ownID, 3), func(tc *testCluster) { tc.fakes[1].vars = raftStatus(ownID, 101) }, "this member has acknowledged entry 101 to m-1"},
		"has all acknowledged entries":      {selfWithData(0xabc, ownID, 3), func(tc *testCluster) { tc.fakes[1].vars = raftStatus(ownID, 100) }, ""},
		"behind another member":             {selfWithData(0xabc, ownID, 3), func(tc *testCluster) { tc.fakes[1].vars = raftStatus(0xc0, 101) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t)
			test.action(tc)
			requireMessage(t, tc.peers.Query(t.Context(), test.self).Outdated, test.message)
		})
	}
}

func TestSurvey_initialCluster(t *testing.T) {
	tc := newTestCluster(t)
	tc.list = ownUnstarted(99)(tc.list)
	c := tc.query()
	assert.Equal(t, fmt.Sprintf("m-0=%s,m-1=%s,m-2=http://127.0.0.1:1", tc.fakes[0].URL, tc.fakes[1].URL), c.InitialCluster("m-2"))
}

func TestQuery_missingPeers(t *testing.T) {
	tc := newTestCluster(t)
	tc.fakes[1].unreachable.Store(true)
	require.ErrorContains(t, tc.query().Missing, "m-1 does not respond")
	assert.Equal(t, []string{"m-0", "m-1"}, slices.Sorted(maps.Keys(tc.peers.others)))
}

func TestNew_singleMember(t *testing.T) {
	config := embed.NewConfig()
	config.InitialCluster = "default=http://127.0.0.1:1"
	none, err := New(config, Options{})
	require.NoError(t, err)
	assert.Nil(t, none)
}

func TestFetch_errorStatus(t *testing.T) {
	all := newWaitingMembers(t)
	_, err := fetch(t.Context(), all[0].peer, newRawServer(t, "500 some text\r\nContent-Length: 0\r\n\r\n"), nil)
	assert.ErrorContains(t, err, "status 500")
	assert.NotContains(t, err.Error(), "some text")
}

func TestNewOptions(t *testing.T) {
	t.Setenv("ETCDCTL_USER", "root:secret")
	assert.Equal(t, Options{User: "root", Password: "secret"}, NewOptions("", "", "unused"))
	t.Setenv("ETCDCTL_USER", "root")
	t.Setenv("ETCDCTL_PASSWORD", "other")
	assert.Equal(t, Options{CertFile: "c", KeyFile: "k", User: "root", Password: "other"}, NewOptions("c", "k", ""))
	t.Setenv("ETCDCTL_USER", "")
	assert.Equal(t, Options{User: "root", Password: "of root"}, NewOptions("", "", "of root"))
	assert.Empty(t, NewOptions("", "", "").User)
}
