package main

import (
	"fmt"
	"math"
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

// passing are the arguments after which the rest is passed on as it is.
var passing = []string{"--", "etcdctl", "etcdutl"}

// asGoReadsFlags makes flags with one dash into flags with two, and puts values next to them, up to the arguments of
// another program. It also takes away environment variables that are empty, or whose flag is given: Kubernetes makes
// variables of Service names, and one of those must not spoil a start that does not need it.
func asGoReadsFlags(args []string) (read []string) {
	given := map[string]bool{}
	for i := 0; i < len(args); i++ {
		if slices.Contains(passing, args[i]) {
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
		if strings.HasPrefix(name, "ETCD_WRAPPER_") && (value == "" || given[name]) {
			_ = os.Unsetenv(name) // fails for malformed names only
		}
	}
}

// port is a TCP port, written as Go reads numbers.
type port uint16

// UnmarshalText is called by kong, which names the flag.
func (p *port) UnmarshalText(text []byte) error {
	n, err := strconv.ParseInt(string(text), 0, 0)
	if err != nil || n < 0 || n > math.MaxUint16 {
		return fmt.Errorf("%q is not a port", text)
	}
	*p = port(n)
	return nil
}

func variable(flag string) string {
	return "ETCD_WRAPPER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
