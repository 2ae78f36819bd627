package peers

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// etcd counts each connection twice that a member had when it was sent a snapshot, and takes one away when it ends.
func TestAConnectionOverWhichNothingComesIsSoonNone(t *testing.T) {
	w := newTown(t)
	for i, step := range []struct {
		after time.Duration
		bytes int
		free  bool
	}{
		{0, 100, false},
		{3 * time.Second, 100, false},
		{3 * time.Second, 101, false}, // something came
		{3 * time.Second, 101, false},
		{9 * time.Second, 101, false},
		{1 * time.Second, 101, true},
		{1 * time.Second, 102, false},
	} {
		w.now = w.now.Add(step.after)
		w.fakes[0].metrics = connectedTo(0xc0, own, 1) + fmt.Sprintf("etcd_network_peer_received_bytes_total{From=\"%x\"} %d\n", own, step.bytes)
		assert.Equal(t, step.free, w.ask().InTheWay == nil, "step %d", i)
	}
}

// The others go by their list: what they send to a URL there may come to a process that has this member's data.
func TestAMemberHasToBeFoundAtTheURLsThatTheOthersHaveOfItToo(t *testing.T) {
	w := newTown(t)
	elsewhere := httptest.NewServer(nil) // an etcd, or its like
	defer elsewhere.Close()
	w.list[2] = member(own, "m-2", elsewhere.URL)
	here := httptest.NewServer(nil)
	at, err := url.Parse(here.URL)
	require.NoError(t, err)
	here.Close()
	w.peers.listens, w.peers.urls, w.peers.answersHere = []url.URL{*at}, []string{here.URL}, w.peers.findSelf
	w.peers.listed = append(w.peers.listed, elsewhere.URL, here.URL)
	require.ErrorContains(t, w.ask().InTheWay, "this member does not reach itself where its peers do: "+elsewhere.URL)
	w.list[2] = member(own, "m-2", here.URL)
	w.now = w.now.Add(time.Second)
	require.NoError(t, w.ask().InTheWay)
}
