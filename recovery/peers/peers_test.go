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
		action func(*town)
		want   Membership
	}{
		"all know it":        {func(*town) {}, Started},
		"one is away":        {func(w *town) { w.fakes[0].away.Store(true) }, Claimed},
		"no member answers":  {func(w *town) { w.fakes[0].away.Store(true); w.fakes[1].away.Store(true) }, Unknown},
		"no member lists it": {func(w *town) { w.list = without(w.list) }, Unlisted},
		"it was added":       {func(w *town) { w.list = unstarted(99)(w.list) }, Added},
		"it is expected":     {func(w *town) { w.list = unstarted(w.peers.initialID)(w.list) }, Expected},
		"one has forgotten":  {func(w *town) { w.alter(0, without) }, Claimed},
		"one member does not list it": {func(w *town) {
			w.list = without(w.list)
			w.alter(0, func(list []Member) []Member { return unstarted(99)(append(list, Member{})) })
		}, Claimed},
		"one expects it, one has it as lost": {func(w *town) { w.alter(0, unstarted(w.peers.initialID)) }, Claimed},
		"one lies about its cluster":         {func(w *town) { w.fakes[0].cluster = "def" }, Claimed},
		"one expects it, one is not there yet": {func(w *town) {
			w.list = unstarted(w.peers.initialID)(w.list)
			w.fakes[1].away.Store(true)
		}, Unknown},
		"something else answers": {func(w *town) { w.fakes[0].cluster, w.fakes[1].cluster = "", "no id" }, Unknown},
		"it has another name there": {func(w *town) {
			w.list[2] = member(own, "former", "http://127.0.0.1:1")
		}, Started},
		"it has another URL there": {func(w *town) { w.list[2] = member(own, "m-2", "http://127.0.0.1:3") }, Started},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			test.action(w)
			c := w.ask()
			assert.Equal(t, test.want, c.Membership)
			assert.Equal(t, test.want != Unknown && test.want != Claimed, c.Cluster != "" && c.Membership != Claimed)
		})
	}
}

// Query must count members that are not in the configuration, because a member that replaced a configured member
// appears only in responses.
func TestQuery_membersThatAreNotConfigured(t *testing.T) {
	w := newTown(t)
	w.peers.others = map[string][]string{"m-0": w.peers.others["m-0"]}
	assert.Equal(t, Started, w.ask().Membership)
}

func TestQuery_blocked(t *testing.T) {
	for name, test := range map[string]struct {
		action  func(*town)
		message string // empty if nothing blocks a replacement
	}{
		"nothing": {func(*town) {}, ""},
		"another learner": {func(w *town) {
			joins := member(0xc3, "m-3", "http://127.0.0.1:1/none")
			joins.IsLearner = true
			w.list = append(w.list, joins)
		}, "m-3 is still a learner"},
		"a member that initial-cluster does not name": {func(w *town) {
			w.list[0] = member(0xc0, "m-0", "http://m-0.another-namespace")
		}, "m-0 at http://m-0.another-namespace, which is not in initial-cluster, so it may be a different cluster"},
		"this one's name at another address": {func(w *town) { w.list[2] = member(own, "m-2", "http://m-2.another-namespace") }, "it may be a different cluster and is not changed"},
		"the only other one that votes":      {func(w *town) { w.list[1].IsLearner = true }, "the cluster has 2 voting members: the other members do not form a quorum"},
		"another version":                    {func(w *town) { w.fakes[1].runs = "3.5.21" }, "runs etcd 3.5.21"},
		"an older one that it announces":     {func(w *town) { w.fakes[1].runs = "3.5.27+" + dataversion.Embedded }, ""},
		"an older one that has a vendor":     {func(w *town) { w.fakes[1].runs = "3.5.27+vendor" }, "runs etcd 3.5.27+vendor"},
		"no version":                         {func(w *town) { w.fakes[1].runs = "" }, "runs etcd "},
		"a connection":                       {func(w *town) { w.fakes[1].metrics = connectedTo(0xc1, own, 1) }, "m-1 is connected to another process"},
		"one of the past":                    {func(w *town) { w.fakes[1].metrics = connectedTo(0xc1, own, 0) }, ""},
		"one of another's":                   {func(w *town) { w.fakes[1].metrics = connectedTo(0xc1, 0xc0, 1) }, ""},
		"another member's address": {func(w *town) {
			w.peers.checkOwnURLs = func(context.Context, []string) error { return errors.New("another process responds") }
		}, "checking for 1m0s whether another process is using this member's data: another process responds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			test.action(w)
			requireSays(t, w.ask().Blocked, test.message)
		})
	}
}

func TestCheckPending(t *testing.T) {
	w := newTown(t)
	added := member(0xc3, "", "http://127.0.0.1:1/none")
	added.ClientURLs = nil
	c := Survey{Membership: Started, Members: append(w.list, added), Own: w.list[2]}
	require.ErrorContains(t, checkPending(&c), "none was added but has not started yet")
	c = Survey{Membership: Unlisted, Members: append(w.list[:2:2], added)}
	require.ErrorContains(t, checkPending(&c), "none was added but has not started yet")
}

// In a cluster of two, the other member's list must be accepted, but this member cannot be replaced, because the
// other member cannot change the cluster alone.
func TestQuery_memberOfTwo(t *testing.T) {
	w := ofTwo(t)
	c := w.ask()
	assert.Equal(t, Started, c.Membership)
	require.ErrorIs(t, c.Blocked, ErrTooFew)
	assert.EqualError(t, c.Blocked, "the cluster has 2 voting members: the other members do not form a quorum, so this member cannot be replaced")
}

// Query must return Added for a second voter that was added without --learner, even though there is no quorum until
// this voter has started.
func TestQuery_secondVoterThatWasAdded(t *testing.T) {
	w := ofTwo(t)
	w.list = []Member{w.list[0], member(99, "", "http://127.0.0.1:1")}
	w.list[1].ClientURLs = nil
	c := w.ask()
	assert.Equal(t, Added, c.Membership)
	assert.Equal(t, "m-1="+w.fakes[1].URL+",m-2=http://127.0.0.1:1", c.InitialCluster("m-2"))
}

// If this member is not one of the two voters, the list of one voter must not count as a quorum.
func TestQuery_twoOtherVoters(t *testing.T) {
	w := ofTwo(t)
	w.list = []Member{w.list[0], member(98, "m-9", "http://127.0.0.1:9")}
	assert.Equal(t, Claimed, w.ask().Membership)
}

func TestQuery_dataInUseElsewhere(t *testing.T) {
	type step struct {
		after        time.Duration
		count, bytes int // number of connections, and number of bytes received over them
		free         bool
	}
	for name, test := range map[string]struct {
		answersHere error
		steps       []step
	}{
		// a minute without any sign of another process must be enough
		"for a minute": {errors.New("no such host"), []step{
			{0, 0, 0, false},
			{30 * time.Second, 0, 0, false},
			{20 * time.Second, 1, 0, false},
			{20 * time.Second, 0, 0, false},
			{50 * time.Second, 0, 0, false},
			{10 * time.Second, 0, 0, true},
			{2 * time.Minute, 0, 0, false}, // the last check is too long ago
		}},
		// etcd overcounts connections after sending a snapshot: it counts existing connections twice, but subtracts
		// only one when a connection ends.
		"while something comes": {nil, []step{
			{0, 1, 100, false},
			{3 * time.Second, 1, 100, false},
			{3 * time.Second, 1, 101, false}, // bytes were received
			{3 * time.Second, 1, 101, false},
			{9 * time.Second, 1, 101, false},
			{1 * time.Second, 1, 101, true},
			{1 * time.Second, 1, 102, false},
		}},
	} {
		w := newTown(t)
		w.peers.checkOwnURLs = func(context.Context, []string) error { return test.answersHere }
		for i, step := range test.steps {
			w.now = w.now.Add(step.after)
			w.fakes[0].metrics = connectedTo(0xc0, own, step.count) + fmt.Sprintf("etcd_network_peer_received_bytes_total{From=\"%x\"} %d\n", own, step.bytes)
			assert.Equal(t, step.free, w.ask().Blocked == nil, "%s, step %d", name, i)
		}
	}
}

func TestQuery_outdatedVolume(t *testing.T) {
	for name, test := range map[string]struct {
		self    Self
		action  func(*town)
		message string
	}{
		"it was not":                       {volume(0xabc, own, 3), func(*town) {}, ""},
		"of another member":                {volume(0xabc, 0xc1, 3), func(*town) {}, "the data belongs to m-1, another member of the cluster: volumes were mixed up"},
		"of a former life":                 {volume(0xabc, 0xc9, 3), func(*town) {}, "the data belongs to member c9, which was replaced by c2"},
		"of before the others":             {volume(0xabc, own, 1), func(*town) {}, "it lists this member as the only voter, but the cluster has 3 voting members"},
		"of before it was removed":         {volume(0xabc, own, 1), func(w *town) { w.list = without(w.list) }, "it lists this member as the only voter, but the cluster has 2 voting members"},
		"of a former life, and added anew": {volume(0xabc, 0xc9, 3), func(w *town) { w.list = unstarted(own)(w.list) }, "the data belongs to member c9, which was replaced by c2"},
		"added, and cut off as it began":   {volume(0xabc, own, 3), func(w *town) { w.list = unstarted(own)(w.list) }, ""},
		"removed since":                    {volume(0xabc, own, 3), func(w *town) { w.list = without(w.list) }, "the data belongs to member c2, which is no longer in the cluster"},
		"of another cluster":               {volume(0xdef, 0xc9, 3), func(*town) {}, ""},
		"of one that was renamed":          {volume(0xabc, 0xc1, 3), func(w *town) { w.list = without(w.list) }, ""},
		"behind its own word":              {volume(0xabc, own, 3), func(w *town) { w.fakes[1].vars = confirmed(own, 101) }, "this member has acknowledged entry 101 to m-1"},
		"not behind it":                    {volume(0xabc, own, 3), func(w *town) { w.fakes[1].vars = confirmed(own, 100) }, ""},
		"behind another's word":            {volume(0xabc, own, 3), func(w *town) { w.fakes[1].vars = confirmed(0xc0, 101) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			test.action(w)
			requireSays(t, w.peers.Query(t.Context(), test.self).Outdated, test.message)
		})
	}
}

func TestSurvey_initialCluster(t *testing.T) {
	w := newTown(t)
	w.list = unstarted(99)(w.list)
	c := w.ask()
	assert.Equal(t, fmt.Sprintf("m-0=%s,m-1=%s,m-2=http://127.0.0.1:1", w.fakes[0].URL, w.fakes[1].URL), c.InitialCluster("m-2"))
}

func TestQuery_missingPeers(t *testing.T) {
	w := newTown(t)
	w.fakes[1].away.Store(true)
	require.ErrorContains(t, w.ask().Missing, "m-1 does not respond")
	assert.Equal(t, []string{"m-0", "m-1"}, slices.Sorted(maps.Keys(w.peers.others)))
}

func TestNew_singleMember(t *testing.T) {
	config := embed.NewConfig()
	config.InitialCluster = "default=http://127.0.0.1:1"
	none, err := New(config, Options{})
	require.NoError(t, err)
	assert.Nil(t, none)
}

func TestFetch_errorStatus(t *testing.T) {
	all := rolled(t)
	_, err := fetch(t.Context(), all[0].peer, liar(t, "500 a lie\r\nContent-Length: 0\r\n\r\n"), nil)
	assert.ErrorContains(t, err, "status 500")
	assert.NotContains(t, err.Error(), "a lie")
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
