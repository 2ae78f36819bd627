package main

import (
	"strings"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap/etcdconf"
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

// replacement returns the setting that replaces a variable of etcd: a flag, or a key of etcd's configuration. It
// returns an empty string if there is none.
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
