package member

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/tracker"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestIsOnlyVoter(t *testing.T) {
	t.Parallel()
	const self, other = 1, 2
	set := func(members ...uint64) quorum.MajorityConfig {
		voters := quorum.MajorityConfig{}
		for _, member := range members {
			voters[member] = struct{}{}
		}
		return voters
	}
	for name, test := range map[string]struct {
		voters   quorum.JointConfig
		learners quorum.MajorityConfig
		etcd     uint64 // number of committed entries that etcd has not applied
		raft     uint64 // number of committed entries that raft has not applied
		want     bool
	}{
		"only voter":                      {quorum.JointConfig{set(self)}, nil, 0, 0, true},
		"only voter, with a learner":      {quorum.JointConfig{set(self)}, set(other), 0, 0, true},
		"unapplied entry may add a voter": {quorum.JointConfig{set(self)}, nil, 1, 0, false},
		"raft has applied less than etcd": {quorum.JointConfig{set(self)}, nil, 0, 1, false},
		"two voters":                      {quorum.JointConfig{set(self, other)}, nil, 0, 0, false},
		"another voter is being removed":  {quorum.JointConfig{set(self), set(self, other)}, nil, 0, 0, false},
		"another voter is being added":    {quorum.JointConfig{set(self, other), set(self)}, nil, 0, 0, false},
		"this member is a learner":        {quorum.JointConfig{set(other)}, set(self), 0, 0, false},
		"this member was removed":         {quorum.JointConfig{set(other)}, nil, 0, 0, false},
		"no voters":                       {quorum.JointConfig{set()}, nil, 0, 0, false},
		"raft has stopped":                {quorum.JointConfig{}, nil, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status := raft.Status{Config: tracker.Config{Voters: test.voters, Learners: test.learners}}
			status.ID, status.Commit, status.Applied = self, 7, 7-test.raft
			assert.Equal(t, test.want, isOnlyVoter(status.Commit-test.etcd, status))
		})
	}
}

// isOnlyVoter must be true for a restored member, for which etcd has no entries to apply because the log ends with a
// snapshot.
func TestIsOnlyVoter_restoredMember(t *testing.T) {
	t.Parallel()
	const self = 1
	status := raft.Status{Config: tracker.Config{Voters: quorum.JointConfig{{self: {}}}}}
	status.ID, status.Commit = self, 1
	assert.False(t, isOnlyVoter(0, status), "raft has not applied the snapshot yet")
	status.Applied = 1
	assert.True(t, isOnlyVoter(0, status))
	status.Commit, status.Applied = 2, 2
	assert.False(t, isOnlyVoter(0, status), "etcd has not applied the entry after the snapshot")
}

// dropUntil returns a handler that drops proposals until a leader has been elected, which takes the given time. It
// also returns a counter of the handler's calls.
func dropUntil(election time.Duration) (grpc.UnaryHandler, *int) {
	tries, start := 0, time.Now()
	return func(context.Context, any) (any, error) {
		tries++
		if time.Since(start) < election {
			return nil, status.Error(codes.Unknown, raft.ErrProposalDropped.Error())
		}
		return "done", nil
	}, &tries
}

func callDropped(ctx context.Context, method string, handler grpc.UnaryHandler) (any, error) {
	return retryDropped(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, handler)
}

func TestRetryDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, _ := dropUntil(2 * time.Second)
		start := time.Now()
		reply, err := callDropped(t.Context(), "/etcdserverpb.KV/Txn", handler)
		require.NoError(t, err)
		assert.Equal(t, "done", reply)
		assert.Equal(t, 2*time.Second, time.Since(start))

		const blocked = 4 * time.Second // time for which etcd blocks the first proposal
		handler, _ = dropUntil(blocked + time.Second)
		reply, err = callDropped(t.Context(), "/etcdserverpb.KV/Put", func(ctx context.Context, request any) (any, error) {
			time.Sleep(max(0, blocked-time.Since(start.Add(2*time.Second))))
			return handler(ctx, request)
		})
		require.NoError(t, err)
		assert.Equal(t, "done", reply)

		handler, _ = dropUntil(time.Hour)
		start = time.Now()
		_, err = callDropped(t.Context(), "/etcdserverpb.Lease/LeaseGrant", handler)
		require.ErrorContains(t, err, "raft proposal dropped", "the client receives the error after electionWait")
		assert.Equal(t, electionWait, time.Since(start))

		handler, tries := dropUntil(time.Hour)
		_, err = callDropped(t.Context(), "/etcdserverpb.Auth/UserAdd", handler)
		require.Error(t, err)
		assert.Equal(t, 1, *tries, "not retried, because the request may consist of several proposals")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		handler, _ = dropUntil(time.Hour)
		_, err = callDropped(ctx, "/etcdserverpb.KV/Put", handler)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "not retried after the client's deadline")
	})
}

func TestRetryDropped_otherErrors(t *testing.T) {
	for _, expected := range []error{nil, errors.New("raft proposal dropped, perhaps"), status.Error(codes.Unavailable, "etcdserver: request timed out")} {
		tries := 0
		_, err := callDropped(t.Context(), "/etcdserverpb.KV/Put", func(context.Context, any) (any, error) { tries++; return nil, expected })
		require.Equal(t, expected, err)
		assert.Equal(t, 1, tries)
	}
}

func TestDrain_runningRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrain()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		d.finish(ctx, d.track(ctx, "/etcdserverpb.Maintenance/Snapshot"))
		finish := make(chan struct{})
		go func() {
			_, _ = d.unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/etcdserverpb.KV/Put"}, func(context.Context, any) (any, error) {
				<-finish
				return nil, nil
			})
		}()
		synctest.Wait()
		d.start()
		time.Sleep(drainGrace)
		assert.Equal(t, []string{"client unknown is not reading the response to Maintenance/Snapshot"}, d.unreadResponses())
		assert.False(t, d.isExpired(), "a put is in progress")
		close(finish)
		synctest.Wait()
		assert.False(t, d.isExpired(), "the response to the put may not have been sent yet")
		time.Sleep(drainQuiet)
		assert.True(t, d.isExpired())
		end()
		synctest.Wait()
		assert.Empty(t, d.unreadResponses())
	})
}

func TestDescribeUnreachable(t *testing.T) {
	const logged, other = "http://etcd-1.example.org:2380", "http://10.0.0.1:2380"
	for name, c := range map[string]struct {
		name, configured, proxy, noProxy, want string
	}{
		"same address in the log and initial-cluster": {"etcd-1", logged, "", "", "etcd-1 (http://etcd-1.example.org:2380)"},
		"member without a name":                       {"", "", "", "", "http://etcd-1.example.org:2380"},
		"different address in initial-cluster":        {"etcd-1", other, "", "", "etcd-1 (http://etcd-1.example.org:2380, according to etcd's log; initial-cluster has http://10.0.0.1:2380)"},
		"proxy":                                       {"etcd-1", logged, "http://user:secret@proxy:3128", "", "etcd-1 (http://etcd-1.example.org:2380, through the proxy http://user:xxxxx@proxy:3128: add etcd-1.example.org to NO_PROXY)"},
		"proxy with NO_PROXY":                         {"etcd-1", logged, "http://proxy:3128", ".example.org", "etcd-1 (http://etcd-1.example.org:2380)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HTTP_PROXY", c.proxy)
			t.Setenv("http_proxy", c.proxy)
			t.Setenv("NO_PROXY", c.noProxy)
			t.Setenv("no_proxy", c.noProxy)
			var configured types.URLs
			if c.configured != "" {
				var err error
				configured, err = types.NewURLs([]string{c.configured})
				require.NoError(t, err)
			}
			m := &membership.Member{RaftAttributes: membership.RaftAttributes{PeerURLs: []string{logged}}, Attributes: membership.Attributes{Name: c.name}}
			assert.Equal(t, c.want, describeUnreachable(m, configured))
		})
	}
}

// newEtcdLog returns a logger for etcd and a buffer with its output.
func newEtcdLog() (*zap.Logger, *bytes.Buffer) {
	var written bytes.Buffer
	m := &Member{options: Options{Log: zerolog.New(&written)}}
	return m.logger("info"), &written
}

func linesOf(t *testing.T, written *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	for line := range bytes.Lines(written.Bytes()) {
		var read map[string]any
		require.NoError(t, json.Unmarshal(line, &read))
		lines = append(lines, read)
	}
	return lines
}

func TestLogger_repeatedLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newEtcdLog()
		for range 93_221 {
			log.Warn("failed to publish local member to cluster through raft", zap.Error(errors.New("too many requests")))
		}
		require.Len(t, linesOf(t, written), maxEqualLines)
		log.Info("another")
		another := linesOf(t, written)[maxEqualLines]
		assert.EqualValues(t, 93_221-maxEqualLines, another["dropped_lines"])
		assert.NotEmpty(t, another["caller"])
		time.Sleep(sampleInterval)
		log.Warn("failed to publish local member to cluster through raft")
		lines := linesOf(t, written)
		require.Len(t, lines, maxEqualLines+2, "the line is written again in the next interval")
		assert.Nil(t, lines[maxEqualLines+1]["dropped_lines"])
	})
}

func TestLogger_occasionalLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newEtcdLog()
		for range 100 {
			log.Warn("occasional warning")
			time.Sleep(sampleInterval / (maxEqualLines - 1))
		}
		assert.Len(t, linesOf(t, written), 100)
	})
}

// The logger must record why a start is slow if etcd reports the reason only in its log.
func TestLogger_reasonForASlowStart(t *testing.T) {
	m := &Member{options: Options{Log: zerolog.Nop()}}
	log := m.logger("info")
	for range 2 * maxEqualLines {
		m.doing.Store("")
		log.Warn("request was ignored: cluster ID mismatch")
		assert.Contains(t, m.Doing(), "waiting for a peer that ignores this member (cluster ID mismatch)")
	}
}
