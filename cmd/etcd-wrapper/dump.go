package main

import (
	"bytes"
	"fmt"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/recovery"
)

// dumpCommand is what --dump-fsm selects.
type dumpCommand struct{ machine, format string }

func (c dumpCommand) execute(s streams) exitcode.Code {
	text, err := c.draw()
	if err == nil {
		_, err = fmt.Fprint(s.out, text)
	}
	if err != nil {
		log := s.logger()
		log.Error().Err(err).Msg("cannot print the state machine")
		return exitcode.NotTold
	}
	return exitcode.Clean
}

func (c dumpCommand) draw() (string, error) {
	if c.machine == "recovery" {
		return c.drawRecovery()
	}
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

func (c dumpCommand) drawRecovery() (string, error) {
	switch c.format {
	case "mermaid":
		return recovery.Mermaid(), nil
	case "svg":
		return recovery.SVG(), nil
	case "json":
		return recovery.JSON()
	default:
		return recovery.DOT(), nil
	}
}

// noCommand is what runs when no command is named. Whoever tries the program's name gets to know what it can do.
type noCommand struct{}

func (*noCommand) execute(s streams) exitcode.Code {
	var usage bytes.Buffer
	_, _ = parse([]string{"--help"}, &usage) // it is Done
	_, _ = s.log.Write(usage.Bytes())        // there is nobody else to tell
	return exitcode.Usage
}
