package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/cmd/backups"
	"etcd-wrapper/cmd/backups/local"
	"etcd-wrapper/cmd/report"
	"etcd-wrapper/exitcode"
	"etcd-wrapper/lifecycle"
	"etcd-wrapper/readiness"
	"etcd-wrapper/readiness/metrics"
	"etcd-wrapper/readiness/page"
	"etcd-wrapper/readiness/status"
)

// serve binds the wrapper's own server and lets it answer from the first instant, over TLS where etcd is expected to.
func (c *startCommand) serve(log zerolog.Logger, p *parts, routes map[string]http.Handler) (func(), exitcode.Code, error) {
	server, err := readiness.Listen(readiness.Options{
		Address: c.Address(), Phase: p.report.Phase, Stop: p.driver.Stop, StopFromAnywhere: c.StopFromAnywhere,
		Defragment: p.world.Defragment,
		Routes:     routes, Log: log,
	}, p.world.Monitor())
	if err != nil {
		return nil, exitcode.ServerTaken, fmt.Errorf("%w; end the process that listens there, or give another --etcd-wrapper-port", err)
	}
	p.world.Connect(server, p.driver.Crash)
	if status, err := c.choose(server); err != nil {
		return nil, status, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(); err != nil {
			p.driver.ListenerLost(err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Debug().Err(err).Msg("requests were cut off at the end")
		}
		<-ended
	}, exitcode.Clean, nil
}

// choose says how the server speaks until etcd's configuration is known.
func (c *startCommand) choose(server *readiness.Server) (exitcode.Code, error) {
	switch {
	case c.WrapperCertPath != "":
		if err := server.UseTLS(c.WrapperCertPath, c.WrapperKeyPath); err != nil {
			return exitcode.Usage, fmt.Errorf("--etcd-wrapper-cert-path: %w", err)
		}
	case c.ExpectsTLS():
		if err := server.UseTemporary(); err != nil {
			return exitcode.ServerTaken, err
		}
	default:
		server.UsePlain()
	}
	return exitcode.Clean, nil
}

// routes are what the wrapper's server answers beside its own endpoints.
func (c *startCommand) routes(about *report.Report, counts *metrics.Metrics, kept *backup.Backups) map[string]http.Handler {
	states := make([]string, len(lifecycle.States))
	for i, state := range lifecycle.States {
		states[i] = string(state.Name)
	}
	table, _ := lifecycle.JSON(lifecycle.Table) // it is made of texts, so nothing can fail
	served := map[string]http.Handler{
		"GET /{$}":              page.Handler(lifecycle.Overview(), table),
		"GET /statemachine.svg": page.Picture(lifecycle.SVG()),
		"GET /lifecycle":        status.Handler(about.Source()),
		"GET /metrics":          counts.Handler(about.Document, states),
	}
	maps.Copy(served, local.Routes(backups.Told(c.Backups, c.VolumeDir), maker(kept)))
	return served
}
