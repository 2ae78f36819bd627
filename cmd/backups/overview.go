package backups

import (
	"context"
	"fmt"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/internal/printable"
)

// Overview is what backup list tells, and with -o json its document. Times are RFC 3339, sizes are bytes in the store. Fields may
// be added, none is renamed.
type Overview struct {
	Store       string               `json:"store"`
	Cluster     string               `json:"cluster,omitempty"` // etcd's cluster id at the beginning, hexadecimal
	Created     time.Time            `json:"created,omitzero"`
	Generations []GenerationOverview `json:"generations"`       // oldest first
	Sidecar     []SidecarChain       `json:"sidecar,omitempty"` // what etcd-backup-restore wrote, oldest first
}

// GenerationOverview is the history between two restores.
type GenerationOverview struct {
	Number         int            `json:"number"`
	Cluster        string         `json:"cluster"`
	Parent         int            `json:"parent,omitempty"` // the generation that was restored, and up to which revision
	ParentRevision int64          `json:"parent_revision,omitempty"`
	Created        time.Time      `json:"created"`
	Windows        []Window       `json:"windows"` // what can be gone back to, oldest first
	Fulls          []FullOverview `json:"fulls"`   // oldest first
	Segments       Amount         `json:"segments"`
	Verified       *Verification  `json:"verified,omitempty"` // the last test restore, of a full or a drill
}

// Window is a range of revisions each of which is kept.
type Window struct {
	From  int64     `json:"from"`
	To    int64     `json:"to"`
	Begin time.Time `json:"begin"` // when From was the present
	End   time.Time `json:"end"`   // when To was the present, as far as is known

	Beyond string `json:"beyond,omitempty"` // why what follows cannot be read; absent if nothing does
}

// FullOverview is a backup of the whole database.
type FullOverview struct {
	Name      string        `json:"name"`
	Revision  int64         `json:"revision"`
	Time      time.Time     `json:"time"`
	Bytes     int64         `json:"bytes"`
	Database  int64         `json:"database"` // bytes of the database itself
	Encrypted bool          `json:"encrypted,omitempty"`
	Reason    string        `json:"reason"`
	Member    string        `json:"member"`
	Verified  *Verification `json:"verified,omitempty"` // absent until a test restore has come to a verdict
	Error     string        `json:"error,omitempty"`    // why it cannot be used; the rest is then missing
}

// Verification is the verdict of a test restore.
type Verification struct {
	Outcome  string    `json:"outcome"` // verified or failed
	Why      string    `json:"why,omitempty"`
	At       time.Time `json:"at"`
	Revision int64     `json:"revision"`
	Drill    bool      `json:"drill,omitempty"` // of a revision behind a full
}

// Amount is how much of something there is.
type Amount struct {
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// drillsFor is how old a drill may be that is told of.
const drillsFor = 31 * 24 * time.Hour

// Look lists what is kept.
func Look(ctx context.Context, settings Settings, now time.Time) (Overview, error) {
	all := Overview{Store: settings.Store.String(), Generations: []GenerationOverview{}}
	kept := settings.Archive()
	history, err := kept.History(ctx)
	if err != nil {
		return Overview{}, fmt.Errorf("cannot list what is kept: %w", err)
	}
	if history.Cluster != nil {
		all.Cluster, all.Created = history.Cluster.Cluster, history.Cluster.Created
	}
	for _, generation := range history.Generations {
		drills, err := kept.RestoreTests(ctx, generation.Number, now.Add(-drillsFor))
		if err != nil {
			return Overview{}, fmt.Errorf("cannot list what drills showed: %w", err)
		}
		all.Generations = append(all.Generations, ofGeneration(generation, drills))
	}
	all.Sidecar, err = ofSidecar(ctx, settings.Store)
	return all, err
}

func ofGeneration(g archive.Generational, drills []archive.Result) GenerationOverview {
	seen := GenerationOverview{
		Number: g.Number, Cluster: g.Cluster, Parent: g.Parent, ParentRevision: g.ParentRevision, Created: g.Created,
		Windows: []Window{}, Fulls: []FullOverview{}, Segments: Amount{Objects: len(g.Objects)},
	}
	for _, chain := range g.Chains {
		window := Window{From: chain.From, To: chain.To, Begin: chain.Begin, End: chain.End}
		if chain.PastEnd != nil {
			window.Beyond = printable.Line(chain.PastEnd.Error())
		}
		seen.Windows = append(seen.Windows, window)
	}
	for _, object := range g.Objects {
		seen.Segments.Bytes += object.Size
	}
	for _, full := range g.Fulls {
		of := ofFull(full)
		seen.Fulls = append(seen.Fulls, of)
		seen.Verified = later(seen.Verified, of.Verified)
	}
	for _, drill := range drills {
		seen.Verified = later(seen.Verified, ofVerdict(&drill))
	}
	return seen
}

func ofFull(full archive.KeptFull) FullOverview {
	seen := FullOverview{
		Name: full.Label, Revision: full.Revision, Time: full.Time, Bytes: full.Size, Database: full.Database.Bytes, Encrypted: full.Encrypted,
		Reason: printable.Line(full.Reason), Member: full.Member, Verified: ofVerdict(full.Result),
	}
	if full.Err != nil {
		seen.Error = printable.Line(full.Err.Error())
	}
	return seen
}

func ofVerdict(verdict *archive.Result) *Verification {
	if verdict == nil {
		return nil
	}
	return &Verification{
		Outcome: string(verdict.Outcome), Why: printable.Line(verdict.Why), At: verdict.At, Revision: verdict.Revision, Drill: verdict.Segments,
	}
}

func later(a, b *Verification) *Verification {
	if a == nil || b != nil && b.At.After(a.At) {
		return b
	}
	return a
}
