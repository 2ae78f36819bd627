package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.uber.org/zap"

	"etcd-wrapper/backup/store/storetest"
	"etcd-wrapper/backup/store/storetest/servers"
	"etcd-wrapper/cmd/suites/harness"
)

// TestLinearizability_singleMemberLosesItsVolume runs members that use --backup-ack=stored and repeatedly lose their
// volumes. The backups are in a directory, or on an S3 server with a latency of 20 ms. Clients must not notice the
// restores.
func TestLinearizability_singleMemberLosesItsVolume(t *testing.T) {
	traffic.RequestTimeout = 2 * time.Second // longer than etcd's default, because each write waits for its upload
	for name, store := range map[string]func(*testing.T) (address string, env []string){
		"folder": func(t *testing.T) (string, []string) { return "file://" + t.TempDir(), nil },
		"S3":     distantBucket,
	} {
		for round := range *rounds {
			t.Run(fmt.Sprint(name, " ", round), func(t *testing.T) {
				p := harness.NewStandalonePod(t, nil)
				address, env := store(t)
				p.Flags, p.Env = append(p.Flags, "--backup-store="+address, "--backup-ack=stored"), env
				c := &cluster{T: t, pods: []*harness.Pod{p}}
				c.withstand(singleMemberFailures, round)
			})
		}
	}
}

func distantBucket(t *testing.T) (address string, env []string) {
	server := servers.S3(t)
	servers.MakeS3Bucket(t, server, "backups")
	proxy := storetest.NewProxy(t, server)
	proxy.Inject(storetest.Faults{Delay: 20 * time.Millisecond})
	return servers.S3URL(proxy.Endpoint.String(), "backups", "main"), servers.S3Env()
}

var singleMemberFailures = []failure{
	{"a kill and a lost volume", func(c *cluster) { c.runs[0].Kill(); c.restore() }},
	{"an orderly stop and a lost volume", func(c *cluster) { c.runs[0].Shutdown(); c.restore() }},
	{"a kill", func(c *cluster) { c.kill(0) }},
	{"defragmentations by the member", defragmentByMembers},
}

// A restore describes one restore of a single-member cluster.
type restore struct {
	lost         string // data directory that the restore replaced
	last, first  int64  // restored revision, and first revision after the restore; revisions in between do not exist
	began, ended time.Duration
}

// restore starts the stopped member with an empty volume, and keeps the old data for the validation.
func (c *cluster) restore() {
	c.Helper()
	p, r := c.pods[0], restore{lost: filepath.Join(c.TempDir(), "lost"), began: time.Since(c.began)}
	require.NoError(c, os.Rename(p.DataDir(), r.lost))
	require.NoError(c, os.RemoveAll(p.Volume))
	c.restart(0)
	built := c.runs[0].Log.Matching(harness.Line{"message": "recovery: built a data directory from the backup"})
	require.Len(c, built, 1)
	r.ended = time.Since(c.began)
	r.last, r.first = int64(built[0]["revision"].(float64)), int64(built[0]["continues_above"].(float64))+1
	c.restored = append(c.restored, r)
}

// joinLogs returns the persisted requests from all logs, except those that a restore lost because they had not
// reached the store. It replaces restores, which etcd's model does not support, with compactions, and renumbers
// revisions as if none had been skipped.
func (c *cluster) joinLogs(reports []report.ClientReport) ([]report.ClientReport, []model.EtcdRequest) {
	c.Helper()
	c.renumberReports(reports)
	var all []model.EtcdRequest
	for _, r := range c.restored {
		last := c.renumber(r.last)
		compaction := model.EtcdRequest{Type: model.Compact, Compact: &model.CompactRequest{Revision: last}}
		all = append(c.until(last, append(all, c.renumbered(r.lost)...)), compaction)
		reports = append(reports, report.ClientReport{KeyValue: []porcupine.Operation{{
			ClientId: -len(all), Input: compaction, Output: model.MaybeEtcdResponse{Persisted: true},
			Call: r.began.Nanoseconds(), Return: r.ended.Nanoseconds(),
		}}})
	}
	return reports, append(all, c.renumbered(c.pods[0].DataDir())...)
}

// until returns the requests before the first one whose revision is greater than the given revision.
func (c *cluster) until(revision int64, requests []model.EtcdRequest) []model.EtcdRequest {
	c.Helper()
	state, err := model.NewReplay(nil).StateForRevision(1)
	require.NoError(c, err)
	for i, request := range requests {
		if state, _ = state.Step(request); state.Revision > revision {
			return requests[:i]
		}
	}
	require.Equal(c, revision, state.Revision, "the log does not contain all restored revisions")
	return requests
}

// renumber converts a revision to the number it would have if restores had not skipped any.
func (c *cluster) renumber(revision int64) int64 {
	for _, r := range slices.Backward(c.restored) {
		if revision >= r.first {
			revision -= r.first - r.last
		}
	}
	return revision
}

func (c *cluster) renumbered(dataDir string) []model.EtcdRequest {
	c.Helper()
	requests := c.persisted(c.readable(dataDir))
	for _, request := range requests {
		c.renumberRequest(request)
	}
	return requests
}

// readable returns a data directory whose log starts at index 1 instead of at the restored snapshot, so that etcd's
// suite can read it.
func (c *cluster) readable(dataDir string) string {
	c.Helper()
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), datadir.ToWALDir(dataDir))
	require.NoError(c, err)
	if len(snapshots) == 1 {
		return dataDir
	}
	restored, err := wal.OpenForRead(zap.NewNop(), datadir.ToWALDir(dataDir), snapshots[1])
	require.NoError(c, err)
	defer restored.Close()
	metadata, state, entries, err := restored.ReadAll()
	require.NoError(c, err)
	for i := range entries {
		entries[i].Index -= snapshots[1].Index
	}
	state.Commit -= snapshots[1].Index
	copied := c.TempDir()
	written, err := wal.Create(zap.NewNop(), datadir.ToWALDir(copied), metadata)
	require.NoError(c, err)
	require.NoError(c, written.Save(state, entries))
	require.NoError(c, written.Close())
	return copied
}

func (c *cluster) renumberRequest(request model.EtcdRequest) {
	switch request.Type {
	case model.Range:
		request.Range.Revision = c.renumber(request.Range.Revision)
	case model.Compact: // a client may compact at any revision, even at one that the restore skipped
		for _, r := range c.restored {
			if r.last < request.Compact.Revision && request.Compact.Revision < r.first {
				request.Compact.Revision = r.last
			}
		}
		request.Compact.Revision = c.renumber(request.Compact.Revision)
	case model.Txn:
		for i := range request.Txn.Conditions {
			request.Txn.Conditions[i].ExpectedRevision = c.renumber(request.Txn.Conditions[i].ExpectedRevision)
		}
	}
}

func (c *cluster) renumberReports(reports []report.ClientReport) {
	for _, r := range reports {
		for i, operation := range r.KeyValue {
			c.renumberRequest(operation.Input.(model.EtcdRequest))
			response := operation.Output.(model.MaybeEtcdResponse)
			response.Revision = c.renumber(response.Revision)
			if response.Range != nil {
				c.renumberRange(*response.Range)
			}
			if response.Txn != nil {
				for _, result := range response.Txn.Results {
					c.renumberRange(result.RangeResponse)
				}
			}
			r.KeyValue[i].Output = response
		}
		for i := range r.Watch {
			c.renumberWatch(&r.Watch[i])
		}
	}
}

func (c *cluster) renumberRange(response model.RangeResponse) {
	for i := range response.KVs {
		response.KVs[i].ModRevision = c.renumber(response.KVs[i].ModRevision)
	}
}

func (c *cluster) renumberWatch(watch *model.WatchOperation) {
	watch.Request.Revision = c.renumber(watch.Request.Revision)
	for i, response := range watch.Responses {
		watch.Responses[i].Revision = c.renumber(response.Revision)
		for j := range response.Events {
			event := &response.Events[j]
			event.Revision = c.renumber(event.Revision)
			if event.PrevValue != nil {
				event.PrevValue.ModRevision = c.renumber(event.PrevValue.ModRevision)
			}
		}
	}
}
