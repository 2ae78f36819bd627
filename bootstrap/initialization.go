package bootstrap

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// InitializationStatus is the sidecar's word on where the initialization of the data directory stands.
type InitializationStatus string

// The four words that `GET /initialization/status` of etcd-backup-restore answers with. Reading Successful or Failed
// resets the sidecar to New, so each of the two is seen once.
const (
	New        InitializationStatus = "New"        // nothing was asked for yet, or the last verdict was read
	Progress   InitializationStatus = "Progress"   // an initialization is running; it may take hours
	Successful InitializationStatus = "Successful" // the data directory may be opened
	Failed     InitializationStatus = "Failed"     // the initialization ended without a usable data directory
)

// maxQuoted is how long a foreign word may be to be quoted, in bytes.
const maxQuoted = 24

// InitializationStatuses are all the words there are, in the order of a run.
var InitializationStatuses = []InitializationStatus{New, Progress, Successful, Failed}

// Running reports whether a word says that an initialization goes on. Every word is New, a verdict or one of these.
func (s InitializationStatus) Running() bool { return s == Progress }

// Verdict reports whether a word says how an initialization has ended.
func (s InitializationStatus) Verdict() bool { return s == Successful || s == Failed }

// ParseInitializationStatus reads a status word. White space around it is forgiven, anything else is not: opening the
// data on a word that was guessed is the one mistake this program exists to avoid. The error quotes a short word, and
// names no more than the length of anything else, which is not ours to log.
func ParseInitializationStatus(body []byte) (InitializationStatus, error) {
	word := InitializationStatus(bytes.TrimSpace(body))
	if !slices.Contains(InitializationStatuses, word) {
		return "", fmt.Errorf("unknown initialization status %s", quoted(string(word), len(body)))
	}
	return word, nil
}

// quoted is a word of letters, as a status is one, or how long it is.
func quoted(word string, size int) string {
	letters := strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
	if word == "" || len(word) > maxQuoted || !letters {
		return fmt.Sprintf("of %d bytes", size)
	}
	return strconv.Quote(word)
}

// Mode is how deeply the data directory is validated before it may be opened.
type Mode string

// The two modes that `GET /initialization/start` understands.
const (
	Sanity Mode = "sanity" // after a clean last exit: structure only
	Full   Mode = "full"   // in every other case: everything is read
)
