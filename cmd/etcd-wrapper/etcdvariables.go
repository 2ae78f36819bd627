package main

import (
	"flag"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/server/v3/embed"

	"etcd-wrapper/cmd/commandline"
)

// warnOfEtcdVariables logs the environment variables that configure plain etcd, or images and charts of it, and that
// have no effect here: a member is configured by one file.
func warnOfEtcdVariables(log zerolog.Logger) {
	var unknown []string
	for _, name := range commandline.EtcdVariables() {
		if instead := replacement(name); instead != "" {
			log.Warn().Str("variable", name).Msgf("environment variable %s is ignored: set %s instead", name, instead)
		} else {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		log.Warn().Strs("variables", unknown).Msg("environment variables are ignored: neither etcd's configuration nor etcd-wrapper has settings of these names")
	}
}

// clientSecurity are etcd's flags whose keys are in a section of its configuration file. The flags for peers have the
// same names after "peer-".
var clientSecurity = []string{
	"cert-file", "key-file", "client-cert-file", "client-key-file", "client-cert-auth", "trusted-ca-file", "auto-tls", "client-cert-allowed-hostname",
}

// flagOnly are etcd's flags without a key in its configuration file.
var flagOnly = []string{"client-crl-file", "peer-crl-file", "raft-read-timeout", "raft-write-timeout"}

// replacement returns the setting that replaces a variable of etcd: a flag, or a key of etcd's configuration. It
// returns an empty string if there is none.
func replacement(variable string) string {
	name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, "ETCD_"), "_", "-"))
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	embed.NewConfig().AddFlags(flags)
	peer, isPeer := strings.CutPrefix(name, "peer-")
	section := ""
	switch {
	case name == "config-file":
		return "--etcd-config-file"
	case flags.Lookup(name) == nil && name != "initial-cluster-state", slices.Contains(flagOnly, name):
		return ""
	case isPeer:
		section, name = "peer-transport-security.", peer
	case strings.HasPrefix(name, "socket-"):
		section, name = "socket-options.", strings.TrimPrefix(name, "socket-")
	case name == "experimental-snapshot-catchup-entries":
		name = "snapshot-catchup-entries"
	case slices.Contains(clientSecurity, name):
		section = "client-transport-security."
	case strings.HasPrefix(name, "discovery-") && !strings.HasPrefix(name, "discovery-srv") && name != "discovery-proxy":
		name = "discovery-config"
	}
	if _, allowed, is := strings.Cut(name, "cert-allowed-"); is {
		name = "allowed-" + allowed
	}
	return section + name + " in etcd's configuration"
}
