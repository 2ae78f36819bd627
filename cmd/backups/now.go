package backups

import (
	"fmt"
	"io"

	"etcd-wrapper/cmd/backups/local"
	"etcd-wrapper/readiness/status/terminal"
)

// Made is what backup now tells, and with -o json its document.
type Made local.Made

// Print prints the document for people, with times in their zone.
func (m Made) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "full %s of revision %d, from %s, is in the store: %s\n", m.Name, m.Revision, terminal.Moment(m.Time), terminal.Size(m.Bytes))
	return err
}
