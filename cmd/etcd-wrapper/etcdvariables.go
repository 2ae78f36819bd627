package main

import (
	"strings"

	"github.com/rs/zerolog"

	"etcd-wrapper/bootstrap/etcdconf"
	"etcd-wrapper/cmd/commandline"
)

// warnOfEtcdVariables logs a warning about environment variables that only plain etcd, its images or its charts use.
// These variables have no effect, because a member is configured by a single file.
func warnOfEtcdVariables(log zerolog.Logger) {
	var unknown []string
	for _, name := range commandline.EtcdVariables() {
		if instead := replacement(name); instead != "" {
			log.Warn().Str("variable", name).Msgf("ignoring environment variable %s; set %s instead", name, instead)
		} else {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		log.Warn().Strs("variables", unknown).Msg("ignoring environment variables that match no setting of etcd or etcd-wrapper")
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
