package etcdconf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxQuoted is how many characters of a value, or of somebody else's message, appear in an error.
const maxQuoted = 80

// KeyError says which key of the configuration cannot be used, and why.
type KeyError struct {
	// Key is the name as written in the YAML, "section.key" inside a section, empty if no single key is to blame.
	Key string
	// Problem completes the sentence that begins with the key. It never contains a credential.
	Problem string
	// Cause is the error behind the problem, nil if there is none.
	Cause error
}

// Error returns the whole sentence.
func (e *KeyError) Error() string {
	if e.Key == "" {
		return "etcd configuration: " + e.Problem
	}
	return fmt.Sprintf("etcd configuration: %s: %s", e.Key, e.Problem)
}

// Unwrap returns the cause.
func (e *KeyError) Unwrap() error { return e.Cause }

// problem makes a KeyError from a format that may wrap a cause with %w.
func problem(key, format string, operands ...any) error {
	err := fmt.Errorf(format, operands...)
	return &KeyError{Key: key, Problem: err.Error(), Cause: errors.Unwrap(err)}
}

// quote makes a value fit to be shown: what stands before an @ may be a password.
func quote(value string) string {
	if at := strings.LastIndex(value, "@"); at >= 0 {
		scheme, _, _ := strings.Cut(value[:at], "://")
		if len(scheme) == at {
			scheme = "" // there is no scheme, all of it may be the password
		}
		value = scheme + "://redacted" + value[at:]
	}
	return strconv.Quote(clip(value))
}

// clip shortens text to maxQuoted characters.
func clip(text string) string {
	if runes := []rune(text); len(runes) > maxQuoted {
		return string(runes[:maxQuoted]) + "…"
	}
	return text
}
