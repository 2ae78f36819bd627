package backups

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"etcd-wrapper/exitcode/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// SidecarChain is a full of etcd-backup-restore and the deltas that follow it, by their names.
type SidecarChain struct {
	Full   string    `json:"full"`   // the object's name
	From   int64     `json:"from"`   // the full's revision, by its name
	To     int64     `json:"to"`     // the last one that its deltas lead to without a gap
	Begin  time.Time `json:"begin"`  // by the sidecar's clock
	End    time.Time `json:"end"`    //
	Deltas int       `json:"deltas"` // how many
	Bytes  int64     `json:"bytes"`
}

func printSidecar(b *strings.Builder, chains []SidecarChain, _ time.Time) {
	if len(chains) == 0 {
		return
	}
	b.WriteString("\nwhat etcd-backup-restore wrote, by the names of its objects\n\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FULL\tREVISION\tUP TO\tFROM\tUNTIL\tDELTAS\tSIZE")
	for _, c := range chains {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%d\t%s\n", printable.Line(c.Full), c.From, c.To, terminal.Moment(c.Begin), terminal.Moment(c.End),
			c.Deltas, terminal.Size(c.Bytes))
	}
	flush(table)
}
