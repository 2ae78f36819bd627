package faults_test

import (
	"context"
	"net/http"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"etcd-wrapper/cmd/suites/harness"
)

// A blockedState is a state in which a process can be blocked.
type blockedState struct {
	// block starts a process and waits until it is in the state. unblock ends the cause after the process has exited,
	// so that the next process can start.
	block   func(p *harness.Pod) (run *harness.Run, unblock func())
	budget  time.Duration // maximum time until the process exits
	allowed []int         // exit statuses that are allowed in addition to those of the stimulus
}

var blockedStates = map[string]blockedState{
	"waiting for the volume's lock":           {block: blockAtVolume, budget: harness.AbortBudget},
	"waiting for the status":                  {block: blockAtSidecar(harness.StatusPath, harness.Block), budget: harness.AbortBudget},
	"waiting for the start of the validation": {block: blockAtSidecar(harness.StartPath, harness.Block), budget: harness.AbortBudget},
	"backing off":                             {block: blockInBackoff, budget: harness.AbortBudget},
	"reading the configuration":               {block: blockAtSidecar(harness.ConfigPath, blockAfterHalf), budget: harness.AbortBudget},
	"waiting for the database's lock":         {block: blockOnDB, budget: harness.AbortBudget},
	"waiting for a quorum":                    {block: blockAtQuorum, budget: harness.StopBudget},
	"serving":                                 {block: blockServing, budget: harness.StopBudget},
	"serving 1,000 watches":                   {block: blockInWatch, budget: harness.StopBudget},
	"closing":                                 {block: blockInClose, budget: harness.StopBudget, allowed: []int{143, 130, -1}},
}

func nothing() {}

// blockAfterHalf sends the first half of the configuration and then keeps the connection open.
func blockAfterHalf(_ *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte("name: etcd-main-0\ndata-"))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

func blockAtVolume(p *harness.Pod) (*harness.Run, func()) {
	release := harness.LockFile(p.T, p.Volume)
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "volume busy"})
	return run, release
}

func blockAtSidecar(path string, f harness.Fault) func(p *harness.Pod) (*harness.Run, func()) {
	return func(p *harness.Pod) (*harness.Run, func()) {
		p.Sidecar.Broken[path] = f
		run := p.Start()
		p.Sidecar.Await(path)
		return run, p.Sidecar.ClearFaults
	}
}

func blockInBackoff(p *harness.Pod) (*harness.Run, func()) {
	p.Sidecar.Broken[harness.StatusPath] = harness.Reply(http.StatusInternalServerError, "")
	run := p.Start()
	harness.Eventually(p.T, "the wrapper has retried more than 4 times, so that its pauses are long", func() bool { return len(p.Sidecar.Requests(harness.StatusPath)) > 4 })
	return run, p.Sidecar.ClearFaults
}

func blockOnDB(p *harness.Pod) (*harness.Run, func()) {
	p.StartAndStop()
	run, release := p.StartAndLockDB()
	run.AwaitLine(harness.Line{"message": "the database is locked by another process"})
	return run, release
}

// blockAtQuorum starts a member of a cluster without a quorum. unblock makes it a single-member cluster, so that the
// next process becomes ready.
func blockAtQuorum(p *harness.Pod) (*harness.Run, func()) {
	singleMember := p.SingleMember()
	p.WithoutQuorum()
	run := p.Start()
	run.AwaitLine(harness.Line{"message": "is starting a new election at term"})
	return run, func() {
		p.Config = singleMember
		p.Config["force-new-cluster"] = true
	}
}

func blockServing(p *harness.Pod) (*harness.Run, func()) {
	run := p.StartReady()
	return run, nothing
}

// blockInWatch opens 1,000 watches, each on a stream of its own. It does not use etcd's own client, because closing
// that client can hang while many streams are reconnecting.
func blockInWatch(p *harness.Pod) (*harness.Run, func()) {
	run, leave := blockServing(p)
	watching, cancel := context.WithCancel(context.Background())
	p.T.Cleanup(cancel)
	watches := etcdserverpb.NewWatchClient(p.Etcd().ActiveConnection())
	var streams [1000]etcdserverpb.Watch_WatchClient
	for i := range streams {
		stream, err := watches.Watch(watching)
		require.NoError(p.T, err)
		require.NoError(p.T, stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
			CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("key")},
		}}))
		streams[i] = stream
	}
	for _, stream := range streams { // wait after opening all watches, because waiting for each one in turn is slow
		reply, err := stream.Recv()
		require.NoError(p.T, err)
		require.True(p.T, reply.Created)
	}
	return run, leave
}

func blockInClose(p *harness.Pod) (*harness.Run, func()) {
	run, leave := blockServing(p)
	p.BlockClose()
	run.Signal(syscall.SIGTERM)
	run.AwaitLine(harness.Line{"to": "Terminating", "event": "signal"})
	return run, leave
}
