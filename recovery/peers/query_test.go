package peers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/archive"
)

// gRPC reports only a timeout if the server requires a client certificate.
func TestAdd_serverThatRequiresACertificate(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	w := newTown(t)
	w.peers.client = server.Client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := w.peers.Add(ctx, &Survey{Cluster: "abc", Members: []Member{member(0xc0, "m-0", server.URL)}})
	require.ErrorContains(t, err, server.URL)
	require.ErrorContains(t, err, "certificate required")
	require.ErrorContains(t, err, "set --etcd-client-cert-path to a certificate that the other members accept")
}

// The other members use the URLs in their list, where another process with this member's data may be listening.
func TestQuery_checksTheListedURLs(t *testing.T) {
	w := newTown(t)
	elsewhere := httptest.NewServer(nil) // etcd or a compatible server
	defer elsewhere.Close()
	w.list[2] = member(own, "m-2", elsewhere.URL)
	here := httptest.NewServer(nil)
	at, err := url.Parse(here.URL)
	require.NoError(t, err)
	here.Close()
	w.peers.config.ListenPeerUrls, w.peers.urls, w.peers.checkOwnURLs = []url.URL{*at}, []string{here.URL}, w.peers.requestOwnURLs
	w.peers.listed = append(w.peers.listed, elsewhere.URL, here.URL)
	require.ErrorContains(t, w.ask().Blocked, "this member cannot reach itself at its peer URL: "+elsewhere.URL)
	w.list[2] = member(own, "m-2", here.URL)
	w.now = w.now.Add(time.Second)
	require.NoError(t, w.ask().Blocked)
}

// Two of five members have lost their volumes and cannot show their metrics to each other.
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
	requireSays(t, w.ask().Blocked, "checking for 1m0s whether another process is using this member's data: cannot read the connections of m-4")
}

// The higher of the revisions in the database and in the log counts.
func TestQuery_revisionsWithoutQuorum(t *testing.T) {
	for name, test := range map[string]struct {
		metrics string
		reach   int64
		message string
	}{
		"what it has applied":        {"etcd_debugging_mvcc_current_revision 1201\n", 1201, "m-0 is at revision 1201"},
		"in thousands of thousands":  {"etcd_debugging_mvcc_current_revision 1.234567e+06\n", 1234567, "m-0 is at revision 1234567"},
		"what its log held, as well": {"etcd_debugging_mvcc_current_revision 1201\netcd_wrapper_opened_revision 1203\n", 1203, "revision 1203"},
		"nothing":                    {"# nothing\n", 0, "the revision of m-0 is unknown (no revision in the metrics)"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTown(t)
			w.fakes[0].metrics = test.metrics
			w.fakes[1].away.Store(true)
			c := w.peers.Query(t.Context(), volume(0xabc, own, 3))
			assert.Equal(t, Claimed, c.Membership)
			assert.Equal(t, test.reach, c.Revision)
			require.ErrorContains(t, c.Missing, test.message)
			require.ErrorContains(t, c.Missing, "m-1 does not respond")
			c = w.peers.Query(t.Context(), volume(0xdef, own, 3))
			assert.Zero(t, c.Revision, "it is another cluster's")
		})
	}
}

// told returns a metric that etcd serves along with its own metrics.
func told(t *testing.T, name string) *dto.Metric {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	at := slices.IndexFunc(families, func(family *dto.MetricFamily) bool { return family.GetName() == name })
	require.GreaterOrEqual(t, at, 0, "it is not told")
	require.Len(t, families[at].GetMetric(), 1)
	return families[at].GetMetric()[0]
}

func TestPublishOpened_revision(t *testing.T) {
	PublishOpened(77, archive.Identity{})
	w := newTown(t)
	w.fakes[0].metrics = fmt.Sprintf("etcd_wrapper_opened_revision %v\n", told(t, "etcd_wrapper_opened_revision").GetGauge().GetValue())
	w.fakes[1].away.Store(true)
	assert.Equal(t, int64(77), w.peers.Query(t.Context(), volume(0xabc, own, 3)).Revision)
}

// etcd derives its cluster ID from the configuration, so two clusters can have the same ID.
func TestPublishOpened_identity(t *testing.T) {
	PublishOpened(77, archive.Identity{Cluster: "0a1b", Generation: 3})
	label := told(t, "etcd_wrapper_opened_cluster").GetLabel()
	page := fmt.Sprintf("etcd_wrapper_opened_cluster{%s=%q,%s=%q} 1\n", label[0].GetName(), label[0].GetValue(), label[1].GetName(), label[1].GetValue())
	w := newTown(t)
	assert.Empty(t, w.ask().ID, "nobody tells")
	w.fakes[0].metrics = page
	c := w.ask()
	assert.Equal(t, "0a1b", c.ID)
	assert.Equal(t, 3, c.Generation)
	assert.Zero(t, c.Size, "nobody tells")
	w.fakes[0].metrics, w.fakes[1].metrics = page+"etcd_mvcc_db_total_size_in_bytes 7.7e+07\n", "etcd_mvcc_db_total_size_in_bytes 20480\n"
	assert.Equal(t, int64(77e6), w.ask().Size)
	w.fakes[1].metrics = strings.Replace(page, "0a1b", "c0ffee", 1)
	require.ErrorContains(t, w.ask().Blocked, "the other members belong to different clusters")
}
