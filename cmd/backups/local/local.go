// Package local is the conversation about backups between the wrapper that runs and the commands on the same host: how it was
// told to make them, and that it make a full one now. The command that runs etcd serves it on the wrapper's own port, on
// loopback only; `etcd-wrapper backup …` asks.
package local

import (
	"errors"
	"time"
)

// ErrNoAnswer says that no wrapper answered on the port.
var ErrNoAnswer = errors.New("no answer")

// ErrNoBackups says that the wrapper that answered makes no backups.
var ErrNoBackups = errors.New("it makes no backups: it was started without --backup-store")

// Flags is what GET /backup answers: flags of the wrapper by name, without the dashes. None of them is a secret; files of keys
// are named only.
type Flags struct {
	Store       string `json:"backup-store"`
	Keep        string `json:"backup-keep"`
	Recipients  string `json:"backup-recipients,omitempty"`
	Identities  string `json:"backup-identities,omitempty"`
	SigningKey  string `json:"backup-signing-key,omitempty"`
	TrustedKeys string `json:"backup-trusted-keys,omitempty"`
	VolumeDir   string `json:"volume-dir"`
}

// Made is a full backup that is in the store.
type Made struct {
	Name     string    `json:"name"`     // of the full, as backup list shows it
	Revision int64     `json:"revision"` // that it holds
	Time     time.Time `json:"time"`     // at which the database was read
	Bytes    int64     `json:"bytes"`    // in the store
}

// event is a line of the reply to POST /backup. The last one has Made or Error; those before it show that it goes on.
type event struct {
	Uploaded int64  `json:"uploaded,omitempty"` // bytes of the database so far
	Of       int64  `json:"of,omitempty"`       // and of how many
	Made     *Made  `json:"made,omitempty"`
	Error    string `json:"error,omitempty"`
}
