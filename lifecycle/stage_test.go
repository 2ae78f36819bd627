package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap"
	"etcd-wrapper/exitcode"
	. "etcd-wrapper/lifecycle"
)

// stage is a driver with a simulated runtime that behaves as the test specifies and records its calls. By default, the
// status is New, the sidecar accepts the request, the next status is Successful, and etcd starts, runs and closes.
type stage struct {
	mu       sync.Mutex
	done     []string                         // recorded calls
	statuses []bootstrap.InitializationStatus // statuses of the sidecar in order; the last one is repeated

	// These functions return the results of the calls. They may block to delay a call.
	status, trigger, config, open, watch                          func(context.Context) error
	lock, probe, configure, expose, lockData, remove, write, shut func() error

	cause error    // reason that the sidecar returns for a failed initialization
	logs  []string // WAL directories on the volume

	yaml   string // configuration that the sidecar returns; clusterOfThree by default
	opened bool   // whether etcd was opened
	driver *Driver

	configured string // configuration with which etcd was started
}

func newStage(statuses ...bootstrap.InitializationStatus) *stage {
	if len(statuses) == 0 {
		statuses = []bootstrap.InitializationStatus{bootstrap.New, bootstrap.Successful}
	}
	fine, fineNow := func(context.Context) error { return nil }, func() error { return nil }
	s := &stage{
		yaml: clusterOfThree, statuses: statuses, status: fine, trigger: fine, config: fine, open: fine, watch: hang,
		lock: fineNow, probe: fineNow, configure: fineNow, expose: fineNow, lockData: fineNow, remove: fineNow, write: fineNow, shut: fineNow,
	}
	s.driver = NewDriver(Options{Runtime: s.runtime(), Log: zerolog.Nop()})
	return s
}

func (s *stage) runtime() Runtime {
	return Runtime{
		Sidecar: stageSidecar{s}, Volume: stageVolume{s}, Record: stageRecord{s}, Member: stageMember{s}, Server: stageServer{s},
		Mode:        func() (bootstrap.Mode, string) { return bootstrap.Full, "reason" },
		LeaveReason: func(string) error { s.note("leave reason"); return nil },
	}
}

// Configurations of new clusters. When the result arrives, a prefetched configuration is usable for one member, but
// not for three, whose configuration depends on the state of the cluster.
const (
	clusterOfOne   = "{data-dir: /data, initial-cluster: etcd-0=http://127.0.0.1:2380, initial-cluster-state: new}"
	clusterOfThree = "{data-dir: /data, initial-cluster: 'etcd-0=http://a,etcd-1=http://b,etcd-2=http://c', initial-cluster-state: new}"
)

// pass advances the fake time of a synctest bubble and waits until the driver is idle.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// hang waits until ctx is done.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

var errStage = errors.New("simulated failure")

// failing returns a call that fails the given number of times and then succeeds.
func failing(times int) func(context.Context) error {
	return func(context.Context) error {
		if times--; times >= 0 {
			return errStage
		}
		return nil
	}
}

func (s *stage) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, what)
}

// succeed sets the sidecar's status to Successful.
func (s *stage) succeed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses = []bootstrap.InitializationStatus{bootstrap.Successful}
}

// did returns all recorded calls.
func (s *stage) did() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.done)
}

// count returns the number of calls with the given name.
func (s *stage) count(what string) (times int) {
	for _, done := range s.did() {
		if done == what {
			times++
		}
	}
	return times
}

// visits returns the visited states in order.
func (s *stage) visits() []State {
	visited := []State{Query}
	for _, t := range s.driver.Snapshot().History {
		if t.From != t.To {
			visited = append(visited, t.To)
		}
	}
	return visited
}

// run runs the driver in a goroutine and returns a function that waits for it to finish.
func (s *stage) run(t *testing.T) func() Outcome {
	t.Helper()
	done := make(chan Outcome, 1)
	go func() { done <- s.driver.Run() }()
	return func() Outcome { return <-done }
}

// start runs the driver and lets the given fake time pass. The driver is stopped when the test ends.
func (s *stage) start(t *testing.T, d time.Duration) {
	t.Helper()
	wait := s.run(t)
	t.Cleanup(func() { s.sigterm(); wait() })
	pass(d)
}

func (s *stage) sigterm() { s.driver.Signal(syscall.SIGTERM) }

type (
	stageSidecar struct{ *stage }
	stageVolume  struct{ *stage }
	stageRecord  struct{ *stage }
	stageMember  struct{ *stage }
	stageServer  struct{ *stage }
)

func (s stageSidecar) Status(ctx context.Context) (bootstrap.InitializationStatus, error) {
	s.note("ask status")
	if err := s.status(ctx); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.statuses[0]
	if len(s.statuses) > 1 {
		s.statuses = s.statuses[1:]
	}
	return status, nil
}

func (s stageSidecar) WhyFailed() error { return s.cause }

func (s stageSidecar) Trigger(ctx context.Context, mode bootstrap.Mode) error {
	s.note("trigger " + string(mode))
	return s.trigger(ctx)
}

func (s stageSidecar) Config(ctx context.Context) ([]byte, error) {
	s.note("fetch config")
	s.mu.Lock()
	yaml := []byte(s.yaml)
	s.mu.Unlock()
	return yaml, s.config(ctx)
}

func (s stageVolume) Lock() error { return s.lock() }

func (s stageVolume) Probe() error { return s.probe() }

func (s stageVolume) LockData() error { return s.lockData() }

func (s stageVolume) Logs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs
}

func (s stageRecord) Invalidate() error {
	s.note("invalidate record")
	return nil
}

func (s stageRecord) Invalid() bool { return slices.Contains(s.did(), "invalidate record") }

func (s stageRecord) Remove() error {
	s.note("remove record")
	return s.remove()
}

func (s stageRecord) Restore() error {
	s.note("restore record")
	return nil
}

func (s stageRecord) Write(word exitcode.Word) error {
	s.note("write " + string(word))
	return s.write()
}

func (s stageMember) Configure(yaml []byte) error {
	s.note("configure")
	s.configured = string(yaml)
	return s.configure()
}

func (s stageMember) Open(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.opened = true
	s.note("open etcd")
	return s.open(ctx)
}

func (s stageMember) Watch(ctx context.Context) error { return s.watch(ctx) }

func (s stageMember) Close() (bool, error) {
	s.note("close etcd")
	return s.opened, s.shut()
}

func (s stageServer) Expose() error {
	s.note("serve readyz")
	return s.expose()
}
