package writer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"etcd-wrapper/backup/writer/capture"
	"etcd-wrapper/backup/writer/spool"
)

// Shipper keeps backups going. New makes one, Run runs it; the other methods may be called from any goroutine.
type Shipper struct {
	options Options
	pace    pace
	reader  *capture.Reader
	spool   *spool.Spool
	room    func(size int64) error // says whether the volume has so many bytes to spare

	events chan func() // what the owner is told, and does
	ended  chan struct{}
	jobs   sync.WaitGroup
	facts  atomic.Pointer[Facts]

	owned // by the goroutine of Run
}

// New opens the spool, takes up what waits there, and starts nothing. An error says that the spool cannot be used.
func New(options Options) (*Shipper, error) {
	waiting, err := openSpool(options)
	if err != nil {
		return nil, err
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Gate == nil {
		options.Gate = open{}
	}
	s := &Shipper{
		options: options, pace: usual, reader: capture.NewReader(options.Etcd.Backend), spool: waiting, room: waiting.Room,
		events: make(chan func()), ended: make(chan struct{}),
	}
	s.recall()
	if former := options.Former; former != nil {
		s.came = former.came
		s.archive, s.abilities, s.generation, s.vetted = former.archive, former.abilities, former.generation, former.vetted
		s.stored, s.last, s.newest = former.stored, former.last, former.newest
		s.reserving.revision, s.merging.at = former.reserving.revision, time.Now()
	}
	if err := s.resume(); err != nil {
		return nil, err
	}
	s.facts.Store(&Facts{Role: Unknown, SpoolLimit: options.SpoolLimit, SpoolBytes: waiting.Bytes()})
	return s, nil
}

// openSpool takes up the newest that waits.
func openSpool(options Options) (*spool.Spool, error) {
	waiting, useless, err := spool.Open(options.SpoolDir, options.SpoolLimit, options.Keys)
	if err != nil {
		return nil, err
	}
	older, err := waiting.Newest()
	if older != nil {
		useless = append(useless, older)
	}
	for _, reason := range useless {
		options.Log.Warn().Err(reason).Msg("backups: what waited for the store cannot be used, is set aside, and is taken from the database again")
	}
	return waiting, err
}

// open is a gate that nobody else uses.
type open struct{}

func (open) Begin(context.Context, string) (func(), error) { return func() {}, nil }

// Run makes backups until ctx ends, and returns when nothing of it goes on any more, which may take as long as a request to
// the store takes to be given up. It is called once, as soon as etcd serves, and must have returned before etcd is closed.
// What is in etcd and not in the store yet is Flush's to bring there before.
func (s *Shipper) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer close(s.ended)
	defer s.drain()
	defer cancel()
	timer := time.NewTimer(s.pace.tick)
	defer timer.Stop()
	for ctx.Err() == nil {
		again := s.step(ctx)
		s.publish()
		s.answer() // who is told finds it in the facts
		if again {
			s.listen()
			continue
		}
		timer.Reset(s.pause())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case event := <-s.events:
			event()
		}
	}
}

// step does whatever is due, and tells whether there is more to do at once. All of it may be called at any time.
func (s *Shipper) step(ctx context.Context) (again bool) {
	s.observe()
	s.leaveToOthers()
	s.look(ctx)
	s.begin(ctx)
	again = s.capture()
	s.ship(ctx)
	s.merge(ctx)
	s.reserve(ctx)
	return again
}

// pause is how long there is nothing to do, unless something happens: until the next look at etcd, or the next capture.
func (s *Shipper) pause() time.Duration {
	if left := s.interval() - time.Since(s.captured); left > 0 {
		return min(left, s.pace.tick)
	}
	return s.pace.tick
}

// listen hears what there is to hear, without waiting.
func (s *Shipper) listen() {
	select {
	case event := <-s.events:
		event()
	default:
	}
}

// drain hears the jobs out that end now.
func (s *Shipper) drain() {
	s.ending = true
	idle := make(chan struct{})
	go func() {
		s.jobs.Wait()
		close(idle)
	}()
	for {
		select {
		case event := <-s.events:
			event()
		case <-idle:
			s.giveUp()
			s.publish()
			return
		}
	}
}

// job runs what may wait in a goroutine of its own, and what it returns in the owner's.
func (s *Shipper) job(work func() (done func())) {
	s.jobs.Go(func() {
		done := work()
		heard := make(chan struct{})
		s.events <- func() {
			defer close(heard)
			done()
		}
		<-heard // it may have started another one, which must be waited for as well
	})
}

// tell has the owner do something.
func (s *Shipper) tell(ctx context.Context, what func()) error {
	select {
	case s.events <- what:
		return nil
	case <-s.ended:
		return ErrEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Facts are what can be told of backups now.
func (s *Shipper) Facts() Facts { return *s.facts.Load() }

// OpenTransactions is how many of etcd's read transactions backups hold open now.
func (s *Shipper) OpenTransactions() int64 { return s.reader.Open() }

// time is now, in milliseconds, but never before a time that was written already: the times of a generation don't go back,
// whatever clocks do.
func (s *Shipper) time() time.Time {
	now := s.options.Now().UTC().Truncate(time.Millisecond)
	if now.Before(s.lastTime) {
		return s.lastTime
	}
	s.lastTime = now
	return now
}
