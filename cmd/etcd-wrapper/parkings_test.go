package main_test

import (
	"context"
	"net/http"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// parking keeps a process at a spot of its life.
type parking struct {
	// park returns the process once it is there, and what makes the place usable for the next one.
	park   func(p *place) (w *wrapper, leave func())
	budget time.Duration
	forced []int // statuses that the spot allows beside those of the stimulus
}

var parkings = map[string]parking{
	"waiting for the volume's lock":   {park: parkAtVolume, budget: abortBudget},
	"status in flight":                {park: parkAtSidecar(statusPath, hang), budget: abortBudget},
	"trigger in flight":               {park: parkAtSidecar(startPath, hang), budget: abortBudget},
	"backing off":                     {park: parkBackingOff, budget: abortBudget},
	"half a configuration read":       {park: parkAtSidecar(configPath, hangHalfway), budget: abortBudget},
	"waiting for the database's lock": {park: parkAtDatabase, budget: abortBudget},
	"waiting for quorum":              {park: parkAtQuorum, budget: stopBudget},
	"serving":                         {park: parkServing, budget: stopBudget},
	"serving a thousand watches":      {park: parkWatched, budget: stopBudget},
	"closing":                         {park: parkClosing, budget: stopBudget, forced: []int{143, 130, -1}},
}

func nothing() {}

func parkAtVolume(p *place) (*wrapper, func()) {
	release := lockFile(p.t, p.volume)
	w := p.start()
	w.awaitLine(line{"event": "volume busy"})
	return w, release
}

func parkAtSidecar(path string, f fault) func(p *place) (*wrapper, func()) {
	return func(p *place) (*wrapper, func()) {
		p.sidecar.broken[path] = f
		w := p.start()
		p.sidecar.await(path)
		return w, p.sidecar.heal
	}
}

func parkBackingOff(p *place) (*wrapper, func()) {
	p.sidecar.broken[statusPath] = say(http.StatusInternalServerError, "")
	w := p.start()
	eventually(p.t, "the pauses are long", func() bool { return len(p.sidecar.requests(statusPath)) > 4 })
	return w, p.sidecar.heal
}

func parkAtDatabase(p *place) (*wrapper, func()) {
	first := p.start()
	first.awaitReady()
	first.stopCleanly()
	w, release := p.startAndLockTheDatabase()
	w.awaitLine(line{"message": "another process holds the database"})
	return w, release
}

// parkAtQuorum leaves a member that nobody can elect; as the only one of its cluster it can go on.
func parkAtQuorum(p *place) (*wrapper, func()) {
	alone := p.singleMember()
	p.withoutQuorum()
	w := p.start()
	w.awaitLine(line{"message": "is starting a new election at term"})
	return w, func() {
		p.config = alone
		p.config["force-new-cluster"] = true
	}
}

func parkServing(p *place) (*wrapper, func()) {
	w := p.start()
	w.awaitReady()
	return w, nothing
}

// parkWatched opens a stream for each watch. etcd's own client would let them share one, and its close can hang when
// many of them are reconnecting.
func parkWatched(p *place) (*wrapper, func()) {
	w, leave := parkServing(p)
	watching, forget := context.WithTimeout(context.Background(), time.Minute)
	p.t.Cleanup(forget)
	watches := etcdserverpb.NewWatchClient(p.etcd().ActiveConnection())
	for range 1000 {
		stream, err := watches.Watch(watching)
		require.NoError(p.t, err)
		require.NoError(p.t, stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
			CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("key")},
		}}))
		reply, err := stream.Recv()
		require.NoError(p.t, err)
		require.True(p.t, reply.Created)
	}
	return w, leave
}

func parkClosing(p *place) (*wrapper, func()) {
	w, leave := parkServing(p)
	p.holdClose()
	w.signal(syscall.SIGTERM)
	w.awaitLine(line{"to": "Terminating", "event": "signal"})
	return w, leave
}

// heal takes all faults back.
func (s *sidecar) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.broken)
	clear(s.faults)
}
