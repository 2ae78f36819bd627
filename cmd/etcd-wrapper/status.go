package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
)

// statusCommand asks the wrapper that runs on this host, in the same pod. Its exit status says whether it is ready.
type statusCommand struct {
	WrapperPort commandline.Port `name:"etcd-wrapper-port" default:"9095" help:"Port of the wrapper's own server."`
	Watch       bool             `name:"watch" env:"-" short:"w" help:"Go on and tell every change, until the wrapper ends."`
	Output      string           `name:"output" env:"-" short:"o" enum:"text,json" default:"text" help:"text, for people, or json, the document of GET /lifecycle."`
}

// Notes implements commandline.Noted.
func (*statusCommand) Notes() string {
	return "The port may also be given by the environment variable ETCD_WRAPPER_ETCD_WRAPPER_PORT.\n" +
		exitStatuses(exitcode.Clean, "ready", exitcode.MemberNotReady, "not ready", exitcode.NoAnswer, "nobody answers on the port",
			exitcode.Usage, exitcode.Usage.String(), exitcode.NotTold, "the answer cannot be read or printed")
}

func (c *statusCommand) execute(s streams) exitcode.Code {
	ready := false
	show := c.printer(s.out)
	receive := func(document status.Document) error {
		ready = document.Ready
		return show(document)
	}
	if err := c.ask(receive); err != nil {
		log := s.logger()
		log.Error().Err(err).Msg("cannot tell the status")
		return unanswered(err)
	}
	if !ready {
		return exitcode.MemberNotReady
	}
	return exitcode.Clean
}

func (c *statusCommand) ask(receive func(status.Document) error) error {
	client := status.NewClient(uint16(c.WrapperPort))
	if c.Watch {
		return client.Watch(context.Background(), receive)
	}
	document, err := client.Fetch(context.Background())
	if err != nil {
		return err
	}
	return receive(document)
}

func (c *statusCommand) printer(to io.Writer) func(status.Document) error {
	if c.Output == "json" {
		encoder := json.NewEncoder(to)
		if !c.Watch {
			encoder.SetIndent("", "  ")
		}
		return func(document status.Document) error { return encoder.Encode(document) }
	}
	printer := terminal.NewPrinter(to)
	if c.Watch {
		return printer.PrintChanges
	}
	return printer.Print
}

func unanswered(err error) exitcode.Code {
	if errors.Is(err, status.ErrNoAnswer) {
		return exitcode.NoAnswer
	}
	return exitcode.NotTold
}
