package peers

import (
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The others go by their list: what they send to a URL there may come to a process that has this member's data.
func TestQuery_checksTheListedURLs(t *testing.T) {
	w := newTown(t)
	elsewhere := httptest.NewServer(nil) // an etcd, or a compatible server
	defer elsewhere.Close()
	w.list[2] = member(own, "m-2", elsewhere.URL)
	here := httptest.NewServer(nil)
	at, err := url.Parse(here.URL)
	require.NoError(t, err)
	here.Close()
	w.peers.listens, w.peers.urls, w.peers.checkOwnURLs = []url.URL{*at}, []string{here.URL}, w.peers.requestOwnURLs
	w.peers.listed = append(w.peers.listed, elsewhere.URL, here.URL)
	require.ErrorContains(t, w.ask().Blocked, "this member does not reach itself where its peers do: "+elsewhere.URL)
	w.list[2] = member(own, "m-2", here.URL)
	w.now = w.now.Add(time.Second)
	require.NoError(t, w.ask().Blocked)
}

// Two of five have lost their volumes, and neither can show the other its metrics.
func TestQuery_anotherMemberWithoutEtcd(t *testing.T) {
	for holds, free := range map[Volume]bool{Nothing: true, Ruins: true, Older: true, Restores: true, Data: false} {
		w := newTown(t)
		w.add(0xc3, "m-3")
		w.add(0xc4, "m-4").call = &Status{Name: "m-4", Volume: holds}
		c := w.ask()
		assert.Equal(t, Started, c.Membership)
		assert.Equal(t, free, c.Blocked == nil, "%s: %v", holds, c.Blocked)
	}
	w := newTown(t)
	w.add(0xc3, "m-3")
	w.add(0xc4, "m-4").away.Store(true)
	requireSays(t, w.ask().Blocked, "watched for 1m0s: m-4")
}
