package main

import (
	"os"

	"github.com/rs/zerolog"

	"etcd-wrapper/lifecycle"
)

// greet says, as soon as etcd serves, how to use it: in three lines for people, in one for a log. It ends with the run.
func (p *parts) greet(log zerolog.Logger, forPeople bool, ended <-chan struct{}) {
	for {
		now := p.driver.Snapshot()
		if now.State == lifecycle.Serving {
			break
		}
		select {
		case <-now.Superseded():
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
