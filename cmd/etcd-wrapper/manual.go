package main

import (
	_ "embed"
	"strings"
	"sync"
	"text/template"

	"etcd-wrapper/exitcode"
)

//go:embed manual.tmpl
var manualText string

var manual = sync.OnceValue(func() *template.Template { return template.Must(template.New("").Parse(manualText)) })

// Manual implements commandline.Documented.
func (*commandLine) Manual(command string) string {
	var text strings.Builder
	if err := manual().ExecuteTemplate(&text, command, exitcode.Codes()); err != nil {
		return "" // an error would suppress the help; a test ensures that each command has a manual
	}
	return text.String()
}
