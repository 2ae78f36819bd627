package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// Event is a Kubernetes Event to post.
type Event struct {
	Reason  string // one CamelCase word, by which events can be filtered
	Subject string // distinguishes events with the same reason; may be empty
	Warning bool
	Note    string // a sentence
	At      time.Time
}

// EventPod is the pod that the events are about.
type EventPod struct {
	Name string
	UID  string // if empty, `kubectl describe pod` does not show the events
}

const (
	// maxQueue is the maximum number of queued events. When the queue is full, new events are dropped.
	maxQueue = 64
	// repeatPause is the time for which repetitions of an event are held back. The latest one is then posted with a
	// count.
	repeatPause = 5 * time.Minute
	// stopTimeout limits how long Stop keeps posting queued events.
	stopTimeout = time.Second
	// maxNote is the maximum length of a note, in bytes, that the API server accepts.
	maxNote = 1024
)

// EventRecorder posts events from a goroutine that runs until Stop is called. Post is safe for concurrent use.
type EventRecorder struct {
	post   func(context.Context, Event) error
	log    zerolog.Logger
	queue  chan Event
	stop   chan struct{}
	cancel context.CancelFunc // cancels a running request
	done   chan struct{}

	// The fields below are used only by the goroutine.
	recent  map[string]*repeat
	failure string // last logged error
}

// repeat contains the held-back repetitions of an event.
type repeat struct {
	until  time.Time
	latest Event
	times  int
}

// NewEventRecorder starts a goroutine that posts events about a pod.
func NewEventRecorder(account Account, pod EventPod, log zerolog.Logger) *EventRecorder {
	server := NewServer(account)
	return startRecorder(func(ctx context.Context, e Event) error {
		namespace, err := account.read("namespace")
		if err != nil {
			return err
		}
		return server.Create(ctx, eventKind, newEventObject(namespace, pod, e))
	}, log)
}

func startRecorder(post func(context.Context, Event) error, log zerolog.Logger) *EventRecorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &EventRecorder{
		post: post, log: log, queue: make(chan Event, maxQueue), stop: make(chan struct{}), cancel: cancel, done: make(chan struct{}),
		recent: map[string]*repeat{},
	}
	go r.run(ctx)
	return r
}

// Post queues an event. Post never blocks.
func (r *EventRecorder) Post(e Event) {
	select {
	case r.queue <- e:
	default:
		r.log.Debug().Str("event", e.Reason).Msg("dropping an event: too many events are queued for the API server")
	}
}

// Stop spends up to a second posting queued events, and waits for pending requests to finish. Post must not be called
// after Stop.
func (r *EventRecorder) Stop() {
	close(r.stop)
	defer time.AfterFunc(stopTimeout, r.cancel).Stop()
	<-r.done
}

func (r *EventRecorder) run(ctx context.Context) {
	defer close(r.done)
	defer r.cancel()
	clock := time.NewTicker(repeatPause / 10)
	defer clock.Stop()
	for {
		select {
		case e := <-r.queue:
			r.accept(ctx, e)
		case <-clock.C:
			r.postRepeats(ctx, false)
		case <-r.stop:
			for len(r.queue) > 0 {
				r.accept(ctx, <-r.queue)
			}
			r.postRepeats(ctx, true)
			return
		}
	}
}

// accept posts an event, or holds it back if a similar event was posted recently.
func (r *EventRecorder) accept(ctx context.Context, e Event) {
	key := e.Reason + "/" + e.Subject
	if before := r.recent[key]; before != nil {
		before.latest = e
		before.times++
		return
	}
	r.recent[key] = &repeat{until: time.Now().Add(repeatPause)}
	r.send(ctx, e)
}

// postRepeats posts the events that have been held back long enough, or every held-back event if all is set.
func (r *EventRecorder) postRepeats(ctx context.Context, all bool) {
	for key, held := range r.recent {
		switch {
		case !all && time.Now().Before(held.until):
			continue
		case held.times == 0:
			delete(r.recent, key)
			continue
		case held.times > 1:
			held.latest.Note += fmt.Sprintf(" (%d times within %s)", held.times, repeatPause)
		}
		r.recent[key] = &repeat{until: time.Now().Add(repeatPause)}
		r.send(ctx, held.latest)
	}
}

// send posts one event without retrying. It logs an error only if it differs from the previous one.
func (r *EventRecorder) send(ctx context.Context, e Event) {
	within, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	err := r.post(within, e)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case err == nil:
		r.failure = ""
	case err.Error() != r.failure:
		r.failure = err.Error()
		r.log.Warn().Str("event", e.Reason).Str("reason", r.failure).Msg("cannot post an event; dropping it")
	}
}

var eventKind = Kind{Group: "events.k8s.io/v1", Plural: "events", Noun: "Event", Verbs: "create"}

// reporter is the name of this program as a reporting controller.
const reporter = "etcd-wrapper"

// newEventObject returns an events.k8s.io/v1 Event.
func newEventObject(namespace string, pod EventPod, e Event) map[string]any {
	severity := "Normal"
	if e.Warning {
		severity = "Warning"
	}
	regarding := map[string]string{"apiVersion": "v1", "kind": "Pod", "name": pod.Name, "namespace": namespace}
	if pod.UID != "" {
		regarding["uid"] = pod.UID
	}
	return map[string]any{
		"apiVersion": eventKind.Group, "kind": eventKind.Noun, "type": severity, "reason": e.Reason, "action": e.Reason, "note": truncate(e.Note),
		"metadata":  map[string]string{"generateName": pod.Name + "-", "namespace": namespace},
		"eventTime": microTime{e.At}, "reportingController": reporter, "reportingInstance": pod.Name, "regarding": regarding,
	}
}

func truncate(note string) string {
	const end = "…"
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len(end)], "") + end
	}
	return note
}
