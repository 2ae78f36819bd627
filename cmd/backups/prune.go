package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"etcd-wrapper/backup/archive/retention"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// ErrUnsafe reports that Prune deleted nothing because a safety check failed.
var ErrUnsafe = errors.New("not deleting any backups")

// ErrNoPolicy reports that --backup-keep is missing and dryRun is false. Prune does not fall back to the default
// policy, because start-etcd may be configured to keep more.
var ErrNoPolicy = errors.New("--backup-keep is required with --backup-store: set it to the value that start-etcd uses, or omit both to use the flags of the wrapper on this host")

// PruneResult is the result of backup prune. The -o json flag prints it.
type PruneResult struct {
	Store        string             `json:"store"`
	Policy       string             `json:"policy"`
	Assumed      bool               `json:"assumed,omitempty"` // the default policy was used because none was set
	From         time.Time          `json:"from"`              // start of the window of restore points
	FailedChecks []string           `json:"doubts,omitempty"`  // messages from the safety checks that failed
	Items        []retention.Item   `json:"items"`
	DryRun       bool               `json:"dry_run"`
	Done         retention.Deletion `json:"done"`
}

// Prune deletes the backups that the retention policy no longer requires and calls deleted after each deletion. If
// dryRun is set, Prune only plans the deletions. A result is valid even if it is returned with ErrUnsafe or with an
// error from a deletion.
func Prune(ctx context.Context, settings Settings, dryRun bool, deleted func(retention.Item)) (PruneResult, error) {
	if settings.Keep == "" && !dryRun {
		return PruneResult{}, ErrNoPolicy
	}
	kept := settings.Archive()
	history, err := kept.History(ctx) // verifies the manifests, because object names alone do not reveal a missing segment
	if err != nil {
		return PruneResult{}, fmt.Errorf("cannot list the backups: %w", err)
	}
	plan, err := retention.NewPlan(ctx, kept, history, settings.Policy, time.Now(), 0)
	if err != nil {
		return PruneResult{}, err
	}
	document := PruneResult{
		Store: settings.Store.String(), Policy: plan.Policy.String(), Assumed: settings.Keep == "", From: plan.From, FailedChecks: plan.Unsafe,
		Items: plan.Items, DryRun: dryRun,
	}
	if len(plan.Unsafe) > 0 {
		return document, fmt.Errorf("%w: %s", ErrUnsafe, printable.Line(strings.Join(plan.Unsafe, "; ")))
	}
	if !dryRun {
		document.Done, err = plan.Execute(ctx, kept, deleted)
	}
	return document, err
}

// Print prints the result as text, with times in the user's time zone.
func (p PruneResult) Print(to io.Writer) error {
	var b strings.Builder
	b.WriteString(printable.Line(p.Store) + "\n")
	b.WriteString(terminal.Wrapped("", fmt.Sprintf("retention policy %s: keep every revision since %s", p.policy(), terminal.FormatTime(p.From))) + "\n")
	var rows [][]string
	for i, item := range p.Items {
		rows = append(rows, []string{p.word(item), describeItem(item) + ", " + terminal.Size(item.Bytes) + timeSuffix(item.Time) + ": " + item.Why})
		if i == len(p.Items)-1 || p.Items[i+1].Generation != item.Generation {
			fmt.Fprintf(&b, "\ngeneration %d\n%s", item.Generation, terminal.Table(rows...))
			rows = nil
		}
	}
	if !p.DryRun && len(p.FailedChecks) == 0 {
		fmt.Fprintf(&b, "\ndeleted %s (%s); %s will be deleted later\n", count(p.Done.Objects, "object"), terminal.Size(p.Done.Bytes), count(p.Done.Locked, "locked object"))
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func (p PruneResult) policy() string {
	if p.Assumed {
		return p.Policy + " (the default, because --backup-keep is not set)"
	}
	return p.Policy
}

func (p PruneResult) word(item retention.Item) string {
	switch {
	case !item.Goes:
		return "keep"
	case len(p.FailedChecks) > 0:
		return "would delete"
	default:
		return "delete"
	}
}

func describeItem(item retention.Item) string {
	switch item.Kind {
	case retention.Full:
		return "full " + printable.Line(item.Name)
	case retention.Segments:
		return fmt.Sprintf("segments in %s, starting at revision %d", count(item.Objects, "object"), item.Revision)
	case retention.Remains:
		return "remains of " + count(item.Objects, "incomplete full snapshot")
	case retention.Generation:
	}
	return "the entire generation"
}

func timeSuffix(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", " + terminal.FormatTime(at)
}
