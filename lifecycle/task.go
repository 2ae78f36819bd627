package lifecycle

import (
	"context"
	"time"
)

// task is a piece of work that runs in a goroutine of its own and posts one completion.
type task struct {
	number int
	cancel context.CancelFunc
	ended  chan struct{} // closed when its goroutine does nothing any more
}

// noTask is work that has ended before it began.
func noTask() task {
	ended := make(chan struct{})
	close(ended)
	return task{cancel: func() {}, ended: ended}
}

// start runs a row's blocking actions. Pieces of work never overlap: the last one is cancelled and waited for first,
// which is what makes the exit record safe to use from them.
func (d *Driver) start(actions []Action, payload Payload) {
	d.work.cancel()
	d.work = d.spawn(actions, payload, d.work.ended)
}

// startAside runs an action beside the pieces of work. It may ask the sidecar and must touch nothing else.
func (d *Driver) startAside(action Action) {
	d.aside.cancel()
	d.aside = d.spawn([]Action{action}, Payload{}, d.aside.ended)
}

func (d *Driver) spawn(actions []Action, payload Payload, before <-chan struct{}) task {
	d.tasks++
	ctx, cancel := context.WithCancel(context.Background())
	spawned := task{number: d.tasks, cancel: cancel, ended: make(chan struct{})}
	w := &work{world: &d.options.World, facts: d.core.Facts, payload: payload, yaml: d.config}
	d.working.Go(func() {
		<-before
		done := w.run(ctx, actions)
		close(spawned.ended)
		number := spawned.number
		if done.event == Crashed {
			number = 0 // a panic is never late
		}
		d.post(d.mailbox, message{event: done.event, payload: done.payload, task: number})
	})
	return spawned
}

// linger waits a moment for goroutines that were cancelled. One that hangs in a system call can't be waited for.
func (d *Driver) linger() {
	ended := make(chan struct{})
	go func() {
		d.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lingering):
		d.log.Warn().Msg("work is left behind that could not be cancelled")
	}
}
