package main

import (
	"os"
	"time"

	"github.com/rs/zerolog"

	"etcd-wrapper/lifecycle"
)

// glance is how often greet looks whether the member is ready.
const glance = 100 * time.Millisecond

// greet says, as soon as the member may be used, how: in three lines for people, in one for a log. It ends with the run.
func (p *parts) greet(log zerolog.Logger, forPeople bool, ended <-chan struct{}) {
	for !p.ready() {
		select {
		case <-time.After(glance):
		case <-ended:
			return
		}
	}
	endpoint, page := p.world.Usage()
	put := os.Args[0] + " etcdctl --endpoints=" + endpoint + " put greeting hello"
	if !forPeople {
		log.Info().Str("write_a_key", put).Str("page", page).Msg("etcd is ready")
		return
	}
	log.Info().Msg("to write a key: " + put)
	log.Info().Msg("to see how it is: " + page)
	log.Info().Msg("to stop: Ctrl-C, or kill -TERM its process")
}

// ready waits for the log to say so first: what is said here is to stay in sight.
func (p *parts) ready() bool {
	return p.report.SaidReady() && p.driver.Snapshot().State == lifecycle.Serving
}
