package store

import (
	"fmt"
	"strings"
)

// Bounds of names, in bytes. Every store takes them, with a prefix of some hundred bytes before them.
const (
	maxName    = 512
	maxSegment = 200
)

// CheckName says what keeps name from being an object's: it must be relative, of segments between slashes, each of letters,
// digits and - . _ + = @, none beginning with a dot. Such names mean the same in every store and every file system.
func CheckName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("object name of %d bytes: must have 1 to %d", len(name), maxName)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if !validSegment(segment) {
			return fmt.Errorf("object name %q: %q is not 1 to %d letters, digits or -._+=@ without a leading dot",
				name, segment, maxSegment)
		}
	}
	return nil
}

func validSegment(segment string) bool {
	if segment == "" || len(segment) > maxSegment || segment[0] == '.' {
		return false
	}
	return onlyNameBytes(segment)
}

// CheckListing says what keeps prefix or after from being where a listing begins: other bytes than names have.
func CheckListing(prefix, after string) error {
	for _, part := range []string{prefix, after} {
		if len(part) > maxName || !onlyNameBytes(strings.ReplaceAll(part, "/", "")) {
			return fmt.Errorf("listing of %q after %q: not the beginning of object names", prefix, after)
		}
	}
	return nil
}

func onlyNameBytes(s string) bool {
	for i := range len(s) {
		if !nameByte(s[i]) {
			return false
		}
	}
	return true
}

func nameByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("-._+=@", b) >= 0
}
