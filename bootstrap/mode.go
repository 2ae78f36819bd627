package bootstrap

import "etcd-wrapper/exitcode"

// ModeAfter chooses the validation mode from the last exit. The reason, a clause for logs, says why.
func ModeAfter(record *exitcode.Record) (mode Mode, reason string) {
	word, err := record.Read()
	if err != nil {
		return Full, err.Error()
	}
	return Sanity, "the last etcd on this volume was closed in order (" + string(word) + ")"
}
