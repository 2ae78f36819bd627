package main

import (
	"fmt"
	"strings"

	"etcd-wrapper/exitcode"
)

// Notes implements commandline.Noted.
func (*startCommand) Notes() string {
	var statuses []any
	for _, code := range exitcode.Codes() {
		statuses = append(statuses, code, code.String())
	}
	return "Each of these flags has an environment variable, ETCD_WRAPPER_ and its name in capitals: --log-level is\n" +
		"ETCD_WRAPPER_LOG_LEVEL. It counts if it is not empty and the flag is not given.\n" +
		exitStatuses(append(statuses, "128+n", "forced by a second signal, number n")...)
}

// exitStatuses is a paragraph of help. It takes statuses, each with its meaning.
func exitStatuses(all ...any) string {
	var b strings.Builder
	b.WriteString("\nExit statuses\n")
	for i := 0; i < len(all); i += 2 {
		number := all[i]
		if code, is := number.(exitcode.Code); is {
			number = int(code)
		}
		fmt.Fprintf(&b, "  %-5v  %v\n", number, all[i+1])
	}
	return b.String()
}
