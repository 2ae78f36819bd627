package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/restore/sidecarstore"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/internal/printable"
	"etcd-wrapper/readiness/status/terminal"
)

// Listing is the result of `backup list`. The -o json flag prints it. Times are formatted as in RFC 3339, and sizes
// are in bytes as stored. New fields may be added, but existing fields are never renamed.
type Listing struct {
	Store       string              `json:"store"`
	Cluster     string              `json:"cluster,omitempty"` // random cluster ID from when the store was initialized
	Created     time.Time           `json:"created,omitzero"`
	Generations []GenerationListing `json:"generations"`       // oldest first
	Sidecar     []SidecarChain      `json:"sidecar,omitempty"` // backups made by etcd-backup-restore, oldest first

	names bool // makes Print show the object names
}

// WithNames makes Print show the object names of full snapshots instead of arguments for --to.
func (o Listing) WithNames() Listing {
	o.names = true
	return o
}

// label returns the text that identifies a full snapshot, which is its object name or its revision.
func (o Listing) label(name string, revision int64) string {
	if o.names {
		return printable.Line(name)
	}
	return fmt.Sprintf("revision:%d", revision)
}

// A GenerationListing describes a generation, which is the history between two restores.
type GenerationListing struct {
	Number         int           `json:"number"`
	Cluster        string        `json:"cluster"`
	Parent         int           `json:"parent,omitempty"` // generation that was restored, at ParentRevision
	ParentRevision int64         `json:"parent_revision,omitempty"`
	Created        time.Time     `json:"created"`
	Windows        []Window      `json:"windows"` // restore points, oldest first
	Fulls          []FullListing `json:"fulls"`   // oldest first
	Segments       Total         `json:"segments"`
	Verified       *Verification `json:"verified,omitempty"` // latest restore test, with or without segments
	Ignored        string        `json:"ignored,omitempty"`  // why an unverifiable object after Windows was ignored
}

// A Window is a range of revisions that can be restored.
type Window struct {
	From  int64     `json:"from"`
	To    int64     `json:"to"`
	Begin time.Time `json:"begin"` // earliest time that can be restored, at which From was current
	End   time.Time `json:"end"`   // latest time at which To is known to have been current

	Beyond string `json:"beyond,omitempty"` // why later revisions cannot be read; absent if there are none
}

// A FullListing describes a full snapshot.
type FullListing struct {
	Name      string        `json:"name"`
	Revision  int64         `json:"revision"`
	Time      time.Time     `json:"time"`
	Bytes     int64         `json:"bytes"`
	Database  int64         `json:"database"` // size of the database
	Encrypted bool          `json:"encrypted,omitempty"`
	Reason    string        `json:"reason"`
	Member    string        `json:"member"`
	Verified  *Verification `json:"verified,omitempty"` // absent until the first restore test has finished
	Error     string        `json:"error,omitempty"`    // why the backup is unusable; if set, the other fields are absent
}

// A Verification is the result of a restore test.
type Verification struct {
	Outcome  string    `json:"outcome"` // verified or failed
	Why      string    `json:"why,omitempty"`
	At       time.Time `json:"at"`
	Revision int64     `json:"revision"`
	Segments bool      `json:"segments,omitempty"` // segments were restored too
}

// Total is the number and total size of a set of objects.
type Total struct {
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// restoreTestsFor is the maximum age of the restore tests that are listed.
const restoreTestsFor = 31 * 24 * time.Hour

// ErrEmpty reports that the store has never contained any backups.
var ErrEmpty = errors.New("has no backups")

// List lists the backups. A listing is valid even if it is returned with ErrEmpty.
func List(ctx context.Context, settings Settings, now time.Time) (Listing, error) {
	all := Listing{Store: settings.Store.String(), Generations: []GenerationListing{}}
	kept := settings.Archive()
	history, err := kept.History(ctx)
	if err != nil {
		return Listing{}, fmt.Errorf("cannot list the backups: %w", err)
	}
	if history.Cluster != nil {
		all.Cluster, all.Created = history.Cluster.Cluster, history.Cluster.Created
	}
	for _, generation := range history.Generations {
		restoreTests, err := kept.RestoreTests(ctx, generation.Number, now.Add(-restoreTestsFor))
		if err != nil {
			return Listing{}, fmt.Errorf("cannot list the restore test results: %w", err)
		}
		all.Generations = append(all.Generations, ofGeneration(generation, restoreTests))
	}
	if all.Sidecar, err = ofSidecar(ctx, settings.Store); err == nil && len(all.Generations)+len(all.Sidecar) == 0 {
		err = fmt.Errorf("%s %w", settings.Store, ErrEmpty)
	}
	return all, err
}

func ofGeneration(g archive.GenerationContents, restoreTests []archive.Result) GenerationListing {
	seen := GenerationListing{
		Number: g.Number, Cluster: g.Cluster, Parent: g.Parent, ParentRevision: g.ParentRevision, Created: g.Created,
		Windows: []Window{}, Fulls: []FullListing{}, Segments: Total{Objects: len(g.Objects)},
	}
	for _, chain := range g.Chains {
		window := Window{From: chain.From, To: chain.To, Begin: chain.Begin, End: chain.End}
		if chain.PastEnd != nil {
			window.Beyond = printable.Line(chain.PastEnd.Error())
		}
		seen.Windows = append(seen.Windows, window)
	}
	if g.Ignored != nil {
		seen.Ignored = printable.Line(g.Ignored.Error())
	}
	for _, object := range g.Objects {
		seen.Segments.Bytes += object.Size
	}
	for _, full := range g.Fulls {
		of := ofFull(full)
		seen.Fulls = append(seen.Fulls, of)
		seen.Verified = newerOf(seen.Verified, of.Verified)
	}
	for _, test := range restoreTests {
		seen.Verified = newerOf(seen.Verified, ofResult(&test))
	}
	return seen
}

func ofFull(full archive.StoredFull) FullListing {
	if full.Err != nil {
		return FullListing{Name: full.Name(), Bytes: full.Size, Error: printable.Line(full.Err.Error())}
	}
	return FullListing{
		Name: full.Name(), Revision: full.Revision, Time: full.Time, Bytes: full.Size, Database: full.Database.Bytes, Encrypted: full.Encrypted,
		Reason: printable.Line(full.Reason), Member: full.Member, Verified: ofResult(full.Result),
	}
}

func ofResult(result *archive.Result) *Verification {
	if result == nil {
		return nil
	}
	return &Verification{
		Outcome: string(result.Outcome), Why: printable.Line(result.Why), At: result.At, Revision: result.Revision, Segments: result.Segments,
	}
}

func newerOf(a, b *Verification) *Verification {
	if a == nil || b != nil && b.At.After(a.At) {
		return b
	}
	return a
}

// A SidecarChain is a full snapshot made by etcd-backup-restore and its delta snapshots, as derived from their object
// names.
type SidecarChain struct {
	Full   string    `json:"full"`  // name of the object
	From   int64     `json:"from"`  // revision of the full snapshot, taken from its name
	To     int64     `json:"to"`    // last revision before the first gap in the delta snapshots
	Begin  time.Time `json:"begin"` // time of the full snapshot, by the sidecar's clock
	End    time.Time `json:"end"`
	Deltas int       `json:"deltas"` // number of delta snapshots
	Bytes  int64     `json:"bytes"`
}

// ofSidecar lists the backups that etcd-backup-restore made in a store.
func ofSidecar(ctx context.Context, s store.Store) (chains []SidecarChain, err error) {
	theirs, err := sidecarstore.List(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cannot list the backups made by etcd-backup-restore: %w", err)
	}
	for _, chain := range theirs.Chains {
		reach := chain.LastConnected()
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

func (o Listing) printSidecar(b *strings.Builder) {
	if len(o.Sidecar) == 0 {
		return
	}
	b.WriteString("\nbackups made by etcd-backup-restore, according to their object names\n\n")
	rows := [][]string{{"FULL", "UP TO", "UNTIL"}}
	for _, c := range o.Sidecar {
		rows = append(rows, []string{
			o.label(path.Base(c.Full), c.From), strconv.FormatInt(c.To, 10),
			fmt.Sprintf("%s, %s, %s", terminal.FormatTime(c.End), count(c.Deltas, "delta"), terminal.Size(c.Bytes)),
		})
	}
	b.WriteString(terminal.Table(rows...))
}

// JSON prints a document as JSON.
func JSON(to io.Writer, document any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// Print prints the listing as text, with times in the user's time zone.
func (o Listing) Print(to io.Writer) error {
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "%s\n", printable.Line(o.Store))
	if len(o.Generations) == 0 && len(o.Sidecar) == 0 {
		b.WriteString("\nno backups\n")
	}
	for _, generation := range o.Generations {
		generation.print(&b, now)
		o.printFulls(&b, generation.Fulls, now)
	}
	o.printSidecar(&b)
	_, err := io.WriteString(to, b.String())
	return err
}

func (g GenerationListing) print(b *strings.Builder, now time.Time) {
	head := "since " + terminal.FormatTime(g.Created)
	if g.Parent != 0 {
		head += fmt.Sprintf(", restored from generation %d at revision %d", g.Parent, g.ParentRevision)
	}
	b.WriteString("\n" + terminal.Wrapped(fmt.Sprintf("generation %d, ", g.Number), head) + "\n\n")
	facts := [][]string{{"cluster", printable.Line(g.Cluster)}}
	for _, window := range g.Windows {
		facts = append(facts, []string{"restore points", fmt.Sprintf("revisions %d to %d, %s to %s", window.From, window.To, terminal.FormatTime(window.Begin), terminal.FormatTime(window.End))})
		if window.Beyond != "" {
			facts = append(facts, []string{"", "later revisions cannot be read: " + window.Beyond})
		}
	}
	if len(g.Windows) == 0 {
		facts = append(facts, []string{"restore points", "none"})
	}
	if g.Ignored != "" {
		facts = append(facts, []string{"ignored", g.Ignored})
	}
	b.WriteString(terminal.Table(append(facts,
		[]string{"last verified", g.Verified.describe(now, true)},
		[]string{"segments", count(g.Segments.Objects, "object") + ", " + terminal.Size(g.Segments.Bytes)})...) + "\n")
}

// printFulls prints the most important details of each full snapshot. The -o json flag prints all of them.
func (o Listing) printFulls(b *strings.Builder, fulls []FullListing, now time.Time) {
	rows := [][]string{{"FULL", "SIZE", "DATABASE", "MADE", "VERIFIED"}}
	for _, full := range fulls {
		revision, made, _ := archive.ParseFullName(full.Name)
		verified, database := full.Verified.describe(now, false), terminal.Size(full.Database)
		switch {
		case full.Error != "":
			verified, database = "cannot be used: "+full.Error, ""
		case full.Encrypted:
			verified += "; encrypted"
		}
		rows = append(rows, []string{o.label(full.Name, revision), terminal.Size(full.Bytes), database, terminal.FormatTime(made), verified})
	}
	if o.names { // omit the column MADE, because the names of full snapshots contain the time
		for i := range rows {
			rows[i] = slices.Delete(rows[i], 3, 4)
		}
	}
	b.WriteString(terminal.Table(rows...))
}

// describe formats the result of a restore test as text, including the revision if there is one.
func (v *Verification) describe(now time.Time, revision bool) string {
	if v == nil {
		return "not yet"
	}
	what := "yes"
	if v.Outcome != string(archive.Verified) {
		what = "FAILED: " + v.Why
	}
	if revision {
		what += fmt.Sprintf(", revision %d", v.Revision)
	}
	return what + ", " + terminal.FormatAge(v.At, now)
}
