package docs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// logMessage matches a log message about backups, recovery or a certificate.
	logMessage = regexp.MustCompile(`\bMsgf?\("((?:backups: |recovery: |certificate %s|cannot reload the server)[^"]+)"`)
	level      = regexp.MustCompile(`\.(Info|Warn|Error|Debug|WithLevel)\(`)
	verb       = regexp.MustCompile(`%[sdqv]`)
)

// Each warning or error about backups, recovery and certificates must have a row in a table, and each row must
// explain a message that exists.
func TestWarnings_areDocumented(t *testing.T) {
	program := sources(t)
	var messages, explained []string
	for _, at := range logMessage.FindAllStringSubmatchIndex(program, -1) {
		text := strings.TrimSuffix(verb.ReplaceAllString(program[at[2]:at[3]], "…"), "; …")
		levels := level.FindAllStringSubmatch(program[max(0, at[0]-300):at[0]], -1)
		loud := len(levels) > 0 && slices.Contains([]string{"Warn", "Error"}, levels[len(levels)-1][1])
		if loud && !slices.Contains(messages, text) && text != "backups: " && text != "recovery: " {
			messages = append(messages, text)
		}
	}
	for _, row := range Table(t, "in the log", "what it means, and what to do") {
		explained = append(explained, strings.Trim(row[0], "`"))
		assert.NotEmpty(t, row[1], row[0])
	}
	for _, text := range messages {
		assert.True(t, slices.Contains(explained, text), "add a row to docs/log.md: | `%s` | … |", text)
	}
	for _, text := range explained {
		assert.True(t, slices.Contains(messages, text), "docs/log.md explains a message that the program never logs: %s", text)
	}
	assert.Greater(t, len(messages), 30)
}

// checkResult matches a message that one of retention's safety checks returns.
var checkResult = regexp.MustCompile(`\breturn (?:\[\]string\{|fmt\.Sprintf\()"([^"]+)"|\breturn "([^"]+ [^"]+)"`)

// Each message from a failed safety check must have a row in a table.
func TestProblems_areDocumented(t *testing.T) {
	program, err := os.ReadFile("../../backup/archive/retention/execute.go")
	require.NoError(t, err)
	var explained []string
	for _, row := range Table(t, "failed check", "meaning", "what to do") {
		explained = append(explained, Quoted(row[0])...)
	}
	messages := checkResult.FindAllStringSubmatch(string(program), -1)
	for _, match := range messages {
		problem := match[1] + match[2]
		assert.True(t, slices.ContainsFunc(explained, func(row string) bool { return quotes(row, problem) }),
			"add a row to the table of failed checks in docs/backup-problems.md: | `%s` | … | … |", verb.ReplaceAllString(problem, "…"))
	}
	assert.Greater(t, len(messages), 10)
}

// quotes reports whether a row quotes a message. An ellipsis in the row matches any text.
func quotes(row, message string) bool {
	return !slices.ContainsFunc(parts(row), func(part string) bool { return !strings.Contains(message, part) })
}

// parts splits a row at its ellipses and drops the parts that are too short to compare.
func parts(row string) (all []string) {
	for part := range strings.SplitSeq(placeholders.Replace(row), "…") {
		if part = strings.Trim(part, " ,:;"); len(part) > 4 {
			all = append(all, part)
		}
	}
	return all
}

// placeholders replaces the placeholders in quotations on the pages with ellipses.
var placeholders = strings.NewReplacer(" N", " …", " M ", " … ", "something of", "something … of")

// The problems that the pages quote must be messages of the program. An ellipsis in a quotation matches any text.
func TestQuotedProblems_exist(t *testing.T) {
	program, checked := sources(t), 0
	rows := slices.Concat(Table(t, "problem", "meaning", "what to do"), Table(t, "failed check", "meaning", "what to do"))
	for _, row := range rows {
		for _, message := range Quoted(row[0]) {
			for _, part := range parts(message) {
				checked++
				assert.True(t, strings.Contains(program, part), "the pages quote %q, but the program does not contain %q", message, part)
			}
		}
	}
	assert.Greater(t, checked, 40)
}
