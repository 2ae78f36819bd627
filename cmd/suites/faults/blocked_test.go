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

// A blockedStart blocks a process at a certain point during its start.
type blockedStart struct {
	// park returns the blocked process and a function that prepares the pod for the next process.
	park   func(p *harness.Pod) (run *harness.Run, leave func())
	budget time.Duration
	forced []int // exit statuses allowed in this state in addition to stimulus.allowed
}

var parkings = map[string]blockedStart{
	"waiting for the volume's lock":   {park: parkAtVolume, budget: harness.AbortBudget},
	"status in flight":                {park: parkAtSidecar(harness.StatusPath, harness.Block), budget: harness.AbortBudget},
	"trigger in flight":               {park: parkAtSidecar(harness.StartPath, harness.Block), budget: harness.AbortBudget},
	"backing off":                     {park: blockInBackoff, budget: harness.AbortBudget},
	"half a configuration read":       {park: parkAtSidecar(harness.ConfigPath, blockAfterHalf), budget: harness.AbortBudget},
	"waiting for the database's lock": {park: blockOnDB, budget: harness.AbortBudget},
	"waiting for quorum":              {park: parkAtQuorum, budget: harness.StopBudget},
	"serving":                         {park: parkServing, budget: harness.StopBudget},
	"serving a thousand watches":      {park: blockInWatch, budget: harness.StopBudget},
	"closing":                         {park: blockInClose, budget: harness.StopBudget, forced: []int{143, 130, -1}},
}

func nothing() {}

// blockAfterHalf sends only the first half of the configuration.
func blockAfterHalf(_ *harness.Sidecar, w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte("name: etcd-main-0\ndata-"))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

func parkAtVolume(p *harness.Pod) (*harness.Run, func()) {
	release := harness.LockFile(p.T, p.Volume)
	run := p.Start()
	run.AwaitLine(harness.Line{"event": "volume busy"})
	return run, release
}

func parkAtSidecar(path string, f harness.Fault) func(p *harness.Pod) (*harness.Run, func()) {
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
	harness.Eventually(p.T, "the backoff is long", func() bool { return len(p.Sidecar.Requests(harness.StatusPath)) > 4 })
	return run, p.Sidecar.ClearFaults
}

func blockOnDB(p *harness.Pod) (*harness.Run, func()) {
	p.StartAndStop()
	run, release := p.StartAndLockDB()
	run.AwaitLine(harness.Line{"message": "the database is locked by another process"})
	return run, release
}

// parkAtQuorum starts a member without a quorum. The returned function turns it into a single-member cluster.
func parkAtQuorum(p *harness.Pod) (*harness.Run, func()) {
	alone := p.SingleMember()
	p.WithoutQuorum()
	run := p.Start()
	run.AwaitLine(harness.Line{"message": "is starting a new election at term"})
	return run, func() {
		p.Config = alone
		p.Config["force-new-cluster"] = true
	}
}

func parkServing(p *harness.Pod) (*harness.Run, func()) {
	run := p.StartReady()
	return run, nothing
}

// blockInWatch opens a separate stream for each watch. etcd's own client would use one stream for all watches, and
// closing it can hang while many streams are reconnecting.
func blockInWatch(p *harness.Pod) (*harness.Run, func()) {
	run, leave := parkServing(p)
	watching, forget := context.WithCancel(context.Background())
	p.T.Cleanup(forget)
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
	for _, stream := range streams { // receiving the responses one after the other would take a minute on a busy machine
		reply, err := stream.Recv()
		require.NoError(p.T, err)
		require.True(p.T, reply.Created)
	}
	return run, leave
}

func blockInClose(p *harness.Pod) (*harness.Run, func()) {
	run, leave := parkServing(p)
	p.BlockClose()
	run.Signal(syscall.SIGTERM)
	run.AwaitLine(harness.Line{"to": "Terminating", "event": "signal"})
	return run, leave
}
