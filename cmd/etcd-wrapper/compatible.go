package main

import (
	"os"
	"regexp"
	"strings"
)

// longFlag is a flag as Go's flag package takes it, with which the reference program reads its command line: one dash
// does as well as two.
var longFlag = regexp.MustCompile(`^--?([a-z][a-z-]+)(=.*)?$`)

// asGoReadsFlags makes flags with one dash into flags with two. It also takes away environment variables that are empty,
// or whose flag is given: Kubernetes makes variables of Service names, and one of those must not spoil a start that does
// not need it.
func asGoReadsFlags(args []string) []string {
	read := make([]string, len(args))
	given := map[string]bool{}
	for i, arg := range args {
		read[i] = arg
		if parts := longFlag.FindStringSubmatch(arg); parts != nil {
			read[i] = "--" + parts[1] + parts[2]
			given[variable(parts[1])] = true
		}
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "ETCD_WRAPPER_") && (value == "" || given[name]) {
			_ = os.Unsetenv(name) // fails for malformed names only
		}
	}
	return read
}

func variable(flag string) string {
	return "ETCD_WRAPPER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
