package peers

import (
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRequestOwnURLs(t *testing.T) {
	w := newTown(t)
	at := httptest.NewServer(nil)
	here, err := url.Parse(at.URL)
	require.NoError(t, err)
	w.peers.listens, w.peers.urls = []url.URL{*here}, []string{at.URL}
	require.ErrorContains(t, w.peers.requestOwnURLs(t.Context(), w.peers.urls), "cannot listen for its peers", "somebody else does")
	at.Close()
	require.NoError(t, w.peers.requestOwnURLs(t.Context(), w.peers.urls))
	require.NoError(t, w.peers.requestOwnURLs(t.Context(), w.peers.urls), "it has let go")

	other := newTown(t)
	other.peers.listens, other.peers.urls = w.peers.listens, w.peers.urls
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "cannot listen")
	other.peers.listens = nil
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "another process answers at")
	w.peers.Close()
	require.ErrorContains(t, other.peers.requestOwnURLs(t.Context(), other.peers.urls), "does not reach itself")
}

func TestQuery_cannotListen(t *testing.T) {
	all := rolled(t)
	require.NoError(t, all[0].serve())
	all[1].listens = all[0].listens
	c := all[1].Query(t.Context(), Self{Volume: Nothing})
	assert.ErrorContains(t, c.Missing, "cannot listen for its peers")
	assert.ErrorContains(t, c.Missing, "m-2 does not answer")
}
