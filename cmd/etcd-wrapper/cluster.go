package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"time"

	"etcd-wrapper/exitcode"
	"etcd-wrapper/readiness/status"
	"etcd-wrapper/readiness/status/terminal"
)

// tellCluster asks the wrappers of all members that the one on this host knows.
func (c *statusCommand) tellCluster(s streams) (exitcode.Code, error) {
	known, err := status.NewClient(uint16(c.WrapperPort)).Fetch(context.Background())
	if err != nil {
		return 0, err
	}
	if len(known.Peers) == 0 {
		return exitcode.MemberNotReady, fmt.Errorf("this member does not know its cluster yet: %s", known.Headline.Line)
	}
	secured, err := trusting(known.Certificates)
	if err != nil {
		return exitcode.NotTold, err
	}
	answers := status.FetchAll(context.Background(), known, uint16(c.WrapperPort), secured)
	if err := c.print(s.out, terminal.Cluster(answers, time.Now()), answers); err != nil {
		return exitcode.NotTold, err
	}
	if slices.ContainsFunc(answers, func(a status.Answer) bool { return a.Document == nil || !a.Document.Ready }) {
		return exitcode.MemberNotReady, nil
	}
	return exitcode.Clean, nil
}

// trusting is how the members' wrappers are spoken to: over TLS where this one shows a certificate, which the authority of its etcd has
// signed, or one that the host trusts.
func trusting(files []status.Certificate) (*tls.Config, error) {
	path := map[string]string{}
	for _, file := range files {
		path[file.Name] = file.Path
	}
	if path["etcd_server"] == "" && path["wrapper_server"] == "" {
		return nil, nil
	}
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := path["etcd_server_ca"]; ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("cannot read the authority of the members' certificates: %w", err)
		}
		secured.RootCAs = x509.NewCertPool()
		if !secured.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", ca)
		}
	}
	return secured, nil
}
