package main

import (
	"strings"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/commandline"
)

// warnOfEtcdVariables logs the environment variables that configure plain etcd or its images and charts, and that
// have no effect here, where one file configures a member.
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

// replacement returns the flag or the configuration key that replaces an environment variable of etcd, or an empty
// string if there is none.
func replacement(variable string) string {
	name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, "ETCD_"), "_", "-"))
	if name == "config-file" {
		return "--etcd-config-file"
	}
	if key := etcdconf.KeyOfFlag(name); key != "" {
		return key + " in etcd's configuration"
	}
	return ""
}
