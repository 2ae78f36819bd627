package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// Event is a Kubernetes Event to be posted.
type Event struct {
	Reason  string // one word in camel case, for filters
	Subject string // distinguishes events with the same reason; may be empty
	Warning bool
	Note    string // a sentence
	At      time.Time
}

// EventPod is the pod that events are about.
type EventPod struct {
	Name string
	UID  string // without it `kubectl get events` shows them, and `kubectl describe pod` does not
}

const (
	// queueRoom bounds the queued events. More are dropped.
	queueRoom = 64
	// repeatPause is the time after an event during which its repetitions are held back. The latest is then posted
	// with their number.
	repeatPause = 5 * time.Minute
	// goodbye bounds how long End posts queued events.
	goodbye = time.Second
	// longestNote is the largest note in bytes that the API server accepts.
	longestNote = 1024
)

// Poster posts events in one goroutine from NewPoster to End. Tell is safe for concurrent use.
type Poster struct {
	post  func(context.Context, Event) error
	log   zerolog.Logger
	queue chan Event
	stop  chan struct{}
	over  chan struct{}

	// Used by the goroutine only.
	recent  map[string]*repeated
	refused string // the last logged reason for which the API server rejected an event
}

// repeated counts the repetitions of an event that are held back.
type repeated struct {
	until  time.Time
	latest Event
	times  int
}

// NewPoster starts to post events about a pod with its service account.
func NewPoster(account Account, pod EventPod, log zerolog.Logger) *Poster {
	server := NewServer(account)
	return startPoster(func(ctx context.Context, e Event) error {
		namespace, err := account.Namespace()
		if err != nil {
			return err
		}
		return server.Create(ctx, eventKind, newEventObject(namespace, pod, e))
	}, log)
}

func startPoster(post func(context.Context, Event) error, log zerolog.Logger) *Poster {
	p := &Poster{
		post: post, log: log, queue: make(chan Event, queueRoom), stop: make(chan struct{}), over: make(chan struct{}),
		recent: map[string]*repeated{},
	}
	go p.run()
	return p
}

// Tell queues an event. It never blocks.
func (p *Poster) Tell(e Event) {
	select {
	case p.queue <- e:
	default:
		p.log.Debug().Str("event", e.Reason).Msg("too many events wait for the API server: one is dropped")
	}
}

// End posts queued events for up to a second and returns once no request to the API server is running. Do not call
// Tell after it.
func (p *Poster) End() {
	close(p.stop)
	<-p.over
}

func (p *Poster) run() {
	defer close(p.over)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // a running request may finish within it
		select {
		case <-p.stop:
			time.AfterFunc(goodbye, cancel)
		case <-ctx.Done():
		}
	}()
	clock := time.NewTicker(repeatPause / 10)
	defer clock.Stop()
	for {
		select {
		case e := <-p.queue:
			p.take(ctx, e)
		case <-clock.C:
			p.postHeld(ctx, false)
		case <-p.stop:
			for len(p.queue) > 0 {
				p.take(ctx, <-p.queue)
			}
			p.postHeld(ctx, true)
			return
		}
	}
}

// take posts an event, or holds it back if a similar one was posted recently.
func (p *Poster) take(ctx context.Context, e Event) {
	key := e.Reason + "/" + e.Subject
	if before := p.recent[key]; before != nil {
		before.latest = e
		before.times++
		return
	}
	p.recent[key] = &repeated{until: time.Now().Add(repeatPause)}
	p.send(ctx, e)
}

// postHeld posts the events that were held back for long enough, or all of them.
func (p *Poster) postHeld(ctx context.Context, all bool) {
	for key, held := range p.recent {
		switch {
		case !all && time.Now().Before(held.until):
			continue
		case held.times == 0:
			delete(p.recent, key)
			continue
		case held.times > 1:
			held.latest.Note += fmt.Sprintf(" (%d times within %s)", held.times, repeatPause)
		}
		p.recent[key] = &repeated{until: time.Now().Add(repeatPause)}
		p.send(ctx, held.latest)
	}
}

// send posts one event. It does not retry, and logs each reason for a rejection once.
func (p *Poster) send(ctx context.Context, e Event) {
	within, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	err := p.post(within, e)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case err == nil:
		p.refused = ""
	case err.Error() != p.refused:
		p.refused = err.Error()
		p.log.Warn().Str("event", e.Reason).Str("reason", p.refused).Msg("posting an event failed: it is dropped, etcd keeps serving")
	}
}

var eventKind = Kind{Group: "events.k8s.io/v1", Plural: "events", Noun: "Event", Verbs: "create"}

// eventObject is an Event of events.k8s.io/v1.
type eventObject struct {
	APIVersion          string        `json:"apiVersion"`
	Kind                string        `json:"kind"`
	Metadata            eventMetadata `json:"metadata"`
	EventTime           string        `json:"eventTime"`
	ReportingController string        `json:"reportingController"`
	ReportingInstance   string        `json:"reportingInstance"`
	Action              string        `json:"action"`
	Reason              string        `json:"reason"`
	Regarding           reference     `json:"regarding"`
	Note                string        `json:"note"`
	Type                string        `json:"type"`
}

type eventMetadata struct {
	GenerateName string `json:"generateName"`
	Namespace    string `json:"namespace"`
}

type reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Namespace  string `json:"namespace"`
	UID        string `json:"uid,omitempty"`
}

// reporter identifies this program as the reporting controller.
const reporter = "etcd-wrapper"

func newEventObject(namespace string, pod EventPod, e Event) eventObject {
	severity := "Normal"
	if e.Warning {
		severity = "Warning"
	}
	return eventObject{
		APIVersion: eventKind.Group, Kind: eventKind.Noun, Metadata: eventMetadata{GenerateName: pod.Name + "-", Namespace: namespace},
		EventTime: e.At.UTC().Format("2006-01-02T15:04:05.000000Z07:00"), ReportingController: reporter, ReportingInstance: pod.Name,
		Action: e.Reason, Reason: e.Reason, Note: shortened(e.Note), Type: severity,
		Regarding: reference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, Namespace: namespace, UID: pod.UID},
	}
}

func shortened(note string) string {
	if len(note) <= longestNote {
		return note
	}
	const end = "…"
	return strings.ToValidUTF8(note[:longestNote-len(end)], "") + end
}
