package store

import (
	"fmt"
	"strings"
)

// Limits of names, in bytes. Every store supports them, after a prefix of some hundred bytes.
const (
	maxName    = 512
	maxSegment = 200
)

// CheckName returns an error unless name is the name of an object: segments separated by slashes, each of letters, digits and
// - . _ + = @, none starting with a dot. Such names mean the same in every store and every file system.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("object name of %d bytes: must have 1 to %d", len(name), maxName)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || len(segment) > maxSegment || segment[0] == '.' || strings.ContainsFunc(segment, isForbidden) {
			return fmt.Errorf("object name %q: %q is not 1 to %d letters, digits or -._+=@ without a leading dot",
				name, segment, maxSegment)
		}
	}
	return nil
}

// CheckPrefix returns an error unless prefix and after consist of characters of names.
func CheckPrefix(prefix, after string) error {
	for _, part := range []string{prefix, after} {
		if len(part) > maxName || strings.ContainsFunc(strings.ReplaceAll(part, "/", ""), isForbidden) {
			return fmt.Errorf("listing of %q after %q: not a prefix of object names", prefix, after)
		}
	}
	return nil
}

func isForbidden(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._+=@", r)
}
