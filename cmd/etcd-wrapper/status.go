package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/runtime"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/internal/disk"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
)

// wrapperPort holds the flag of the commands that contact the wrapper on this host.
type wrapperPort struct {
	WrapperPort commandline.Port `name:"etcd-wrapper-port" aliases:"port" default:"9095" help:"Port of the wrapper on this host. Alias: --port."`
}

// statusCommand shows the status of the wrapper on this host.
type statusCommand struct {
	wrapperPort `embed:""`
	VolumeDir   string `name:"volume-dir" default:"/var/etcd/data" help:"If no wrapper responds, read from this volume how the last run ended."`
	Watch       bool   `name:"watch" env:"-" short:"w" help:"Print every change until the wrapper exits."`
	Verbose     bool   `name:"verbose" env:"-" short:"v" help:"Also show the checks, the history of the last hours and the latest transitions."`
	Cluster     bool   `name:"cluster" env:"-" help:"Show all members of the cluster in one table."`
	output      `embed:""`
}

func (c *statusCommand) execute(s streams) exitcode.Code {
	if c.Cluster {
		return c.executeCluster(s)
	}
	ready := false
	show := c.printer(s.out)
	receive := func(document status.Document) error {
		ready = document.Ready
		return show(document)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := c.fetch(ctx, receive)
	if ctx.Err() != nil {
		return exitcode.CutShort // the user pressed Ctrl-C, which needs no message
	}
	if err != nil {
		if last := runtime.LastRunOn(c.VolumeDir); last != "" && errors.Is(err, status.ErrNoAnswer) {
			err = fmt.Errorf("%w; %s", err, last)
		}
		return s.logError("cannot show the status", err, answerStatus(err))
	}
	if !ready {
		return exitcode.MemberNotReady
	}
	return exitcode.Clean
}

func (c *statusCommand) fetch(ctx context.Context, receive func(status.Document) error) error {
	client := status.NewClient(uint16(c.WrapperPort))
	if c.Watch {
		return client.Watch(ctx, receive)
	}
	document, err := client.Fetch(ctx)
	if err != nil {
		return err
	}
	return receive(document)
}

func (c *statusCommand) printer(to io.Writer) func(status.Document) error {
	if c.json() {
		encoder := json.NewEncoder(to)
		if !c.Watch {
			encoder.SetIndent("", "  ")
		}
		return func(document status.Document) error { return encoder.Encode(document) }
	}
	printer := terminal.NewPrinter(to)
	printer.Verbose = c.Verbose
	if c.Watch {
		return printer.PrintChanges
	}
	return printer.Print
}

func answerStatus(err error) exitcode.Code {
	if errors.Is(err, status.ErrNoAnswer) {
		return exitcode.NoAnswer
	}
	return exitcode.NotTold
}

// defragCommand requests a defragmentation from the wrapper on this host and waits until it has finished.
type defragCommand struct {
	wrapperPort `embed:""`
	output      `embed:""`
}

func (c *defragCommand) execute(s streams) exitcode.Code {
	progress := s.out
	if c.json() {
		progress = io.Discard
	}
	last, err := c.defragment(progress)
	if err == nil && last.Error != "" {
		err = status.RejectedError(last.Error)
	}
	var refusal status.RejectedError
	if errors.As(err, &refusal) {
		return s.logError("not defragmented", err, exitcode.ToolFailed)
	}
	if err != nil {
		return s.logError("cannot determine whether the database was defragmented", err, answerStatus(err))
	}
	_ = c.print(s.out, "defragmented "+terminal.DefragmentationResult(last)+"\n", last) // fails only if the reader has closed the pipe
	return exitcode.Clean
}

// watchInterval is the interval at which defragment polls the status.
const watchInterval = 200 * time.Millisecond

// defragment requests a defragmentation and shows its progress until it has finished.
func (c *defragCommand) defragment(to io.Writer) (*state.Defragmentation, error) {
	ctx, client := context.Background(), status.NewClient(uint16(c.WrapperPort))
	before, err := client.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	if err := client.Defragment(ctx); err != nil {
		return nil, err
	}
	shown := ""
	for {
		now, err := client.Fetch(ctx)
		if err != nil {
			return nil, err
		}
		if now.Maintenance != nil && now.Maintenance.Busy() && now.Maintenance.Reason != shown {
			shown = now.Maintenance.Reason
			_, _ = fmt.Fprintln(to, now.Maintenance.Phase+": "+shown) // fails only if the reader has closed the pipe
		}
		if last := ended(now, before); last != nil {
			return last, nil
		}
		time.Sleep(watchInterval)
	}
}

// ended returns the result of a defragmentation, or nil if it is still running. before is the status from before the
// request.
func ended(now, before status.Document) *state.Defragmentation {
	last := func(d status.Document) *state.Defragmentation {
		if d.Maintenance == nil || d.Maintenance.Busy() {
			return nil
		}
		return d.Maintenance.LastDefragmentation
	}
	current, previous := last(now), last(before)
	if current == nil || current.Origin != "command" || previous != nil && !current.At.After(previous.At) {
		return nil
	}
	return current
}

// executeCluster shows the status of all members, as reported by the wrapper on this host.
func (c *statusCommand) executeCluster(s streams) exitcode.Code {
	fail := func(err error, code exitcode.Code) exitcode.Code {
		return s.logError("cannot show the status of the cluster", err, code)
	}
	document, err := status.NewClient(uint16(c.WrapperPort)).Fetch(context.Background())
	if err != nil {
		return fail(err, answerStatus(err))
	}
	if len(document.Peers) == 0 {
		return fail(fmt.Errorf("the cluster members are not known yet: %s", document.Headline.Summary), exitcode.MemberNotReady)
	}
	config, err := tlsConfigOf(document.Certificates)
	if err != nil {
		return fail(err, exitcode.NotTold)
	}
	members := status.FetchAll(context.Background(), document, uint16(c.WrapperPort), config)
	if err := c.print(s.out, terminal.Cluster(members, time.Now()), members); err != nil {
		return fail(err, exitcode.NotTold)
	}
	if slices.ContainsFunc(members, func(a status.MemberStatus) bool { return a.Document == nil || !a.Document.Ready }) {
		return exitcode.MemberNotReady
	}
	return exitcode.Clean
}

// tlsConfigOf returns the TLS configuration for requests to the wrappers of the other members, or nil if this member
// has no server certificate. The configuration trusts the CA of etcd's certificates, or the system's root
// certificates if there is none.
func tlsConfigOf(files []status.Certificate) (*tls.Config, error) {
	path := map[string]string{}
	for _, file := range files {
		path[file.Name] = file.Path
	}
	if path["etcd_server"] == "" {
		return nil, nil
	}
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if ca := path["etcd_server_ca"]; ca != "" {
		secured.RootCAs, err = disk.ReadRoots(ca)
	}
	return secured, err
}
