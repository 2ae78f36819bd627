package main

import (
	"fmt"

	"github.com/rs/zerolog"

	"etcd-wrapper/cmd/logstream"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
)

// dumpCommand is what --dump-fsm selects.
type dumpCommand struct{ format string }

func (c dumpCommand) execute(s streams) exitcode.Code {
	text, err := c.draw()
	if err == nil {
		_, err = fmt.Fprint(s.out, text)
	}
	if err != nil {
		log := logstream.New(s.log, zerolog.InfoLevel)
		log.Error().Err(err).Msg("cannot print the state machine")
		return exitcode.NotTold
	}
	return exitcode.Clean
}

func (c dumpCommand) draw() (string, error) {
	switch c.format {
	case "mermaid":
		return lifecycle.Mermaid(lifecycle.Table), nil
	case "svg":
		return lifecycle.SVG(), nil
	case "json":
		return lifecycle.JSON(lifecycle.Table)
	default:
		return lifecycle.DOT(lifecycle.Table), nil
	}
}

// noCommand is what runs when no command is named.
type noCommand struct{}

func (*noCommand) execute(s streams) exitcode.Code {
	log := logstream.New(s.log, zerolog.InfoLevel)
	log.Error().Msg("no command given; see etcd-wrapper --help")
	return exitcode.Usage
}
