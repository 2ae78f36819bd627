package main

import (
	"fmt"
	"regexp"

	"github.com/rs/zerolog"

	"etcd-wrapper/backup"
	"etcd-wrapper/cmd/runtime"
	"etcd-wrapper/member/leases"
)

// ofStatefulSet is the name of a pod of a StatefulSet: the set's, and a number.
var ofStatefulSet = regexp.MustCompile(`^(.+)-\d+$`)

// leases returns what renews the leases of the run; nil without --leases. The error says what the flag cannot be used for.
func (c *startCommand) leases(all *runtime.World, kept *backup.Backups, log zerolog.Logger) (*leases.Leases, error) {
	if !c.Leases {
		return nil, nil
	}
	account, err := leases.FromEnvironment()
	if err != nil {
		return nil, fmt.Errorf("--leases: %w", err)
	}
	pod := ofStatefulSet.FindStringSubmatch(podName())
	if pod == nil {
		return nil, fmt.Errorf("--leases: %q is not the name of a StatefulSet's pod, after which leases are named; set POD_NAME", podName())
	}
	options := leases.Options{Account: account, Cluster: pod[1], Member: all.LeaseOfMember, Log: log}
	if kept != nil {
		options.Backups = all.LeaseOfBackups
	}
	return leases.New(options), nil
}
