package backups

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/printable"
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

// ofSidecar lists what etcd-backup-restore has left in a store.
func ofSidecar(ctx context.Context, s store.Store) (chains []SidecarChain, err error) {
	theirs, err := sidecarstore.List(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cannot list what the sidecar wrote: %w", err)
	}
	for _, chain := range theirs.Chains {
		reach := chain.Reach()
		seen := SidecarChain{
			Full: chain.Full.Name, From: chain.Full.Last, To: reach.Last, Begin: chain.Full.Created, End: reach.Created, Deltas: len(chain.Deltas),
			Bytes: chain.Full.Size,
		}
		for _, delta := range chain.Deltas {
			seen.Bytes += delta.Size
		}
		chains = append(chains, seen)
	}
	return chains, nil
}

func printSidecar(b *strings.Builder, chains []SidecarChain) {
	if len(chains) == 0 {
		return
	}
	b.WriteString("\nwhat etcd-backup-restore wrote, by the names of its objects\n\n")
	rows := [][]string{{"FULL", "REVISION", "UP TO", "FROM", "UNTIL", "DELTAS", "SIZE"}}
	for _, c := range chains {
		rows = append(rows, []string{
			printable.Line(c.Full), strconv.FormatInt(c.From, 10), strconv.FormatInt(c.To, 10), terminal.Moment(c.Begin), terminal.Moment(c.End),
			strconv.Itoa(c.Deltas), terminal.Size(c.Bytes),
		})
	}
	b.WriteString(table(rows...))
}
