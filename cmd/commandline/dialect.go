package commandline

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// longFlag is a flag as Go's flag package takes it, with which the reference program reads its command line: one dash
// does as well as two.
var longFlag = regexp.MustCompile(`^--?([a-z][a-z-]+)(=.*)?$`)

// valued are the operator's flags that take the next argument for their value, if they have none, whatever it looks like.
var valued = []string{
	"etcd-wrapper-port", "etcd-client-port", "backup-restore-host-port", "backup-restore-ca-cert-bundle-path",
	"etcd-server-name", "etcd-client-cert-path", "etcd-client-key-path", "etcd-ready-timeout",
}

// asGoReadsFlags makes flags with one dash into flags with two, and puts values next to them, up to "--" or one of the
// commands that pass their arguments on. It also takes away environment variables that are empty, or whose flag is given:
// Kubernetes makes variables of Service names, and one of those must not spoil a start that does not need it.
func asGoReadsFlags(args, passing []string) (read []string) {
	given := map[string]bool{}
	for i := 0; i < len(args); i++ {
		if args[i] == "--" || slices.Contains(passing, args[i]) {
			read = append(read, args[i:]...)
			break
		}
		parts := longFlag.FindStringSubmatch(args[i])
		if parts == nil {
			read = append(read, args[i])
			continue
		}
		name, value := parts[1], parts[2]
		if value == "" && slices.Contains(valued, name) && i+1 < len(args) {
			i++
			value = "=" + args[i]
		}
		read = append(read, "--"+name+truth(name, value))
		given[variable(name)] = true
	}
	forgetVariables(given)
	return read
}

// truth spells out what Go takes for a boolean.
func truth(name, value string) string {
	if is, err := strconv.ParseBool(strings.TrimPrefix(value, "=")); err == nil && name == "backup-restore-tls-enabled" {
		return fmt.Sprintf("=%t", is)
	}
	return value
}

// forgetVariables removes environment variables that are empty, or whose flag is given.
func forgetVariables(given map[string]bool) {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, prefix+"_") && (value == "" || given[name]) {
			_ = os.Unsetenv(name) // fails for malformed names only
		}
	}
}

// serviceURL is what Kubernetes gives a variable whose name ends in _PORT, for each Service in the namespace.
var serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// ForgetServices removes the environment variables that Kubernetes has made of a Service's name and that have the name of
// a flag by accident: for a Service "etcd-wrapper-etcd-client" there is ETCD_WRAPPER_ETCD_CLIENT_PORT, a URL, and beside
// it ETCD_WRAPPER_ETCD_CLIENT_SERVICE_HOST. It returns their names. Call it before anything reads the environment.
func ForgetServices() (forgotten []string) {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		service, isPort := strings.CutSuffix(name, "_PORT")
		if _, has := os.LookupEnv(service + "_SERVICE_HOST"); !has || !isPort || !strings.HasPrefix(name, prefix+"_") || !serviceURL.MatchString(value) {
			continue
		}
		_ = os.Unsetenv(name) // fails for malformed names only
		forgotten = append(forgotten, name)
	}
	return forgotten
}

// variable is the environment variable of a flag.
func variable(flag string) string {
	return prefix + "_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
