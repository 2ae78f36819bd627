package main

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/cmd/commandline"
	"etcd-wrapper/cmd/docs"
)

// invocation matches an invocation of this program in a code block: at the start of a line, after another command, in
// a pod, or in <(…).
var invocation = regexp.MustCompile(`(?:^|&& |-- /|<\()(?:bin/)?etcd-wrapper ([^|)&>]*)`)

func TestDocumentation_commandsParse(t *testing.T) {
	parsed := 0
	for _, block := range docs.Blocks(t) {
		for _, line := range block.Commands() {
			for _, call := range invocation.FindAllStringSubmatch(line, -1) {
				parsed++
				args := strings.Fields(strings.NewReplacer("'", "", `"`, "").Replace(call[1]))
				_, err := commandline.Parse(&commandLine{}, args, io.Discard)
				assert.NoError(t, err, "%s: %s", block.Page, line)
			}
		}
	}
	assert.Greater(t, parsed, 20)
}
