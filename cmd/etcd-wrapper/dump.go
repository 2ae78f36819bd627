package main

import (
	"bytes"
	"fmt"

	"etcd-wrapper/backup/writer"
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

// machine is what a state machine can be printed as.
type machine struct {
	dot, mermaid, svg func() string
	json              func() (string, error)
}

var machines = map[string]machine{
	"lifecycle": {
		dot: func() string { return lifecycle.DOT(lifecycle.Table) }, mermaid: func() string { return lifecycle.Mermaid(lifecycle.Table) },
		svg: lifecycle.SVG, json: func() (string, error) { return lifecycle.JSON(lifecycle.Table) },
	},
	"recovery": {dot: recovery.DOT, mermaid: recovery.Mermaid, svg: recovery.SVG, json: recovery.JSON},
	"backup":   {dot: writer.DOT, mermaid: writer.Mermaid, svg: writer.SVG, json: writer.JSON},
}

func (c dumpCommand) draw() (string, error) {
	is := machines[c.machine]
	switch c.format {
	case "mermaid":
		return is.mermaid(), nil
	case "svg":
		return is.svg(), nil
	case "json":
		return is.json()
	default:
		return is.dot(), nil
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
