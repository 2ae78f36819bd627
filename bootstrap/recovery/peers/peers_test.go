package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"
)

// fake is another member, as it answers peers and clients at one address.
type fake struct {
	*httptest.Server

	id      uint64
	cluster string
	members func() []Member
	runs    string
	metrics string
	vars    string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/members":
		w.Header().Set("X-Etcd-Cluster-ID", f.cluster)
		_ = json.NewEncoder(w).Encode(f.members())
	case "/version":
		_ = json.NewEncoder(w).Encode(version.Versions{Server: f.runs})
	case "/metrics":
		_, _ = fmt.Fprint(w, f.metrics)
	case "/debug/vars":
		_, _ = fmt.Fprint(w, f.vars)
	}
}

// town is a cluster of which one member asks.
type town struct {
	*testing.T

	fakes []*fake
	list  []Member // what all of them tell
	peers *Peers
	now   time.Time
}

const own = uint64(0xc2)

// newTown has m-2 ask m-0 and m-1, who know it as started.
func newTown(t *testing.T) *town {
	t.Helper()
	town := &town{T: t, now: time.Now()}
	config := embed.NewConfig()
	config.Name, config.InitialClusterToken = "m-2", "token"
	pairs := []string{"m-2=http://127.0.0.1:1"}
	for i := range 2 {
		f := &fake{id: 0xc0 + uint64(i), cluster: "abc", members: func() []Member { return town.list }, runs: version.Version, metrics: "# nothing\n"}
		f.Server = httptest.NewServer(f)
		t.Cleanup(f.Close)
		town.fakes = append(town.fakes, f)
		town.list = append(town.list, member(f.id, fmt.Sprintf("m-%d", i), f.URL))
		pairs = append(pairs, fmt.Sprintf("m-%d=%s", i, f.URL))
	}
	town.list = append(town.list, member(own, "m-2", "http://127.0.0.1:1"))
	config.InitialCluster = strings.Join(pairs, ",")
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	var err error
	town.peers, err = Of(config, Options{})
	require.NoError(t, err)
	t.Cleanup(town.peers.Close)
	town.peers.now = func() time.Time { return town.now }
	town.peers.answersHere = func(context.Context) error { return nil }
	return town
}

func member(id uint64, name, at string) (m Member) {
	m.Name, m.PeerURLs, m.ClientURLs = name, []string{at}, []string{at}
	_ = json.Unmarshal(fmt.Appendf(nil, `{"id":%d}`, id), &m)
	return m
}

func (w *town) ask() Census { return w.peers.Ask(w.Context(), Self{}) }

// alter has a member tell a list of its own.
func (w *town) alter(which int, change func(list []Member) []Member) {
	w.fakes[which].members = func() []Member { return change(append([]Member(nil), w.list...)) }
}

func without(list []Member) []Member { return list[:2] }

func unstarted(id uint64) func([]Member) []Member {
	return func(list []Member) []Member {
		list[2] = member(id, "", "http://127.0.0.1:1")
		list[2].ClientURLs = nil
		return list
	}
}

func TestHowTheOthersHaveThisMember(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(*town)
		want    Listing
	}{
		"all know it":       {func(*town) {}, Started},
		"one is away":       {func(w *town) { w.fakes[0].Close() }, Claimed},
		"nobody answers":    {func(w *town) { w.fakes[0].Close(); w.fakes[1].Close() }, Unknown},
		"nobody has it":     {func(w *town) { w.list = without(w.list) }, Unlisted},
		"it was added":      {func(w *town) { w.list = unstarted(99)(w.list) }, Added},
		"it is expected":    {func(w *town) { w.list = unstarted(w.peers.founding)(w.list) }, Expected},
		"one has forgotten": {func(w *town) { w.alter(0, without) }, Claimed},
		"one has not heard of it": {func(w *town) {
			w.list = without(w.list)
			w.alter(0, func(list []Member) []Member { return unstarted(99)(append(list, Member{})) })
		}, Claimed},
		"one expects it, one has it as lost": {func(w *town) { w.alter(0, unstarted(w.peers.founding)) }, Claimed},
		"one lies about its cluster":         {func(w *town) { w.fakes[0].cluster = "def" }, Claimed},
		"one expects it, one is not there yet": {func(w *town) {
			w.list = unstarted(w.peers.founding)(w.list)
			w.fakes[1].Close()
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
			of.happens(w)
			c := w.ask()
			assert.Equal(t, of.want, c.Listing)
			assert.Equal(t, of.want != Unknown && of.want != Claimed, c.Cluster != "" && c.Listing != Claimed)
		})
	}
}

// A member that was put where another one was configured is in the answers alone.
func TestMembersThatAreNotConfiguredAreAskedToo(t *testing.T) {
	w := newTown(t)
	w.peers.others = map[string][]string{"m-0": w.peers.others["m-0"]}
	assert.Equal(t, Started, w.ask().Listing)
}

func TestWhatKeepsAMemberFromBeingReplaced(t *testing.T) {
	for name, of := range map[string]struct {
		happens func(*town)
		says    string // empty if nothing does
	}{
		"nothing": {func(*town) {}, ""},
		"another learner": {func(w *town) {
			joins := member(0xc3, "m-3", "http://127.0.0.1:1/none")
			joins.IsLearner = true
			w.list = append(w.list, joins)
		}, "m-3 is a learner"},
		"another version":  {func(w *town) { w.fakes[1].runs = "3.5.21" }, "runs etcd 3.5.21"},
		"no version":       {func(w *town) { w.fakes[1].runs = "" }, "runs etcd "},
		"a connection":     {func(w *town) { w.fakes[1].metrics = connectedTo(0xc1, own, 1) }, "m-1 says that it is connected"},
		"one of the past":  {func(w *town) { w.fakes[1].metrics = connectedTo(0xc1, own, 0) }, ""},
		"one of another's": {func(w *town) { w.fakes[1].metrics = connectedTo(0xc1, 0xc0, 1) }, ""},
		"an address that is somebody else's": {func(w *town) {
			w.peers.answersHere = func(context.Context) error { return errors.New("another process answers") }
		}, "watched for 1m0s: another process answers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			of.happens(w)
			err := w.ask().InTheWay
			if of.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, of.says)
		})
	}
}

func TestMembersJoinOneAtATime(t *testing.T) {
	w := newTown(t)
	added := member(0xc3, "", "http://127.0.0.1:1/none")
	added.ClientURLs = nil
	c := Census{Listing: Started, Members: append(w.list, added), Own: w.list[2]}
	require.ErrorContains(t, w.peers.unfinished(&c), "none was added and has not started yet")
	c = Census{Listing: Unlisted, Members: append(w.list[:2:2], added)}
	require.ErrorContains(t, w.peers.unfinished(&c), "none was added and has not started yet")
}

func connectedTo(from, to uint64, count int) string {
	return fmt.Sprintf("etcd_network_active_peers{Local=\"%x\",Remote=\"%x\"} %d\n", from, to, count)
}

func TestAMemberOfTwoIsNotReplaced(t *testing.T) {
	w := newTown(t)
	w.list = w.list[1:]
	w.peers.others = map[string][]string{"m-1": w.peers.others["m-1"]}
	assert.Equal(t, Claimed, w.ask().Listing, "one of two is no quorum")
	lone := Census{Listing: Started, Members: w.list, Own: w.list[1]}
	require.ErrorContains(t, w.peers.inTheWay(t.Context(), &lone, nil), "the cluster has 2 voting members")
}

// What cannot be known at once is known after a minute in which nothing spoke against it.
func TestAMemberThatMayBeElsewhereIsWatchedForAMinute(t *testing.T) {
	w := newTown(t)
	w.peers.answersHere = func(context.Context) error { return errors.New("no such host") }
	steps := []struct {
		after time.Duration
		gauge int
		free  bool
	}{
		{0, 0, false},
		{30 * time.Second, 0, false},
		{20 * time.Second, 1, false},
		{20 * time.Second, 0, false},
		{50 * time.Second, 0, false},
		{10 * time.Second, 0, true},
		{2 * time.Minute, 0, false}, // nobody looked for so long
	}
	for i, step := range steps {
		w.now = w.now.Add(step.after)
		w.fakes[0].metrics = connectedTo(0xc0, own, step.gauge)
		assert.Equal(t, step.free, w.ask().InTheWay == nil, "step %d", i)
	}
}

func TestAVolumeThatWasPutBackIsTold(t *testing.T) {
	for name, of := range map[string]struct {
		self    Self
		happens func(*town)
		says    string
	}{
		"it was not":            {volume(0xabc, own, 3), func(*town) {}, ""},
		"of a former life":      {volume(0xabc, 0xc9, 3), func(*town) {}, "they are of member c9, which was replaced by c2"},
		"of before the others":  {volume(0xabc, own, 1), func(*town) {}, "when the cluster had one member"},
		"of another cluster":    {volume(0xdef, 0xc9, 3), func(*town) {}, ""},
		"behind its own word":   {volume(0xabc, own, 3), func(w *town) { w.fakes[1].vars = confirmed(own, 101) }, "this member has confirmed entry 101 to m-1"},
		"not behind it":         {volume(0xabc, own, 3), func(w *town) { w.fakes[1].vars = confirmed(own, 100) }, ""},
		"behind another's word": {volume(0xabc, own, 3), func(w *town) { w.fakes[1].vars = confirmed(0xc0, 101) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTown(t)
			of.happens(w)
			err := w.peers.Ask(t.Context(), of.self).Outdated
			if of.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, of.says)
		})
	}
}

// volume is of a member whose log ends with entry 100.
func volume(cluster, member uint64, members int) Self {
	return Self{ClusterID: cluster, MemberID: member, Members: members, Index: 100, Holds: Data}
}

func confirmed(member, entry uint64) string {
	return fmt.Sprintf(`{"raft.status": {"id":"c1","progress":{"%x":{"match":%d,"next":7,"state":"StateReplicate"}}}}`, member, entry)
}

func TestTheConfigurationForJoiningNamesWhoeverIsThere(t *testing.T) {
	w := newTown(t)
	w.list = unstarted(99)(w.list)
	c := w.ask()
	assert.Equal(t, fmt.Sprintf("m-0=%s,m-1=%s,m-2=http://127.0.0.1:1", w.fakes[0].URL, w.fakes[1].URL), c.InitialCluster("m-2"))
}

func TestPeersThatDoNotAnswerAreNamed(t *testing.T) {
	w := newTown(t)
	w.fakes[1].Close()
	require.ErrorContains(t, w.ask().Silent, "m-1 does not answer")
	assert.Equal(t, []string{"m-0", "m-1"}, w.peers.Names())
}

func TestAMemberFindsItselfWhereItsPeersDo(t *testing.T) {
	w := newTown(t)
	at := httptest.NewServer(nil)
	here, err := url.Parse(at.URL)
	require.NoError(t, err)
	w.peers.listens, w.peers.urls = []url.URL{*here}, []string{at.URL}
	require.ErrorContains(t, w.peers.findSelf(t.Context()), "cannot listen for its peers", "somebody else does")
	at.Close()
	require.NoError(t, w.peers.findSelf(t.Context()))
	require.NoError(t, w.peers.findSelf(t.Context()), "it has let go")

	other := newTown(t)
	other.peers.listens, other.peers.urls = w.peers.listens, w.peers.urls
	require.ErrorContains(t, other.peers.findSelf(t.Context()), "cannot listen")
	other.peers.listens = nil
	require.ErrorContains(t, other.peers.findSelf(t.Context()), "another process answers at")
	w.peers.Close()
	require.ErrorContains(t, other.peers.findSelf(t.Context()), "does not reach itself")
}

// rolled are three members that run no etcd.
func rolled(t *testing.T) (all []*Peers) {
	t.Helper()
	config := func(i int) *embed.Config {
		config := embed.NewConfig()
		config.Name = fmt.Sprintf("m-%d", i)
		return config
	}
	var pairs []string
	var at []*url.URL
	for i := range 3 {
		held := httptest.NewServer(nil)
		here, err := url.Parse(held.URL)
		require.NoError(t, err)
		at, pairs = append(at, here), append(pairs, fmt.Sprintf("m-%d=%s", i, held.URL))
		held.Close()
	}
	for i := range 3 {
		c := config(i)
		c.InitialCluster, c.AdvertisePeerUrls, c.ListenPeerUrls = strings.Join(pairs, ","), []url.URL{*at[i]}, []url.URL{*at[i]}
		p, err := Of(c, Options{})
		require.NoError(t, err)
		t.Cleanup(p.Close)
		all = append(all, p)
	}
	return all
}

func TestAClusterIsFoundedWhenNobodyHasData(t *testing.T) {
	ask := func(p *Peers, holds Holds) Listing {
		c := p.Ask(t.Context(), Self{Holds: holds})
		return c.Listing
	}
	all := rolled(t)
	assert.Equal(t, Unknown, ask(all[0], Nothing), "nobody else is there")
	assert.Equal(t, Unknown, ask(all[1], Nothing), "the third may have data")
	assert.Equal(t, Founding, ask(all[2], Nothing))
	assert.Equal(t, Founding, ask(all[0], Nothing))
	assert.Equal(t, Gone, ask(all[1], Ruins))
	assert.Equal(t, Gone, ask(all[2], Nothing), "one has had data")
	assert.Equal(t, Unknown, ask(all[0], Data), "who has data has nothing to ask for")
	assert.Equal(t, Unknown, ask(all[2], Nothing), "and is waited for")
}

func TestMembersGoBackWhenAllAskForTheSame(t *testing.T) {
	ask := func(p *Peers, id string) Listing {
		c := p.Ask(t.Context(), Self{Holds: Data, Restore: id})
		return c.Listing
	}
	all := rolled(t)
	assert.Equal(t, Unknown, ask(all[0], "back"))
	assert.Equal(t, Unknown, ask(all[1], "back"))
	assert.Equal(t, Unknown, ask(all[2], "another"))
	assert.Equal(t, Unknown, ask(all[0], "back"))
	assert.Equal(t, Asking, ask(all[2], "back"))
	assert.Equal(t, Asking, ask(all[0], "back"))
	assert.Equal(t, Unknown, ask(all[1], ""), "it starts")
	assert.Equal(t, Unknown, ask(all[0], "back"))
}

// Of two that have nothing, one may be of a cluster that grows, whose member with the data is being restarted.
func TestAQuorumWithoutDataWaitsForTheRestAWhile(t *testing.T) {
	all := rolled(t)
	now := time.Now()
	for _, p := range all {
		p.now = func() time.Time { return now }
	}
	ask := func(p *Peers, holds Holds) Listing {
		c := p.Ask(t.Context(), Self{Holds: holds})
		return c.Listing
	}
	assert.Equal(t, Unknown, ask(all[0], Nothing))
	assert.Equal(t, Unknown, ask(all[1], Nothing))
	now = now.Add(patience)
	assert.Equal(t, Partial, ask(all[0], Nothing), "the third may have data that a store has not")
	assert.Equal(t, Unknown, ask(all[1], Ruins), "whoever had data founds nothing")
	assert.Equal(t, Unknown, ask(all[0], Nothing), "nor does one who knows of that")
}

func TestMembersTellWhenTheyHaveBroughtWhatOnlyTheirVolumesHad(t *testing.T) {
	all := rolled(t)
	ask := func(p *Peers, brought bool) bool {
		return p.Ask(t.Context(), Self{Holds: Ruins, Brought: brought}).Brought
	}
	ask(all[0], true)
	ask(all[1], false)
	assert.False(t, ask(all[2], true))
	ask(all[1], true)
	assert.True(t, ask(all[2], true))
	assert.True(t, ask(all[0], false), "it asks about the others")
	assert.False(t, ask(all[1], true))
}

func TestAMemberCanTellOfItsDataBeforeItAsks(t *testing.T) {
	all := rolled(t)
	all[0].Claim()
	call, waits := all[1].hear(t.Context(), "m-0", all[1].others["m-0"], assert.AnError)
	assert.True(t, waits)
	assert.Equal(t, Data, call.Holds)
}

// It runs for the first time, by its own list, of which no quorum tells: it may have data all the same.
func TestAMemberThatRunsIsNotCountedAmongThoseWithoutData(t *testing.T) {
	p := &Peers{others: map[string][]string{"m-0": nil, "m-1": nil}, now: time.Now}
	none := Call{Holds: Nothing}
	assert.Equal(t, Founding, p.roll(Self{Holds: Nothing}, nil, []Call{none, none}))
	assert.Equal(t, Partial, p.roll(Self{Holds: Nothing}, []*answer{{}}, []Call{none}))
	assert.Equal(t, Unknown, p.roll(Self{Holds: Ruins}, []*answer{{}}, []Call{none}))
}

func TestAConfigurationWithoutOthersHasNobodyToAsk(t *testing.T) {
	config := embed.NewConfig()
	config.InitialCluster = "default=http://127.0.0.1:1"
	none, err := Of(config, Options{})
	require.NoError(t, err)
	assert.Nil(t, none)
}

// etcd makes the certificates later, and nobody could tell by them who answers.
func TestMembersWithCertificatesOfTheirOwnMakingAreNotAsked(t *testing.T) {
	config := embed.NewConfig()
	config.InitialCluster, config.PeerAutoTLS = "default=https://127.0.0.1:1,other=https://127.0.0.1:2", true
	none, err := Of(config, Options{})
	require.NoError(t, err)
	assert.Nil(t, none)
}

func TestAMemberThatCannotListenForItsPeersSaysSo(t *testing.T) {
	all := rolled(t)
	require.NoError(t, all[0].open())
	all[1].listens = all[0].listens
	c := all[1].Ask(t.Context(), Self{Holds: Nothing})
	assert.ErrorContains(t, c.Silent, "cannot listen for its peers")
	assert.ErrorContains(t, c.Silent, "m-2 does not answer")
}

func TestAnErrorQuotesNothingThatAPeerSaid(t *testing.T) {
	all := rolled(t)
	lies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, _, _ := w.(http.Hijacker).Hijack()
		_, _ = connection.Write([]byte("HTTP/1.1 500 a lie\r\nContent-Length: 0\r\n\r\n"))
		_ = connection.Close()
	}))
	defer lies.Close()
	_, err := all[0].fetch(t.Context(), all[0].peer, lies.URL, nil)
	assert.ErrorContains(t, err, "status 500")
	assert.NotContains(t, err.Error(), "a lie")
}

func TestUserAndPasswordAreEtcdctls(t *testing.T) {
	t.Setenv("ETCDCTL_USER", "root:secret")
	assert.Equal(t, Options{User: "root", Password: "secret"}, OptionsOf("", ""))
	t.Setenv("ETCDCTL_USER", "root")
	t.Setenv("ETCDCTL_PASSWORD", "other")
	assert.Equal(t, Options{CertFile: "c", KeyFile: "k", User: "root", Password: "other"}, OptionsOf("c", "k"))
}
